"""Matrices of linear layers, where a call does not do: `matrix_of` a layer, and several in one parameter.

A product may need the matrix itself (the output projection inside the loss, matrices multiplied before a recurrence):
`matrix_of` gives the one that the call multiplies by, which an adapter, int8 or a hook may have changed (linear.py).
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .configuration import StackConfig


def matrix_of(module: nn.Module, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Returns W (outputs, inputs) and b (outputs) or None, of module(x) = x W^T + b; `like` is on x's device.

    Of a plain linear layer they are its parameters; of anything else what it makes of zero and of the unit vectors.
    Gradients flow through both. A dropout in the module (lora_dropout) leaves out inputs, for all positions alike.
    """
    if is_plain(module):
        return module.weight, module.bias  # type: ignore[return-value]
    width: int = module.in_features  # type: ignore[assignment]
    number = next((x.dtype for x in module.parameters() if x.is_floating_point()), torch.float32)
    vectors = torch.eye(width, dtype=number, device=like.device)
    with in_own_precision(like):
        images = module(torch.cat([torch.zeros_like(vectors[:1]), vectors]))
    return (images[1:] - images[0]).t(), images[0]


def is_plain(module: nn.Module, of: type[nn.Module] = nn.Linear) -> bool:
    """Returns whether a call is that of the class, with the weight: no adapter, no int8, no hook, no other forward."""
    return (
        type(module).forward is of.forward
        and "weight" in module._parameters  # or it is computed
        and not (module._forward_hooks or module._forward_pre_hooks)
        and "forward" not in module.__dict__
    )


def in_own_precision(tensor: Tensor) -> AbstractContextManager:
    """Turns autocast off on the tensor's device: products are in the precision of their factors."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Returns the type that products of the tensor are computed in: autocast's on its device, or its own."""
    device = tensor.device.type
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if on else tensor.dtype


class JointMatrices(nn.Module):
    """Matrices that are one parameter, `weight`; each begins as a linear layer of the baseline would."""

    weight: Tensor
    fans: int  # inputs and outputs of one matrix

    def begin_weights(self, config: StackConfig) -> None:
        if config.init_std is not None:
            init.normal_(self.weight, std=config.init_std)
        else:  # Xavier-uniform
            bound = (6 / self.fans) ** 0.5
            init.uniform_(self.weight, -bound, bound)
        bias: Any = getattr(self, "bias", None)
        if bias is not None:
            init.zeros_(bias)
