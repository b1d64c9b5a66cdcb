"""Exports any system as two ONNX graphs: encoder.onnx, run once a batch, and decoder.onnx, run once a step of a search.

encoder.onnx: input_ids, attention_mask (batch, source) -> source_*: keys and values of the decoder's attention over the
source, and other encoder outputs that the decoder reads. decoder.onnx: decoder_input_ids (batch, 1), attention_mask,
source_*, past_* -> logits (batch, 1, vocabulary), present_*, which are the past_* of the next step. Before the first
step past_* are zeros of the shapes in the graph, with axis `past` of length 0. A beam search reorders past_*.

Both are traced from `Encode` and `Decode`, which are the same for all architectures: the state is all tensors in the
layers of a cache. optimum's exporters are for Transformers 4; Transformers' own are not in every release.
"""

import copy
import logging
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.model_folder import first_line
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.export.check import compare_graphs
from hf_mlnmt.export.onnx_graphs import OnnxGraphs


class Sizes(NamedTuple):
    """Values for the dynamic axes of the graphs, by name."""

    batch: int
    source: int
    past: int


class Sample:
    """Inputs for tracing a model: random ids, and the encoder outputs and cache of a run of the model on these.

    `source`: tensors that stay the same during the translation of a sentence; `past`: tensors that each step replaces.
    """

    def __init__(self, model: Any, sizes: Sizes):
        config, generator = model.config, torch.Generator().manual_seed(1)
        rows = min(config.vocab_size, config.decoder_vocab_size)
        self.input_ids = torch.randint(rows, (sizes.batch, sizes.source), generator=generator)
        self.attention_mask = torch.ones_like(self.input_ids)
        self.attention_mask[0, -2:] = 0
        prefix = torch.randint(rows, (sizes.batch, sizes.past), generator=generator)
        self.decoder_input_ids = prefix[:, :1]
        encoded = model.get_encoder()(self.input_ids, self.attention_mask)
        self.encoder_class: Any = type(encoded)
        self.encoder_names = [name for name, value in encoded.items() if torch.is_tensor(value)]
        self.cache = EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
        step(model, self.attention_mask, prefix, encoded, self.cache)
        self.past = states_of(self.cache.self_attention_cache)
        self.source = [encoded[name] for name in self.encoder_names] + states_of(self.cache.cross_attention_cache)

    def cache_with(self, past: list[Tensor], source: list[Tensor] | None = None) -> EncoderDecoderCache:
        """Makes a cache like the sample's whose tensors are these states; without `source` the cache is marked as
        not yet having keys and values of the source."""
        own, cross = DynamicCache(), DynamicCache()
        own.layers = _layers(self.cache.self_attention_cache, past)
        cross.layers = _layers(self.cache.cross_attention_cache, source)
        for layer in cross.layers:
            layer.is_initialized = source is not None  # type: ignore[union-attr]
        cache = EncoderDecoderCache(own, cross)
        cache.is_updated = dict.fromkeys(self.cache.is_updated, source is not None)
        return cache


def step(model: Any, mask: Tensor, target_ids: Tensor, encoded: Any, cache: EncoderDecoderCache) -> Any:
    """Runs the model, without its output projection, on target tokens, and adds their states to the cache."""
    inputs = {"attention_mask": mask, "decoder_input_ids": target_ids, "encoder_outputs": encoded}
    return model.model(**inputs, cache=cache, use_cache=True)


def states_of(cache: Any) -> list[Tensor]:
    """Returns all tensors in the layers of a cache, by layer and name."""
    return [getattr(layer, name) for layer in cache.layers for name in _names(layer)]


def _names(layer: Any) -> list[str]:
    return sorted(name for name, value in vars(layer).items() if isinstance(value, Tensor))


def _layers(cache: Any, states: list[Tensor] | None) -> list[Any]:
    """Returns copies of a cache's layers, with `states` as their tensors unless None."""
    copies = [copy.copy(layer) for layer in cache.layers]
    places = [(layer, name) for layer in copies for name in _names(layer)]
    for (layer, name), state in zip(places, states or [], strict=states is not None):
        setattr(layer, name, state)
    return copies


class Encode(nn.Module):
    """Runs the encoder and a first step of the decoder, which computes keys and values of the source; run once a batch.

    Args:
        past_axes: {axis: name} of the dynamic axes of each tensor of `sample.past`.
        wanted: indices of the tensors of `sample.source` to return.
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
        start = torch.full_like(input_ids[:, :1], self.model.config.decoder_start_token_id)
        step(self.model, attention_mask, start, encoded, cache)
        outputs = [encoded[name] for name in self.sample.encoder_names]
        states = [*outputs, *states_of(cache.cross_attention_cache)]
        return [states[index] for index in self.wanted]


class Decode(nn.Module):
    """Computes the logits after one more target token of each sentence, and the new states."""

    def __init__(self, model: Any, sample: Sample):
        super().__init__()
        self.model, self.sample = model, sample

    def forward(
        self, decoder_input_ids: Tensor, attention_mask: Tensor, source: list[Tensor], past: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        names = self.sample.encoder_names
        cache = self.sample.cache_with(past, source[len(names) :])
        encoded = self.sample.encoder_class(**dict(zip(names, source, strict=False)))
        inputs = {"attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids, "encoder_outputs": encoded}
        logits = self.model(**inputs, cache=cache, use_cache=True).logits
        return logits, states_of(cache.self_attention_cache)


ENCODER, DECODER = "encoder.onnx", "decoder.onnx"
_TRACED, _OTHER = Sizes(3, 11, 5), Sizes(2, 7, 4)  # of two samples: an axis is dynamic if its sizes differ


@torch.no_grad()
def write(model: Any, folder: Path) -> None:
    """Writes both graphs and the config into `folder`.

    Raises: UserError for a fused model, and, with the reason, if PyTorch cannot trace a graph.
    """
    config = model.config
    if hasattr(config, "translation_models"):
        raise UserError(
            f"{type(model).__name__} cannot be exported to ONNX: it searches with several models at once. Export its "
            "members one by one, or use `hf-mlnmt translate`, which runs it."
        )
    model = copy.deepcopy(model).eval().float()
    if model._can_set_attn_implementation():  # "eager" always has a mask, and operators of all runtimes
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
    """Writes the module as a graph without inputs that it does not read; returns the names of those it reads."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # hides warnings of missing packages, which no model needs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module, inputs, dynamic_shapes=axes, input_names=names, output_names=outputs, dynamo=True, verbose=False
            )
        assert program is not None
        graph = program.model.graph
        for node in graph.all_nodes():
            node.metadata_props.clear()  # removes stack traces, which hold local paths
        for value in [value for value in graph.inputs if not value.uses()]:
            graph.inputs.remove(value)
        program.save(path, external_data=False)
    except Exception as error:  # torch raises many classes; the innermost cause has the reason
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        kind = type(module.model).__name__
        raise UserError(f"{path.stem} of {kind} cannot be exported to ONNX: {first_line(cause)}") from error
    return {str(value.name) for value in graph.inputs}


def check(folder: Path, model: Any, tokenizers: Tokenizers) -> dict[str, Any]:
    """Runs the graphs and compares log probabilities of given targets and greedy search with those of `model`.

    Returns: the differences, for export.json. Raises: UserError for differences above rounding.
    """
    return compare_graphs(OnnxGraphs(folder), model, tokenizers)
