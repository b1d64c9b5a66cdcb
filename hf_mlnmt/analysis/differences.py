"""The sentences that two systems translate most differently in quality: the largest differences of sentence chrF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.scores import Lines, References, check_counts, reference_lists


def sentence_scores(outputs: Lines, references: References) -> list[float]:
    """chrF of each sentence (0 to 100), sacreBLEU's, against all of its references."""
    from sacrebleu.metrics import CHRF

    sets = reference_lists(references)
    check_counts(outputs, sets)
    metric = CHRF()
    found = []
    for index, output in enumerate(outputs):
        given: Sequence[Any] = [lines[index] for lines in sets if lines[index] is not None]
        found.append(float(metric.sentence_score(output, list(given)).score))
    return found


def largest_differences(
    sources: Lines, baseline: Lines, system: Lines, references: References, count: int = 20
) -> list[dict[str, Any]]:
    """Up to `count` sentences where `system` gains most over `baseline`, and as many where it loses most.

    Each with its line (from 1), both scores, the difference (system - baseline) and all texts, from the largest gain to
    the largest loss. Sentences of the same score are left out. Raises: UserError for different numbers of lines.
    """
    sets = reference_lists(references)
    check_counts(system, [baseline, sources], ["the system", "the baseline", "the source"])
    if count < 1:
        raise UserError(f"{count} sentences: expected at least 1.")
    before, after = sentence_scores(baseline, references), sentence_scores(system, references)
    ordered = sorted(range(len(sources)), key=lambda i: (before[i] - after[i], i))
    gains = [i for i in ordered if after[i] > before[i]][:count]
    losses = [i for i in ordered if after[i] < before[i]][-count:]
    return [
        {
            "line": i + 1,
            "difference": after[i] - before[i],
            "baseline_chrF": before[i],
            "system_chrF": after[i],
            "source": sources[i],
            "baseline": baseline[i],
            "system": system[i],
            "reference": sets[0][i],
        }
        for i in [*gains, *losses]
    ]
