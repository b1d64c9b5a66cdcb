"""The YAML on top of a card: what the Hub searches and shows. Only what is recorded; nothing is guessed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from hf_mlnmt.reports.card_text import PIPELINE_TAGS, auto_class_of_facts
from hf_mlnmt.reports.facts import Facts
from hf_mlnmt.reports.language_names import language_name
from hf_mlnmt.reports.tables import Score, scores_of, title

_HUB_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
# The Hub compares values of one metric id: scores on prepared text must not stand among plain sacreBLEU's.
_METRIC_IDS = {("cased", "BLEU"): "sacrebleu", ("cased", "chrF"): "chrf", ("cased", "TER"): "ter"}


def metadata(facts: Facts) -> ModelCardData:
    """Languages, licence, library, task, tags, data sets, metrics, and the scores as a model-index."""
    results = [_eval_result(facts, score) for score in scores_of(facts.results)]
    datasets = hub_datasets(facts.data)
    return ModelCardData(
        language=_languages(facts) or None,
        license=facts.licence.lower() if facts.licence else None,
        library_name="transformers",
        pipeline_tag=PIPELINE_TAGS.get(auto_class_of_facts(facts), "translation"),
        tags=_tags(facts),
        datasets=datasets or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        eval_results=results or None,
        # Demanded with results; without them it would stand in the YAML as a key that the Hub does not know.
        model_name=facts.name.split("/")[-1] if results else None,
    )


def hub_datasets(data: Mapping[str, Any]) -> list[str]:
    """The corpora that are data sets of the Hub by name, of a results file's or a recipe's `data`."""
    return list(dict.fromkeys(name for name in _dataset_names(data.get("train")) if _HUB_NAME.fullmatch(name)))


def _dataset_names(corpora: Any) -> Iterator[str]:
    for corpus in corpora if isinstance(corpora, list) else [corpora]:
        if isinstance(corpus, Mapping):
            name = (corpus["corpus"] if isinstance(corpus.get("corpus"), Mapping) else corpus).get("dataset")
            # A local folder may be called "data" as a data set may: on the Hub new ones have an owner.
            if isinstance(name, str) and ("/" in name and not name.startswith((".", "/"))):
                yield name


def _languages(facts: Facts) -> list[str]:
    return list(dict.fromkeys([*filter(None, facts.languages), *facts.codes, *getattr(facts.config, "languages", ())]))


def _tags(facts: Facts) -> list[str]:
    kind = PIPELINE_TAGS.get(auto_class_of_facts(facts), "translation")
    tags = [kind, "neural-machine-translation"]
    if facts.carries_code:
        tags += ["hf_mlnmt", facts.config.model_type]
    return tags


def _eval_result(facts: Facts, score: Score) -> EvalResult:
    source, target = facts.languages_of_test(score.test_set)
    dataset = next(iter(hub_datasets(facts.data)), None)
    arguments: dict[str, Any] = {"signature": score.signature, "protocol": score.protocol}
    if score.interval:
        arguments["confidence_interval_95"] = [round(bound, 2) for bound in score.interval]
    if len(facts.results) > 1:
        arguments["seed"] = score.seed
    metric = _METRIC_IDS.get((score.protocol, score.metric), f"{score.metric.lower()}-{score.protocol}")
    return EvalResult(
        task_type="translation",
        task_name=f"Translation {language_name(source)} to {language_name(target)}" if source and target else None,
        dataset_type=dataset or re.sub(r"[^\w.-]+", "-", score.test_set),
        dataset_name=score.test_set,
        dataset_args={"test_set": score.test_set} if dataset else None,
        metric_type=metric,
        metric_name=f"{score.metric} ({title(score.protocol)})",
        metric_value=round(score.score, 2),
        metric_args=arguments,
    )
