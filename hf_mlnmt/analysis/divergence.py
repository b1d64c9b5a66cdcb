"""Divergence of the two units of the dual contextual module: do they look at different positions?

Reference: Ampomah et al. 2021, "Dual contextual module for neural machine translation", Machine Translation 35,
section 6, equations 10 to 13; thesis on joint attention, section 5.6.2.

(10) alpha_g = max over the heads of alpha_g^i, alpha_l likewise       (11) dv = JS(alpha_g, alpha_l), natural logarithm
(12) KL(P, Q) = sum_x P(x) log P(x) - sum_x P(x) log Q(x)              (13) E_d = mean of dv over the layers

Departs: a maximum of distributions is no distribution: it is divided by its sum over the keys, so that JS is at most
log 2 as the paper says. `over_heads` gives the mean over the heads of each head's own JS instead. dv of a layer is the
mean over all positions of all sentences; the paper does not say how positions are put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.analysis.heads import Side, self_attentions, side_passes
from hf_mlnmt.analysis.reading import eager_attention
from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.loading import Parts


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """(11) and (12) over the last dimension: (..., n), (..., n) -> (...), nats, float64; 0 log 0 is 0."""
    p, q = p.double(), q.double()
    middle = (p + q) / 2
    mixed = torch.xlogy(p, middle) + torch.xlogy(q, middle)
    return (torch.xlogy(p, p) + torch.xlogy(q, q) - mixed).sum(-1) / 2


def unit_divergence(first: Tensor, second: Tensor, over_heads: bool = False) -> Tensor:
    """JS of two units at each position: weights (batch, heads, time, keys) of each -> (batch, time).

    Padded rows mean nothing. `over_heads`: the mean of the heads' own JS; else (10), renormalised.
    """
    if over_heads:
        return jensen_shannon(first, second).mean(1)
    highest = [unit.double().amax(1) for unit in (first, second)]
    return jensen_shannon(*(unit / unit.sum(-1, keepdim=True) for unit in highest))


@dataclass(frozen=True)
class Divergence:
    """`layers`: dv of each layer that has the module, {number from 1: nats}."""

    layers: dict[int, float]

    @property
    def mean(self) -> float:
        """Equation 13: the mean over the layers."""
        return sum(self.layers.values()) / len(self.layers)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each layer, and one for their mean."""
        rows: list[dict[str, Any]] = [{"layer": number, "value": value} for number, value in self.layers.items()]
        return [*rows, {"layer": "mean", "value": self.mean}]


def collect(attentions: Iterable[tuple[Sequence[Tensor], Tensor]], over_heads: bool = False) -> Divergence:
    """Over batches: for each its layers' weights (heads.py says which shapes), and which positions are real."""
    sums: dict[int, float] = {}
    positions = 0
    for layers, real in attentions:
        positions += int(real.sum())
        for number, weights in enumerate(layers, start=1):
            if weights.dim() == 5:
                local, whole = weights.unbind(1)
                values = unit_divergence(whole, local, over_heads).masked_fill(~real, 0.0)
                sums[number] = sums.get(number, 0.0) + values.sum().item()
    return Divergence({number: value / positions for number, value in sums.items()})


def dual_sides(model: Any) -> list[Side]:
    """Where a model has the module: "encoder", "decoder" or both; empty for other models."""
    named: dict[str, list[Side]] = {
        "Enc-DC": ["encoder"],
        "Dec-DC": ["decoder"],
        "Full-DC": ["encoder", "decoder"],
    }
    return named.get(getattr(model.config, "dual_context", None) or "", [])


def divergence(
    parts: Parts,
    sources: Sequence[Sequence[int]],
    side: Side = "encoder",
    over_heads: bool = False,
    targets: Sequence[Sequence[int]] | None = None,
    batch_tokens: int = 4096,
) -> Divergence:
    """dv of every layer of one side over a corpus of token ids; decoders read `targets` or their greedy translations.

    Raises: UserError if the model has no dual contextual module on that side.
    """
    if side not in dual_sides(parts.model):
        raise UserError(
            f"{type(parts.model).__name__} has no dual contextual module in its {side}: divergence is between the two "
            "units of one (enc-dc, dec-dc, full-dc)."
        )
    with eager_attention(parts.model):
        passes = side_passes(parts, sources, side, targets, batch_tokens)
        return collect((self_attentions(one, side, parts.model) for one in passes), over_heads)
