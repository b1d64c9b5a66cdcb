"""The zoo: a table of all systems, and `config_for`, which builds a system's config at a shape.

The table has names of classes: reading it imports neither torch nor models.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hf_mlnmt.common.errors import UserError, suggest

if TYPE_CHECKING:
    from hf_mlnmt.modeling.configuration import StackConfig

Kind = Literal["translation", "language-model"]
# Auto class -> end of the class's name, for a translation system's encoder with an output projection.
ENCODER_HEADS = {"AutoModelForMaskedLM": "ForMaskedLM", "AutoModelForCausalLM": "ForCausalLM"}
# Kind of a model -> the Auto class that loads it, and the end of its class's name, after the architecture's prefix.
HEADS: dict[Kind, tuple[str, str]] = {
    "translation": ("AutoModelForSeq2SeqLM", "ForConditionalGeneration"),
    "language-model": ("AutoModelForCausalLM", "ForCausalLM"),
}


@dataclass(frozen=True)
class Architecture:
    """Names the classes in a file of `package`: <prefix>Config, <prefix>Model, and by its kind
    <prefix>ForConditionalGeneration or <prefix>ForCausalLM. With `encoder_heads` also <prefix>ForMaskedLM and
    <prefix>ForCausalLM, the encoder alone; the baseline's are in encoder_models.py.

    `over_dual_context`: the architecture combined with a dual-context encoder; None where there is no combination.
    """

    model_type: str
    module: str
    prefix: str
    over_dual_context: Architecture | None = None
    kind: Kind = "translation"
    encoder_heads: bool = True
    package: str = "hf_mlnmt.modeling"

    @property
    def config_class(self) -> Any:
        """Returns the config class; imports the models."""
        return self._class("Config")

    @property
    def base_class(self) -> Any:
        """Returns the class for AutoModel: without output projection; the whole model if there is no such class."""
        try:
            return self._class("Model")
        except AttributeError:
            return self.head_class

    @property
    def head_class(self) -> Any:
        """Returns the class of the whole model, with output projection, which `auto_class` loads."""
        return self._class(HEADS[self.kind][1])

    @property
    def auto_class(self) -> str:
        """Returns the name of the Auto class that loads the whole model."""
        return HEADS[self.kind][0]

    @property
    def heads(self) -> dict[str, Any]:
        """Returns Auto class -> class of the models with a projection, the whole one first; imports them."""
        suffixes = {self.auto_class: HEADS[self.kind][1], **(ENCODER_HEADS if self.encoder_heads else {})}
        return {auto_class: self._class(suffix) for auto_class, suffix in suffixes.items()}

    def pointers(self, model_class: Any = None) -> dict[str, str]:
        """Returns config.json's `auto_map`, {Auto class: file.class}, of a model class; None: of the whole model's."""
        wanted = (model_class or self.head_class).__name__
        name, head = next((name, head) for name, head in self.heads.items() if head.__name__ == wanted)
        classes = {"AutoConfig": self.config_class, name: head}
        if name == self.auto_class:
            classes["AutoModel"] = self.base_class
        return {name: f"{cls.__module__.split('.')[-1]}.{cls.__name__}" for name, cls in classes.items()}

    def _class(self, suffix: str) -> Any:
        of_encoder = self.encoder_heads and suffix in ENCODER_HEADS.values() and self.module == "transformer"
        module = "encoder_models" if of_encoder else self.module
        return getattr(importlib.import_module(f"{self.package}.{module}".lstrip(".")), self.prefix + suffix)


@dataclass(frozen=True)
class System:
    """An entry of the zoo: a system's name, classes, config fields. The citation is an attribute of the model class."""

    name: str
    architecture: Architecture
    fields: Mapping[str, Any]
    """The config fields that distinguish the system within its architecture."""
    title: str
    """The system's name in the paper."""
    clause: str
    """A description, which continues a sentence."""


# The architectures of the systems `<system>+enc-dc`.
_OVER_AGGREGATION = Architecture("mlnmt-dual-context-aggregation", "combinations", "DualContextAggregation")
_OVER_ATTENTION = Architecture("mlnmt-dual-context-multi-layer", "combinations", "DualContextMultiLayer")
_OVER_SUPERVISION = Architecture("mlnmt-dual-context-supervision", "combinations", "DualContextSupervision")

