"""Doubts about the language of training texts, by what a recipe holds beside them."""

from __future__ import annotations

import random

import pytest

from hf_mlnmt.data.corpus import CorpusSpec
from hf_mlnmt.data.text import TextSpec
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer
from hf_mlnmt.training import preflight
from hf_mlnmt.training.preflight import doubts_about_texts

WORDS = {
    "en": "the a man woman dog plays sits in on with red blue grass street water ball two people are and of",
    "de": "der ein mann frau hund spielt sitzt im auf mit rot blau gras straße wasser ball zwei leute sind und",
    "fr": "le un homme femme chien joue assis dans sur avec rouge bleu herbe rue eau balle deux gens sont et",
}


def lines(language: str, seed: int, count: int = 60) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS[language].split()) for _ in range(8)) for _ in range(count)]


@pytest.fixture
def root(tmp_path):
    for language in WORDS:
        for seed, name in enumerate(("train", "val", "text", "few")):
            text = lines(language, seed, 5 if name == "few" else 60)
            (tmp_path / f"{name}-{language}").write_text("\n".join(text) + "\n", encoding="utf-8")
    return tmp_path


PAIRS = CorpusSpec(files={"source": "train-de", "target": "train-en"}, languages={"source": "de", "target": "en"})


def doubts(root, path, language, others=(PAIRS,), tokenizers=None):
    return list(
        doubts_about_texts({"data.train": TextSpec(path, language=language, side="target")}, others, root, tokenizers)
    )


def test_a_text_of_the_other_side(root):
    (found,) = doubts(root, "text-de", "en")
    assert found.startswith("data.train: is it in 'en'? Of its first 60 lines 100% of its words ('")
    assert "train-de" in found
    assert "which is 'de'" in found
    assert "5% of its words ('ball') in" in found, "what speaks for it stands there too"


def test_a_text_of_a_third_language(root):
    (found,) = doubts(root, "text-fr", "en")
    assert "0% of its words in" in found
    (alone,) = doubts(root, "text-fr", "en", [TextSpec("val-en", language="en", side="target")])
    assert "val-en, which is 'en'" in alone


def test_no_doubt_without_a_sign(root):
    assert doubts(root, "text-en", "en") == []
    assert doubts(root, "text-de", "de") == []
    assert doubts(root, "text-de", "en", []) == [], "nothing to compare it with"
    assert doubts(root, "few-de", "en") == [], "too few lines say nothing"


def test_the_pieces_of_a_tokenizer_that_has_learnt_another_language(root, monkeypatch):
    """Also where the development set is of the same wrong language."""
    tokenizer = train_tokenizer(lines("en", 1), vocab_size=120, byte_fallback=False)
    given = Tokenizers(tokenizer, tokenizer)
    others = [TextSpec("val-de", language="en", side="target")]
    assert doubts(root, "text-de", "en", others, given) == [], "a small one says nothing"
    monkeypatch.setattr(preflight, "SMALLEST", 0)
    (found,) = doubts(root, "text-de", "en", others, given)
    assert "the tokenizer cuts them into pieces of" in found
    assert doubts(root, "text-en", "en", [TextSpec("val-en", language="en", side="target")], given) == []
