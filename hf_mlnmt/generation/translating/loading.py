"""Loads a translation system from a folder or a Hub name: model, tokenizers and text processing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub import hf_hub_download
from transformers import GenerationConfig, PreTrainedTokenizerFast

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import build
from hf_mlnmt.common.model_folder import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    CONFIG,
    GENERATION_CONFIG,
    LANGUAGE_TOKENIZERS,
    auto_class_of,
    check_tokens,
    check_weights,
    fetch_small_files,
    first_line,
    is_adapter,
    load_model,
    read_part,
)
from hf_mlnmt.convert.huggingface import KNOWN
from hf_mlnmt.convert.importing import import_model
from hf_mlnmt.data.directions import Direction, direction, has_modules, pair_of
from hf_mlnmt.data.placeholders import checked_patterns
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers, check_languages, check_vocabulary, ending, load_tokenizers, own_copy
from hf_mlnmt.generation.translating.options import NUMBERS, DecodingOptions, problem_of_number
from hf_mlnmt.search.cpu import int8
from hf_mlnmt.search.t5 import let_search

logger = logging.getLogger(__name__)

_LONGEST = 1_000_000
_OF_THE_HUB = {"revision", "token", "cache_dir", "local_files_only"}  # options that only a download uses


class Parts(NamedTuple):
    """A loaded translation system: model, tokenizers and text processing."""

    model: Any
    tokenizers: Tokenizers

    @property
    def source(self) -> Any:
        """Returns the source's tokenizer."""
        return self.tokenizers.source

    @property
    def target(self) -> Any:
        """Returns the target's tokenizer."""
        return self.tokenizers.target

    @property
    def source_processing(self) -> TextProcessing:
        """Returns the text processing of a source before it is tokenized."""
        return self.tokenizers.processing["source"]

    @property
    def target_processing(self) -> TextProcessing:
        """Returns the text processing of a target before it is tokenized; it is undone after decoding."""
        return self.tokenizers.processing["target"]

    def of(self, source: str | None, target: str | None = None) -> Parts:
        """Returns the parts with the tokenizers of these languages (target None: the source's; source None: unchanged),
        for systems in which every language has its own tokenizer."""
        return self if source is None else self._replace(tokenizers=self.tokenizers.between(source, target or source))

    def between(self, source: str | None, target: str | None, name: str = "") -> tuple[Parts, Direction]:
        """Returns the parts that translate between two languages, and how the model is told the direction. Of a model
        with modules of single languages these are the pair's encoder and decoder. Raises: UserError as `direction`."""
        if not has_modules(self.model):
            return self, direction(self.model, self.source, source, target, name)
        pair = pair_of(self.model, source, target, name)
        return self.of(pair.config.source_languages[0], pair.config.target_languages[0])._replace(
            model=pair
        ), Direction()


def load(name: str, device: str | None = None, dtype: str = "auto", *, fast: bool = False, **options: Any) -> Parts:
    """Loads a translation system from a folder or a Hub name, in evaluation mode, onto a device.

    Args:
        fast: convert a model of Transformers' own that the baseline can compute (Marian, M2M100, NLLB, BART, mBART) to
            the baseline, whose generate() is faster; let T5 and MADLAD, as they are, be searched here.
        dtype: auto, float32, bfloat16, float16, float64; or int8, on a CPU: linear layers with weights in int8, and
            inputs rounded to int8 in each call (docs/decoding.md says when that is faster).
        options: from_pretrained's: revision, trust_remote_code and so on.

    Raises: UserError when the system does not exist, is not a translation model, or its vocabulary does not fit.
    """
    rounded = dtype == "int8"
    if dtype not in ("auto", "float32", "bfloat16", "float16", "float64", "int8"):
        raise UserError(f"dtype {dtype!r} is not known: use auto, float32, bfloat16, float16 or int8.")
    number = "float32" if rounded else dtype
    if device is not None and options.get("device_map") is not None:
        raise UserError(f"device {device!r} and device_map: both say where the model is to be; leave one of them out.")
    folder = fetch_small_files(name, **options)
    check_search(f"{name}: {GENERATION_CONFIG}", read_part(folder, GENERATION_CONFIG))
    parts = (_imported(name, number, options) if fast else None) or _as_it_is(name, number, options)
    if fast:
        let_search(parts.model)
    if options.get("device_map") is None:
        try:
            parts.model.to(torch.device("cpu") if rounded and device is None else choose_device(device))
        except RuntimeError as error:
            raise UserError(f"device {device!r}: {error}") from error
    elif any(weight.is_meta for weight in parts.model.parameters()):
        raise UserError(
            f"{name}: device_map={options['device_map']!r} leaves weights on the disk or in slower memory, because the "
            "model does not fit: use a smaller dtype, a larger device, or device='cpu' without device_map."
        )
    settings, config = parts.model.generation_config, parts.model.config
    for token in ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id"):
        if getattr(settings, token, None) is None:  # generation_config.json omits the token: use config.json's
            setattr(settings, token, getattr(config, token, None))
    for field in ("repetition_penalty", "encoder_repetition_penalty"):
        if getattr(settings, field, None) is not None:
            setattr(settings, field, float(getattr(settings, field)))  # generate() refuses an int
    check_tokens(f"{name}: {GENERATION_CONFIG} or {CONFIG}", config, settings)
    parts.model.eval()
    return parts_in_int8(parts) if rounded else parts


