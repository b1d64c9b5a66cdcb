"""Products with one matrix at every position of a loop, whose gradient by the matrix is one product for all positions.

Autograd adds up a gradient of the size of the matrix at every position, each from a product as thin as the batch. Here
a position's backward hands on the gradient of its input alone and lays aside what the matrix needs; when all positions
have done so, all of it is multiplied at once:

(1) y_t = W x_t + b      (2) dx_t = W^T dy_t      (3) dW = sum_t dy_t x_t^T, db = sum_t dy_t

The products may be in half precision (autocast) while the loop's state is not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Aside = list[tuple[Tensor, Tensor]]  # dy_t and x_t, of the positions whose backward has been


class LoopProduct:
    """Equation 1 for x_t (..., inputs), t by t, with W (outputs, inputs) and b (outputs) or None, multiplied as `dtype`
    (None: as W is) and returned as x_t is."""

    def __init__(self, matrix: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None):
        if dtype is not None:
            matrix, bias = matrix.to(dtype), None if bias is None else bias.to(dtype)
        self.matrix, self.bias, self.end = matrix, bias, None
        needed = matrix.requires_grad or (bias is not None and bias.requires_grad)
        if needed and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.aside: Aside = []
            self.end = _AllPositions.apply(matrix, bias, self.aside)
            self.matrix, self.bias = matrix.detach(), None if bias is None else bias.detach()

    def __call__(self, inputs: Tensor) -> Tensor:
        """y_t (..., outputs)."""
        given = inputs.to(self.matrix.dtype)
        if self.end is None:
            return nn.functional.linear(given, self.matrix, self.bias).to(inputs.dtype)
        return _OnePosition.apply(given, self.matrix, self.bias, self.end, self.aside).to(inputs.dtype)


class _AllPositions(torch.autograd.Function):
    """Nothing, on the way forward; on the way back, which ends here, equation 3."""

    @staticmethod
    def forward(ctx, matrix: Tensor, bias: Tensor | None, aside: Aside) -> Tensor:
        ctx.aside, ctx.biased = aside, bias is not None
        return matrix.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        by_outputs, inputs = (torch.cat([x.flatten(0, -2) for x in part]) for part in zip(*ctx.aside))
        ctx.aside.clear()
        by_bias = by_outputs.sum(0) if ctx.biased and ctx.needs_input_grad[1] else None
        return by_outputs.t() @ inputs if ctx.needs_input_grad[0] else None, by_bias, None


class _OnePosition(torch.autograd.Function):
    """Equations 1 and 2; `end` (a scalar) is there to let autograd know what comes after all positions."""

    @staticmethod
    def forward(ctx, inputs: Tensor, matrix: Tensor, bias: Tensor | None, end: Tensor, aside: Aside) -> Tensor:
        ctx.save_for_backward(inputs, matrix)
        ctx.aside = aside
        return nn.functional.linear(inputs, matrix, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        inputs, matrix = ctx.saved_tensors
        ctx.aside.append((gradient, inputs))
        return gradient @ matrix if ctx.needs_input_grad[0] else None, None, None, gradient.new_zeros(()), None
