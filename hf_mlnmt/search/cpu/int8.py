"""Linear layers in int8, for a CPU: weights are read in a quarter of the time, and multiplied several times as fast.

A weight is rounded to 127 steps either way with a scale for each output; an input row is rounded as it comes, with a
scale of its own: so what is computed for a row depends on no other row. The sums are whole numbers and exact: compiled
code (search.c, by AVX-512 VNNI or AMX) and PyTorch's `_int_mm` give the same but for the rounding of the last two
products.
"""

import copy
import threading
from typing import Any

import torch
from torch import Tensor, nn

from hf_mlnmt.search.cpu.native import PANEL, library, pointer

STEPS = 127
INPUTS = 64  # what inputs are padded to, as in search.c
MOST_INPUTS = 2**16  # sums of more could pass 2^31
_OF_THREAD = threading.local()  # memory that compiled code computes in, as much as the largest product needed
_NO_MEMORY = torch.empty(0, dtype=torch.uint8)


class Int8Linear(nn.Module):
    """x W^T + b with W in int8, in the place of nn.Linear; it has no parameters and cannot be trained or saved."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        self.scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny * 2**20) / STEPS  # (outputs)
        self.rounded = (weight / self.scales[:, None]).round().to(torch.int8)  # (outputs, inputs)
        self.bias = None if linear.bias is None else linear.bias.detach().float().clone()
        self.packed: tuple[Tensor, Tensor] | None = None

    def forward(self, states: Tensor) -> Tensor:
        """Multiplies states (..., inputs), float32 -> (..., outputs)."""
        functions = compiled(self)
        rows = states.reshape(-1, self.in_features)
        products = self.multiply(rows) if functions is None else self.multiply_natively(functions, rows.contiguous())
        return products.view(*states.shape[:-1], self.out_features)

    def multiply(self, rows: Tensor) -> Tensor:
        """Multiplies rows (any, inputs) -> (any, outputs) by PyTorch's operations."""
        largest = rows.abs().amax(dim=1, keepdim=True)
        steps = torch.full_like(largest, STEPS)  # a number divided by a tensor would be rounded twice
        inverse = torch.where(largest > 0, steps / largest, 0.0)
        sums = torch._int_mm((rows * inverse).round().to(torch.int8), self.rounded.t())
        products = sums.float() * (largest / STEPS * self.scales)
        return products if self.bias is None else products + self.bias

    def multiply_natively(self, functions: Any, rows: Tensor) -> Tensor:
        """Multiplies them in compiled code."""
        products = rows.new_empty(len(rows), self.out_features)
        numbers, sums = self.pack()
        sizes = len(rows), self.in_features, self.out_features
        tensors = rows, numbers, self.scales, sums, self.bias, products
        memory = getattr(_OF_THREAD, "memory", _NO_MEMORY)
        while missing := functions.linear(
            *sizes, *map(pointer, tensors), memory.data_ptr(), len(memory), torch.get_num_threads()
        ):
            memory = _OF_THREAD.memory = torch.empty(missing, dtype=torch.uint8)
        return products

    def pack(self) -> tuple[Tensor, Tensor]:
        """Returns what search.c reads: panels (outputs / PANEL rounded up, inputs / 4, PANEL, 4), and 128 times the sum
        of the numbers of each output."""
        if self.packed is None:
            outputs, inputs = self.rounded.shape
            blank = -inputs % INPUTS, -outputs % PANEL
            panels = nn.functional.pad(self.rounded, (0, blank[0], 0, blank[1]))
            panels = panels.unflatten(1, (-1, 4)).unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()
            self.packed = panels, 128 * self.rounded.sum(1, dtype=torch.int32)
        return self.packed


def compiled(linear: Int8Linear) -> Any:
    """Returns the compiled functions, where this processor has instructions for int8 that they use; or None."""
    functions = library(torch.float32)
    known = functions is not None and functions.int8_kind() and linear.in_features <= MOST_INPUTS
    return functions if known else None


def in_int8(model: nn.Module) -> nn.Module:
    """Copies a model, every nn.Linear in int8, and what else it is made of as it is."""
    # Their weights are not copied first: only what takes their place is.
    linears = {id(module): Int8Linear(module) for module in model.modules() if type(module) is nn.Linear}
    return copy.deepcopy(model, dict(linears))
