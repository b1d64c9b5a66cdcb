"""Parallel and synthetic pairs at a ratio 1:r, both seen equally often.

Reference: the thesis on monolingual data, 4.4.4 and table 4.30: r synthetic pairs are taken for each parallel one, and
the parallel part is repeated r times. With 230,000 parallel pairs and r = 2 an epoch shows 460,000 synthetic ones, each
once, and 230,000 parallel ones, each twice.

Departs: where r is no whole number, the text does not say which parallel pairs are repeated. Here they go round: with
r = 0.5 one half of them comes in one epoch and the other half in the next, with r = 1.5 all once and so again (the
draws of mixture.py). Which synthetic pairs are taken is drawn by the seed, once for all epochs.
"""

from __future__ import annotations

from collections.abc import Sequence

from hf_mlnmt.data.corpus import CorpusSpec
from hf_mlnmt.data.drawn import Drawn
from hf_mlnmt.data.encoded import Encoded
from hf_mlnmt.errors import UserError


def check_ratios(specs: Sequence[CorpusSpec], temperature: float | None) -> None:
    """Refuse ratios beside what says something else of how often pairs are seen.

    Raises: UserError.
    """
    if all(spec.ratio is None for spec in specs):
        return
    if temperature is not None or any(spec.weight != 1 for spec in specs):
        other = "temperature" if temperature is not None else "weight"
        raise UserError(f"ratio and {other} both say how often pairs are seen: leave one of them out.")
    if all(spec.synthetic for spec in specs):
        raise UserError("ratio: there is no parallel corpus beside the synthetic one: so many pairs to each of what?")


def at_ratios(
    parts: Sequence[Encoded], specs: Sequence[CorpusSpec], seed: int
) -> tuple[list[Encoded | Drawn], list[float]]:
    """The parts to train on, those with a ratio cut down, and how often an epoch shows the pairs of each.

    Several ratios add up: at 1 and 2 the parallel part is seen three times.

    Args:
        parts, specs: encoded corpora and what the recipe says of each; those that are not synthetic are parallel.
        seed: of the draw.

    Raises: UserError with the numbers when a synthetic corpus has too few pairs.
    """
    if all(spec.ratio is None for spec in specs):
        return list(parts), [spec.weight for spec in specs]
    total = sum(spec.ratio or 0 for spec in specs)
    sizes = [len(part) for part, spec in zip(parts, specs) if not spec.synthetic]
    epoch = sum(max(1, round(size * total)) for size in sizes)  # parallel pairs, as in mixture.py
    found: list[Encoded | Drawn] = []
    before, taken = 0.0, 0
    for part, spec in zip(parts, specs, strict=True):
        if spec.ratio is None:
            found.append(part)
            continue
        before += spec.ratio
        count = round(epoch * before / total) - taken
        taken += count
        if count > len(part):
            raise UserError(
                f"{spec}: ratio {spec.ratio:g} needs {count:,} synthetic pairs to {sum(sizes):,} parallel ones, and "
                f"{len(part):,} are left after the filters: enough for {len(part) / sum(sizes):.4g} at most. Lower "
                "ratio, or translate more text."
            )
        found.append(Drawn(part, count, seed))
    return found, [spec.weight if spec.synthetic else total for spec in specs]
