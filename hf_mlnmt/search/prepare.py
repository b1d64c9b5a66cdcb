"""The part of generate() that does not depend on the sentences, made once for a model and the options of a call.

generate() comes through here by itself (`generate`): the first call with some options goes through Transformers'
preparation, and what the loop is handed at its end (config, logits processors, stopping criteria) is kept. Later calls
with the same options begin at the encoder; one sentence without padding is translated in compiled code.
Options are the same if they are plain values, or frozen dataclasses as LengthPenalty, that are equal; with any other
value (a processor, a streamer, a tensor) every call goes through Transformers' preparation.

Every call asks whether what was kept still holds: the options, the generation configs and the model's config by value;
and for one sentence the model, by identity: its modules and their attributes, hooks, place and version of the weights,
and, of weights of which copies are kept, whether the numbers on their diagonals are unchanged (matmul_backends.py).
"""

from __future__ import annotations

import copy
import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from transformers import GenerationConfig, GenerationMixin, StoppingCriteriaList
from transformers.utils import ModelOutput

from hf_mlnmt.common.matmul_backends import changes_of, kept_diagonals, times_forgotten
from hf_mlnmt.modeling import generation
from hf_mlnmt.search.cpu.native import library
from hf_mlnmt.search.cpu.one_sentence import OneSentence, Wanted
from hf_mlnmt.search.decoder import HANDLED
from hf_mlnmt.search.known import known
from hf_mlnmt.search.rules import ROW_BY_ROW, Abandon, Rules
from hf_mlnmt.search.strategies import SearchStrategy

ENCODED = 512  # tokens at once of sentences that others may pass; fewer cost more a token
KEPT = 16  # options of a model that are kept, the latest ones
PLAIN = (bool, int, float, str, type(None))
_OF_THREAD = threading.local()  # `recorded`: a list that the search of the call under way writes to


class Handed(NamedTuple):
    """The things that Transformers' preparation hands to a loop, as far as they serve later calls too."""

    start: int  # the prompt, of every sentence
    choice: type[SearchStrategy]
    processors: Any
    criteria: Any
    config: Any
    arguments: dict[str, Any]
    vocabulary: int


class Prepared:
    """A call with some options, ready to be made again with other sentences."""

    def __init__(self, model: Any, given: Any, handed: Handed):
        """Takes the GenerationConfig among the options, or None, and what `record` got."""
        self.configs = [(config, copy.deepcopy(vars(config))) for config in self._configs(model, given)]
        criteria = StoppingCriteriaList(part for part in handed.criteria if not isinstance(part, Abandon))
        config = copy.copy(handed.config)
        for name, value in vars(config).items():  # to ask a tensor on a GPU is to wait
            vars(config)[name] = value.cpu() if isinstance(value, Tensor) else value
        self.handed = handed._replace(criteria=criteria, config=config)
        self.rules = Rules(handed.processors, criteria)
        self.wanted = Wanted.of(handed.choice, self.rules, handed.config, handed.start, handed.vocabulary)

    @staticmethod
    def _configs(model: Any, given: Any) -> list[Any]:
        return [model.config, model.generation_config, *([] if given is None else [given])]

    def holds(self, model: Any, given: Any) -> bool:
        """Tells whether all configs are the same objects, and say the same."""
        now = self._configs(model, given)
        try:
            return all(x is config and vars(x) == kept for x, (config, kept) in zip(now, self.configs))
        except RuntimeError:  # of tensors in them
            return False

    def search(self, model: Any, ids: Tensor, mask: Tensor, abandon: Abandon | None) -> Any:
        """Searches from the encoder on; None if that is not for a fast loop. `abandon` is asked before one sentence."""
        start, _, processors, criteria, config, arguments, _ = self.handed
        rules = self.rules
        if abandon is not None:
            criteria = StoppingCriteriaList([*criteria, abandon])
            abandon.check()
            rules = Rules(processors, criteria)
        text, search = Text(ids, mask, start, self.wanted, rules), generation.faster_search
        return None if search is None else search(model, None, processors, criteria, config, arguments, text)


