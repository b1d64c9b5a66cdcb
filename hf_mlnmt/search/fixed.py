"""Search by steps of one shape, for a device that Python runs ahead of (a GPU).

There the time of a step is not that of its arithmetic, but of the hundreds of calls that Python makes for it, and of
every value that Python reads to decide what comes next. So a step is made once and then repeated:

- its tensors have one of a few sizes (`Size`) and stay where they are: caches, masks, sums, finished hypotheses;
- it reads no value: which sentences have ended is written on the device, and Python looks at it a few steps later, at a
  copy that has arrived meanwhile. A step too many changes nothing, since what has ended stays as it is;
- on CUDA it is captured as a graph, one launch from then on, and kept with the model for the next batch of its size;
- only where half of the sentences have ended does the batch go on in a smaller size, and in a larger one where the
  slots for the target are used up.

Candidates, scores, rules for stopping and results are those of loops.py; what this file does not know (processors other
than least lengths, draws, recombination, fused models) is left to that file. As there, the beams of a sentence are
neighbouring positions of one sequence (cache.py); here all slots are there from the beginning, and a mask hides those
that are not filled.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.generation import GenerateEncoderDecoderOutput
from transformers.utils import logging

from hf_mlnmt.modeling.caches import ConvolutionCacheLayer, RecurrentCacheLayer
from hf_mlnmt.modeling.outputs import EncoderOutput
from hf_mlnmt.modeling.recurrent_attention import PreviousWeightAttention
from hf_mlnmt.search.cache import BeamCacheLayer, BeamConvolutionCacheLayer, BeamRecurrentCacheLayer
from hf_mlnmt.search.decoder import gather_beams
from hf_mlnmt.search.hypotheses import (
    IMPOSSIBLE,
    FinishedHypotheses,
    best_continuations,
    end_of_sentences,
    take_finished,
)
from hf_mlnmt.search.lstm import LSTMDecoder
from hf_mlnmt.search.products import AdditiveMask
from hf_mlnmt.search.rules import Rules
from hf_mlnmt.search.source import Source
from hf_mlnmt.search.transformer import TransformerDecoder

logger = logging.get_logger(__name__)

LATE = 3  # steps after which Python reads how many sentences are open
FEWEST_STEPS = 32  # that there are slots for
KEPT = 8  # sizes of a model whose tensors and graphs are kept, the latest ones
KEPT_BYTES = 2**31  # of their tensors; what takes more is not kept


class Size(NamedTuple):
    """sentences, beams, positions of the source, and steps after the prompt that there are slots for."""

    sentences: int
    width: int
    source: int
    prompt: int
    steps: int

    @property
    def slots(self) -> int:
        """Of the target's cache."""
        return self.prompt + self.steps * self.width


