"""Tells each family of models the languages to translate: by a token before the source, a forced token, or a phrase.

family                  | source                       | target
ours, multilingual      | -                            | `<2de>` before the source
Marian, multilingual    | -                            | `>>deu<<` before the source
NLLB, M2M100, mBART-50  | the tokenizer's src_lang     | first token of the translation is forced
mBART-25                | the tokenizer's src_lang     | the decoder starts with the code
T5, mT5                 | "translate English to German: " before the source
MADLAD                  | -                            | `<2de>` before the source, an entry of T5's vocabulary
ours, modules of each   | chooses its encoder          | chooses its decoder
one pair                | -                            | -

A `Direction` holds what tells a model its languages, for the encoder of texts and for generate(): in translating
`Parts.between` (generation/translating/loading.py) asks for it; in training `encode_corpus` (encoding.py) adds codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hf_mlnmt.common.errors import UserError, say_once, suggest
from hf_mlnmt.common.languages import direction_of, same_language
from hf_mlnmt.common.model_folder import read_config
from hf_mlnmt.data.tokenizer import Tokenizers, language_code, languages_of, load_tokenizers, own_copy

_CODE = re.compile(r"(?:>>|<2)([^<>]+)(?:<<|>)")  # a language token: >>de<< of Marian, <2de> of MADLAD


@dataclass(frozen=True)
class Direction:
    """Tells a model its languages: ids or text before a source, src_lang (`source`), arguments of generate()."""

    prefix_ids: tuple[int, ...] = ()
    prefix_text: str = ""
    source: str | None = None
    generate: dict[str, Any] = field(default_factory=dict)


_PHRASED = ("t5", "mt5", "umt5", "switch_transformers", "longt5")  # told the languages by words before a text


def is_told(model: Any, tokenizer: Any) -> bool:
    """Returns whether a model can be told which languages to translate; one for a single language pair cannot."""
    told = has_modules(model) or hasattr(tokenizer, "src_lang") or model.config.model_type in _PHRASED
    return bool(told or _prefix_tokens(tokenizer))


def direction(model: Any, tokenizer: Any, source: str | None, target: str | None, name: str = "") -> Direction:
    """Returns how the model is told to translate `source` to `target`. Raises: UserError for codes that it lacks."""
    if has_modules(model) and source is target is None:
        return Direction()
    if hasattr(tokenizer, "src_lang"):
        return _coded(model, tokenizer, source, target, name)
    if model.config.model_type in _PHRASED:
        if target and tokenizer.convert_tokens_to_ids(f"<2{target}>") not in (None, tokenizer.unk_token_id):
            return Direction(prefix_text=f"<2{target}> ")
        if not (known := _prefix_tokens(tokenizer)):
            return Direction(prefix_text=_phrase(model, source, target, name))
        _choose("target_language", target, known, name)
    known = _prefix_tokens(tokenizer)
    if source is not None and known and source not in known:
        say_once(
            f"source_language {source!r} changes nothing: {name or 'the model'} is told the target language alone, and "
            f"knows of {', '.join(known)}"
        )
    if known:
        token = known[_choose("target_language", target, known, name)]
        return Direction(prefix_ids=(tokenizer.convert_tokens_to_ids(token),))
    own = direction_of(name) or ("", "") if name else ("", "")  # of a model of one pair, whose codes change nothing
    for option, value, there in zip(("source_language", "target_language"), (source, target), own):
        if value is not None and not same_language(value, there):
            raise UserError(f"{option} {value!r}: {name or 'this model'} has no language codes. Leave the option out.")
    return Direction()


def told_of(folder: str | Path, source: str, target: str) -> dict[str, Any]:
    """Returns the pipeline's options that tell the model in `folder` its languages; {} for a model of one pair."""
    tokenizers = load_tokenizers(folder)
    if not tokenizers.each and not is_told(SimpleNamespace(config=read_config(Path(folder))), tokenizers.source):
        return {}
    return {"source_language": source, "target_language": target}


def has_modules(model: Any) -> bool:
    """Returns whether the model has an encoder or decoder for each language, as the attention bridge has."""
    return hasattr(model, "pair") and hasattr(model.config, "source_languages")


def pair_of(model: Any, source: str | None, target: str | None, name: str = "") -> Any:
    """Returns the model of one pair, made of the modules for its languages. Raises: UserError for unknown codes."""
    config = model.config
    source = _choose("source_language", source, config.source_languages, name)
    return model.pair(source, _choose("target_language", target, config.target_languages, name))


