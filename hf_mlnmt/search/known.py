"""A cache of facts about a model between searches: `known(model)`, valid for as long as the model is unchanged.

Every call of generate() checks that once: it compares the attributes, parameters and buffers of all modules, without a
Python call for each; of weights the address and PyTorch's count of in-place changes; of PEFT's layers the attributes
that switch adapters. Facts derived from an unchanged model are computed once (`Known.fact`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from transformers import GenerationMixin
from transformers.utils import output_capturing

_TABLES = itemgetter("_modules", "_parameters", "_buffers")
_HOOKS = itemgetter("_forward_hooks", "_forward_pre_hooks")
_SWITCHES = "_disable_adapters", "_active_adapter", "merged_adapters", "scaling"
_PLAIN = (bool, int, float, str, type(None))


class Known:
    """The attributes, modules and weights of a model at the time of construction, and facts derived from them.

    state: a hash of them all, which differs for another or a changed model. weights: parameters and buffers.
    """

    def __init__(self, model: Any):
        self.modules = list(model.modules())[1:]  # without the model itself: a reference would keep it in memory
        self.others = list(map(vars, self.modules))
        self.parts = self._parts(model)
        marks = [type(model), *chain.from_iterable(self.parts)]
        self.weights = list({id(mark): mark for mark in marks if isinstance(mark, Tensor)}.values())
        self.counting = [weight for weight in self.weights if not weight.is_inference()]
        self.adapters = [part for part in (vars(model), *self.others) if _SWITCHES[0] in part]
        self.places = self._places()
        plain = tuple(mark if type(mark) in _PLAIN else id(mark) for mark in marks)
        self.kind, self.state = marks[0], hash((plain, *map(tuple, self.places)))
        self.is_replaced = any("forward" in part for part in (vars(model), *self.others))
        self.facts: dict[str, Any] = {}

    def _parts(self, model: Any) -> list[tuple[Any, ...]]:
        """Returns names and values of the attributes, and the submodules, parameters and buffers, of each module."""
        parts = [vars(model), *self.others]
        return [(*part, *part.values(), *chain.from_iterable(map(dict.values, _TABLES(part)))) for part in parts]

    def _places(self) -> list[list[Any]]:
        switches = [repr(part.get(name)) for part in self.adapters for name in _SWITCHES]
        changes = list(map(attrgetter("_version"), self.counting))
        return [list(map(Tensor.data_ptr, self.weights)), changes, switches]

    def holds(self, model: Any) -> bool:
        """Tells whether this is the same model, unchanged since construction."""
        try:
            return type(model) is self.kind and self._parts(model) == self.parts and self._places() == self.places
        except (RuntimeError, ValueError):  # a tensor was replaced: comparing two tensors gives no truth value
            return False

    def is_hooked(self, model: Any) -> bool:
        """Tells whether a module has forward hooks that do something, or hooks for all modules are registered."""
        return has_hooks([vars(model), *self.others])

    def is_altered(self, model: Any) -> bool:
        """Tells whether a module differs from its class: by hooks, a replaced forward, dropout, or autocast."""
        dropout = any(isinstance(part, nn.Dropout) and part.training for part in self.modules)
        return dropout or self.is_replaced or self.is_hooked(model) or torch.is_autocast_enabled(model.device.type)

    def fact(self, name: str, find: Callable[[], Any]) -> Any:
        """Returns the result of `find()`, which is called only the first time that the fact `name` is asked for."""
        if name not in self.facts:
            self.facts[name] = find()
        return self.facts[name]


def known(model: Any, again: bool = True) -> Known:
    """Returns the `Known` of a model, a new one where the model has changed.

    again: whether to compare the model with the kept `Known`; False where the present call has done so.
    """
    found = _KNOWN.get(model)
    if found is None or (again and not found.holds(model)):
        found = _KNOWN[model] = Known(model)
    return found


def what_is_around(model: Any, again: bool = True) -> str | None:
    """Names a change to a model (method, hook) that only Transformers' loops take into account, or returns None."""
    for name in ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation"):
        if getattr(getattr(model, name), "__func__", None) is not getattr(GenerationMixin, name):
            return f"a {name} of its own"
    # Accelerate's replaced forward is allowed: the same computation in another precision or on another device.
    if "forward" in vars(model) and not any(hasattr(model, name) for name in ("_original_forward", "_old_forward")):
        return "a forward that was put in the place of its own"
    if not known(model, again).is_hooked(model):
        return None
    encoder = set(model.get_encoder().modules())  # all loops call the encoder as a module, so its hooks run
    others = (vars(module) for module in model.modules() if module not in encoder)
    return "forward hooks" if has_hooks(others) else None


def has_hooks(parts: Iterable[Mapping[str, Any]]) -> bool:
    """Tells whether modules, given as their attributes, or all modules of PyTorch have forward hooks that do something.

    A forward that was asked for attentions or hidden states leaves Transformers' own on a model. They record, and
    change nothing: they count only inside a forward that records.
    """
    hooks = (hook for each in filter(None, chain.from_iterable(map(_HOOKS, parts))) for hook in each.values())
    recording = bool(output_capturing._active_collector.get())
    acting = (recording or getattr(hook, "__module__", None) != output_capturing.__name__ for hook in hooks)
    return any(acting) or _has_any_global_hook()


_KNOWN: WeakKeyDictionary[Any, Known] = WeakKeyDictionary()
