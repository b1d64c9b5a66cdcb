"""Models that are trained with matches of a memory behind their sources, and the pipeline that reads them so."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
from helpers.tiny_run import UNSCORED, WORDS, run, write_recipe

from hf_mlnmt import UserError
from hf_mlnmt.data.encoded import Encoded
from hf_mlnmt.data.processing import Encoder
from hf_mlnmt.data.tokenizer import Tokenizers, load_tokenizers
from hf_mlnmt.generation import DecodingOptions, TranslationCall, TranslationPipeline
from hf_mlnmt.memory.index import MatchesBehind, TranslationMemory

LATER = [word.upper() for word in WORDS]
SIZES = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}


def twins(count, seed):
    """Pairs of sources that differ in a word, with one translation that nothing else tells."""
    rng = random.Random(seed)
    for _ in range(count):
        words, target = ([rng.choice(some) for _ in range(size)] for some, size in ((WORDS, 5), (LATER, 3)))
        yield from ((" ".join([*words, last]), " ".join(target)) for last in ("ba", "ti"))


def write(path, pairs):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    return path


@pytest.fixture
def corpus(tmp_path):
    pairs = list(twins(300, 1))
    random.Random(4).shuffle(pairs)
    write(tmp_path / "train.tsv", pairs)
    write(tmp_path / "val.tsv", list(twins(5, 2)))
    return pairs


def recipe_of(folder, steps, joint=True, **data):
    files = {"train": {"path": "train.tsv"}, "dev": {"path": "val.tsv"}, "test": {}}
    return write_recipe(
        folder / "recipe.yaml",
        scores=False,
        data={**files, "memory": "train.tsv", **data},
        model={"system": "transformer", "shape": "tiny", "settings": {**SIZES, "dropout": 0.0}},
        batch={"tokens": 1000},
        budget={"steps": steps},
        schedule={"name": "cosine", "warmup": 20},
        evaluation={**UNSCORED, "every": steps},
        checkpoints={"keep": 1, "average": 1},
        label_smoothing=0.0,
        tokenizer={"vocab_size": 60, "byte_fallback": False, "joint": joint},
        logging={"every": 1000},
    )


def test_a_model_learns_to_copy_from_its_match(corpus, tmp_path):
    """Of texts that training has not seen the memory alone tells the translation; both read the same ids."""
    run(recipe_of(tmp_path, 220, no_match=0.1, other_match=0.05), tmp_path, tmp_path / "run")
    pipeline = TranslationPipeline.from_pretrained(str(tmp_path / "run" / "average"), device="cpu")
    new = list(twins(30, 3))
    memory = TranslationMemory(write(tmp_path / "new.tsv", new[::2]), source="en", target="de")
    texts, right = map(list, zip(*new[1::2]))
    copied, alone = (sum(map(str.__eq__, pipeline(texts, memory=some), right)) for some in (memory, None))
    assert copied >= 20
    assert alone <= 2
    train = TranslationMemory(tmp_path / "train.tsv", source="en", target="de")
    tokenizers, encoded = load_tokenizers(tmp_path / "run" / "tokenizer"), Encoded(tmp_path / "run" / "data" / "train0")

    def ids_of(source, match):
        both = tokenizers.encode_source([source])[0], tokenizers.encode_target([match])[0]
        return [*both[0], *(both[1] if match else [])]

    for number, match in enumerate(MatchesBehind(train, 0.1, 0.05)(corpus)):
        assert encoded[number]["input_ids"].tolist() == ids_of(corpus[number][0], match)
    for most in (None, 12):
        call = TranslationCall(pipeline, DecodingOptions(memory=memory, max_source_tokens=most))
        for piece, text, (_, match) in zip((text.inputs[0] for text in call.cut(texts, 1)), texts, new[::2]):
            ids, alone = ids_of(text, match), ids_of(text, "")
            assert piece.ids == (ids if len(ids) <= (most or 999) else alone)
            assert not piece.steering


@pytest.mark.parametrize(("longest", "second"), [(7, True), (6, False)])
def test_a_match_that_is_too_long_is_left_out(tokenizer, longest, second):
    sides = list(Tokenizers(tokenizer, tokenizer).sides(None, None).values())
    matches = ["", "lu me do", "ki"]
    encoder = Encoder(sides, behind=lambda pairs: matches, longest=longest)
    (ids, lengths), _ = encoder([("ba", "x"), ("do ki", "x"), ("me", "x")]).sides
    words = ["ba", *(["do ki", "lu me do"] if second else ["do ki"]), "me", "ki"]
    assert ids.tolist() == [token for text in words for token in tokenizer(text)["input_ids"]]
    assert lengths.tolist() == [2, 7 if second else 3, 4]


def test_which_match_a_pair_gets(corpus, tmp_path):
    memory = TranslationMemory(tmp_path / "train.tsv", source="en", target="de")
    every = MatchesBehind(memory)(corpus)
    assert np.mean([text == target for text, (_, target) in zip(every, corpus)]) > 0.9  # of the twin, not of the line
    alone = TranslationMemory(write(tmp_path / "one.tsv", corpus[:1]), source="en", target="de")
    assert MatchesBehind(alone)([corpus[0], ("Nothing of it is known", "x")]) == ["", ""]
    some = pickle.loads(pickle.dumps(MatchesBehind(memory, 0.5, 0.25)))
    found = some(corpus)
    assert found == MatchesBehind(memory, 0.5, 0.25)(corpus)
    assert 0.44 < np.mean([not text for text in found]) < 0.56
    assert 0.2 < np.mean([bool(text) and text != own for text, own in zip(found, every)]) < 0.3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": "nowhere.tsv"}, "data.memory: .*nowhere.tsv: no such file"),
        ({"no_match": 0.7, "other_match": 0.5}, "together at most 1"),
        ({"bpe_dropout": 0.1}, "leave memory or bpe_dropout out"),
        ({"joint": False}, "data.memory: needs one vocabulary"),
    ],
)
def test_what_cannot_be(corpus, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        run(recipe_of(tmp_path, 1, **changes), tmp_path, tmp_path / "run")
