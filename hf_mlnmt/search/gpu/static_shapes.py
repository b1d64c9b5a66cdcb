"""Search by steps of static shapes, for devices that run asynchronously (GPUs).

There a step's time is not that of its arithmetic, but of the hundreds of calls that Python makes for it, and of every
value that Python waits for to decide what comes next. So a step is built once and then repeated:

- its tensors have one of a few sizes (`Size`) and fixed addresses: caches, masks, sums, finished hypotheses;
- it reads no value: the number of open sentences is written on the device, and Python reads an asynchronous copy of it
  a few steps later. A step too many changes nothing, since ended hypotheses stay as they are;
- on CUDA it is captured as a graph, one launch for each later step, kept with the model for the next batch of its size;
- there Triton's kernels choose the beams, and read the logits once (kernels.py, `kernels_for`);
- the batch continues in a smaller size only where a quarter of many sentences is left, and in a larger one where the
  slots for the target are used up.

Candidates, scores, draws and stopping rules are those of loop.py and strategies.py, hypotheses and results the same
objects; loop.py searches where `why_not` names a reason (other search strategies, processors that look at the tokens
before, recurrent and fused models, a bridge). The beams of a sentence are neighbouring positions of one sequence
(cache.py); all slots are allocated at the beginning, and a mask hides those that are not filled.

A step reads the last tokens and chooses the next ones. The beginning, with encoder, prompt and first tokens, is a graph
of its own, so the search begins from token ids and prepared options (prepare.py). Random numbers are drawn before a
step into a tensor of fixed address: no graph holds a generator.
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
from torch import Tensor
from transformers.utils import logging

from hf_mlnmt.common import matmul_backends
from hf_mlnmt.modeling.bridge import BridgeForConditionalGeneration
from hf_mlnmt.modeling.linear import is_asynchronous
from hf_mlnmt.modeling.rnn_layers import additive_mask
from hf_mlnmt.search import hypotheses
from hf_mlnmt.search.cache import BeamCache, BeamStateLayer, Fixed, FixedSourceCacheLayer, put, put_rows
from hf_mlnmt.search.decoder import SourceBatch, SourceTokens, fitted
from hf_mlnmt.search.hypotheses import Chains, Record, length_penalties, pad_token_of
from hf_mlnmt.search.known import known
from hf_mlnmt.search.rules import OF_SCORES, Change, Rules
from hf_mlnmt.search.strategies import BeamSearch, Draws, DrawsByRow, Greedy, SearchStrategy
from hf_mlnmt.search.transformer import TransformerDecoder

logger = logging.get_logger(__name__)

KNOWN = (Greedy, Draws, DrawsByRow, BeamSearch)  # the search strategies that this file computes
LATE = 2  # Python reads the number of open sentences so many steps later
FEWEST_STEPS = 32  # fewest target steps of a size
SHORTEST = 16  # fewest source positions of a size; shorter sources are padded
FEW_ROWS = 160  # up to so many sentences x beams a step takes about the same time
SMALLER = 4  # by this a size's number of sentences is divided for a smaller size
KEPT_SHARE = 0.25  # most memory that a model's kept stages may take, as a share of the memory free without them


class Size(NamedTuple):
    """The shape of a search's tensors: sentences, beams, source positions, and steps after the start token."""

    sentences: int
    width: int
    source: int
    steps: int

    @property
    def slots(self) -> int:
        """Returns the number of slots in the target's cache."""
        return 1 + self.steps * self.width


def size_for(count: int) -> int:
    """Returns the smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24 ... that is at least `count`: at most a third is padding."""
    size = 1
    while size < count:
        size = size * 3 // 2 if size & (size - 1) == 0 and size > 1 else size * 4 // 3 if size > 1 else 2
    return size


