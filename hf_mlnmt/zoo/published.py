"""What the papers report, to stand beside our own numbers and never among them: BLEU, parameters, training speed.

Sources: thesis on joint attention, tables 3.2, 3.3, 4.1 to 4.6 and 5.2, 5.4; "Every Layer Counts", PBML 115; dual
contextual module, Machine Translation 35. One GTX Geforce GPU; steps a second of one shape can be compared, no others.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Published(NamedTuple):
    """A row of the papers' tables: BLEU, parameters in millions, training steps a second; None where not printed."""

    bleu: float | None
    parameters: float | None = None
    steps_per_second: float | None = None


PUBLISHED: dict[str, dict[str, Published]] = {
    "wmt14-ende": {
        "transformer": Published(28.37, 61.2, 3.66),
        "s-agg": Published(28.24, 62.8, 3.55),
        "iter-s-agg": Published(28.29, 63.9, 3.52),
        "c-agg": Published(28.17, 68.6, 3.38),
        "iter-c-agg": Published(28.81, 77.0, 3.11),
        "transparent": Published(28.48, 61.2, 3.53),
        "m-00": Published(28.80, 92.7, 2.66),
        "m-01": Published(28.54, 84.9, 2.74),
        "m-10": Published(29.08, 92.7, 2.59),
        "m-11": Published(28.51, 84.9, 2.70),
        "ms-4": Published(29.16, 86.5, 2.20),
        "ms-1-aif": Published(29.32, 88.0, 2.14),
        "enc-dc": Published(29.26, 73.9, 3.01),
        "dec-dc": Published(28.86, 73.9, 3.08),
        "full-dc": Published(29.11, 86.5, 2.53),
    },
    "iwslt-envi": {
        "transformer": Published(30.58, 12.8, 8.58),
        "s-agg": Published(30.91),
        "iter-s-agg": Published(31.01),
        "c-agg": Published(31.03),
        "iter-c-agg": Published(31.13),
        "transparent": Published(31.16),
        "m-00": Published(30.88),
        "m-01": Published(31.07),
        "m-10": Published(30.71),
        "m-11": Published(30.78),
        "ms-1": Published(31.32, 17.0, 5.50),
        "ms-2": Published(31.13, 17.0, 5.50),
        "ms-3": Published(31.03, 17.0, 5.50),
        "ms-1-aif": Published(31.29, 17.3, 5.42),
        "ms-2-aif": Published(31.52, 17.3, 5.42),
        "ms-3-aif": Published(31.64, 17.3, 5.42),
        "ms-123-aif": Published(31.70, 26.2, 3.04),
        "enc-dc": Published(31.28),
        "dec-dc": Published(31.24),
    },
    "iwslt-esen": {
        "transformer": Published(39.80),
        "iter-c-agg": Published(40.31),
        "m-00": Published(40.99),
        "ms-3-aif": Published(41.22),
    },
    "iwslt-deen": {"transformer": Published(34.53), "ms-2-aif": Published(35.20)},
}

# Table 4.6a, small shape, by number of auxiliary decoders, without and with fusion: training steps a second, and
# decoded tokens a second.
_AUXILIARY_SPEEDS = {1: (5.50, 5.42), 2: (3.90, 3.77), 3: (3.08, 3.04)}
_AUXILIARY_DECODING = {1: (310.46, 184.67), 2: (310.46, 141.10), 3: (310.46, 106.0)}
_BASELINE_DECODING = 298.96


_SUPERVISED = re.compile(r"ms-([1-9]+)(-aif)?")


def published(record: str) -> Published | None:
    """What the papers report for a record "<system>.<task>"; None where they have no such number."""
    system, _, task = record.partition(".")
    return PUBLISHED.get(task, {}).get(system)


def papers_numbers(record: str) -> tuple[Published, Published] | None:
    """The same, and beside it the papers' baseline on that task."""
    own, base = published(record), published(f"transformer.{record.partition('.')[2]}")
    return (own, base) if own and base else None


def training_ratio(system: str) -> float | None:
    """The papers' training speed of a system over that of their baseline of the same shape; None where not printed."""
    if match := _SUPERVISED.fullmatch(system):
        speeds, base = _AUXILIARY_SPEEDS.get(len(match[1])), PUBLISHED["iwslt-envi"]["transformer"]
        speed = speeds[match[2] is not None] if speeds else None
    else:
        row, base = PUBLISHED["wmt14-ende"].get(system), PUBLISHED["wmt14-ende"]["transformer"]
        speed = row.steps_per_second if row else None
    return speed / base.steps_per_second if speed and base.steps_per_second else None


def decoding_ratio(system: str) -> float | None:
    """The papers' decoding speed of a system over that of their baseline; None where not printed."""
    match = _SUPERVISED.fullmatch(system)
    speeds = _AUXILIARY_DECODING.get(len(match[1])) if match else None
    return speeds[match[2] is not None] / _BASELINE_DECODING if match and speeds else None