def told(tokenizers: Tokenizers, direction: Direction, target: str | None) -> Tokenizers:
    """Returns tokenizers that encode every source so that it tells the direction: by src_lang, or by ids before it."""
    source, phrase, front = tokenizers.source, direction.prefix_text.strip(), direction.prefix_ids
    if phrase:
        front = (*front, *source(phrase, add_special_tokens=False)["input_ids"])
    if direction.source is None:
        return replace(tokenizers, tell=None, front=front)
    copy = own_copy(source)
    copy.src_lang, copy.tgt_lang = direction.source, target
    return replace(tokenizers, source=copy, target=copy, tell=None)


def language_codes(tokenizer: Any) -> list[str]:
    """Returns the language codes that source_language and target_language accept; [] for a model of one pair."""
    if hasattr(tokenizer, "src_lang"):
        return list(_code_ids(tokenizer))
    return list(_prefix_tokens(tokenizer))


def code_tokens(tokenizer: Any) -> list[str]:
    """Returns the tokens of the language codes, as in "<2de>", ">>deu<<", "__de__" or "deu_Latn"; [] if it has none."""
    if hasattr(tokenizer, "src_lang"):
        return list(tokenizer.convert_ids_to_tokens(list(_code_ids(tokenizer).values())))
    return list(_prefix_tokens(tokenizer).values())


def _coded(model: Any, tokenizer: Any, source: str | None, target: str | None, name: str) -> Direction:
    codes = _code_ids(tokenizer)
    # The tokenizer's own src_lang is not used: these classes default to English and save this as if it were chosen.
    source = _choose("source_language", source, codes, name)
    if target is None and model.generation_config.forced_bos_token_id is not None:
        return Direction(source=source)
    identifier = codes[_choose("target_language", target, codes, name)]
    starts = type(tokenizer).__name__ in ("MBartTokenizer", "MBartTokenizerFast")
    option = "decoder_start_token_id" if starts else "forced_bos_token_id"
    return Direction(source=source, generate={option: identifier})


def _code_ids(tokenizer: Any) -> dict[str, int]:
    if hasattr(tokenizer, "lang_code_to_token"):
        return {code: tokenizer.get_lang_id(code) for code in tokenizer.lang_code_to_token}
    if hasattr(tokenizer, "lang_code_to_id"):
        return dict(tokenizer.lang_code_to_id)
    names = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
    named = {getattr(tokenizer, f"{name}_token", None) for name in names}
    codes = [token for token in tokenizer.all_special_tokens if token not in named]
    return dict(zip(codes, tokenizer.convert_tokens_to_ids(codes), strict=True))


def _prefix_tokens(tokenizer: Any) -> dict[str, str]:
    """Returns {code: token before the source} of a tokenizer of this package, of Marian's or of MADLAD's."""
    if languages := languages_of(tokenizer):
        return {language: language_code(language) for language in languages}
    tokens = getattr(tokenizer, "supported_language_codes", ())
    if type(tokenizer).__name__.startswith("T5Tokenizer"):
        tokens = tokenizer.get_vocab()
    return {match[1]: token for token in sorted(tokens) if (match := _CODE.fullmatch(token))}


def _choose(option: str, code: str | None, codes: Iterable[str], name: str) -> str:
    known = list(codes)
    if code in known:
        return code
    if code is None and len(known) == 1:
        return known[0]
    problem = "needed by this model"
    if code:
        same = next((f" (did you mean '{other}'?)" for other in known if same_language(code, other)), "")
        problem = f"unknown code {code!r}{same or suggest(code, known)}"
    raise UserError(f"{option}: {problem}. {name or 'The model'} knows: {', '.join(known)}.")


def _phrase(model: Any, source: str | None, target: str | None, name: str) -> str:
    """Returns T5's instruction, from the model's own list of tasks where it has one."""
    if source is None and target is None:
        return ""
    if source is None or target is None:
        raise UserError(f"{name or 'this model'} needs both source_language and target_language, or neither.")
    tasks = getattr(model.config, "task_specific_params", None) or {}
    prefixes = [task["prefix"] for task in tasks.values() if task.get("prefix", "").startswith("translate ")]
    if f"translation_{source}_to_{target}" in tasks:
        return tasks[f"translation_{source}_to_{target}"]["prefix"]
    phrase = f"translate {source} to {target}: "
    if not prefixes or phrase in prefixes:
        return phrase
    pairs = ", ".join(key.removeprefix("translation_") for key in tasks if key.startswith("translation_"))
    raise UserError(f"{name or 'the model'} was not taught {source!r} to {target!r}; it knows: {pairs}.")
