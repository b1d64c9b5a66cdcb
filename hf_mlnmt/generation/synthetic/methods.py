"""Methods of making the synthetic side of a corpus, their options, and the reasons for which a pair is dropped.

| method | the other side of a sentence | reference |
| --- | --- | --- |
| beam | the best translation of a beam search | Sennrich, Haddow and Birch 2016 |
| greedy | the best next token each time | |
| sampling | drawn from the model | Edunov et al. 2018; Graça et al. 2019 |
| top-k | drawn from the k likeliest tokens each time | the same |
| noised | beam, then words dropped, replaced and swapped | Edunov et al. 2018 |
| copied | the sentence itself | Currey, Miceli Barone and Heafield 2017 |

Random draws depend on (seed, line) alone: neither batches nor interruptions change them. Faults of an output (empty,
copied, repeated, long) are always counted; a pair with such a fault is dropped where `drop` names the fault.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.keys import Range, Section, key
from hf_mlnmt.data.lines import problem_in
from hf_mlnmt.data.words import is_unspaced, spoken, words
from hf_mlnmt.generation.translating.detection import is_of_another
from hf_mlnmt.generation.translating.options import LARGEST_SEED, DecodingOptions

# {method: its options beside `name`}
_KNOWN: dict[str, tuple[str, ...]] = {
    "beam": ("beams", "length_penalty"),
    "greedy": (),
    "sampling": ("temperature", "top_p", "seed"),
    "top-k": ("temperature", "top_k", "seed"),
    "noised": ("beams", "length_penalty", "drop", "replace", "swap", "filler", "seed"),
    "copied": (),
}
METHODS = tuple(_KNOWN)
_DEFAULTS: dict[str, Any] = {"beams": 5, "temperature": 1.0, "top_k": 10, "seed": 1}
_DEFAULTS |= {"drop": 0.1, "replace": 0.1, "swap": 3, "filler": "_"}
_RANGES = {"beams": Range(1), "top_k": Range(1), "seed": Range(0, LARGEST_SEED), "swap": Range(0)}
_RANGES |= dict.fromkeys(("drop", "replace"), Range(0, 1, below=True))  # probabilities below 1
_NOISE = 5  # a constant in the generator's seed: the noise has other random numbers than the search's draws


@dataclass(frozen=True)
class Method(Section):
    """A method of making the synthetic side of a corpus, and its options; None means the method's default.

    Raises: UserError for an option that the method does not have, or a value outside its range.
    """

    name: str = key("beam", "beam, greedy, sampling, top-k, noised or copied.")
    beams: int | None = key(None, "beam, noised: beams of the search (5).")
    length_penalty: float | None = key(None, "beam, noised: of the search (the model's own).")
    temperature: float | None = key(None, "sampling, top-k: of the drawing (1).")
    top_k: int | None = key(None, "top-k: draw from so many likeliest tokens (10).")
    top_p: float | None = key(None, "sampling: draw from the likeliest tokens of this probability together (all).")
    drop: float | None = key(None, "noised: the probability that a word goes (0.1).")
    replace: float | None = key(None, "noised: the probability that a word becomes filler (0.1).")
    swap: int | None = key(None, "noised: by how many places a word may move (3).")
    filler: str | None = key(None, "noised: the word that stands for a replaced one (_).")
    seed: int | None = key(None, "sampling, top-k, noised: the seed of all draws (1).")

    def __post_init__(self) -> None:
        if self.name not in METHODS:
            raise UserError(f"method '{self.name}': choose one of {', '.join(METHODS)}{suggest(self.name, METHODS)}.")
        for option in self.to_dict():
            if option not in ("name", *_KNOWN[self.name]):
                those = [name for name in METHODS if option in _KNOWN[name]]
                raise UserError(f"{option} is no option of the method {self.name}, but of {', '.join(those)}.")
        for option in _KNOWN[self.name]:
            if getattr(self, option) is None:
                object.__setattr__(self, option, _DEFAULTS.get(option))
        for option, allowed in _RANGES.items():
            if (value := getattr(self, option)) is not None and (problem := allowed.problem(value)):
                raise UserError(f"{option}{problem}")
        if self.filler is not None and len(self.filler.split()) != 1:
            raise UserError(f"filler must be one word, not {self.filler!r}.")

    def to_dict(self) -> dict[str, Any]:
        """Returns the method's name and those of its options that are not None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def decoding(self) -> DecodingOptions:
        """Returns the decoding options by which the translation pipeline carries the method out."""
        if self.name in ("beam", "noised"):
            return DecodingOptions(num_beams=self.beams, length_penalty=self.length_penalty)
        if self.name == "greedy":
            return DecodingOptions(num_beams=1)
        warped: Any = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        return DecodingOptions(do_sample=True, draws="text", seed=self.seed, **warped)

    def change(self, text: str, line: int) -> str:
        """Returns an output with the method's noise, drawn from (seed, line); at least one word stays."""
        if self.name != "noised" or not (words := text.split()):
            return text
        drop, replace, swap = self.drop or 0.0, self.replace or 0.0, self.swap or 0
        rng = np.random.default_rng([self.seed or 0, line, _NOISE])
        draws = rng.random((3, len(words)))
        stays = draws[0] >= drop
        stays[int(draws[0].argmax())] = True
        kept = [str(self.filler) if draws[1, i] < replace else words[i] for i in np.flatnonzero(stays)]
        # Two words change their order only if they are at most `swap` places apart (Lample et al. 2018).
        order = np.argsort(np.arange(len(kept)) + (swap + 1) * draws[2, : len(kept)], kind="stable")
        return " ".join(kept[i] for i in order)


