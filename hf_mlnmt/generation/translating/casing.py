"""Lines in CAPITALS or Title Case: searched in sentence case, and their translations written as the line was.

A model that saw few words in capitals spells them by letters, and loses itself. A whole line is put into sentence case
where its letters have case, there are more than acronyms, and the model's subwords say so: of `MORE` times as many
pieces. Of each word that form is read that has the fewest pieces, small letters before others, so that names, acronyms
and German nouns which the model knows stay; what holds digits, is a placeholder or an address, or is kept stays too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate
from typing import Literal, NamedTuple

from hf_mlnmt.common.languages import base_language, lower, title, upper
from hf_mlnmt.data.placeholders import kept
from hf_mlnmt.data.words import without_invisible
from hf_mlnmt.generation.translating.segments import split_sentences

MORE = {"upper": 1.5, "title": 1.1}  # least ratio of subwords: line as it is / line in sentence case
_LARGE_NOUNS = ("de", "lb")  # languages that write nouns with a capital, and have no Title Case
_SHORT = 4  # words of up to so many letters may be in small letters in Title Case
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_ADDRESS = re.compile(r"(?:\w+://|www\.)[!-~]*[\w/]", re.IGNORECASE)  # matches addresses in capitals too
Pieces = Callable[[list[str]], list[int]]  # returns the number of subwords of each text


class Written(NamedTuple):
    """Holds how a line was written, and the parts of it that stay as they are."""

    how: Literal["upper", "title"]
    parts: tuple[str, ...] = ()

    def put_back(self, text: str, language: str | None) -> str:
        """Writes a translation, but for `parts`, in capitals or Title Case (first letters large) as the line was."""
        pieces = re.split(f"({'|'.join(map(re.escape, self.parts))})", text) if self.parts else [text]
        change = upper if self.how == "upper" else title
        pieces[::2] = [change(piece, language) for piece in pieces[::2]]
        return "".join(pieces)


def may_be(text: str) -> bool:
    """Returns whether a line of a text is, by its letters alone, in CAPITALS or Title Case; counts no subwords."""
    return any(_has_large(line) and _how_written(_bare(line, _places(line))) for line in text.split("\n"))


def _has_large(line: str) -> bool:
    words = line.split()
    return 3 * sum(word[0].isupper() for word in words) > len(words)  # few lines pass, which alone get the slow checks


def _places(line: str) -> list[tuple[int, int]]:
    addresses = (address.span() for address in _ADDRESS.finditer(line))
    return [*addresses, *((start, end) for _, start, end in kept(line))]


def _bare(line: str, places: list[tuple[int, int]]) -> str:
    for start, end in places:
        line = line[:start] + " " * (end - start) + line[end:]
    return line


def in_sentence_case(
    text: str, pieces: Pieces, language: str | None, keep: Callable[[str], list[tuple[int, int]]]
) -> tuple[str, list[Written | None]]:
    """Returns a text with its lines in CAPITALS or Title Case in sentence case, and how its lines were written, blank
    ones left out; the text as it is and [] where there are no such lines.

    language: of the text. keep: finds the places of parts that stay, beside placeholders, addresses and numbers.
    """
    every = [line for line in without_invisible(text).split("\n") if line.strip()]
    lines = [_in_sentence_case(line, pieces, language, keep) for line in every]
    if not any(how for _, how in lines):
        return text, []
    return "\n".join(line for line, _ in lines), [how for _, how in lines]


def _how_written(line: str) -> Literal["upper", "title"] | None:
    """Tells how a line was written by its letters alone."""
    capitals = line.isupper()
    if not capitals and any(len(word) > _SHORT and word[0].islower() for word in line.split()):
        return None  # as for most lines of running text
    words = [word for word in _WORD.findall(line) if word.lower() != word.upper()]
    cased = sum(map(len, words))
    if not words or 2 * cased <= sum(map(str.isalpha, line)):
        return None
    if capitals:
        return "upper" if len(words) > 2 or max(map(len, words)) > _SHORT else None
    large = [word for word in words if word[0].isupper()]
    if len(large) < 3 or 2 * len(large) < len(words) or not words[0][0].isupper():
        return None
    return "title" if all(word[0].isupper() for word in words if len(word) > _SHORT) else None


def _in_sentence_case(
    line: str, pieces: Pieces, language: str | None, keep: Callable[[str], list[tuple[int, int]]]
) -> tuple[str, Written | None]:
    """Returns a line as it is read, and how it was written; None where it is read as it is."""
    places = sorted(_places(line) + keep(line))
    bare = _bare(line, places)
    how = _how_written(bare)
    if how is None or (how == "title" and base_language(language or "") in _LARGE_NOUNS):
        return line, None
    words = list(_WORD.finditer(bare))
    forms = {word[0]: _forms(word[0], how, language) for word in words}
    every = list({form: 0 for own in forms.values() for form in own})
    counts = dict(zip(every, pieces(every), strict=True))
    ends = accumulate(len(sentence.text) + len(sentence.space) for sentence in split_sentences(line))
    begins = {next((word.start() for word in words if word.start() >= at), -1) for at in (0, *ends)}

    def read(text: str) -> str:
        new, end = "", 0
        for word in words:
            best = min(forms[word[0]], key=lambda form: counts[form])
            best = upper(best[0], language) + best[1:] if word.start() in begins else best
            new, end = new + text[end : word.start()] + best, word.end()
        return new + text[end:]

    before, after = pieces([bare, read(bare)])
    if before < MORE[how] * after:
        return line, None
    return read(line), Written(how, tuple({line[start:end]: 0 for start, end in places}))


def _forms(word: str, how: str, language: str | None) -> list[str]:
    """Returns the forms of a word, those that are preferred first."""
    small = lower(word, language)
    if re.fullmatch("i(['’].*)?", small) and language and base_language(language) == "en":
        return [word[0] + small[1:]]
    if (not word.isalpha() and any(map(str.isdigit, word))) or (how == "title" and word[1:] != small[1:]):
        return [word]
    return list(dict.fromkeys([small, word[0] + small[1:], word]))
