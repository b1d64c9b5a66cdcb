"""Search by steps of static shapes, for a device that Python runs ahead of (a GPU).

There the time of a step is not that of its arithmetic, but of the hundreds of calls that Python makes for it, and of
every value that Python reads to decide what comes next. So a step is made once and then repeated:

- its tensors have one of a few sizes (`Size`) and stay where they are: caches, masks, sums, finished hypotheses;
- it reads no value: which sentences have ended is written on the device, and Python looks at it a few steps later, at a
  copy that has arrived meanwhile. A step too many changes nothing, since what has ended stays as it is;
- on CUDA it is captured as a graph, one launch from then on, and kept with the model for the next batch of its size;
- there Triton's kernels read the logits once, where they know what is asked (kernels.py, `kernels_for`);
- only where a quarter of many sentences is left does the batch go on in a smaller size, and in a larger one where the
  slots for the target are used up;
- each sentence has counters of its own, so that the row of one that has ended is another's (`Running`).

Candidates, scores, draws and rules for stopping are those of loop.py and strategies.py, hypotheses and results the same
objects; what `why_not` names (other search strategies, processors that look at the tokens before, fused models) is
left to that loop. As there, the beams of a sentence are neighbouring positions of one sequence (cache.py); here all
slots are there from the beginning, and a mask hides those that are not filled.

A step reads the last tokens and chooses the next ones. The beginning, with encoder, prompt and first tokens, is a graph
of its own where a call comes with token ids (prepare.py) and the encoder is a family's (`can_encode`); else it goes
call by call. Random numbers are drawn before a step, into a tensor that stays where it is: no graph holds a generator.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import nullcontext
from operator import is_
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import TemperatureLogitsWarper
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.utils import logging

from hf_mlnmt.common import matmul_backends
from hf_mlnmt.modeling.bridge import BridgeForConditionalGeneration
from hf_mlnmt.modeling.caches import RecurrentCacheLayer
from hf_mlnmt.modeling.dual_context import ConvolutionCacheLayer
from hf_mlnmt.modeling.rnn_layers import additive_mask
from hf_mlnmt.search import hypotheses
from hf_mlnmt.search.cache import BeamCacheLayer, BeamConvolutionCacheLayer, BeamRecurrentCacheLayer
from hf_mlnmt.search.decoder import SourceBatch, SourceTokens, fitted
from hf_mlnmt.search.hypotheses import Chains, Record, length_penalties, pad_token_of
from hf_mlnmt.search.known import known
from hf_mlnmt.search.lstm import LSTMDecoder
from hf_mlnmt.search.rules import OF_SCORES, Change, Joining, Rules
from hf_mlnmt.search.strategies import BLOCK, BeamSearch, Draws, DrawsByRow, Greedy, SearchStrategy
from hf_mlnmt.search.transformer import TransformerDecoder

logger = logging.get_logger(__name__)

KNOWN = (Greedy, Draws, DrawsByRow, BeamSearch)  # search strategies
LATE = 2  # steps after which Python reads how many sentences are open
FEWEST_STEPS = 32  # that there are slots for
SHORTEST = 16  # positions that there are for a source
FEW_ROWS = 160  # sentences x beams up to which a step takes the same time as with fewer
JOINED = 8  # a part of the room that is free is enough for newcomers: a beginning takes the time of a step or two
SMALLER = 4  # how many times smaller the next size is, which sentences go on in
KEPT_SHARE = 0.25  # of the memory that is free without them: so much the kept sizes of a model may take


class Size(NamedTuple):
    """The numbers of sentences, beams, positions of source and prompt, and steps behind it that there are slots for."""

    sentences: int
    width: int
    source: int
    prompt: int
    steps: int

    @property
    def slots(self) -> int:
        """Returns how many slots the target's cache has."""
        return self.prompt + self.steps * self.width


def rounded(count: int, least: int = 1) -> int:
    """Returns the next of 1, 2, 3, 4, 6, 8, 12, 16, 24 ...: at most a third of it is empty."""
    size = least
    while size < count:
        size = size * 3 // 2 if size & (size - 1) == 0 and size > 1 else size * 4 // 3 if size > 1 else 2
    return size