def first_steps(source: int) -> int:
    """Returns the number of target steps to allocate slots for at first, by the number of source positions."""
    return max(FEWEST_STEPS, size_for(source + source // 2))


def fewer_sentences(size: Size, left: int) -> int:
    """Returns the number of sentences for the next size when `left` are open: that of this size, divided by 4 as long
    as the open ones fit and a step becomes faster."""
    count = size.sentences
    while count % SMALLER == 0 and count // SMALLER >= left and count * size.width > SMALLER * FEW_ROWS:
        count //= SMALLER
    return count


def why_not(decoder: Any, strategy: type[SearchStrategy], rules: Rules, prompt: Tensor) -> str | None:
    """Names a reason why steps of static shapes cannot search (device, strategy, model or option), or returns None."""
    if not is_asynchronous(prompt):
        return "the device is a CPU"
    if strategy not in KNOWN:
        return f"the search strategy {strategy.__name__}"
    if type(decoder) is not TransformerDecoder:
        return f"the decoder {type(decoder).__name__}"
    if decoder.family is None or isinstance(decoder.model, BridgeForConditionalGeneration):
        return "an encoder whose states have another length than its source"
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
    if issubclass(strategy, Draws) and device.type not in ("cpu", "cuda"):
        return f"draws on {device.type}"
    seen = known(decoder.model, again=False)
    if len({weight.device for weight in seen.weights}) > 1:
        return "weights on several devices"
    return "hooks, or a forward of its own" if seen.is_replaced or seen.is_hooked(decoder.model) else None


class Clock:
    """The counters of a search, views of one tensor on the device, so that one operation advances all.

    step (1,): the number of the step; first_candidate (1,): step x span; position (1, 1): of the tokens that the step
    reads; slots (width,): the cache slots that it fills.
    """

    def __init__(self, size: Size, span: int, device: torch.device):
        width = size.width
        self.first = torch.tensor([0, 0, 0, *range(1 - width, 1)], device=device)  # counters at the start token
        self.ticks = torch.tensor([1, span, 1, *[width] * width], device=device)
        self.counters = self.first.clone()
        self.step, self.first_candidate, position, self.slots = self.counters.split([1, 1, 1, width])
        self.position = position.unsqueeze(1)

    def advance(self) -> None:
        self.counters += self.ticks

    def restart(self) -> None:
        self.counters.copy_(self.first)


def put_all(places: Any, tensors: list[Tensor]) -> list[Tensor]:
    """Copies the tensors into the tensors `places`, or for None into new memory; returns the copies."""
    return [put(place, tensor) for place, tensor in zip(places or [None] * len(tensors), tensors, strict=True)]


class StaticTransformer:
    """The state of a `TransformerDecoder` in tensors of one `Size`."""

    moves = False  # True: `reorder` follows every step, and copies the layers' states into fixed memory

    def __init__(self, decoder: TransformerDecoder, size: Size, clock: Clock):
        self.size, self.clock = size, clock
        self.source: Any = None
        self.source_mask: Any = None
        device, dtype = decoder.model.device, decoder.model.dtype
        self.hidden = torch.finfo(dtype).min
        self.steps_mask = torch.empty(size.sentences, 1, size.width, size.slots, dtype=dtype, device=device)
        self.history_mask = self.steps_mask
        self.places = [clock.slots]  # the slots that are filled next
        self.cache = BeamCache(decoder.kinds, lambda: Fixed(size.slots, self.places), FixedSourceCacheLayer)
        self.layers: list[Any] = self.cache.target_layers
        self.stateful: list[Any] = [layer for layer in self.layers if isinstance(layer, BeamStateLayer)]
        decoder.mark_over_source(self.layers)

    def begin(self, decoder: TransformerDecoder, prompt: Tensor, source: SourceBatch) -> Tensor:
        """Reads the prompt (sentences, 1) and expands to beams; returns scores (sentences, 1, vocabulary)."""
        self._take_source(decoder.read(source))
        for layer in self.stateful:
            layer.states, layer.of_beams = None, False
        self.cache.is_updated = {}
        self.places[0] = torch.zeros(1, dtype=torch.long, device=prompt.device)
        self.steps_mask.fill_(self.hidden)[..., 0] = 0
        self.history_mask = self.steps_mask[:, :, :1]
        scores = decoder.call_modules(prompt, self, logits_to_keep=1)  # type: ignore[arg-type]
        for layer in self.layers:
            layer.expand(self.size.width)
        self.history_mask, self.places[0] = self.steps_mask, self.clock.slots
        return scores

    def _take_source(self, source: SourceBatch) -> None:
        outputs = {name: value for name, value in source.outputs.items() if isinstance(value, Tensor)}
        before = None if self.source is None else [*self.source.outputs.values(), self.source.real, self.source_mask]
        mask: Any = additive_mask(source.real, self.steps_mask)
        *tensors, real, self.source_mask = put_all(before, [*outputs.values(), source.real, mask])
        self.source = SourceBatch(type(source.outputs)(**dict(zip(outputs, tensors))), real)

    def tensors(self) -> list[Tensor]:
        """Returns the large tensors: caches, states of beams, and the mask of steps."""
        of_source = [tensor for layer in self.cache.source_layers for tensor in (layer.keys, layer.values)]
        of_target = [tensor for layer in self.layers for tensor in layer.storage.buffers]
        return [*of_target, *(layer.place for layer in self.stateful), *of_source, self.steps_mask]

    def reorder(self, rows: Tensor) -> None:
        """Reorders masks and states: row i, counted over all beams, becomes the old row rows[i]."""
        put_rows(self.steps_mask, rows)
        for layer in self.layers:
            layer.reorder(rows)

    def step(self, decoder: TransformerDecoder, tokens: Tensor) -> Tensor:
        """Reads one token of every beam (sentences, width); returns scores (sentences, width, vocabulary)."""
        own = self.clock.slots.view(1, 1, -1, 1).expand(*self.steps_mask.shape[:3], 1)
        self.steps_mask.scatter_(3, own, 0.0)  # every beam sees itself
        for layer in self.stateful:
            layer.states = layer.place  # after a failed capture `states` may be another tensor
        positions: Any = {decoder.positions: self.clock.position}
        scores = decoder.call_modules(tokens, self, **positions)  # type: ignore[arg-type]
        for layer in () if self.moves else self.stateful:
            layer.keep()  # copy states: other graphs overwrite this graph's memory
        return scores

    def move_to(self, other: StaticTransformer, rows: Tensor) -> None:
        """Copies the given sentences (indices) with sources, caches and masks into the state of another size."""
        slots, length = other.size.slots, other.size.source
        other._take_source(self.source.select(rows, length))
        other.history_mask = other.steps_mask
        # `fitted` pads with zeros: shifted by `hidden`, so that padding is hidden.
        other.steps_mask.copy_(fitted(self.steps_mask - self.hidden, rows, slots, 3) + self.hidden)
        for layer, to in zip(self.layers, other.layers, strict=True):
            buffers = [fitted(tensor, rows, slots, 2) for tensor in layer.storage.buffers]
            to.storage.buffers = put_all(to.storage.buffers, buffers)
        for layer, to in zip(self.stateful, other.stateful, strict=True):
            to.states = fitted(layer.place, rows, length if getattr(layer, "over_source", False) else None, -1)
            to.keep()
            to.of_beams = True
            for name, kept in getattr(layer, "kept_of_source", {}).items():
                is_mask = kept.dtype == torch.bool  # True at padding: invert it, as `fitted` adds False
                kept = fitted(~kept, rows, length, -1).logical_not() if is_mask else fitted(kept, rows, length, -1)
                to.kept_of_source[name] = put(to.kept_of_source.get(name), kept)
        for index, done in self.cache.is_updated.items():
            layer = self.cache.source_layers[index]
            keys, values = (fitted(tensor, rows, length, 2) for tensor in (layer.keys, layer.values))
            other.cache.cross_attention_cache.update(keys, values, index)
            other.cache.is_updated[index] = done


class LengthTable:
    """A sequence of `Change`s as a table: for each step a row that is added to the scores, or replaces them."""

    def __init__(self, changes: list[Change], steps: int, vocabulary: int, device: Any):
        self.changes = changes
        # Each change begins to act and ceases at most once: there are at most so many different rows.
        self.rows = torch.zeros(2 * len(changes) + 1, vocabulary, device=device)
        self.row_of = torch.zeros(steps, dtype=torch.long, device=device)
        self.forced = torch.zeros(steps, dtype=torch.bool, device=device)

    def limit(self, changes: list[Change]) -> None:
        """Writes the table for a search; `changes` equal those of `__init__` but for the lengths at which they act."""
        lengths = range(1, 1 + len(self.row_of))  # of sequences before each step
        states = [tuple(change.at(length) for change in changes) for length in lengths]
        numbers = {state: number for number, state in enumerate(dict.fromkeys(states))}
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

    def __call__(self, scores: Tensor, step: Tensor) -> Tensor:
        row = self.rows.index_select(0, self.row_of.index_select(0, step)).unsqueeze(1)  # (1, 1, vocabulary)
        changed = scores + row
        if any(change.forced for change in self.changes):
            return torch.where(self.forced.index_select(0, step), row, changed)
        return changed


class Stage:
    """The tensors of a search of one `Size`, and its step, which is repeated.

    A candidate's number is (step x width + its parent beam) x vocabulary + its token.
    """

    def __init__(self, decoder: Any, strategy: Any, size: Size, rules: Rules, config: Any, key: Any):
        self.strategy, self.size, self.key, self.normalized = strategy, size, key, decoder.normalized
        device, shape = decoder.model.device, (size.sentences, size.width)
        self.device, self.draws = device, issubclass(strategy, Draws)
        self.num_beams = config.num_beams if config.num_beams > 1 else 0
        self.vocabulary = decoder.model.config.target_vocab_size
        self.count = rules.candidates(self.num_beams)
        self.processors = [
            part if type(part) in OF_SCORES else LengthTable(part, size.steps + 1, self.vocabulary, device)
            for part in grouped(rules.by_length)
        ]
        tables = all(isinstance(part, LengthTable) for part in self.processors)
        by_kernels = self.num_beams and tables and len(self.processors) < 2  # the kernels support one table
        self.kernels = kernels_for(decoder.model, self.num_beams, self.count) if by_kernels else None
        self.head = padded_head(decoder.model) if self.kernels else None
        self.clock = Clock(size, size.width * self.vocabulary, device)
        self.state = StaticTransformer(decoder, size, self.clock)
        self.state.moves = bool(self.num_beams)
        long = {"dtype": torch.long, "device": device}
        self.tokens = torch.zeros(shape, **long)
        self.table = torch.zeros(size.steps + 1, *shape, **long)  # tokens, or with beams parent x vocabulary + token
        self.found: Any = Chains(*shape, torch.zeros((), **long) + pad_token_of(config, device), device)
        if self.num_beams:
            self.found = hypotheses.Hypotheses(*shape, config.early_stopping is True, device)
        self.left = torch.zeros(1, **long)
        self.ends = torch.tensor([end for end in rules.ends if end < self.vocabulary], **long)
        self.padded = bool(rules.ends)
        self.is_end = torch.zeros(self.vocabulary, dtype=torch.bool, device=device).index_fill_(0, self.ends, True)
        self.final = torch.zeros(1, **long)  # the step that reaches the length limit
        self.rows = torch.arange(size.sentences, **long).view(-1, 1) * size.width  # each sentence's first row of beams
        self.origins = torch.zeros(shape, **long)  # the parent of each beam, as a row among all beams
        numbers = self.vocabulary if self.draws and strategy.each_word else 1  # random numbers for each draw
        self.noise = torch.zeros((*shape, numbers) if self.draws else 0, device=device)
        self.length_penalties = torch.zeros(size.steps + 1, 2, device=device)  # divisors: finished, open hypotheses
        self.prompt = torch.zeros(size.sentences, 1, **long)
        self.is_real = torch.zeros(size.sentences, dtype=torch.bool, device=device)
        self.sources: list[Tensor] = []  # token ids and mask of the sources
        self.graph: Any = None  # the CUDA graph of a step
        self.opening: Any = None  # the CUDA graph of `open`, with the encoder; False: it cannot be captured
        self.decoder: Any = decoder  # that of the present search
        self.runs = self.real = self.nbytes = 0
        self.limited: Any = None
        self.arrivals: list[Any] = []  # of each copy of `left` to the CPU under way: pinned memory, event

    def bytes(self) -> int:
        """Returns the bytes of this stage's large tensors, without the memory of graphs, which stages share."""
        return sum(tensor.nbytes for tensor in [*self.state.tensors(), self.noise])

    def limit(self, rules: Rules, config: Any) -> None:
        """Writes length penalties, the last step and the tables of changes for the rules and config of a search."""
        if self.limited is not None and all(map(is_, self.limited, (rules, config))):
            return
        self.limited = rules, config
        self.final.fill_(rules.max_length - 2)
        lengths = range(1, len(self.length_penalties) + 1)  # of sequences after each step, without the start token
        numbers = [length_penalties(config, length, config.max_length - 1) for length in lengths]
        fill(self.length_penalties, numbers)
        for table, part in zip(self.processors, grouped(rules.by_length), strict=True):
            if isinstance(table, LengthTable):
                table.limit(part)

    def begin(self, prompt: Tensor, source: SourceTokens, real: int) -> None:
        """Copies a batch of sources into the stage and chooses the first tokens; rows from `real` on are padding."""
        self.prompt.copy_(prompt)
        if real != self.real:
            self.is_real.fill_(False)[:real] = True
            self.real = real
        self.sources = put_all(self.sources, list(source))
        if self.opening:
            self.opening.replay()
        else:
            self.open()

    def open(self) -> None:
        """Encodes the sources, resets all state, and chooses the first tokens."""
        ids, mask = self.sources
        outputs = self.decoder.model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
        scores = self.scores_of(self.state.begin, self.prompt, SourceBatch(outputs, mask.bool()))
        self.found.begin(self.size.sentences)
        self.found.open &= self.is_real
        if not self.num_beams:
            self.found.going &= self.is_real.unsqueeze(1)
        self.clock.restart()
        self.choose(scores)

    def move_to(self, other: Stage, rows: Tensor, real: int) -> None:
        """Copies the given sentences to a stage of another size, where rows from `real` on are padding."""
        self.state.move_to(other.state, rows)
        self.found.move_to(other.found, rows, real)
        other.tokens.copy_(self.tokens[rows])
        other.clock.counters.copy_(self.clock.counters)
        steps = min(len(self.table), len(other.table))
        other.table[:steps] = self.table[:steps, rows]

    def step(self) -> None:
        """Reads the last tokens and chooses the next ones."""
        self.choose(self.scores_of(self.state.step, self.tokens))

    def scores_of(self, call: Callable, *given: Any) -> Tensor:
        """Returns the scores (sentences, 1 or width, vocabulary) that `call` computes, in float32 or, if kernels read
        them, in the model's type."""
        self.decoder.widened = self.kernels is None
        head = self.decoder.model.lm_head
        with nullcontext() if self.head is None else matmul_backends.with_padded(head.weight, self.head):
            return call(self.decoder, *given)

    def choose(self, scores: Tensor) -> None:
        """Chooses tokens by scores (sentences, 1 or width, vocabulary), reorders beams, advances the counters."""
        if self.kernels is not None:
            self.kernels.choose_beams(self, scores)
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
        return self.is_end[tokens] | (self.clock.step >= self.final)

    def choose_beams(self, scores: Tensor) -> None:
        """Computes what `BeamSearch.step` does, in the tensors of the stage."""
        log_probs = scores if self.normalized else torch.log_softmax(scores, -1)  # (1)
        sums, numbers = (self.process(log_probs) + self.found.running.unsqueeze(-1)).flatten(1).topk(self.count)
        last, beams = self.are_last(numbers % self.vocabulary), self.num_beams
        penalty, hope = self.length_penalties.index_select(0, self.clock.step).unbind(1)
        newest = numbers[:, :beams] + self.clock.first_candidate
        self.found.finish(sums[:, :beams], newest, last[:, :beams], penalty)  # (2)
        chosen = numbers.gather(1, self.found.go_on(sums, last))  # (3)
        self.found.close(self.found.running[:, 0], hope)  # (4)
        self.table.index_copy_(0, self.clock.step, chosen.unsqueeze(0))
        torch.remainder(chosen, self.vocabulary, out=self.tokens)
        torch.add(self.rows, chosen // self.vocabulary, out=self.origins)

    def choose_tokens(self, scores: Tensor) -> None:
        """Computes what `Greedy.step` or, with draws, `Draws.step` does, in the tensors of the stage."""
        scores = self.process(scores)
        tokens = self.strategy.pick(scores, self.noise) if self.draws else scores.argmax(-1)
        tokens = self.found.padded(tokens) if self.padded else tokens
        self.tokens.copy_(tokens)
        self.table.index_copy_(0, self.clock.step, tokens.unsqueeze(0))
        self.found.close(self.are_last(tokens))

    def run(self) -> None:
        """Runs a step: the first by PyTorch's calls, later ones by the graph, which is captured at the second.

        The first also makes libraries create plans and workspaces, which a capture must not do.
        """
        if self.runs == 1 and has_graphs(self.tokens):
            self.graph = self.capture(self.step)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.step()
        self.runs += 1

    def capture(self, function: Callable[[], None]) -> Any:
        """Records a method's operations as a CUDA graph; returns None where CUDA cannot, and the method must be called.

        All graphs of a model and stream share their memory: none leaves data there for another.
        """
        graph, stream = torch.cuda.CUDAGraph(), self.key[-1]
        cached = torch.is_autocast_cache_enabled()
        with _CAPTURING:
            try:
                with _KEEPING:
                    kept = list(_STAGES.get(self.decoder.model, {}).values())
                same = [stage for stage in (self, *kept) if stage.key[-1] == stream]
                others = [graph for stage in same for graph in (stage.graph, stage.opening) if graph]
                torch.set_autocast_cache_enabled(False)  # a cast in the cache would refer to freed memory
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
        """Starts to copy the number of open sentences after this step; returns a function that waits for this
        number."""
        if not self.left.is_cuda:
            return self.left.clone().item  # type: ignore[return-value]
        if len(self.arrivals) <= LATE:  # up to LATE + 1 copies are under way at once
            self.arrivals.append((torch.empty(1, dtype=torch.long, pin_memory=True), torch.cuda.Event()))
        else:
            self.arrivals.append(self.arrivals.pop(0))
        copy, arrived = self.arrivals[-1]
        copy.copy_(self.left, non_blocking=True)
        arrived.record()

        def wait() -> int:
            arrived.synchronize()
            return int(copy)

        return wait


def kernels_for(model: Any, beams: int, count: int) -> Any:
    """Returns the module kernels.py if its kernels can choose `count` candidates for `beams` beams from this model's
    logits; else None: `Stage.choose_beams` computes the same."""
    if model.device.type != "cuda":
        return None
    from hf_mlnmt.search.gpu import kernels

    return kernels if kernels.knows(model, beams, count) else None


def padded_head(model: Any) -> Tensor | None:
    """Returns a copy of the output projection's weight with rows of zeros up to a multiple of 64, kept until the model
    changes; None where its own number of rows is a multiple of 8."""
    weight = getattr(model.lm_head, "weight", None)
    if type(weight) is not torch.nn.Parameter or len(weight) % 8 == 0:
        return None
    state = known(model, again=False).state
    if _PADDED.get(model, (None,))[0] != state:
        _PADDED[model] = state, torch.nn.functional.pad(weight.detach(), (0, 0, 0, -len(weight) % 64))
    return _PADDED[model][1]


def has_graphs(tensor: Tensor) -> bool:
    """Tells whether the tensor's device has graphs: operations recorded once and replayed."""
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


# Kept stages have no reference to the model: with one, the model and its stages would never be freed.
_STAGES: WeakKeyDictionary[Any, OrderedDict[Any, Stage]] = WeakKeyDictionary()
_PADDED: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_KEEPING, _CAPTURING = Lock(), Lock()
# (device, stream) -> stream on which its graphs are captured: graphs that run at the same time share no workspace
_CAPTURE_STREAMS: dict[Any, Any] = {}


def stage_of(decoder: Any, strategy: Any, size: Size, rules: Rules, config: Any, asked: Any) -> Stage:
    """Takes a kept stage of this size out of the store, so that no other search uses it, or makes a new one.

    asked: the result of `asked_of`.
    """
    with _KEEPING:
        stage = _STAGES.setdefault(decoder.model, OrderedDict()).pop((size, *asked), None)
    stage = stage or Stage(decoder, strategy, size, rules, config, (size, *asked))
    stage.decoder = decoder
    stage.limit(rules, config)
    return stage


def asked_of(decoder: Any, strategy: Any, rules: Rules, config: Any) -> tuple[str, int, int]:
    """Returns the key under which a stage is kept beside its size: options, state of the model, CUDA stream."""
    pad = None if config._pad_token_tensor is None else config._pad_token_tensor.tolist()
    more = {name: value for name, value in getattr(decoder, "arguments", {}).items() if not callable(value)}
    changes = [p[:3] if isinstance(p, Change) else (type(p).__name__, vars(p)) for p in rules.by_length]
    asked: tuple[Any, ...] = strategy, config.num_beams, config.early_stopping is True, rules.ends, changes, pad, more
    model, device = decoder.model, decoder.model.device
    cast = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type)
    asked += cast, model.config._attn_implementation
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return repr(asked), known(model, again=False).state, stream


def keep_stage(stage: Stage) -> None:
    """Puts a stage into the store for the next search of its size, and drops the oldest where they take much memory.

    The first time `open`, which has run once by now, is captured as a graph.
    """
    if stage.opening is None and has_graphs(stage.tokens):
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
    """Returns the bytes of a GPU that are free or that PyTorch holds unused; for another device 2^32, a guess."""
    if device.type != "cuda":
        return 2**32
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


class Generator:
    """Draws the random numbers of a search as `strategies.Draws` does: for all sentences, also ended ones.

    The search runs some steps too many, so `rewind` resets PyTorch's generator to its state after the last step needed.
    """

    def __init__(self, sentences: int, device: torch.device):
        self.sentences = sentences
        cuda = device.type == "cuda"
        self.generator = torch.cuda.default_generators[device.index] if cuda else torch.default_generator
        self.states: list[Tensor] = []

    def draw(self, stage: Stage, ids: Tensor) -> None:
        """Draws a step's random numbers and copies those of the sentences `ids` into the stage."""
        noise = stage.strategy.noise(self.sentences * stage.size.width, stage.vocabulary, stage.device)
        torch.index_select(noise.view(self.sentences, *stage.noise.shape[1:]), 0, ids, out=stage.noise)
        self.states.append(self.generator.get_state())

    def rewind(self, steps: int) -> None:
        """Resets the generator to its state after this number of steps."""
        self.generator.set_state(self.states[steps - 1])


def search(decoder: Any, strategy: Any, source: SourceTokens, prompt: Tensor, rules: Rules, config: Any) -> Any:
    """Searches by repeated steps of static shapes; returns the result of generate(), as loop.search does.

    Args:
        decoder, strategy: for which `why_not` returns None. source: the sentences' tokens. prompt: (sentences, 1).
        config: the generation config as generate() prepares it.
    """
    width = config.num_beams if config.num_beams > 1 else config.num_return_sequences
    record = Record(prompt, width, config)
    draws = Generator(len(prompt), prompt.device) if issubclass(strategy, Draws) else None
    # The model's GPU may not be the current one: streams, events and graphs belong to the current device.
    with torch.inference_mode(), torch.cuda.device(prompt.device) if prompt.is_cuda else nullcontext():
        lefts = _run(decoder, strategy, source, prompt, rules, record, draws)
    if config.num_beams > 1:
        return record.beams()
    total = next((number for number, left in enumerate(lefts, start=1) if not left), len(lefts))
    if draws is not None:
        draws.rewind(total)
    del record.steps[total:]
    return record.chains()


def _run(
    decoder: Any, strategy: Any, source: SourceTokens, prompt: Tensor, rules: Rules, record: Record, draws: Any
) -> list[int]:
    """Runs all steps, writes them to the record, and returns how many sentences were open after each."""
    config, real, longest = record.config, len(prompt), rules.max_length - 1
    length = _source_length(decoder, source)
    steps = min(size_for(longest), first_steps(length))
    asked, ids = asked_of(decoder, strategy, rules, config), torch.arange(real, device=prompt.device)
    size = Size(size_for(real), record.width, length, steps)
    stage = stage_of(decoder, strategy, size, rules, config, asked)
    filled = _filled(ids, size.sentences)  # the sentence in each row; padding repeats the first
    lefts: list[int] = []
    arriving: deque[Callable[[], int]] = deque()
    first, done = 0, 0
    while True:
        if draws is not None:
            draws.draw(stage, filled)
        if done:
            stage.run()
        else:
            stage.begin(prompt.index_select(0, filled), source.select(filled, size.source), real)
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
            steps = min(size_for(longest), 2 * stage.size.steps) if full else stage.size.steps
            size = stage.size._replace(sentences=size_for(real) if full else fewer, steps=steps)
            filled = _filled(ids, size.sentences)
            before, stage = stage, stage_of(decoder, strategy, size, rules, config, asked)
            before.move_to(stage, _filled(rows, size.sentences), real)
            keep_stage(before)
    _write(record, stage, ids, first, done)
    keep_stage(stage)
    return lefts + [wait() for wait in arriving]


def _filled(rows: Tensor, count: int) -> Tensor:
    """Returns the given rows, followed by copies of the first up to `count`."""
    return torch.cat([rows, rows[:1].expand(count - len(rows))])


def _source_length(decoder: Any, source: SourceTokens) -> int:
    """Returns the source length to pad to, the next of 16, 32, 64 ...: few sizes for all batches, at little cost."""
    length = source.real.shape[1]
    return min(max(SHORTEST, 1 << (length - 1).bit_length()), max(length, decoder.model.config.max_position_embeddings))


def _write(record: Record, stage: Stage, ids: Tensor, first: int, end: int) -> None:
    """Adds the steps `first` to `end` of a stage, and its finished hypotheses, to the record of the sentences `ids`."""
    table, vocabulary, here = stage.table[first:end, : len(ids)], stage.vocabulary, len(ids)
    record.steps += [(ids, tokens, parents) for tokens, parents in zip(table % vocabulary, table // vocabulary)]
    if stage.num_beams:
        record.write(ids, stage.found.best[:here], stage.found.last[:here], vocabulary)