def load_scored(name: str, device: str | None = None) -> tuple[Any, Tokenizers]:
    """Loads a language or translation model and its tokenizers from a folder or a Hub name, for perplexities.

    Raises: UserError when the model does not exist, or is a masked language model, which has no perplexity.
    """
    folder = fetch_small_files(name)
    auto_class = auto_class_of(folder)
    if auto_class == "AutoModelForMaskedLM":
        raise UserError(f"{name}: predicts what is hidden in a text, not the text: it has no perplexity.")
    model = load_model(name, getattr(transformers, auto_class))
    return model.to(choose_device(device)).eval(), ending(load_tokenizers(folder))


def parts_in_memory(model: Any, tokenizer: Any) -> Parts:
    """Returns the parts of a system whose model and tokenizer are in memory; puts the model into evaluation mode.

    tokenizer: of both sides; a TranslationTokenizer of this package may hold two. Raises: UserError where the model or
    the tokenizer is missing, or the vocabularies do not fit.
    """
    if tokenizer is None or isinstance(model, str | Path):
        raise UserError("TranslationPipeline: give a tokenizer beside the model, or load both by from_pretrained.")
    target, said = (getattr(tokenizer, name, None) for name in ("target_tokenizer", "text_processing"))
    source = own_copy(tokenizer, PreTrainedTokenizerFast) if hasattr(tokenizer, "text_processing") else tokenizer
    check_vocabulary("the model", model.config, source, target or source)
    check_tokens("the model", model.config, model.generation_config)
    sides = {
        side: build(TextProcessing, settings, "text_processing", (side,)) for side, settings in (said or {}).items()
    }
    return Parts(_without_adapter(model.eval()), Tokenizers(source, target or source, sides))


def _without_adapter(model: Any) -> Any:
    """Returns the base model of a PEFT model, with the adapters in its layers; any other model, and a PEFT model of
    prompts, is returned as it is."""
    if not hasattr(model, "active_peft_config") or model.active_peft_config.is_prompt_learning:
        return model
    return model.get_base_model()


def check_search(where: str, settings: Mapping[str, Any]) -> None:
    """Raises UserError for a generation config with values for the search that DecodingOptions refuses."""
    names = ["num_beams", "length_penalty", "length_normalization", "early_stopping", "max_new_tokens", "recombine"]
    names += ["max_source_tokens", "num_beam_groups"]
    said = {name: settings[name] for name in (*names, "alpha", "beta") if settings.get(name) is not None}
    longest = settings.get("max_length")
    try:
        DecodingOptions(**said)
        if longest is not None and not (isinstance(longest, int) and 1 < longest <= _LONGEST):
            raise UserError(f"max_length: {longest!r} is not a whole number from 2 to {_LONGEST:,}.")
        for token, pattern in (settings.get("placeholders") or {}).items():
            checked_patterns(pattern, f"placeholders.{token}")
        for name in NUMBERS:
            if settings.get(name) is not None and (problem := problem_of_number(name, settings[name])):
                raise UserError(problem)
    except UserError as error:
        raise UserError(f"{where}: {error} Mend it there, or leave it out.") from error


