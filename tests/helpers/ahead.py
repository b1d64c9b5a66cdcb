"""A device that Python runs ahead of, for tests on a CPU.

Tensors on "meta" have no values: whatever reads one raises. And where `is_asynchronous` says yes the CPU goes the ways
of a GPU, and finds the values that it finds by its own.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def step_without_values(model: Any, with_optimizer: bool = True, **batch: torch.Tensor) -> None:
    """A step of training on "meta": loss, gradients, and their norm's limit and the optimizer, which see no model."""
    model = model.train().to("meta")
    loss = model(**{name: tensor.to("meta") for name, tensor in batch.items()}, smoothing=0.1, loss_only=True).loss
    loss.backward()
    if not with_optimizer:
        return
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(model.parameters(), foreach=True).step()


# Operations whose result the CPU waits for.
READS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "masked_select", "unique", "_unique2", "equal"}


class ReadsNothing(TorchDispatchMode):
    """Refuses what reads a value, at the speed of the operations themselves; "meta" is the proof, and slow."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.removeprefix("aten::").rstrip("_")
        indices = args[1] if name in ("index", "index_put", "_index_put_impl") else ()
        assert name not in READS, f"{name} reads a value"
        assert not any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices), name
        return function(*args, **(kwargs or {}))


def run_ahead(monkeypatch: Any) -> None:
    """Python runs ahead of the CPU too, for all modules of models."""
    for name, module in list(sys.modules.items()):
        if name.startswith("hf_mlnmt.modeling.") and hasattr(module, "is_asynchronous"):
            monkeypatch.setattr(module, "is_asynchronous", lambda tensor: True)
