"""What of generate() does not depend on the sentences, made once for a model and the options of a call.

    translate = prepare(model, {"num_beams": 4, "max_new_tokens": 100})
    sequences = translate(input_ids, attention_mask)

generate() comes through here by itself (`generate`): the first call with some options goes through Transformers'
preparation, and what the loop is handed at its end (config, logits processors, stopping criteria) is kept. Later calls
with the same options begin at the encoder; one sentence without padding is translated in compiled code (single.py).
Options are the same if they are plain values that are equal; with any other value (a processor, a streamer, a tensor)
Transformers have the word at every call.

Every call asks whether what was kept still holds: the options, the generation configs and the model's config by value;
and for one sentence the model, by identity: its modules and their attributes, hooks, place and version of the weights,
and of weights that copies are kept of the numbers on a diagonal (kept_weights.py).
"""

from __future__ import annotations

import copy
import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from transformers import GenerationConfig, GenerationMixin, StoppingCriteriaList
from transformers.modeling_outputs import BaseModelOutput

from hf_mlnmt.kept_weights import kept_diagonals, times_forgotten
from hf_mlnmt.modeling import generation
from hf_mlnmt.search.native import PACKED
from hf_mlnmt.search.native_library import library
from hf_mlnmt.search.rules import ROW_BY_ROW, Abandon, Rules
from hf_mlnmt.search.single import Single, Wanted
from hf_mlnmt.search.source import HANDLED
from hf_mlnmt.search.steps import find_step, write_out

KEPT = 16  # options of a model that are kept, the latest ones
PLAIN = (bool, int, float, str, type(None))
_OF_THREAD = threading.local()  # `recorded`: a list that the search of the call under way writes to


