"""A number for every attention head over a corpus, for encoder or decoder self-attention of any model.

What the families return as weights of a layer: (batch, heads, time, time); of a layer with the dual contextual module
(batch, 2, heads, time, time), its unit over the local context, then its unit over the sentence. Each unit has its own
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hf_mlnmt.analysis.distance import distance_sums
from hf_mlnmt.analysis.entropy import entropy_sums
from hf_mlnmt.analysis.ranges import Range
from hf_mlnmt.analysis.reading import Pass, eager_attention, encoder_passes, forced_passes
from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.loading import Parts

Side = Literal["encoder", "decoder"]
Sums = Callable[[Tensor, Tensor, Range, bool], tuple[Tensor, Tensor]]
STATISTICS: dict[str, Sums] = {"distance": distance_sums, "entropy": entropy_sums}
UNITS = ("local", "global")


@dataclass(frozen=True)
class HeadTable:
    """`values[layer][unit]` (heads,): layers from 0; the unit is "" where a layer has one attention."""

    values: list[dict[str, Tensor]]

    def layer_means(self) -> list[dict[str, float]]:
        """Equations 14 and 16: the mean over the heads of each layer and unit."""
        return [{unit: heads.mean().item() for unit, heads in layer.items()} for layer in self.values]

    def rows(self) -> list[dict[str, Any]]:
        """One row for each head: layer and head counted from 1, unit, value."""
        return [
            {"layer": number, "unit": unit, "head": head, "value": value}
            for number, layer in enumerate(self.values, start=1)
            for unit, heads in layer.items()
            for head, value in enumerate(heads.tolist(), start=1)
        ]


def by_unit(weights: Tensor) -> dict[str, Tensor]:
    """One layer's weights, each unit's as (batch, heads, time, time)."""
    return {"": weights} if weights.dim() == 4 else dict(zip(UNITS, weights.unbind(1), strict=True))


def collect(
    attentions: Iterable[tuple[Sequence[Tensor], Tensor]], sums: Sums, positions: Range, renormalize: bool
) -> HeadTable:
    """The statistic over batches: for each its layers' weights, and which positions are real (batch, time)."""
    totals: list[dict[str, list[Tensor]]] = []
    for layers, real in attentions:
        for index, layer in enumerate(layers):
            if index == len(totals):
                totals.append({})
            for unit, weights in by_unit(layer).items():
                above, below = sums(weights, real, positions, renormalize)
                before = totals[index].setdefault(unit, [torch.zeros_like(above), torch.zeros_like(below)])
                totals[index][unit] = [before[0] + above, before[1] + below]
    return HeadTable([{unit: (above / below).cpu() for unit, (above, below) in layer.items()} for layer in totals])


def head_table(
    parts: Parts,
    sources: Sequence[Sequence[int]],
    statistic: str,
    side: Side = "encoder",
    positions: Range = "printed",
    renormalize: bool = False,
    targets: Sequence[Sequence[int]] | None = None,
    batch_tokens: int = 4096,
) -> HeadTable:
    """`statistic` ("distance" or "entropy") of every head of one side.

    sources, targets: token ids of each sentence (reading.py); without `targets` the decoder reads its own greedy
    translations. The decoder sees j <= i only, so both ranges are one there. Raises: UserError if the model returns no
    self-attention weights on that side.
    """

    def attentions() -> Iterable[tuple[Sequence[Tensor], Tensor]]:
        for one in side_passes(parts, sources, side, targets, batch_tokens):
            yield self_attentions(one, side, parts.model)

    with eager_attention(parts.model):
        return collect(attentions(), STATISTICS[statistic], positions, renormalize)


def side_passes(
    parts: Parts,
    sources: Sequence[Sequence[int]],
    side: Side,
    targets: Sequence[Sequence[int]] | None = None,
    batch_tokens: int = 4096,
) -> Iterable[Pass]:
    """The encoder alone, or for the decoder the whole model, with attention weights."""
    if side == "encoder":
        return encoder_passes(parts, sources, batch_tokens, output_attentions=True)
    return forced_passes(parts, sources, targets, batch_tokens, output_attentions=True)


def self_attentions(one: Pass, side: Side, model: Any) -> tuple[Sequence[Tensor], Tensor]:
    """The weights of every layer of one side, and which of its positions are real."""
    if side == "encoder":
        layers = getattr(one.output, "encoder_attentions", None) or getattr(one.output, "attentions", None)
        real: Tensor | None = one.source_real
    else:
        layers, real = getattr(one.output, "decoder_attentions", None), one.target_real
    if not layers or any(layer is None for layer in layers):
        raise UserError(f"{type(model).__name__} returns no self-attention weights of its {side}: nothing to measure.")
    assert real is not None
    return layers, real