class Text(NamedTuple):
    """Sentences of which nothing is computed yet: token ids and mask (sentences, source)."""

    ids: Tensor
    mask: Tensor
    start: int  # the prompt
    wanted: Wanted | None  # what search.c is to do, if it knows it
    rules: Rules

    def prompt(self) -> Tensor:
        """Returns what every sentence begins with, (sentences, 1)."""
        return self.ids.new_full((len(self.ids), 1), self.start)

    def ready(self, model: Any) -> Ready | None:
        """Returns what translates one sentence without padding in compiled code; None where that is not for it."""
        if self.wanted is None or len(self.ids) != 1:
            return None
        ready = _READY.get(model)
        if ready is None or not ready.holds(model):
            _READY.pop(model, None)
            if _is_altered(model):
                return None
            ready = _READY[model] = Ready(model)
        return ready if ready.possible and bool(self.mask.all()) else None

    def translate_one(self, model: Any, ready: Ready) -> Any:
        """Translates the sentence as generate() does; None where it is too long, or has tokens that are none."""
        try:
            single = ready.idle.pop()
        except IndexError:
            single = OneSentence.of(model)
        assert single is not None
        assert self.wanted is not None
        translation = single(model, self.ids, self.wanted)
        ready.idle.append(single)
        return translation

    def encode(self, model: Any) -> Any:
        """Encodes them: an output that is the caller's own. On a CPU some at a time, where an `Abandon` is asked."""
        encoder, most = model.get_encoder(), len(self.ids)
        if self.rules.abandon and self.ids.device.type == "cpu":
            most = max(1, ENCODED // self.ids.shape[1])
        parts = list[Any]()
        for ids, mask in zip(self.ids.split(most), self.mask.split(most)):
            if parts:
                for each in self.rules.abandon:
                    each.check()
            parts.append(encoder(input_ids=ids, attention_mask=mask, return_dict=True))
        return copy.copy(parts[0]) if len(parts) == 1 else _in_one(parts)


def _in_one(parts: Sequence[Any]) -> Any:
    """Joins the outputs of an encoder for one part of the sentences each; their tensors have the batch first."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, ModelOutput):
        return type(first)(**{name: _in_one([part[name] for part in parts]) for name in first})
    return type(first)(map(_in_one, zip(*parts))) if isinstance(first, tuple | list) else first


@torch.no_grad()
def generate(model: Any, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Returns what model.generate(**arguments) does; `call` is that of Transformers."""
    options = dict(arguments)
    ids, mask, given = (options.pop(name, None) for name in ("input_ids", "attention_mask", "generation_config"))
    abandon = _only_one(options, "stopping_criteria", Abandon)
    key = _key(options, given)
    if key is None or not _are_plain(ids, mask, model.device):
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
    outputs = None
    try:
        with suppress(_ForOneSentence):
            outputs = call(**arguments)
        recorded = _OF_THREAD.recorded
    finally:
        _OF_THREAD.recorded = before
    if len(recorded) == 1 and recorded[0] is not None:
        prepared = Prepared(model, given, recorded[0])
        with _LOCK:
            of_model[key] = prepared
            while len(of_model) > KEPT:
                of_model.popitem(last=False)
        if outputs is None:
            outputs = prepared.search(model, ids, mask, abandon)
    return call(**arguments) if outputs is None else outputs


class _ForOneSentence(Exception):
    """The preparation has served its purpose: the one sentence of the call is translated as in every later call."""


def _only_one(options: dict[str, Any], name: str, kind: type) -> Any:
    """Takes the criterion or processor that is of a call and not of its options out of these, if it is the only one."""
    parts = options.get(name)
    if isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], kind):
        return options.pop(name)[0]
    return None


def record(
    decoder: Any,
    choice: type[SearchStrategy],
    input_ids: Tensor,
    processors: Any,
    criteria: Any,
    config: Any,
    arguments: dict,
    static: bool,
) -> None:
    """Notes for the call under way what a search was handed: as `Handed`, or as None if it serves no other call.

    static: the search goes by steps of static shapes.
    """
    recorded = getattr(_OF_THREAD, "recorded", None)
    if recorded is None:
        return
    same = input_ids.shape[1] == 1 and bool((input_ids == input_ids[0, 0]).all())
    others = {name: value for name, value in arguments.items() if name not in ("encoder_outputs", "attention_mask")}
    plain = others.keys() <= HANDLED and all(type(processor) in ROW_BY_ROW for processor in processors)
    if same and plain and (static or getattr(decoder, "family", None) is not None) and not decoder.normalized:
        head, start = decoder.model.lm_head, int(input_ids[0, 0])
        vocabulary = getattr(head, "out_features", decoder.model.config.target_vocab_size)
        recorded.append(Handed(start, choice, processors, criteria, config, others, vocabulary))
        rules, width = Rules(processors, criteria), max(config.num_beams, config.num_return_sequences)
        alone = len(input_ids) == width and not static
        if alone and Wanted.of(choice, rules, config, start, vocabulary) is not None:
            raise _ForOneSentence
    else:
        recorded.append(None)


