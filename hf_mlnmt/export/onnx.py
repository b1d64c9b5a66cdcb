"""Any system as two ONNX graphs: encoder.onnx, once for each batch, and decoder.onnx, once for each step of the search.

encoder.onnx: input_ids, attention_mask (batch, source) -> source_*: the keys and values of the decoder's attention over
the source, and what else the decoder reads. decoder.onnx: decoder_input_ids (batch, 1), attention_mask, source_*,
past_* -> logits (batch, 1, vocabulary), present_*: what the next step takes as past_*. Before the first step past_* are
zeros of the shape that the graph names, its axis `past` of length 0. Where beams move, past_* move with them.

Both are traced by torch.onnx.export from `Encode` and `Decode`, which know nothing of the architectures: whatever
tensors the layers of a cache hold is state. optimum's exporters are for Transformers 4; those of Transformers itself
are not in every release that this package takes.
"""

from __future__ import annotations

import copy
import logging
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError
from hf_mlnmt.export.check import (
    LENGTH,
    Search,
    Sentences,
    check_scores,
    compare_searches,
    ends_of,
    of_tokens,
    until_end,
)
from hf_mlnmt.generation.batches import pad
from hf_mlnmt.model_folder import first_line


class Sizes(NamedTuple):
    """The dimensions that the graphs leave open, by name."""

    batch: int
    source: int
    past: int


class Slot(NamedTuple):
    """A tensor of a cache: `cache` 0 is the decoder's own (past), 1 the source's."""

    cache: int
    layer: int
    name: str


def caches_of(cache: Any) -> list[Any]:
    return [cache.self_attention_cache, cache.cross_attention_cache]


class Sample:
    """Some real steps of the model: what its encoder returns, what its cache holds, and inputs to trace with.

    `source` are the tensors that stay the same while a sentence is translated, `past` those that every step replaces.
    """

    def __init__(self, model: Any, sizes: Sizes):
        rows = min(model.config.vocab_size, model.config.decoder_vocab_size)
        generator = torch.Generator().manual_seed(1)
        self.input_ids = torch.randint(rows, (sizes.batch, sizes.source), generator=generator)
        self.attention_mask = torch.ones_like(self.input_ids)
        self.attention_mask[0, -2:] = 0
        prefix = torch.randint(rows, (sizes.batch, sizes.past), generator=generator)
        self.decoder_input_ids = prefix[:, :1]
        encoded = model.get_encoder()(self.input_ids, self.attention_mask)
        self.encoder_class: Any = type(encoded)
        self.encoder_names = [name for name, value in encoded.items() if torch.is_tensor(value)]
        config = model.config
        self.cache = EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
        model.model(
            attention_mask=self.attention_mask,
            decoder_input_ids=prefix,
            encoder_outputs=encoded,
            cache=self.cache,
            use_cache=True,
        )
        slots = [
            Slot(number, index, name)
            for number, cache in enumerate(caches_of(self.cache))
            for index, layer in enumerate(cache.layers)
            for name, value in sorted(vars(layer).items())
            if isinstance(value, Tensor)
        ]
        self.past_slots = [slot for slot in slots if slot.cache == 0]
        self.source_slots = [slot for slot in slots if slot.cache == 1]
        self.past = read(self.cache, self.past_slots)
        self.source = [*(encoded[name] for name in self.encoder_names), *read(self.cache, self.source_slots)]

    def cache_with(self, past: list[Tensor], source: list[Tensor] | None = None) -> EncoderDecoderCache:
        """Makes a cache like the sample's of these states; without `source` the source has not been read yet."""
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        for holder, old in zip(caches_of(cache), caches_of(self.cache), strict=True):
            holder.layers = [copy.copy(layer) for layer in old.layers]
        cache.is_updated = dict.fromkeys(self.cache.is_updated, source is not None)
        layers: list[Any] = cache.cross_attention_cache.layers
        for layer in layers:
            layer.is_initialized = source is not None
        for slot, state in zip(self.past_slots, past, strict=True):
            setattr(caches_of(cache)[0].layers[slot.layer], slot.name, state)
        for slot, state in zip(self.source_slots, source or [], strict=source is not None):
            setattr(caches_of(cache)[1].layers[slot.layer], slot.name, state)
        return cache


def read(cache: EncoderDecoderCache, slots: list[Slot]) -> list[Tensor]:
    """Returns the tensors that a cache holds in `slots`."""
    return [getattr(caches_of(cache)[slot.cache].layers[slot.layer], slot.name) for slot in slots]


class Encode(nn.Module):
    """The part that is computed once for a sentence; a first step of the decoder, else not kept, projects it.

    Args:
        past_axes: the names of the open axes of each tensor of the past.
        wanted: which of `sample.source` to return.
    """

    def __init__(self, model: Any, sample: Sample, past_axes: list[dict[int, str]], wanted: list[int]):
        super().__init__()
        self.model, self.sample, self.past_axes, self.wanted = model, sample, past_axes, wanted

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
        sizes = {"batch": input_ids.shape[0], "source": input_ids.shape[1], "past": 0}
        past = []
        for state, axes in zip(self.sample.past, self.past_axes, strict=True):
            shape = [sizes[axes[axis]] if axis in axes else size for axis, size in enumerate(state.shape)]
            past.append(torch.zeros(shape, dtype=state.dtype))
        cache = self.sample.cache_with(past)
        encoded = self.model.get_encoder()(input_ids, attention_mask)
        self.model.model(
            attention_mask=attention_mask,
            decoder_input_ids=torch.full_like(input_ids[:, :1], self.model.config.decoder_start_token_id),
            encoder_outputs=encoded,
            cache=cache,
            use_cache=True,
        )
        outputs = [encoded[name] for name in self.sample.encoder_names]
        states = [*outputs, *read(cache, self.sample.source_slots)]
        return [states[index] for index in self.wanted]


