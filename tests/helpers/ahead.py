"""A device that Python runs ahead of, for tests on a CPU.

Tensors on "meta" have no values: whatever reads one raises. And where `is_asynchronous` says yes the CPU goes the ways
of a GPU, and finds the values that it finds by its own.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


def step_without_values(model: Any, with_optimizer: bool = True, **batch: torch.Tensor) -> None:
    """A step of training on "meta": loss, gradients, and their norm's limit and the optimizer, which see no model."""
    model = model.train().to("meta")
    loss = model(**{name: tensor.to("meta") for name, tensor in batch.items()}, smoothing=0.1, loss_only=True).loss
    loss.backward()
    if not with_optimizer:
        return
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(model.parameters(), foreach=True).step()


def run_ahead(monkeypatch: Any) -> None:
    """Python runs ahead of the CPU too, for all modules of models."""
    for name, module in list(sys.modules.items()):
        if name.startswith("hf_mlnmt.modeling.") and hasattr(module, "is_asynchronous"):
            monkeypatch.setattr(module, "is_asynchronous", lambda tensor: True)
