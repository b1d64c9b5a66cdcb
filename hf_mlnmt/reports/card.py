"""Builds the model card, README.md, by filling templates with Facts. All its numbers are in results.json or a config.

The first score of each test set is also written to the card's YAML metadata, and, where a data set of the Hub has the
text, to `.eval_results/`: the Hub's search reads both.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, EvalResultEntry, ModelCardData, eval_result_entries_to_yaml
from huggingface_hub.utils import yaml_dump

from hf_mlnmt.common.languages import base_language
from hf_mlnmt.common.model_folder import LANGUAGE_TOKENIZERS, TARGET_TOKENIZER, auto_class_of_config
from hf_mlnmt.common.table import Number, Table, markdown_text
from hf_mlnmt.evaluation.comparison import Comparison
from hf_mlnmt.evaluation.curves import in_words
from hf_mlnmt.evaluation.results import inside
from hf_mlnmt.evaluation.robustness import robustness_table
from hf_mlnmt.evaluation.scores import with_arrow
from hf_mlnmt.evaluation.significance import LEGEND
from hf_mlnmt.recipe.schema import HUB_NAME
from hf_mlnmt.reports.comparison_page import detail, is_trained
from hf_mlnmt.reports.facts import Facts
from hf_mlnmt.reports.tables import (
    MISSING,
    Score,
    example,
    facts_table,
    language_name,
    score_tables,
    scores_of,
    show,
    template,
)

# `library_name` of a translation model's card (hub/ holds its entry for the Hub's pages). For "transformers" the Hub
# would tell readers to install Transformers below 5.
LIBRARY = "hf-mlnmt"
EVAL_RESULTS = ".eval_results"
PIPELINE_TAGS = {"AutoModelForCausalLM": "text-generation", "AutoModelForMaskedLM": "fill-mask"}
_NUMBERS = ("per_subword", "per_word", "bits_per_byte", "loss", "per_predicted_token")


def auto_class_of_facts(facts: Facts) -> str:
    """Returns the name of the Auto class of Transformers that loads the model."""
    return auto_class_of_config({**facts.config.to_dict(), "architectures": [facts.model_class.__name__]})


def perplexity_table(results: Mapping[str, Any]) -> Table | None:
    """Makes a table of the key "perplexity" of results.json, a row for each test set; None without that key."""
    tests = results.get("perplexity")
    if not isinstance(tests, Mapping) or not tests:
        return None
    shown = [name for name in _NUMBERS if any(name in numbers for numbers in tests.values())]
    rows = [
        [test, *(f"{numbers[name]:.3f}" if name in numbers else "" for name in shown)]
        for test, numbers in tests.items()
    ]
    return Table(["test set", *(Number(name.replace("_", " ")) for name in shown)], rows)


def _rows(comparison: Comparison, stem: str) -> Table:
    rows = [
        [test, protocol, with_arrow(metric), *detail(comparison, stem, test, protocol, metric)]
        for test, protocol in comparison.places
        for metric in comparison.metrics(test, protocol)
    ]
    return Table(["test set", "protocol", "metric", "score", "difference", "p"], rows)


def is_hub_name(name: str) -> bool:
    """Returns whether a model's name is a Hub name, owner/name, and not an existing path."""
    return bool(HUB_NAME.fullmatch(name)) and not Path(name).exists()


# The Hub ranks values of the same metric id: classic scores have other ids than sacreBLEU's on raw text.
_METRIC_IDS = {("cased", "BLEU"): "sacrebleu", ("cased", "chrF"): "chrf", ("cased", "TER"): "ter"}