TRANSFORMER = Architecture("mlnmt-transformer", "transformer", "Transformer")
AGGREGATION = Architecture("mlnmt-aggregation", "aggregation", "Aggregation", _OVER_AGGREGATION)
MULTI_LAYER_ATTENTION = Architecture(
    "mlnmt-multi-layer-attention", "multi_layer_attention", "MultiLayerAttention", _OVER_ATTENTION
)
MULTI_LEVEL_SUPERVISION = Architecture(
    "mlnmt-multi-level-supervision", "multi_level_supervision", "MultiLevelSupervision", _OVER_SUPERVISION
)
DUAL_CONTEXT = Architecture("mlnmt-dual-context", "dual_context", "DualContext")
EXTENDED_CROSS_ATTENTION = Architecture(
    "mlnmt-extended-cross-attention", "extended_cross_attention", "ExtendedCrossAttention"
)
SSRU = Architecture("mlnmt-ssru", "ssru", "SSRU", encoder_heads=False)  # its encoder is the baseline's
RNN = Architecture("mlnmt-rnn", "rnn", "RNN", encoder_heads=False)
BRIDGE = Architecture("mlnmt-bridge", "bridge", "Bridge", encoder_heads=False)
LANGUAGE_MODEL = Architecture("mlnmt-lm", "language_model", "DecoderOnly", kind="language-model", encoder_heads=False)
# Not in the table of systems: fused models are made from folders of models (`hf_mlnmt.fuse`), not by `config_for`.
FUSION = Architecture("mlnmt-fusion", "fusion", "Fusion", encoder_heads=False)


def _supervised(name: str) -> System | None:
    """Returns the entry of `ms-<layers>` or `ms-<layers>-aif`; None for any other name."""
    match = re.fullmatch(r"ms-([1-9]+)(-aif)?", name)
    if match is None:
        return None
    layers, fusion = [int(digit) for digit in match[1]], match[2] is not None
    where = " and ".join(filter(None, [", ".join(match[1][:-1]), match[1][-1]]))
    decoders = "an auxiliary decoder on encoder layer" if len(layers) == 1 else "auxiliary decoders on encoder layers"
    return System(
        name,
        MULTI_LEVEL_SUPERVISION,
        {"auxiliary_layers": layers, "information_fusion": fusion},
        f"MS-{match[1]}{' + AIF' if fusion else ''}",
        f"{decoders} {where}, {'read by the main decoder' if fusion else 'in training only'}",
    )


def _members(architecture: Architecture, field: str, *rows: tuple[str, str, str]) -> list[System]:
    """Returns a family's entries. rows: the value of the config's `field`, in small letters the name; title; clause."""
    return [System(value.lower(), architecture, {field: value}, title, clause) for value, title, clause in rows]


# The systems, in the order of the documentation.
# fmt: off
_ENTRIES = (
    System("transformer", TRANSFORMER, {}, "The Transformer", "the baseline of all"),
    *_members(
        AGGREGATION, "aggregation",
        ("S-Agg", "S-Agg", "the decoder reads a learnt sum of all encoder layers"),
        ("Iter-S-Agg", "Iter-S-Agg", "the decoder reads encoder layers that were summed one after the other"),
        ("C-Agg", "C-Agg", "the decoder reads all encoder layers merged by one feed-forward network"),
        ("Iter-C-Agg", "Iter-C-Agg", "the decoder reads encoder layers merged two by two by feed-forward networks"),
        ("Transparent", "Transparent attention", "each decoder layer reads its own weighted sum of the encoder layers"),
    ),
    *_members(
        MULTI_LAYER_ATTENTION, "multi_layer_attention",
        ("M-00", "M-00", "each decoder layer attends to all encoder layers, weights shared, contexts concatenated"),
        ("M-01", "M-01", "each decoder layer attends to all encoder layers, weights shared, contexts summed"),
        ("M-10", "M-10", "each decoder layer attends to every encoder layer, contexts concatenated"),
        ("M-11", "M-11", "each decoder layer attends to every encoder layer, contexts summed"),
    ),
    # A selection of the possible ms-<layers>, for tests and comparisons.
    *filter(None, map(_supervised, ("ms-1", "ms-123", "ms-1-aif", "ms-123-aif"))),
    *_members(
        DUAL_CONTEXT, "dual_context",
        ("Enc-DC", "Enc-DC", "the encoder attends to the sentence and to its local context"),
        ("Dec-DC", "Dec-DC", "the decoder attends to the target prefix and to its local context"),
        ("Full-DC", "Full-DC", "encoder and decoder attend to their sentence and to its local context"),
    ),
    *_members(
        EXTENDED_CROSS_ATTENTION, "cross_attention",
        ("source-embedding", "Source embedding", "attention over the source also sees the source words' embeddings"),
        ("target-embedding", "Target embedding",
         "attention over the source also sees the last target word's embedding"),
        ("both-embeddings", "Both embeddings",
         "attention over the source also sees embeddings of source and target words"),
        ("previous-context-head", "Previous context, by head", "source attention sees each head's last context vector"),
        ("previous-context-full", "Previous context, of all heads", "source attention sees its last context vector"),
        ("previous-weight", "Previous weight", "attention over the source sees its last weights"),
        ("accumulated-weight", "Accumulated weight", "attention over the source sees the sum of its weights so far"),
        ("fertility", "Fertility", "attention over the source sees how much of each word it has used up"),
        ("key-value-head", "Key-value context, by head", "source attention may choose each head's last context vector"),
        ("key-value-full", "Key-value context, of all heads", "source attention may choose its last context vector"),
    ),
    System("ssru", SSRU, {}, "SSRU", "a recurrent unit with one state takes the place of the decoder's self-attention"),
    System("rnn", RNN, {"encoder_layers": 2, "decoder_layers": 2}, "The attentive LSTM",
           "a BiLSTM encoder and an LSTM decoder with Luong's attention"),
    System("bridge-rnn", BRIDGE, {"encoder_layers": 2, "decoder_layers": 2, "coders": "rnn"}, "The attention bridge",
           "LSTMs of many languages around one matrix of fixed size"),
    System("bridge-transformer", BRIDGE, {"coders": "transformer"}, "The attention bridge between Transformers",
           "Transformers of many languages around one matrix"),
    System("lm", LANGUAGE_MODEL, {}, "The language model", "the baseline's decoder alone"),
)
# fmt: on
SYSTEMS: dict[str, System] = {entry.name: entry for entry in _ENTRIES}
_STUDENT = {"encoder_layers": 6, "decoder_layers": 2, "d_model": 256, "attention_heads": 8, "ffn_dim": 1536}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 4, "d_model": 128, "attention_heads": 4, "ffn_dim": 256},
    "small": {"layers": 4, "d_model": 256, "attention_heads": 4, "ffn_dim": 1024},
    "base": {"layers": 6, "d_model": 512, "attention_heads": 8, "ffn_dim": 2048},
    "student-tiny": _STUDENT,
    "student-base": {**_STUDENT, "d_model": 384, "decoder_layers": 4},
    "student-self-attention": {**_STUDENT, "decoder_autoregression": "self-attention"},
}


