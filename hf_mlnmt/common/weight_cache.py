"""Weights in another layout, kept from one search to the next for as long as the module lives and its weight stays.

To lay a large weight out anew takes as long as some steps of a search; kept, it is done once. Every search asks whether
the weight is still the same: its place, its shape, PyTorch's count of changes in place, and the numbers on its wrapped
diagonal, which meets every row and every column. This shows what an optimizer, load_state_dict or a change through
`.data` of whole rows, columns or tensors did; it may not show a change of single numbers through `.data`: call
`forget()` after one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

LARGEST = 2**25  # numbers in a weight that a copy is kept of: 128 MiB in float32


class Fingerprint(NamedTuple):
    """The marks of a weight by which it is known to be still the same."""

    place: tuple[Any, ...]
    diagonal: Tensor

    def equals(self, other: Fingerprint) -> bool:
        return self.place == other.place and torch.equal(self.diagonal, other.diagonal)


class _Kept(NamedTuple):
    fingerprint: Fingerprint
    made: Tensor


_KEPT: WeakKeyDictionary[nn.Module, dict[str, _Kept]] = WeakKeyDictionary()
_FORGOTTEN = [0]  # how often


def kept(module: Any, layout: str, make: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns make(module.weight), kept under the layout's name; made anew when the weight has changed.

    A weight that is too large, or does not lie in one piece, is laid out anew each time.
    """
    weight = module.weight
    if weight.numel() > LARGEST or not weight.is_contiguous() or weight.dim() != 2:
        return make(weight)
    fingerprint = fingerprint_of(weight)
    copy = _KEPT.get(module, {}).get(layout)
    if copy is None or not copy.fingerprint.equals(fingerprint):
        copy = _KEPT.setdefault(module, {})[layout] = _Kept(fingerprint, make(weight))
    return copy.made


def fingerprint_of(weight: Tensor) -> Fingerprint:
    """Takes that of a weight that has one dimension or more."""
    place = weight.data_ptr(), tuple(weight.shape), weight.dtype, changes_of(weight)
    columns = weight.shape[-1]
    diagonal = _wrapped_diagonal(weight.numel() // max(columns, 1), columns).to(weight.device)
    return Fingerprint(place, weight.detach().flatten()[diagonal])


def changes_of(weight: Tensor) -> int:
    """Counts how often a weight was changed in its place; -1 for an inference tensor, which does not count it."""
    return -1 if weight.is_inference() else weight._version


def kept_diagonals(modules: Iterable[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """Returns the weights of these modules that copies are kept of, and what is on their wrapped diagonals.

    Copies of what a weight was before a change are left out: no search uses them.
    """
    copies: list[tuple[Any, _Kept]] = [(part.weight, copy) for part in modules for copy in _KEPT.get(part, {}).values()]
    return [(w, copy.fingerprint.diagonal) for w, copy in copies if copy.fingerprint.equals(fingerprint_of(w))]


def forget() -> None:
    """Forgets all copies."""
    _KEPT.clear()
    _FORGOTTEN[0] += 1


def times_forgotten() -> int:
    """Counts the calls of `forget`: who holds a copy longer than for a search asks whether it still counts."""
    return _FORGOTTEN[0]


@cache
def _wrapped_diagonal(rows: int, columns: int) -> Tensor:
    """Returns places in a flat matrix that meet every row and every column."""
    steps = torch.arange(max(rows, columns))
    return steps % rows * columns + steps % columns