# Reasons for dropping a pair, and when each holds. A dropped pair is counted under its first chosen reason.
REASONS = {
    "empty": "the output has no word",
    "long": "it met the length limit, or has too many times as many words as the text",
    "repeated": "one to four words stand in it more than three times in a row (of text without spaces up to 8 letters)",
    "copied": "it is the text itself, but for case and spaces",
    "duplicate": "the same pair was there before",
    "language": "it is sooner in the text's language than in the one that is asked for (py3langid)",
    "unlikely": "of its window it is among the twentieth from which a reverse model finds the text the least likely",
}
UNLIKELY = 0.05  # share of a window's lines
USUAL = ("empty", "long", "repeated", "copied")
# Pairs with these two faults are always dropped.
NO_TEXT, UNREADABLE = "empty or unreadable line of the text", "control characters in the output"
_LOOP = r"(?<!\S)(\S+(?: \S+){0,%d})(?: \1){3,}(?!\S)"  # one word and up to %d more, at least four times in a row


@dataclass
class Counts:
    """Numbers of lines read and pairs kept, and of pairs `dropped` by reason; `found` counts all reasons of all pairs,
    dropped or not ("duplicate" only where duplicates are dropped)."""

    read: int = 0
    kept: int = 0
    found: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def add(self, later: Counts) -> None:
        """Adds the counts of a later part of the same text."""
        self.read += later.read
        self.kept += later.kept
        for mine, theirs in ((self.found, later.found), (self.dropped, later.dropped)):
            for reason, number in theirs.items():
                mine[reason] = mine.get(reason, 0) + number


class Judge:
    """Counts the faults of outputs, and decides which pairs are dropped.

    Args:
        drop: reasons for which a pair is dropped, of `REASONS`.
        max_ratio: an output is long when (its words + 1) / (the text's words + 1) is above this; words: data/words.py.
        languages: codes of the language of outputs and that of texts, where "language" is in `drop`.
    """

    def __init__(
        self, drop: Collection[str], max_ratio: float, counts: Counts, languages: tuple[str, str] | None = None
    ) -> None:
        self.drop, self.max_ratio, self.counts = drop, max_ratio, counts
        self.languages = languages if "language" in drop else None
        self.seen: set[bytes] = set()

    def keeps(self, text: str, output: str, finished: bool, changed: str, unlikely: bool = False) -> bool:
        """Counts a line and the faults of its output; returns whether the pair is kept.

        finished: the output ended before the length limit. changed: the output with noise, as it is to be written.
        """
        counts = self.counts
        counts.read += 1
        reasons = self._reasons(text, output, finished, unlikely)
        dropped = next((reason for reason in reasons if reason in (NO_TEXT, UNREADABLE, *self.drop)), None)
        if dropped is None and "duplicate" in self.drop and not self.is_new(text, changed):
            dropped = "duplicate"
            reasons.append(dropped)
        for reason in reasons:
            counts.found[reason] = counts.found.get(reason, 0) + 1
        if dropped is not None:
            counts.dropped[dropped] = counts.dropped.get(dropped, 0) + 1
        counts.kept += dropped is None
        return dropped is None

    def is_new(self, text: str, output: str) -> bool:
        """Returns whether this pair was not seen before, and remembers its hash (some 100 bytes of memory a pair)."""
        before = len(self.seen)
        self.seen.add(blake2b(f"{len(text)} {text}{output}".encode(), digest_size=8).digest())
        return len(self.seen) > before

    def _reasons(self, text: str, output: str, finished: bool, unlikely: bool) -> list[str]:
        read, written = words(text), words(output)
        if not read:
            return [NO_TEXT]
        if problem_in(output):
            return [UNREADABLE]
        more, letters = (7, spoken(output)) if is_unspaced(output) else (3, written)
        holds = {
            "empty": not written,
            "long": not finished or (len(written) + 1) / (len(read) + 1) > self.max_ratio,
            "repeated": re.search(_LOOP % more, " ".join(letters)) is not None,
            "copied": [word.lower() for word in text.split()] == [word.lower() for word in output.split()],
            "language": self.languages is not None and is_of_another(output, *self.languages),
            "unlikely": unlikely,
        }
        return [reason for reason in holds if holds[reason]]


def check_reasons(drop: Collection[str]) -> None:
    """Raises UserError for a name that is none of `REASONS`."""
    for reason in drop:
        if reason not in REASONS:
            raise UserError(f"drop: no reason {reason!r}{suggest(reason, REASONS)}; choose of {', '.join(REASONS)}.")