def _as_it_is(name: str, dtype: str, options: dict[str, Any]) -> Parts:
    if is_adapter(folder := fetch_small_files(name, **options)):
        return _adapted(name, folder, dtype, options)
    model = load_model(name, dtype=dtype, **options)
    loaded = load_tokenizers(folder, bool(options.get("trust_remote_code")))
    if loaded.each:
        check_languages(name, model.config, loaded.each)
    elif getattr(model.config, "vocab_sizes", None) is not None and not model.config.is_pair:
        raise UserError(f"{name}: no {LANGUAGE_TOKENIZERS}/ with a tokenizer for each language. Copy it there.")
    else:
        check_vocabulary(name, model.config, loaded.source, loaded.target)
    return Parts(model, loaded)


def _adapted(name: str, folder: Path, dtype: str, options: dict[str, Any]) -> Parts:
    """Loads the base model that an adapter's folder names, with the adapter, and the folder's tokenizers if any.

    folder: a folder with the small files of the model `name`.
    """
    base = read_part(folder, ADAPTER)["base_model_name_or_path"]
    if not Path(name).is_dir():
        of_hub = {key: options[key] for key in _OF_THE_HUB & options.keys()}
        folder = Path(hf_hub_download(name, ADAPTER_WEIGHTS, **of_hub)).parent
    with ExitStack() as stack:
        check_weights(folder / ADAPTER_WEIGHTS, stack)
    try:
        from peft import PeftModel
    except ImportError as error:
        raise UserError(f"{folder}: holds an adapter of PEFT, which is not installed: pip install peft.") from error
    parts = _as_it_is(base, dtype, options)
    try:
        adapted: Any = PeftModel.from_pretrained(parts.model, str(folder))
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{folder}: its adapter does not fit {base} ({first_line(error)}).") from error
    model = _without_adapter(adapted)
    if (folder / GENERATION_CONFIG).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    if not any(folder.glob("*token*")):
        return parts._replace(model=model)
    loaded = load_tokenizers(folder, bool(options.get("trust_remote_code")))
    check_vocabulary(str(folder), model.config, loaded.source, loaded.target)
    return Parts(model, loaded)


def _imported(name: str, dtype: str, options: dict[str, Any]) -> Parts | None:
    """Loads a model and converts it to the baseline; None where its architecture is another or importing fails."""
    if not options.keys() <= _OF_THE_HUB:
        return None
    if read_part(fetch_small_files(name, **options), CONFIG).get("model_type") not in KNOWN:
        return None
    try:
        model, tokenizers, *_ = import_model(name, **options)
    except UserError as error:
        logger.warning("%s: left as it is, because it cannot be imported: %s", name, error)
        return None
    if dtype != "auto":
        model.to(getattr(torch, dtype))
    logger.warning("%s: imported as this package's baseline, the same outputs (fast=False leaves it as it is)", name)
    return Parts(model, tokenizers)


def parts_in_int8(parts: Parts) -> Parts:
    """Returns the parts with a copy of the model whose linear layers are in int8.

    Raises: UserError for a model on a GPU, or one that computes with its layers' weights by itself.
    """
    if parts.model.device.type != "cpu":
        raise UserError(f"dtype int8 is for a CPU, not for device {parts.model.device}: use bfloat16 or float16 there.")
    model: Any = int8.in_int8(parts.model)
    if not any(int8.compiled(part) for part in model.modules() if isinstance(part, int8.Int8Linear)):
        logger.warning("dtype int8 needs AVX-512 VNNI and a C compiler to be fast: here float32 may be faster")
    token = torch.tensor([[model.config.decoder_start_token_id]])
    tried = model
    if has_modules(model):
        tried = model.pair(model.config.source_languages[0], model.config.target_languages[0])
    try:
        with torch.no_grad():
            tried(input_ids=token, decoder_input_ids=token)
    except (AttributeError, TypeError) as error:  # the model reads `weight`, which a rounded layer does not have
        raise UserError(
            f"dtype int8: {type(model).__name__} computes with its layers' own weights; use float32."
        ) from error
    return parts._replace(model=model)


def choose_device(device: str | None) -> torch.device:
    """Returns the device of a name (None: a GPU if any, else the CPU). Raises: UserError if unknown or not usable."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device {device!r} is not known: use cpu, cuda, cuda:0, mps...") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r}: no CUDA device is usable here. Leave the option out or say cpu.")
    return chosen
