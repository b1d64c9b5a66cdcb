"""Makes changes to pairs that are common in what users write and rare in corpora: capitals, typos, emoji, quotes ...

Training draws them (`Augment`, augmented.py), and test sets are scored under them (evaluation/robustness.py).
"""

from __future__ import annotations

import logging
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import Range, Section, YAMLLoader, key
from hf_mlnmt.common.languages import base_language, lower, title, upper
from hf_mlnmt.data.filters import Pair
from hf_mlnmt.data.words import is_unspaced

CHANGES = ("upper", "title", "lower", "unpunctuated", "typos", "emoji", "noise", "sentences", "quotes")
KEYBOARDS = {
    "qwerty": ("qwertyuiop", "asdfghjkl", "zxcvbnm"),
    "qwertz": ("qwertzuiopü", "asdfghjklöä", "yxcvbnm"),
    "azerty": ("azertyuiop", "qsdfghjklm", "wxcvbn"),
}
_OTHER = dict.fromkeys(("de", "cs", "sk", "hu", "hr", "sl", "bs", "sq", "lb"), "qwertz") | {"fr": "azerty"}
_QUOTES = dict.fromkeys(("de", "cs", "sk", "sl", "bg"), "„“") | dict.fromkeys(("fr", "ru", "es", "it", "uk"), "«»")
_END = re.compile(r"[\s.!?…。！？।؟]+$")
_EMOJI = "😀😂😍👍🎉🔥🙏🐶"
_OF_OPUSTRAINER = {"UpperCase": "upper", "TitleCase": "title", "Typos": "typos", "Noise": "noise", "Tags": None}
Part = Annotated[float, Range(0, 1)]


@dataclass
class Augment(Section):
    """The share of pairs that gets each change in an epoch; at most one change a pair, drawn by (seed, epoch, pair)."""

    upper: Part = key(0.0, "Both sides in capitals.")
    title: Part = key(0.0, "Each word of both sides with a large first letter.")
    lower: Part = key(0.0, "The source in small letters.")
    unpunctuated: Part = key(0.0, "Both sides without the punctuation at their ends.")
    typos: Part = key(0.0, "Slips in the source: neighbouring keys, letters swapped or doubled.")
    emoji: Part = key(0.0, "The same emoji behind both sides.")
    noise: Part = key(0.0, "The same meaningless word before or behind both sides.")
    sentences: Part = key(0.0, "Another pair of the corpus behind the pair, in one line.")
    quotes: Part = key(0.0, "Both sides in quotes, as the languages write them.")
    typo_words: Part = key(0.1, "Share of the words of such a source that have a slip.")
    keyboard: Literal["qwerty", "qwertz", "azerty"] | None = key(None, "Of typos; unless told, the source language's.")
    opustrainer: str | None = key(
        None, "A file of OpusTrainer's, whose modifiers UpperCase, TitleCase, Typos, Noise and Tags (augment) are read."
    )

    def __post_init__(self) -> None:
        # The file's shares become the values of this section's keys, which the recipe of the run records.
        if self.opustrainer is not None:
            path, self.opustrainer = Path(self.opustrainer), None
            self._read(path)
        if (total := sum(self.shares)) > 1 + 1e-9:
            raise UserError(f"shares of changes: they are {total:g} together, and a pair has one change: at most 1.")

    @property
    def shares(self) -> list[float]:
        """Returns the share of each change, in the order of CHANGES."""
        return [getattr(self, name) for name in CHANGES]

    def _read(self, path: Path) -> None:
        lacks = []
        try:
            modifiers = yaml.load(path.read_text("utf-8"), YAMLLoader)["modifiers"]
            for name, *more in (list(modifier.items()) for modifier in modifiers):
                (kind, share), settings = name, dict(more)
                # Of Tags only the noise that `augment` adds to both sides is read: tags on words need alignment.
                if kind == "Tags":
                    kind, share = "Noise", float(share) * float(settings.pop("augment", 0))
                    lacks.append("Tags (but augment)")
                if _OF_OPUSTRAINER.get(kind):
                    setattr(self, str(_OF_OPUSTRAINER[kind]), getattr(self, str(_OF_OPUSTRAINER[kind])) + float(share))
                lacks += [f"{kind}.{setting}" for setting in settings] if kind in _OF_OPUSTRAINER else [kind]
        except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"opustrainer: {path}: no modifiers of OpusTrainer there ({error!r}).") from error
        if lacks:
            logging.getLogger(__name__).warning("%s: not read: %s", path, ", ".join(lacks))


def keyboard_of(language: str | None) -> str:
    """Returns the name in KEYBOARDS of the keyboard that most people use for a language: "qwertz" for de."""
    return _OTHER.get(base_language(language or ""), "qwerty")


def changed(
    change: str,
    pair: Pair,
    draw: random.Random,
    languages: tuple[str | None, str | None],
    other: Pair = ("", ""),
    words: float = 0.1,
    keyboard: str | None = None,
) -> Pair:
    """Returns a pair with a change of CHANGES made: "lower" and "typos" change the source only, the others both sides.

    other: the pair that "sentences" appends. words: the share of words in which "typos" makes a slip.
    """
    source, target = pair
    if change == "lower":
        return lower(source, languages[0]), target
    if change in ("upper", "title"):
        how = upper if change == "upper" else title
        return how(source, languages[0]), how(target, languages[1])
    if change == "typos":
        rows = KEYBOARDS[keyboard or keyboard_of(languages[0])]
        pieces = re.split(r"(\s+)", source)
        slips = (_with_slip(piece, draw, rows) if draw.random() < words else piece for piece in pieces)
        return "".join(slips), target
    if change in ("emoji", "noise"):
        word = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=draw.randint(3, 8)))
        sign, front = draw.choice(_EMOJI) if change == "emoji" else word, change == "noise" and draw.random() < 0.5
        return (f"{sign} {source}", f"{sign} {target}") if front else (f"{source} {sign}", f"{target} {sign}")
    if change == "unpunctuated":
        return _END.sub("", source) or source, _END.sub("", target) or target
    if change == "sentences":
        return _joined(source, other[0]), _joined(target, other[1])
    of_source, of_target = (_QUOTES.get(base_language(language or ""), '""') for language in languages)
    return of_source[0] + source + of_source[1], of_target[0] + target + of_target[1]


def _joined(text: str, more: str) -> str:
    return f"{text}{'' if is_unspaced(text) else ' '}{more}"


def _with_slip(word: str, draw: random.Random, rows: tuple[str, ...]) -> str:
    places = [number for number, letter in enumerate(word) if letter.isalpha()]
    if len(places) < 3:
        return word
    at = draw.choice(places)
    letter, kind = word[at], draw.randrange(3)
    row, column = next(((r, row.find(letter.lower())) for r, row in enumerate(rows) if letter.lower() in row), (-1, 0))
    beside = [(row, column - 1), (row, column + 1), (row - 1, column), (row + 1, column)]
    near = [rows[r][c] for r, c in beside if row >= 0 and 0 <= r < len(rows) and 0 <= c < len(rows[r])]
    if kind == 0 and near:
        new = draw.choice(near)
        return word[:at] + (new.upper() if letter.isupper() else new) + word[at + 1 :]
    if kind == 1 and word[at + 1 : at + 2].isalpha():
        return word[:at] + word[at + 1] + letter + word[at + 2 :]
    return word[:at] + letter + word[at:]
