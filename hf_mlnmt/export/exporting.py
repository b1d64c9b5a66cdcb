"""Exports a model to a folder for another engine, or to a class of Transformers, and checks the folder's outputs.

A model with multi-level supervision can also be written as a model with one of its decoders, main or auxiliary.
"""

import importlib.metadata
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.files import atomic_folder, check_made_before, keeping, write_json
from hf_mlnmt.common.languages import check_direction, check_files, direction_of, keep_direction
from hf_mlnmt.common.model_folder import (
    CONFIG,
    auto_class_of,
    check_model_folder,
    check_tokens,
    copy_text_files,
    fetch_small_files,
)
from hf_mlnmt.hub.checks import clean_generation_config


def write_single_decoder(model: str | Path, output: str | Path, auxiliary: int | None = None) -> Path:
    """Writes a model with auxiliary decoders as a model with only one of its decoders, into the folder `output`.

    auxiliary: the encoder layer whose auxiliary decoder to use, with the encoder up to this layer (thesis on joint
    attention, table 4.7); None: the main decoder, whose outputs stay the same.

    Raises: UserError for other models, an unknown auxiliary decoder, and the main decoder of a model with AIF.
    """
    from hf_mlnmt.generation.translating.loading import load
    from hf_mlnmt.modeling import MultiLevelSupervisionForConditionalGeneration

    folder = check_model_folder(model)
    loaded = load(str(folder), device="cpu").model
    if not isinstance(loaded, MultiLevelSupervisionForConditionalGeneration):
        raise UserError(f"{folder}: {type(loaded).__name__} has no auxiliary decoders.")
    try:
        single = loaded.drop_auxiliaries() if auxiliary is None else loaded.auxiliary_translator(auxiliary)
    except ValueError as error:
        hint = "" if auxiliary is not None else " One of them can translate by itself (--auxiliary LAYER)."
        raise UserError(f"{folder}: {error}.{hint}") from error
    with keeping([folder]), atomic_folder(output) as new:
        single.save_pretrained(new)
        copy_text_files(folder, new)
        keep_direction([folder], new, Path(output).name)
    return Path(output)


class Format(NamedTuple):
    """The packages that an export format needs, the dtypes of weights that it has, and the extra with the packages."""

    packages: tuple[str, ...]
    dtypes: tuple[str, ...] = ("float32",)
    extra: str = "export"


_ONNX = ("onnx", "onnxscript", "onnxruntime")
FORMATS = {
    "ctranslate2": Format(("ctranslate2",), ("float32", "float16", "int8")),
    "onnx": Format(_ONNX),
    "marian": Format(()),
    "firefox": Format(("sentencepiece", "protobuf"), ("int8",), "spm"),
    "transformers.js": Format(_ONNX, ("float32", "int8")),
}
RECORD = "export.json"


class Exported(NamedTuple):
    """The folder of an export and the content of its export.json, with the differences that the check found."""

    folder: Path
    record: dict[str, Any]


