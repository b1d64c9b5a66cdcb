"""Makes the records modeling/<stem>.json and training/<stem>.yaml of the setups, from the zoo's entries.

The baseline's recipe of each setup is written by hand; those of the other systems extend it. After a change in the zoo:
python -c "from hf_mlnmt.zoo.record_files import write_records; write_records()"
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from hf_mlnmt.files import write_json, write_text
from hf_mlnmt.zoo.entries.bridge import BRIDGE
from hf_mlnmt.zoo.entry import System
from hf_mlnmt.zoo.papers import BASELINE
from hf_mlnmt.zoo.records import records_root
from hf_mlnmt.zoo.setups import SETUPS
from hf_mlnmt.zoo.systems import VARIANTS, config_for, find_system


def _entry(system: str) -> System:
    return VARIANTS[system] if system in VARIANTS else find_system(system)


def record_config_of(system: str, setup: str) -> Any:
    """The config of modeling/<system>.<setup>.json."""
    entry, about = _entry(system), SETUPS[setup]
    plain = BASELINE if system in VARIANTS else system
    fields = {**about.fields, **entry.fields, **entry.setup_fields.get(setup, {})}
    return config_for(plain, about.shape, **fields)


def record_json(system: str, setup: str) -> dict[str, Any]:
    """The content of modeling/<system>.<setup>.json: every field of our configs, and the model's class."""
    from hf_mlnmt.modeling.configuration import StackConfig

    config = record_config_of(system, setup)
    ours = [kind for kind in type(config).__mro__ if issubclass(kind, StackConfig)]
    names = sorted({name for kind in ours for name in inspect.get_annotations(kind)})
    content = {name: value for name, value in config.to_dict().items() if name in [*names, "model_type"]}
    model_class = _entry(system).architecture.head_class
    return {**{name: content[name] for name in sorted(content)}, "architectures": [model_class.__name__]}


def recipe_text(system: str, setup: str) -> str:
    """The content of training/<system>.<setup>.yaml for a system that is trained like the baseline."""
    entry, about, stem = _entry(system), SETUPS[setup], f"{system}.{setup}"
    return (
        f"# {entry.title} for {about.direction}: {entry.clause}.\n"
        f"# Trained on {about.corpus} like the baseline; the model itself is modeling/{stem}.json.\n"
        f"extends: {BASELINE}.{setup}.yaml\n" + ("tokenizer: {languages: []}\n" if entry.architecture is BRIDGE else "")
        # Modules are chosen by the languages' names: no token before the source says them.
    )


def write_records(setups: list[str] | None = None, root: str | Path | None = None) -> list[Path]:
    """Write modeling/ and training/ of all systems of the setups (default: all); the baseline's recipes are left alone.

    The cards are `hf_mlnmt.reports.write_cards`'. Returns the files.
    """
    root, written = Path(root) if root is not None else records_root(), []
    for setup in setups or SETUPS:
        for system in SETUPS[setup].systems:
            stem = f"{system}.{setup}"
            written.append(write_json(root / "modeling" / f"{stem}.json", record_json(system, setup)))
            if system != BASELINE:
                written.append(write_text(root / "training" / f"{stem}.yaml", recipe_text(system, setup)))
    return written
