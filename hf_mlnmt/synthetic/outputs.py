"""What can be wrong with an output: empty, copied, repeated, long; counted always, dropped where asked."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from hf_mlnmt.data.lines import problem_in
from hf_mlnmt.errors import UserError, suggest

# Reasons that can be chosen, and what they mean. The first one that holds is what a dropped pair is counted under.
REASONS = {
    "empty": "the output has no word",
    "long": "it met the length limit, or has too many times as many words as the text",
    "repeated": "one to four words stand in it more than three times in a row",
    "copied": "it is the text itself, but for case and spaces",
    "duplicate": "the same pair was there before",
}
USUAL = ("empty", "long", "repeated", "copied")
# Nothing can be learnt from these: always dropped.
NO_TEXT, UNREADABLE = "empty or unreadable line of the text", "control characters in the output"
_LOOP = re.compile(r"(?<!\S)(\S+(?: \S+){0,3})(?: \1){3,}(?!\S)")  # one to four words, more than three times in a row


@dataclass
class Counts:
    """Lines read, pairs kept, and why the others were dropped; `found` counts every reason, dropped or not."""

    read: int = 0
    kept: int = 0
    found: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"read": self.read, "kept": self.kept, "found": self.found, "dropped": self.dropped}


class Judge:
    """Counts what is wrong with outputs and says which pairs go.

    Args:
        drop: reasons for which a pair goes, of `REASONS`.
        max_ratio: an output is long when (its words + 1) / (the text's words + 1) is above this.
    """

    def __init__(self, drop: Collection[str], max_ratio: float, counts: Counts) -> None:
        self.drop, self.max_ratio, self.counts = drop, max_ratio, counts
        self.seen: set[bytes] = set()

    def keeps(self, text: str, output: str, finished: bool, changed: str) -> bool:
        """Whether the pair of a text and its output, which is `changed` by noise before it is written, stays."""
        counts = self.counts
        counts.read += 1
        reasons = self._reasons(text, output, finished)
        going = [reason for reason in reasons if reason in (NO_TEXT, UNREADABLE, *self.drop)]
        if not going and "duplicate" in self.drop and not self.is_new(text, changed):
            going, reasons = ["duplicate"], [*reasons, "duplicate"]
        for reason in reasons:
            counts.found[reason] = counts.found.get(reason, 0) + 1
        if going:
            counts.dropped[going[0]] = counts.dropped.get(going[0], 0) + 1
            return False
        counts.kept += 1
        return True

    def is_new(self, text: str, output: str) -> bool:
        """Whether this pair was not there before; it is known from now on, by some 100 bytes of memory."""
        key = blake2b(f"{len(text)} {text}{output}".encode(), digest_size=8).digest()
        if key in self.seen:
            return False
        self.seen.add(key)
        return True

    def _reasons(self, text: str, output: str, finished: bool) -> list[str]:
        words, written = text.split(), output.split()
        if not words:
            return [NO_TEXT]
        if problem_in(output):
            return [UNREADABLE]
        found = {
            "empty": not written,
            "long": not finished or (len(written) + 1) / (len(words) + 1) > self.max_ratio,
            "repeated": _LOOP.search(" ".join(written)) is not None,
            "copied": [word.lower() for word in words] == [word.lower() for word in written],
        }
        return [reason for reason, holds in found.items() if holds]


def check_reasons(drop: Collection[str]) -> None:
    """Raises: UserError for a reason that there is not."""
    for reason in drop:
        if reason not in REASONS:
            raise UserError(f"drop: no reason {reason!r}{suggest(reason, REASONS)}; choose of {', '.join(REASONS)}.")
