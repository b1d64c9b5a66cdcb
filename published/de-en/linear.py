"""Calls of linear layers (`project`), and two slots for modules that compute the same faster.

The rule: layers are called, and no code reads the weight of another module. An adapter (PEFT), weights in int8, a hook
or a parametrisation change the result of a call but not the weight, or leave no weight (matrices.py).

`import hf_mlnmt` fills the slots; in the code beside published weights they are empty, and PyTorch computes everything.
"""

from typing import Any

from torch import Tensor, nn

products: Any = None  # hf_mlnmt/common/matmul_backends.py: products on a CPU
kernels: Any = None  # hf_mlnmt/modeling/fused.py: parts of a training step


def faster(name: str, *arguments: Any) -> Any:
    """Returns the result of the function `name` of fused.py; None, and the caller must compute it, where the function
    returns None or the slot is empty."""
    return None if kernels is None else getattr(kernels, name)(*arguments)


def project(module: nn.Module, states: Tensor) -> Tensor:
    """Calls a linear layer: states (..., inputs) -> (..., outputs)."""
    product = None if products is None else products.project(module, states)
    return module(states) if product is None else product


def is_asynchronous(tensor: Tensor) -> bool:
    """Returns whether the tensor's device is not a CPU: Python queues operations there, and reading a value (`bool()`,
    `.item()`, a mask as an index) would wait for all of them."""
    return tensor.device.type != "cpu"
