"""Weights in half precision on an accelerator: all are cast once for the forward pass of a step, by one call.

Autocast casts a weight wherever it is used, and its gradient back: some 300 kernels a step. Here all weights are cast
before the model runs and replace the parameters until the forward pass ends; one call casts their gradients to float32.
What is trained, clipped and saved is in float32. States are in half precision from the embeddings on; autocast stays on
for what must not be (a softmax, a norm that no kernel of modeling/fused.py computes).

Not cast here are layer norms, whose kernels read float32, and layers with LSTMs, which compute in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_mlnmt.modeling.fused import one_draw
from hf_mlnmt.modeling.linear import is_asynchronous
from hf_mlnmt.modeling.matrices import product_dtype

AS_THEY_ARE = (nn.LayerNorm, nn.RNNBase, nn.RNNCellBase)


def _left(model: nn.Module) -> set[nn.Module]:
    """Returns the modules whose weights are not cast: layer norms, and layers with LSTMs."""
    left = {module for module in model.modules() if isinstance(module, AS_THEY_ARE)}
    recurrent = {module for module in left if not isinstance(module, nn.LayerNorm)}
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    return left.union(*[layer.modules() for layer in layers if not recurrent.isdisjoint(layer.modules())])


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # a weight that no loss used gets no gradient and no update
        copies = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        torch._foreach_copy_(copies, weights)
        ctx.mark_non_differentiable(*[copy for copy, weight in zip(copies, weights) if not weight.requires_grad])
        return tuple(copies)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor | None):
        found = [gradient for gradient in gradients if gradient is not None]
        wide = [torch.empty_like(gradient, dtype=torch.float32) for gradient in found]
        if found:
            torch._foreach_copy_(wide, found)
        rest = iter(wide)
        return None, *[None if gradient is None else next(rest) for gradient in gradients]


class HalfWeights:
    """Casts a model's float32 weights to half precision for the forward pass of a step."""

    def __init__(self, model: nn.Module) -> None:
        left = _left(model)
        self.layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        modules = [module for module in model.modules() if module not in left]
        self.places: list[tuple[dict[str, Any], str]] = [
            (m._parameters, name) for m in modules for name in m._parameters
        ]

    @contextmanager
    def cast(self) -> Iterator[None]:
        """Runs a block with the weights in autocast's dtype; does nothing without gradients, on a CPU, or with gradient
        checkpointing, which computes layers again after the block."""
        given = [(held, name, held[name]) for held, name in self.places if held[name] is not None]
        weights = {id(weight): weight for _, _, weight in given if weight.dtype == torch.float32}
        first = next(iter(weights.values()), None)
        dtype = torch.float32 if first is None else product_dtype(first)
        known = dtype != torch.float32 and torch.is_grad_enabled()
        again = any(layer.gradient_checkpointing for layer in self.layers)
        if first is None or not known or again or not is_asynchronous(first):
            yield
            return
        copies = dict(zip(weights, _Cast.apply(dtype, *weights.values())))
        try:
            for held, name, weight in given:
                held[name] = copies.get(id(weight), weight)
            with one_draw(first.device):
                yield
        finally:
            for held, name, weight in given:
                held[name] = weight
