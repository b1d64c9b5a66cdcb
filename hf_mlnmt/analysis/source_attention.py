"""Every attention over the source that a model returns, by its place: decoder layer, encoder layer read, head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hf_mlnmt.errors import UserError


@dataclass(frozen=True, order=True)
class Place:
    """One attention over the source: decoder layer, encoder layer that it reads where there are several (MLMHA with
    weights of their own; else 0), head, 0 for the mean of the layer's heads. All counted from 1."""

    layer: int
    encoder_layer: int
    head: int

    def __str__(self) -> str:
        over = f", encoder layer {self.encoder_layer}" if self.encoder_layer else ""
        return f"layer {self.layer}{over}, " + (f"head {self.head}" if self.head else "mean of heads")


def source_attentions(model: Any, cross_attentions: Sequence[Tensor] | None) -> dict[Place, Tensor]:
    """Every attention over the source by its place, and the mean over the heads of each: (batch, target, source).

    Shapes: (batch, heads, target, source), or (batch, encoder layers, heads, target, source) of MLMHA with U0 = 1.
    Raises: UserError if there is none.
    """
    if not cross_attentions or any(layer is None for layer in cross_attentions):
        raise UserError(f"{type(model).__name__} returns no attention over the source.")
    found: dict[Place, Tensor] = {}
    for layer, weights in enumerate(cross_attentions, start=1):
        several = weights.dim() == 5
        first = model.config.encoder_layers - weights.shape[1] + 1 if several else 0  # the top ones are read
        for index, heads in enumerate(weights.unbind(1) if several else [weights]):
            found[Place(layer, first + index, 0)] = heads.mean(1)
            for head, one in enumerate(heads.unbind(1), start=1):
                found[Place(layer, first + index, head)] = one
    return found


def choose_places(places: Iterable[Place], layer: int | None = None, head: int | None = None) -> list[Place]:
    """Of the places those of one layer, or of all layers, with one head, or with the mean over the heads.

    Raises: UserError for a layer or head that is not there.
    """
    known_places = list(places)
    layers, heads = {place.layer for place in known_places}, {place.head for place in known_places if place.head}
    for option, value, known in (("layer", layer, layers), ("head", head, heads)):
        if value is not None and value not in known:
            raise UserError(f"--{option} {value}: this model has 1 to {max(known)}.")
    return [place for place in known_places if layer in (None, place.layer) and place.head == (head or 0)]
