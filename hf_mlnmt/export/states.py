"""A model's cache as a list of tensors, and the two modules that an ONNX export traces (see onnx.py).

They know nothing of the architectures: whatever tensors the layers of a cache hold is state.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache


class Sizes(NamedTuple):
    """The dimensions that the graphs leave open, by name."""

    batch: int
    source: int
    past: int


class Slot(NamedTuple):
    """One tensor of a cache: `cache` 0 is the decoder's own (past), 1 the source's."""

    cache: int
    layer: int
    name: str


def caches_of(cache: Any) -> list[Any]:
    return [cache.self_attention_cache, cache.cross_attention_cache]


def new_cache(config: Any) -> EncoderDecoderCache:
    return EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))


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
        self.cache = new_cache(model.config)
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
        """A cache like the sample's that holds these states; without `source` the source has not been read yet."""
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
    """The tensors that a cache holds in `slots`."""
    return [getattr(caches_of(cache)[slot.cache].layers[slot.layer], slot.name) for slot in slots]


class Encode(nn.Module):
    """What stays the same for a sentence; the decoder takes a first step to project it, of which nothing else is kept.

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
