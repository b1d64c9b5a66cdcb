"""A memory of what a search asks of a model at every call, for as long as the model has the same parts.

Modules, parameters and buffers are compared by identity, one by one but without a call of Python's for each: in a tenth
of a millisecond. What they hold is told apart by a number, `state`: where each weight lies, PyTorch's count of its
changes in place, its type, the switches of adapters, and the precision that is asked for around the call.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat
from operator import attrgetter, is_, itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

_TABLES = itemgetter("_modules", "_parameters", "_buffers")
_HOOKS = itemgetter("_forward_hooks", "_forward_pre_hooks")
# What PEFT's layers say of themselves: a graph knows nothing of a switch between adapters.
_SWITCHES = "_disable_adapters", "_active_adapter", "merged_adapters", "scaling"


class Known:
    """A model as it was when it was looked through: its parts, and what follows from these alone."""

    def __init__(self, model: Any):
        # Without the model, or it would never be freed.
        self.others = [vars(part) for part in model.modules()][1:]
        self.tables = self._tables(model)
        self.filled, self.empty = ([table for table in self.tables if bool(table) is full] for full in (True, False))
        self.parts = self._parts()
        self.forwards = self._forwards(model)
        self.is_replaced = set(self.forwards) != {id(None)}  # a part has another forward than that of its class
        self.weights = list({id(x): x for x in self.parts if isinstance(x, Tensor)}.values())
        self.counting = [weight for weight in self.weights if not weight.is_inference()]
        self.adapters = [part for part in self._each(model) if _SWITCHES[0] in part]
        self.mark = hash((*map(id, self.parts), *self.forwards))
        self.facts: dict[str, Any] = {}

    def _each(self, model: Any) -> list[dict[str, Any]]:
        return [vars(model), *self.others]

    def _tables(self, model: Any) -> list[dict[str, Any]]:
        return list(chain.from_iterable(map(_TABLES, self._each(model))))

    def _parts(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self.filled)))

    def _forwards(self, model: Any) -> list[int]:
        """Returns which forward was put in the place of each part's own."""
        return list(map(id, map(dict.get, self._each(model), repeat("forward"))))

    def holds(self, model: Any) -> bool:
        """Tells whether the model has the same parts still."""
        if not all(map(is_, self._tables(model), self.tables)) or any(self.empty):
            return False
        now = self._parts()
        same = len(now) == len(self.parts) and all(map(is_, now, self.parts))
        return same and self._forwards(model) == self.forwards

    def is_hooked(self, model: Any) -> bool:
        """Tells whether a part has forward hooks."""
        return any(chain.from_iterable(map(_HOOKS, self._each(model))))

    def are_together(self) -> bool:
        """Tells whether all weights are on one device."""
        return len(set(map(attrgetter("device"), self.weights))) < 2

    def state(self, model: Any) -> int:
        """Returns another number when a weight lies elsewhere or was changed, or a call computes something else."""
        kind = model.device.type
        cast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        switches = [repr(part.get(name)) for part in self.adapters for name in _SWITCHES]
        places = tuple(map(Tensor.data_ptr, self.weights))
        changes = tuple(map(attrgetter("_version"), self.counting))
        types = tuple(map(attrgetter("dtype"), self.weights))
        return hash((self.mark, places, changes, types, *switches, cast, model.config._attn_implementation))

    def fact(self, name: str, find: Callable[[], Any]) -> Any:
        """Returns `find()`, which follows from the parts alone, or what it returned before."""
        if name not in self.facts:
            self.facts[name] = find()
        return self.facts[name]


def known(model: Any, again: bool = True) -> Known:
    """Returns what is known of a model; where its parts have changed, of what it is now.

    again: compare the parts; False: the call under way has done so.
    """
    found = _KNOWN.get(model)
    if found is None or (again and not found.holds(model)):
        found = _KNOWN[model] = Known(model)
    return found


_KNOWN: WeakKeyDictionary[Any, Known] = WeakKeyDictionary()
