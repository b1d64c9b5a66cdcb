"""Initial weights from other models: all of one or parts of several, from folders or the Hub; a record of each tensor.

| part | what it is |
| --- | --- |
| encoder, decoder | tensors of this side and not of both; the output projection is the decoder's |
| embeddings | the token embeddings of both sides and the output projection |
| all | all tensors, also those in none of these |

A tensor that several parts name comes from the narrowest: embeddings, then encoder and decoder, then all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_mlnmt.common.errors import UserError, naming
from hf_mlnmt.common.model_folder import CONFIG, check_model_folder, first_line, open_weights, read_part
from hf_mlnmt.data.tokenizer import Tokenizers, identity_of, load_tokenizers
from hf_mlnmt.training.adapters import is_of_adapter, plain_name
from hf_mlnmt.training.checkpoints import NO_ARCHITECTURE
from hf_mlnmt.training.objectives import part_of
from hf_mlnmt.training.tasks import is_head

NARROWEST_FIRST = ("embeddings", "encoder", "decoder", "all")
# Fields of a config that say nothing about what the weights mean, or whose difference shows in the tensors.
FREE_FIELDS = NO_ARCHITECTURE | {"model_type", "is_encoder_decoder", "encoder_layers", "decoder_layers"}
FREE_FIELDS |= {"vocab_size", "decoder_vocab_size", "max_position_embeddings", "init_std"}
SHARED = "share_encoder_decoder_embeddings"
SHOWN = 8  # most tensors of each kind that are printed; init_from.json has all

Shapes = dict[str, list[int]]


@dataclass
class Account:
    """The record of which tensors were loaded, newly initialised or dropped: name -> shape.

    loaded, initialised: of the model; dropped: of the folders, with the folder before the name if there are several.
    """

    sources: dict[str, str]
    loaded: Shapes = field(default_factory=dict)
    initialised: Shapes = field(default_factory=dict)
    dropped: Shapes = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def table(self) -> str:
        """Returns the account as lines of text."""
        named = ", ".join(f"{part} of {folder}" for part, folder in self.sources.items())
        lines = [f"init_from: {named}"]
        for kind in ("loaded", "initialised", "dropped"):
            shapes: Shapes = getattr(self, kind)
            numbers = sum(map(math.prod, shapes.values()))
            lines.append(f"{kind:<12} {len(shapes):>4} tensors, {numbers:,} numbers")
            if kind != "loaded":
                lines += [f"  {name} {shape}" for name, shape in list(shapes.items())[:SHOWN]]
                lines += [f"  and {len(shapes) - SHOWN} more"] * (len(shapes) > SHOWN)
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def read_sources(value: str | Mapping[Any, str]) -> dict[str, str]:
    """Returns the recipe's init_from as part -> folder or Hub name."""
    return {"all": value} if isinstance(value, str) else dict(value)


def local_folder(name: str, root: Path, part: str = "init_from") -> Path:
    """Returns the folder `name`, relative to `root` or not, or else that of a model of the Hub, which it downloads.

    part: the key of the recipe, for the message. Raises: UserError where there is neither.
    """
    for path in (root / name, Path(name)):
        if path.is_dir():
            return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.model", "*.spm", "*.txt"]))
    except Exception as error:  # no such name, no network, no permission: each raises another exception
        raise UserError(
            f"{part}: {name} is neither a folder nor to be had from the Hub ({first_line(error)}). Give the folder of "
            "a model, such as runs/NAME/average."
        ) from error


def check_sources(sources: Mapping[str, str], root: Path, file: str = "recipe") -> None:
    """Raises UserError for folders that are missing or have no weights or tokenizer; reads no weights."""
    for name in set(sources.values()):
        folder = local_folder(name, root, f"{file}: init_from")
        with naming(f"{file}: init_from"):
            check_model_folder(folder)
        with ExitStack() as stack:
            open_weights(folder, stack)
        load_tokenizers(folder)


