"""Calls of linear layers (`project`), and two variables, set by `import hf_mlnmt`, for modules that compute faster.

The rule: layers are called, and no code reads the weight of another module. An adapter (PEFT), weights in int8, a hook
or a parametrisation change the result of a call but not the weight, or leave no weight (matrices.py).

In the code beside published weights both variables stay None, and PyTorch computes everything.
"""

from typing import Any

from torch import Tensor, nn

products: Any = None  # the module hf_mlnmt/common/matmul_backends.py, which multiplies matrices on a CPU
kernels: Any = None  # the module hf_mlnmt/modeling/fused.py, which computes parts of a training step


def faster(name: str, *arguments: Any) -> Any:
    """Returns the result of fused.py's function `name`. Returns None where this function does or fused.py is not
    loaded: then the caller must compute the result."""
    return None if kernels is None else getattr(kernels, name)(*arguments)


def project(module: nn.Module, states: Tensor) -> Tensor:
    """Calls a linear layer: states (..., inputs) -> (..., outputs)."""
    product = None if products is None else products.project(module, states)
    return module(states) if product is None else product


def is_asynchronous(tensor: Tensor) -> bool:
    """Returns whether the tensor's device is not a CPU: Python queues operations there, and reading a value (`bool()`,
    `.item()`, a mask as an index) would wait for all of them."""
    return tensor.device.type != "cpu"
