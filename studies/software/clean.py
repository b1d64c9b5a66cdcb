"""What of a pair is kept, and why a pair is not."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hf_mlnmt.data.filters import FilterReport, PairFilter
from hf_mlnmt.data.placeholders import PATTERNS
from hf_mlnmt.data.words import without_invisible

MOST_RATIO = 3.0
_RULES = PairFilter(max_length=100, drop_identical=True)
_SHORT = 5  # characters that are added to both sides before their lengths are compared
# What programs put values into, beyond the package's pattern: Qt's and KDE's %1, MediaWiki's and WordPress' $1.
_PLACEHOLDER = re.compile(rf"{PATTERNS['placeholder']} | %L?\d+ | \$\d+", re.VERBOSE | re.ASCII)


class Pair(NamedTuple):
    """A string or a block, and where it stands in its package."""

    key: str
    source: str
    target: str


def cleaned(text: str) -> str:
    """Returns a text in one line: white space as single spaces, without characters that nobody sees."""
    text = " ".join(without_invisible(unicodedata.normalize("NFC", text)).split())
    return "".join(sign for sign in text if unicodedata.category(sign) not in ("Cc", "Cs", "Co"))


def problem(source: str, target: str) -> str | None:
    """Returns why a pair of cleaned texts is left out, None if it is kept."""
    if reason := _RULES.reason(source, target):
        return reason
    if not re.search("[A-Za-z]{2}", source) or sum(map(str.isalpha, target)) < 2:
        return "no words"
    if "\ufffd" in source + target:
        return "characters that could not be decoded"
    if not 1 / MOST_RATIO < (len(source) + _SHORT) / (len(target) + _SHORT) < MOST_RATIO:
        return "lengths too different"
    return "other placeholders" if placeholders(source) != placeholders(target) else None


def placeholders(text: str) -> Counter[str]:
    """Returns the places for values in a text, and how often each stands there."""
    return Counter(re.sub(r"^%\d+\$", "%", match) for match in _PLACEHOLDER.findall(text))


def kept(pairs: Iterable[Pair], report: FilterReport) -> Iterator[Pair]:
    """Yields the pairs that are worth keeping, cleaned and each once; the report counts the others."""
    seen: set[tuple[str, str]] = set()
    for key, *sides in (part for pair in pairs for part in paragraphs(pair)):
        source, target = map(cleaned, sides)
        if reason := problem(source, target) or ("seen before" if (source, target) in seen else None):
            report.drop(reason, source, target)
            continue
        seen.add((source, target))
        report.kept += 1
        yield Pair(cleaned(key), source, target)


def paragraphs(pair: Pair) -> list[Pair]:
    """Returns the paragraphs of a pair, which empty lines part, where both sides have as many; else the pair."""
    parts = [re.split(r"\n\s*\n", side.strip()) for side in pair[1:]]
    return [Pair(pair.key, *sides) for sides in zip(*parts)] if len(parts[0]) == len(parts[1]) else [pair]
