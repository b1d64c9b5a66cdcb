"""† and ‡: the one place that says what they mean and which system gets one."""

from __future__ import annotations

from collections.abc import Mapping

LEGEND = (
    "† p < 0.05, ‡ p < 0.01 of approximate randomisation, corrected for the number of systems that were compared with "
    "the baseline (Holm)."
)
"""What every table, page and document with marks says of them."""


def marks(p_values: Mapping[str, float | None]) -> dict[str, str]:
    """The mark of each system that was compared with one baseline; "" for none.

    p_values: {system: p of approximate randomisation, not corrected}, of all these systems; None: not tested.
    """
    return {name: "" if p is None else _mark(p) for name, p in holm(p_values).items()}


def _mark(p: float) -> str:
    return "‡" if p < 0.01 else "†" if p < 0.05 else ""


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """p-values corrected for their number (Holm 1979), the chance of one false alarm among all; None stays None."""
    known = sorted((p, name) for name, p in p_values.items() if p is not None)
    corrected: dict[str, float | None] = dict.fromkeys(p_values)
    largest = 0.0
    for rank, (p, name) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[name] = largest
    return corrected
