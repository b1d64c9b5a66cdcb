"""Linear layers: `project` calls one; and the slots for faster code.

The rule: a layer is called; nobody reads the weight of another module. An adapter (PEFT), weights in int8, a hook or a
parametrisation change what a call computes and leave the weight as it was, or leave none (matrices.py).

The code beside published weights works without the package hf_mlnmt: it computes everything by PyTorch's functions.
`import hf_mlnmt` fills two slots with modules that compute the same faster.
"""

from typing import Any

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


def is_asynchronous(tensor: Tensor) -> bool:
    """Returns whether the tensor's device is no CPU, so that Python runs ahead of it. To read a value there (`bool()`,
    `.item()`, a mask as an index) is to wait for all that it was told before, and to leave it idle after."""
    return tensor.device.type != "cpu"