def initialise(
    model: PreTrainedModel, sources: Mapping[str, str], root: Path, tokenizers: Tokenizers, file: str = "recipe"
) -> Account:
    """Copies the weights of `sources`, part -> folder or Hub name, into the model; returns a record of every tensor.

    root: what folders are relative to. tokenizers: of this training. file: the recipe, for messages.

    Raises: UserError for what does not fit: a part, tokenizers where the part has a row for each subword, a config that
        gives the weights another meaning, a shape.
    """
    tensors, names, account = _tensors(model), _names(model), Account(dict(sources))
    wanted = _sources_of_tensors(model, names, sources, file)
    # vocabulary sizes; a tensor with such a size has a row for each subword
    rows = {table.shape[0] for table in _tables(model)}
    stored: dict[str, dict[str, Any]] = {}  # folder or Hub name -> its tensors
    used: dict[str, set[str]] = {}
    with ExitStack() as stack:
        for part, name in sources.items():
            where = f"{file}: init_from{'' if list(sources) == ['all'] else f'.{part}'}: {name}"
            folder = local_folder(name, root, f"{file}: init_from")
            keys = {key: names[key] for key, of in wanted.items() if of == part}
            if tokenizers.each or not rows or any(rows & {*tensors[key].shape} for key in keys):
                _check_tokenizers(folder, tokenizers, part, where)
            if not (config := read_part(folder, CONFIG)):
                raise UserError(f"{where}: {folder / CONFIG} cannot be read. Give the folder of a model.")
            stored[name] = stored.get(name) or open_weights(folder, stack)
            shared = _check_config(config, model, part, where, list(stored[name]))
            found = dict(_stored_names(keys, stored[name], f"{model.base_model_prefix}.", shared))
            if not found:
                raise UserError(
                    f"{where}: none of its {len(stored[name])} tensors is of this part; the first is "
                    f"{next(iter(stored[name]), 'none')}, and {next(iter(keys), 'none')} is looked for. Is it a model "
                    "of this kind?"
                )
            for key, theirs in found.items():
                tensor = stored[name][theirs].get_tensor(theirs)
                if tensor.shape != tensors[key].shape:
                    raise UserError(
                        f"{where}: {theirs} has the shape {list(tensor.shape)} there and {list(tensors[key].shape)} "
                        "here. Give the model the sizes of that one (model.settings), or leave the part out "
                        "(init_from: {part: folder})."
                    )
                with torch.no_grad():
                    tensors[key].copy_(tensor)
                account.loaded[key] = list(tensor.shape)
            used.setdefault(name, set()).update(found.values())
        for name, there in stored.items():
            prefix = f"{name}: " if len(stored) > 1 else ""
            for key in sorted(there.keys() - used[name]):
                account.dropped[prefix + key] = list(there[key].get_slice(key).get_shape())
    account.initialised = {key: list(tensors[key].shape) for key in names if key not in account.loaded}
    return account


def _tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Returns the tensors of a model by their plain names, without heads of objectives and an adapter's matrices."""
    tensors = model.state_dict(keep_vars=True).items()
    return {plain_name(name): tensor for name, tensor in tensors if not (is_head(name) or is_of_adapter(name))}


def _names(model: PreTrainedModel) -> dict[str, list[str]]:
    """Returns {a tensor's first name: all its names}; a shared tensor has several."""
    names: dict[int, list[str]] = {}
    for name, tensor in _tensors(model).items():
        names.setdefault(id(tensor), []).append(name)
    return {each[0]: each for each in names.values()}


def _stored_names(
    keys: Mapping[str, Sequence[str]], stored: Mapping[str, Any], base: str, shared: bool
) -> Iterator[tuple[str, str]]:
    """Yields (tensor, its name in `stored`), with or without prefix `base`; shared: one embedding for both sides."""
    for key, names in keys.items():
        possible = [each for name in names for each in (name, name.removeprefix(base), base + name)]
        if shared:
            possible += [name.replace("encoder.embed_tokens.", "decoder.embed_tokens.") for name in possible]
        if (found := next(filter(stored.__contains__, possible), None)) is not None:
            yield key, found


