"""What is done with a model beside computing: its config is checked, its tables are resized, and it is saved.

Fills the slot `configuration.upkeep`: code beside published weights does without it. There nothing checks the fields,
and Transformers copies the code of a class that it loaded as a repository's own (`register_for_auto_class`). A
published model that the installed package has loaded keeps only the pointer to its code, config.json's `auto_map`, and
what is saved of it could not be loaded without the package: so the code is copied here.
"""

import shutil
from collections.abc import Mapping
from inspect import getfile
from pathlib import Path
from typing import Any

from transformers.activations import ACT2FN
from transformers.dynamic_module_utils import get_relative_import_files


def check_fields(config: Any) -> None:
    """Refuses the baseline's fields that no model can be built of. Raises: ValueError, which names the field."""
    sides = [side for side in ("decoder", "encoder") if hasattr(config, f"{side}_layers")]
    sizes = [f"{side}_{size}" for side in sides for size in ("layers", "ffn_dim")]
    for field in (*sizes, "vocab_size", "d_model", "max_position_embeddings"):
        if getattr(config, field) < 1:
            raise ValueError(f"{field}={getattr(config, field)}: must be at least 1")
    for field in (f"{side}_attention_heads" for side in sides):
        heads = getattr(config, field)
        if heads < 1 or config.d_model % heads:
            raise ValueError(f"{field}={heads}: d_model={config.d_model} must be a multiple of it")
    if config.d_model % 2:
        raise ValueError(f"d_model={config.d_model}: must be even (half sines, half cosines in the positions)")
    if config.activation_function not in ACT2FN:
        raise ValueError(f"activation_function='{config.activation_function}': must be one of {', '.join(ACT2FN)}")
    if config.position_offset < 0 or (config.position_offset and config.position_embedding == "learned"):
        raise ValueError(
            f"position_offset={config.position_offset}: must be at least 0, and 0 with position_embedding='learned'"
        )
    for field in ("dropout", "attention_dropout", "activation_dropout"):
        if not 0 <= getattr(config, field) < 1:
            raise ValueError(f"{field}={getattr(config, field)}: must be in [0, 1)")
    for field in ("init_std", "layer_norm_eps"):
        value = getattr(config, field)
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{field}={value}: must be a finite number above 0")
    if getattr(config, "share_encoder_decoder_embeddings", False) and config.decoder_vocab_size != config.vocab_size:
        raise ValueError(
            f"decoder_vocab_size={config.decoder_vocab_size} differs from vocab_size={config.vocab_size}: "
            "set share_encoder_decoder_embeddings=False, or use one joint vocabulary"
        )


def copy_code(pointers: Mapping[str, Any], source: Path, target: Path) -> dict[str, Any]:
    """Copies what `auto_map` points to, with all that it imports, from one folder into another; returns the new
    pointers.

    pointers: Auto class -> "file.Class", or "owner/name--file.Class", which then no longer needs that repository. A
    pointer to code that is not in `source` stays as it is.
    """
    copied = dict(pointers)
    for auto_class, pointer in pointers.items():
        name = pointer.split("--")[-1] if isinstance(pointer, str) else ""
        file = source / f"{name.partition('.')[0]}.py"
        if name and file.is_file():
            target.mkdir(parents=True, exist_ok=True)
            for path in {file, *map(Path, get_relative_import_files(file))}:
                shutil.copyfile(path, target / path.name)
            copied[auto_class] = name
    return copied


def copy_code_of(config: Any, folder: Any) -> None:
    """Copies the code that a config's `auto_map` points to, if it has one, into the folder where it will be saved."""
    if pointers := getattr(config, "auto_map", None):
        config.auto_map = copy_code(pointers, Path(getfile(type(config))).parent, Path(folder))


def note_ties(model: Any) -> None:
    """Has the config say which tables are one: PEFT, and whoever sets a weight, changes one without the other.

    What is one is saved once; a Trainer that goes on does not miss the other (`_keys_to_ignore_on_save`).
    """
    tied = model._tied_weights_keys or {}
    pairs = {key: (model.get_parameter(key), model.get_parameter(source)) for key, source in tied.items()}
    one = {key: target is table for key, (target, table) in pairs.items() if not target.is_meta and not table.is_meta}
    model._keys_to_ignore_on_save = set(model._keys_to_ignore_on_save or ()) - tied.keys() | {*filter(one.get, one)}
    for field in dict.fromkeys(map(model.field_of_tie, one)):
        setattr(model.config, field, any(one[key] for key in one if model.field_of_tie(key) == field))


def state_to_save(model: Any, state_dict: Any) -> Any:
    """Returns the `state_dict` that `save_pretrained` is to write; None: the model's own, whose ties the config says.

    Where encoder and output have one table and the decoder another, which no config says, three tables are saved.
    """
    note_ties(model)
    own = (model._tied_weights_keys or {}).keys() - model.get_expanded_tied_weights_keys()
    if state_dict is None and len({id(model.get_parameter(key)) for key in own}) < len(own):
        state_dict = model.state_dict()
        state_dict.update((key, state_dict[key].clone()) for key in own)
    return state_dict


def check_resizing(model: Any) -> None:
    """Raises: ValueError for a translation model with a vocabulary, or a table, for each side."""
    note_ties(model)
    if model.config.is_encoder_decoder and not model.config.share_encoder_decoder_embeddings:
        raise ValueError("a model with a vocabulary, or a module, for each side cannot be resized: make a new one")
