"""Checks and repairs around a model's computation: checks its config and the options of generate(), warns of padding on
the wrong side, checks that embeddings can be resized, writes ties into the config, and saves code beside weights.

`import hf_mlnmt` sets `configuration.upkeep` to this module. In code beside published weights nothing is checked, and
Transformers copies the code of a class that it loaded from a repository (`register_for_auto_class`). A published model
that was loaded by the installed package has only the pointer to its code, config.json's `auto_map`: so that its saved
copies load without the package, the code is copied here.
"""

import shutil
from collections.abc import Mapping
from inspect import getfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.activations import ACT2FN
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils import logging

logger = logging.get_logger(__name__)
_ON_THE_RIGHT = "tokenizer.padding_side = 'right', and pad there what you pad yourself."


def check_fields(config: Any) -> None:
    """Raises ValueError, naming the field, for values of the baseline's fields with which no model can be built."""
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
    """Copies the files that `auto_map` points to, and all that they import, to another folder; returns new pointers.

    pointers: Auto class -> "file.Class", or "owner/name--file.Class", whose repository the copy no longer needs. A
    pointer to a file that is not in `source` stays unchanged.
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
    """Writes into the config which weights are tied now: PEFT, or a user who sets a weight, may have untied them.

    A tied weight is saved once; `_keys_to_ignore_on_save` tells a resumed Trainer not to expect the others.
    """
    tied = model._tied_weights_keys or {}
    pairs = {key: (model.get_parameter(key), model.get_parameter(source)) for key, source in tied.items()}
    one = {key: target is table for key, (target, table) in pairs.items() if not target.is_meta and not table.is_meta}
    model._keys_to_ignore_on_save = set(model._keys_to_ignore_on_save or ()) - tied.keys() | {*filter(one.get, one)}
    for field in dict.fromkeys(map(model.field_of_tie, one)):
        setattr(model.config, field, any(one[key] for key in one if model.field_of_tie(key) == field))


def state_to_save(model: Any, state_dict: Any) -> Any:
    """Returns the `state_dict` that `save_pretrained` must write, None for the model's own; first runs `note_ties`.

    Where encoder and output share a weight and the decoder has another, which no config can say, all three are saved.
    """
    note_ties(model)
    own = (model._tied_weights_keys or {}).keys() - model.get_expanded_tied_weights_keys()
    if state_dict is None and len({id(model.get_parameter(key)) for key in own}) < len(own):
        state_dict = model.state_dict()
        state_dict.update((key, state_dict[key].clone()) for key in own)
    return state_dict


def check_resizing(model: Any) -> None:
    """Raises ValueError for a translation model whose encoder and decoder do not share their embeddings."""
    note_ties(model)
    if model.config.is_encoder_decoder and not model.config.share_encoder_decoder_embeddings:
        raise ValueError("a model with a vocabulary, or a module, for each side cannot be resized: make a new one")


def asked_for(name: str, arguments: dict[str, Any], *configs: Any) -> Any:
    """Removes an option of generate() from the arguments; returns its value, or else the first one in the configs."""
    given = [arguments.pop(name, None), *(getattr(config, name, None) for config in configs)]
    return next((value for value in given if value is not None), None)


def take_options(arguments: dict[str, Any], *configs: Any) -> dict[str, Any]:
    """Removes options of generate() that only this package has from a call's arguments; returns their values, or those
    in the configs, as fields for the prepared config."""
    own = {name: asked_for(name, arguments, *configs) for name in ("recombine", "draws", "without_replacement")}
    groups = asked_for("num_beam_groups", arguments, *configs)
    # With num_beam_groups above 1 Transformers' generate() would look for a loop on the Hub.
    return {**own, "groups": None if groups == 1 else groups, "num_beam_groups": 1}


def check_options(config: Any) -> None:
    """Raises ValueError if this package's own options of generate() are wrong or exclude one another."""
    if wrong := wrong_option(config):
        raise ValueError(wrong)


def wrong_option(config: Any) -> str | None:
    """Returns an error message if this package's own options in a prepared config are wrong, else None."""
    k, groups, draws, beams = config.recombine, config.groups, config.draws, config.num_beams
    distinct = config.without_replacement
    searches, penalty = beams > 1 and not config.do_sample, getattr(config, "diversity_penalty", None)
    if k is not None and (type(k) is not int or k < 0):
        return f"recombine={k!r}: must be a whole number of at least 0, or None"
    if k is not None and not searches:
        return f"recombine={k}: joins the beams of a beam search; give num_beams, and no do_sample"
    if groups is None and penalty:
        return f"diversity_penalty={penalty}: acts between groups of beams; give num_beam_groups too"
    if groups is not None and (type(groups) is not int or groups < 1 or beams % groups):
        return f"num_beam_groups={groups!r}: must be a whole number that divides num_beams={beams}"
    if groups is not None and (not searches or k is not None):
        return f"num_beam_groups={groups}: groups of a beam search; leave do_sample and recombine out"
    if groups is not None and not (penalty and penalty > 0):
        return f"diversity_penalty={penalty}: must be more than 0, or all groups find the same"
    if distinct and (not config.do_sample or beams == 1 or k is not None or groups is not None):
        return f"without_replacement={distinct!r}: needs do_sample and num_beams, as many as there shall be draws"
    if draws not in (None, "batch") and (draws != "row" or beams > 1 or not config.do_sample):
        return f"draws={draws!r}: 'batch' or 'row', with do_sample and without beams"
    return None


def warn_of_labels(labels: Tensor, config: Any) -> None:
    """Warns once of labels on a CPU that are padded on the left, or that hold the padding token instead of -100."""
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    ignored, pad = labels == -100, config.pad_token_id
    if bool((ignored[:, 0] & ~ignored.all(1)).any()):
        logger.warning_once(f"The labels are padded on the left, so another loss is computed: {_ON_THE_RIGHT}")
    if pad is not None and pad != config.eos_token_id and bool((labels == pad).any()):
        logger.warning_once(
            f"The labels hold the padding token ({pad}), which counts in the loss like a word: put -100 in its "
            "place, as DataCollatorForSeq2Seq does."
        )


def warn_of_sources(mask: Tensor | None) -> None:
    """Warns once of sources padded on the left: of a mask (batch, source) on a CPU whose first position is 0."""
    if mask is not None and mask.dim() == 2 and mask.device.type == "cpu" and not bool(mask[:, 0].all()):
        logger.warning_once(f"Sources are padded on the left, which are others to the model: {_ON_THE_RIGHT}")
