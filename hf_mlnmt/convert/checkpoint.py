"""Reads checkpoints safely, and moves their tensors to our parameters, for the readers of all formats.

`Settings` refuses, by name, settings that the baseline cannot compute. A reader returns a `Checkpoint`, whose
`Placement` records which tensor became which parameter of ours: every tensor must be used, and none may be missing.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
import yaml
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import GenerationConfig
from transformers.activations import ACT2FN

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.model_folder import TOKEN_IDS, first_line, token_ids
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.modeling import TransformerConfig
from hf_mlnmt.modeling.stack import SinusoidalPositions


@dataclass
class Checkpoint:
    """A checkpoint of another format, as its importer has read it.

    `original`: the model as its own code loads it, to compare with, where that code is installed. `dtype`: the name of
    the type in which weights are stored. `notes`: for readers of import.json. `files`: name -> content of further files
    of the folder.
    """

    format: str
    config: TransformerConfig
    placement: Placement
    tokenizers: Tokenizers
    generation_config: Any
    original: Any = None
    dtype: str = "float32"
    notes: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


def baseline_config(
    where: str,
    special: tuple[int | None, int | None, int, int],
    kind: type[TransformerConfig] = TransformerConfig,
    **fields: Any,
) -> TransformerConfig:
    """Returns the baseline's config, or that of a family `kind`, made from a toolkit's settings.

    Args:
        special: ids of padding, begin and end of sentence, and of the token that the decoder begins with.
        fields: of the config; a pair is (encoder's, decoder's). Attention has biases unless `attention_bias` is given.

    Raises: UserError that names `where`, the file, and the field with which no model can be made.
    """
    if str(fields["activation_function"]) not in ACT2FN:
        raise UserError(f"{where}: the activation {fields['activation_function']} is none that Transformers knows.")
    for name in [name for name, value in fields.items() if isinstance(value, tuple)]:
        fields[f"encoder_{name}"], fields[f"decoder_{name}"] = fields.pop(name)
    try:
        return kind(**{"attention_bias": True, **fields, **dict(zip(TOKEN_IDS, special, strict=True))})
    except (StrictDataclassError, ValueError, TypeError) as error:
        raise UserError(f"{where}: its settings make no model: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """Returns the last line of an error's text, which names the cause."""
    return [type(error).__name__, *str(error.__cause__ or error).strip().splitlines()][-1].strip()


NEVER = -100.0  # output bias of a token that is never predicted; finite, or a smoothed loss would be NaN
# Values that `Settings.check` allows: FLAG of a setting that may be on, off or missing, OFF of one that must be off.
FLAG, OFF = (False, True, None), (False,)


