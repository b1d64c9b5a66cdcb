"""Quantisation-aware training: matrix products rounded as int8 engines round them, and the calibration of inputs.

Reference: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference" (rounding in the forward pass alone); the rule is that of Firefox's engines (convert/marian_binary.py).

(1) y = x~ W~^T + b    x~ = clip(round(alpha x), -127, 127) / alpha    W~ = round(m W) / m,  m = 127 / max |W|
(2) gradients pass the rounding unchanged: to x where it was not clipped, to W everywhere

Each layer has its alpha, 127 / (mean + 1.1 standard deviations of max |x|), over sentences in the encoder and steps in
the decoder; each of Marian's matrices, several in some layers, has its m. Embeddings are looked up rounded too.
Departs: sums are in float32, not in whole numbers, and no two products are added up in 16 bits, as on some processors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.convert.marian import moves
from hf_mlnmt.convert.marian_binary import STEPS
from hf_mlnmt.generation.translating.batches import batches_by_tokens, generate
from hf_mlnmt.generation.translating.loading import Parts
from hf_mlnmt.training.objectives import evaluating

SENTENCES = 500  # most sentences of a development set that inputs are calibrated on
OUTPUT = "lm_head"
_BATCH_TOKENS = 2048


def products(config: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields each linear layer but the output projection: its name, and the names of its matrices in Marian."""
    for ours, theirs, transposed in moves(config):
        if transposed and ours.endswith(".weight"):
            yield ours.removesuffix(".weight"), theirs


def calibrate(parts: Parts, texts: Sequence[str]) -> dict[str, float]:
    """Translates texts greedily; returns {name of a linear layer: alpha of its inputs}."""
    model, largest = parts.model, defaultdict[str, list[float]](list)

    def see(name: str, by_step: bool, _: nn.Module, inputs: tuple[Tensor]) -> None:
        sizes = inputs[0].abs().amax(-1).flatten()
        largest[name] += (sizes if by_step else sizes.amax(0, keepdim=True)).tolist()

    sources = encoded(parts, texts)
    hooks = []
    with evaluating(model):
        translations = greedy(parts, sources)
        try:
            for name in [*dict(products(model.config)), OUTPUT]:
                by_step = "encoder." not in name and not name.endswith("kv_proj")
                hooks.append(model.get_submodule(name).register_forward_pre_hook(partial(see, name, by_step)))
            for source, translation in zip(sources, translations, strict=True):
                target = [model.config.decoder_start_token_id, *translation[:-1]]
                ids, inputs = (torch.tensor([row], device=model.device) for row in (source, target))
                model(input_ids=ids, decoder_input_ids=inputs, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
    spread = {name: np.mean(sizes) + 1.1 * np.std(sizes) or 1.0 for name, sizes in largest.items()}
    return {name: float(np.float32(STEPS / size)) for name, size in spread.items()}


def encoded(parts: Parts, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each text, cut to the longest input that the model reads."""
    return [ids.tolist()[: _longest(parts)] for ids in parts.tokenizers.encode_source(texts)]


def _longest(parts: Parts) -> int:
    return parts.model.config.max_position_embeddings - 1


def greedy(parts: Parts, sources: Sequence[list[int]]) -> list[list[int]]:
    """Returns the ids of the greedy translation of each source, the end-of-sentence id included."""
    found: list[list[int]] = [[] for _ in sources]
    for batch in batches_by_tokens(list(map(len, sources)), _BATCH_TOKENS):
        limit = min(2 * max(len(sources[index]) for index in batch) + 4, 256, _longest(parts))
        options = {"num_beams": 1, "num_return_sequences": 1, "do_sample": False, "max_new_tokens": limit}
        rows = generate(parts, [sources[index] for index in batch], options, 0, False)
        for index, (best,) in zip(batch, rows, strict=True):
            found[index] = best.ids
    return found


class _Rounded(torch.autograd.Function):
    """Computes round(scale x) / scale, clipped at 127 steps; passes the gradient on where nothing was clipped."""

    @staticmethod
    def forward(ctx, values: Tensor, scale: Tensor | float):
        steps = (values * scale).round()
        ctx.save_for_backward(steps.abs() <= STEPS)
        return steps.clamp(-STEPS, STEPS) / scale

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient * ctx.saved_tensors[0], None


def rounded_weight(weight: Tensor, count: int = 1) -> Tensor:
    """Returns W~ of equation 1, the rounded weight, of `count` matrices stacked by rows, each with its own scale m."""
    largest = weight.detach().unflatten(0, (count, -1)).abs().amax((1, 2))
    scale = STEPS / torch.where(largest > 0, largest, 1.0)
    return _Rounded.apply(weight, scale.repeat_interleave(len(weight) // count)[:, None])


class RoundedProducts:
    """Computes the products of a model by equation 1 within a block; alphas: {name of a linear layer: alpha}.

    Raises: UserError for a model that is no student of system ssru.
    """

    def __init__(self, model: Any, alphas: Mapping[str, float]) -> None:
        if getattr(model.config, "decoder_autoregression", None) != "ssru":
            raise UserError(
                f"precision.int8: is the rule of Firefox's engines, which run no {type(model).__name__}, but students "
                "of system ssru. Leave it out, or train one of these."
            )
        self.model, self.alphas = model, alphas
        layers = [(name, model.get_submodule(name), len(theirs)) for name, theirs in products(model.config)]
        self.layers = [(module, alphas[name]) for name, module, _ in layers]
        tables = (model.get_encoder().embed_tokens, model.get_decoder().embed_tokens, model.get_submodule(OUTPUT))
        self.places = [*((module, count) for _, module, count in layers), *((module, 1) for module in tables)]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Runs a block in which the model's weights, and the inputs of its linear layers, are rounded."""
        given = [(module, module.weight) for module, _ in self.places]
        made = {id(weight): rounded_weight(weight, count) for (_, weight), (_, count) in zip(given, self.places)}
        hooks = [module.register_forward_pre_hook(partial(_round_input, alpha)) for module, alpha in self.layers]
        # The output projection is never called, the loss multiplies by its matrix: so the decoder's output is rounded.
        hooks.append(self.model.get_decoder().register_forward_hook(partial(_round_state, self.alphas[OUTPUT])))
        try:
            for module, weight in given:
                module._parameters["weight"] = made[id(weight)]
            yield
        finally:
            for module, weight in given:
                module._parameters["weight"] = weight
            for hook in hooks:
                hook.remove()


def _round_input(alpha: float, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (_Rounded.apply(inputs[0], alpha), *inputs[1:])


def _round_state(alpha: float, module: nn.Module, inputs: Any, output: Any) -> Any:
    output.last_hidden_state = _Rounded.apply(output.last_hidden_state, alpha)
    return output
