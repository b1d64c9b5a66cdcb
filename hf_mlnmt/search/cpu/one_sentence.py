"""A search for one sentence on a CPU: encoder and search in two calls of compiled code, prepared once for a model.

For a single sentence Python would take half of the time. So the structures that search.c reads of a model are kept from
one sentence to the next, and encoder, the source's keys and values, and the whole loop are computed in search.c
(`encode` and `search`). It finds what loop.py finds, in single precision, for decoders whose layers search.c all
supports; an encoder of another form is called as a module. `Wanted.of` and `OneSentence.of` return None where search.c
does not support the options or the model: then loop.py searches.
"""

from __future__ import annotations

import ctypes
from inspect import unwrap
from typing import Any, cast

import torch
from torch import Tensor, nn

from hf_mlnmt.common.matmul_backends import LARGEST, kept_diagonals, times_forgotten
from hf_mlnmt.modeling.attention import CrossAttention
from hf_mlnmt.modeling.layers import EncoderLayer
from hf_mlnmt.modeling.outputs import EncoderOutput
from hf_mlnmt.modeling.stack import Positions
from hf_mlnmt.modeling.transformer import Encoder
from hf_mlnmt.search.cache import BeamCache, whole_blocks
from hf_mlnmt.search.cpu.int8 import Int8Linear, compiled
from hf_mlnmt.search.cpu.native import (
    AS_IT_LIES,
    PACKED,
    SELF_ATTENTION,
    SOURCE,
    SOURCE_ATTENTION,
    STATE,
    STRUCTURES,
    NativeUnits,
    Unit,
    library,
)
from hf_mlnmt.search.cpu.step import LINEARS, CompiledStep, add_sublayer, find_family, sources_of_decoder
from hf_mlnmt.search.decoder import SourceBatch, read_source
from hf_mlnmt.search.hypotheses import IMPOSSIBLE, length_penalties, read_off, sampled
from hf_mlnmt.search.known import known, what_is_around
from hf_mlnmt.search.rules import Change, Rules
from hf_mlnmt.search.strategies import BeamSearch, Greedy, SearchStrategy

KNOWN = (Greedy, BeamSearch)  # the search strategies that search.c computes
LATE, EARLY, NEVER = range(3)  # early_stopping False, True and "never", as in search.c
NUMBERS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # a caller may have changed PyTorch's defaults
WHOLE: dict[str, Any] = {"dtype": torch.long, "device": "cpu"}
HIDDEN = torch.finfo(torch.float32).min  # value of hidden positions in additive masks
FIRST_SLOTS = 128  # target positions of a new cache


class Wanted:
    """The options of a search as tensors and numbers for search.c's `Search`."""

    def __init__(self, rules: Rules, config: Any, forced: list[int], forbidden: dict[int, int], start: int, words: int):
        """Converts options. forced: each step's only token, or -1. forbidden: token -> for how many first steps."""
        self.config, self.start, self.vocabulary = config, start, words
        self.num_beams, self.longest = config.num_beams, len(forced)
        self.candidates = rules.candidates(self.num_beams)
        self.early = EARLY if config.early_stopping is True else LATE
        if config.early_stopping == "never" and config.length_penalty > 0.0:
            self.early = NEVER
        self.ends, self.forced = torch.tensor(rules.ends, **WHOLE), torch.tensor(forced, **WHOLE)
        self.forbidden, self.until = torch.tensor([*zip(*forbidden.items())] or [[], []], **WHOLE)
        lengths = range(1, self.longest + 1) if self.num_beams > 1 else ()
        penalties = [length_penalties(config, length, self.longest)[0] for length in lengths]
        self.length_penalties = torch.tensor([1.0, *penalties], **NUMBERS)  # by length

    @classmethod
    def of(
        cls, strategy: type[SearchStrategy], rules: Rules, config: Any, start: int, vocabulary: int
    ) -> Wanted | None:
        """Returns the options of a prepared config and rules; None where search.c does not support one of them."""
        if strategy not in KNOWN or (strategy is Greedy and config.num_return_sequences > 1):
            return None
        if rules.max_length is None or rules.by_length is None:
            return None
        forced: list[int] = [-1] * (rules.max_length - 1)
        forbidden: dict[int, int] = {}
        for change in rules.by_length:
            if not isinstance(change, Change) or not all(0 <= token < vocabulary for token in change.tokens):
                return None
            steps = [step for step in range(len(forced)) if change.at(step + 1)]
            if change.forced:
                for step in steps:
                    forced[step] = change.tokens[0]
            elif steps == [*range(len(steps))] and all(added == -torch.inf for added in change.added):
                forbidden |= {token: max(len(steps), forbidden.get(token, 0)) for token in change.tokens}
            else:
                return None
        if any(forced[step] == token for token, steps in forbidden.items() for step in range(steps)):
            return None
        wanted = cls(rules, config, forced, forbidden, start, vocabulary)
        return wanted if forced and wanted.candidates + len(forbidden) <= vocabulary else None