def _sources_of_tensors(
    model: PreTrainedModel, names: Mapping[str, Sequence[str]], sources: Mapping[str, str], file: str
) -> dict[str, str]:
    """Returns tensor -> the part that it comes from, without those that no part of `sources` names."""
    tensors, output, tables = _tensors(model), model.get_output_embeddings(), _tables(model)
    modules = {side: part_of(model, side) for side in ("encoder", "decoder")}
    prefixes = {
        f"{name}.": side for name, module in model.named_modules() for side, part in modules.items() if module is part
    }
    parts: dict[str, set[str]] = {}  # tensor -> parts that it is in
    for key, own in names.items():
        inside = {side for prefix, side in prefixes.items() if any(name.startswith(prefix) for name in own)}
        if output is not None and tensors[key] is output.weight:
            inside.add("decoder")
        parts[key] = {"all"} | (inside if len(inside) == 1 else set())
        if any(tensors[key] is table for table in tables):
            parts[key].add("embeddings")
    for part in sources:
        if not any(part in of for of in parts.values()):
            raise UserError(f"{file}: init_from.{part}: {type(model).__name__} has no {part} of its own to begin with.")
    named = {key: [part for part in NARROWEST_FIRST if part in of and part in sources] for key, of in parts.items()}
    return {key: of[0] for key, of in named.items() if of}


def embeddings_of(model: PreTrainedModel) -> list[Tensor]:
    """Returns the subword embeddings of model, encoder and decoder; shared ones are several times in the list."""
    owners: list[Any] = [model, part_of(model, "encoder"), part_of(model, "decoder")]
    inputs = [owner.get_input_embeddings() for owner in owners if hasattr(owner, "get_input_embeddings")]
    return [module.weight for module in inputs if hasattr(module, "weight")]


def _tables(model: PreTrainedModel) -> list[Tensor]:
    """Returns the output projection and the embeddings of the subwords."""
    output = model.get_output_embeddings()
    return [*([output.weight] if hasattr(output, "weight") else []), *embeddings_of(model)]


def _check_tokenizers(folder: Path, tokenizers: Tokenizers, part: str, where: str) -> None:
    theirs = load_tokenizers(folder)
    sides = {"encoder": ("source",), "decoder": ("target",)}.get(part, ("source", "target"))
    if theirs.each.keys() != tokenizers.each.keys():
        there, here = (", ".join(each.each) or "one for all" for each in (theirs, tokenizers))
        raise UserError(f"{where}: has tokenizers of other languages ({there}) than this training ({here}).")
    for language, new in tokenizers.each.items():
        if not _same_words(theirs.each[language], new):
            raise UserError(f"{where}: its tokenizer of {language} is not this training's: tokenizer.path: {folder}")
    for side in sides:
        old, new = getattr(theirs, side), getattr(tokenizers, side)
        if not _same_words(old, new) or theirs.processing[side] != tokenizers.processing[side]:
            raise UserError(
                f"{where}: its {side} tokenizer is not this training's ({len(old):,} entries there, {len(new):,} "
                f"here): the same ids would mean other words. Take that one: tokenizer.path: {folder}"
            )


def _same_words(tokenizer: Any, other: Any) -> bool:
    return identity_of(tokenizer, around=False) == identity_of(other, around=False)


def _check_config(
    theirs: Mapping[str, Any], model: PreTrainedModel, part: str, where: str, stored: Sequence[str]
) -> bool:
    """Refuses a config that gives the weights another meaning; returns whether its sides share one embedding table."""
    ours = json.loads(model.config.to_json_string(use_diff=False))
    other = {"encoder": "decoder_", "decoder": "encoder_"}.get(part)
    both_sides = any("decoder." in name for name in stored)
    # Two embedding tables can begin as copies of one; one table cannot be a copy of two, unless `part` is one side.
    same = bool(theirs.get(SHARED)) or not both_sides or other is not None
    for name in sorted(ours.keys() & theirs.keys() - FREE_FIELDS - ({SHARED} if same else set())):
        if name.endswith("token_id") or (other and name.startswith(other)):
            continue
        if ours[name] != theirs[name]:
            raise UserError(
                f"{where}: {name} is {theirs[name]!r} there and {ours[name]!r} here: the weights would compute "
                f"something else. Set model.settings.{name} to {theirs[name]!r}, or take another model."
            )
    return bool(theirs.get(SHARED)) and both_sides
