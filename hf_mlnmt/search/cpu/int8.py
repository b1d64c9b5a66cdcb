"""Linear layers in int8, for a CPU: weights are read in a quarter of the time, and multiplied several times as fast.

Weights are rounded to integers from -127 to 127 with a scale for each output; each input row is rounded when it is
multiplied, with a scale of its own, so that its result depends on no other row. Sums of integers are exact: compiled
code (search.c, by AVX-512 VNNI or AMX) and PyTorch's `_int_mm` differ only in the rounding of the last two products.
"""

import copy
import threading
from typing import Any

import torch
from torch import Tensor, nn

from hf_mlnmt.search.cpu.native import PANEL, library, pointer

STEPS = 127
INPUTS = 64  # a weight's number of inputs is padded to a multiple of this, as in search.c
MOST_INPUTS = 2**16  # sums over more inputs could pass 2^31
_OF_THREAD = threading.local()  # `memory`: compiled code's working memory, grown to what a product has needed
_NO_MEMORY = torch.empty(0, dtype=torch.uint8)


class Int8Linear(nn.Module):
    """A linear layer x W^T + b with W in int8, which replaces nn.Linear in inference: it cannot be trained or saved."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        self.scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny * 2**20) / STEPS  # (outputs)
        self.rounded = (weight / self.scales[:, None]).round().to(torch.int8)  # (outputs, inputs)
        self.bias = None if linear.bias is None else linear.bias.detach().float().clone()
        self.packed: tuple[Tensor, Tensor] | None = None

    def forward(self, states: Tensor) -> Tensor:
        """Computes x W^T + b for states x (..., inputs), float32 -> (..., outputs)."""
        functions = compiled(self)
        rows = states.reshape(-1, self.in_features)
        products = self.multiply(rows) if functions is None else self.multiply_natively(functions, rows.contiguous())
        return products.view(*states.shape[:-1], self.out_features)

    def multiply(self, rows: Tensor) -> Tensor:
        """Computes `forward` for rows (any, inputs) -> (any, outputs) by PyTorch's operations alone."""
        largest = rows.abs().amax(dim=1, keepdim=True)
        steps = torch.full_like(largest, STEPS)  # a tensor: PyTorch rounds a plain number / tensor twice
        inverse = torch.where(largest > 0, steps / largest, 0.0)
        sums = torch._int_mm((rows * inverse).round().to(torch.int8), self.rounded.t())
        products = sums.float() * (largest / STEPS * self.scales)
        return products if self.bias is None else products + self.bias

    def multiply_natively(self, functions: Any, rows: Tensor) -> Tensor:
        """Computes the same as `multiply` in compiled code (search.c)."""
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
        """Returns the weight packed for search.c, at the first call: panels (outputs / PANEL rounded up, inputs / 4,
        PANEL, 4), and 128 times the sum of each output's integers."""
        if self.packed is None:
            outputs, inputs = self.rounded.shape
            blank = -inputs % INPUTS, -outputs % PANEL
            panels = nn.functional.pad(self.rounded, (0, blank[0], 0, blank[1]))
            panels = panels.unflatten(1, (-1, 4)).unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()
            self.packed = panels, 128 * self.rounded.sum(1, dtype=torch.int32)
        return self.packed


def compiled(linear: Int8Linear) -> Any:
    """Returns search.c's functions; None if they are missing, lack int8 instructions, or the layer has too many
    inputs."""
    functions = library(torch.float32)
    known = functions is not None and functions.int8_kind() and linear.in_features <= MOST_INPUTS
    return functions if known else None


def in_int8(model: nn.Module) -> nn.Module:
    """Returns a deep copy of a model in which an `Int8Linear` replaces every nn.Linear."""
    # deepcopy finds the replacements in its memo, so the weights that they replace are not copied.
    linears = {id(module): Int8Linear(module) for module in model.modules() if type(module) is nn.Linear}
    return copy.deepcopy(model, dict(linears))
