"""Lines in CAPITALS and Title Case: which are read in sentence case, and what comes back."""

from pathlib import Path

import pytest

from hf_mlnmt.common.errors import OptionError
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating.casing import Written, in_sentence_case, may_be

TEXT = ["Two dogs play in the snow.", "A man in a red shirt rides a bicycle."]
OTHERS = ["a", "man", "in", "Berlin", "NASA", "with", "and", "I", "by", "me", "it", "Hund"]
KNOWN = {*TEXT[0].lower().strip(".").split(), *OTHERS}


def pieces(texts):
    """A word of the vocabulary is one piece, any other one its letters."""
    words = [[word.strip(".,!?") for word in text.split()] for text in texts]
    return [sum(1 if word in KNOWN else len(word) for word in own) for own in words]


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("TWO DOGS PLAY IN THE SNOW.", "Two dogs play in the snow."),
        ("Two Dogs Play in the Snow With a Man", "Two dogs play in the snow with a man"),
        ("TWO DOGS. A MAN IN BERLIN AND NASA!", "Two dogs. A man in Berlin and NASA!"),
        ("I PLAY BY ME: {NAME} %s HTTP://X.ORG/A B2B", "I play by me: {NAME} %s HTTP://X.ORG/A B2B"),
        ("SNOW\n\nTwo dogs and me.\nDOGS PLAY IN IT", "SNOW\nTwo dogs and me.\nDogs play in it"),
        ("PLAY WITH {dog} IN http://snow.org.", "Play with {dog} in http://snow.org."),
        ("EIN HUND, SNOW", "Ein Hund, snow"),
        # What stays: acronyms, ordinary sentences, names, other scripts, words as strange in small letters.
        *((line, line) for line in ("NASA", "NASA TV", "Two dogs from Berlin play.", "Two dogs and NASA", "42", "")),
        *(
            (line, line)
            for line in ("Anna Berta Clara", "我們在這裡看到了很多東西 SNOW", "XYZZY PLUGH QWERT", "Hund, snow")
        ),
    ],
)
def test_lines_that_are_read_in_sentence_case(line, read):
    found, how = in_sentence_case(line, pieces, "en", lambda text: [])
    assert found == read
    assert bool(how) == (read != line) <= may_be(line)
    assert len(how) in (0, len([part for part in line.split("\n") if part]))


def test_german_has_no_title_case():
    for language, changed in (("de", False), ("en", True), (None, True)):
        assert bool(in_sentence_case("Two Dogs Play In The Snow", pieces, language, lambda text: [])[1]) == changed
    assert in_sentence_case("TWO DOGS PLAY", pieces, "de", lambda text: [])[1] == [Written("upper")]


def test_what_is_put_back():
    assert Written("upper", ("{a}", "%s")).put_back("Über {a} heiß %s.", "de") == "ÜBER {a} HEISS %s."
    assert Written("upper").put_back("iyi ılık", "tr") == "İYİ ILIK"
    assert Written("title").put_back("l'été d’un chien: 'na', rot-blau {x}", "fr") == (
        "L'été D’un Chien: 'Na', Rot-Blau {X}"
    )
    kept = in_sentence_case("TWO ACME DOGS IN THE SNOW", pieces, "en", lambda text: [(4, 8)])
    assert kept == ("Two ACME dogs in the snow", [Written("upper", ("ACME",))])


@pytest.fixture(scope="module")
def translate():
    return TranslationPipeline.from_pretrained(Path(__file__).parents[2] / "published/en-de")


def test_translations_come_back_as_the_line_was(translate):
    plain = translate(TEXT, num_beams=2)
    lines = [TEXT[0].upper(), TEXT[1].title(), f"{TEXT[0].upper()}\n{TEXT[1]}", f"{TEXT[0]} {TEXT[1]}".upper(), TEXT[0]]
    found = translate(lines, num_beams=2, split="sentences")
    assert found == [
        plain[0].upper(),
        plain[1].title(),
        f"{plain[0].upper()}\n{plain[1]}",
        " ".join(plain).upper(),
        plain[0],
    ]
    ((best,),) = translate(lines[:1], num_beams=2, alignments=True)
    assert best.text == plain[0].upper()
    assert best.alignment == translate(TEXT[:1], alignments=True)[0][0].alignment


def test_case_as_it_is(translate):
    """Told so, and where a caller says how the translation is to be, nothing is changed."""
    capitals, prefix = TEXT[0].upper(), "ZWEI HU"
    left = translate([capitals, TEXT[0]], case="as-is", max_new_tokens=30)
    assert left[0].upper() != left[1].upper()
    assert left[1] == translate(TEXT[0])
    assert translate(capitals, target_prefix=prefix, max_new_tokens=30).startswith(prefix)
    with pytest.raises(OptionError, match="case: 'upper' is none of auto, as-is"):
        translate(TEXT, case="upper")
