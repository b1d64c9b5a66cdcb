"""The code a card shows: blocks that run as they are, in a folder that holds the model under its name or online."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_mlnmt.model_folder import LANGUAGE_TOKENIZERS, TARGET_TOKENIZER
from hf_mlnmt.reports.facts import Facts
from hf_mlnmt.reports.language_names import example


def how_to_use(facts: Facts) -> dict[str, str]:
    """The blocks of code: `plain` with the package, `trusting` without it, by the `pipeline`, and by the `shell`."""
    return {
        "plain": "\n".join(_plain(facts)),
        "trusting": "\n".join(_plain(facts, trust=True)),
        "pipeline": "\n".join(_pipeline(facts)),
        "shell": _shell(facts),
    }


def _plain(facts: Facts, trust: bool = False) -> list[str]:
    """Tokenizer, AutoModelForSeq2SeqLM, generate()."""
    target = "target_tokenizer" if facts.separate_tokenizers else "tokenizer"
    # The tokenizer has no code of its own, but AutoTokenizer reads the model's config first, and would ask.
    trusted = ", trust_remote_code=True" if trust else ""
    source, undo = facts.processing.get("source") or {}, facts.processing.get("target") or {}
    folder, other = "", TARGET_TOKENIZER
    if facts.language_tokenizers:
        folder, other = (f"{LANGUAGE_TOKENIZERS}/{code}" for code in facts.languages)
    where = f', subfolder="{folder}"' if folder else ""
    lines = [
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer",
        *_moses_import(source, undo),
        "",
        f'name = "{facts.name}"',
        f"tokenizer = AutoTokenizer.from_pretrained(name{where}{trusted})",
    ]
    if facts.separate_tokenizers:
        lines.append(f'target_tokenizer = AutoTokenizer.from_pretrained(name, subfolder="{other}"{trusted})')
    lines += [
        f"model = AutoModelForSeq2SeqLM.from_pretrained(name{trusted})",
        "",
        f'text = "{example(facts.languages[0])}"',
        *_apply(source),
    ]
    prefix = f"<2{facts.codes[0]}> " if facts.codes else ""
    argument = f'"{prefix}" + text' if prefix else "text"
    lines.append(f'inputs = tokenizer([{argument}], return_tensors="pt", padding=True)')
    lines.append(f"outputs = model.generate(**inputs{''.join(f', {x}' for x in _names(facts))})")
    lines.append(f"translation = {target}.batch_decode(outputs, skip_special_tokens=True)[0]")
    return [*lines, *_undo(undo), "print(translation)"]


def _names(facts: Facts) -> list[str]:
    """What a model with modules of several languages is told."""
    config = facts.config
    if not hasattr(config, "source_languages") or config.is_pair:
        return []
    return [f'{side}_language="{code}"' for side, code in zip(("source", "target"), facts.languages)]


def _pipeline(facts: Facts) -> list[str]:
    option = f', target_language="{facts.codes[0]}"' if facts.codes else ""
    option += "".join(f", {name}" for name in _names(facts))
    return [
        "from hf_mlnmt.generation import TranslationPipeline",
        "",
        f'translate = TranslationPipeline.from_pretrained("{facts.name}")',
        f'print(translate(["{example(facts.languages[0])}"]{option})[0])',
    ]


def _shell(facts: Facts) -> str:
    option = f" --target-language {facts.codes[0]}" if facts.codes else ""
    option += "".join(f" -{side} {code}" for side, code in zip("st", facts.languages)) if _names(facts) else ""
    return f'echo "{example(facts.languages[0])}" | hf-mlnmt translate {facts.name}{option}'


def _moses_import(source: Mapping[str, Any], target: Mapping[str, Any]) -> list[str]:
    names = ["MosesDetokenizer"] if target.get("moses") else []
    names += ["MosesPunctNormalizer"] if source.get("normalize") else []
    names += ["MosesTokenizer"] if source.get("moses") else []
    return [f"from sacremoses import {', '.join(names)}"] if names else []


def _apply(processing: Mapping[str, Any]) -> list[str]:
    """What data/processing.py does to the source before the tokenizer, in its order."""
    language, lines = processing.get("language", "en"), []
    if processing.get("normalize"):
        lines.append(f'text = MosesPunctNormalizer(lang="{language}").normalize(text)')
    if processing.get("moses"):
        lines.append(f'text = MosesTokenizer(lang="{language}").tokenize(text, return_str=True, escape=False)')
    if processing.get("lowercase"):
        lines.append("text = text.lower()")
    return lines


def _undo(processing: Mapping[str, Any]) -> list[str]:
    if not processing.get("moses"):
        return []
    language = processing.get("language", "en")
    return [
        f'translation = MosesDetokenizer(lang="{language}").detokenize(translation.split(), unescape=False)',
    ]
