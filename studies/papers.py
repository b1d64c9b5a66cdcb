"""What the papers report (see the entries), to stand beside our own numbers and never among them."""

from __future__ import annotations

from methods import METHODS

from hf_mlnmt.errors import UserError
from hf_mlnmt.zoo.entry import Reported
from hf_mlnmt.zoo.systems import SYSTEMS, VARIANTS, find_system

BASELINE = "transformer"
# Where speeds are printed; the first that has a system's is taken.
_TIMED = ("iwslt-envi", "wmt14-ende")


def systems_scored(setup: str) -> tuple[str, ...]:
    """The systems, and variants of the baseline, whose BLEU on a setup a paper prints."""
    entries = {**SYSTEMS, **VARIANTS}
    return tuple(name for name, entry in entries.items() if setup in entry.reported and entry.reported[setup].is_scored)


def reported(record: str) -> Reported | None:
    """What the papers report for a record "<system or method>.<setup>"; None where they print no score of it."""
    system, _, setup = record.partition(".")
    if method := METHODS.get(setup, {}).get(system):
        found = method.reported
    else:
        entry = SYSTEMS.get(system) or VARIANTS.get(system)
        found = entry.reported.get(setup) if entry else None
    return found if found and found.is_scored else None


def papers_numbers(record: str) -> tuple[Reported, Reported] | None:
    """The same, and beside it the papers' baseline on that setup."""
    own, base = reported(record), reported(f"{BASELINE}.{record.partition('.')[2]}")
    return (own, base) if own and base else None


def training_ratio(system: str) -> float | None:
    """The papers' training speed of a system over that of their baseline of the same shape; None where not printed."""
    return _ratio(system, "steps_per_second")


def decoding_ratio(system: str) -> float | None:
    """The papers' decoding speed of a system over that of their baseline; None where not printed."""
    return _ratio(system, "tokens_per_second")


def _ratio(system: str, speed: str) -> float | None:
    try:
        rows = find_system(system).reported
    except UserError:
        return None
    for setup in _TIMED:
        own = getattr(rows.get(setup), speed, None)
        base = getattr(SYSTEMS[BASELINE].reported[setup], speed)
        if own and base:
            return float(own / base)
    return None
