"""Registers the zoo's classes with Transformers' Auto classes and PEFT, without importing them before they are needed.

From `model_type` to config: when Transformers' table of configs is imported, our configs' names are added to it. For
such a name Transformers imports transformers.models.<model_type>, as for its own models; an import hook makes that
module, with the config from hf_mlnmt/modeling.
From config to models: a config of ours exists only after hf_mlnmt.modeling was imported, and that import registers all
models by Transformers' own `register`, and sets the faster search of generate(). They cannot be registered earlier, as
Transformers imports its table of configs while modules that ours need are half-imported; nor by class names, as every
other package's TransformerConfig would get our models.
PEFT chooses the layers to adapt by model type: when it is imported, our models are added to its tables, with all linear
layers, and a warning is given for names of layers that our models lack.
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
ALL_LINEAR = "all-linear"  # PEFT's name for all linear layers but the output projection


def introduce() -> None:
    """Installs the import hook that registers the zoo's models, once; applies it to modules imported already."""
    if any(isinstance(finder, _Introduction) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, introduction := _Introduction())
    for name in introduction.afterwards.keys() & sys.modules.keys() - {_MODELING}:
        introduction.afterwards[name](sys.modules[name])


def name_configs(table: Any) -> None:
    """Adds the names of all configs to the table of Transformers' module configuration_auto (`table`)."""
    for architecture in architectures():
        table.CONFIG_MAPPING_NAMES[architecture.model_type] = f"{architecture.prefix}Config"


def register_models(_: Any = None) -> None:
    """Imports all models, registers their classes, and sets which search and matrix products modeling/ calls."""
    import transformers

    from hf_mlnmt.common import matmul_backends
    from hf_mlnmt.modeling import configuration, fused, generation, linear, upkeep
    from hf_mlnmt.modeling.configuration import TransformerConfig
    from hf_mlnmt.modeling.tokenization import TranslationTokenizer

    # The search is imported at the first call of generate().
    generation.faster_search = lambda *asked: import_module("hf_mlnmt.search").run(*asked)
    generation.generate_again = lambda *asked: import_module("hf_mlnmt.search.prepare").generate(*asked)
    linear.products, linear.kernels, configuration.upkeep = matmul_backends, fused, upkeep
    # The tokenizer is registered with the baseline's config, but found by its class name in tokenizer_config.json.
    transformers.AutoTokenizer.register(TransformerConfig, fast_tokenizer_class=TranslationTokenizer, exist_ok=True)
    for architecture in architectures():
        register(architecture)


def name_adapted_layers(constants: Any) -> None:
    """Adds our models to PEFT's tables (`constants`) of the layers adapted by default (`target_modules=None`)."""
    of_ia3 = {"TARGET": ["qkv_proj", "q_proj", "kv_proj", "fc2"], "FEEDFORWARD": ["fc2"]}  # IA3 accepts no "all-linear"
    for name, table in vars(constants).items():
        if name.endswith("_MODULES_MAPPING") and ("_IA3_" in name or {"q_proj", "v_proj"} <= {*table.get("bart", ())}):
            layers = of_ia3[name.split("_")[-3]] if "_IA3_" in name else ALL_LINEAR
            table.update(dict.fromkeys((architecture.model_type for architecture in architectures()), layers))


def warn_of_unknown_layers(tuners: Any) -> None:
    """Wraps PEFT's inject_adapter to warn of `target_modules` that a model of ours lacks, as v_proj; PEFT is silent."""
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
    """The import hook: finds modules transformers.models.mlnmt_*, and calls a function after some others' import."""

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
    """The loader of a module transformers.models.mlnmt_*, whose content is the architecture's config class."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture

    def exec_module(self, module: ModuleType) -> None:
        config_class = self.architecture.config_class
        setattr(module, config_class.__name__, config_class)


class _ThenCall(Loader):
    """Wraps a module's own loader; calls a function with the module after executing it."""

    def __init__(self, loader: Any, function: Callable[[Any], None]) -> None:
        self.loader, self.function = loader, function

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        # Restores the module's own loader, so that no trace of the hook is left.
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.function(module)
