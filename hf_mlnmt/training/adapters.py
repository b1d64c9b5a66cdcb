"""LoRA adapters by PEFT: matrices of low rank that are trained while the model's own weights stay frozen.

In training, a layer's own weight is named <layer>.base_layer.weight, and the matrices A (r, inputs) and B (outputs, r)
are <layer>.lora_A.default.weight and <layer>.lora_B.default.weight. A finished model has the merged weights W + alpha /
r * B A, and in adapter/ the matrices alone in PEFT's format, a folder that can be published by itself. PEFT is imported
only where a recipe asks for an adapter.

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
    """Returns whether a parameter of a model in training is an adapter's matrix A or B."""
    return name.endswith((_A, _B))


def parameters_of_adapter(model: nn.Module) -> int:
    """Counts the parameters of an adapter; 0 without one."""
    return sum(parameter.numel() for name, parameter in model.named_parameters() if is_of_adapter(name))


def plain_name(name: str) -> str:
    """Returns the name that a parameter of a model with an adapter has in the model without one."""
    return name.replace(_BASE, ".")


def add_adapter(model: Any, settings: Adapter, base: str) -> None:
    """Adds LoRA matrices, B zero at first, to the layers of `settings.modules`; freezes all other weights.

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
    """Writes the config of the model's adapter into a checkpoint folder; nothing for a model without one."""
    for config in getattr(model, "peft_config", {}).values():
        config.save_pretrained(folder)
        content = read_json(folder / ADAPTER)
        modules = content["target_modules"]  # PEFT writes a set of names in any order, or a regular expression
        write_json(
            folder / ADAPTER, {**content, "target_modules": modules if isinstance(modules, str) else sorted(modules)}
        )


def merged(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Merges an adapter's matrices into the weights, W + alpha / r * B A; returns the weights by their plain names."""
    scale = config["lora_alpha"] / config["r"]
    whole = {plain_name(name): tensor for name, tensor in weights.items() if not is_of_adapter(name)}
    for name in (name.removesuffix(_A) for name in weights if name.endswith(_A)):
        whole[f"{name}.weight"] = whole[f"{name}.weight"] + scale * (weights[name + _B] @ weights[name + _A])
    return whole


def write_adapter(model: Path, checkpoint: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes adapter/ into a model folder: LoRA matrices and their config, tokenizer files and generation config."""
    folder = model / "adapter"
    folder.mkdir()
    copy_files(checkpoint, folder, (ADAPTER, *TEXT_FILES))
    copy_files(model, folder, (GENERATION_CONFIG,))
    named = {
        f"base_model.model.{name.replace('.default.', '.')}": weights[name] for name in filter(is_of_adapter, weights)
    }
    save_file(named, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