def rounded(count: int, least: int = 1) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24 ...: at most a third of it is empty."""
    size = least
    while size < count:
        size = size * 3 // 2 if size & (size - 1) == 0 and size > 1 else size * 4 // 3 if size > 1 else 2
    return size


def why_not(decoder: Any, rules: Rules, config: Any) -> str | None:
    """What these steps do not know, or None."""
    if type(decoder) not in (TransformerDecoder, LSTMDecoder):
        return f"the decoder {type(decoder).__name__}"
    if decoder.model.training:
        return "dropout"
    if not rules.lengths_alone:
        return "logits processors other than least lengths"
    if rules.max_length is None:
        return "no greatest length"
    if config.do_sample or getattr(config, "recombine", None) is not None:
        return "draws or recombination"
    return None


class FixedCacheLayer(BeamCacheLayer):
    """Keys and values of a decoder layer, (sentences, heads, slots, d_h), written where `state.places` says."""

    def __init__(self, state: FixedTransformer):
        super().__init__()
        self.state = state
        self.buffers: tuple[Tensor, ...] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if self.buffers is None:
            shapes = ((*x.shape[:2], self.state.size.slots, x.shape[3]) for x in (key_states, value_states))
            self.buffers = key_states.new_zeros(next(shapes)), value_states.new_zeros(next(shapes))
        keys, values = self.buffers
        keys.index_copy_(2, self.state.places, key_states)
        values.index_copy_(2, self.state.places, value_states)
        return keys, values

    def get_seq_length(self) -> int:
        return 0

    def restart(self) -> None:
        """A new batch: its prompt comes next."""

    def settle(self) -> None:
        """Behind a step: what it has made anew goes back to where it was."""

    def put_back(self) -> None:
        """After a step that was not computed: what it would have made anew is forgotten."""

    def tensors(self) -> list[Tensor]:
        """Those with a row for each sentence."""
        return list(self.buffers or ())

    def take(self, tensors: list[Tensor]) -> None:
        """Take `tensors()` of another size, padded to this one."""
        self.buffers = put(self.buffers, tensors)


class FixedStateLayer(FixedCacheLayer):
    """A slot with a state for each beam, (sentences, beams, ...), in one place after `expand`."""

    states: Any = None
    place: Tensor | None = None

    def restart(self) -> None:
        self.states, self.of_beams = None, False

    def expand(self, width: int) -> None:
        states = self.states.expand(-1, width, *self.states.shape[2:])
        (self.place,) = put(None if self.place is None else (self.place,), [states])
        self.states, self.of_beams = self.place, True

    def reorder(self, parents: Tensor) -> None:
        assert self.place is not None
        self.place.copy_(gather_beams(self.place, parents))

    def settle(self) -> None:
        assert self.place is not None
        self.place.copy_(self.states)
        self.states = self.place

    def put_back(self) -> None:
        self.states = self.place

    def tensors(self) -> list[Tensor]:
        assert self.place is not None
        return [*super().tensors(), self.place]

    def take(self, tensors: list[Tensor]) -> None:
        *keys, states = tensors
        super().take(keys)
        (self.place,) = put(None if self.place is None else (self.place,), [states])
        self.states, self.of_beams = self.place, True


class FixedConvolutionLayer(FixedStateLayer, BeamConvolutionCacheLayer):
    """`BeamConvolutionCacheLayer` in one place."""


class FixedRecurrentLayer(FixedStateLayer, BeamRecurrentCacheLayer):
    """`BeamRecurrentCacheLayer` in one place."""


FIXED_LAYERS: dict[type, type[FixedCacheLayer]] = {
    DynamicLayer: FixedCacheLayer,
    ConvolutionCacheLayer: FixedConvolutionLayer,
    RecurrentCacheLayer: FixedRecurrentLayer,
}


class FixedSourceLayer(DynamicLayer):
    """The source's keys and values of one attention, (sentences, heads, source, d_h), in one place."""

    _layer_type = None
    keys: Any = None
    values: Any = None

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        self.is_initialized = True
        before = None if self.keys is None else (self.keys, self.values)
        self.keys, self.values = put(before, [key_states, value_states])
        return self.keys, self.values


def put(places: Any, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """The tensors, copied into `places` if there are some already."""
    if not places:
        return tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors)
    for place, tensor in zip(places, tensors, strict=True):
        place.copy_(tensor)
    return tuple(places)


def fitted(tensor: Tensor, rows: Tensor, dim: int | None = None, length: int = 0) -> Tensor:
    """Rows of a tensor; zeros behind its dimension `dim` up to `length`, or so much of it."""
    tensor = tensor.index_select(0, rows)
    if dim is None or tensor.shape[dim] == length:
        return tensor
    if tensor.shape[dim] > length:
        return tensor.narrow(dim, 0, length)
    shape = list(tensor.shape)
    shape[dim] = length - shape[dim]
    return torch.cat([tensor, tensor.new_zeros(shape)], dim=dim)


