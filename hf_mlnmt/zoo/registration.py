"""The zoo's classes under Transformers' Auto classes, without importing either of them before it is needed.

A name in `model_type` finds its config: as soon as Transformers' table of configs is there, ours stand in it by their
names, and Transformers imports transformers.models.<model_type> when it meets one, as it does for its own models. That
module is made here, of the config in hf_mlnmt/modeling.
A config finds its models: whoever has a config of ours has imported hf_mlnmt.modeling, and at its import everything is
registered by Transformers' own `register`, and generate() gets its faster loop. Earlier it cannot be: Transformers
imports its table of configs while the modules that ours are built on are half-imported. Nor by names: every other
package's TransformerConfig would find ours.
PEFT finds the layers that an adapter changes by their names: as soon as it is there, its tables have our models, with
all linear layers, and names that our models lack are warned of.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hf_mlnmt.zoo.systems import Architecture, architectures, register

_CONFIG_TABLE = "transformers.models.auto.configuration_auto"
_MODELING = "hf_mlnmt.modeling"
ALL_LINEAR = "all-linear"  # PEFT's word for all linear layers but the output projection


def introduce() -> None:
    """Makes the Auto classes and PEFT know the zoo's models, whatever is imported now or later; cheap, once."""
    if any(isinstance(finder, _Introduction) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, introduction := _Introduction())
    for name in introduction.afterwards.keys() & sys.modules.keys() - {_MODELING}:
        introduction.afterwards[name](sys.modules[name])


def name_configs(table: Any) -> None:
    """Puts the configs' names into Transformers' table, the module configuration_auto."""
    for architecture in architectures():
        table.CONFIG_MAPPING_NAMES[architecture.model_type] = f"{architecture.prefix}Config"


def register_models(_: Any = None) -> None:
    """Imports all models, registers their classes, and gives them the faster search and matrix products."""
    import transformers

    from hf_mlnmt.common import matmul_backends
    from hf_mlnmt.modeling import configuration, fused, generation, linear, upkeep
    from hf_mlnmt.modeling.configuration import TransformerConfig
    from hf_mlnmt.modeling.tokenization import TranslationTokenizer

    # Both are imported when generate() first asks.
    generation.faster_search = lambda *asked: import_module("hf_mlnmt.search").run(*asked)
    generation.generate_again = lambda *asked: import_module("hf_mlnmt.search.prepare").generate(*asked)
    linear.products, linear.kernels, configuration.upkeep = matmul_backends, fused, upkeep
    # Found by its name, which a tokenizer's folder says.
    transformers.AutoTokenizer.register(TransformerConfig, fast_tokenizer_class=TranslationTokenizer, exist_ok=True)
    for architecture in architectures():
        register(architecture)


def name_adapted_layers(constants: Any) -> None:
    """Puts our models into PEFT's tables of the layers that are adapted unless told (`target_modules=None`)."""
    of_ia3 = {"TARGET": ["qkv_proj", "q_proj", "kv_proj", "fc2"], "FEEDFORWARD": ["fc2"]}  # it takes names alone
    for name, table in vars(constants).items():
        if name.endswith("_MODULES_MAPPING") and ("_IA3_" in name or {"q_proj", "v_proj"} <= {*table.get("bart", ())}):
            layers = of_ia3[name.split("_")[-3]] if "_IA3_" in name else ALL_LINEAR
            table.update(dict.fromkeys((architecture.model_type for architecture in architectures()), layers))


def warn_of_unknown_layers(tuners: Any) -> None:
    """Lets PEFT warn of `target_modules` that a model of ours lacks, as v_proj: it adapts what is left in silence."""
    inject = tuners.BaseTuner.inject_adapter

    @wraps(inject)
    def checked(self: Any, model: Any, adapter_name: str, *args: Any, **kwargs: Any) -> None:
        asked = getattr(self.peft_config[adapter_name], "target_modules", None)
        inject(self, model, adapter_name, *args, **kwargs)
        adapted = self.targeted_module_names
        names = asked if isinstance(asked, list | set | tuple) else ()
        unknown = sorted(name for name in names if not any(f".{each}".endswith(f".{name}") for each in adapted))
        if unknown and str(getattr(getattr(model, "config", None), "model_type", "")).startswith("mlnmt-"):
            warnings.warn(
                f"target_modules: no layer of {type(model).__name__} is called {', '.join(unknown)}: an adapter is "
                f"in {len(adapted)} of its layers alone. Self-attention is qkv_proj, attention over the source q_proj "
                f"and kv_proj, then come out_proj, fc1 and fc2. Leave target_modules out: it is '{ALL_LINEAR}' then.",
                stacklevel=2,
            )

    tuners.BaseTuner.inject_adapter = checked


class _Introduction(MetaPathFinder):
    """Finds the modules transformers.models.mlnmt_*, and calls a function after the import of some other modules."""

    def __init__(self) -> None:
        self.afterwards: dict[str, Callable[[Any], None]] = {
            _CONFIG_TABLE: name_configs,
            _MODELING: register_models,
            "peft.utils.constants": name_adapted_layers,
            "peft.tuners.tuners_utils": warn_of_unknown_layers,
        }
        self.ours = {f"transformers.models.{entry.model_type.replace('-', '_')}": entry for entry in architectures()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self.ours:
            return ModuleSpec(fullname, _ConfigModule(self.ours[fullname]))
        if fullname not in self.afterwards:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenCall(spec.loader, self.afterwards[fullname])
        return spec


class _ConfigModule(Loader):
    """A module that holds one config class of ours."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture

    def exec_module(self, module: ModuleType) -> None:
        config_class = self.architecture.config_class
        setattr(module, config_class.__name__, config_class)


class _ThenCall(Loader):
    """A module's own loader, and a function to call with the module when it has been executed."""

    def __init__(self, loader: Any, function: Callable[[Any], None]) -> None:
        self.loader, self.function = loader, function

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        # The module shall show its own loader, as if we had not been there.
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.function(module)