def first_steps(source: int) -> int:
    """Returns how many steps there are slots for at first, with so many positions of the source."""
    return max(FEWEST_STEPS, rounded(source + source // 2))


def fewer_sentences(size: Size, left: int) -> int:
    """Returns how many sentences there are to be slots for where `left` are left."""
    count = size.sentences
    while count % SMALLER == 0 and count // SMALLER >= left and count * size.width > SMALLER * FEW_ROWS:
        count //= SMALLER
    return count


def why_not(decoder: Any, choice: type[SearchStrategy], rules: Rules) -> str | None:
    """Names something that these steps do not know, or returns None."""
    if choice not in KNOWN:
        return f"the choice {choice.__name__}"
    if type(decoder) not in (TransformerDecoder, LSTMDecoder):
        return f"the decoder {type(decoder).__name__}"
    if decoder.model.training:
        return "dropout"
    if rules.by_length is None:
        return "logits processors that look at the tokens before"
    changes = [part for part in rules.by_length if isinstance(part, Change)]
    if any(token >= decoder.model.config.target_vocab_size for change in changes for token in change.tokens):
        return "tokens that the vocabulary does not have"
    if rules.max_length is None:
        return "no greatest length"
    device = decoder.model.device
    if issubclass(choice, Draws) and device.type not in ("cpu", "cuda"):
        return f"draws on {device.type}"
    if not known(decoder.model, again=False).are_together():
        return "weights on several devices"
    return None


class Clock:
    """The counters of each sentence: one tensor on the device, so that a step advances all by few operations.

    step (sentences,): the number of the step; first_candidate (sentences,): step x span; position (sentences, 1): of
    the tokens that it reads; slots (sentences, width): those that it fills.
    """

    def __init__(self, size: Size, span: int, device: torch.device):
        width = size.width
        first = [0, 0, size.prompt - 1, *range(size.prompt - width, size.prompt)]
        self.first = torch.tensor(first, device=device).unsqueeze(1)  # before the first step behind the prompt
        self.ticks = torch.tensor([1, span, 1, *[width] * width], device=device).unsqueeze(1)
        self.last = self.first + size.steps * self.ticks
        self.counters = self.first.repeat(1, size.sentences)
        self.step, self.first_candidate, position = self.counters[:3]
        self.position, self.slots = position.unsqueeze(1), self.counters[3:].t()

    def advance(self) -> None:
        self.counters += self.ticks

    def stop(self) -> None:
        """Lets those stand still that have no slots left: of sentences that have ended."""
        torch.minimum(self.counters, self.last, out=self.counters)

    def restart(self) -> None:
        self.counters.copy_(self.first)


class StaticCacheLayer(BeamCacheLayer):
    """Keys and values of a decoder layer, (sentences, heads, slots, d_h), at `state.places` (sentences, new)."""

    def __init__(self, state: StaticTransformer):
        super().__init__()
        self.state = state
        self.buffers: tuple[Tensor, ...] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if self.buffers is None:
            slots = self.state.size.slots
            self.buffers = tuple(x.new_zeros(*x.shape[:2], slots, x.shape[3]) for x in (key_states, value_states))
        keys, values = self.buffers
        places = self.state.places[:, None, :, None]
        keys.scatter_(2, places.expand_as(key_states), key_states)
        values.scatter_(2, places.expand_as(value_states), value_states)
        return keys, values

    def get_seq_length(self) -> int:
        return 0


class StaticStateLayer(StaticCacheLayer):
    """A slot with a state for each beam, (sentences, beams, ...), in one place after `expand`."""

    states: Any = None
    place: Tensor | None = None

    def expand(self, width: int) -> None:
        self.store(self.states[:, -1:].expand(-1, width, *self.states.shape[2:]))

    def store(self, states: Tensor, into: Tensor | None = None) -> None:
        """Puts the states of all beams into their place."""
        (self.place,) = put(None if self.place is None else (self.place,), [states], into)
        self.states, self.of_beams = self.place, True

    def reorder(self, rows: Tensor) -> None:
        if self.states is self.place:
            put_rows(self.place, rows)
            return
        assert self.place is not None
        new, place = self.states.to(self.place.dtype).reshape(len(rows), -1), self.place.view(len(rows), -1)
        torch.index_select(new, 0, rows, out=place)
        self.states = self.place


class StaticConvolutionLayer(StaticStateLayer, BeamConvolutionCacheLayer):
    """`BeamConvolutionCacheLayer` in one place."""


class StaticRecurrentLayer(StaticStateLayer, BeamRecurrentCacheLayer):
    """`BeamRecurrentCacheLayer` in one place."""

    counts_positions = False

    def of_source(self, name: str, compute: Callable[[], Any]) -> Any:
        """Returns `compute()` of the prompt, (sentences, ..., source), kept in one place for all steps."""
        if not self.of_beams:
            self.kept_of_source[name] = put(self.kept_of_source.get(name), [compute()])
        return self.kept_of_source[name][0]


STATIC_LAYERS: dict[type, type[StaticCacheLayer]] = {
    DynamicLayer: StaticCacheLayer,
    ConvolutionCacheLayer: StaticConvolutionLayer,
    RecurrentCacheLayer: StaticRecurrentLayer,
}


class StaticSourceLayer(DynamicLayer):
    """The source's keys and values of one attention, (sentences, heads, source, d_h), in one place."""

    _layer_type = None
    keys: Any = None
    values: Any = None

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        self.is_initialized = True
        before = None if self.keys is None else (self.keys, self.values)
        self.keys, self.values = put(before, [key_states, value_states])
        return self.keys, self.values


def put(places: Any, tensors: list[Tensor], into: Tensor | None = None) -> tuple[Tensor, ...]:
    """Returns the tensors, copied into `places`, or their rows `into`, if there are some already."""
    if not places:
        return tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors)
    for place, tensor in zip(places, tensors, strict=True):
        if into is None:
            place.copy_(tensor)
        else:
            place.index_copy_(0, into, tensor.to(place.dtype))
    return tuple(places)


def put_rows(place: Any, rows: Tensor) -> None:
    """Lets beam i, counted through all sentences, go on from beam rows[i]: place (sentences, beams, ...)."""
    place.copy_(place.view(len(rows), -1).index_select(0, rows).view(place.shape))


class StaticTransformer:
    """The state of a `TransformerDecoder` of one size."""

    moves = False  # whether `reorder` follows every step, and puts the new states into their place

    def __init__(self, decoder: TransformerDecoder, size: Size, clock: Clock):
        self.size, self.clock = size, clock
        self.source: Any = None
        device, dtype = decoder.model.device, decoder.model.dtype
        self.hidden = torch.finfo(dtype).min
        self.steps_mask = torch.empty(size.sentences, 1, size.width, size.slots, dtype=dtype, device=device)
        self.history_mask = self.steps_mask
        self.prompt_places = torch.arange(size.prompt, device=device).repeat(size.sentences, 1)
        self.places = self.prompt_places
        target, source = DynamicCache(), DynamicCache()
        self.layers: list[Any] = [STATIC_LAYERS[kind](self) for kind in decoder.kinds]
        self.stateful: list[Any] = [layer for layer in self.layers if isinstance(layer, StaticStateLayer)]
        target.layers = self.layers
        source.layer_class_to_replicate = StaticSourceLayer
        self.cache = EncoderDecoderCache(target, source)
        decoder.mark_over_source(self.layers)

    def begin(self, decoder: TransformerDecoder, prompt: Tensor, source: SourceBatch) -> Tensor:
        """Reads the prompt (sentences, length): scores (sentences, 1, vocabulary). Then there are the beams."""
        self._take_source(decoder.read(source))
        for layer in self.stateful:
            layer.states, layer.of_beams = None, False
        self.cache.is_updated = {}
        self.places = self.prompt_places
        shape = self.size.prompt, self.size.slots
        mask = torch.full(shape, self.hidden, dtype=self.steps_mask.dtype, device=prompt.device).triu(1)
        self.history_mask = mask.expand(len(prompt), 1, -1, -1)
        scores = decoder.call_modules(prompt, self, logits_to_keep=1)  # type: ignore[arg-type]
        for layer in self.layers:
            layer.expand(self.size.width)
        self.history_mask, self.places = self.steps_mask, self.clock.slots
        self.steps_mask.fill_(self.hidden)[..., : self.size.prompt] = 0
        return scores

    def _take_source(self, source: SourceBatch, into: Tensor | None = None) -> None:
        real = source.real
        outputs = {name: value for name, value in source.outputs.items() if isinstance(value, Tensor)}
        mask: Any = additive_mask(real, self.steps_mask)
        if self.source is None:
            self.source = SourceBatch(type(source.outputs)(**outputs), real.clone())
            self.source_mask = mask
            return
        put(tuple(self.source.outputs.values()), list(outputs.values()), into)
        put((self.source.real, self.source_mask), [real, mask], into)

    def tensors(self) -> list[Tensor]:
        """Returns the large ones."""
        source: list[Any] = self.cache.cross_attention_cache.layers
        of_source = [tensor for layer in source for tensor in (layer.keys, layer.values)]
        of_target = [tensor for layer in self.layers for tensor in layer.buffers or ()]
        return [*of_target, *(layer.place for layer in self.stateful), *of_source, self.steps_mask]

    def reorder(self, rows: Tensor) -> None:
        """Lets the beams change places as `put_rows` does."""
        put_rows(self.steps_mask, rows)
        for layer in self.layers:
            layer.reorder(rows)

    def step(self, decoder: TransformerDecoder, tokens: Tensor) -> Tensor:
        """Reads one token of every beam (sentences, width): scores (sentences, width, vocabulary)."""
        own = self.clock.slots[:, None, :, None]
        self.steps_mask.scatter_(3, own, 0.0)  # every beam sees itself
        for layer in self.stateful:
            layer.states = layer.place  # a step that could not be captured has left others
        positions: Any = {decoder.positions: self.clock.position}
        scores = decoder.call_modules(tokens, self, **positions)  # type: ignore[arg-type]
        for layer in () if self.moves else self.stateful:
            layer.place.copy_(layer.states)
            layer.states = layer.place  # nothing of a graph's memory stays in use
        return scores

    def move_to(self, other: StaticTransformer, rows: Tensor, into: Tensor | None = None) -> None:
        """Puts these sentences, and what is known of them, into the state of another size, or its rows `into`."""
        slots, length = other.size.slots, other.size.source
        other._take_source(self.source.select(rows, length), into)
        other.history_mask, other.places = other.steps_mask, other.clock.slots
        mask = fitted(self.steps_mask - self.hidden, rows, slots, 3) + self.hidden  # zeros behind are hidden
        put((other.steps_mask,), [mask], into)
        for layer, to in zip(self.layers, other.layers, strict=True):
            if layer.buffers:
                to.buffers = put(to.buffers, [fitted(tensor, rows, slots, 2) for tensor in layer.buffers], into)
        for layer, to in zip(self.stateful, other.stateful, strict=True):
            states = fitted(layer.place, rows, length if getattr(layer, "over_source", False) else None, -1)
            to.store(states, into)
            for name, kept in getattr(layer, "kept_of_source", {}).items():
                # A mask has True behind a source.
                of_masks = [fitted(~x, rows, length, -1).logical_not() for x in kept if x.dtype == torch.bool]
                kept = of_masks or [fitted(tensor, rows, length, -1) for tensor in kept]
                to.kept_of_source[name] = put(to.kept_of_source.get(name), kept, into)
        sources: tuple[Any, ...] = self.cache.cross_attention_cache, other.cache.cross_attention_cache
        for index, done in self.cache.is_updated.items():
            known = sources[0].layers[index]
            keys, values = (fitted(tensor, rows, length, 2) for tensor in (known.keys, known.values))
            if into is None:
                sources[1].update(keys, values, index)
            else:
                put((sources[1].layers[index].keys, sources[1].layers[index].values), [keys, values], into)
            other.cache.is_updated[index] = done


class StaticLSTM:
    """The state of an `LSTMDecoder` of one size, with the methods of `StaticTransformer`."""

    def __init__(self, decoder: LSTMDecoder, size: Size, clock: Clock):
        self.size = size
        self.state: Any = None
        self.inner: Any = None

    def begin(self, decoder: LSTMDecoder, prompt: Tensor, source: SourceBatch) -> Tensor:
        decoder.inner = self.inner  # a graph reads these products where they were at first
        scores, state = decoder.begin(prompt, source)
        self.inner = decoder.inner
        self._put(state.expand(self.size.width))
        return scores

    def _put(self, state: Any, into: Tensor | None = None) -> None:
        mask = state.keys.new_zeros(len(state.keys), 1, 1, state.keys.shape[2]) if state.mask is None else state.mask
        self.state = type(state)(*put(self.state, [state.rows, state.keys, state.values, mask], into))

    def tensors(self) -> list[Tensor]:
        return list(self.state)

    def reorder(self, rows: Tensor) -> None:
        put_rows(self.state.rows, rows)

    def step(self, decoder: LSTMDecoder, tokens: Tensor) -> Tensor:
        scores, state = decoder.step(tokens, self.state)
        self.state.rows.copy_(state.rows)
        return scores

    def move_to(self, other: StaticLSTM, rows: Tensor, into: Tensor | None = None) -> None:
        state, length = self.state, other.size.source
        if other.inner is None:
            other.inner = self.inner
        keys, values = (fitted(x, rows, length, 2) for x in (state.keys, state.values))
        hidden = torch.finfo(state.mask.dtype).min
        mask = fitted(state.mask - hidden, rows, length, 3) + hidden  # zeros behind are hidden
        other._put(type(state)(fitted(state.rows, rows), keys, values, mask), into)


class LengthTable:
    """Neighbouring `Change`s: for each step a row that is added to the scores, or takes their place."""

    def __init__(self, changes: list[Change], steps: int, vocabulary: int, device: Any):
        self.changes = changes
        # Each of them begins or ends to act at two lengths at most.
        self.rows = torch.zeros(2 * len(changes) + 1, vocabulary, device=device)
        self.row_of = torch.zeros(steps, dtype=torch.long, device=device)
        self.forced = torch.zeros(steps, dtype=torch.bool, device=device)
        self.touched: Any = None  # of each row, the tiles of the vocabulary in which it changes something
        self.written: Any = None

    def limit(self, changes: list[Change], prompt: int) -> None:
        """Writes the rows of a search; `changes` are those given at first, but for the lengths."""
        lengths = range(prompt, prompt + len(self.row_of))  # of what a step goes on from
        states = [tuple(change.at(length) for change in changes) for length in lengths]
        if states == self.written:
            return
        self.written, numbers = states, {state: number for number, state in enumerate(dict.fromkeys(states))}
        self.rows.zero_()
        for state, number in numbers.items():
            row = self.rows[number]
            for change, acts in zip(changes, state, strict=True):
                if acts and change.forced:
                    row.fill_(-torch.inf)
                    row[change.tokens] = 0.0
                elif acts:
                    row[change.tokens] += torch.tensor(change.added, device=row.device)
        fill(self.row_of, [numbers[state] for state in states])
        acting = [[c.forced for c, acts in zip(changes, state) if acts] for state in states]
        fill(self.forced, [any(forced) for forced in acting])
        if self.touched is not None:
            missing = -self.rows.shape[1] % self.tile
            tiles = nn.functional.pad(self.rows, (0, missing)).unflatten(1, (-1, self.tile))
            torch.any(tiles, 2, out=self.touched)

    def mark_tiles(self, tile: int) -> None:
        """Lets kernels that read the vocabulary in such tiles read no row where it changes nothing."""
        self.tile, (rows, vocabulary) = tile, self.rows.shape
        self.touched = self.forced.new_zeros(rows, -(-vocabulary // tile))

    def __call__(self, scores: Tensor, step: Tensor) -> Tensor:
        row = self.rows.index_select(0, self.row_of.index_select(0, step)).unsqueeze(1)  # (sentences, 1, vocabulary)
        changed = scores + row
        if any(change.forced for change in self.changes):
            return torch.where(self.forced.index_select(0, step).view(-1, 1, 1), row, changed)
        return changed


class Stage:
    """A search while it has one size: its tensors, and the step that is repeated.

    A candidate's number is (step x width + its beam) x columns + its token; columns: the vocabulary in whole blocks.
    """

    def __init__(self, decoder: Any, choice: Any, size: Size, rules: Rules, config: Any, key: Any):
        self.choice, self.size, self.key, self.normalized = choice, size, key, decoder.normalized
        device, shape = decoder.model.device, (size.sentences, size.width)
        self.device, self.draws = device, issubclass(choice, Draws)
        self.num_beams = config.num_beams if config.num_beams > 1 else 0
        self.vocabulary = decoder.model.config.target_vocab_size
        self.count = rules.candidates(self.num_beams)
        assert rules.by_length is not None
        self.processors = [
            part if type(part) in OF_SCORES else LengthTable(part, size.steps + 1, self.vocabulary, device)
            for part in grouped(rules.by_length)
        ]
        self.table_of_changes: Any = None
        self.temperature = 1.0
        self.kernels = kernels_for(decoder.model, self.num_beams, self.count)
        if self.kernels is not None and not self.leave_processing(self.kernels.TILE):
            self.kernels = None
        self.head = padded_head(decoder.model) if self.kernels else None
        blocks = self.vocabulary // BLOCK * self.num_beams
        self.in_blocks = self.kernels is None and blocks >= 4 * self.count > 0
        self.columns = -(-self.vocabulary // BLOCK) * BLOCK if self.in_blocks else self.vocabulary
        self.span = size.width * self.columns
        self.clock = Clock(size, self.span, device)
        kind: Any = StaticLSTM if isinstance(decoder, LSTMDecoder) else StaticTransformer
        self.state = kind(decoder, size, self.clock)
        self.state.moves = bool(self.num_beams)
        long = {"dtype": torch.long, "device": device}
        self.tokens = torch.zeros(shape, **long)
        self.table = torch.zeros(size.steps + 1, *shape, **long)  # tokens, or with beams numbers without the steps
        self.found: Any = Chains(*shape, torch.zeros((), **long) + pad_token_of(config, device), device)
        if self.num_beams:
            self.found = hypotheses.Hypotheses(*shape, config.early_stopping is True, device)
        self.left = torch.zeros(1, **long)
        self.ends = torch.tensor([end for end in rules.ends if end < self.vocabulary], **long)
        self.padded = bool(rules.ends)
        self.is_end = torch.zeros(self.columns, dtype=torch.bool, device=device).index_fill_(0, self.ends, True)
        self.final = torch.zeros(1, **long)  # the step with which all ends
        self.rows = torch.arange(size.sentences, **long).view(-1, 1) * size.width  # the first of each sentence
        self.origins = torch.zeros(shape, **long)  # of each beam, as such a row
        self.block = torch.arange(BLOCK, **long)
        blank = (*shape, self.columns) if self.in_blocks else (0,)
        self.sums = torch.full(blank, -torch.inf, device=device)  # in whole blocks
        self.noise = torch.zeros(
            (*shape, self.vocabulary if choice.each_word else 1) if self.draws else 0, device=device
        )
        self.length_penalties = torch.zeros(size.steps + 1, 2, device=device)  # of finished and of open hypotheses
        self.written: Any = None
        self.prompt = torch.zeros(size.sentences, size.prompt, **long)
        self.is_real = torch.zeros(size.sentences, dtype=torch.bool, device=device)
        self.sources: tuple[Tensor, ...] = ()  # token ids and mask of the sources, where the stage encodes them
        self.graph: Any = None  # of a step
        self.opening: Any = None  # of the beginning, with the encoder; False: it cannot be captured
        self.decoder: Any = decoder  # for one search
        self.runs = self.real = self.nbytes = 0
        self.limited: Any = None
        self.arrivals: dict[Any, list[Any]] = {}

    def leave_processing(self, tile: int) -> bool:
        """Tells whether kernels can do what the processors do, changes and a temperature, and lets them if so."""
        rest: list[Any] = list(self.processors)
        if rest and isinstance(rest[0], LengthTable):
            self.table_of_changes = rest.pop(0)
            self.table_of_changes.mark_tiles(tile)
        if rest and self.choice is DrawsByRow and type(rest[0]) is TemperatureLogitsWarper:
            self.temperature = rest.pop(0).temperature
        return not rest and self.choice is not Draws

    def bytes(self) -> int:
        """Counts the large tensors; those of a step alone, which all graphs of a model share, do not count."""
        return sum(tensor.nbytes for tensor in [*self.state.tensors(), self.sums, self.noise])

    def limit(self, rules: Rules, config: Any) -> None:
        """Writes what depends on the length, for each step, into tables on the device."""
        assert rules.by_length is not None
        assert rules.max_length is not None
        if self.limited is not None and all(map(is_, self.limited, (rules, config))):
            return
        self.limited = rules, config
        self.final.fill_(rules.max_length - self.size.prompt - 1)
        lengths = range(1, len(self.length_penalties) + 1)  # behind the step, without the prompt
        numbers = [length_penalties(config, length, config.max_length - self.size.prompt) for length in lengths]
        if numbers != self.written:
            fill(self.length_penalties, numbers)
            self.written = numbers
        for table, part in zip(self.processors, grouped(rules.by_length), strict=True):
            if isinstance(table, LengthTable):
                table.limit(part, self.size.prompt)

    def begin(self, prompt: Tensor, source: SourceBatch | SourceTokens, real: int) -> None:
        """Begins with a batch (sentences, prompt), of which the first `real` are real, and chooses the first tokens."""
        self.prompt.copy_(prompt)
        if real != self.real:
            self.is_real.fill_(False)[:real] = True
            self.real = real
        if isinstance(source, SourceBatch):
            self.begin_from(source)
            return
        self.sources = put(self.sources, list(source))
        if self.opening:
            self.opening.replay()
        else:
            self.open()

    def open(self) -> None:
        """Encodes the sources, and begins."""
        ids, mask = self.sources
        outputs = self.decoder.model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
        self.begin_from(SourceBatch(outputs, mask.bool()))

    def begin_from(self, source: SourceBatch) -> None:
        """Begins with sources that are encoded."""
        scores = self.scores_of(self.state.begin, self.prompt, source)
        self.found.begin(self.size.sentences)
        self.found.open &= self.is_real
        if not self.num_beams:
            self.found.going &= self.is_real.unsqueeze(1)
        self.clock.restart()
        self.choose(scores)

    def move_to(self, other: Stage, rows: Tensor, real: int, into: Tensor | None = None) -> None:
        """Hands these sentences, of which the first `real` are real, over to a stage of another size.

        into: the rows that they take there; all of them are real then. None: all that there are.
        """
        self.state.move_to(other.state, rows, into)  # type: ignore[arg-type]
        self.found.move_to(other.found, rows, real, into)
        put((other.tokens,), [self.tokens[rows]], into)
        put((other.clock.counters.t(),), [self.clock.counters.t()[rows]], into)
        steps = min(len(self.table), len(other.table))
        put((other.table[:steps].transpose(0, 1),), [self.table[:steps, rows].transpose(0, 1)], into)

    def step(self) -> None:
        """Reads the last tokens and chooses the next ones."""
        self.clock.stop()
        self.choose(self.scores_of(self.state.step, self.tokens))

    def scores_of(self, call: Callable, *given: Any) -> Tensor:
        """Returns scores (sentences, 1 or width, vocabulary), for kernels as the model makes them."""
        self.decoder.widened = self.kernels is None
        head = self.decoder.model.lm_head
        with nullcontext() if self.head is None else matmul_backends.with_padded(head.weight, self.head):
            return call(self.decoder, *given)

    def choose(self, scores: Tensor) -> None:
        """Chooses the next tokens by their scores (sentences, 1 or width, vocabulary)."""
        if self.kernels is not None:
            (self.kernels.choose_beams if self.num_beams else self.kernels.choose_tokens)(self, scores)
        else:
            scores = scores.expand(-1, self.size.width, -1)
            (self.choose_beams if self.num_beams else self.choose_tokens)(scores)
        if self.num_beams:
            self.state.reorder(self.origins.view(-1))
        torch.sum(self.found.open, 0, keepdim=True, out=self.left)
        self.clock.advance()

    def process(self, scores: Tensor) -> Tensor:
        for processor in self.processors:
            if isinstance(processor, LengthTable):
                scores = processor(scores, self.clock.step)
            else:
                scores = processor(None, scores.flatten(0, 1)).view(scores.shape)
        return scores

    def are_last(self, tokens: Tensor) -> Tensor:
        """Tells which tokens (sentences, any) end their hypothesis."""
        return self.is_end[tokens] | (self.clock.step >= self.final).unsqueeze(1)

    def candidates(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns sums and numbers without the step (sentences, candidates), as choices.best_continuations does."""
        running = self.found.running.unsqueeze(-1)
        if not self.in_blocks:
            sums, numbers = (log_probs + running).flatten(1).topk(self.count)
            return sums, numbers
        torch.add(log_probs, running, out=self.sums[..., : self.vocabulary])
        blocks = self.sums.view(len(self.sums), -1, BLOCK).amax(-1).topk(self.count, sorted=False).indices
        places = torch.add(self.block, blocks.unsqueeze(-1), alpha=BLOCK).flatten(1)
        sums, chosen = self.sums.flatten(1).gather(1, places).topk(self.count)
        return sums, places.gather(1, chosen)

    def choose_beams(self, scores: Tensor) -> None:
        """Computes `BeamSearch.step`."""
        log_probs = scores if self.normalized else torch.log_softmax(scores, -1)
        sums, numbers = self.candidates(self.process(log_probs))
        last, beams = self.are_last(numbers % self.columns), self.num_beams
        penalty, hope = self.length_penalties.index_select(0, self.clock.step).unbind(1)
        newest = numbers[:, :beams] + self.clock.first_candidate.unsqueeze(1)
        self.found.finish(sums[:, :beams], newest, last[:, :beams], penalty.unsqueeze(1))
        chosen = numbers.gather(1, self.found.go_on(sums, last))
        self.found.close(self.found.running[:, 0], hope)
        self.write(chosen)
        torch.remainder(chosen, self.columns, out=self.tokens)
        torch.add(self.rows, chosen // self.columns, out=self.origins)

    def choose_tokens(self, scores: Tensor) -> None:
        """Computes `Greedy.step`, or that of `Draws`."""
        scores = self.process(scores)
        tokens = self.choice.pick(scores, self.noise) if self.draws else scores.argmax(-1)
        tokens = self.found.padded(tokens) if self.padded else tokens
        self.tokens.copy_(tokens)
        self.write(tokens)
        self.found.close(self.are_last(tokens))

    def write(self, chosen: Tensor) -> None:
        """Writes what was chosen (sentences, width) into the table, at the step of each sentence."""
        self.table.scatter_(0, self.clock.step.view(1, -1, 1).expand(1, *chosen.shape), chosen.unsqueeze(0))

    def run(self) -> None:
        """Takes a step: the first one as it is, later ones by the graph, which is captured at the second.

        The first also warms up what a capture must not: libraries' plans and workspaces.
        """
        if self.runs == 1 and has_graphs(self.tokens):
            self.graph = self.capture(self.step)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.step()
        self.runs += 1

    def capture(self, function: Callable[[], None]) -> Any:
        """Records what a method does as a CUDA graph, or returns None where CUDA cannot: it is called again then.

        All graphs of a model and stream have their memory in common: none leaves anything there for another.
        """
        graph, stream = torch.cuda.CUDAGraph(), self.key[-1]
        cached = torch.is_autocast_cache_enabled()
        with _CAPTURING:
            try:
                with _KEEPING:
                    kept = list(_STAGES.get(self.decoder.model, {}).values())
                same = [stage for stage in (self, *kept) if stage.key[-1] == stream]
                others = [graph for stage in same for graph in (stage.graph, stage.opening) if graph]
                torch.set_autocast_cache_enabled(False)  # a weight that is cast once for several calls would be gone
                capture_stream = _CAPTURE_STREAMS.setdefault((self.device, stream), torch.cuda.Stream())
                options: dict[str, Any] = {"stream": capture_stream, "capture_error_mode": "thread_local"}
                with torch.cuda.graph(graph, pool=others[0].pool() if others else None, **options):
                    function()
            except RuntimeError as error:
                name = function.__name__
                logger.warning("generate(): %s cannot be captured as a graph, which costs time: %s", name, error)
                return None
            finally:
                torch.set_autocast_cache_enabled(cached)
        return graph

    def how_many_are_left(self) -> Callable[[], int]:
        """Returns a function that waits for the number of open sentences behind this step, to be called later."""
        wait = self.later(self.left)
        return lambda: wait()[0]

    def later(self, values: Tensor) -> Callable[[], list]:
        """Returns a function that waits for these values as they are behind this step, to be called later."""
        if not values.is_cuda:
            return values.clone().tolist
        arrivals = self.arrivals.setdefault(values.dtype, [])
        if len(arrivals) <= LATE:  # as many as are under way at once
            arrivals.append((torch.empty(values.shape, dtype=values.dtype, pin_memory=True), torch.cuda.Event()))
        else:
            arrivals.append(arrivals.pop(0))
        copy, arrived = arrivals[-1]
        copy.copy_(values, non_blocking=True)
        arrived.record()

        def wait() -> list:
            arrived.synchronize()
            return copy.tolist()

        return wait


def kernels_for(model: Any, beams: int, count: int) -> Any:
    """Returns kernels.py, if it can choose `count` candidates of so many beams (0: tokens) by this model's logits.

    None where it cannot, and its reference is computed: `Stage.choose_beams`, `Stage.choose_tokens`.
    """
    if model.device.type != "cuda":
        return None
    from hf_mlnmt.search.gpu import kernels

    return kernels if kernels.knows(model, beams, count) else None


def padded_head(model: Any) -> Tensor | None:
    """Returns the output projection's weight with rows of zeros up to a multiple of 64, a copy for each state of the
    model; None where its own will do."""
    weight = getattr(model.lm_head, "weight", None)
    if type(weight) is not torch.nn.Parameter or len(weight) % 8 == 0:
        return None
    state = known(model, again=False).state(model)
    if _PADDED.get(model, (None,))[0] != state:
        _PADDED[model] = state, torch.nn.functional.pad(weight.detach(), (0, 0, 0, -len(weight) % 64))
    return _PADDED[model][1]


def has_graphs(tensor: Tensor) -> bool:
    """Tells whether the tensor's device repeats what was recorded."""
    return tensor.is_cuda


def fill(place: Tensor, values: list) -> None:
    place.copy_(torch.tensor(values, dtype=place.dtype))


def grouped(parts: list[Any]) -> list[Any]:
    """Groups neighbouring `Change`s into lists; everything else stays as it is."""
    groups: list[Any] = []
    for part in parts:
        if not isinstance(part, Change):
            groups.append(part)
        elif groups and isinstance(groups[-1], list):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


# A stage holds no model, or neither would ever be freed.
_STAGES: WeakKeyDictionary[Any, OrderedDict[Any, Stage]] = WeakKeyDictionary()
_PADDED: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_KEEPING, _CAPTURING = Lock(), Lock()
_CAPTURE_STREAMS: dict[Any, Any] = {}  # one for each stream: graphs that run at the same time share no workspace


def stage_of(decoder: Any, choice: Any, size: Size, rules: Rules, config: Any, asked: Any) -> Stage:
    """Returns a stage of this size, for this search alone: one that was kept with the model, or a new one.

    asked: what `asked_of` returns.
    """
    with _KEEPING:
        stage = _STAGES.setdefault(decoder.model, OrderedDict()).pop((size, *asked), None)
    stage = stage or Stage(decoder, choice, size, rules, config, (size, *asked))
    stage.decoder = decoder
    stage.limit(rules, config)
    return stage


def asked_of(decoder: Any, choice: Any, rules: Rules, config: Any) -> tuple[str, int, int]:
    """Returns what stages have in common that one search can use: what is computed, the model's state, the stream."""
    assert rules.by_length is not None
    pad = None if config._pad_token_tensor is None else config._pad_token_tensor.tolist()
    more = {name: value for name, value in getattr(decoder, "arguments", {}).items() if not callable(value)}
    changes = [p[:3] if isinstance(p, Change) else (type(p).__name__, vars(p)) for p in rules.by_length]
    asked = choice, config.num_beams, config.early_stopping is True, rules.ends, changes, pad, more
    device = decoder.model.device
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return repr(asked), known(decoder.model, again=False).state(decoder.model), stream


def keep_stage(stage: Stage) -> None:
    """Keeps it for the next search of its size; the oldest ones of the model go where memory is scarce.

    The first time its beginning is captured, which is warm now: nothing of a later search is done for the first time.
    """
    if stage.sources and stage.opening is None and has_graphs(stage.tokens):
        stage.opening = stage.capture(stage.open) or False
    model, stage.decoder = stage.decoder.model, None
    with _KEEPING:
        kept = _STAGES.setdefault(model, OrderedDict())
        kept[stage.key] = stage
        if stage.nbytes:
            return
        stage.nbytes = stage.bytes()
        free, total = free_bytes(stage.device), sum(other.nbytes for other in kept.values())
        while kept and total > KEPT_SHARE * (free + total):
            less = kept.popitem(last=False)[1].nbytes
            free, total = free + less, total - less


def free_bytes(device: torch.device) -> float:
    """Returns how much memory of a card nobody uses, or of another device a guess."""
    if device.type != "cuda":
        return 2**32
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


class Generator:
    """The random numbers of a search, which are those of choices.Draws: for all sentences, also ended ones.

    Python is some steps ahead of the end, so the generator goes back to where it was behind the last step that counts.
    """

    def __init__(self, sentences: int, device: torch.device):
        self.sentences = sentences
        cuda = device.type == "cuda"
        self.generator = torch.cuda.default_generators[device.index] if cuda else torch.default_generator
        self.states: list[Tensor] = []

    def draw(self, stage: Stage, ids: Tensor) -> None:
        """Draws those of the sentences `ids` into the stage."""
        noise = stage.choice.noise(self.sentences * stage.size.width, stage.vocabulary, stage.device)
        torch.index_select(noise.view(self.sentences, *stage.noise.shape[1:]), 0, ids, out=stage.noise)
        self.states.append(self.generator.get_state())

    def rewind(self, steps: int) -> None:
        """Sets the generator to where it is after so many steps."""
        self.generator.set_state(self.states[steps - 1])


def search(
    decoder: Any, choice: Any, source: SourceBatch | SourceTokens, prompt: Tensor, rules: Rules, config: Any
) -> Any:
    """Searches as loop.search does, and returns what generate() returns.

    Args:
        decoder, choice: those that `why_not` lets pass. source: of every sentence, encoded or not (`can_encode`).
        prompt: (sentences, length).
        config: the generation config as generate() prepares it.
    """
    width = config.num_beams if config.num_beams > 1 else config.num_return_sequences
    record = Record(prompt, width, config)
    draws = Generator(len(prompt), prompt.device) if issubclass(choice, Draws) else None
    # Streams, events and graphs are those of the model's card, whichever is the current one.
    with torch.inference_mode(), torch.cuda.device(prompt.device) if prompt.is_cuda else nullcontext():
        lefts = _run(decoder, choice, source, prompt, width, rules, config, record, draws)
    if config.num_beams > 1:
        return record.beams()
    total = next((number for number, left in enumerate(lefts, start=1) if not left), len(lefts))
    if draws is not None:
        draws.rewind(total)
    del record.steps[total:]
    return record.chains()


def _run(
    decoder: Any,
    choice: Any,
    source: SourceBatch | SourceTokens,
    prompt: Tensor,
    width: int,
    rules: Rules,
    config: Any,
    record: Record,
    draws: Generator | None,
) -> list[int]:
    """Runs all steps, which go to the record, and returns how many sentences were open behind each."""
    assert rules.max_length is not None
    real, longest = len(prompt), rules.max_length - prompt.shape[1]
    length = _source_length(decoder, source)
    steps = min(rounded(longest), first_steps(length))
    asked, ids = asked_of(decoder, choice, rules, config), torch.arange(real, device=prompt.device)
    size = Size(rounded(real), width, length, prompt.shape[1], steps)
    stage = stage_of(decoder, choice, size, rules, config, asked)
    filled = _filled(ids, size.sentences)  # the sentence in each row of the stage; those behind `real` are copies
    names = _names_of_source(decoder)
    lefts: list[int] = []
    arriving: deque[Callable[[], int]] = deque()
    first, done = 0, 0
    while True:
        if draws is not None:
            draws.draw(stage, filled)
        if done:
            stage.run()
        else:
            stage.begin(prompt.index_select(0, filled), source.select(filled, size.source, names), real)
        done += 1
        arriving.append(stage.how_many_are_left())
        while len(arriving) > (0 if done == longest else LATE):
            lefts.append(arriving.popleft()())
        left = lefts[-1] if lefts else real
        full = done > stage.size.steps
        if done == longest or not left:
            break
        fewer = fewer_sentences(stage.size, left)
        if full or fewer < stage.size.sentences:
            lefts += [wait() for wait in arriving]
            arriving.clear()
            rows = stage.found.open.nonzero()[:, 0]
            if not len(rows):
                break
            _write(record, stage, ids, first, done)
            ids, real, first = ids[rows], len(rows), done
            steps = min(rounded(longest), 2 * stage.size.steps) if full else stage.size.steps
            size = stage.size._replace(sentences=rounded(real) if full else fewer, steps=steps)
            filled = _filled(ids, size.sentences)
            before, stage = stage, stage_of(decoder, choice, size, rules, config, asked)
            before.move_to(stage, _filled(rows, size.sentences), real)
            keep_stage(before)
    _write(record, stage, ids, first, done)
    keep_stage(stage)
    return lefts + [wait() for wait in arriving]


class Running:
    """A greedy or beam search that sentences join (rules.Joining): rows are those of sentences of different ages."""

    def __init__(self, decoder: Any, choice: Any, rules: Rules, config: Any, start: int, joining: Joining):
        """Takes those that `why_not` lets pass; start: the token that every sentence begins with."""
        self.decoder, self.choice, self.rules, self.config = decoder, choice, rules, config
        self.start, self.joining, self.width = start, joining, config.num_beams
        self.device, self.asked = decoder.model.device, asked_of(decoder, choice, rules, config)
        self.stage: Any = None
        self.rows: dict[int, tuple[int, int]] = {}  # of a row the sentence's number, and the step at which it came
        self.arriving: deque[tuple[int, Callable[[], list]]] = deque()  # steps, and which rows were open behind them
        self.steps = self.count = 0  # sentences that have come

    def search(self, sentences: SourceTokens) -> Tensor:
        """Searches until nobody comes any more; the joining is told what is found, and nothing returned."""
        self.joining.taken = True
        with torch.inference_mode(), torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            try:
                self.enter(sentences)
                while self.rows:
                    self.joining.check()
                    self.arriving.append((self.steps, self.stage.later(self.stage.found.open)))
                    self.read(LATE)
                    self.take_newcomers()
                    if self.rows:
                        self.stage.run()
                        self.steps += 1
            finally:
                if self.stage is not None:
                    keep_stage(self.stage)
        return sentences.ids[:0]

    def age(self, row: int) -> int:
        """Returns how many tokens have been chosen in a row."""
        return 1 + self.steps - self.rows[row][1]

    def begun(self, sentences: SourceTokens) -> Stage:
        """Returns a stage that has begun with new sentences."""
        source: Any = sentences
        if not can_encode(self.decoder):
            encoder = self.decoder.model.get_encoder()
            outputs = encoder(input_ids=sentences.ids, attention_mask=sentences.real, return_dict=True)
            source = SourceBatch(outputs, sentences.real.bool())
        real, length = len(sentences.ids), _source_length(self.decoder, source)
        size = Size(rounded(real), self.width, length, 1, min(rounded(self.longest), first_steps(length)))
        stage = stage_of(self.decoder, self.choice, size, self.rules, self.config, self.asked)
        filled = _filled(torch.arange(real, device=self.device), size.sentences)
        prompt = sentences.ids.new_full((size.sentences, 1), self.start)
        stage.begin(prompt, source.select(filled, length, _names_of_source(self.decoder)), real)
        return stage

    @property
    def longest(self) -> int:
        assert self.rules.max_length is not None
        return self.rules.max_length - 1

    def enter(self, sentences: SourceTokens) -> None:
        """Lets new sentences begin, and takes them into free rows, of a larger size if need be."""
        fresh, new = self.begun(sentences), len(sentences.ids)
        if self.rows:
            size = self.stage.size
            if (needed := len(self.rows) + new) > size.sentences or fresh.size.source > size.source:
                self.move(sentences=max(size.sentences, rounded(needed)), source=max(size.source, fresh.size.source))
        if self.rows:
            free = [row for row in range(self.stage.size.sentences) if row not in self.rows][:new]
            rows = torch.arange(new, device=self.device)
            fresh.move_to(self.stage, rows, new, torch.tensor(free, device=self.device))
            keep_stage(fresh)
        else:  # nobody is left, as may be seen only now
            if self.stage is not None:
                keep_stage(self.stage)
            self.stage, free = fresh, [*range(new)]
        self.rows |= {row: (self.count + number, self.steps) for number, row in enumerate(free)}
        self.count += new

    def take_newcomers(self) -> None:
        """Lets those join who wait; else the others may go on in a smaller size. Slots that are used up become more."""
        came, sentences = self.ask(), self.stage.size.sentences
        if not came and self.rows and (fewer := fewer_sentences(self.stage.size, len(self.rows))) < sentences:
            self.move(sentences=fewer)
        if self.rows and max(map(self.age, self.rows)) > self.stage.size.steps:
            self.move(steps=min(rounded(self.longest), 2 * self.stage.size.steps))
        if not self.rows:  # the last ones had ended, as was seen when they were to be moved
            self.ask()

    def ask(self) -> bool:
        """Lets newcomers enter where there is room; returns whether any do."""
        free = self.joining.room - len(self.rows)
        new = self.joining.newcomers(free) if free * JOINED >= self.joining.room else None
        if new is not None:
            self.enter(SourceTokens(*new))
        return new is not None

    def move(self, **sizes: int) -> None:
        """Goes on in a stage of another size."""
        self.read(0)
        if not self.rows:
            return
        before, rows = self.stage, list(self.rows)
        size = before.size._replace(**sizes)
        self.stage = stage_of(self.decoder, self.choice, size, self.rules, self.config, self.asked)
        before.move_to(self.stage, _filled(torch.tensor(rows, device=self.device), size.sentences), len(rows))
        self.rows = {place: self.rows[row] for place, row in enumerate(rows)}
        keep_stage(before)

    def read(self, under_way: int) -> None:
        """Reads which rows were open some steps ago, and tells what was found in those that were not."""
        while len(self.arriving) > under_way:
            step, wait = self.arriving.popleft()
            open_, here = wait(), [(row, step - came) for row, (_, came) in self.rows.items()]
            if ended := [row for row, age in here if age >= self.longest or (age > 0 and not open_[row])]:
                self.tell(ended)

    def tell(self, ended: list[int]) -> None:
        """Tells what was found in rows that have ended: three values are read, and they are free."""
        stage, rows = self.stage, torch.tensor(ended, device=self.device)
        ages, ids = torch.tensor([self.age(row) for row in ended]), torch.arange(len(ended))
        table = stage.table[: min(self.longest, int(ages.max())), rows].cpu()
        stale = torch.arange(len(table)).unsqueeze(1) >= ages  # of others that were there before
        table.masked_fill_(stale.unsqueeze(2), int(pad_token_of(self.config, table.device)))
        record = Record(table.new_full((len(ended), 1), self.start), self.width, self.config)
        record.steps = [(ids, *each) for each in zip(table % stage.columns, table // stage.columns)]
        if stage.num_beams:
            record.write(ids, stage.found.best[rows].cpu(), stage.found.last[rows].cpu(), stage.columns)
        output: Any = record.beams() if stage.num_beams else record.chains()
        self.joining.ended([self.rows.pop(row)[0] for row in ended], getattr(output, "sequences", output))


def _names_of_source(decoder: Any) -> set[str] | None:
    """Returns what has the source's positions, of what an RNN's encoder hands on; None: all."""
    return {"last_hidden_state", "memory"} if isinstance(decoder, LSTMDecoder) else None


def _filled(rows: Tensor, count: int) -> Tensor:
    """Returns `count` rows: these, and copies of the first."""
    return torch.cat([rows, rows[:1].expand(count - len(rows))])


def _source_length(decoder: Any, source: SourceBatch | SourceTokens) -> int:
    """Returns a length for the sources that other batches have too, where what is padded has a mask.

    What a family that nobody knows hands on has a length of its own; of a bridge all of M is read, without a mask.
    """
    length = source.real.shape[1]
    if isinstance(source, SourceTokens):
        return min(_doubled(length), max(length, decoder.model.config.max_position_embeddings))
    transformer = isinstance(decoder, TransformerDecoder)
    in_blocks = decoder.family is not None if transformer else "features" in source.outputs
    return _doubled(length) if in_blocks else length


def _doubled(length: int) -> int:
    """Returns the next of 16, 32, 64 ...: few lengths, as positions of a source cost a step little."""
    return max(SHORTEST, 1 << (length - 1).bit_length())


def can_encode(decoder: Any) -> bool:
    """Tells whether a stage can encode the sources: by a family's own encoder, which hands on states of a mask's
    length, and without what Python does at a call."""
    if not isinstance(decoder, TransformerDecoder) or decoder.family is None:
        return False
    if isinstance(decoder.model, BridgeForConditionalGeneration):
        return False
    parts = known(decoder.model, again=False)
    return not (parts.is_replaced or parts.is_hooked(decoder.model))


def _write(record: Record, stage: Stage, ids: Tensor, first: int, end: int) -> None:
    """Writes the steps `first` to `end` of a stage, and its finished hypotheses, down for the sentences `ids`."""
    table, columns, here = stage.table[first:end, : len(ids)], stage.columns, len(ids)
    record.steps += [(ids, tokens, parents) for tokens, parents in zip(table % columns, table // columns)]
    if stage.num_beams:
        record.write(ids, stage.found.best[:here], stage.found.last[:here], columns)
