"""Counts which good translations are marked as probably wrong, as they are and falsified (docs/studies/decoding.md).

python -m studies.watching SOURCE TRANSLATIONS [RATIO]      # two files of sentences; the ratio of their characters
"""

from __future__ import annotations

import re
import sys
from collections import Counter

from hf_mlnmt.evaluation.outputs import read_texts
from hf_mlnmt.generation import Hypothesis
from hf_mlnmt.generation.translating.watching import warnings_of

FAULTS = {
    "as it is": lambda source, words: " ".join(words),
    "looped": lambda source, words: " ".join([*words, *words[-3:] * 4]),
    "halved": lambda source, words: " ".join(words[: len(words) // 2]),
    "copied": lambda source, words: source,
    "a number removed": lambda source, words: " ".join(word for word in words if not re.search(r"\d", word)),
}


def count(sources: list[str], translations: list[str], ratio: float | None = None) -> None:
    """Prints for each fault how many translations have it, how many are marked, and by which warnings."""
    for fault, change in FAULTS.items():
        changed = [(source, change(source, text.split())) for source, text in zip(sources, translations, strict=True)]
        if "number" in fault:
            changed = [(source, text) for source, text in changed if re.search(r"\d\d", source)]
        found = [warnings_of(source, Hypothesis(text, 0.0, 0.0, 1), True, ratio) for source, text in changed]
        print(fault, len(found), sum(map(bool, found)), dict(Counter(name for names in found for name in names)))


if __name__ == "__main__":
    count(read_texts(sys.argv[1]), read_texts(sys.argv[2]), float(sys.argv[3]) if sys.argv[3:] else None)
