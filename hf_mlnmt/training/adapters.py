"""Adapters of PEFT: LoRA matrices that are trained beside the weights of a model that stays as it is.

While it is trained a model holds both, a layer's own weight as <layer>.base_layer.weight and the matrices A (r, inputs)
and B (outputs, r) as <layer>.lora_A.default.weight and <layer>.lora_B.default.weight. A finished model is merged, its
weights W + alpha / r * B A, and has in adapter/ what it was merged with, as PEFT writes it: a folder to publish by
itself. PEFT is imported where a recipe asks for an adapter.

Reference: Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685, section 4.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json, write_json
from hf_mlnmt.common.model_folder import ADAPTER, ADAPTER_WEIGHTS, GENERATION_CONFIG, TEXT_FILES, copy_files
from hf_mlnmt.recipe.schema import Adapter

_BASE, _A, _B = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


def is_of_adapter(name: str) -> bool:
    """Returns whether this is the name of an adapter's parameter, in the model in training."""
    return name.endswith((_A, _B))


def parameters_of_adapter(model: nn.Module) -> int:
    """Counts the parameters of an adapter; 0 without one."""
    return sum(parameter.numel() for name, parameter in model.named_parameters() if is_of_adapter(name))


def plain_name(name: str) -> str:
    """Returns the name of a model's own parameter in the model without an adapter."""
    return name.replace(_BASE, ".")


def add_adapter(model: Any, settings: Adapter, base: str) -> None:
    """Puts an adapter, which computes nothing yet, into a model; everything else is frozen.

    base: the folder or Hub name of the model. Raises: UserError without PEFT, and for layers that cannot be adapted.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UserError("adapter: PEFT is not installed: pip install 'hf-mlnmt[peft]'.") from error
    output = model.get_output_embeddings()
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        lora_dropout=settings.dropout,
        target_modules=settings.modules,
        task_type="SEQ_2_SEQ_LM",
        base_model_name_or_path=base,
    )
    try:
        inject_adapter_in_model(config, model)
    except (ValueError, TypeError, re.error) as error:
        names = {name.rpartition(".")[2] for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
        raise UserError(
            f"adapter.modules: {settings.modules}: {str(error).splitlines()[0]} The model's linear layers are "
            f"{', '.join(sorted(names))}."
        ) from error
    if getattr(model.config, "tie_word_embeddings", False) and model.get_output_embeddings() is not output:
        raise UserError("adapter.modules: the output projection is the token embeddings too: adapt other layers.")


def save_config(model: nn.Module, folder: Path) -> None:
    """Writes the adapter's config into a checkpoint of a model that has one."""
    for config in getattr(model, "peft_config", {}).values():
        config.save_pretrained(folder)
        content = read_json(folder / ADAPTER)
        modules = content["target_modules"]  # a set of names, or a regular expression
        write_json(
            folder / ADAPTER, {**content, "target_modules": modules if isinstance(modules, str) else sorted(modules)}
        )


def merged(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the weights W + alpha / r * B A by their plain names, of those of a model in training."""
    scale = config["lora_alpha"] / config["r"]
    whole = {plain_name(name): tensor for name, tensor in weights.items() if not is_of_adapter(name)}
    for name in (name.removesuffix(_A) for name in weights if name.endswith(_A)):
        whole[f"{name}.weight"] = whole[f"{name}.weight"] + scale * (weights[name + _B] @ weights[name + _A])
    return whole


def write_adapter(model: Path, checkpoint: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes adapter/ into a model folder: the matrices, their config, and what is not the base model's."""
    folder = model / "adapter"
    folder.mkdir()
    copy_files(checkpoint, folder, (ADAPTER, *TEXT_FILES))
    copy_files(model, folder, (GENERATION_CONFIG,))
    named = {
        f"base_model.model.{name.replace('.default.', '.')}": weights[name] for name in filter(is_of_adapter, weights)
    }
    save_file(named, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
