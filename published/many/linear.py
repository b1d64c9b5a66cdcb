"""The products of a linear layer: `project` with its own input, and its matrix for those with something else.

The rule: a layer is called; nobody reads the weight of another module. An adapter (PEFT), weights in int8, a hook or a
parametrisation change what a call computes and leave the weight as it was, or leave none. Where a product needs the
matrix itself (the output projection inside the loss, matrices multiplied before a recurrence), `matrix_of` gives the
one that the call multiplies by. `project` is a call, computed by the library that is the faster one on this processor;
it comes through a slot that `import hf_mlnmt` fills, for code beside published weights works without that package.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

products: Any = None  # hf_mlnmt/common/matmul_backends.py, where it is known


def project(module: nn.Module, states: Tensor) -> Tensor:
    """Calls a linear layer: states (..., inputs) -> (..., outputs)."""
    product = None if products is None else products.project(module, states)
    return module(states) if product is None else product


def multiply(states: Tensor, weight: Tensor, kind: str) -> Tensor | None:
    """Multiplies states (rows, inputs) by the transposed weight (outputs, inputs), outside of autograd, where
    something is faster at this kind of product ("forward", "by_states") than torch.mm; else returns None."""
    return None if products is None else products.multiply(states, weight, kind)


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


def chained(second: nn.Module, first: nn.Module, like: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns W_2, W_1 and b, or None for no bias, of second(first(x)) = x W_1^T W_2^T + b."""
    (outer, bias), (inner, offset) = matrix_of(second, like), matrix_of(first, like)
    return outer, inner, bias if offset is None else second(offset.unsqueeze(0)).squeeze(0)


def in_own_precision(tensor: Tensor) -> AbstractContextManager:
    """Turns autocast off on the tensor's device: products are in the precision of their factors."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Returns the type that products of the tensor are computed in: autocast's on its device, or its own."""
    device = tensor.device.type
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if on else tensor.dtype


def runs_ahead(tensor: Tensor) -> bool:
    """Returns whether Python runs ahead of the tensor's device. To read a value there (`bool()`, `.item()`, a mask as
    an index) is to wait for all that it was told before, and to leave it idle after."""
    return tensor.device.type != "cpu"


def is_plain(module: nn.Module, of: type[nn.Module] = nn.Linear) -> bool:
    """Returns whether a call is that of the class, with the weight: no adapter, no int8, no hook, no other forward."""
    return (
        type(module).forward is of.forward
        and "weight" in module._parameters  # or it is computed
        and not (module._forward_hooks or module._forward_pre_hooks)
        and "forward" not in module.__dict__
    )
