"""Masking parts of a model: BLEU with a collected encoder layer, or an auxiliary decoder's states, replaced by zeros.

References: thesis on joint attention, section 3.5.4, table 3.5 ("Every Layer Counts", PBML 115, table 7), for layers;
section 4.5.5 for auxiliaries (AIF); section 4.5.3, table 4.7, for auxiliary decoders that translate by themselves.

| question | systems | variants |
| --- | --- | --- |
| layers | s-agg .. transparent, m-00 .. m-11 | `layer_mask`: f^i of one collected layer becomes zeros |
| auxiliaries | ms-<layers>-aif | `auxiliary_mask`: the features of one auxiliary become zeros, and of all |
| decoders | ms-<layers>, ms-<layers>-aif | each auxiliary decoder translates alone (`auxiliary_translator`) |

Each variant is compared with the whole model by the significance tests of hf_mlnmt.evaluation. The study has rows, bars
and the translations of every variant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hf_mlnmt.analysis.reading import Systems
from hf_mlnmt.common.errors import UserError, naming
from hf_mlnmt.common.files import file_name
from hf_mlnmt.evaluation import ProtocolName, compare, figures
from hf_mlnmt.evaluation.figures import Study
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating.loading import Parts

Question = Literal["layers", "auxiliaries", "decoders"]
WHOLE = "whole model"
LACKING: dict[Question, str] = {
    "layers": "collects no encoder layers (layer aggregation and m-00 .. m-11 do)",
    "auxiliaries": "has no auxiliary information fusion (ms-<layers>-aif has)",
    "decoders": "has no auxiliary decoders (ms-<layers> has)",
}


@dataclass(frozen=True)
class Variant:
    """A model without a part: `arguments` of generate() mask it, or auxiliary decoder `auxiliary` translates alone."""

    question: Question
    name: str
    arguments: dict[str, Any]
    auxiliary: int | None = None


def variants(model: Any, questions: Sequence[Question] | None = None) -> list[Variant]:
    """Returns a model's variants for the questions "layers", "auxiliaries" or "decoders"; None: for all that apply.

    Raises: UserError if a given question does not apply to the model, or for None if none applies.
    """
    config = model.config
    first = config.encoder_layers + 1 - (getattr(config, "feature_count", None) or 0)
    layers = [f"layer {number}" if number else "embeddings" for number in range(first, config.encoder_layers + 1)]
    auxiliaries = list(getattr(config, "auxiliary_layers", None) or [])
    fused = auxiliaries if getattr(config, "information_fusion", False) else []
    every = [Variant("layers", name, {"layer_mask": _without(i, layers)}) for i, name in enumerate(layers)]
    for index, layer in enumerate(fused):
        every.append(Variant("auxiliaries", f"auxiliary {layer}", {"auxiliary_mask": _without(index, fused)}))
    if len(fused) > 1:
        every.append(Variant("auxiliaries", "all auxiliaries", {"auxiliary_mask": [0.0] * len(fused)}))
    every += [Variant("decoders", f"decoder on layer {layer}", {}, layer) for layer in auxiliaries]
    asked = questions or list(LACKING)
    lacking = [question for question in asked if not any(variant.question == question for variant in every)]
    if lacking if questions else not every:
        reasons = "; it ".join(LACKING[question] for question in lacking)
        raise UserError(f"{type(model).__name__} {reasons}. There is nothing to mask.")
    return [variant for variant in every if variant.question in asked]


def _without(index: int, names: Sequence[Any]) -> list[float]:
    """Returns a mask for `names`: ones, and zero at the index."""
    return [float(other != index) for other in range(len(names))]


def translations(
    parts: Parts, sources: Sequence[str], chosen: Sequence[Variant], **decoding: Any
) -> dict[str, list[str]]:
    """Translates by the whole model, then by each variant; returns {name: translations}.

    decoding: options of TranslationPipeline.
    """
    outputs = {WHOLE: list(TranslationPipeline(parts)(list(sources), **decoding))}
    for variant in chosen:
        used = parts
        if variant.auxiliary is not None:
            used = parts._replace(model=parts.model.auxiliary_translator(variant.auxiliary))
        outputs[variant.name] = list(TranslationPipeline(used)(list(sources), **decoding, **variant.arguments))
    return outputs


def rows(
    outputs: dict[str, list[str]],
    chosen: Sequence[Variant],
    references: Sequence[Any],
    *,
    protocol: ProtocolName = "cased",
    **testing: Any,
) -> list[dict[str, Any]]:
    """Returns a row for the whole model, then one for each variant: BLEU, difference to the whole, p-values, † or ‡.

    testing: arguments of `compare`: bootstrap, trials, seed and language.
    """
    comparison = compare(outputs, references, protocols=[protocol], metrics=["BLEU"], **testing)
    made: list[dict[str, Any]] = []
    for name, question in [(WHOLE, ""), *((variant.name, variant.question) for variant in chosen)]:
        place = (name, "test", protocol, "BLEU")
        (bleu,), tested = comparison.scores(*place), comparison.tested(*place) or {"difference": 0.0}
        row = {"question": question, "without": name, "BLEU": bleu, **tested}
        made.append({**row, "sign": comparison.mark(*place)})
    return made


def masking_study(
    systems: Systems,
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    questions: Sequence[Question] | None,
    decoding: dict[str, Any],
    tell: Callable[[str], None] = lambda text: None,
    **testing: Any,
) -> Study:
    """Translates with every variant of every system; scores each and tests it against the whole model.

    questions: None for all that apply to each system. testing: as of `rows`. tell: gets a line of text per system.
    Raises: UserError, before anything is translated, if a question does not apply to a system.
    """
    chosen = {}
    for name, parts in systems.items():
        with naming(name):
            chosen[name] = variants(parts.model, questions)
    study, panels = Study("masking"), {}
    for name, parts in systems.items():
        tell(f"{name}: {1 + len(chosen[name])} translations of {len(sources)} sentences")
        outputs = translations(parts, sources, chosen[name], **decoding)
        for what, lines in outputs.items():
            text = "".join(line.replace("\n", " ") + "\n" for line in lines)
            study.texts[f"translations/{file_name(f'{name}.{what}')}.txt"] = text
        whole, *others = rows(outputs, chosen[name], references, **testing)
        for row in (whole, *others):
            study.rows.append({"system": name, **row})
            without = f"only the {row['without']}" if row["question"] == "decoders" else row["without"]
            change = "" if row is whole else f"{row['difference']:+.2f}{row['sign']}"
            study.summary.append(
                {"system": name, "without": without, "BLEU": round(row["BLEU"], 2), "difference": change}
            )
        bars = [(row["without"], row["difference"], row["sign"]) for row in others]
        panels[f"{name}: {whole['BLEU']:.2f} BLEU"] = bars
    study.figures["masking"] = figures.bars(panels, "change of BLEU", changes=True)
    return study