def metadata(facts: Facts) -> ModelCardData:
    """Returns the metadata: languages, licence, library, task, tags, data sets, base models, metrics, a model-index.

    The index has the first score of each test set and seed; all other scores are in the card's tables and results.json.
    """
    scores = list(scores_of(facts.results))
    results = [_eval_result(facts, score) for score in _firsts(facts)]
    datasets = _datasets(facts)
    task = PIPELINE_TAGS.get(auto_class_of_facts(facts), "translation")
    licence, _, own_licence = (facts.licence or "").lower().partition(":")  # other:NAME
    own, adapts = [facts.config.model_type] if facts.carries_code else [], facts.relation == "adapter"
    shown = task == "translation" and facts.train is None and (facts.languages[0] or facts.codes)
    sentence = f"<2{_another(facts)}> " * bool(facts.codes) + example(facts.languages[0])
    languages = dict.fromkeys([*filter(None, facts.languages), *facts.codes, *getattr(facts.config, "languages", ())])
    regional = [code.replace("_", "-") for code in languages if base_language(code) != code]  # as fra-Latn, pt-BR
    return ModelCardData(
        # The Hub refuses codes with a script or a region here.
        language=list(dict.fromkeys(map(base_language, languages))) or None,
        language_bcp47=regional or None,
        license=licence or None,
        license_name=own_licence or None,
        library_name="peft" if adapts else LIBRARY if facts.carries_code or task == "translation" else "transformers",
        pipeline_tag=task,
        tags=[task, "neural-machine-translation", "transformers", *(["lora"] if adapts else []), *own],
        datasets=datasets or None,
        base_model=list(facts.base_models) or None,
        base_model_relation=facts.relation if facts.base_models else None,
        co2_eq_emissions=dict(facts.emissions) if facts.emissions else None,
        widget=[{"text": sentence}] if shown else None,
        metrics=list(dict.fromkeys(map(_metric_id, scores))) or None,
        eval_results=results or None,
        # The Hub demands the name with results; without results it would be an unknown key in the YAML.
        model_name=facts.name.split("/")[-1] if results else None,
    )


def _firsts(facts: Facts) -> list[Score]:
    """Returns the first score of each test set and seed."""
    firsts = {(score.test_set, str(score.seed)): score for score in reversed(list(scores_of(facts.results)))}
    return list(reversed(firsts.values()))


def _another(facts: Facts) -> str | None:
    """Returns the code of another language than the example sentence's, else the first code; None without codes."""
    return next((code for code in facts.codes if code != (facts.languages[0] or "en")), next(iter(facts.codes), None))


def _datasets(facts: Facts) -> list[str]:
    return list(dict.fromkeys([*hub_datasets(facts.data), *facts.datasets]))


def eval_results(facts: Facts) -> dict[str, str]:
    """Returns {name: content} of the files of `.eval_results/`: the first score of each test set in a Hub data set. The
    Hub shows the scores there once the data set's owner has made it a benchmark."""
    tests = inside(facts.recorded("recipe"), "data", "test")
    source = f"https://huggingface.co/{facts.name}/blob/main/results.json" if HUB_NAME.fullmatch(facts.name) else None
    found = {}
    for score in _firsts(facts):
        named = inside(tests, score.test_set).get("dataset")
        dataset = named if isinstance(named, str) and HUB_NAME.fullmatch(named) else next(iter(facts.datasets), None)
        if dataset is not None:
            task = re.sub(r"[^\w.-]+", "-", score.test_set)
            entry = EvalResultEntry(
                dataset_id=dataset,
                task_id=task,
                value=round(score.score, 2),
                source_url=source,
                notes=f"{score.metric}, protocol {score.protocol}, {score.signature}",
            )
            found[f"{task}.yaml"] = yaml_dump(eval_result_entries_to_yaml([entry]), sort_keys=False)
    return found


def front_matter(facts: Facts) -> str:
    """Returns the card's metadata as YAML, with each result of the model-index on a line of its own."""
    content = metadata(facts).to_dict()
    index = content.pop("model-index", [])
    lines = [f"- name: {yaml_dump(model['name']).splitlines()[0]}\n  results:" for model in index]
    for result in (result for model in index for result in model["results"]):
        line = yaml_dump(result, default_flow_style=True, width=float("inf")).strip()
        lines.append(f"  - {line}")
    return "\n".join([yaml_dump(content, sort_keys=True).strip(), *(["model-index:"] if index else []), *lines])


