"""Linear layers whose weights are kept in int8, for a CPU: PyTorch's own products (FBGEMM, oneDNN).

A weight is rounded to 255 steps with a scale for each output; inputs are rounded as they come, with one scale for all
of a call. FBGEMM takes less time for a few rows, oneDNN for many.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

MANY_ROWS = 24


class Int8Linear(nn.Module):
    """x W^T + b with W in int8, in the place of nn.Linear; it has no parameters and cannot be trained or saved."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny * 2**20) / 127  # (outputs)
        zeros = torch.zeros(len(scales), dtype=torch.long)
        rounded = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.few_rows, self.many_rows = (_packed(rounded, bias, engine) for engine in _engines())

    def forward(self, states: Tensor) -> Tensor:
        """states (..., inputs), float32 -> (..., outputs)."""
        many = states.numel() >= MANY_ROWS * self.in_features
        return torch.ops.quantized.linear_dynamic(states, self.many_rows if many else self.few_rows, True)


def in_int8(model: nn.Module) -> nn.Module:
    """A copy of a model with every nn.Linear in int8; what else it is made of is copied as it is."""
    # Their weights are not copied first: only what takes their place is.
    linears = {id(module): Int8Linear(module) for module in model.modules() if type(module) is nn.Linear}
    return copy.deepcopy(model, dict(linears))


def _engines() -> tuple[str, str]:
    """PyTorch's names of what multiplies few rows, and many."""
    supported = torch.backends.quantized.supported_engines
    few = next(name for name in ("fbgemm", "x86", "qnnpack", "onednn") if name in supported)
    return few, "onednn" if "onednn" in supported else few


def _packed(weight: Tensor, bias: Tensor | None, engine: str) -> Any:
    with _engine(engine):
        return torch.ops.quantized.linear_prepack(weight, bias)


@contextmanager
def _engine(name: str) -> Iterator[None]:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