class Settings(dict[str, Any]):
    """The settings of a toolkit, from a mapping or a Namespace. where: the text before their names in messages.

    A value of another type than the methods expect is refused by a UserError with its name and value.
    """

    def __init__(self, where: str, content: Any) -> None:
        content = vars(content) if isinstance(content, argparse.Namespace) else content
        if not isinstance(content, Mapping):
            raise UserError(f"{where.rstrip('. ').rstrip(':')}: settings below it are expected, not {content!r:.60}.")
        super().__init__(content)
        self.where = where

    def below(self, *names: str) -> Settings:
        """Returns the settings that are nested under these names; empty ones where a name is missing."""
        settings = self
        for name in names:
            settings = Settings(f"{settings.where}{name}.", settings.get(name) or {})
        return settings

    def text(self, name: str, default: str = "") -> str:
        """Returns the setting `name`, a text; `default` if it is missing or empty."""
        value = self.get(name) or default
        return value if isinstance(value, str) else self._refuse(name, "a text")

    def texts(self, name: str) -> list[str]:
        """Returns the setting `name`, a list of texts; empty if it is missing."""
        value = self.get(name) or []
        fits = isinstance(value, list) and all(isinstance(text, str) for text in value)
        return value if fits else self._refuse(name, "a list of texts")

    def check(self, plain: Mapping[str, tuple[Any, ...]]) -> None:
        """Raises UserError for a setting whose value is not in `plain`: name -> allowed values, first the default."""
        for name, values in plain.items():
            if (value := self.get(name, values[0])) not in values:
                raise UserError(f"{self.where}{name}: {value!r} is nothing that the baseline can compute.")

    def check_alike(self, names: Iterable[str], encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> None:
        """Raises UserError for settings `names` that differ between encoder and decoder."""
        for name in names:
            if (first := encoder.get(name)) != (second := decoder.get(name)):
                raise UserError(
                    f"{self.where}{name} is {first} in the encoder, {second} in the decoder, which the baseline cannot "
                    "do."
                )

    def check_numbers(self, names: Iterable[str], tensors: Mapping[str, Tensor]) -> None:
        """Raises UserError for missing settings, no whole numbers, and numbers above the tensors' sizes and count."""
        names, limit = list(names), max([len(tensors), *(size for tensor in tensors.values() for size in tensor.shape)])
        if missing := [name for name in names if self.get(name) is None]:
            raise UserError(f"{self.where}nothing is said of {', '.join(missing)}.")
        for name in names:
            if not isinstance(self[name], int) or isinstance(self[name], bool):
                self._refuse(name, "a whole number")
            if self[name] > limit:
                raise UserError(f"{self.where}{name} is {self[name]:,}, which the weights cannot have.")

    def check_search(self, beams: str, penalty: str) -> None:
        """Raises UserError if the settings named `beams` and `penalty` are no number of beams or no length penalty."""
        value = self.get(beams)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            self._refuse(beams, "a whole number of at least 1")
        value = self.get(penalty)
        # The limit of 10 is this package's own.
        if value is not None and not (isinstance(value, int | float) and abs(value) <= 10):
            self._refuse(penalty, "a number from -10 to 10")

    def _refuse(self, name: str, expected: str) -> NoReturn:
        raise UserError(f"{self.where}{name}: {expected} is expected, not {self[name]!r:.60}.")


def yaml_of(where: str | Path, text: str | bytes) -> Any:
    """Returns the content of a YAML text. Raises: UserError that names its file, `where`."""
    try:
        return yaml.safe_load(text)
    # Wrong tags in YAML raise ValueError, LookupError or AttributeError.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise UserError(f"{where}: cannot be read: {error}") from error


def generation_config(config: TransformerConfig, **search: Any) -> GenerationConfig:
    """Returns a GenerationConfig of a toolkit's search settings and the config's special tokens, max_length <= 512."""
    return GenerationConfig(**search, max_length=min(512, config.max_position_embeddings), **token_ids(config))


def how_to_cut(by: str = "", parts: str = "subwords") -> str:
    """Returns the note on text that must be cut into parts before translation; by: what cut the training data."""
    return (
        f"text is not cut here: give text that is cut already as the training data was{by}, {parts} separated by "
        "spaces; translations come out like that"
    )


Parts = Mapping[str, Sequence[str]]
"""A module of ours -> the modules of theirs whose rows it stacks."""


def layer_parts(
    attention: str, products: str, norms: Sequence[str], feed_forward: Sequence[str], source_attention: str = ""
) -> Parts:
    """Returns {a module of our layers: the toolkit's modules whose rows it stacks}, the same for all layers.

    products: the toolkit's names in attention of queries, keys, values and output. norms: those of self-attention, of
    the feed-forward sublayer and of attention over the source. feed_forward: those of its two products.
    source_attention: the name of attention over the source; "" in an encoder, which has none.
    """
    query, key, value, output = products.split()
    parts = {
        "self_attn.qkv_proj": tuple(f"{attention}.{name}" for name in (query, key, value)),
        "self_attn.out_proj": (f"{attention}.{output}",),
        "self_attn_sublayer.layer_norm": (norms[0],),
        "feed_forward.fc1": (feed_forward[0],),
        "feed_forward.fc2": (feed_forward[1],),
        "feed_forward_sublayer.layer_norm": (norms[1],),
    }
    if source_attention:
        parts["source_attn.q_proj"] = (f"{source_attention}.{query}",)
        parts["source_attn.kv_proj"] = (f"{source_attention}.{key}", f"{source_attention}.{value}")
        parts["source_attn.out_proj"] = (f"{source_attention}.{output}",)
        parts["source_attn_sublayer.layer_norm"] = (norms[2],)
    return parts


# BART, mBART, Marian and M2M100 in Transformers have the module names of fairseq.
_FAIRSEQ = ("self_attn", "q_proj k_proj v_proj out_proj")
FAIRSEQ_ENCODER = layer_parts(*_FAIRSEQ, ("self_attn_layer_norm", "final_layer_norm"), ("fc1", "fc2"))
FAIRSEQ_DECODER = layer_parts(
    *_FAIRSEQ, ("self_attn_layer_norm", "final_layer_norm", "encoder_attn_layer_norm"), ("fc1", "fc2"), "encoder_attn"
)


def modules(parts: Parts, ours: str, theirs: str, bias: bool = True) -> Iterator[Move]:
    """Yields a Move for each weight and bias of the modules in `parts`; `ours` and `theirs` are put before names."""
    for module, names in parts.items():
        yield Move(f"{ours}{module}.weight", tuple(f"{theirs}{name}.weight" for name in names))
        if bias or "attn." not in module:  # norms and the feed-forward sublayer always have biases
            yield Move(f"{ours}{module}.bias", tuple(f"{theirs}{name}.bias" for name in names))


def stacks(
    config: TransformerConfig,
    encoder: Parts,
    decoder: Parts,
    theirs: str = "",
    layers: tuple[str, str] = ("encoder.layers", "decoder.layers"),
    bias: bool = True,
) -> Iterator[Move]:
    """Yields a Move for each parameter of the encoder's and decoder's layers, and of the norms around them.

    Args:
        theirs: prefix of all names in the toolkit. layers: the toolkit's names of the two lists of layers.
        bias: whether attention has biases in the toolkit.
    """
    outer = {"embedding_norm": ("layernorm_embedding",)} if config.normalize_embedding else {}
    outer |= {"layer_norm": ("layer_norm",)} if config.norm_position == "pre" else {}
    for side, parts, name in zip(("encoder", "decoder"), (encoder, decoder), layers, strict=True):
        yield from modules(outer, f"model.{side}.", f"{theirs}{side}.")
        for index in range(getattr(config, f"{side}_layers")):
            yield from modules(parts, f"model.{side}.layers.{index}.", f"{theirs}{name}.{index}.", bias)


class Move(NamedTuple):
    """A parameter of ours, and the names of the checkpoint's tensors that are stacked, row below row, to make it."""

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False  # whether the checkpoint's matrices are (inputs, outputs)


class Placement:
    """The tensors of a checkpoint, and our parameters that were made of them.

    Args:
        where: the file or folder, for messages.
        tensors: name -> tensor.
    """

    def __init__(self, where: str, tensors: Mapping[str, Tensor]):
        self.where, self.tensors = where, dict(tensors)
        self.state: dict[str, Tensor] = {}
        self.origin: dict[str, list[str]] = {}  # our parameter -> tensors that it is made of
        self.left_out: dict[str, str] = {}  # tensor -> why no parameter needs it

    def move(self, moves: Iterable[Move]) -> None:
        """Makes parameters of ours from the checkpoint's tensors. Raises: UserError that names a missing tensor."""
        for ours, theirs, transposed in moves:
            parts = [self._tensor(name) for name in theirs]
            parts = [part.t() if transposed and part.dim() == 2 else part for part in parts]
            self.state[ours] = parts[0] if len(parts) == 1 else torch.cat(parts)
            self.origin[ours] = list(theirs)

    def set(self, ours: str, tensor: Tensor, theirs: Iterable[str]) -> None:
        """Sets a parameter computed otherwise than by stacking tensors. theirs: tensors used; none for a constant."""
        self.state[ours], self.origin[ours] = tensor, list(theirs)

    def leave_out(self, name: str, why: str) -> None:
        """Records why no parameter needs the tensor `name`, if the checkpoint has it."""
        if name in self.tensors:
            self.left_out[name] = why

    def leave_out_copy(self, name: str, of: str) -> None:
        """Leaves out a tensor, if the checkpoint has it, that equals another one. Raises: UserError if it does not."""
        if name not in self.tensors:
            return
        if not torch.equal(self.tensors[name], self._tensor(of)):
            raise UserError(
                f"{self.where}: {name} and {of} should be the same tensor, as the settings in the checkpoint say that "
                "they are shared, but their numbers differ. The checkpoint and its settings are not of one model."
            )
        self.left_out[name] = f"the same as {of}"

    def move_embeddings(self, config: TransformerConfig, source: str, target: str, output: str) -> None:
        """Moves both embeddings and the output projection; leaves out the copies of shared ones that were saved."""
        tied = config.tie_word_embeddings
        names = {"model.encoder.embed_tokens": source, "model.decoder.embed_tokens": target}
        names["lm_head"] = target if tied else output
        self.move(Move(f"{ours}.weight", (theirs,)) for ours, theirs in names.items())
        if config.share_encoder_decoder_embeddings and source != target:
            self.leave_out_copy(target, source)
        if tied:
            self.leave_out_copy(output, target)

    def leave_out_sines(self, name: str, config: TransformerConfig) -> None:
        """Leaves out a saved table of positions, which is computed anew. Raises: UserError if its numbers differ."""
        if (table := self.tensors.get(name)) is None:
            return
        length, width, offset = config.max_position_embeddings, config.d_model, config.position_offset
        theirs = table.double().flatten(0, -2) if table.dim() > 1 else table
        # atol: the table may have been saved in half precision.
        if theirs.shape != (length, width) or not torch.allclose(
            theirs, SinusoidalPositions.compute(length, width, config.position_embedding, offset), atol=1e-3
        ):
            raise UserError(f"{self.where}: {name} holds other numbers than this architecture's sines and cosines.")
        self.leave_out(name, "sines and cosines, computed anew")

    def finish(self, model: Any) -> dict[str, Tensor]:
        """Returns all parameters of `model` by name: the state dict to load.

        Raises: UserError for tensors that no parameter uses, parameters without a tensor, and wrong shapes.
        """
        used = {name for names in self.origin.values() for name in names} | set(self.left_out)
        if others := sorted(self.tensors.keys() - used):
            raise UserError(f"{self.where}: holds tensors that this architecture has no place for: {listed(others)}.")
        expected = model.state_dict()
        if missing := sorted(expected.keys() - self.state.keys()):
            raise UserError(f"{self.where}: nothing there for {listed(missing)}; nothing was imported.")
        for name, parameter in expected.items():
            if parameter.shape != self.state[name].shape:
                raise UserError(
                    f"{self.where}: {' + '.join(self.origin[name])} is {tuple(self.state[name].shape)}, the settings "
                    f"in the checkpoint ask for {tuple(parameter.shape)} ({name}). They are not of one model."
                )
        return {name: self.state[name].contiguous() for name in expected}

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            near = suggest(name, self.tensors)
            raise UserError(f"{self.where}: the tensor {name} is missing{near}. Give the whole, unchanged checkpoint.")
        return self.tensors[name]


def weights_of(where: str | Path, tensors: Any) -> dict[str, Tensor]:
    """Returns the tensors of a mapping in float32.

    Raises: UserError for another object, and for a tensor of whole numbers (a rounded model), NaN or infinity.
    """
    if not isinstance(tensors, Mapping) or not all(isinstance(name, str) for name in tensors):
        raise UserError(f"{where}: a mapping of names to tensors is expected, not {tensors!r:.60}.")
    weights = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    for name, tensor in weights.items():
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            raise UserError(
                f"{where}: {name} is {str(tensor.dtype).removeprefix('torch.')}: import the model in float32, not a "
                "rounded one."
            )
        if not tensor.float().isfinite().all():
            raise UserError(f"{where}: {name} holds numbers that are none (NaN or infinity). Was its training whole?")
    return {name: tensor.float() for name, tensor in weights.items()}


def load_safetensors(file: Path) -> dict[str, Tensor]:
    """Reads a .safetensors file as float32. Raises: UserError as `weights_of`, and for other formats."""
    try:
        return weights_of(file, load_file(file))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file}: cannot be read as safetensors: {error}") from error


def listed(names: list[str], most: int = 5) -> str:
    """Returns the first `most` names and the number of further ones, as text for a message."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint of PyTorch that holds only tensors, plain values and argparse's Namespace.

    Raises: UserError for a file that is no checkpoint, and for a pickle that asks for anything else.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings(action="ignore"):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises exceptions of many kinds for a damaged file
        asked = re.search(r"GLOBAL ([\w.]+)|TorchScript", str(error))  # torch's own advice would be to trust the file
        reason = f"not a checkpoint of weights alone, or a damaged one ({first_line(error).partition('. ')[0]})"
        if asked:
            reason = f"holds more than weights and plain settings: it asks for {asked[1] or asked[0]}"
        raise UserError(
            f"{path}: {reason}. Code in a checkpoint is never run. If you trust whoever made it, save its weights "
            "alone where its toolkit is installed, and import those."
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: a checkpoint is a mapping, this is a {type(content).__name__}.")
    return content
