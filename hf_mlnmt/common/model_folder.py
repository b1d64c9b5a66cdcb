"""Names the files of a model folder; finds, checks, loads and copies model folders.

| file | content |
| --- | --- |
| config.json, *.py | the model's config; its code, where config.json points to it (`auto_map`) |
| model.safetensors | the weights; large ones in several files that model.safetensors.index.json lists |
| generation_config.json | the default options of decoding |
| tokenizer.json and others | the tokenizer of both sides, or of the source |
| target_tokenizer/ | the target's tokenizer, where it is another one |
| tokenizers/<language>/ | instead of both: a tokenizer for each language |
| text_processing.json | the processing of text before the tokenizer; without the file, none |
| results.json, README.md | scores and how the model was made; the model card |
| curves.png | the training's curves, in a run's folder and in a published one |
"""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import Form, read_json, write_json

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
TARGET_TOKENIZER = "target_tokenizer"
LANGUAGE_TOKENIZERS = "tokenizers"
TEXT_PROCESSING = "text_processing.json"
RESULTS, RESULTS_SCHEMA = "results.json", "hf_mlnmt.results/1"
CARD = "README.md"
# PEFT's files of an adapter. A folder without config.json has only that; a checkpoint may also have a model's weights.
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CURVES = "curves.png"
MODELS_OF_A_RUN = ("average", "best")
# Patterns of the files of tokenizers, of any kind, and of text processing.
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_OTHER_TOKENIZERS = ("vocab*.json", "vocab*.txt", "merges.txt", "*.spm", "*.model")
TEXT_FILES = (*TOKENIZERS, *_OTHER_TOKENIZERS, TARGET_TOKENIZER, LANGUAGE_TOKENIZERS, TEXT_PROCESSING)
# Patterns of the files on which a model's outputs depend.
MODEL_FILES = (CONFIG, GENERATION_CONFIG, "*.safetensors", *TEXT_FILES)
# Patterns of all files of a model but its weights.
_OF_TOKENIZERS = (f"{TARGET_TOKENIZER}/*", f"{LANGUAGE_TOKENIZERS}/*")
SMALL_FILES = ("*.json", "*.py", "*.spm", "*.model", "*.txt", "*.s2t", *_OF_TOKENIZERS)
# The forms of a model folder's JSON files (files.py); Transformers checks all other fields when it reads them.
_WHOLE, _NUMBER, _TOKEN = (None, int), (None, float), (None, {"content": str}, str)
_UNUSED = "stop_strings constraints force_words_ids watermarking_config penalty_alpha dola_layers prefill_chunk_size"
_UNUSED += " prompt_lookup_num_tokens assistant_early_exit"
FORMS: dict[str, Form] = {
    CONFIG: {
        "model_type?": str,
        "architectures?": (None, [str]),
        "is_encoder_decoder?": bool,
        "tokenizers?": (None, {...: {"size": int, "digest": str}}),
        **dict.fromkeys(("dtype?", "torch_dtype?"), (None, str)),
        **dict.fromkeys(("auto_map?", "quantization_config?"), (None, dict)),
    },
    GENERATION_CONFIG: {
        **{f"{name}_token_id?": _WHOLE for name in ("bos", "pad", "decoder_start", "forced_bos")},
        **{f"{name}_token_id?": (None, int, [int]) for name in ("eos", "forced_eos")},
        **{f"{name}?": (None, bool) for name in ("use_cache", "do_sample")},
        **{f"{name}?": None for name in _UNUSED.split()},
        **{f"{name}?": (None, False) for name in ("use_mtp", "token_healing", "is_assistant")},
        **{"recombine?": _WHOLE, "num_return_sequences?": _WHOLE, "length_normalization?": (None, str)},
        **{f"{name}?": (None, [int]) for name in ("suppress_tokens", "begin_suppress_tokens")},
        **{"bad_words_ids?": (None, [[int]]), "sequence_bias?": (None, [[[int], float]])},
        **{"exponential_decay_length_penalty?": (None, [int, float]), "max_time?": _NUMBER, "top_h?": _NUMBER},
    },
    TEXT_PROCESSING: {"source?": dict, "target?": dict},
    "tokenizer.json": {"model?": dict},
    "tokenizer_config.json": {f"{name}_token?": _TOKEN for name in ("bos", "eos", "pad", "unk", "mask", "cls", "sep")},
    "special_tokens_map.json": {...: (None, str, dict, [(str, dict)])},
    "added_tokens.json": {...: int},
    ADAPTER: {"base_model_name_or_path": str},
    WEIGHTS_INDEX: {"metadata": dict, "weight_map": {...: str}},
}
# Tensors that are no weights: positions, counters and masks in older files of Transformers' models.
_NO_WEIGHTS = re.compile(r"(position_ids|num_batches_tracked|attn\.(masked_)?bias)$")
_LARGEST = 1e9  # larger weights count as damaged, because their products would overflow
_HINT = f"Give a model folder, such as a run's {MODELS_OF_A_RUN[0]}/ or {MODELS_OF_A_RUN[1]}/"

TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
"""The special tokens that a generation config copies from the model's config."""


def token_ids(config: Any) -> dict[str, Any]:
    """Returns the special tokens of a model's config, for a generation config; a language model has no start token."""
    names = TOKEN_IDS if config.is_encoder_decoder else TOKEN_IDS[:-1]
    return {name: getattr(config, name, None) for name in names}


# Functions that find and check model folders


def check_model_folder(folder: str | Path) -> Path:
    """Returns the path of a model folder. Raises: UserError if it is missing, has no safetensors or a damaged JSON."""
    folder = Path(folder)
    if not folder.is_dir():
        kind = "a file, not a model folder" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {kind}{_suggestion(folder)}. {_HINT}.")
    if not (folder / CONFIG).is_file():
        inside = [str(folder / name) for name in MODELS_OF_A_RUN if (folder / name / CONFIG).is_file()]
        hint = f"It is a run's folder; give {' or '.join(inside)}." if inside else f"{_HINT}."
        raise UserError(f"{folder}: no {CONFIG} there. {hint}")
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        what = f"only {pickles[0]}, a pickle, which is never loaded here" if pickles else "no weights at all"
        raise UserError(f"{folder}: {what}. Save the model again with Transformers 5, which writes safetensors.")
    read_part(folder, CONFIG)
    read_part(folder, GENERATION_CONFIG)
    return folder


def is_adapter(folder: Path) -> bool:
    """Returns whether a folder has only an adapter of PEFT, whose base model is elsewhere."""
    return (folder / ADAPTER).is_file() and not (folder / CONFIG).is_file()


def weight_files(folder: Path) -> list[Path]:
    """Returns a folder's files of weights that Transformers would load: model.safetensors, else those of the index.

    Raises: UserError for a damaged index, or one that names a file that is not beside it.
    """
    index = folder / WEIGHTS_INDEX
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return [folder / WEIGHTS]
    names = sorted(set(read_part(folder, WEIGHTS_INDEX)["weight_map"].values()))
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise UserError(f"{index}: {name!r} is no file beside it. Copy all files of the model again.")
    return [folder / name for name in names]


def read_part(folder: Path, name: str) -> dict[str, Any]:
    """Returns the content of a JSON file in a model folder, {} if there is none. Raises UserError for a wrong form."""
    return read_json(folder / name, FORMS.get(name, dict))


_RUN = "--trust-remote-code, in Python trust_remote_code=True. Read that code first."
_trusted = False


@contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Context manager: models loaded inside, in any thread, may run the code in their folders (--trust-remote-code)."""
    global _trusted
    before, _trusted = _trusted, trust or _trusted
    try:
        yield
    finally:
        _trusted = before


def trusted() -> bool:
    """Returns whether code in model folders may run by default: inside `trusting`."""
    return _trusted


def read_config(path: Path, **options: Any) -> Any:
    """Returns the config of a model folder or of a JSON file, as AutoConfig.from_pretrained reads it.

    Raises: UserError if the file is missing, or is not a model's config.
    """
    import torch
    from transformers import AutoConfig

    file = path / CONFIG if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{file}: no such file.")
    content = read_json(file, FORMS[CONFIG])
    named = content.get("dtype") or content.get("torch_dtype") or "float32"
    if not getattr(getattr(torch, named.removeprefix("torch."), None), "is_floating_point", False):
        raise UserError(f"{file}: dtype: expected float32, float16 or bfloat16, not {named}. Mend it there.")
    options = {"trust_remote_code": trusted(), **options}
    own = _class_in(path, "AutoConfig", options) if options["trust_remote_code"] and path.is_dir() else None
    try:
        config = own.from_pretrained(path) if own else AutoConfig.from_pretrained(path, **options)
        config.name_or_path = str(path)  # where Transformers looks for the model's code
        return config
    except Exception as error:  # Transformers raises exceptions of many kinds for wrong values
        said = _untrusted(error) or str(error).strip().split("\n\n")[0]  # without Transformers' paragraphs of advice
        if said != _untrusted(error) and "auto_map" in content:
            said += "\nIt was made by another version of this package, or a changed one; its own code lies beside it: "
            said += _RUN
        raise UserError(f"{file}: not the config of a model: {said}") from error


def _untrusted(error: Exception) -> str:
    """Returns a message for an error by which Transformers asks for trust_remote_code; "" for other errors."""
    if "custom code" not in str(error):
        return ""
    return (
        "neither Transformers nor this package has such a model, and code of its own (auto_map) is not run unless you "
        f"say so: {_RUN}"
    )


def check_tokens(where: str, config: Any, settings: Any) -> None:
    """Raises UserError if `settings`, a generation config or `config` itself, has a token id beyond the vocabulary."""
    sizes = getattr(config, "vocab_sizes", None) or {}
    size = min(sizes.values(), default=getattr(config, "decoder_vocab_size", None) or config.vocab_size)
    for name in ("eos", "pad", "bos", "decoder_start", "forced_bos", "forced_eos"):
        value = getattr(settings, f"{name}_token_id", None)
        for token in (value or ["none"]) if isinstance(value, list) else [value]:
            if token is not None and not (isinstance(token, int) and 0 <= token < size):
                raise UserError(f"{where}: {name}_token_id: {token!r} is no number of a token, from 0 to {size - 1}.")
    words = getattr(settings, "bad_words_ids", None)
    if words is not None and not (isinstance(words, list) and words and all(isinstance(w, list) and w for w in words)):
        raise UserError(f"{where}: bad_words_ids: {words} is no list of lists of tokens.")
    lists = {"bad_words_ids": words or []}
    lists |= {name: [getattr(settings, name, None) or []] for name in ("suppress_tokens", "begin_suppress_tokens")}
    biases = getattr(settings, "sequence_bias", None)
    lists["sequence_bias"] = [pair[0] for pair in biases] if isinstance(biases, list) else []
    for name, words in lists.items():
        for word in words:
            if not all(isinstance(token, int) and 0 <= token < size for token in word):
                raise UserError(f"{where}: {name}: {word} are no numbers of tokens, from 0 to {size - 1}.")


def open_weights(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Checks all weights of a model folder; returns tensor name -> open file that has it. `stack` closes the files.

    Raises: UserError if there are no safetensors weights, they are broken, or one is not finite, or has integers where
        config.json does not say that the model is quantised.
    """
    check_model_folder(folder)
    quantised = bool(read_part(folder, CONFIG).get("quantization_config"))
    tensors: dict[str, Any] = {}
    for path in weight_files(folder):
        tensors |= check_weights(path, stack, quantised)
    return tensors


def check_weights(path: Path, stack: ExitStack, quantised: bool = False) -> dict[str, Any]:
    """Checks the weights in one file; returns tensor name -> the open file. Raises: UserError as `open_weights`."""
    tensors = _open(path, stack)
    whole, broken = [], []
    for name, file in tensors.items():
        tensor = file.get_tensor(name)
        if not tensor.is_floating_point():
            whole += [] if quantised or _NO_WEIGHTS.search(name) else [name]
            continue
        wide = tensor.float() if tensor.itemsize == 1 else tensor
        if tensor.numel() and not all(end.abs() < _LARGEST for end in wide.aminmax()):
            broken.append(name)
    if whole:
        raise UserError(
            f"{path}: weights are of whole numbers ({_some(whole)}), which would be taken as they are: rounded for "
            "another program? Save the model in float32, float16 or bfloat16."
        )
    if broken:
        raise UserError(
            f"{path}: weights hold values that are not finite numbers ({_some(broken)}), or above {_LARGEST:g}: the "
            "training that made them went wrong, or the file is damaged. Use an earlier checkpoint, or copy the file "
            "again."
        )
    return tensors


def _open(path: Path, stack: ExitStack) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        what = "a folder, not a file" if path.is_dir() else "no such file"
        raise UserError(f"{path}: {what}; expected a model saved as safetensors.")
    try:
        file = stack.enter_context(safe_open(str(path), framework="pt"))
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: broken or half-written ({error}). Copy the weights again.") from error
    return dict.fromkeys(file.keys(), file)