class FixedTransformer:
    """The state of a `TransformerDecoder` of one size."""

    def __init__(self, decoder: TransformerDecoder, size: Size):
        self.size = size
        self.source: Any = None
        device, dtype = decoder.model.device, decoder.model.dtype
        self.hidden = torch.finfo(dtype).min
        self.steps_mask = torch.empty(size.sentences, 1, size.width, size.slots, dtype=dtype, device=device)
        self.history_mask = self.steps_mask
        self.prompt_places = torch.arange(size.prompt, device=device)
        self.step_places = torch.arange(size.width, device=device)
        self.places = self.prompt_places
        self.position = torch.zeros(1, 1, dtype=torch.long, device=device)
        target, source = DynamicCache(), DynamicCache()
        self.layers: list[Any] = [FIXED_LAYERS[kind](self) for kind in decoder.kinds]
        target.layers = self.layers
        source.layer_class_to_replicate = FixedSourceLayer
        self.cache = EncoderDecoderCache(target, source)
        for module in decoder.model.model.modules():
            if isinstance(module, PreviousWeightAttention):
                self.layers[module.layer_idx].over_source = True

    def begin(self, decoder: TransformerDecoder, prompt: Tensor, source: Source) -> Tensor:
        """Read the prompt (sentences, length): scores (sentences, 1, vocabulary). Then there are the beams."""
        if decoder.step_class is not None:
            encoded = EncoderOutput.of(source.outputs, decoder.model.get_encoder().hands_on)
            source = source._replace(outputs=encoded)
        self._take_source(source)
        for layer in self.layers:
            layer.restart()
        self.cache.is_updated = {}
        self.places = self.prompt_places
        shape = self.size.prompt, self.size.slots
        mask = torch.full(shape, self.hidden, dtype=self.steps_mask.dtype, device=prompt.device).triu(1)
        self.history_mask = mask.expand(len(prompt), 1, -1, -1)
        scores = decoder.call_modules(prompt, self, logits_to_keep=1)  # type: ignore[arg-type]
        for layer in self.layers:
            layer.expand(self.size.width)
        self._begin_steps()
        return scores

    def _begin_steps(self) -> None:
        self.history_mask, self.places = self.steps_mask, self.step_places
        self.steps_mask.fill_(self.hidden)[..., : self.size.prompt] = 0
        self.step_places.copy_(torch.arange(self.size.width, device=self.step_places.device) + self.size.prompt)
        self.position.fill_(self.size.prompt)

    def _take_source(self, source: Source) -> None:
        real = source.real
        outputs = {name: value for name, value in source.outputs.items() if isinstance(value, Tensor)}
        mask = torch.zeros(real.shape, dtype=self.steps_mask.dtype, device=real.device)
        mask = mask.masked_fill_(~real, self.hidden)[:, None, None, :]
        if self.source is None:
            self.source = Source(type(source.outputs)(**outputs), real.clone())
            self.source_mask = AdditiveMask(mask)
            return
        put(tuple(self.source.outputs.values()), list(outputs.values()))
        put((self.source.real, self.source_mask.tensor), [real, mask])

    def put_back(self) -> None:
        """As of a layer."""
        for layer in self.layers:
            layer.put_back()

    def tensors(self) -> list[Tensor]:
        """The large ones."""
        source: list[Any] = self.cache.cross_attention_cache.layers
        of_source = [tensor for layer in source for tensor in (layer.keys, layer.values)]
        return [tensor for layer in self.layers for tensor in layer.tensors()] + of_source + [self.steps_mask]

    def reorder(self, parents: Tensor) -> None:
        """Beam i of sentence b goes on from its beam parents[b, i]."""
        self.steps_mask.copy_(gather_beams(self.steps_mask.squeeze(1), parents).unsqueeze(1))
        for layer in self.layers:
            layer.reorder(parents)

    def step(self, decoder: TransformerDecoder, tokens: Tensor) -> Tensor:
        """Read one token of every beam (sentences, width): scores (sentences, width, vocabulary)."""
        own = self.step_places.view(1, 1, -1, 1).expand(len(tokens), 1, -1, 1)
        self.steps_mask.scatter_(3, own, 0.0)  # every beam sees itself
        scores = decoder.call_modules(tokens, self, **{decoder.positions: self.position})  # type: ignore[arg-type]
        for layer in self.layers:
            layer.settle()
        self.step_places += self.size.width
        self.position += 1
        return scores

    def move_to(self, other: FixedTransformer, rows: Tensor) -> None:
        """Put these sentences, and what is known of them, into the state of another size."""
        slots, length = other.size.slots, other.size.source
        outputs = {name: fitted(value, rows, 1, length) for name, value in self.source.outputs.items()}
        real = fitted(self.source.real, rows, 1, length)
        other._take_source(Source(type(self.source.outputs)(**outputs), real))
        other.history_mask, other.places = other.steps_mask, other.step_places
        mask = fitted(self.steps_mask - self.hidden, rows, 3, slots) + self.hidden  # zeros behind are hidden
        other.steps_mask.copy_(mask)
        other.step_places.copy_(self.step_places)
        other.position.copy_(self.position)
        for slot, into in zip(self.layers, other.layers, strict=True):
            keys, states = slot.tensors()[:2], slot.tensors()[2:]
            taken = [fitted(tensor, rows, 2, slots) for tensor in keys]
            over_source = getattr(slot, "over_source", False)
            taken += [fitted(x, rows, x.dim() - 1, length) if over_source else fitted(x, rows) for x in states]
            into.take(taken)
        for index, done in self.cache.is_updated.items():
            layer: Any = self.cache.cross_attention_cache.layers[index]
            keys = [fitted(tensor, rows, 2, length) for tensor in (layer.keys, layer.values)]
            other.cache.cross_attention_cache.update(*keys, index)
            other.cache.is_updated[index] = done


