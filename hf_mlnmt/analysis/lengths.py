"""BLEU and chrF by the length of the source sentence.

References: thesis on joint attention, sections 3.5.1, 4.5.1 and 5.6.4; "Every Layer Counts", PBML 115, section 7.1.

| set | groups of source lengths |
| --- | --- |
| wmt | under 10, 10 to 19, 20 to 29, 30 to 39, 40 to 49, 50 and more |
| iwslt | 1 to 10, 11 to 20, 21 to 30, 31 to 40, over 40 |

Departs: the texts print 10-20, 20-30, so that 20 would be in two groups; here it is in the second.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation import ProtocolName, score
from hf_mlnmt.evaluation.scores import Lines, References, check_counts, reference_lists

SETS: dict[str, list[int]] = {"wmt": [10, 20, 30, 40, 50], "iwslt": [11, 21, 31, 41]}
"""The smallest length of every group but the first."""


def read_starts(text: str) -> list[int]:
    """A name of SETS, or the smallest length of every group but the first: 15,30 is under 15, 15 to 29, 30 and more."""
    if text in SETS:
        return SETS[text]
    try:
        starts = [int(field) for field in text.split(",")]
    except ValueError:
        starts = []
    if not starts or starts != sorted(set(starts)) or starts[0] < 1:
        raise UserError(f"groups {text!r}: expected {', '.join(SETS)}, or ascending lengths such as 10,20,30.")
    return starts


def group_names(starts: Sequence[int]) -> list[str]:
    """`<10`, `10-19`, ..., `50+`."""
    inner = [f"{low}-{high - 1}" if high - low > 1 else f"{low}" for low, high in pairwise(starts)]
    return [f"<{starts[0]}", *inner, f"{starts[-1]}+"]


def group_indices(lengths: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    """The sentences of each group."""
    groups: list[list[int]] = [[] for _ in range(len(starts) + 1)]
    for index, length in enumerate(lengths):
        groups[bisect_right(starts, length)].append(index)
    return groups


def scores_by_length(
    systems: Mapping[str, Lines],
    references: References,
    lengths: Sequence[int],
    starts: Sequence[int],
    *,
    protocol: ProtocolName = "cased",
    language: str | None = None,
    metrics: Sequence[str] = ("BLEU", "chrF"),
    bootstrap: int = 1000,
    seed: int = 12345,
) -> list[dict[str, Any]]:
    """One row for each system, group and metric: count of sentences, score, 95 % interval.

    lengths: of each source sentence, in the unit that the groups are meant for. An empty group has no score.
    """
    sets = reference_lists(references)
    for name, lines in systems.items():
        check_counts(
            lines, [*sets, list(map(str, lengths))], [name, *(f"reference {i + 1}" for i in range(len(sets))), "source"]
        )
    found = []
    for group, indices in zip(group_names(starts), group_indices(lengths, starts), strict=True):
        chosen = [[lines[i] for i in indices] for lines in sets]
        for name, lines in systems.items():
            how: Any = {"protocol": protocol, "language": language, "metrics": metrics, "seed": seed}
            # Of one sentence all resamples are the same.
            resamples = bootstrap if len(indices) > 1 else 0
            scores = score([lines[i] for i in indices], chosen, bootstrap=resamples, **how) if indices else None
            for metric in metrics:
                value = scores.metrics[metric] if scores else None  # type: ignore[index]
                low, high = (value.ci if value else None) or (None, None)
                found.append(
                    {
                        "system": name,
                        "source_length": group,
                        "sentences": len(indices),
                        "metric": metric,
                        "score": value.score if value else None,
                        "low": low,
                        "high": high,
                    }
                )
    return found
