"""Words in every script: the length of a side for filters, and runs of letters for statistics.

Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan and some others stand without spaces between words. What a
text has most of tells which kind it is, so that a name in another script changes nothing.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

# Han, Kana, their marks and signs, Yi: a character says as much as a syllable or a word.
_SYLLABLES = (
    "\u2e80-\u2fdf\u3001-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\ua4cf\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
# Thai, Lao, Tibetan, Burmese; Khmer; Tai scripts; Balinese, Javanese, more Burmese: two letters say as much.
_LETTERS = "\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff\uaa60-\uaa7f"
# Vowels that stand before their consonant (Thai, Lao), and signs that put the next one below: Khmer, Burmese, Tai Tham,
# Balinese, Javanese.
_BEFORE = "\u0e40-\u0e44\u0ec0-\u0ec4\u17d2\u1039\u1a60\u1b44\ua9c0"
# A soft hyphen, marks of direction, the word joiner and invisible signs, a byte-order mark, marks of annotations; and a
# zero-width space, but between letters of scripts without spaces, where it stands behind words.
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
    f"|(?<![{_LETTERS}])\u200b|\u200b(?![{_LETTERS}])"
)
_UNSPACED = re.compile(f"[{_SYLLABLES}{_LETTERS}]")
_OTHERS = re.compile(rf"[^\W\d_{_SYLLABLES}{_LETTERS}]+")
_LONGEST = 4  # characters of a word, in the mean: longer runs between spaces are clauses


def is_unspaced(text: str) -> bool:
    """Returns whether most of a text is of a script without spaces between words, and no spaces were put there."""
    characters = len(_UNSPACED.findall(text))
    if not characters or characters <= len(_OTHERS.findall(text)):
        return False
    pieces = len(text.split())
    return pieces == 1 or characters > _LONGEST * pieces


def is_visible(text: str) -> bool:
    """Returns whether a text has more than white space and characters that show nothing (U+200B, U+FEFF)."""
    return any(not character.isspace() and unicodedata.category(character) != "Cf" for character in text)


def without_invisible(text: str) -> str:
    """Returns the text as models read it: without characters that show nothing, but for those that a language writes
    with, as the joiners U+200C and U+200D."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


def words(text: str) -> list[str]:
    """Returns the words of a text between white space; of a text without spaces its characters. [] if none is seen.

    There a character keeps its combining marks, two letters of an alphabet (Thai) are one character, and so is a run of
    others (a number, a Latin name). The length of a side is the number of these.
    """
    if is_unspaced(text):
        return _expressions()["characters"].findall(text)
    return text.split() if text.isascii() or is_visible(text) else []


def between_characters() -> re.Pattern[str]:
    """Matches where a text in a script without spaces can be cut: a character with its marks, and behind it a group."""
    return _expressions()["behind"]


def spoken(text: str, digits: bool = True) -> list[str]:
    """Runs of letters with their marks, and of digits; of a text without spaces each letter."""
    runs = _expressions()["runs" if digits else "letters"].findall(text)
    return [letter for run in runs for letter in _expressions()["single"].findall(run)] if is_unspaced(text) else runs


def terms(text: str, digits: bool = True) -> list[str]:
    """Returns `spoken`, or of a text without spaces pairs of neighbours: one letter says too little of a language."""
    runs = spoken(text, digits)
    return list(map("".join, pairwise(runs))) if len(runs) > 1 and is_unspaced(text) else runs


@lru_cache
def _expressions() -> dict[str, re.Pattern[str]]:
    """Joins combining marks, and the joiners U+200C and U+200D, to the letter before them."""
    marks = "".join(sign for sign in map(chr, range(0x300, 0xE01F0)) if unicodedata.category(sign)[0] == "M")
    mark = f"[\u200c\u200d{marks}]*"
    other = f"[^\\s{_SYLLABLES}{_LETTERS}]+"
    return {
        "characters": re.compile(f"[{_SYLLABLES}]{mark}|(?:[{_LETTERS}]{mark}){{1,2}}|{other}"),
        "single": re.compile(f"[{_SYLLABLES}{_LETTERS}]{mark}|{other}"),
        "behind": re.compile(f"[{_SYLLABLES}{_LETTERS}]{mark}+(?<![{_BEFORE}])()"),
        "runs": re.compile(rf"(?:\w{mark})+"),
        "letters": re.compile(rf"(?:[^\W\d_]{mark})+"),
    }
