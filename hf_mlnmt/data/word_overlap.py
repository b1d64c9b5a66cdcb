"""Whether two texts are of one language, by the words that they share: evidence for warnings, not a classifier."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Overlap:
    """`share` of the running words of one text that the other one has too, and the most frequent of these words."""

    share: float
    words: tuple[str, ...]

    def __str__(self) -> str:
        examples = ", ".join(f"'{word}'" for word in self.words)
        return f"{self.share:.0%} of its words" + (f" ({examples})" if examples else "")


def word_overlap(texts: Iterable[str], others: Iterable[str], examples: int = 5) -> Overlap:
    """Which of the running words of `texts` occur in `others`, without case; words are runs of letters."""
    words = Counter(word for text in texts for word in _WORD.findall(text.lower()))
    known = {word for text in others for word in _WORD.findall(text.lower())}
    shared = {word: count for word, count in words.items() if word in known}
    most = sorted(shared, key=lambda word: (-shared[word], word))[:examples]
    return Overlap(sum(shared.values()) / max(1, words.total()), tuple(most))