class FixedLSTM:
    """The state of an `LSTMDecoder` of one size."""

    def __init__(self, decoder: LSTMDecoder, size: Size):
        self.size = size
        self.state: Any = None

    def begin(self, decoder: LSTMDecoder, prompt: Tensor, source: Source) -> Tensor:
        """As `FixedTransformer.begin`."""
        scores, state = decoder.begin(prompt, source)
        self._put(state.expand(self.size.width))
        return scores

    def _put(self, state: Any) -> None:
        mask = state.keys.new_zeros(len(state.keys), 1, 1, state.keys.shape[2]) if state.mask is None else state.mask
        self.state = type(state)(*put(self.state, [state.rows, state.keys, state.values, mask]))

    def put_back(self) -> None:
        """Nothing: a step that is not computed leaves the state."""

    def tensors(self) -> list[Tensor]:
        """As `FixedTransformer.tensors`."""
        return list(self.state)

    def reorder(self, parents: Tensor) -> None:
        """As `FixedTransformer.reorder`."""
        self.state.rows.copy_(gather_beams(self.state.rows, parents))

    def step(self, decoder: LSTMDecoder, tokens: Tensor) -> Tensor:
        """As `FixedTransformer.step`."""
        scores, state = decoder.step(tokens, self.state)
        self.state.rows.copy_(state.rows)
        return scores

    def move_to(self, other: FixedLSTM, rows: Tensor) -> None:
        """As `FixedTransformer.move_to`."""
        state, length = self.state, other.size.source
        keys, values = (fitted(x, rows, 2, length) for x in (state.keys, state.values))
        other._put(type(state)(fitted(state.rows, rows), keys, values, fitted(state.mask, rows, 3, length)))


