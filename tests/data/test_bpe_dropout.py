"""BPE-dropout against the paper's algorithm: exact probabilities, plain at rate 0, characters at 1, the text kept."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter, defaultdict

import pytest
from helpers.texts import TEXTS
from hypothesis import given, settings
from transformers import PreTrainedTokenizerFast

from hf_mlnmt import UserError
from hf_mlnmt.data.resegmented import BPEDropout
from hf_mlnmt.data.tokenizer import Tokenizers, encode

RATE = 0.3


def paper(word: str, ranks: dict[tuple[str, str], int], rate: float) -> dict[tuple[str, ...], float]:
    """Algorithm 1's probability of every segmentation of a word: all outcomes of every round, summed."""
    found: dict[tuple[str, ...], float] = defaultdict(float)

    def go_on(pieces: tuple[str, ...], probability: float) -> None:
        merges = [i for i in range(len(pieces) - 1) if pieces[i : i + 2] in ranks]
        for dropped in itertools.product((True, False), repeat=len(merges)):
            chance = probability
            for drop in dropped:
                chance *= rate if drop else 1 - rate
            left = [i for i, drop in zip(merges, dropped) if not drop]
            if not left:
                found[pieces] += chance
                continue
            first = min(left, key=lambda i: (ranks[pieces[i : i + 2]], i))
            go_on((*pieces[:first], pieces[first] + pieces[first + 1], *pieces[first + 2 :]), chance)

    go_on(tuple(word), 1.0)
    return found


def merges(tokenizer: PreTrainedTokenizerFast) -> dict[tuple[str, str], int]:
    return {
        tuple(pair): i for i, pair in enumerate(json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"])
    }


def recut(cutter: BPEDropout, ids: list[int], rng: random.Random) -> list[int]:
    return [piece for word in cutter.words(ids) for piece in cutter.cut(word, rng)]


def test_segmentations_are_as_frequent_as_the_paper_says(trained):
    tokenizer, draws, rng = trained["bpe", True], 20_000, random.Random(1)
    cutter = BPEDropout(tokenizer, RATE)
    for text in ("der", "jeden", "Mutter"):
        (word,) = cutter.words(encode(tokenizer, [text])[0].tolist()[:-1])
        expected = paper("▁" + text, merges(tokenizer), RATE)
        assert sum(expected.values()) == pytest.approx(1)
        assert len(expected) > 3
        drawn = Counter(tuple(tokenizer.convert_ids_to_tokens(cutter.cut(word, rng))) for _ in range(draws))
        assert set(drawn) <= set(expected)
        for pieces, probability in expected.items():
            error = (probability * (1 - probability) / draws) ** 0.5
            assert drawn[pieces] / draws == pytest.approx(probability, abs=4.5 * error), pieces


def test_a_word_is_a_run_of_letters_or_of_others(trained):
    tokenizer = trained["bpe", True]
    ids = encode(tokenizer, ["der 猫. „dass“ (3)!"])[0].tolist()
    words = ["".join(tokenizer.convert_ids_to_tokens(word)) for word in BPEDropout(tokenizer, 0.1).words(ids)]
    bytes_of = {text: [f"<0x{byte:02X}>" for byte in text.encode()] for text in "猫„“("}
    assert words == [
        *["▁der", "▁", *bytes_of["猫"], ".", "▁", *bytes_of["„"], "dass", *bytes_of["“"], "▁", *bytes_of["("]],
        *["<0x33>", "<0x29>", "<0x21>", "</s>"],
    ]


@pytest.mark.parametrize("byte_fallback", [True, False])
@settings(max_examples=60, deadline=None)
@given(parts=TEXTS)
def test_without_dropout_nothing_changes(trained, byte_fallback, parts):
    tokenizer = trained["bpe", byte_fallback]
    ids = encode(tokenizer, ["".join(parts)])[0].tolist()
    assert recut(BPEDropout(tokenizer, 0.0), ids, random.Random(1)) == ids


@settings(max_examples=60, deadline=None)
@given(parts=TEXTS)
def test_the_text_stays(trained, parts):
    tokenizer = trained["bpe", True]
    ids = encode(tokenizer, ["".join(parts)])[0].tolist()
    cut = recut(BPEDropout(tokenizer, 0.5), ids, random.Random(1))
    assert tokenizer.decode(cut) == tokenizer.decode(ids)
    assert cut[-1] == tokenizer.eos_token_id


def test_with_every_merge_left_out_characters_remain(trained):
    tokenizer = trained["bpe", True]
    ids = encode(tokenizer, ["der Hund, dass"])[0].tolist()
    cut = recut(BPEDropout(tokenizer, 1.0), ids, random.Random(1))
    assert tokenizer.convert_ids_to_tokens(cut) == [*"▁der▁Hund,▁dass", "</s>"]


def test_codes_and_bytes_stay_whole(trained):
    tokenizer = trained["bpe", True]
    ids = Tokenizers(tokenizer, tokenizer).encode_source(["der 猫"], "de")[0].tolist()
    cut = recut(BPEDropout(tokenizer, 1.0), ids, random.Random(1))
    assert tokenizer.convert_ids_to_tokens(cut) == ["<2de>", *"▁der▁", "<0xE7>", "<0x8C>", "<0xAB>", "</s>"]


@pytest.mark.parametrize("tokenizer", ["unigram", "other"])
def test_other_tokenizers_are_refused(trained, tokenizer):
    from tokenizers import Tokenizer, models, pre_tokenizers

    if tokenizer == "other":
        backend = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel()
        other = PreTrainedTokenizerFast(tokenizer_object=backend)
    else:
        other = trained["unigram", True]
    with pytest.raises(UserError, match="train one"):
        BPEDropout(other, 0.1)
