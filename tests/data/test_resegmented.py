"""Pairs cut anew by BPE-dropout: the text stays, lengths are true, every epoch follows from the seed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.encoded_text import build
from helpers.tiny_run import run_in
from safetensors.torch import load_file

from hf_mlnmt import UserError
from hf_mlnmt.data.resegmented import CUTS, BPEDropout, Resegmented
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer
from hf_mlnmt.data.training_set import Corpora, Drawn
from hf_mlnmt.demo.grammar import sample_demo_corpus
from hf_mlnmt.training import preparation
from hf_mlnmt.training.batching import TokenBatchSampler

PAIRS = 200


@pytest.fixture(scope="module")
def tokenizers() -> dict[bool, Tokenizers]:
    """By whether both sides share one vocabulary."""
    pairs = sample_demo_corpus(seed=3, sizes={"train": 1000, "val": 1, "test": 1})["train"]
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    joint = train_tokenizer([*sides[0], *sides[1]], "bpe", 700)
    return {True: Tokenizers(joint, joint), False: Tokenizers(*(train_tokenizer(side, "bpe", 600) for side in sides))}


@pytest.fixture(scope="module")
def corpora(tokenizers, tmp_path_factory) -> dict[bool, Corpora]:
    pairs = sample_demo_corpus(seed=4, sizes={"train": PAIRS, "val": 1, "test": 1})["train"]
    folder = tmp_path_factory.mktemp("encoded")
    return {joint: Corpora([build(pairs, both, folder / str(joint))]) for joint, both in tokenizers.items()}


def resegmented(corpora, tokenizers: Tokenizers, rate: float = 0.3, **settings) -> Resegmented:
    source = BPEDropout(tokenizers.source, rate)
    target = source if tokenizers.joint else BPEDropout(tokenizers.target, rate)
    return Resegmented(corpora, source, target, **{"epochs": 3, **settings})


@pytest.mark.parametrize("joint", [True, False])
def test_every_variant_is_the_same_text_cut_otherwise(corpora, tokenizers, joint):
    pairs, both = corpora[joint], tokenizers[joint]
    data = resegmented(pairs, both)
    assert (len(data), data.distinct) == (4 * PAIRS, PAIRS)
    assert data.source_lengths.dtype == data.target_lengths.dtype == np.int32
    seen = {side: [[] for _ in range(4)] for side in ("input_ids", "labels")}
    for index in range(len(data)):
        item, plain = data[index], pairs[index % PAIRS]
        assert data.source_lengths[index] == len(item["input_ids"])
        assert data.target_lengths[index] == len(item["labels"])
        for side, tokenizer in (("input_ids", both.source), ("labels", both.target)):
            assert item[side].dtype == plain[side].dtype
            assert tokenizer.decode(item[side]) == tokenizer.decode(plain[side])
            seen[side][index // PAIRS].append(item[side].tolist())
    for side, variants in seen.items():
        assert variants[0] == [pairs[i][side].tolist() for i in range(PAIRS)]
        for one, other in ((0, 1), (0, 3), (1, 2), (2, 3)):
            assert sum(a != b for a, b in zip(variants[one], variants[other])) > 0.9 * PAIRS


def test_epochs_take_their_variants_and_then_the_plain_text(corpora, tokenizers):
    data = resegmented(corpora[True], tokenizers[True])
    assert [set(data.choose(epoch) // PAIRS) for epoch in range(5)] == [{1}, {2}, {3}, {0}, {0}]
    for epoch in range(5):
        assert sorted(data.choose(epoch) % PAIRS) == list(range(PAIRS))
    endless = resegmented(corpora[True], tokenizers[True], epochs=None, variants=2)
    assert [set(endless.choose(epoch) // PAIRS) for epoch in range(5)] == [{1}, {2}, {1}, {2}, {1}]


def test_a_pair_that_would_be_too_long_stays_as_it_is(corpora, tokenizers):
    data, limit = resegmented(corpora[True], tokenizers[True]), 24
    limited = resegmented(corpora[True], tokenizers[True], max_length=limit)
    for epoch in range(3):
        chosen = limited.choose(epoch)
        cut = chosen >= PAIRS
        fits = np.maximum(data.source_lengths[data.choose(epoch)], data.target_lengths[data.choose(epoch)]) <= limit
        assert cut.tolist() == fits.tolist()
        assert 0 < cut.sum() < PAIRS
        assert sorted(chosen % PAIRS) == list(range(PAIRS))


def test_the_same_seed_cuts_the_same_and_another_does_not(corpora, tokenizers):
    one, same, other = (resegmented(corpora[True], tokenizers[True], seed=seed) for seed in (1, 1, 2))
    cut = [[item["labels"].tolist() for item in map(data.__getitem__, one.choose(0))] for data in (one, same, other)]
    assert cut[0] == cut[1]
    assert sum(a != b for a, b in zip(cut[0], cut[2])) > 0.9 * PAIRS


def test_places_of_the_text_use_all_cuts_of_a_word_evenly(corpora, tokenizers):
    data = resegmented(corpora[True], tokenizers[True], epochs=None)
    side = data._sides["labels"]
    places = [side._cuts(np.arange(len(side.numbers)), variant) % CUTS for variant in range(1, data.variants + 1)]
    shares = np.bincount(np.concatenate(places), minlength=CUTS) / sum(map(len, places))
    assert shares == pytest.approx(np.full(CUTS, 1 / CUTS), abs=0.003)
    assert abs(np.corrcoef(places[0], places[1])[0, 1]) < 0.05
    other = resegmented(corpora[True], tokenizers[True], epochs=None, seed=2)._sides["labels"]
    other_places = other._cuts(np.arange(len(side.numbers)), 1) % CUTS
    assert abs(np.corrcoef(places[0], other_places)[0, 1]) < 0.05


def test_batches_hold_what_was_chosen(corpora, tokenizers):
    data = resegmented(corpora[True], tokenizers[True])
    sampler = TokenBatchSampler(data.source_lengths, data.target_lengths, 120, "target", choose=data.choose)
    for epoch in range(5):
        batches = sampler.batches(epoch)
        assert len(batches) == len(sampler)
        assert sorted(np.concatenate(batches)) == sorted(data.choose(epoch))


def test_of_mixtures(corpora, tokenizers):
    part = corpora[True].parts[0]
    mixture = Corpora([part, part], weights=[1, 2])
    data = resegmented(mixture, tokenizers[True], epochs=2)
    assert (len(data), data.distinct) == (3 * 2 * PAIRS, 2 * PAIRS)
    for epoch in range(3):
        assert sorted(data.choose(epoch) % len(mixture)) == sorted(mixture.choose(epoch))
        assert {index // len(mixture) for index in data.choose(epoch)} == {1 + epoch if epoch < 2 else 0}


def test_a_batch_is_gathered_as_its_pairs_are(corpora, tokenizers):
    """Plain and cut pairs of two corpora in one batch, as where some would be too long."""
    part = corpora[False].parts[0]
    data = resegmented(Corpora([part, Drawn(part, 40, 1)]), tokenizers[False])
    indices = np.random.default_rng(0).integers(0, len(data), 50)
    assert len(set(indices // data.distinct)) > 2
    for each, index in zip(data.gather(indices), indices.tolist(), strict=True):
        for side, ids in data[index].items():
            assert each[side].dtype == ids.dtype
            assert each[side].tolist() == ids.tolist()


def test_a_run_shows_cut_pairs_and_then_the_plain_ones(tmp_path: Path, monkeypatch):
    shown = []

    class Watched(Resegmented):
        def gather(self, indices):
            shown.extend(indices.tolist())
            assert self.max_length == 40
            return super().gather(indices)

    monkeypatch.setattr(preparation, "Resegmented", Watched)
    text = run_in(tmp_path, data={"bpe_dropout": 0.2, "bpe_dropout_epochs": 1}, budget={"epochs": 2})
    assert "cutting words for BPE-dropout 0.2" in text
    assert sorted(shown[:120]) == list(range(120, 240))
    assert sorted(shown[120:]) == list(range(120))
    assert (tmp_path / "run" / "average" / "model.safetensors").is_file()


def test_resumed_is_uninterrupted_bit_for_bit(tmp_path: Path):
    data = {"bpe_dropout": 0.3}
    run_in(tmp_path, data=data)
    folder = tmp_path / "run"
    whole = load_file(folder / "average" / "model.safetensors")
    for name in ("best", "average", "checkpoints/checkpoint-20", "checkpoints/checkpoint-16"):
        shutil.rmtree(folder / name)
    (folder / "results.json").unlink()
    assert f"going on from {folder / 'checkpoints' / 'checkpoint-12'}" in run_in(tmp_path, data=data).replace("\n", "")
    again = load_file(folder / "average" / "model.safetensors")
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_a_dry_run_says_so(tmp_path: Path):
    text = run_in(tmp_path, data={"bpe_dropout": 0.1, "bpe_dropout_epochs": 2}, dry_run=True)
    assert "120 pairs, BPE-dropout 0.1 in the first 2 epoch(s)" in text


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        ({"bpe_dropout": 1.0}, {}, "below 1, not 1.0"),
        ({"bpe_dropout": -0.1}, {}, "at least 0, not -0.1"),
        ({"bpe_dropout_epochs": 3}, {}, "set that too"),
        ({"bpe_dropout": 0.1, "bpe_dropout_epochs": 0}, {}, "must be above 0"),
        (
            {"bpe_dropout": 0.1},
            {"tokenizer": {"vocab_size": 60, "kind": "unigram", "byte_fallback": False}},
            "tokenizer.kind: bpe",
        ),
    ],
)
def test_what_it_refuses(tmp_path: Path, data: dict, changes: dict, message: str):
    with pytest.raises(UserError, match=message):
        run_in(tmp_path, data=data, **changes)
    assert not list(tmp_path.glob("run/checkpoints/*"))