def prepare(model: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """A function of input_ids and attention_mask (sentences, source) that returns model.generate(..., **options).

    It is the model's own generate(): changes of the model count at the next call.
    """
    return lambda input_ids, attention_mask: model.generate(
        input_ids=input_ids, attention_mask=attention_mask, **options
    )


class Prepared:
    """What a search was handed behind Transformers' preparation, for calls with the same options."""

    def __init__(self, model: Any, given: Any, handed: dict[str, Any]):
        """given: the GenerationConfig among the options, or None; handed: what `record` got."""
        self.configs = [(config, copy.deepcopy(vars(config))) for config in self._configs(model, given)]
        self.config = handed["config"]
        self.criteria = StoppingCriteriaList(one for one in handed["criteria"] if not isinstance(one, Abandon))
        self.processors, self.arguments = handed["processors"], handed["arguments"]
        self.start = int(handed["input_ids"][0, 0])
        self.wanted = Wanted.of(Rules(self.processors, self.criteria), self.config, self.start, handed["vocabulary"])

    @staticmethod
    def _configs(model: Any, given: Any) -> list[Any]:
        return [model.config, model.generation_config, *([] if given is None else [given])]

    def holds(self, model: Any, given: Any) -> bool:
        """Whether all configs are the same objects, and say the same."""
        now = self._configs(model, given)
        try:
            return all(one is config and vars(one) == kept for one, (config, kept) in zip(now, self.configs))
        except RuntimeError:  # of tensors in them
            return False

    def search(self, model: Any, ids: Tensor, mask: Tensor, abandon: Abandon | None) -> Any:
        """The search from the encoder on; None if it is not for a fast loop. `abandon` is asked before one sentence."""
        criteria = self.criteria if abandon is None else StoppingCriteriaList([*self.criteria, abandon])
        if abandon is not None:
            abandon.check()
        if self.wanted is not None and len(ids) == 1:
            translation = translate_one(model, ids, mask, self.wanted)
            if translation is not None:
                return translation
        outputs = model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
        if not isinstance(outputs, BaseModelOutput):
            return None
        width = max(self.config.num_beams, self.config.num_return_sequences)
        prompt = torch.full((len(ids), 1), self.start, dtype=torch.long)
        prompt, arguments = model._expand_inputs_for_generation(
            width, True, prompt, encoder_outputs=outputs, attention_mask=mask
        )
        arguments |= self.arguments
        loop = generation.fast_loop(model, criteria, self.config, arguments)
        if loop is None:
            return None
        return loop(model, prompt, self.processors, criteria, self.config, arguments)


@torch.no_grad()
def generate(model: Any, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """What model.generate(**arguments) returns; `call` is that of Transformers."""
    options = dict(arguments)
    ids, mask, given = (options.pop(name, None) for name in ("input_ids", "attention_mask", "generation_config"))
    abandon = _abandon_of(options)
    key = _key(options, given)
    if key is None or not _are_plain(ids, mask) or model.device.type != "cpu":
        return call(**arguments)
    with _LOCK:
        of_model = _PREPARED.setdefault(model, OrderedDict())
        prepared = of_model.pop(key, None)
        if prepared is not None:
            of_model[key] = prepared
    if prepared is not None and prepared.holds(model, given):
        outputs = prepared.search(model, ids, mask, abandon)
        return call(**arguments) if outputs is None else outputs
    before, _OF_THREAD.recorded = getattr(_OF_THREAD, "recorded", None), []
    try:
        outputs, recorded = call(**arguments), _OF_THREAD.recorded
    finally:
        _OF_THREAD.recorded = before
    if len(recorded) == 1:
        prepared = Prepared(model, given, recorded[0])
        with _LOCK:
            of_model[key] = prepared
            while len(of_model) > KEPT:
                of_model.popitem(last=False)
    return outputs


def _abandon_of(options: dict[str, Any]) -> Abandon | None:
    """Take the one criterion that is of a call and not of its options out of these."""
    criteria = options.get("stopping_criteria")
    if isinstance(criteria, list) and len(criteria) == 1 and isinstance(criteria[0], Abandon):
        return options.pop("stopping_criteria")[0]
    return None


def record(decoder: Any, input_ids: Tensor, processors: Any, criteria: Any, config: Any, arguments: dict) -> None:
    """Called by every search with what generate() has handed it."""
    recorded = getattr(_OF_THREAD, "recorded", None)
    if recorded is None:
        return
    same = input_ids.shape[1] == 1 and bool((input_ids == input_ids[0, 0]).all())
    others = {name: value for name, value in arguments.items() if name not in ("encoder_outputs", "attention_mask")}
    plain = others.keys() <= HANDLED and all(type(processor) in ROW_BY_ROW for processor in processors)
    if same and plain and getattr(decoder, "written_out", None) is not None and not decoder.normalized:
        handed = {"input_ids": input_ids[:1], "processors": processors, "criteria": criteria, "config": config}
        recorded.append(handed | {"arguments": others, "vocabulary": decoder.model.lm_head.out_features})
    else:
        recorded += [None, None]  # nothing that could be used again


def what_is_around(model: Any) -> str | None:
    """What has been put around a model that acts on calls of its decoder as Transformers' loops make them, or None."""
    for name in ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation"):
        if getattr(getattr(model, name), "__func__", None) is not getattr(GenerationMixin, name):
            return f"a {name} of its own"
    # Accelerate's forward computes what the class's does, in a precision or on a device of its own.
    if "forward" in vars(model) and not any(hasattr(model, name) for name in ("_original_forward", "_old_forward")):
        return "a forward that was put in the place of its own"
    encoder = set(model.get_encoder().modules())  # which generate() calls itself
    others = [module for module in model.modules() if module not in encoder]
    if any(part._forward_hooks or part._forward_pre_hooks for part in others) or _has_any_global_hook():
        return "forward hooks"
    return None


class Snapshot:
    """What of a model a search was made ready from."""

    def __init__(self, model: Any):
        self.modules = list(model.modules())[1:]  # without the model, or it would never be freed
        self.marks = self._marks(model)
        self.weights = [weight for marks in self.marks for weight in marks if isinstance(weight, Tensor)]
        self.places = self._places()
        self.library, self.forgotten = library(torch.float32), times_forgotten()
        self.diagonals = kept_diagonals([model, *self.modules])
        weights, kept = zip(*self.diagonals) if self.diagonals else ((), ())
        addresses = ctypes.c_void_p * len(weights)
        self.kept_at = addresses(*(weight.data_ptr() for weight in weights))
        self.kept_as = addresses(*(diagonal.data_ptr() for diagonal in kept))
        sizes = [size for weight in weights for size in weight.shape]
        self.sizes = (ctypes.c_long * len(sizes))(*sizes)

    def _marks(self, model: Any) -> list[Any]:
        parts = [vars(model), *map(vars, self.modules)]
        return [
            (*part.values(), *part["_modules"].values(), *part["_parameters"].values(), *part["_buffers"].values())
            for part in parts
        ]

    def _places(self) -> list[tuple[int, int]]:
        """Where each weight lies, and how often it was changed there; of inference tensors that is not counted."""
        return [(weight.data_ptr(), -1 if weight.is_inference() else weight._version) for weight in self.weights]

    def holds(self, model: Any) -> bool:
        """Whether the model is the same, and calling its modules is using their weights."""
        if torch.is_autocast_enabled("cpu") or _has_any_global_hook() or library(torch.float32) is not self.library:
            return False
        if any(part._forward_hooks or part._forward_pre_hooks for part in (model, *self.modules)):
            return False
        if times_forgotten() != self.forgotten:
            return False
        try:
            same = self._marks(model) == self.marks and self._places() == self.places
        except (RuntimeError, ValueError):  # another tensor, which is neither equal nor not
            return False
        return same and bool(
            self.library is None or self.library.unchanged(len(self.diagonals), self.kept_at, self.sizes, self.kept_as)
        )


class _Ready:
    """Searches for one sentence that no thread uses now, all of the same model as it is in the snapshot."""

    def __init__(self, model: Any):
        single = _single_of(model)
        self.possible, self.idle = single is not None, [single]
        self.snapshot = Snapshot(model)


def _is_altered(model: Any) -> bool:
    """Whether calling a module does more than its class says, or dropout."""
    return what_is_around(model) is not None or any(
        (isinstance(part, nn.Dropout) and part.training)
        or part._forward_hooks
        or part._forward_pre_hooks
        or "forward" in vars(part)
        for part in model.modules()
    )


def _single_of(model: Any) -> Single | None:
    return Single.of(model, write_out(find_step(model), model, PACKED))


def translate_one(model: Any, ids: Tensor, mask: Tensor, wanted: Wanted) -> Any:
    """What generate() returns for one sentence without padding; None where it is not for compiled code."""
    ready = _READY.get(model)
    if ready is None or not ready.snapshot.holds(model):
        _READY.pop(model, None)
        if _is_altered(model):
            return None
        ready = _READY[model] = _Ready(model)
    if not ready.possible or not bool(mask.all()):
        return None
    try:
        single = ready.idle.pop()
    except IndexError:
        single = _single_of(model)
    assert single is not None
    translation = single(model, ids, wanted)
    ready.idle.append(single)
    return translation


def _are_plain(ids: Any, mask: Any) -> bool:
    """Whether these are token ids of sentences and their mask."""
    tensors = isinstance(ids, Tensor) and isinstance(mask, Tensor) and ids.dim() == 2 and ids.shape == mask.shape
    return tensors and ids.dtype == torch.long and ids.numel() > 0 and ids.device.type == mask.device.type == "cpu"


def _key(options: dict[str, Any], given: Any) -> Any:
    """What is equal for the same options; None where they are no plain values."""
    if not (given is None or type(given) is GenerationConfig) or not all(map(_is_plain, options.values())):
        return None
    values = []
    for name, value in options.items():
        if type(value) in (list, tuple, dict):
            value = repr(value)
        values.append((name, type(value), value))
    return tuple(values), id(given)


def _is_plain(value: Any, inside: bool = False) -> bool:
    """Returns whether it is a number or text, a list, tuple or dict of such, or a frozen dataclass of such."""
    if type(value) in (list, tuple, dict):
        return all(_is_plain(one, True) for one in (*value, *(value.values() if type(value) is dict else ())))
    frozen = is_dataclass(value) and type(value).__hash__ is not None and not inside
    return type(value) in PLAIN or (frozen and all(type(part) in PLAIN for part in vars(value).values()))


_PREPARED: WeakKeyDictionary[Any, OrderedDict[Any, Prepared]] = WeakKeyDictionary()
_READY: WeakKeyDictionary[Any, _Ready] = WeakKeyDictionary()
_LOCK = threading.Lock()