def _metric_id(score: Score) -> str:
    return _METRIC_IDS.get((score.protocol, score.metric), f"{score.metric.lower()}-{score.protocol}")


def hub_datasets(data: Mapping[str, Any]) -> list[str]:
    """Returns the names of the training corpora in `data`, of results or a recipe, that are Hub data sets."""
    names = [corpus.get("dataset") for corpus, _ in _corpora_of(data)]
    return list(dict.fromkeys(name for name in names if isinstance(name, str) and HUB_NAME.fullmatch(name)))


def _corpora_of(data: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yields (corpus, its entry in the results with counts, else the corpus again) for all training corpora."""
    corpora = data.get("train")
    for entry in corpora if isinstance(corpora, list) else [corpora]:
        if isinstance(entry, Mapping):
            yield entry["corpus"] if isinstance(entry.get("corpus"), Mapping) else entry, entry


def _eval_result(facts: Facts, score: Score) -> EvalResult:
    source, target = facts.languages_of_test(score.test_set)
    dataset = next(iter(_datasets(facts)), None)
    arguments: dict[str, Any] = {"signature": score.signature, "protocol": score.protocol}
    if score.interval:
        arguments["confidence_interval_95"] = [round(bound, 2) for bound in score.interval]
    if len(facts.results) > 1:
        arguments["seed"] = score.seed
    return EvalResult(
        task_type="translation",
        task_name=f"Translation {language_name(source)} to {language_name(target)}" if source and target else None,
        dataset_type=dataset or re.sub(r"[^\w.-]+", "-", score.test_set),
        dataset_name=score.test_set,
        dataset_split=score.test_set if dataset else None,
        metric_type=_metric_id(score),
        metric_name=score.metric,
        metric_value=round(score.score, 2),
        metric_args=arguments,
    )


_RUN = {name: name for name in ("command", "seed", "budget", "parameters")}
_RUN |= {"steps_per_second": "optimizer steps a second", "checkpoints": "weights are of step(s)"}
_RUN["versions"] = "versions"


def build_card(facts: Facts) -> str:
    """Returns the text of the card: YAML metadata, then Markdown."""
    auto_class, head, config = auto_class_of_facts(facts), front_matter(facts), facts.config
    several = hasattr(config, "source_languages") and not config.is_pair  # modules for several languages
    said = {"results": facts.results, "generation": facts.generation, "domain": facts.domain}
    facts = replace(facts, **{key: _one_line(value) for key, value in said.items()})
    content: dict[str, Any] = {
        "facts": facts,
        "missing": MISSING,
        "metadata": head,
        "shape": _shape(config),
        "auto_class": auto_class,
        "modules": (config.source_languages, config.target_languages) if several else None,
        "language_name": language_name,
        "sentence": example(facts.languages[0]),
        "another": _another(facts),
        "tokenizers": LANGUAGE_TOKENIZERS,
        "target_tokenizer": TARGET_TOKENIZER,
        "data_table": _data(facts),
        "training_tables": [_training(result) for result in facts.results],
        "curves_in_words": in_words(next(iter(facts.results), {}).get("dev") or []),
    }
    translates = auto_class == "AutoModelForSeq2SeqLM"  # otherwise a causal or masked language model
    settings = {key: value for key, value in facts.generation.items() if key != "transformers_version"}
    return template("card.md.jinja" if translates else "card_text.md.jinja").render(
        content,
        perplexity_table=perplexity_table(facts.results[0]) if facts.results else None,
        markdown=markdown_text,
        data_name=markdown_text(str(facts.data.get("name") or "")),
        score_tables=score_tables(facts.results),
        robustness_table=robustness_table(tests) if (tests := inside(facts.recorded("robustness"))) else None,
        rows=_rows,
        is_trained=is_trained,
        legend=LEGEND,
        show=lambda value: markdown_text(show(value)),
        generation=markdown_text(", ".join(f"`{key}={value!r}`" for key, value in settings.items())),
        lowercased=" and ".join(side for side, steps in facts.processing.items() if steps.get("lowercase")),
    )


def _one_line(value: Any) -> Any:
    """Returns a JSON value whose strings and keys are safe in Markdown: without line breaks, backticks and links."""
    if isinstance(value, Mapping):
        return {_one_line(key): _one_line(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_one_line(item) for item in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", value).replace("`", "'").replace("](", "] (")


def _shape(config: Any) -> str:
    if hasattr(config, "members"):
        members = ", ".join(f"{member.model_type} ({_shape(member)})" for member in config.members())
        return f"{config.normalization}-level normalization, alpha {config.alpha}, beta {config.beta}, of {members}"
    sides = [side for side in ("encoder", "decoder") if hasattr(config, f"{side}_layers")]
    if not config.is_encoder_decoder:
        sides = sides[:1]
    layers = f"{'+'.join(str(getattr(config, f'{side}_layers')) for side in sides) or '?+?'} layers"
    recurrent = hasattr(config, "input_feeding") and getattr(config, "coders", "rnn") == "rnn"
    heads = None if recurrent else next((getattr(config, f"{side}_attention_heads", None) for side in sides), None)
    width = [layers, f"width {getattr(config, 'd_model', '?')}", *([f"{heads} heads"] if heads else [])]
    norm = None if recurrent else getattr(config, "norm_position", None)
    source, target = config.vocab_size, getattr(config, "decoder_vocab_size", None)
    size = f"{source:,}" if target in (None, source) else f"{source:,} (source) and {target:,} (target)"
    return ", ".join([*width, *([f"{norm}-norm"] if norm else []), f"vocabulary {size}"])


def _data(facts: Facts) -> Table | None:
    data = facts.data
    if not data:
        return None
    return facts_table(
        {
            "name": data.get("name"),
            "licence of the data": data.get("licence") or data.get("license"),
            **({"on the Hub": _datasets(facts)} if _datasets(facts) else {}),
            **{f"corpus {number}": _corpus(*corpus) for number, corpus in enumerate(_corpora_of(data), 1)},
        }
    )


def _corpus(corpus: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Describes a corpus in words: files, how it was made if synthetic, recorded numbers of pairs kept and dropped."""
    files = corpus.get("files")
    if isinstance(files, Mapping):
        parts = [", ".join(f"`{name}`" for name in files.values())]
    else:
        parts = [f"`{corpus.get('path') or corpus.get('dataset') or corpus.get('synthetic') or MISSING}`"]
    parts.append(_made(corpus, entry.get("synthetic")))
    if entry is not corpus:
        counts = {key: value for key, value in entry.items() if key != "corpus" and isinstance(value, int)}
        dropped = entry.get("dropped") or entry.get("counts")
        parts.append(show(counts) if counts else "")
        parts.append(f"dropped: {show(dropped)}" if isinstance(dropped, Mapping) else "")
    return "; ".join(part for part in parts if part)


def _made(corpus: Mapping[str, Any], manifest: Any) -> str:
    """Describes in words how a synthetic corpus was made and is used; "" without a manifest."""
    if not isinstance(manifest, Mapping):
        return ""
    model = f"by `{manifest['model']}` " if manifest.get("model") else ""
    use = {key: corpus[key] for key in ("ratio", "tag") if corpus.get(key)}
    how = f"{manifest.get('direction', '')}-translated {model}({show(manifest.get('method') or {})})"
    return "; ".join(part for part in (how, show(use) if use else "") if part)


def _training(result: Mapping[str, Any]) -> Table:
    """Makes a table of a seed's training: command, seed, budget, parameters, speed, versions..."""
    rows = {label: result.get(key) for key, label in _RUN.items() if key != "checkpoints" or key in result}
    rows["command"] = f"`{rows['command']}`" if rows["command"] else None
    if isinstance(rows["versions"], Mapping):
        rows["versions"] = ", ".join(f"{package} {version}" for package, version in rows["versions"].items())
    rows["seed"] = str(rows["seed"]) if rows["seed"] is not None else None
    if weights := (result.get("recipe") or {}).get("init_from"):
        rows["begins with the weights of"] = show(weights)
    return facts_table(rows)
