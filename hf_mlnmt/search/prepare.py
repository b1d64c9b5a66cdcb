"""The part of generate() that does not depend on the sentences, run once for a model and the options of a call.

The steps of a call; later calls with the same options skip 2 and 3:
1. A model's generate() (modeling/generation.py) calls `generate` here.
2. `Prepared.of` calls Transformers' generate() with one position of zeros in place of the encoder's output.
3. Transformers prepares config, logits processors and criteria, and calls `_sample` or `_beam_search` of the model:
   `search.run`, `floors_of_call`, `stop_if_preparing`, which raises an exception that carries these back to step 2.
4. `Prepared.search` calls `search.run` with these and `UnencodedSources`: `floors_of_text`.
5. A floor (search/__init__.py) encodes the sources and finds translations.
6. Where no floor can, or options are no plain values, Transformers' generate() runs as usual.

Options are the same if they are plain values, or frozen dataclasses as LengthPenalty, that are equal; with any other
value (a processor, a streamer, a tensor) every call goes through Transformers' preparation. The generation configs and
the model's config are compared by value at every call.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteriaList
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from hf_mlnmt.modeling import generation
from hf_mlnmt.search.cpu.one_sentence import ReadySentences, Wanted, ready_sentences
from hf_mlnmt.search.decoder import HANDLED
from hf_mlnmt.search.known import known, what_is_around
from hf_mlnmt.search.rules import ROW_BY_ROW, BetweenSteps, Rules
from hf_mlnmt.search.strategies import SearchStrategy

ENCODED = 512  # about how many tokens are encoded between two callbacks; fewer would cost more time a token
KEPT = 16  # number of the latest preparations kept for a model
PLAIN = (bool, int, float, str, type(None))
_OF_THREAD = threading.local()  # `prepares`: while `Prepared.of` runs, `stop_if_preparing` raises `_HandedOver`


class Handed(NamedTuple):
    """The arguments that Transformers' preparation passes to a loop; later calls with equal options reuse them."""

    start: int  # the prompt of every sentence, one token
    strategy: type[SearchStrategy]
    processors: Any
    criteria: Any
    config: Any
    arguments: dict[str, Any]
    vocabulary: int


class _HandedOver(Exception):
    """Ends a preparation; the one argument is its result: `Handed`, or None where Transformers must search."""


def stop_if_preparing(
    decoder: Any, strategy: Any, input_ids: Any, processors: Any, criteria: Any, config: Any, arguments: Any
) -> None:
    """Raises `_HandedOver` with the prepared arguments if the call was made only to prepare; else does nothing.

    decoder: None where Transformers' loop searches. input_ids ... arguments: the arguments of a loop.
    """
    if not getattr(_OF_THREAD, "prepares", False):
        return
    others = {name: value for name, value in arguments.items() if name not in ("encoder_outputs", "attention_mask")}
    plain = others.keys() <= HANDLED and all(type(processor) in ROW_BY_ROW for processor in processors)
    family = getattr(decoder, "family", None)  # None: the decoder may need more than the encoder's output
    if family is None or not plain or input_ids.shape[1] != 1 or decoder.normalized:
        raise _HandedOver(None)
    head, start = decoder.model.lm_head, int(input_ids[0, 0])
    vocabulary = getattr(head, "out_features", decoder.model.config.target_vocab_size)
    raise _HandedOver(Handed(start, strategy, processors, criteria, config, others, vocabulary))


class Prepared:
    """The result of Transformers' preparation for some options of generate(), reused for other sentences."""

    def __init__(self, model: Any, given: Any, handed: Handed | None):
        """Stores `handed`, and copies of all configs to compare; `given`: the call's GenerationConfig, or None."""
        self.configs = [(config, copy.deepcopy(vars(config))) for config in self._configs(model, given)]
        self.handed, self.seen = handed, known(model, again=False)
        if handed is None:
            return
        config = copy.copy(handed.config)
        for name, value in vars(config).items():  # move tensors to the CPU: reading a value would wait for a GPU
            vars(config)[name] = value.cpu() if isinstance(value, Tensor) else value
        self.handed = handed._replace(config=config)
        self.rules = Rules(handed.processors, handed.criteria)
        self.wanted = Wanted.of(handed.strategy, self.rules, handed.config, handed.start, handed.vocabulary)

    @classmethod
    def of(cls, model: Any, given: Any, call: Callable[..., Any], options: dict[str, Any]) -> Prepared:
        """Runs Transformers' preparation for these options, by a call of generate() that ends before it searches."""
        states = torch.zeros(1, 1, 1, dtype=model.dtype, device=model.device)
        ids, outputs = states[:, :, 0].long(), BaseModelOutput(last_hidden_state=states)
        source = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "encoder_outputs": outputs}
        _OF_THREAD.prepares = True
        try:
            call(**source, **options, **({} if given is None else {"generation_config": given}))
        except _HandedOver as over:
            return cls(model, given, over.args[0])
        except Exception:  # wrong options, or an unsupported loop: generate() then calls Transformers, which raises
            return cls(model, given, None)
        finally:
            _OF_THREAD.prepares = False
        return cls(model, given, None)

    @staticmethod
    def _configs(model: Any, given: Any) -> list[Any]:
        return [model.config, model.generation_config, *([] if given is None else [given])]

    def holds(self, model: Any, given: Any) -> bool:
        """Tells whether this preparation can be used again: configs are the same objects with unchanged values, and,
        where no fast search was found, the model is unchanged too."""
        now = self._configs(model, given)
        try:
            same = all(x is config and vars(x) == kept for x, (config, kept) in zip(now, self.configs))
        except RuntimeError:  # a config with tensors: comparing them gives no truth value
            return False
        # If no fast search was found before, a changed model may have one now.
        return same and (self.handed is not None or known(model, again=False) is self.seen)

    def search(self, model: Any, ids: Tensor, mask: Tensor, between: BetweenSteps | None) -> Any:
        """Calls the callback `between`, encodes and searches. Returns generate()'s result; None if Transformers' loop
        must search."""
        search = generation.faster_search
        if self.handed is None or search is None:
            return None
        start, _, processors, criteria, config, arguments, _ = self.handed
        rules = self.rules
        if between is not None:
            criteria = StoppingCriteriaList([*criteria, between])
            rules = Rules(processors, criteria)
            rules.between_steps()
        sources = UnencodedSources(ids, mask, start, self.wanted, rules)
        return search(model, None, processors, criteria, config, arguments, sources)