class OneSentence:
    """Translates sentences one by one in compiled code; each object is used by one thread at a time.

    It refers to parts of the model, never to the model itself, which could not be freed else.
    """

    def __init__(self, model: Any, step: CompiledStep):
        decoder, native = step.decoder, step.units
        self.functions, self.native = step.functions, native
        self.d_model, self.vocabulary = decoder.embed_tokens.weight.shape[1], model.lm_head.out_features
        self.places = len(decoder.positions.table)
        self.search = STRUCTURES["Search"](d_model=self.d_model, vocabulary=self.vocabulary)
        self.units = fill_stack(self.search.decoder, decoder, native)
        self.inner = max(unit.inner for unit in self.units)
        self.output = NativeUnits(self.functions, PACKED)
        output = self.search.output
        output.weight_out, output.rounded_out, output.plain_out = self.output.packed(model.lm_head)
        output.bias_out = self.output.hold(model.lm_head.bias)
        self.slots, self.caches = 0, torch.empty(0, **NUMBERS)
        self._make_room(FIRST_SLOTS)
        # In int8 the encoder's modules are called, as for a batch: a last digit could change a rounding to integers.
        self.encoder = None if type(model.lm_head) is Int8Linear else EncoderUnits.of(model, step)
        self.step = step

    @classmethod
    def of(cls, model: Any) -> OneSentence | None:
        """Builds the search of one sentence, or returns None where search.c does not support the model."""
        step = CompiledStep.of(model, find_family(model), PACKED)
        if step is None or getattr(model, "logits_are_scores", False):
            return None
        decoder, output = step.decoder, step.projection
        if not plain_embeddings(decoder) or (type(output) is Int8Linear and compiled(output) is None):
            return None
        weights = list(model.parameters())
        most = LARGEST if step.functions.gemm is None else max(weight.numel() for weight in weights)
        if any(not weight.is_contiguous() or weight.numel() > most for weight in weights):
            return None
        norms = {type(decoder.embedding_norm), type(decoder.layer_norm)}
        if type(output) is Int8Linear and norms != {nn.Identity}:  # search.c's norms differ in last digits
            return None
        return cls(model, step)

    def _make_room(self, slots: int) -> None:
        """Allocates caches of `slots` target positions for every layer, and copies the present ones into them."""
        own = [unit for unit in self.units if unit.kind == SELF_ATTENTION]
        caches = torch.zeros(len(own), 2, self.d_model * slots, **NUMBERS)
        for unit, new, old in zip(own, caches, self.caches if self.slots else caches):
            if self.slots:
                new[0].view(self.d_model, slots)[:, : self.slots] = old[0].view(self.d_model, self.slots)
                new[1].view(unit.heads, slots, -1)[:, : self.slots] = old[1].view(unit.heads, self.slots, -1)
            unit.keys, unit.values = new[0].data_ptr(), new[1].data_ptr()
        self.slots, self.caches, self.search.capacity = slots, caches, slots

    def __call__(self, model: Any, ids: Tensor, wanted: Wanted) -> Any:
        """Translates ids (1, source), without padding, as generate() does; returns None for too long or wrong ids."""
        threads, length = torch.get_num_threads(), ids.shape[1]
        if wanted.longest > self.places or wanted.vocabulary != self.vocabulary:
            return None
        if self.encoder is None:
            sources, slots = self._call_encoder(model, ids)
        else:
            tokens = ids[0].tolist()
            if length > self.encoder.places or min(tokens) < 0 or max(tokens) >= self.encoder.vocabulary:
                return None
            sources, slots = self.encoder(ids, threads)
        mask = source_mask(length, slots)
        for unit, slot in zip(self.units, self.native.slots):
            if unit.kind == SOURCE_ATTENTION:
                keys, values = sources[slot]
                unit.keys, unit.values, unit.capacity = keys.data_ptr(), values.data_ptr(), slots
                unit.mask, unit.mask_rows, unit.slots = mask.data_ptr(), 1, slots
        return self._search(wanted, threads)

    def _call_encoder(self, model: Any, ids: Tensor) -> tuple[dict[int, Any], int]:
        """Calls the encoder as a module; returns keys and values by cache slot, and how many positions they have."""
        encoder, slots = model.get_encoder(), whole_blocks(ids.shape[1])
        outputs = encoder(input_ids=ids, attention_mask=torch.ones_like(ids), return_dict=True)
        encoded = EncoderOutput.of(outputs, encoder.hands_on)
        tensors: Any = {name: value for name, value in encoded.items() if isinstance(value, Tensor)}
        source = SourceBatch(EncoderOutput(**tensors), torch.ones_like(ids, dtype=torch.bool)).select(None, slots)
        cache = BeamCache([])
        read_source(self.step.sources(self.step.model, source.outputs), cache)
        return {slot: (layer.keys, layer.values) for slot, layer in enumerate(cache.source_layers)}, slots

    def _search(self, wanted: Wanted, threads: int) -> Any:
        """Runs search.c's `search` over the source that the units point to; returns generate()'s result."""
        search, width, longest = self.search, wanted.num_beams, wanted.longest
        looks = whole_blocks(longest * width)
        search.threads, search.beams, search.candidates, search.longest = threads, width, wanted.candidates, longest
        search.early, search.looks = wanted.early, looks
        for name in ("ends", "forced", "forbidden", "until", "length_penalties"):
            setattr(search, name, getattr(wanted, name).data_ptr())
        search.count_ends, search.count_forbidden = len(wanted.ends), len(wanted.forbidden)
        search.step, search.used = 0, 0
        units = [unit for unit in self.units if unit.kind == STATE]
        rows = torch.zeros(len(units), 2, width, self.d_model, **NUMBERS)
        for unit, (now, then) in zip(units, rows):
            unit.keys, unit.values = now.data_ptr(), then.data_ptr()
        running, best = torch.zeros(width, **NUMBERS), torch.full((width,), -torch.inf, **NUMBERS)
        running[1:] = IMPOSSIBLE
        table, last = torch.empty(longest, 2, width, **WHOLE), torch.zeros(width, 4, **WHOLE)
        sizes = [width * size for size in (self.d_model, self.vocabulary, looks)]
        sizes.append(self.functions.memory_for(width, self.inner, self.d_model, looks))
        states, logits, mask, memory = torch.empty(sum(sizes), **NUMBERS).split(sizes)
        tensors = {
            "running": running,
            "scores": torch.empty(wanted.candidates, **NUMBERS),
            "tokens": torch.full((width,), wanted.start, **WHOLE),
            "places": torch.empty(2 * wanted.candidates, **WHOLE),
            "sees": torch.empty(2, width, looks, dtype=torch.uint8, device="cpu"),
            **{"table": table, "best": best, "last": last},
            **{"states": states, "logits": logits, "mask": mask, "memory": memory},
        }
        for name, tensor in tensors.items():
            setattr(search, name, tensor.data_ptr())
        while self.functions.search(ctypes.addressof(search)):
            self._make_room(whole_blocks(self.slots * 3 // 2))
        prompt = torch.full((1, 1), wanted.start, **WHOLE)
        if width == 1:
            return sampled(torch.cat([prompt, table.view(1, -1)[:, : search.step]], 1), wanted.config)
        config, count = wanted.config, wanted.config.num_return_sequences
        ends = last[:count, 1:].masked_fill(last[:count, :1] == 0, -1)
        return read_off(prompt, table[None, : search.step], ends[None], best[None, :count], config)


class ReadySentences:
    """A model's `OneSentence` objects that no thread uses at present, and a check of the weights that they copied."""

    def __init__(self, first: OneSentence, modules: list[Any]):
        self.idle, self.functions, self.forgotten = [first], first.functions, times_forgotten()
        self.diagonals = kept_diagonals(modules)
        addresses = ctypes.c_void_p * len(self.diagonals)
        self.kept_at = addresses(*(weight.data_ptr() for weight, _ in self.diagonals))
        self.kept_as = addresses(*(diagonal.data_ptr() for _, diagonal in self.diagonals))
        sizes = [size for weight, _ in self.diagonals for size in weight.shape]
        self.sizes = (ctypes.c_long * len(sizes))(*sizes)

    def hold(self) -> bool:
        """Tells whether copies of weights are still valid: the weights' diagonals are equal to those stored."""
        if library(torch.float32) is not self.functions or times_forgotten() != self.forgotten:
            return False
        return bool(self.functions.unchanged(len(self.diagonals), self.kept_at, self.sizes, self.kept_as))

    def translate(self, model: Any, ids: Tensor, wanted: Wanted | None) -> Any:
        """Translates a sentence by an idle `OneSentence`, or a new one if none is idle; returns its result, which is
        None where it cannot translate."""
        try:
            single = self.idle.pop()
        except IndexError:  # all are in use, by other threads or by a search whose callback started this one
            single = cast(OneSentence, OneSentence.of(model))
        translation = single(model, ids, cast(Wanted, wanted))
        self.idle.append(single)
        return translation


def ready_sentences(model: Any) -> ReadySentences | None:
    """Returns `ReadySentences`, kept while the model is unchanged; None for models that search.c does not support."""
    seen = known(model, again=False)
    if seen.is_altered(model) or what_is_around(model, again=False) is not None:
        return None
    ready = seen.facts.get("one sentence")
    if "one sentence" not in seen.facts or (ready is not None and not ready.hold()):
        first = OneSentence.of(model)
        ready = None if first is None else ReadySentences(first, [model, *seen.modules])
        seen.facts["one sentence"] = ready
    return ready


class EncoderUnits:
    """Computes in compiled code the baseline's encoder, and keys and values of every attention over the source."""

    def __init__(self, encoder: Any, step: CompiledStep, native: NativeUnits):
        self.functions, self.native, self.stack = step.functions, native, STRUCTURES["Stack"]()
        self.units = fill_stack(self.stack, encoder, native)
        self.d_model, self.vocabulary = encoder.embed_tokens.weight.shape[1], len(encoder.embed_tokens.weight)
        self.places = len(encoder.positions.table)
        self.inner = max(2 * self.d_model, *(unit.inner for unit in self.units))
        attentions = [layer.source_attn for layer in step.decoder.layers]
        self.sources = (Unit * len(attentions))()
        self.slots = [attention.layer_idx for attention in attentions]
        for unit, attention in zip(self.sources, attentions):
            unit.kind, unit.inner, unit.heads = SOURCE, 2 * self.d_model, attention.heads
            unit.bias_in = native.hold(attention.kv_proj.bias)
            unit.weight_in, unit.rounded_in, unit.plain_in = native.packed(attention.kv_proj)

    @classmethod
    def of(cls, model: Any, step: CompiledStep) -> EncoderUnits | None:
        """Builds the units; returns None for an encoder that search.c does not support, and for a decoder that attends
        to other states than the encoder's last ones."""
        encoder = model.get_encoder()
        plain = all(
            unwrap(getattr(type(encoder), name)) is unwrap(getattr(Encoder, name))
            for name in ("forward", "memory", "features", "embed", "look_up")
        )
        if not plain or not plain_embeddings(encoder) or step.sources is not sources_of_decoder:
            return None
        native = NativeUnits(step.functions, AS_IT_LIES)
        for layer in encoder.layers:
            for name in ("forward", "attend_self"):
                if unwrap(getattr(type(layer), name)) is not unwrap(getattr(EncoderLayer, name)):
                    return None
            for sublayer, module in (
                (layer.self_attn_sublayer, layer.self_attn),
                (layer.feed_forward_sublayer, layer.feed_forward),
            ):
                if not add_sublayer(native, sublayer, module, torch.float32):
                    return None
        for layer in step.decoder.layers:
            projection = layer.source_attn.kv_proj
            if type(layer.source_attn) is not CrossAttention or type(projection) not in LINEARS:
                return None
            if type(projection) is Int8Linear and compiled(projection) is None:
                return None
        return cls(encoder, step, native)

    def __call__(self, ids: Tensor, threads: int) -> tuple[dict[int, Any], int]:
        """Encodes ids (1, source); returns keys and values by cache slot, and the number of their positions."""
        length, slots = ids.shape[1], whole_blocks(ids.shape[1])
        caches = torch.zeros(1 + len(self.sources), 2, self.d_model * slots, **NUMBERS)
        for unit, (keys, values) in zip(self.sources, caches[1:]):
            unit.keys, unit.values, unit.capacity = keys.data_ptr(), values.data_ptr(), slots
        mask, states = source_mask(length, slots), torch.empty(length, self.d_model, **NUMBERS)
        memory = torch.empty(self.functions.memory_for(length, self.inner, self.d_model, slots), **NUMBERS)
        own = caches[0, 0].data_ptr(), caches[0, 1].data_ptr(), mask.data_ptr(), slots
        tokens, sources = ids.contiguous(), ctypes.addressof(self.sources)
        where = tokens.data_ptr(), length, self.d_model, states.data_ptr(), *own, sources, len(self.sources)
        self.functions.encode(ctypes.addressof(self.stack), *where, memory.data_ptr(), threads)
        return dict(zip(self.slots, caches[1:])), slots


def fill_stack(stack: Any, module: Any, native: NativeUnits) -> Any:
    """Fills search.c's `Stack` with an encoder or decoder; returns the array of its units, for the caller to keep."""
    units = (Unit * len(native.units))(*native.units)
    stack.embeddings, stack.positions = native.hold(module.embed_tokens.weight), native.hold(module.positions.table)
    stack.scale, stack.units, stack.count = module.embed_scale, ctypes.addressof(units), len(units)
    for unit, norm in ((stack.before, module.embedding_norm), (stack.behind, module.layer_norm)):
        if isinstance(norm, nn.LayerNorm):
            unit.norm_weight, unit.norm_bias, unit.eps = native.hold(norm.weight), native.hold(norm.bias), norm.eps
    return units


def plain_embeddings(module: Any) -> bool:
    """Tells whether search.c supports the embeddings, positions and outer norms of an encoder or decoder."""
    embeddings, norms = module.embed_tokens, (module.embedding_norm, module.layer_norm)
    tensors = embeddings.weight, module.positions.table
    return (
        type(embeddings) is nn.Embedding
        and embeddings.max_norm is None
        and type(module.positions).forward is Positions.forward
        and all(tensor.is_contiguous() and tensor.dtype == torch.float32 for tensor in tensors)
        and all(type(norm) in (nn.LayerNorm, nn.Identity) for norm in norms)
    )


def source_mask(length: int, slots: int) -> Tensor:
    """Returns the additive mask (slots,): 0 for the first `length` positions, HIDDEN for the padding after them."""
    mask = torch.full((slots,), HIDDEN, **NUMBERS)
    mask[:length] = 0
    return mask