def list_systems(kind: Kind | None = None) -> list[str]:
    """Returns the canonical names of the systems of a kind (None: all), with a selection of ms-<layers>."""
    return [name for name, entry in SYSTEMS.items() if kind in (None, entry.architecture.kind)]


def find_system(name: str) -> System:
    """Returns the entry of a canonical name: a listed one, ms-<layers>, ms-<layers>-aif, or one of these with +enc-dc;
    of a user's own system by package.module:NameConfig, or a folder whose config.json points to code (`auto_map`).

    Raises: UserError, which suggests the nearest name.
    """
    if name in SYSTEMS:
        return SYSTEMS[name]
    if name.endswith("+enc-dc"):
        joint = find_system(name.removesuffix("+enc-dc"))
        if joint.architecture.over_dual_context:
            return _over_dual_context(joint, name)
    if supervised := _supervised(name):
        return supervised
    if ":" in name or os.path.isfile(f"{name}/config.json"):
        return _own(name)
    known = list_systems()
    raise UserError(f"system '{name}' is unknown{suggest(name, known)}; known: {', '.join(known)}, ms-<layers>")


def _over_dual_context(joint: System, name: str) -> System:
    """Returns the entry `name` of a system combined with a dual-context encoder (combinations.py)."""
    architecture = joint.architecture.over_dual_context
    assert architecture is not None
    title, clause = f"{joint.title} over Enc-DC", f"{joint.clause}, over a dual-context encoder"
    return replace(joint, name=name, architecture=architecture, title=title, clause=clause)


def _own(name: str) -> System:
    """Returns the entry of a user's own system, outside of this package, and registers its classes."""
    from transformers.dynamic_module_utils import get_relative_import_files

    from hf_mlnmt.common.model_folder import read_config
    from hf_mlnmt.modeling.configuration import StackConfig, TransformerConfig

    (module, colon, wanted), fields = name.partition(":"), dict[str, Any]()
    try:
        found = getattr(importlib.import_module(module), wanted) if colon else read_config(Path(name))
        if not colon:
            found, config = type(found), found
            fields = {
                key: getattr(config, key)
                for key in sorted(found.__dataclass_fields__.keys() - TransformerConfig.__dataclass_fields__.keys())
            }
        if not (isinstance(found, type) and issubclass(found, StackConfig)):
            raise TypeError("no subclass of this package's TransformerConfig or LanguageModelConfig")
        register(entry := _of_class(found))
        file = Path(inspect.getfile(found))
        others = "|".join({found.__module__.split(".")[0], *(each.stem for each in file.parent.glob("*.py"))})
        lost = rf"^\s*(from\s+(?:\.\s|\.+\w*\.|(?:{others})\b)|import\s+(?:{others})\b).*"
        for path in {file, *map(Path, get_relative_import_files(file))}:
            if line := re.search(lost, path.read_text(encoding="utf-8"), re.M):
                raise ImportError(f"{path}: '{line[0].strip()}' is not copied along; say: from .file import name")
    except UserError:
        raise
    except Exception as error:  # importing a module can raise any exception
        raise UserError(
            f"system '{name}': {type(error).__name__}: {error}. Expected package.module:NameConfig of a module that "
            "Python finds, with NameModel and NameForConditionalGeneration in the same file: docs/own-system.md."
        ) from error
    return System(name, entry, fields, name, "a system of one's own")


