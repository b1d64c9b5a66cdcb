"""Matrices of linear layers, for code that cannot call the layer (`matrix_of`), and several matrices in one parameter.

The matrix itself is needed for the output projection inside the loss and for matrices multiplied before a recurrence:
`matrix_of` returns the matrix by which a call multiplies, as changed by an adapter, int8 or a hook (linear.py).
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .configuration import StackConfig


def matrix_of(module: nn.Module, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Returns the matrix W (outputs, inputs) and the bias b (outputs) or None of a linear layer, module(x) = x W^T + b;
    `like`: a tensor on the device of x.

    For a plain linear layer they are its parameters; for other modules they are computed from the outputs for zero and
    the unit vectors. Gradients flow through both. Dropout in the module (lora_dropout) drops inputs at all positions.
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
    """Returns whether a call runs the forward of class `of` with a parameter `weight`: no adapter, int8 or hook."""
    return (
        type(module).forward is of.forward
        and "weight" in module._parameters  # not computed by a parametrisation
        and not (module._forward_hooks or module._forward_pre_hooks)
        and "forward" not in module.__dict__
    )


def in_own_precision(tensor: Tensor) -> AbstractContextManager:
    """Returns a context without autocast on the tensor's device: products have the precision of their factors."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Returns the dtype in which products of the tensor are computed: autocast's on its device, or its own."""
    device = tensor.device.type
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if on else tensor.dtype


class JointMatrices(nn.Module):
    """The base of modules with several matrices in one parameter, `weight`, each initialised like a linear layer's."""

    weight: Tensor
    fans: int  # the number of inputs plus that of outputs of one matrix

    def begin_weights(self, config: StackConfig) -> None:
        if config.init_std is not None:
            init.normal_(self.weight, std=config.init_std)
        else:  # Xavier-uniform, by the size of one matrix
            bound = (6 / self.fans) ** 0.5
            init.uniform_(self.weight, -bound, bound)
        bias: Any = getattr(self, "bias", None)
        if bias is not None:
            init.zeros_(bias)
