"""Models whose weights, gradients and optimizer do not fit one device: divided over the processes, as FSDP2 does.

A layer's weights are gathered while it computes. While a model is evaluated or saved every process has all of them
(`whole`), so that checkpoints are those of a training that divides nothing, and either goes on from the other's.

Reference: Zhao et al. 2023, PyTorch FSDP; torch.distributed.fsdp.fully_shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from transformers.modeling_layers import GradientCheckpointingLayer


def shard(model: nn.Module, optimizer: Optimizer) -> nn.Module:
    """Divides a model's parameters over all processes, those of each layer by themselves; the optimizer gets them."""
    before = dict(model.named_parameters())
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module)
    fully_shard(model)
    now = dict(model.named_parameters())
    divided = {parameter: now[name] for name, parameter in before.items()}
    for group in optimizer.param_groups:
        group["params"] = [divided[parameter] for parameter in group["params"]]
    return model


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Gives every process all weights while a block runs, in which none waits for another to compute."""
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    layers = [part for part in parts if part is not model]
    for part in parts:
        part.unshard()
    for layer in layers:
        layer.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_reshard_after_forward(True, recurse=False)
        for part in parts:
            part.reshard()


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Returns the state dict of a model that is `whole`; its own method divides it again."""
    state = {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}
    for prefix, module in model.named_modules():
        for name in module._buffers.keys() - module._non_persistent_buffers_set:
            state[f"{prefix}.{name}".removeprefix(".")] = module.get_buffer(name)
    return state


def gathered(value: Any) -> Any:
    """Returns an optimizer's state with whole tensors, on the CPU; all processes must ask, and all get it."""
    if isinstance(value, dict):
        return {key: gathered(each) for key, each in value.items()}
    if isinstance(value, list):
        return [gathered(each) for each in value]
    return value.full_tensor().cpu() if isinstance(value, DTensor) else value


def load(optimizer: Optimizer, file: Path) -> None:
    """Loads whole tensors into an optimizer of divided parameters, of each this process's part."""
    saved = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, state in saved["state"].items():
        weight: Any = parameters[number]
        saved["state"][number] = {name: _part(value, weight) for name, value in state.items()}
    optimizer.load_state_dict(saved)


def _part(value: Any, weight: DTensor) -> Any:
    if not isinstance(value, Tensor) or value.shape != weight.shape:  # a counter of steps
        return value
    return distribute_tensor(value, weight.device_mesh, weight.placements, src_data_rank=None)