def export(
    model: str | Path,
    output: str | Path,
    to: str,
    *,
    dtype: str | None = None,
    calibration: str | Path | None = None,
    shortlist: str | Path | None = None,
    shortlist_text: str | Path | None = None,
    shortlist_teacher: str | Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Writes a model for another engine into the folder `output` and checks it against generate(); no folder is left
    where writing or the check fails.

    The folder also has export.json (format, versions, differences from generate()) and the engine's tokenizers.

    Args:
        output: the folder to make; an earlier export there is replaced, anything else is refused.
        to: "ctranslate2" (the baseline; multi-level supervision without fusion, as its main decoder), "onnx",
            "marian" (MarianMTModel of Transformers: the baseline, post-norm), "firefox" (ssru with a unigram
            tokenizer), or "transformers.js" (any system with one tokenizer).
        dtype: of the weights, one of those of the format (FORMATS); default: the first, of transformers.js each.
        calibration: for Firefox, a file with source sentences, from which the scales for rounding the inputs of
            products are measured; a model that was imported and not trained since keeps its scales without the file.
        shortlist: for Firefox, a lexical shortlist in the engine's format.
        shortlist_text: for Firefox, a file with source sentences, from whose translations a shortlist is made.
        shortlist_teacher: the model whose attention aligns these translations, instead of the exported model's own.

    Raises: UserError when the engine cannot run the model, a package is missing, or outputs differ from the model's.
    """
    output = Path(output)
    _check_request(to, dtype)
    dtypes = (dtype,) if dtype else FORMATS[to].dtypes if to == "transformers.js" else FORMATS[to].dtypes[:1]
    asked = {"--calibrate": calibration, "--shortlist": shortlist, "--shortlist-text": shortlist_text}
    asked["--shortlist-teacher"] = shortlist_teacher
    given = {option: Path(file) for option, file in asked.items() if file is not None}
    if given and to != "firefox":
        raise UserError(f"{next(iter(given))}: is for --format firefox.")
    if shortlist_teacher is not None and shortlist_text is None:
        raise UserError("--shortlist-teacher: says how --shortlist-text is aligned; give that too.")
    if {"--shortlist", "--shortlist-text"} <= given.keys():
        raise UserError("--shortlist and --shortlist-text: both say which words are candidates; give one.")
    source = _check_translates(str(model))
    check_files(source, [file for option, file in given.items() if option in ("--calibrate", "--shortlist-text")])
    if shortlist_teacher is not None:
        wanted = direction_of(source) or (None, None)
        check_direction(shortlist_teacher, wanted, f"--shortlist-teacher {shortlist_teacher}")
    check_made_before(output, RECORD, "hf_mlnmt.export/", "export")
    tell(f"loading {model}")
    parts = _load(str(model))
    network, tokenizers = parts
    from hf_mlnmt.export import firefox, marian, onnx

    if to == "ctranslate2":
        network = exportable_to_ctranslate2(network)
    with atomic_folder(output) as new:
        tell(f"writing and checking {to}, {' and '.join(dtypes)}")
        if to == "ctranslate2":
            differences = write_ctranslate2(network, tokenizers, new, dtypes[0])
        elif to == "firefox":
            differences = firefox.write(parts, source, new, firefox.Asked(*map(given.get, asked)))
        elif to == "transformers.js":
            from hf_mlnmt.export import transformers_js

            differences = transformers_js.write(network, tokenizers, new, dtypes)
        else:
            engine = onnx if to == "onnx" else marian
            engine.write(network, new)
            differences = engine.check(new, network, tokenizers)
        if to not in ("firefox", "transformers.js"):
            tokenizers.save(new)
            network.generation_config.save_pretrained(new)
        packages = ("hf-mlnmt", "torch", "transformers", *FORMATS[to].packages)
        record = {
            "schema": "hf_mlnmt.export/1",
            "format": to,
            "dtype": " and ".join(dtypes),
            "model_type": network.config.model_type,
            "versions": {package: _version(package) for package in packages},
            "compared_with_generate": differences,
        }
        write_json(new / RECORD, record)
    return Exported(output, record)


def _check_translates(name: str) -> Path:
    """Returns the folder of a model's small files. Raises: UserError for models that do not translate."""
    folder = fetch_small_files(name)
    if not (folder / CONFIG).is_file():
        return folder
    if (kind := auto_class_of(folder)) != "AutoModelForSeq2SeqLM":
        raise UserError(
            f"{name}: is a model of one language ({kind}); export writes translation models. It runs wherever "
            "Transformers does; fused into a translation model (hf-mlnmt model fuse) it is searched by this package."
        )
    return folder


def _check_request(to: str, dtype: str | None) -> None:
    if to not in FORMATS:
        raise UserError(f"--format {to}: unknown{suggest(to, FORMATS)}; known: {', '.join(FORMATS)}.")
    packages, known, extra = FORMATS[to]
    if dtype and dtype not in known:
        raise UserError(f"--dtype {dtype}: {to} is exported in {' or '.join(known)}{suggest(dtype, known)}.")
    if missing := [package for package in packages if not _version(package)]:
        raise UserError(f"--format {to} needs {', '.join(missing)}: pip install 'hf-mlnmt[{extra}]'.")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _load(name: str) -> Any:
    """Loads the parts of a system to export. Raises: UserError for models of other packages or of several pairs."""
    from hf_mlnmt.data.directions import has_modules
    from hf_mlnmt.generation.translating.loading import load
    from hf_mlnmt.zoo.systems import architecture_of

    parts = load(name, device="cpu", dtype="float32")
    model = parts.model
    if architecture_of(model.config) is None:
        raise UserError(
            f"{name}: {type(model).__name__} is no model of this package. CTranslate2's ct2-transformers-converter and "
            "Hugging Face's optimum export those of Transformers."
        )
    if has_modules(model) and not model.config.is_pair:
        raise UserError(
            f"{name}: has modules of {', '.join(model.config.languages)}; an export is of one pair. Save one: "
            "model.pair(source, target).save_pretrained(FOLDER), and its tokenizers (docs/multilingual.md)."
        )
    if model.config.eos_token_id is None:
        raise UserError(f"{name}: {CONFIG}: eos_token_id: no token ends a sentence. Write its number there.")
    check_tokens(f"{name}: {CONFIG}", model.config, model.config)
    model.generation_config = clean_generation_config(model.generation_config, model.config)
    return parts


# Export to CTranslate2


def exportable_to_ctranslate2(model: Any) -> Any:
    """Returns the model to export: the model itself, one of multi-level supervision without its auxiliary decoders.

    Raises: UserError, naming what CTranslate2 lacks, for other models than the baseline.
    """
    from hf_mlnmt.export.ctranslate2 import lacks, single_decoder

    model = single_decoder(model)
    if reason := lacks(model):
        raise UserError(
            f"{type(model).__name__} cannot be exported to CTranslate2, which lacks {reason}. Use generate() or "
            "`hf-mlnmt translate`, which run every system, or export --format onnx."
        )
    return model


def write_ctranslate2(model: Any, tokenizers: Any, folder: Path, dtype: str) -> dict[str, Any]:
    """Writes the model in CTranslate2's format and checks it. Returns and raises: as `check_ctranslate2`."""
    from hf_mlnmt.export.ctranslate2 import write

    if dtype != "float32":  # rounded weights give other scores, so the conversion is also checked in float32
        with tempfile.TemporaryDirectory() as scratch:
            write_ctranslate2(model, tokenizers, Path(scratch), "float32")
    write(model, tokenizers, folder, dtype)
    return check_ctranslate2(folder, model, tokenizers, dtype)


def check_ctranslate2(folder: Path, model: Any, tokenizers: Any, dtype: str) -> dict[str, Any]:
    """Loads the folder by CTranslate2 and compares log probabilities, greedy and beam search with those of `model`.

    Returns: the differences, for export.json. Raises: UserError if float32 weights give differences.
    """
    import torch

    from hf_mlnmt.export.check import LENGTH, compare
    from hf_mlnmt.export.ctranslate2 import Translator

    # A CPU has no float16 arithmetic: float16 weights are computed with in float32.
    translator = Translator(folder, model, tokenizers, "int8" if dtype == "int8" else "float32")

    def scores(sources: list[list[int]], targets: list[list[int]]) -> list[Any]:
        return list(map(torch.tensor, translator.log_probabilities(sources, [ids[1:] for ids in targets])))

    def search(sources: list[list[int]], beams: int) -> list[list[int]]:
        return translator.search(sources, beams, LENGTH)

    return compare(model, tokenizers, scores, search, strict=dtype == "float32")
