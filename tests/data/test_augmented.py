"""Pairs that an epoch shows changed: what the changes are, that lengths are true, that a seed says all of it."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest
import torch
from helpers.encoded_text import build
from helpers.tiny_run import run_in
from safetensors.torch import load_file

from hf_mlnmt import UserError
from hf_mlnmt.data.augmented import Augmented
from hf_mlnmt.data.changes import CHANGES, KEYBOARDS, Augment, changed
from hf_mlnmt.data.resegmented import BPEDropout, Resegmented
from hf_mlnmt.data.tokenizer import Tokenizers, decode, train_tokenizer
from hf_mlnmt.data.training_set import Corpora
from hf_mlnmt.demo.grammar import sample_demo_corpus

PAIRS = 120
PAIR = ("The dog's ball is red.", "Der Ball ist rot!")


@pytest.mark.parametrize(
    ("change", "source", "target"),
    [
        ("upper", "THE DOG'S BALL IS RED.", "DER BALL IST ROT!"),
        ("title", "The Dog's Ball Is Red.", "Der Ball Ist Rot!"),
        ("lower", "the dog's ball is red.", "Der Ball ist rot!"),
        ("unpunctuated", "The dog's ball is red", "Der Ball ist rot"),
        ("sentences", "The dog's ball is red. No.", "Der Ball ist rot! Nein."),
        ("quotes", '"The dog\'s ball is red."', "„Der Ball ist rot!“"),
    ],
)
def test_changes_of_both_sides(change, source, target):
    assert changed(change, PAIR, random.Random(1), ("en", "de"), ("No.", "Nein.")) == (source, target)


def test_emoji_and_noise_are_on_both_sides_and_slips_on_one():
    draw, seen = random.Random(1), set()
    for change in ("emoji", "noise") * 20:
        sides = changed(change, PAIR, draw, ("en", "de"))
        (sign,) = {side.replace(text, "").strip() for side, text in zip(sides, PAIR)}
        assert sign.isalnum() == (change == "noise")
        seen.add((change, *(side.startswith(text) for side, text in zip(sides, PAIR))))
    assert seen == {("emoji", True, True), ("noise", True, True), ("noise", False, False)}
    for rate, least, most in ((0.0, 0, 0), (0.1, 250, 450), (1.0, 3000, 4000)):
        slips = 0
        for _ in range(1000):
            source, target = changed("typos", ("Hundert Zebras zeigen Yaks", "x"), draw, ("de", "en"), words=rate)
            slips += sum(a != b for a, b in zip(source.split(), ["Hundert", "Zebras", "zeigen", "Yaks"], strict=True))
            assert (target, len(source) <= 30) == ("x", True)
        assert least <= slips <= most
    of_z = {
        name: {changed("typos", ("zzz", ""), draw, (None, None), words=1.0, keyboard=name)[0] for _ in range(300)}
        for name in KEYBOARDS
    }
    letters = {name: {*"".join(found)} - {"z"} for name, found in of_z.items()}
    assert letters == {"qwerty": {*"xa"}, "qwertz": {*"tuh"}, "azerty": {*"aes"}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    pairs = sample_demo_corpus(seed=3, sizes={"train": 1000, "val": 1, "test": 1})["train"]
    one = train_tokenizer([text for pair in pairs for text in pair], "bpe", 700, ["de"])
    tokenizers = Tokenizers(one, one)
    return tokenizers, Corpora([build(pairs[:PAIRS], tokenizers, tmp_path_factory.mktemp("x") / "encoded", None, "de")])


def augmented(made, inner=None, seed=1, **shares) -> Augmented:
    tokenizers, corpora = made
    ways = [(tokenizers, tokenizers.sides("de"), ("en", "de"))] * len(corpora.parts)
    return Augmented(inner or corpora, ways, Augment(**(shares or dict.fromkeys(CHANGES, 0.08))), seed, 256)


def texts_of(made, data, indices):
    items = data.gather(np.asarray(indices))
    return [[text for ids in item.values() for text in decode(made[0].source, [ids.tolist()])] for item in items]


def test_an_epoch_shows_each_pair_once_and_some_changed(made):
    data, plain = augmented(made), made[1]
    shown = [data.choose(epoch) for epoch in range(3)]
    assert all(sorted(own % PAIRS) == list(range(PAIRS)) for own in shown)
    drawn = [own >= PAIRS for own in shown]
    assert all(0.55 < own.mean() < 0.9 for own in drawn)  # 0.72 of 120, 4 standard deviations
    assert (drawn[0] != drawn[1]).any()
    of_epochs = [texts_of(made, data, own) for own in shown]
    before = texts_of(made, plain, range(PAIRS))
    for own, texts in zip(drawn, of_epochs):
        assert [text for text, is_drawn in zip(texts, own) if not is_drawn] == [
            text for text, is_drawn in zip(before, own) if not is_drawn
        ]
    different = sum(a != b for a, b, one, other in zip(*of_epochs[:2], *drawn[:2]) if one and other)
    assert different > 0.6 * (drawn[0] & drawn[1]).sum()
    again = augmented(made)
    assert (again.choose(2) == shown[2]).all()
    assert texts_of(made, again, shown[2]) == of_epochs[2]
    assert (augmented(made, seed=2).choose(0) != shown[0]).any()
    for side, lengths in (("input_ids", data.source_lengths), ("labels", data.target_lengths)):
        assert lengths[shown[1]].tolist() == [len(data[index][side]) for index in shown[1]]
        assert (
            lengths[shown[1]].max() <= lengths.max() <= 2 * max(map(len, plain.gather(np.arange(PAIRS)).columns[side]))
        )


def test_what_is_drawn_is_the_change_of_the_pair_and_keeps_its_code(made):
    data, before = augmented(made, upper=1.0), texts_of(made, made[1], range(PAIRS))
    shown = data.choose(7)
    assert [item["input_ids"][0] for item in data.gather(shown)] == [made[1][0]["input_ids"][0]] * PAIRS
    longest = [max(map(len, made[1].gather(np.arange(PAIRS)).columns[side])) for side in ("input_ids", "labels")]
    for text, old in zip(texts_of(made, data, shown), before, strict=True):
        capitals = [side.upper() for side in old]
        lengths = [data.ways[0][1][side]([own])[1][0] for side, own in zip(("source", "target"), capitals)]
        fits = all(length <= 2 * most for length, most in zip(lengths, longest))
        assert text == (capitals if fits else old)
    cut = Resegmented(made[1], *[BPEDropout(made[0].source, 0.3)] * 2, epochs=2)
    both = augmented(made, cut, upper=0.5)
    shown = both.choose(1)
    assert sorted(shown % both.distinct) == list(range(PAIRS))
    assert {*(shown[shown < len(cut)] // PAIRS)} == {2}
    assert both.gather(shown)[0].keys() == cut[0].keys()


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path):
    how = {"augment": {"upper": 0.3, "typos": 0.2, "sentences": 0.2}}
    run_in(tmp_path, scores=False, **how)
    folder = tmp_path / "run"
    whole = load_file(folder / "average" / "model.safetensors")
    for name in ("best", "average", "checkpoints/checkpoint-20", "checkpoints/checkpoint-16"):
        shutil.rmtree(folder / name)
    (folder / "results.json").unlink()
    assert "going on from" in run_in(tmp_path, scores=False, **how)
    again = load_file(folder / "average" / "model.safetensors")
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert "changed anew in each epoch: upper 30%, typos 20%, sentences 20%" in run_in(
        tmp_path / "other", scores=False, dry_run=True, **how
    )


def test_opustrainers_modifiers(tmp_path, caplog):
    (tmp_path / "o.yml").write_text(
        "modifiers:\n- UpperCase: 0.1\n- TitleCase: 0.05\n- Typos: 0.2\n  char_swap: 0.1\n- Merge: 0.01\n"
        "- Noise: 0.01\n- Tags: 0.1\n  augment: 0.4\n"
    )
    found = Augment(opustrainer=str(tmp_path / "o.yml"))
    assert found == Augment(upper=0.1, title=0.05, typos=0.2, noise=0.01 + 0.1 * 0.4)
    assert "not read: Typos.char_swap, Merge, Tags (but augment)" in caplog.text


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"upper": 1.1}, "augment.upper must be at most 1, not 1.1"),
        ({"typos": -0.1}, "augment.typos must be at least 0, not -0.1"),
        ({"upper": 0.6, "title": 0.6}, "augment: .*1.2 together"),
        ({"uper": 0.1}, "augment.uper: unknown key .did you mean 'upper'"),
        ({"keyboard": "qwerti"}, "augment.keyboard.*qwerty"),
        ({"opustrainer": "nowhere.yml"}, "nowhere.yml: no modifiers"),
    ],
)
def test_what_is_refused(tmp_path, how, message):
    with pytest.raises(UserError, match=message):
        run_in(tmp_path, scores=False, augment=how)
