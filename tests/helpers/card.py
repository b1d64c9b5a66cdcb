"""The way of a training step on a GPU, on a CPU: the kernels of training_triton.py as PyTorch's operations."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hf_mlnmt.modeling import fused
from hf_mlnmt.training import half_weights

from .ahead import run_ahead


def keeps(seed: torch.Tensor, shape: Any, rate: float) -> torch.Tensor:
    """Which elements the kernels' dropout keeps: the hash of training_triton.py in integers of 64 bits."""
    low, high = (int(seed.flatten()[0]) >> part & 0xFFFFFFFF for part in (0, 32))
    bits = (torch.arange(torch.Size(shape).numel()) + low) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 17)) * 0xED5AD4BB) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 11) ^ high) * 0xAC4C1B51) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 15)) * 0x31848BAB) & 0xFFFFFFFF
    bits = bits ^ (bits >> 14)
    return ((bits >> 8).float() / 16777216 >= rate).view(shape)


def dropped(values: torch.Tensor, seed: torch.Tensor | None, rate: float) -> torch.Tensor:
    return values if seed is None else values * keeps(seed, values.shape, rate) / (1 - rate)


def exact(*tensors: Any) -> list[Any]:
    """Copies in float32, or float64, that ask for a gradient."""
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    return [None if x is None else x.detach().to(wide).requires_grad_() for x in tensors]


def gradients(output: torch.Tensor, gradient: torch.Tensor, inputs: list[Any]) -> list[Any]:
    there = [x for x in inputs if x is not None]
    found = iter(torch.autograd.grad(output, there, gradient.to(output.dtype)))
    return [None if x is None else next(found) for x in inputs]


def _residual(states, computed, seed, weight, bias, rate, eps):
    total = states if computed is None else states + dropped(computed, seed, rate)
    return total if weight is None else nn.functional.layer_norm(total, total.shape[-1:], weight, bias, eps)


def residual_forward(states, computed, seed, weight, bias, rate, eps):
    output = _residual(*exact(states, computed), seed, *exact(states, weight, bias)[1:], rate, eps)
    wide = exact(states)[0]
    return output.detach().to(states.dtype), *(None if weight is None else x for x in (wide, wide.new_tensor(eps)))


def residual_backward(gradient, states, computed, seed, weight, means, scales, rate):
    with torch.enable_grad():
        inputs = [*exact(states, computed), *exact(states, weight, None if weight is None else weight)[1:]]
        eps = 0.0 if scales is None else float(scales)
        output = _residual(*inputs[:2], seed, *inputs[2:], rate, eps)
        by_states, by_computed, by_weight, by_bias = gradients(output, gradient, inputs)
    return by_states.to(states.dtype), None if computed is None else by_computed.to(computed.dtype), by_weight, by_bias


def _attention(query, key, value, mask, seed, scale, rate, causal):
    scores = query @ key.transpose(2, 3) * scale
    seen = torch.ones(scores.shape[2:], dtype=torch.bool)
    seen = (seen.tril() if causal else seen).expand(scores.shape)
    if mask is not None:
        scores, seen = (scores, seen & mask) if mask.dtype == torch.bool else (scores + mask, seen)
    weights = torch.softmax(scores.masked_fill(~seen, -1e30), -1) * seen
    return (dropped(weights, seed, rate) @ value).transpose(1, 2)


def attention_forward(query, key, value, mask, seed, *settings):
    output = _attention(*exact(query, key, value), mask, seed, *settings)
    return output.detach().to(query.dtype).contiguous()


def attention_backward(gradient, query, key, value, mask, seed, scale, rate, causal, *by_views):
    with torch.enable_grad():
        inputs = exact(query, key, value)
        found = gradients(_attention(*inputs, mask, seed, scale, rate, causal), gradient, inputs)
    for place, by_view in zip(by_views, found):
        place.copy_(by_view)


def activation_backward(gradient, hidden):
    output = gradient * (hidden > 0)
    return output, output.float().sum(0)


def loss_in_place(logits, bias, labels, losses, smoothing, differentiated):
    (z,) = exact(logits)
    with torch.enable_grad():
        full = z if bias is None else z + bias
        log_p = torch.log_softmax(full, -1)
        each = -(1 - smoothing) * log_p.gather(1, labels.clamp(min=0)[:, None])[:, 0] - smoothing * log_p.mean(-1)
        each = torch.where(labels < 0, 0.0, each)
        losses.copy_(each.detach())
        if differentiated:
            logits.copy_(torch.autograd.grad(each.sum(), z)[0])


TWINS = {
    function.__name__: function
    for function in (
        residual_forward, residual_backward, attention_forward, attention_backward, activation_backward,
        loss_in_place,
    )
}  # fmt: skip


def on_card(monkeypatch: Any, kernels: Any = TWINS) -> None:
    """Training steps go the way of a GPU."""
    run_ahead(monkeypatch)

    def known(tensor):
        return None if tensor.dtype == torch.float64 or torch.compiler.is_compiling() else kernels

    monkeypatch.setattr(fused, "kernels_for", known)
    monkeypatch.setattr(fused, "trains_mixed_on_cpu", lambda states: False)
    monkeypatch.setattr(half_weights, "is_asynchronous", lambda tensor: True)


class Launches(TorchDispatchMode):
    """Counts what a GPU would be told while this is on: operations but views, each of our kernels as one.

    `casts`: shapes of what becomes another floating type, one by one; `together`: lists of tensors that do at once.
    """

    VIEWS = ("view", "transpose", "slice", "split", "select", "permute", "expand", "unsqueeze", "squeeze")
    VIEWS += ("t.", "as_strided")
    FREE = (*VIEWS, "detach", "empty", "alias", "unbind", "lift", "_unsafe_view", "is_", "new_empty", "_local")

    def __init__(self) -> None:
        super().__init__()
        self.casts: list[torch.Size] = []
        self.together: list[int] = []
        self.number = self.draws = self._inside = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        output, name = operation(*args, **(kwargs or {})), str(operation).removeprefix("aten.")
        if not self._inside and not name.startswith(self.FREE):
            self.number += 1
            if name.startswith("_to_copy") and output.is_floating_point() and args[0].is_floating_point():
                self.casts.append(output.shape)
            self.draws += name.startswith(("random_", "bernoulli", "native_dropout"))
            if name.startswith("_foreach_copy"):
                self.together.append(len(args[0]))
        return output

    def kernels(self) -> dict[str, Any]:
        """Returns the kernels' twins, each of which counts as one launch."""

        def counting(twin):
            def run(*args):
                self.number += 1
                self._inside += 1
                try:
                    return twin(*args)
                finally:
                    self._inside -= 1

            return run

        return {name: counting(twin) for name, twin in TWINS.items()}


def run_in_the_interpreter(folder: str, code: str) -> None:
    """Runs code that imports a test file of `folder` with Triton's interpreter, in a process of its own."""
    path = os.pathsep.join([folder, os.path.dirname(folder), *sys.path])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if "triton/runtime/interpreter.py" in done.stderr and "only 0-dimensional arrays" in done.stderr:
        pytest.skip("the interpreter of this Triton does not know this NumPy")
    assert done.returncode == 0, done.stderr[-3000:]
