"""Parameters of a model by part: embeddings, encoder, decoder, output projection, and whatever a family adds."""

import re
from typing import Any

from torch import nn

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.model_folder import auto_class_of_config, first_line, trusted

MAIN_PARTS = ("embeddings", "encoder", "decoder", "output projection")


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """Counts the parameters of each part, tied ones once; "total" comes last.

    Every weight of an embedding table is "embeddings", also a tied output projection. What stands neither in the
    encoder, the decoder nor the projection is named by its own module: those are the parts that a family adds.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    projection = {id(parameter) for parameter in head.parameters()} if head is not None else set()
    numbers = dict.fromkeys(MAIN_PARTS, 0)
    for name, parameter in model.named_parameters():  # yields a tied parameter once
        part = _part(name)
        if id(parameter) in tables:
            part = "embeddings"
        elif id(parameter) in projection:
            part = "output projection"
        numbers[part] = numbers.get(part, 0) + parameter.numel()
    return {**numbers, "total": sum(numbers.values())}


def parameters_of_config(config: Any) -> dict[str, int]:
    """Counts the parameters of the model that a config describes, without allocating it."""
    return parameters_by_part(model_of_config(config))


def of_a_pair(model: nn.Module) -> int:
    """Counts what a translation between two languages uses: the first pair's parameters, as all have one size.

    In a model without modules for each language these are all parameters.
    """
    pair: Any = getattr(model, "pair", None)
    config: Any = model.config
    if pair is None or not config.target_languages:
        return parameters_by_part(model)["total"]
    return parameters_by_part(pair(config.source_languages[0], config.target_languages[0]))["total"]


def beyond_baseline(config: Any) -> int | None:
    """Counts what a family adds to the Transformer of the same sizes; returns None for models of other packages."""
    from dataclasses import fields

    from hf_mlnmt.modeling import TransformerConfig

    if not isinstance(config, TransformerConfig):
        return None
    names = [field.name for field in fields(TransformerConfig) if field.init]
    baseline = TransformerConfig(**{name: getattr(config, name) for name in names if hasattr(config, name)})
    return parameters_of_config(config)["total"] - parameters_of_config(baseline)["total"]


def model_of_config(config: Any) -> Any:
    """Returns the model of a config on the meta device: its shapes, no memory. UserError for no such model."""
    import torch
    import transformers

    if not getattr(config, "translation_models", True):  # a fused model's config by default
        raise UserError("no model of this config can be made: translation_models names no member.")
    auto_class = getattr(transformers, auto_class_of_config(config.to_dict()))
    try:
        with torch.device("meta"):
            return auto_class.from_config(config, trust_remote_code=trusted())
    except ValueError as error:
        raise UserError(f"no model of this config can be made: {first_line(error)}.") from error


def _part(name: str) -> str:
    """Returns encoder for model.encoder.layers.0.fc.weight, bridge for bridge.weight."""
    modules = name.split(".")[:-1]
    if modules and re.fullmatch(r"(translation|language)_\d+", modules[0]):  # a member of a fused model
        return modules[0].replace("_", " model ")
    for module in modules:
        if module in ("encoder", "decoder", "encoders", "decoders"):  # the plural: a module for each language
            return module.removesuffix("s")
    rest = [module for module in modules if module not in ("model", "base_model")]
    return rest[0] if rest else name.split(".")[-1]