class Decode(nn.Module):
    """The next target token of each sentence, with the states that came before."""

    def __init__(self, model: Any, sample: Sample):
        super().__init__()
        self.model, self.sample = model, sample

    def forward(
        self, decoder_input_ids: Tensor, attention_mask: Tensor, source: list[Tensor], past: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        names = self.sample.encoder_names
        cache = self.sample.cache_with(past, source[len(names) :])
        result = self.model(
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            encoder_outputs=self.sample.encoder_class(**dict(zip(names, source, strict=False))),
            cache=cache,
            use_cache=True,
        )
        return result.logits, read(cache, self.sample.past_slots)


ENCODER, DECODER = "encoder.onnx", "decoder.onnx"
_TRACED, _OTHER = Sizes(3, 11, 5), Sizes(2, 7, 4)  # two samples: an axis is open where their shapes differ


@torch.no_grad()
def write(model: Any, folder: Path) -> None:
    """Saves both graphs and the config into `folder`.

    Raises: UserError for a fused model, and with the reason if PyTorch cannot trace a graph.
    """
    config = model.config
    if hasattr(config, "translation_models"):
        raise UserError(
            f"{type(model).__name__} cannot be exported to ONNX: it searches with several models at once. Export its "
            "members one by one, or use `hf-mlnmt translate`, which runs it."
        )
    model = copy.deepcopy(model).eval().float()
    if model._can_set_attn_implementation():  # written out: no operator that only some runtimes have, and always a mask
        model.set_attn_implementation("eager")
    sample, other = Sample(model, _TRACED), Sample(model, _OTHER)
    source = [f"source_{index}" for index in range(len(sample.source))]
    past = [f"past_{index}" for index in range(len(sample.past))]
    past_axes, text = _axes(sample.past, other.past), {0: "batch", 1: "source"}
    used = _trace(
        Decode(model, sample),
        (sample.decoder_input_ids, sample.attention_mask, sample.source, sample.past),
        ({0: "batch"}, text, _axes(sample.source, other.source), past_axes),
        ["decoder_input_ids", "attention_mask", *source, *past],
        ["logits", *(name.replace("past", "present") for name in past)],
        folder / DECODER,
    )
    wanted = [index for index, name in enumerate(source) if name in used]
    _trace(
        Encode(model, sample, past_axes, wanted),
        (sample.input_ids, sample.attention_mask),
        (text, text),
        ["input_ids", "attention_mask"],
        [source[index] for index in wanted],
        folder / ENCODER,
    )
    config.save_pretrained(folder)


def _axes(states: list[Tensor], others: list[Tensor]) -> list[dict[int, str]]:
    names = {(getattr(_TRACED, name), getattr(_OTHER, name)): name for name in Sizes._fields}
    return [
        {axis: names[sizes] for axis, sizes in enumerate(zip(a.shape, b.shape, strict=True)) if sizes[0] != sizes[1]}
        for a, b in zip(states, others, strict=True)
    ]


def _trace(
    module: Any, inputs: tuple[Any, ...], axes: Any, names: list[str], outputs: list[str], path: Path
) -> set[str]:
    """Saves the module as a graph; returns the names of the inputs that it reads, the others are left out."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of packages that no model here needs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module, inputs, dynamic_shapes=axes, input_names=names, output_names=outputs, dynamo=True, verbose=False
            )
        assert program is not None
        graph = program.model.graph
        for node in graph.all_nodes():
            node.metadata_props.clear()  # stack traces, with paths of this machine
        for value in [value for value in graph.inputs if not value.uses()]:
            graph.inputs.remove(value)
        program.save(path, external_data=False)
    except Exception as error:  # the tracer has many kinds; the innermost says why
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        kind = type(module.model).__name__
        raise UserError(f"{path.stem} of {kind} cannot be exported to ONNX: {first_line(cause)}") from error
    return {str(value.name) for value in graph.inputs}


def check(folder: Path, model: Any, tokenizers: Tokenizers) -> dict[str, Any]:
    """Runs the graphs and compares with `model`: log probabilities of given targets, and greedy search.

    Returns: the differences, for the record. Raises: UserError if they differ.
    """
    from hf_mlnmt.export.onnx_graphs import OnnxGraphs

    graphs, sentences, padding = OnnxGraphs(folder), Sentences.of(model, tokenizers), model.config.pad_token_id or 0
    input_ids, mask = (tensor.numpy() for tensor in pad(sentences.sources, padding))
    given = pad(sentences.targets, padding)[0][:, :-1]
    state = graphs.start(input_ids, mask)
    logits = torch.stack([torch.from_numpy(graphs.step(tokens.numpy(), state)) for tokens in given.unbind(1)], dim=1)
    difference = check_scores(of_tokens(logits, sentences.targets), model, sentences, strict=True)
    rows = graphs.greedy(input_ids, mask, model.config.decoder_start_token_id, ends_of(model), LENGTH).tolist()
    greedy = Search("greedy", 1, [until_end(row, ends_of(model)) for row in rows])
    agreement = compare_searches(model, sentences, [greedy], strict=True)
    return {"largest_difference_of_log_probabilities": difference, **agreement}
