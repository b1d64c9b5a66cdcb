"""Text processing: what Moses does and undoes, and that the record says it all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.processing import TextProcessing, load_processing, save_processing

SENTENCES = {
    "en": ["The man's dog, \"Rex\", isn't here.", "Does he cost $5 (or 10%)?", "A well-known U.S. city & more."],
    "de": ["Der Mann, der die Frau sieht, lacht.", "Er sagte: Das kostet 3,50 Euro!"],
    "fr": ["L'homme n'a pas d'amis, n'est-ce pas ?"],
}


@pytest.mark.parametrize(("language", "text"), [(key, text) for key, texts in SENTENCES.items() for text in texts])
def test_moses_comes_back(language, text):
    processing = TextProcessing(language, moses=True)
    tokens = processing.apply(text)
    assert tokens != text
    assert processing.undo(tokens) == text


def test_moses_leaves_no_escapes_and_splits_punctuation():
    assert TextProcessing("en", moses=True).apply('It\'s <b> & "c" [d].') == 'It \'s < b > & " c " [ d ] .'


def test_order_and_what_cannot_be_undone():
    processing = TextProcessing("de", moses=True, normalize=True, lowercase=True)
    assert processing.apply("Er sagte: „Ja“") == 'er sagte : " ja "'
    assert TextProcessing("de", normalize=True).apply("„Ja“") == '"Ja"'
    assert TextProcessing("de", lowercase=True).undo("der mann") == "der mann"


def test_lower_casing_comes_after_moses():
    """Moses splits a full stop off before a capital: lower-cased first, the end of the first sentence would be lost."""
    processing = TextProcessing("de", moses=True, lowercase=True)
    assert processing.apply("Ein Hund läuft. Er bellt.") == "ein hund läuft . er bellt ."


@given(st.text())
def test_the_default_leaves_text_alone(text):
    processing = TextProcessing()
    assert processing.identity
    assert processing.undo(processing.apply(text)) == text


def test_the_record(tmp_path):
    processing = {"source": TextProcessing("en"), "target": TextProcessing("de", moses=True, lowercase=True)}
    save_processing(tmp_path, processing)
    assert json.loads((tmp_path / "text_processing.json").read_text())["target"]["moses"] is True
    assert load_processing(tmp_path) == processing
    save_processing(tmp_path, None)
    assert not list(tmp_path.iterdir())
    assert all(side.identity for side in load_processing(tmp_path).values())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sources": {}}, "text_processing.json: unknown key 'sources'"),
        ({"source": {"lower": True}}, r"source.lower: unknown key \(did you mean 'lowercase'\?\)"),
        ({"source": {"moses": 1}}, "source.moses: expected true or false, not 1"),
        ({"source": [1]}, r"source: expected a JSON object, not \[1\]"),
    ],
)
def test_bad_records(values, message, tmp_path):
    (tmp_path / "text_processing.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        load_processing(tmp_path)


def test_a_broken_record(tmp_path):
    (tmp_path / "text_processing.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        load_processing(tmp_path)


def test_small_letters_follow_the_language():
    assert TextProcessing("tr", lowercase=True).apply("IŞIK İL") == "ışık il"
    assert TextProcessing("de", lowercase=True).apply("IM") == "im"