class UnencodedSources(NamedTuple):
    """Sentences that are not encoded yet, as token ids and mask (sentences, source), and the rules of their search."""

    ids: Tensor
    mask: Tensor
    start: int  # the prompt of every sentence, one token
    wanted: Wanted | None  # the options as search.c reads them; None where it does not support them
    rules: Rules

    def prompt(self) -> Tensor:
        """Returns the prompt of every sentence, (sentences, 1)."""
        return self.ids.new_full((len(self.ids), 1), self.start)

    def ready(self, model: Any) -> ReadySentences | None:
        """Returns the model's search of one sentence in compiled code; None where that does not support the call."""
        if self.wanted is None or len(self.ids) != 1 or self.ids.device.type != "cpu" or not bool(self.mask.all()):
            return None
        return ready_sentences(model)

    def encode(self, model: Any) -> Any:
        """Encodes the sources, on a CPU in parts with callbacks in between; the caller may change what is returned."""
        encoder, most = model.get_encoder(), len(self.ids)
        if self.rules.callbacks and self.ids.device.type == "cpu":
            most = max(1, ENCODED // self.ids.shape[1])
        parts = list[Any]()
        for ids, mask in zip(self.ids.split(most), self.mask.split(most)):
            if parts:
                self.rules.between_steps()
            parts.append(encoder(input_ids=ids, attention_mask=mask, return_dict=True))
        return copy.copy(parts[0]) if len(parts) == 1 else _in_one(parts)


def _in_one(parts: Sequence[Any]) -> Any:
    """Concatenates encoder outputs, each for a part of the sentences, along the batch, their first dimension."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, ModelOutput):
        return type(first)(**{name: _in_one([part[name] for part in parts]) for name in first})
    return type(first)(map(_in_one, zip(*parts))) if isinstance(first, tuple | list) else first


@torch.no_grad()
def generate(model: Any, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Returns the result of model.generate(**arguments), found by a fast search where possible, else by `call`."""
    options = dict(arguments)
    ids, mask, given = (options.pop(name, None) for name in ("input_ids", "attention_mask", "generation_config"))
    criteria, between = options.get("stopping_criteria"), None
    if isinstance(criteria, list) and len(criteria) == 1 and isinstance(criteria[0], BetweenSteps):
        # The callback differs in every call, so it must not be part of the key of the prepared search.
        between = options.pop("stopping_criteria")[0]
    key = _key(options, given)
    if key is None or not _are_plain(ids, mask, model.device) or what_is_around(model) is not None:
        return call(**arguments)
    with _LOCK:
        of_model = _PREPARED.setdefault(model, OrderedDict())
        prepared = of_model.pop(key, None)
    if prepared is None or not prepared.holds(model, given):
        prepared = Prepared.of(model, given, call, options)
    with _LOCK:
        of_model[key] = prepared
        while len(of_model) > KEPT:
            of_model.popitem(last=False)
    outputs = prepared.search(model, ids, mask, between)
    return call(**arguments) if outputs is None else outputs


def _are_plain(ids: Any, mask: Any, device: torch.device) -> bool:
    """Tells whether ids and mask are equal in shape, on the model's device and, on a CPU, not padded on the left."""
    tensors = isinstance(ids, Tensor) and isinstance(mask, Tensor) and ids.dim() == 2 and ids.shape == mask.shape
    plain = tensors and ids.dtype == torch.long and ids.numel() > 0 and ids.device == mask.device == device
    return plain and (device.type != "cpu" or bool(mask[:, 0].all()))  # else Transformers warns of left padding


def _key(options: dict[str, Any], given: Any) -> Any:
    """Returns a key that is equal for equal options; None where they are no plain values."""
    if not (given is None or type(given) is GenerationConfig) or not all(map(_is_plain, options.values())):
        return None
    return repr([(name, type(value), value) for name, value in options.items()]), id(given)


def _is_plain(value: Any, inside: bool = False) -> bool:
    """Returns whether a value is a number or text, a list, tuple or dict of such, or a frozen dataclass of such."""
    if type(value) in (list, tuple, dict):
        return all(_is_plain(part, True) for part in (*value, *(value.values() if type(value) is dict else ())))
    frozen = is_dataclass(value) and type(value).__hash__ is not None and not inside
    return type(value) in PLAIN or (frozen and all(type(part) in PLAIN for part in vars(value).values()))


_PREPARED: WeakKeyDictionary[Any, OrderedDict[Any, Prepared]] = WeakKeyDictionary()
_LOCK = threading.Lock()
