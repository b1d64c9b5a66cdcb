"""Checks of a finished folder: it may hold no pickles, paths of the machine, tokens or left-overs of training.

A generation_config is published with what the model needs and how it was decoded, and no more.
Seq2SeqTrainer.evaluate() writes every default of generate() into a model's generation_config, max_length=20 among them:
published, it would cut every translation short.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import GenerationConfig

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import check_folder_name
from hf_mlnmt.common.model_folder import (
    ADAPTER,
    CARD,
    CONFIG,
    GENERATION_CONFIG,
    TOKEN_IDS,
    auto_class_of,
    is_adapter,
    read_part,
)
from hf_mlnmt.reports.facts import front_matter
from hf_mlnmt.reports.paths import SECRET, find_paths, machine_roots

KEPT = (
    *(*TOKEN_IDS, "forced_bos_token_id", "forced_eos_token_id"),
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens"),
    *("num_beams", "length_penalty", "length_normalization", "early_stopping", "max_new_tokens", "max_source_tokens"),
    *("alpha", "beta", "recombine", "no_repeat_ngram_size", "repetition_penalty", "renormalize_logits"),
    *("confidence", "alignment_head", "length_ratio", "placeholders", "reads_matches"),
)
"""Keys of a generation config that are published, unless their value is generate()'s default; others are left out."""
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("length_penalty", "repetition_penalty"), 1.0),
    **dict.fromkeys(("early_stopping", "renormalize_logits"), False),
    **{"num_beams": 1, "no_repeat_ngram_size": 0, "length_normalization": "generate"},
}
STOCK_LENGTHS = (20, 21)
"""Values of max_length that nobody chose: Transformers' default, without and with the start token."""


def clean_generation_config(config: GenerationConfig, model_config: Any) -> GenerationConfig:
    """Returns a config of the KEPT keys of `config`; token ids that it lacks come from the model's config.

    It always has max_new_tokens: else from a max_length that was chosen, or from the model's longest sequence.
    """
    values = {key: getattr(config, key, None) for key in KEPT}
    for key in TOKEN_IDS:
        if values[key] is None:
            values[key] = getattr(model_config, key, None)
    if values["max_new_tokens"] is None:
        values["max_new_tokens"] = _longest(config, model_config)
    kept = {key: value for key, value in values.items() if value is not None and value != _DEFAULTS.get(key)}
    if kept.get("num_beams", 1) == 1:  # one beam: Transformers warns of settings that only a beam search uses
        kept = {key: value for key, value in kept.items() if key not in ("early_stopping", "length_penalty")}
    else:
        kept.setdefault("length_penalty", 1.0)  # always stated for a beam search: the card shows it
    return GenerationConfig(**kept)


def pollution(content: Mapping[str, Any]) -> list[str]:
    """Lists, as `key=value`, the keys with a value in a generation_config.json that a published one may not have."""
    keys = [key for key in content if key not in (*KEPT, "transformers_version", "_from_model_config")]
    return [f"{key}={content[key]}" for key in keys if content[key] is not None]


def _longest(config: GenerationConfig, model_config: Any) -> int:
    chosen = getattr(config, "max_length", None)
    if chosen is not None and chosen not in STOCK_LENGTHS:
        return chosen - 1  # max_length counts the start token
    return min(256, (getattr(model_config, "max_position_embeddings", None) or 257) - 1)


_PICKLE_SUFFIXES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".h5", ".msgpack", ".joblib"}
_TEXT_SUFFIXES = {".json", ".md", ".py", ".txt", ".yaml", ".yml", ".jsonl", ".toml", ".cfg", ""}
_NEEDED = (CONFIG, GENERATION_CONFIG, CARD)


def check_replaceable(folder: Path, what: str, names: Collection[str], suffixes: Collection[str] = ()) -> None:
    """Raises UserError for a folder that holds anything but `names` and files with one of `suffixes`, which an earlier
    `what` (as "Space") consists of: replacing the folder would delete it."""
    check_folder_name(folder)
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in inside:
        if path.name not in names and not (path.is_file() and path.suffix in suffixes):
            raise UserError(
                f"{folder}: holds '{path.name}', which no {what} has and which would be deleted. Choose a new or empty "
                "folder."
            )


def check_folder(folder: str | Path, *origins: str | Path) -> None:
    """Raises UserError, naming everything wrong, for a folder that is not fit to publish.

    origins: folders of this machine whose paths must not appear (those of home, work and temporary files never may).
    """
    folder = Path(folder)
    problems, roots = [*_missing(folder), *_configs(folder)], machine_roots(folder, *origins)
    for path in sorted(path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()):
        problems += _file(path, folder, roots)
    if problems:
        lines = "\n".join(f"- {problem}" for problem in problems)
        raise UserError(f"{folder}: not fit to publish:\n{lines}\nNothing was uploaded. Mend these and publish again.")


def _missing(folder: Path) -> Iterator[str]:
    # A masked language model generates no text, and needs no generation config.
    masked = (folder / CONFIG).is_file() and auto_class_of(folder) == "AutoModelForMaskedLM"
    for name in (ADAPTER, *_NEEDED[1:]) if is_adapter(folder) else _NEEDED:
        if not (folder / name).is_file() and not (masked and name == GENERATION_CONFIG):
            yield f"{name} is missing"
    weights = list(folder.glob("*.safetensors"))
    if not weights:
        yield "there are no weights as safetensors"
    for path in weights:
        try:
            with safe_open(str(path), framework="pt"):
                pass
        except SafetensorError as error:
            yield f"{path.name} is broken or half-written ({error})"


def _configs(folder: Path) -> Iterator[str]:
    config, generation = (read_part(folder, name) for name in (CONFIG, GENERATION_CONFIG))
    if config.get("use_cache") is False:
        yield "config.json: use_cache is false, a leftover of training; it slows every plain forward call"
    if left := pollution(generation):
        yield f"generation_config.json: leftovers of training: {', '.join(left)}"
    if generation and generation.get("max_new_tokens") is None:
        yield "generation_config.json: no max_new_tokens, so translations would be cut after 20 tokens"
    if (folder / CARD).is_file() and not front_matter(folder / CARD):
        yield "README.md: no YAML metadata between two lines of --- at its top"


def _file(path: Path, folder: Path, roots: Sequence[str]) -> Iterator[str]:
    name = path.relative_to(folder)
    if path.is_symlink():
        yield f"{name}: a link; only plain files can be published"
        return
    with path.open("rb") as stream:
        start = stream.read(4)
    # First bytes of pickles of protocols 2 to 5, and of a zip, which torch.save writes.
    pickled = start[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05") or start == b"PK\x03\x04"
    if path.suffix in _PICKLE_SUFFIXES or pickled:
        yield f"{name}: may hold a pickle, which can run code when it is loaded"
    if path.suffix in _TEXT_SUFFIXES:
        text = path.read_text(encoding="utf-8", errors="replace")
        if paths := find_paths(text, roots):
            yield f"{name}: holds paths of this machine: {', '.join(paths[:3])}"
        if SECRET.search(text):
            yield f"{name}: holds a Hugging Face token. Revoke it: it may have been seen already"
