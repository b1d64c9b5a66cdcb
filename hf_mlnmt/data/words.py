"""Finds words in every script: those that measure a side's length for filters, and runs of letters for statistics.

Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan and some others stand without spaces between words. A text is of
the kind of most of its characters, so that a name in another script changes nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from hf_mlnmt.common.errors import say_once

# Scripts without spaces in which a character stands for a syllable or a word: Han, Kana, their marks and signs, Yi.
_SYLLABLES = (
    "\u2e80-\u2fdf\u3001-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\ua4cf\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
# Alphabets without spaces, two letters a syllable: Thai, Lao, Tibetan, Burmese, Khmer, Tai, Balinese, Javanese.
_LETTERS = "\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff\uaa60-\uaa7f"
# Text is never cut after these: vowels written before their consonant (Thai, Lao), and signs that put the next
# consonant below the one before (these signs are of Khmer, Burmese, Tai Tham, Balinese and Javanese).
_BEFORE = "\u0e40-\u0e44\u0ec0-\u0ec4\u17d2\u1039\u1a60\u1b44\ua9c0"
# Matches invisible characters: Unicode's Default_Ignorable_Code_Point but for the joiners U+200C and U+200D, and also
# marks of annotations, the sign for an object, and the empty sign of Braille. It does not match what writing needs:
# zero-width spaces in scripts without spaces, variants of Mongolian letters and emoji, Hangul fillers (flags: group 1).
_JAMO, _BRAILLE = "\u1100-\u115e\u1161-\u11ff\ua960-\ua97f\ud7b0-\ud7ff", "\u2801-\u28ff"
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u17b4\u17b5\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d"
    "\ufeff\uffa0\ufff0-\ufffc\U0001bca0-\U0001bca3\U0001d173-\U0001d17a]"
    "|(\U0001f3f4[\U000e0020-\U000e007f]+)|[\U000e0000-\U000e0fff]"
    f"|(?<![{_LETTERS}])\u200b|\u200b(?![{_LETTERS}])|(?<![\u1820-\u18aa])[\u180b-\u180f]"
    f"|(?<![{_JAMO}])[\u115f\u1160](?![{_JAMO}])|(?<![{_BRAILLE}])\u2800|\u2800(?![{_BRAILLE}])"
    "|(?<![^\\w\\s])[\ufe0e\ufe0f](?!\u20e3)"
)
_UNSPACED = re.compile(f"[{_SYLLABLES}{_LETTERS}]")
_OTHERS = re.compile(rf"[^\W\d_{_SYLLABLES}{_LETTERS}]+")
_LONGEST = 4  # a text has spaces between words if these have at most 4 characters in the mean; else between clauses


def is_unspaced(text: str) -> bool:
    """Returns whether most of a text is in scripts without spaces between words, and it has no such spaces."""
    characters = len(_UNSPACED.findall(text))
    if not characters or characters <= len(_OTHERS.findall(text)):
        return False
    pieces = len(text.split())
    return pieces == 1 or characters > _LONGEST * pieces


def cut_into_pieces(texts: Iterable[str]) -> str | None:
    """Returns a message if texts are cut into subwords already (with @@ after or U+2581 before a piece), else None."""
    pieces = [piece for text in texts for piece in text.split()]
    for what, count, remedy in (
        ("end in @@", sum(len(piece) > 2 and piece.endswith("@@") for piece in pieces), "sed -E 's/@@( |$)//g'"),
        ("begin with \u2581", sum(piece.startswith("\u2581") for piece in pieces), "sed 's/ //g; s/\u2581/ /g'"),
    ):
        if count > max(1, 0.02 * len(pieces)):
            share = f"{count / len(pieces):.0%} of the words {what}"
            return f"{share}: the text was cut into subwords. Give it as it was before, or join them: {remedy}"
    return None


def is_visible(text: str) -> bool:
    """Returns whether a text has a visible character: not white space, nor invisible as U+200B and U+FEFF are."""
    shown = without_invisible(text)
    return any(not character.isspace() and unicodedata.category(character) != "Cf" for character in shown)


def without_invisible(text: str) -> str:
    """Returns a text without invisible characters, but for those that writing needs, such as the joiners U+200C and
    U+200D. All text that models read is cleaned so."""
    return text if text.isascii() else _INVISIBLE.sub(r"\1", text)


def joined(texts: Sequence[str], tokens: Callable[[], Iterable[str]]) -> Sequence[str]:
    """Returns texts in which letters and combining marks are composed (NFC); a text stays as it is if the vocabulary
    lacks a composed character. tokens: returns the vocabulary's entries. Warns once in a process."""
    if all(unicodedata.is_normalized("NFC", text) for text in texts):
        return texts
    known = set[str]().union(*tokens())
    whole = [unicodedata.normalize("NFC", text) for text in texts]
    found = [new if set(new) - set(old) <= known else old for old, new in zip(texts, whole, strict=True)]
    if found != list(texts):
        say_once("some characters of texts stand apart from their marks (NFD, as macOS writes): read joined (NFC)")
    return found


def spelt(text: str, knows: Callable[[str], bool]) -> str:
    """Returns a text in which characters that the vocabulary lacks are replaced by their NFKC form, if the vocabulary
    has that (`knows`): full-width letters, ligatures, half-width kana. Superscripts and subscripts stay."""
    if text.isascii() or unicodedata.is_normalized("NFKC", text):
        return text

    def strange(sign: str) -> bool:
        raised = unicodedata.decomposition(sign).startswith(("<super>", "<sub>"))
        return not (sign.isspace() or raised or knows(sign) or unicodedata.is_normalized("NFKC", sign))

    if not (signs := "".join(filter(strange, set(text)))):
        return text

    def known(match: re.Match[str]) -> str:
        new = unicodedata.normalize("NFKC", match[0])
        return new if all(map(knows, new.replace(" ", ""))) else match[0]

    return re.sub(f"[{re.escape(signs)}][\uff9e\uff9f]?", known, text)  # a kana together with its voicing mark


def words(text: str) -> list[str]:
    """Returns the words of a text between white space; of a text without spaces its characters; [] if none is visible.

    There a character has its combining marks, two letters of an alphabet (Thai) are one character, and so is a run of
    others (a number, a Latin name). The length of a side is the number of these.
    """
    if is_unspaced(text):
        return _expressions()["characters"].findall(text)
    return text.split() if text.isascii() or is_visible(text) else []


def between_characters() -> re.Pattern[str]:
    """Returns a pattern of a character of an unspaced script with its marks; a text can be cut at its empty group 1."""
    return _expressions()["behind"]


def spoken(text: str, digits: bool = True) -> list[str]:
    """Returns the runs of letters (and `digits`) with their marks; in scripts without spaces each letter by itself."""
    runs = _expressions()["runs" if digits else "letters"].findall(text)
    return [letter for run in runs for letter in _expressions()["single"].findall(run)] if is_unspaced(text) else runs


def terms(text: str, digits: bool = True) -> list[str]:
    """Returns the words that `spoken` returns; in scripts without spaces pairs of neighbouring letters."""
    runs = spoken(text, digits)
    return list(map("".join, pairwise(runs))) if len(runs) > 1 and is_unspaced(text) else runs


@lru_cache
def _expressions() -> dict[str, re.Pattern[str]]:
    """Returns patterns in which combining marks, and the joiners U+200C and U+200D, belong to the letter before."""
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
