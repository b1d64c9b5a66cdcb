"""Languages added to a trained model of many languages: the new modules are trained, everything else is frozen.

A recipe says `model: {add_to: FOLDER}`, and its tasks name the languages; those that the model lacks are added, with
new weights. The bridge and the modules of all other languages stay as they are, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from hf_mlnmt.errors import UserError
from hf_mlnmt.model_folder import load_model

SIDES = ("source", "target")


def extended_config(folder: Path, languages: Mapping[str, Sequence[str]], where: str, sizes: Mapping[str, int]) -> Any:
    """The model's config with the languages of the tasks, {"source_languages": [...], "target_languages": [...]}.

    sizes: of the languages' vocabularies, where each has its own.

    Raises: UserError for another kind of model, and when nothing is to be added.
    """
    config: Any = AutoConfig.from_pretrained(str(folder))
    if not hasattr(config, "source_languages"):
        raise UserError(f"{where}: model.add_to: {folder} has no modules of single languages ({config.model_type}).")
    before = {f"{side}_languages": getattr(config, f"{side}_languages") for side in SIDES}
    for name, known in before.items():
        if config.vocab_sizes is not None:
            config.vocab_sizes = dict(sizes)
        setattr(config, name, list(dict.fromkeys([*known, *languages[name]])))
    if before == {name: getattr(config, name) for name in before}:
        raise UserError(
            f"{where}: model.add_to: {folder} has all languages of the tasks already ({', '.join(config.languages)}): "
            "there is nothing to add."
        )
    return config


def with_languages(folder: Path, config: Any) -> Any:
    """The model of a folder with the languages of `config`; what it had is frozen."""
    model = load_model(folder, dtype="float32")
    known = {name for name, _ in model.named_parameters()}
    wanted, there = ([set(getattr(one, f"{side}_languages")) for side in SIDES] for one in (config, model.config))
    sides = [new - old for new, old in zip(wanted, there)]
    for language in config.languages:
        source, target = (language in new for new in sides)
        if source or target:
            size = None if config.vocab_sizes is None else config.vocab_sizes[language]
            model.add_language(language, source=source, target=target, vocab_size=size)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in known)
    return model