def what_is_around(model: Any) -> str | None:
    """Names what was put around a model that acts on its decoder's calls as Transformers' loops make them, or None."""
    for name in ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation"):
        if getattr(getattr(model, name), "__func__", None) is not getattr(GenerationMixin, name):
            return f"a {name} of its own"
    # Accelerate's forward computes what the class's does, in a precision or on a device of its own.
    if "forward" in vars(model) and not any(hasattr(model, name) for name in ("_original_forward", "_old_forward")):
        return "a forward that was put in the place of its own"
    if not known(model).is_hooked(model) and not _has_any_global_hook():
        return None
    encoder = set(model.get_encoder().modules())  # which generate() calls itself
    others = [module for module in model.modules() if module not in encoder]
    if any(part._forward_hooks or part._forward_pre_hooks for part in others) or _has_any_global_hook():
        return "forward hooks"
    return None


class Ready:
    """The searches for one sentence that no thread uses now, and the state of the model that they were made from."""

    def __init__(self, model: Any):
        single = OneSentence.of(model)
        self.possible, self.idle = single is not None, [single]
        self.modules = list(model.modules())[1:]  # without the model, or it would never be freed
        self.marks = self._marks(model)
        self.weights = [weight for marks in self.marks for weight in marks if isinstance(weight, Tensor)]
        self.places = self._places()
        self.library, self.forgotten = library(torch.float32), times_forgotten()
        self.diagonals = kept_diagonals([model, *self.modules])
        addresses = ctypes.c_void_p * len(self.diagonals)
        self.kept_at = addresses(*(weight.data_ptr() for weight, _ in self.diagonals))
        self.kept_as = addresses(*(diagonal.data_ptr() for _, diagonal in self.diagonals))
        sizes = [size for weight, _ in self.diagonals for size in weight.shape]
        self.sizes = (ctypes.c_long * len(sizes))(*sizes)

    def _marks(self, model: Any) -> list[Any]:
        parts = [vars(model), *map(vars, self.modules)]
        return [
            (*part.values(), *part["_modules"].values(), *part["_parameters"].values(), *part["_buffers"].values())
            for part in parts
        ]

    def _places(self) -> list[tuple[int, int]]:
        return [(weight.data_ptr(), changes_of(weight)) for weight in self.weights]

    def holds(self, model: Any) -> bool:
        """Tells whether the model is the same, and calling its modules is using their weights."""
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


def _is_altered(model: Any) -> bool:
    """Tells whether calling a module does more than its class says, or dropout."""
    return what_is_around(model) is not None or any(
        (isinstance(part, nn.Dropout) and part.training)
        or part._forward_hooks
        or part._forward_pre_hooks
        or "forward" in vars(part)
        for part in model.modules()
    )


def _are_plain(ids: Any, mask: Any, device: torch.device) -> bool:
    """Tells whether these are token ids of sentences and their mask, where the model is."""
    tensors = isinstance(ids, Tensor) and isinstance(mask, Tensor) and ids.dim() == 2 and ids.shape == mask.shape
    return tensors and ids.dtype == torch.long and ids.numel() > 0 and ids.device == mask.device == device


def _key(options: dict[str, Any], given: Any) -> Any:
    """Returns something that is equal for the same options; None where they are no plain values."""
    if not (given is None or type(given) is GenerationConfig) or not all(map(_is_plain, options.values())):
        return None
    return repr([(name, type(value), value) for name, value in options.items()]), id(given)


def _is_plain(value: Any, inside: bool = False) -> bool:
    """Returns whether it is a number or text, a list, tuple or dict of such, or a frozen dataclass of such."""
    if type(value) in (list, tuple, dict):
        return all(_is_plain(part, True) for part in (*value, *(value.values() if type(value) is dict else ())))
    frozen = is_dataclass(value) and type(value).__hash__ is not None and not inside
    return type(value) in PLAIN or (frozen and all(type(part) in PLAIN for part in vars(value).values()))


_PREPARED: WeakKeyDictionary[Any, OrderedDict[Any, Prepared]] = WeakKeyDictionary()
_READY: WeakKeyDictionary[Any, Ready] = WeakKeyDictionary()
_LOCK = threading.Lock()