def check_name(name: str | Path) -> None:
    """Raises UserError, without network, for a name that is neither a sound model folder nor a possible Hub name."""
    if Path(name).exists():
        check_model_folder(name)
    elif is_path(str(name)):
        raise UserError(f"{name}: no such folder{_suggestion(Path(name))}, and not a Hub name either. {_HINT}.")


def is_path(name: str) -> bool:
    """Returns whether a name is meant as a path: it cannot be a Hub name, or its first part is an existing folder."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    owner, slash, _ = name.partition("/")
    if name.startswith((".", "~", "/")) or name.count("/") > 1 or (slash and Path(owner).is_dir()):
        return True
    try:
        validate_repo_id(name)
    except HFValidationError:
        return True
    return False


def _suggestion(path: Path) -> str:
    """Returns " (did you mean 'runs/demo/average'?)" with the existing folder of the most similar path, or ""."""
    current, changed = Path(path.anchor), False
    for part in path.relative_to(path.anchor).parts:
        if not (current / part).is_dir():
            inside = [child.name for child in current.iterdir() if child.is_dir() and not child.name.startswith(".")]
            near = difflib.get_close_matches(part, inside, n=1, cutoff=0.6)
            if not near:
                return ""
            part, changed = near[0], True
        current /= part
    return f" (did you mean '{current}'?)" if changed else ""


def auto_class_of(folder: str | Path) -> str:
    """Returns the name of the Auto class that loads the model of a folder. FileNotFoundError without a config.json."""
    if not (path := Path(folder) / CONFIG).is_file():
        raise FileNotFoundError(path)
    return auto_class_of_config(read_part(Path(folder), CONFIG))


def auto_class_of_config(content: Mapping[str, Any]) -> str:
    """Returns the name of the Auto class that loads the model whose config.json has this content."""
    name = (content.get("architectures") or [""])[0]
    if name.endswith("ForMaskedLM"):
        return "AutoModelForMaskedLM"
    if name.endswith("ForCausalLM"):
        return "AutoModelForCausalLM"
    # Other names (MarianMTModel, GPT2LMHeadModel) do not tell: is_encoder_decoder does, whose default is True in ours.
    ours = str(content.get("model_type", "")).startswith("mlnmt-")
    return "AutoModelForSeq2SeqLM" if content.get("is_encoder_decoder", ours) else "AutoModelForCausalLM"


def fetch_small_files(name: str | Path, **options: Any) -> Path:
    """Returns the folder `name`, or, for a Hub name, a local folder with all of its files but the weights.

    options: the Hub's revision, token and cache_dir; others are ignored. Raises: UserError if neither exists.
    """
    if Path(name).is_dir():
        if revision := options.get("revision"):
            raise UserError(f"{name}: a folder, and revision {revision} is of the Hub. Leave it out.")
        return Path(name)
    check_name(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    known = {key: options[key] for key in ("revision", "token", "cache_dir") if options.get(key) is not None}
    nothing = f"{name}: no such folder{_suggestion(Path(name))}"
    try:
        return Path(snapshot_download(str(name), allow_patterns=list(SMALL_FILES), **known))
    except LocalEntryNotFoundError as error:
        raise UserError(f"{nothing}; as a Hub name it is not in the cache, and the Hub cannot be reached.") from error
    except Exception as error:  # raised by the file system or the Hub's client
        raise UserError(f"{nothing}, and not found on the Hub ({first_line(error)}).") from error


# Loading


def load_model(name: str | Path, head: Any = None, *, dtype: Any = "auto", strict: bool = True, **options: Any) -> Any:
    """Loads a model from a folder or a Hub name, from safetensors only, and checks that weights and config fit.

    Args:
        head: the Auto class to load by; default: AutoModelForSeq2SeqLM.
        strict: refuse weights that are missing, have another shape or are not finite and, except for Transformers' own
            models (whose older files have more tensors), weights that the model does not have.
        options: of from_pretrained: revision, trust_remote_code and so on.

    Raises: UserError if the model is missing, of another kind, broken, or its config and weights do not fit.
    """
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers import AutoModelForSeq2SeqLM

    check_name(name)
    options = {"trust_remote_code": trusted(), **options}
    auto_class: Any = head or AutoModelForSeq2SeqLM
    loader = (_class_in(name, auto_class.__name__, options) if options["trust_remote_code"] else None) or auto_class
    if Path(name).is_dir():
        config = read_config(Path(name), trust_remote_code=options["trust_remote_code"])
        if head is None and not config.is_encoder_decoder:
            raise UserError(f"{name}: not an encoder-decoder (translation) model.")
        weight_files(Path(name))
    how = {"dtype": dtype, "use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        with _one_message(strict, Path(name).is_dir()):
            model, report = loader.from_pretrained(str(name), **how, **options)
    except SafetensorError as error:
        raise UserError(f"{name}: the weights are broken or half-written ({error}). Copy them again.") from error
    except (StrictDataclassError, ValueError, TypeError, AttributeError, ImportError) as error:
        if "Unrecognized configuration class" in str(error):
            kind = "an encoder-decoder (translation) model" if head is None else f"a model for {head.__name__}"
            raise UserError(f"{name}: not {kind}.") from error
        raise UserError(f"{name}: {_untrusted(error) or error}") from error
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        raise UserError(f"{name}: too large for the memory ({first_line(error)}). See its {CONFIG}.") from error
    except OSError as error:
        where = "" if Path(name).exists() else _suggestion(Path(name))
        hint = f"Give a model folder or a Hub name. {first_line(error)}."
        raise UserError(f"{name}: cannot be loaded{where}. {hint}") from error
    if strict:
        _check_fit(name, model, report)
        if options.get("device_map") != "meta":
            with ExitStack() as stack:
                open_weights(fetch_small_files(name, **options), stack)
    return model


def _class_in(name: str | Path, auto_class: str, options: Mapping[str, Any]) -> Any:
    """Returns the class that the code in a published folder has for an Auto class; None if there is none, or the code
    equals this package's, whose registered class Transformers uses."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    hub = {key: options[key] for key in ("revision", "token", "cache_dir") if options.get(key) is not None}
    folder = fetch_small_files(name, **hub)
    if auto_class not in (pointers := read_part(folder, CONFIG).get("auto_map") or {}):
        return None
    ours = Path(__file__).parents[1] / "modeling"
    here = [(file, ours / file.name) for file in folder.glob("*.py")]
    if all(mine.is_file() and mine.read_bytes() == file.read_bytes() for file, mine in here):
        return None
    return get_class_from_dynamic_module(pointers[auto_class], str(folder))


