"""Sentences of development and test sets that training corpora hold: counted (`Overlap`) or left out (`HeldOut`)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hf_mlnmt.data.filters import Pair, PairFilter

_WORDS = re.compile(r"[^\W_]+")
_EXAMPLES = 3


def plain(text: str) -> str:
    """Returns the words of a text in small letters, without punctuation: by these sentences are compared."""
    return " ".join(_WORDS.findall(text.lower()))


@dataclass(frozen=True)
class HeldOut(PairFilter):
    """A filter that also drops pairs of which a side is, but for case and punctuation, that of a set that is scored."""

    digest: str = ""  # of the sets
    held: tuple[frozenset[str], ...] = field(default=(), repr=False)  # of source and target

    def reason(self, *texts: str) -> str | None:
        """Returns why a pair goes, or None; text of one language has no side, and stays."""
        if len(texts) > 1 and any(plain(text) in own for text, own in zip(texts, self.held)):
            return "in a development or test set"
        return super().reason(*texts)


class Overlap:
    """Counts the pairs of sets that a corpus holds; of the corpus nothing is kept in memory."""

    def __init__(self, sets: Mapping[str, Sequence[Pair]]) -> None:
        self.sets = sets
        self.places: tuple[dict[str, list[tuple[str, int]]], ...] = (defaultdict(list), defaultdict(list))
        for name, pairs in sets.items():
            for number, pair in enumerate(pairs):
                for text, places in zip(map(plain, pair), self.places):
                    if text:
                        places[text].append((name, number))

    def messages(self, corpus: Iterable[Pair]) -> Iterator[str]:
        """Yields what the corpus holds of each set: sources, targets and whole pairs, exactly and as `plain`."""
        found: dict[str, list[set[int]]] = defaultdict(lambda: [set() for _ in range(6)])
        for pair in corpus:
            hits = [set(places.get(plain(text), ())) for text, places in zip(pair, self.places)]
            for name, number in hits[0] | hits[1]:
                same = [(name, number) in of_side for of_side in hits]
                exact = [text.strip() == own.strip() for text, own in zip(pair, self.sets[name][number])]
                for numbers, is_one in zip(found[name], (*exact, all(exact), *same, all(same))):
                    numbers.update([number] if is_one else [])
        for name, kinds in found.items():
            counts = ["{:,} sources, {:,} targets, {:,} pairs".format(*map(len, own)) for own in (kinds[:3], kinds[3:])]
            some = sorted(kinds[5] or kinds[3] | kinds[4])[:_EXAMPLES]
            shown = "; ".join(f"{' ||| '.join(self.sets[name][number]):.100}" for number in some)
            yield (
                f"holds, of the {len(self.sets[name]):,} pairs of {name}: exactly {counts[0]}; without case and "
                f"punctuation {counts[1]}, as: {shown}"
            )
