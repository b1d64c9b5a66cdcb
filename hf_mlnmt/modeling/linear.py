"""Linear layers: `project` calls one, `matrix_of` returns its matrix; and the slots for faster code.

The rule: a layer is called; nobody reads the weight of another module. An adapter (PEFT), weights in int8, a hook or a
parametrisation change what a call computes and leave the weight as it was, or leave none. Where a product needs the
matrix itself (the output projection inside the loss, matrices multiplied before a recurrence), `matrix_of` gives the
one that the call multiplies by.

The code beside published weights works without the package hf_mlnmt: it computes everything by PyTorch's functions.
`import hf_mlnmt` fills two slots with modules that compute the same faster.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

products: Any = None  # hf_mlnmt/common/matmul_backends.py: products on a CPU
kernels: Any = None  # hf_mlnmt/modeling/fused.py: parts of a training step


def faster(name: str, *arguments: Any) -> Any:
    """Calls the function of fused.py of that name, which returns None where the caller is to compute the result; so
    does an empty slot."""
    return None if kernels is None else getattr(kernels, name)(*arguments)


def project(module: nn.Module, states: Tensor) -> Tensor:
    """Calls a linear layer: states (..., inputs) -> (..., outputs)."""
    product = None if products is None else products.project(module, states)
    return module(states) if product is None else product


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
