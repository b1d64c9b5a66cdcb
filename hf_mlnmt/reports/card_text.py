"""What the card of a model of one language says that a translation model's does not: use, task, perplexities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_mlnmt.model_folder import auto_class_of_config
from hf_mlnmt.reports.facts import Facts
from hf_mlnmt.table import Number, Table

PIPELINE_TAGS = {"AutoModelForCausalLM": "text-generation", "AutoModelForMaskedLM": "fill-mask"}
_NUMBERS = ("per_subword", "per_word", "bits_per_byte", "loss", "per_predicted_token")


def auto_class_of_facts(facts: Facts) -> str:
    """The Auto class that loads the model."""
    return auto_class_of_config({**facts.config.to_dict(), "architectures": [facts.model_class.__name__]})


def what_it_is(facts: Facts) -> tuple[str, str]:
    """A sentence, and the part of a translation model that begins with it."""
    if auto_class_of_facts(facts) == "AutoModelForMaskedLM":
        return "Predicts hidden tokens of a text: the encoder of a translation model, pre-trained (encoder-cloze).", (
            "encoder"
        )
    if hasattr(facts.config, "encoder_layers"):
        return "Predicts the next token: the encoder of a translation model, pre-trained (encoder-lm).", "encoder"
    return "Predicts the next token: a language model, the decoder of a translation model by itself.", "decoder"


def how_to_use_text(facts: Facts) -> dict[str, str]:
    """The blocks of code: `plain` with the package, `trusting` without it."""
    return {"plain": _code(facts, ""), "trusting": _code(facts, ", trust_remote_code=True")}


def _code(facts: Facts, trusted: str) -> str:
    auto_class = auto_class_of_facts(facts)
    lines = [
        f"from transformers import {auto_class}, AutoTokenizer",
        "",
        f'name = "{facts.name}"',
        f"tokenizer = AutoTokenizer.from_pretrained(name{trusted})",
        f"model = {auto_class}.from_pretrained(name{trusted})",
        "",
    ]
    if auto_class == "AutoModelForMaskedLM":
        lines += [
            'inputs = tokenizer("A <mask> is here.", return_tensors="pt")',
            "hidden = inputs.input_ids == tokenizer.mask_token_id",
            "print(tokenizer.batch_decode(model(**inputs).logits[hidden].topk(5).indices.T))",
        ]
    else:
        lines += [
            'inputs = tokenizer("A", return_tensors="pt")',
            "outputs = model.generate(**inputs, do_sample=True, max_new_tokens=20)",
            "print(tokenizer.batch_decode(outputs, skip_special_tokens=True)[0])",
        ]
    return "\n".join(lines)


def perplexity_table(results: Mapping[str, Any]) -> Table | None:
    """The key "perplexity" of results.json; None where it is not recorded."""
    found = results.get("perplexity")
    if not isinstance(found, Mapping) or not found:
        return None
    shown = [name for name in _NUMBERS if any(name in numbers for numbers in found.values())]
    rows = [
        [test, *(f"{numbers[name]:.3f}" if name in numbers else "" for name in shown)]
        for test, numbers in found.items()
    ]
    return Table(["test set", *(Number(name.replace("_", " ")) for name in shown)], rows)
