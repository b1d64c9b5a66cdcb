"""Alphabets that fill a vocabulary, and what is kept whole."""

from __future__ import annotations

import random

import pytest
from transformers import AutoTokenizer

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.subwords import BYTES, SPECIAL_TOKENS, train_tokenizer
from hf_mlnmt.data.tokenizer import statistics

_RANDOM = random.Random(1)
_WORDS = ["".join(_RANDOM.choices("etaoinshrdlu", k=_RANDOM.randint(2, 8))) for _ in range(3000)]
LINES = [" ".join(_RANDOM.choices(_WORDS, weights=range(3000, 0, -1), k=10)) for _ in range(4000)]
OTHER = ["".join(chr(_RANDOM.randrange(0x4E00, 0x9000)) for _ in range(40)) for _ in range(50)]


def singles(tokenizer):
    """Entries that are one character."""
    return [token for token in tokenizer.get_vocab() if len(token) == 1]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_rare_characters_do_not_fill_a_vocabulary(kind):
    clean = train_tokenizer(LINES, kind, 2000)
    mixed = train_tokenizer([*LINES, *OTHER], kind, 2000)
    assert len(singles(mixed)) < 2 * len(singles(clean)) + 20
    ratios = [statistics(each, LINES[:500]).subwords for each in (clean, mixed)]
    assert ratios[1] == pytest.approx(ratios[0], rel=0.02)
    assert mixed.decode(mixed(OTHER[0])["input_ids"], skip_special_tokens=True) == OTHER[0]


def test_frequent_characters_stay():
    chinese = ["".join(_RANDOM.choices([chr(0x4E00 + i) for i in range(300)], k=15)) for _ in range(4000)]
    tokenizer = train_tokenizer([*chinese, *OTHER], vocab_size=2000)
    assert statistics(tokenizer, chinese[:200]).bytes == 0
    assert len(singles(tokenizer)) < 400


def test_without_bytes_every_character_stays_unless_a_limit_is_said():
    assert len(singles(train_tokenizer([*LINES, *OTHER], vocab_size=3000, byte_fallback=False))) > 1500
    for kind in ("bpe", "unigram"):
        limited = train_tokenizer([*LINES, *OTHER], kind, 3000, byte_fallback=False, alphabet_limit=20)
        assert len(singles(limited)) <= 21


def test_an_ordinary_alphabet_is_as_before():
    lines = [*LINES, "Größe ſ ŋ", "1 2 3"]
    vocabulary = train_tokenizer(iter(lines), vocab_size=700).get_vocab()
    assert vocabulary == train_tokenizer(lines, vocab_size=700).get_vocab()
    assert {"ſ", "ŋ", "ß"} <= set(vocabulary)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_placeholders_and_digits_are_kept_whole(kind, tmp_path):
    texts = [*LINES, *["Hello {name}, call <phone> in 2024!"] * 50]
    tokenizer = train_tokenizer(texts, kind, 900, keep=["{name}", "<phone>", "__URL__", "digits"])
    tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for text in (
        "Hello {name}, call <phone> in 2024!",
        "{name}",
        "(<phone>)",
        "see __URL__ or a{name}b 007",
        "12{name}34",
    ):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        pieces = [tokenizer.decode([one]).strip() for one in ids]
        kept = {piece for piece in pieces if any(sign in piece for sign in "{<_}") and piece not in SPECIAL_TOKENS}
        assert kept == {name for name in ("{name}", "<phone>", "__URL__") if name in text}
        assert all(len(piece) == 1 for piece in pieces if piece[:1].isdigit())
    assert not set(BYTES) & set(tokenizer.convert_ids_to_tokens(tokenizer("{name}")["input_ids"]))


@pytest.mark.parametrize("keep", ["", " ", "a b", "▁", "</s>", "x" * 200])
def test_what_cannot_be_kept(keep):
    with pytest.raises(UserError, match="keep: "):
        train_tokenizer(LINES, vocab_size=700, keep=[keep])
