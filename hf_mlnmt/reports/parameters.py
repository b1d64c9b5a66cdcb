"""Counts the parameters of a model by part: embeddings, encoder, decoder, output projection, parts a family adds."""

import re
from typing import Any

from torch import nn

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.model_folder import auto_class_of_config, first_line, trusted

MAIN_PARTS = ("embeddings", "encoder", "decoder", "output projection")


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """Returns {part: number of parameters}, tied parameters counted once; "total" comes last.

    Weights of embedding tables count as "embeddings", also if tied to the output projection. Parameters outside of
    encoder, decoder and projection are named by their module: these are the parts that a family adds.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    projection = {id(parameter) for parameter in head.parameters()} if head is not None else set()
    numbers = dict.fromkeys(MAIN_PARTS, 0)
    for name, parameter in model.named_parameters():  # named_parameters() yields a tied parameter once
        part = _part(name)
        if id(parameter) in tables:
            part = "embeddings"
        elif id(parameter) in projection:
            part = "output projection"
        numbers[part] = numbers.get(part, 0) + parameter.numel()
    return {**numbers, "total": sum(numbers.values())}


def parameters_of_config(config: Any) -> dict[str, int]:
    """Returns {part: number of parameters} of the model of a config, without allocating weights."""
    return parameters_by_part(model_of_config(config))


def of_a_pair(model: nn.Module) -> int:
    """Returns the number of parameters that a translation between two languages uses: in a model with modules of single
    languages those of the first pair, as all pairs have the same size; in other models all parameters.
    """
    pair: Any = getattr(model, "pair", None)
    config: Any = model.config
    if pair is None or not config.target_languages:
        return parameters_by_part(model)["total"]
    return parameters_by_part(pair(config.source_languages[0], config.target_languages[0]))["total"]


def model_of_config(config: Any) -> Any:
    """Makes a config's model on the meta device, without allocated weights. Raises: UserError if none can be made."""
    import torch
    import transformers

    if not getattr(config, "translation_models", True):  # empty by default in a fused model's config
        raise UserError("no model of this config can be made: translation_models names no member.")
    auto_class = getattr(transformers, auto_class_of_config(config.to_dict()))
    try:
        with torch.device("meta"):
            return auto_class.from_config(config, trust_remote_code=trusted())
    except ValueError as error:
        raise UserError(f"no model of this config can be made: {first_line(error)}.") from error


def _part(name: str) -> str:
    """Returns the part that a parameter's name belongs to: encoder for model.encoder.layers.0.fc.weight and so on."""
    modules = name.split(".")[:-1]
    if modules and re.fullmatch(r"(translation|language)_\d+", modules[0]):  # the module is a member of a fused model
        return modules[0].replace("_", " model ")
    for module in modules:
        if module in ("encoder", "decoder", "encoders", "decoders"):  # the plural: one module a language
            return module.removesuffix("s")
    rest = [module for module in modules if module not in ("model", "base_model")]
    return rest[0] if rest else name.split(".")[-1]