@contextmanager
def _one_message(strict: bool, local: bool) -> Iterator[None]:
    """Context manager: hides Transformers' table of unfit weights if `strict`, and its progress bar if `local`."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    if strict:
        logging.set_verbosity(max(verbosity, logging.ERROR))
    if local:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def _check_fit(name: str | Path, model: Any, report: Mapping[str, Any]) -> None:
    problems = {
        "are missing": report["missing_keys"],
        "have another shape": [key for key, *_ in report["mismatched_keys"]],
        "are unknown to the model": report["unexpected_keys"] if needs_code(type(model)) else [],
    }
    if unfit := [f"{len(keys)} {what} ({_some(keys)})" for what, keys in problems.items() if keys]:
        raise UserError(
            f"{name}: {CONFIG} and weights do not fit: of the weights {', '.join(unfit)}. Take both from one model "
            "folder."
        )


def _some(names: Iterable[str]) -> str:
    first, *others = sorted(names)
    return f"{first} and {len(others)} more" if others else first


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, without the full stop, or its class's name if there is no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


# Copying


def needs_code(model_class: type) -> bool:
    """Returns whether a class is not Transformers' own, so that its code must be copied into the model folder."""
    return model_class.__module__.split(".")[0] != "transformers"


def copy_text_files(source: Path, target: Path) -> None:
    """Copies tokenizers, text processing and config.json's entry `tokenizers` from a model folder into another."""
    copy_files(source, target, TEXT_FILES)
    note_tokenizers(target, read_part(source, CONFIG).get("tokenizers"))


def note_tokenizers(folder: Path, tokenizers: Mapping[str, Any] | None) -> None:
    """Writes `tokenizers`, their sizes and digests (data/tokenizer.py), into a folder's config.json if it has one."""
    if tokenizers and (content := read_part(folder, CONFIG)):
        write_json(folder / CONFIG, dict(sorted({**content, "tokenizers": tokenizers}.items())))


def copy_all_but_weights(source: Path, target: Path) -> None:
    """Copies config, generation config, code, tokenizers and text processing from a model folder into another."""
    copy_files(source, target, (CONFIG, GENERATION_CONFIG, "*.py", *TEXT_FILES))


def copy_files(source: Path, target: Path, patterns: Iterable[str]) -> None:
    """Copies the files and folders that match the patterns from a model folder into another."""
    for path in sorted({path for pattern in patterns for path in source.glob(pattern)}):
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)