def _of_class(config_class: Any) -> Architecture:
    """Returns the architecture of a config class outside of this package, whose models are in the same file."""
    package, _, module = config_class.__module__.rpartition(".")
    prefix, beside = config_class.__name__.removesuffix("Config"), sys.modules[config_class.__module__]
    kind: Kind = "translation" if hasattr(beside, prefix + HEADS["translation"][1]) else "language-model"
    return Architecture(config_class.model_type, module, prefix, None, kind, False, package)


def architectures() -> Iterator[Architecture]:
    """Yields each architecture once: those of all systems, of combinations, and of fused models."""
    for architecture in dict.fromkeys(entry.architecture for entry in SYSTEMS.values()):
        yield architecture
        if architecture.over_dual_context:
            yield architecture.over_dual_context
    yield FUSION


def system_of(config: Any) -> System | None:
    """Returns the system whose distinguishing fields a config has, at any size; None if no system has these."""
    names = [*SYSTEMS]
    if layers := getattr(config, "auxiliary_layers", None):
        names.append(f"ms-{''.join(map(str, layers))}{'-aif' * config.information_fusion}")
    entries = [find_system(name) for name in names]
    entries += [
        _over_dual_context(entry, f"{entry.name}+enc-dc") for entry in entries if entry.architecture.over_dual_context
    ]
    for entry in entries:
        told = {key: value for key, value in entry.fields.items() if key not in ("encoder_layers", "decoder_layers")}
        same = entry.architecture.model_type == config.model_type
        if same and all(getattr(config, key) == value for key, value in told.items()):
            return entry
    return None


def architecture_of(config: Any) -> Architecture | None:
    """Returns the architecture of a config, also of a user's own class; None for other packages' configs."""
    from hf_mlnmt.modeling.configuration import StackConfig

    known = next((entry for entry in architectures() if entry.model_type == config.model_type), None)
    return known or (_of_class(type(config)) if isinstance(config, StackConfig) else None)


def register(architecture: Architecture) -> None:
    """Registers an architecture with the Auto classes. Raises: ValueError where another one has its model_type."""
    import transformers

    config_class, name = architecture.config_class, architecture.model_type
    transformers.AutoConfig.register(name, config_class, exist_ok=architecture.package == Architecture.package)
    transformers.AutoModel.register(config_class, architecture.base_class, exist_ok=True)
    for auto_class, head in architecture.heads.items():
        getattr(transformers, auto_class).register(config_class, head, exist_ok=True)


def positions_of(config: Any) -> int | None:
    """Returns the most tokens of a sentence that a model of this config can read; None: no limit (recurrent layers)."""
    from hf_mlnmt.modeling.rnn import RNNConfig

    return None if isinstance(config, RNNConfig) else getattr(config, "max_position_embeddings", None)


def config_for(system: str, shape: str = "base", **overrides: Any) -> StackConfig:
    """Builds the config of a system at a shape.

    Args:
        system: a canonical name, see `list_systems()`; ms-24 has auxiliaries on layers 2 and 4, ms-24-aif with fusion;
            ms-1+enc-dc, m-10+enc-dc, s-agg+enc-dc and so on have a dual-context encoder.
        shape: a name in SHAPES; of a language model the decoder's numbers count.
        overrides: config fields that replace the shape's and the system's.

    Raises: UserError for an unknown system, shape or field.
    """
    entry = find_system(system)
    if shape not in SHAPES:
        raise UserError(f"shape '{shape}' is unknown{suggest(shape, SHAPES)}; known: {', '.join(SHAPES)}")
    config_class, size = entry.architecture.config_class, SHAPES[shape]
    known = set(config_class.__dataclass_fields__)
    if unknown := [name for name in overrides if name not in known]:
        raise UserError(f"{config_class.__name__} has no field '{unknown[0]}'{suggest(unknown[0], known)}")
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in size.items()}
    sizes = {name: value for name, value in {**sides, **size}.items() if name in known}
    config = config_class(**{**sizes, **deepcopy(dict(entry.fields)), **overrides})  # a copy: configs may be changed
    if entry.architecture.package != Architecture.package:
        config.auto_map = entry.architecture.pointers()  # so that saving copies the code beside the weights
    return config