class Stage:
    """A search while it has one size: its tensors, and the step that is repeated."""

    def __init__(self, decoder: Any, size: Size, rules: Rules, config: Any, key: Any):
        self.size, self.key, self.normalized = size, key, decoder.normalized
        device, shape = decoder.model.device, (size.sentences, size.width)
        self.beams = config.num_beams if config.num_beams > 1 else 0
        self.early = config.early_stopping
        self.state = (FixedLSTM if isinstance(decoder, LSTMDecoder) else FixedTransformer)(decoder, size)
        self.scores: Tensor | None = None  # of the next token, (sentences, width, vocabulary)
        self.tokens = torch.zeros(shape, dtype=torch.long, device=device)
        self.running = torch.zeros(shape, device=device)
        self.step_number = torch.zeros(1, dtype=torch.long, device=device)
        self.table = torch.zeros(size.steps + 1, 2, *shape, dtype=torch.long, device=device)  # tokens and parents
        self.open = torch.ones(size.sentences, dtype=torch.bool, device=device)
        self.ended = torch.zeros(size.sentences, dtype=torch.bool, device=device)
        self.left = torch.zeros(1, dtype=torch.long, device=device)
        self.best = torch.zeros(shape, device=device)
        self.filled = torch.zeros(shape, dtype=torch.bool, device=device)
        self.last = torch.zeros(*shape, 3, dtype=torch.long, device=device)
        self.ends = torch.empty(0, dtype=torch.long, device=device)
        if rules.end_tokens is not None:
            self.ends = rules.end_tokens.flatten().to(device)
        self.least = [(least, tokens.flatten().to(device)) for least, tokens in rules.least]
        self.pad = 0 if config._pad_token_tensor is None else config._pad_token_tensor.to(device)
        numbers = torch.zeros(size.steps, device=device)
        self.divisors, self.hopes = numbers, numbers.clone()
        self.is_end = torch.zeros(size.steps, dtype=torch.bool, device=device)
        self.forbids = [self.is_end.clone() for _ in self.least]
        self.graph: Any = None
        self.decoder, self.runs = decoder, 0

    def bytes(self) -> int:
        """Of the large tensors."""
        tensors = self.state.tensors() + ([] if self.scores is None else [self.scores])
        return sum(tensor.numel() * tensor.itemsize for tensor in tensors)

    def limit(self, rules: Rules, config: Any) -> None:
        """What depends on the length, for each step: tables on the device."""
        assert rules.max_length is not None
        lengths = range(1, self.size.steps + 1)  # behind the step, without the prompt
        hopeful = config.early_stopping == "never" and config.length_penalty > 0.0
        longest, penalty = rules.max_length - self.size.prompt, config.length_penalty
        fill(self.divisors, [length**penalty for length in lengths])
        fill(self.hopes, [(longest if hopeful else length) ** penalty for length in lengths])
        fill(self.is_end, [length >= longest for length in lengths])
        for table, (least, _) in zip(self.forbids, self.least, strict=True):
            fill(table, [self.size.prompt + length - 1 < least for length in lengths])

    def begin(self, prompt: Tensor, source: Source, real: int) -> None:
        """A new batch, of which the first `real` sentences are real: (sentences, prompt)."""
        scores = self.state.begin(self.decoder, prompt, source).expand(-1, self.size.width, -1)
        (self.scores,) = put(None if self.scores is None else (self.scores,), [scores])
        self.running.fill_(IMPOSSIBLE)[:, 0] = 0.0  # the beams are one at first
        self.best.fill_(-torch.inf)
        for tensor in (self.step_number, self.filled, self.last):
            tensor.zero_()
        self.last[..., 0] = -1
        self.close(real)

    def close(self, real: int) -> None:
        """All sentences are open but those behind the first `real`, which only fill the batch."""
        self.open.fill_(True)[real:] = False
        self.ended.fill_(False)[real:] = True

    def move_to(self, other: Stage, rows: Tensor, real: int) -> None:
        """Go on with these sentences in another size."""
        assert self.scores is not None
        self.state.move_to(other.state, rows)  # type: ignore[arg-type]
        (other.scores,) = put(None if other.scores is None else (other.scores,), [self.scores.index_select(0, rows)])
        for name in ("running", "tokens", "best", "filled", "last"):
            getattr(other, name).copy_(getattr(self, name).index_select(0, rows))
        other.step_number.copy_(self.step_number)
        other.close(real)

    def at(self, table: Tensor) -> Tensor:
        """The entry of this step, (1,)."""
        return table.index_select(0, self.step_number)

    def forbid(self, scores: Tensor) -> Tensor:
        """What may not follow yet."""
        for (_, tokens), forbidden in zip(self.least, self.forbids):
            chosen = scores.index_select(-1, tokens)
            scores = scores.index_copy(-1, tokens, chosen.masked_fill(self.at(forbidden), -torch.inf))
        return scores

    def are_last(self, tokens: Tensor) -> Tensor:
        """Which tokens end their sequence."""
        return torch.isin(tokens, self.ends) | self.at(self.is_end)

    def beam_step(self) -> None:
        """One round of loops.beam_search."""
        assert self.scores is not None
        log_probs = self.scores if self.normalized else torch.log_softmax(self.scores, -1)
        count = max(2, 1 + self.ends.numel()) * self.beams
        sums, parents, tokens = best_continuations(self.forbid(log_probs), self.running, count)
        last = self.are_last(tokens)
        running, chosen = (sums + last * IMPOSSIBLE).topk(self.beams)
        kept = self.best, self.filled, self.last
        new = take_finished(
            kept,
            self.open,
            self.early,
            sums,
            tokens,
            parents,
            last,
            self.at(self.divisors),
            self.step_number.view(1, 1),
        )
        put(kept, list(new))
        tokens, parents = tokens.gather(1, chosen), parents.gather(1, chosen)
        self.table.index_copy_(0, self.step_number, torch.stack([tokens, parents]).unsqueeze(0))
        open_, ended = end_of_sentences(self.best, self.filled, self.open, self.early, running, self.at(self.hopes))
        put((self.open, self.ended, self.running, self.tokens), [open_, ended, running, tokens])
        self.state.reorder(parents)
        self.advance()

    def greedy_step(self) -> None:
        """One round of loops.sample without draws: `ended` are the sentences that are done."""
        assert self.scores is not None
        tokens = self.forbid(self.scores).argmax(-1)
        if self.ends.numel():
            tokens = torch.where(self.ended.unsqueeze(1), self.pad, tokens)
        self.table[:, 0].index_copy_(0, self.step_number, tokens.unsqueeze(0))
        self.tokens.copy_(tokens)
        self.ended |= self.are_last(tokens).squeeze(1)
        self.advance()

    def advance(self) -> None:
        """The decoder's step, and the numbers that count."""
        assert self.scores is not None
        self.left.copy_((~self.ended).sum())
        self.scores.copy_(self.state.step(self.decoder, self.tokens))
        self.step_number += 1

    def run(self) -> None:
        """One step: the first one as it is, later ones by the graph, which is captured at the second."""
        body = self.beam_step if self.beams else self.greedy_step
        if self.runs == 1 and self.running.is_cuda:
            self.graph = self.capture(body)
        if self.graph is not None:
            self.graph.replay()
        else:
            body()
        self.runs += 1

    def capture(self, body: Callable[[], None]) -> Any:
        """The step as a CUDA graph, or None where CUDA cannot capture it: then it goes on call by call."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                body()
        except RuntimeError as error:
            logger.warning("generate(): a step cannot be captured as a graph, which costs time: %s", error)
            self.state.put_back()
            return None
        return graph

    def how_many_are_left(self) -> Callable[[], int]:
        """The number of open sentences behind this step, to be asked for when it has arrived."""
        if not self.left.is_cuda:
            number = self.left.clone()
            return lambda: int(number)
        copy = torch.empty(1, dtype=torch.long, pin_memory=True)
        copy.copy_(self.left, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()

        def wait() -> int:
            arrived.synchronize()
            return int(copy)

        return wait


def fill(place: Tensor, values: list) -> None:
    """Write numbers into a tensor."""
    place.copy_(torch.tensor(values, dtype=place.dtype))


_STAGES: WeakKeyDictionary[Any, OrderedDict[Any, Stage]] = WeakKeyDictionary()


def stage_of(decoder: Any, size: Size, rules: Rules, config: Any) -> Stage:
    """A stage of this size, for this search alone: one that was kept with the model, or a new one."""
    ends = [] if rules.end_tokens is None else rules.end_tokens.flatten().tolist()
    least = [tokens.flatten().tolist() for _, tokens in rules.least]
    pad = None if config._pad_token_tensor is None else config._pad_token_tensor.tolist()
    more = {name: value for name, value in getattr(decoder, "arguments", {}).items() if not callable(value)}
    asked = config.num_beams, str(config.early_stopping), ends, least, pad, more
    key = size, repr(asked), _state_of_weights(decoder.model)
    stage = _STAGES.setdefault(decoder.model, OrderedDict()).pop(key, None) or Stage(decoder, size, rules, config, key)
    stage.limit(rules, config)
    return stage


def keep_stage(stage: Stage) -> None:
    """Keep it for the next search of its size; the oldest ones go where there are too many."""
    kept = _STAGES.setdefault(stage.decoder.model, OrderedDict())
    kept[stage.key] = stage
    while len(kept) > KEPT or sum(one.bytes() for one in list(kept.values())) > KEPT_BYTES:
        kept.popitem(last=False)


def _state_of_weights(model: Any) -> int:
    """Another number when a weight lies elsewhere or was changed."""

    def version(weight: Tensor) -> int:
        return -1 if weight.is_inference() else weight._version

    return hash(tuple((weight.data_ptr(), version(weight), weight.dtype) for weight in model.parameters()))


def search(decoder: Any, source: Source, input_ids: Tensor, rules: Rules, config: Any) -> Any:
    """What generate() returns, as loops.beam_search and loops.sample.

    Args:
        decoder: a decoder that `why_not` lets pass. source: of every sentence.
        input_ids: the prompt (sentences x num_beams, length).
        config: the generation config as generate() prepares it.
    """
    width = config.num_beams
    prompt = input_ids[::width]
    kept = FinishedHypotheses(prompt, config)
    assert rules.max_length is not None
    longest = rules.max_length - prompt.shape[1]
    with torch.inference_mode():
        lefts = _run(decoder, source, prompt, rules, config, kept, longest)
    if width > 1:
        return kept.result()
    total = next((number for number, left in enumerate(lefts, start=1) if not left), len(lefts))
    pad = 0 if config._pad_token_tensor is None else config._pad_token_tensor.to(prompt.device)
    columns = prompt.new_zeros(total, len(prompt)) + pad
    for column, (ids, tokens, _) in zip(columns, kept.steps):
        column[ids] = tokens[:, 0]
    sequences: Any = torch.cat([prompt, columns.t()], dim=1)
    return GenerateEncoderDecoderOutput(sequences=sequences) if config.return_dict_in_generate else sequences


def _run(
    decoder: Any, source: Source, prompt: Tensor, rules: Rules, config: Any, kept: FinishedHypotheses, longest: int
) -> list[int]:
    """All steps, which go to `kept`; how many sentences were open behind each."""
    device, real = prompt.device, len(prompt)
    steps = min(rounded(longest), FEWEST_STEPS)
    transformer = isinstance(decoder, TransformerDecoder)
    length = source.real.shape[1]
    # What a family that nobody knows hands on has a length of its own; of a bridge all of M is read, without a mask.
    if decoder.step_class is not None if transformer else "features" in source.outputs:
        length = rounded(length, 8)
    size = Size(rounded(real), config.num_beams, length, prompt.shape[1], steps)
    rows = torch.arange(size.sentences, device=device).clamp(max=real - 1)
    stage, ids = stage_of(decoder, size, rules, config), torch.arange(real, device=device)
    positional = None if transformer else ("last_hidden_state", "memory")
    stage.begin(prompt.index_select(0, rows), _padded(source, rows, length, positional), real)
    lefts: list[int] = []
    arriving: deque[Callable[[], int]] = deque()
    first, done = 0, 0
    while True:
        stage.run()
        done += 1
        arriving.append(stage.how_many_are_left())
        while len(arriving) > (0 if done == longest else LATE):
            lefts.append(arriving.popleft()())
        left = lefts[-1] if lefts else real
        full = done == stage.size.steps
        if done == longest or not left:
            break
        if full or rounded(left) <= stage.size.sentences // 2:
            _keep(kept, stage, ids, first, done)
            lefts += [wait() for wait in arriving]
            arriving.clear()
            rows = (~stage.ended).nonzero()[:, 0]
            if not len(rows):
                keep_stage(stage)
                return lefts
            ids, real, first = ids[rows], len(rows), done
            steps = min(rounded(longest), 2 * stage.size.steps) if full else stage.size.steps
            size = stage.size._replace(sentences=rounded(real), steps=steps)
            rows = torch.cat([rows, rows[:1].expand(size.sentences - real)])
            following = stage_of(decoder, size, rules, config)
            stage.move_to(following, rows, real)
            keep_stage(stage)
            stage = following
    _keep(kept, stage, ids, first, done)
    keep_stage(stage)
    return lefts + [wait() for wait in arriving]


def _keep(kept: FinishedHypotheses, stage: Stage, ids: Tensor, first: int, end: int) -> None:
    """Write the steps `first` to `end` of a stage, and its finished hypotheses, down for the sentences `ids`."""
    table = stage.table[first:end, :, : len(ids)].clone()
    kept.steps += [(ids, tokens, parents) for tokens, parents in table.unbind()]
    if stage.beams:
        places = kept.scores, kept.filled, kept.last
        for place, tensor in zip(places, (stage.best, stage.filled, stage.last), strict=True):
            place[ids] = tensor[: len(ids)]


def _padded(source: Source, rows: Tensor, length: int, names: tuple[str, ...] | None) -> Source:
    """These rows of a source, with zeros behind them up to `length`; of all tensors, or of those with these names."""
    outputs = {
        name: fitted(value, rows, 1, length) if names is None or name in names else fitted(value, rows)
        for name, value in source.outputs.items()
    }
    return Source(type(source.outputs)(**outputs), fitted(source.real, rows, 1, length))
