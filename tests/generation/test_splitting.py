"""Sentence splitting and putting back."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_mlnmt.generation.translating.segments import TextPiece, join, split_lines, split_sentences, split_to_fit

SIGNS = st.text(alphabet="abAB1 .!?,;:\"'()\n\t。！？，、।…“”", max_size=60)


def words(texts):
    return [len(text.split()) for text in texts]


@given(SIGNS)
def test_nothing_is_lost(text):
    for pieces in (split_lines(text), split_sentences(text.strip()), split_to_fit(text.strip(), 3, words)):
        assert "".join(piece.text + piece.space for piece in pieces) == text.strip()
        assert all(piece.text for piece in pieces)
        assert all(not piece.space.strip() for piece in pieces)
    lines = split_lines(text)
    assert join([piece.text for piece in lines], lines) == text.strip()


@given(SIGNS, st.integers(1, 6))
def test_every_piece_fits_and_is_as_large_as_can_be(text, limit):
    pieces = split_to_fit(text.strip(), limit, words)
    assert all(count <= limit for count in words([piece.text for piece in pieces]))
    sentences = split_sentences(text.strip())
    fitting = [s for s in sentences if words([s.text])[0] <= limit]
    assert [piece for piece in pieces if piece.whole] == fitting


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("A dog runs. Two men see it! Why? No one knows.", ["A dog runs.", "Two men see it!", "Why?", "No one knows."]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("Dr. Smith met J. R. Brown at 5 p.m. in St. Louis. He smiled.",
         ["Dr. Smith met J. R. Brown at 5 p.m. in St. Louis.", "He smiled."]),
        ("Das kostet z.B. 3.50 Euro. Ca. 20 Leute kamen.", ["Das kostet z.B. 3.50 Euro.", "Ca. 20 Leute kamen."]),
        ("Wait... what? (Yes.) „Nein.“ Gut.", ["Wait... what?", "(Yes.)", "„Nein.“", "Gut."]),
        ("他来了。她走了！为什么？", ["他来了。", "她走了！", "为什么？"]),
        ("यह घर है। वह आदमी है।", ["यह घर है।", "वह आदमी है।"]),
        ("هل هذا بيت؟ نعم.", ["هل هذا بيت؟", "نعم."]),
        ("No end mark", ["No end mark"]),
        ("", []),
    ],
)  # fmt: skip
def test_sentences(text, sentences):
    assert [piece.text for piece in split_sentences(text)] == sentences


def test_a_long_sentence_is_cut_at_commas_before_words():
    text = "one two three, four five, six seven eight nine ten eleven; twelve. Short one."
    pieces = split_to_fit(text, 5, words)
    assert [p.text for p in pieces] == [
        "one two three, four five,", "six seven eight nine ten", "eleven;", "twelve.", "Short one.",
    ]  # fmt: skip
    assert [p.whole for p in pieces] == [False] * 4 + [True]


def test_unspaced_sentences_get_a_space_where_the_translation_needs_one():
    pieces = split_sentences("他来了。她走了。")
    assert join(["He came.", "She left."], pieces) == "He came. She left."
    assert join(["彼が来た。", "彼女は去った。"], pieces) == "彼が来た。彼女は去った。"
    assert join(["a", "b"], [TextPiece("x", "\n\n"), TextPiece("y", "")]) == "a\n\nb"


def test_a_long_sentence_without_spaces_is_cut_between_characters():
    thai, khmer = "ที่นี่มีน้ำเย็น", "ខ្ញុំទៅផ្ទះ"
    for text in (thai * 4, khmer * 4, "今天天气很好我们去公园散步"):
        pieces = split_to_fit(text, 8, lambda texts: list(map(len, texts)))
        assert "".join(piece.text for piece in pieces) == text
        assert all(3 < len(piece.text) <= 8 for piece in pieces[:-1])
        assert not any(
            piece.text[-1] in "\u17d2\u0e40" for piece in pieces
        )  # consonants below, vowels before the next letter
        assert not any(
            unicodedata.category(piece.text[0])[0] == "M" for piece in pieces
        )  # marks stay with their letter
        assert not any(piece.whole for piece in pieces)
    assert [piece.text for piece in split_to_fit("a" * 20, 8, lambda texts: list(map(len, texts)))] == ["a" * 20]
