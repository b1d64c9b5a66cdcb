"""The part of generate() that does not depend on the sentences, made once for a model and the options of a call.

The way of a call, which the second one with the same options begins at 4, so that none depends on those before it:
1. A model's generate() (modeling/generation.py) calls `generate` here.
2. `Prepared.of` calls Transformers' generate(), with a source of one position of zeros in the place of an encoder's.
3. That prepares config, logits processors and stopping criteria, and would search: `_sample` or `_beam_search` of the
   model calls `search.run`, `floors_of_call`, `stop_if_preparing`: this ends it by an exception, and 2 keeps them.
4. `Prepared.search` calls `search.run` with them and `UnencodedSources`: `floors_of_text`.
5. The floor searches: it encodes the sources, and finds translations.
6. Where none can, or options are no plain values, Transformers' generate() is called whole: 3, without an end.

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

ENCODED = 512  # tokens at once of sentences that others may pass; fewer cost more a token
KEPT = 16  # options of a model that are kept, the latest ones
PLAIN = (bool, int, float, str, type(None))
_OF_THREAD = threading.local()  # `prepares`: the call under way is to hand over, and not to search


class Handed(NamedTuple):
    """The things that Transformers' preparation hands to a loop, as far as they serve later calls too."""

    start: int  # the prompt, of every sentence
    strategy: type[SearchStrategy]
    processors: Any
    criteria: Any
    config: Any
    arguments: dict[str, Any]
    vocabulary: int


class _HandedOver(Exception):
    """Ends a preparation with its result, the one argument: `Handed`, or None where no fast loop would search."""


def stop_if_preparing(
    decoder: Any, strategy: Any, input_ids: Any, processors: Any, criteria: Any, config: Any, arguments: Any
) -> None:
    """Ends a call that was made for its preparation alone, by raising `_HandedOver`; else does nothing.

    decoder: None where Transformers' loop searches. input_ids ... arguments: what a loop is handed.
    """
    if not getattr(_OF_THREAD, "prepares", False):
        return
    others = {name: value for name, value in arguments.items() if name not in ("encoder_outputs", "attention_mask")}
    plain = others.keys() <= HANDLED and all(type(processor) in ROW_BY_ROW for processor in processors)
    family = getattr(decoder, "family", None)  # None: a loop needs more than an encoder's output
    if family is None or not plain or input_ids.shape[1] != 1 or decoder.normalized:
        raise _HandedOver(None)
    head, start = decoder.model.lm_head, int(input_ids[0, 0])
    vocabulary = getattr(head, "out_features", decoder.model.config.target_vocab_size)
    raise _HandedOver(Handed(start, strategy, processors, criteria, config, others, vocabulary))


class Prepared:
    """A call with some options, ready to be made again with other sentences."""

    def __init__(self, model: Any, given: Any, handed: Handed | None):
        """Takes the GenerationConfig among the options, or None, and what was handed over."""
        self.configs = [(config, copy.deepcopy(vars(config))) for config in self._configs(model, given)]
        self.handed, self.seen = handed, known(model, again=False)
        if handed is None:
            return
        config = copy.copy(handed.config)
        for name, value in vars(config).items():  # to ask a tensor on a GPU is to wait
            vars(config)[name] = value.cpu() if isinstance(value, Tensor) else value
        self.handed = handed._replace(config=config)
        self.rules = Rules(handed.processors, handed.criteria)
        self.wanted = Wanted.of(handed.strategy, self.rules, handed.config, handed.start, handed.vocabulary)

    @classmethod
    def of(cls, model: Any, given: Any, call: Callable[..., Any], options: dict[str, Any]) -> Prepared:
        """Lets Transformers prepare a call with these options."""
        states = torch.zeros(1, 1, 1, dtype=model.dtype, device=model.device)
        ids, outputs = states[:, :, 0].long(), BaseModelOutput(last_hidden_state=states)
        source = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "encoder_outputs": outputs}
        _OF_THREAD.prepares = True
        try:
            call(**source, **options, **({} if given is None else {"generation_config": given}))
        except _HandedOver as over:
            return cls(model, given, over.args[0])
        except Exception:  # mistaken options, or a loop that this package is not asked about: the call itself raises
            return cls(model, given, None)
        finally:
            _OF_THREAD.prepares = False
        return cls(model, given, None)

    @staticmethod
    def _configs(model: Any, given: Any) -> list[Any]:
        return [model.config, model.generation_config, *([] if given is None else [given])]

    def holds(self, model: Any, given: Any) -> bool:
        """Tells whether all configs are the same objects, and say the same, and the answer holds."""
        now = self._configs(model, given)
        try:
            same = all(x is config and vars(x) == kept for x, (config, kept) in zip(now, self.configs))
        except RuntimeError:  # of tensors in them
            return False
        return same and (self.handed is not None or known(model, again=False) is self.seen)  # else it may be fast now

    def search(self, model: Any, ids: Tensor, mask: Tensor, between: BetweenSteps | None) -> Any:
        """Searches from the encoder on, after a call of `between`; returns None if that is not for a fast loop."""
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
    """Sentences of which nothing is computed yet: token ids and mask (sentences, source)."""

    ids: Tensor
    mask: Tensor
    start: int  # the prompt
    wanted: Wanted | None  # what search.c is to do, if it knows it
    rules: Rules

    def prompt(self) -> Tensor:
        """Returns what every sentence begins with, (sentences, 1)."""
        return self.ids.new_full((len(self.ids), 1), self.start)

    def ready(self, model: Any) -> ReadySentences | None:
        """Returns what translates one sentence without padding in compiled code; None where that is not for it."""
        if self.wanted is None or len(self.ids) != 1 or self.ids.device.type != "cpu" or not bool(self.mask.all()):
            return None
        return ready_sentences(model)

    def encode(self, model: Any) -> Any:
        """Encodes the sources; the caller may change the output. On a CPU in parts, if callbacks are called between."""
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
    criteria, between = options.get("stopping_criteria"), None
    if isinstance(criteria, list) and len(criteria) == 1 and isinstance(criteria[0], BetweenSteps):
        between = options.pop("stopping_criteria")[0]  # it is of a call, not of its options
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
    """Tells whether these are token ids of sentences and their mask, where the model is, not padded on the left."""
    tensors = isinstance(ids, Tensor) and isinstance(mask, Tensor) and ids.dim() == 2 and ids.shape == mask.shape
    plain = tensors and ids.dtype == torch.long and ids.numel() > 0 and ids.device == mask.device == device
    return plain and (device.type != "cpu" or bool(mask[:, 0].all()))  # else Transformers' preparation warns


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
_LOCK = threading.Lock()
