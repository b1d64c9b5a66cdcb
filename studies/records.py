"""`make records`: makes the records modeling/<stem>.json and training/<stem>.yaml of the setups, and all cards.

    python studies/records.py
    python studies/records.py --check

The records are made from the zoo's entries. The recipes of each setup's baseline and of methods are written by hand;
those of the other systems extend the first. The cards model_cards/<stem>.md are made from the records and results/,
with what the papers report.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path
from typing import Any

from methods import METHODS, Method
from papers import BASELINE
from published import papers_table
from setups import SETUPS

from hf_mlnmt.files import write_json, write_text
from hf_mlnmt.reports import card_for_record
from hf_mlnmt.zoo.entries.bridge import BRIDGE
from hf_mlnmt.zoo.entries.fusion import FUSION
from hf_mlnmt.zoo.entry import System
from hf_mlnmt.zoo.records import records_root, stems
from hf_mlnmt.zoo.systems import VARIANTS, config_of_entry, find_system


def _entry(system: str) -> System:
    return VARIANTS.get(system) or find_system(system)


def record_config_of(system: str, setup: str, **more: Any) -> Any:
    """The config of modeling/<system>.<setup>.json; more: fields beyond the setup's and the system's."""
    entry, about = _entry(system), SETUPS[setup]
    fields = {**about.fields, **entry.fields, **entry.setup_fields.get(setup, {}), **more}
    if entry.architecture.kind == "language-model":  # it has the target's vocabulary and no other
        fields["vocab_size"] = fields.pop("decoder_vocab_size", fields["vocab_size"])
        fields.pop("share_encoder_decoder_embeddings", None)
    return config_of_entry(entry, about.shape, **fields)


def record_json(name: str, setup: str) -> dict[str, Any]:
    """The content of modeling/<name>.<setup>.json, of a system or a method: every field of our configs, its class."""
    method = METHODS.get(setup, {}).get(name, Method(name))
    config, architecture = record_config_of(method.system, setup, **method.fields), _entry(method.system).architecture
    if method.fused:
        config, architecture = _fused_config(config, setup), FUSION
    elif method.auto_class is not None:
        config.is_encoder_decoder = False
    model_class = architecture.heads[method.auto_class or architecture.auto_class]
    return {**_own_fields(config), "architectures": [model_class.__name__]}


def _own_fields(config: Any) -> dict[str, Any]:
    """The fields of our configs, sorted, those of members too."""
    from hf_mlnmt.modeling.configuration import StackConfig
    from hf_mlnmt.modeling.fusion import FusionConfig

    ours = [kind for kind in type(config).__mro__ if issubclass(kind, StackConfig | FusionConfig)]
    names = {name for kind in ours for name in inspect.get_annotations(kind)} | {"model_type"}
    content = {name: value for name, value in config.to_dict().items() if name in names}
    for kind in ("translation_models", "language_models"):
        if kind in content:
            content[kind] = [_own_fields(member) for member in getattr(config, kind)]
    return {name: content[name] for name in sorted(content)}


def _fused_config(translation: Any, setup: str) -> Any:
    """A translation model and the setup's language model, with the thesis's scales."""
    from hf_mlnmt.modeling.fusion import FusionConfig

    method = METHODS[setup].get("lm", Method("lm"))
    language_model = record_config_of(method.system, setup, **method.fields)
    same = ("vocab_size", "decoder_vocab_size", "max_position_embeddings", "decoder_start_token_id")
    ids = ("pad_token_id", "eos_token_id", "bos_token_id")
    return FusionConfig(
        translation_models=[translation],
        language_models=[language_model],
        start_token_ids=[translation.decoder_start_token_id, language_model.bos_token_id],
        **{name: getattr(translation, name) for name in (*same, *ids)},
    )


def recipe_text(system: str, setup: str) -> str:
    """The content of training/<system>.<setup>.yaml for a system that is trained like the baseline."""
    entry, about, stem = _entry(system), SETUPS[setup], f"{system}.{setup}"
    return (
        f"# {entry.title} for {about.direction}: {entry.clause}.\n"
        f"# Trained on {about.corpus} like the baseline; the model itself is modeling/{stem}.json.\n"
        f"extends: {BASELINE}.{setup}.yaml\n" + (_bridge_text(entry) if entry.architecture is BRIDGE else "")
    )


def _bridge_text(entry: System) -> str:
    """What a model of many encoders and decoders is trained with: modules are chosen by the languages' names, so that
    no token before the source says them; A -> A ties the languages together; LSTMs have a learning rate of their own.
    """
    text = "tokenizer: {languages: []}\ndirections: {copies: true}\n"
    recurrent = entry.fields["coders"] == "rnn"
    return text + ("optimizer: {name: adam, learning_rate: 4.0e-3, weight_decay: 0.0}\n" if recurrent else "")


def write_records(setups: list[str] | None = None, root: str | Path | None = None) -> list[Path]:
    """Write modeling/ and training/ of all records of the setups (default: all), but recipes written by hand.

    Returns the files.
    """
    root, written = Path(root) if root is not None else records_root(), []
    for setup in setups or SETUPS:
        for method in METHODS.get(setup, ()):
            written.append(write_json(root / "modeling" / f"{method}.{setup}.json", record_json(method, setup)))
        for system in SETUPS[setup].systems:
            stem = f"{system}.{setup}"
            written.append(write_json(root / "modeling" / f"{stem}.json", record_json(system, setup)))
            if system != BASELINE:
                written.append(write_text(root / "training" / f"{stem}.yaml", recipe_text(system, setup)))
    return written


def stale_cards(root: str | Path | None = None) -> list[str]:
    """Names of the records whose card is missing or is not what it should be."""
    root = Path(root) if root is not None else records_root()
    cards = {stem: root / "model_cards" / f"{stem}.md" for stem in stems(root)}
    return [stem for stem, path in cards.items() if not path.is_file() or path.read_text("utf-8") != _card(stem, root)]


def write_cards(root: str | Path | None = None) -> list[Path]:
    """Write the card of every record; returns the files."""
    root = Path(root) if root is not None else records_root()
    return [write_text(root / "model_cards" / f"{stem}.md", _card(stem, root)) for stem in stems(root)]


def _card(stem: str, root: Path) -> str:
    return card_for_record(stem, root, papers_table(stem))


def main(words: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 and name stale cards")
    if parser.parse_args(words).check:
        if stale := stale_cards():
            print(f"stale: {', '.join(stale)}. Make them anew with `make records`.", file=sys.stderr)
        return int(bool(stale))
    print(f"{len(write_records())} files of records, {len(write_cards())} cards")
    return 0


if __name__ == "__main__":
    sys.exit(main())
