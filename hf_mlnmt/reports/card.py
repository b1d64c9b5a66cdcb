"""The model card, README.md: card.md.jinja filled with Facts. Its numbers stand in results.json or in a config."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from hf_mlnmt.evaluation.marks import LEGEND
from hf_mlnmt.reports.card_comparisons import side_by_side
from hf_mlnmt.reports.card_text import auto_class_of_facts, how_to_use_text, perplexity_table, what_it_is
from hf_mlnmt.reports.facts import Facts
from hf_mlnmt.reports.language_names import language_name
from hf_mlnmt.reports.metadata import hub_datasets, metadata
from hf_mlnmt.reports.tables import MISSING, facts_table, score_tables, show, significance_tables
from hf_mlnmt.reports.usage import how_to_use
from hf_mlnmt.table import Table

TEMPLATE, TEMPLATE_OF_TEXT = "card.md.jinja", "card_text.md.jinja"
_RUN = {
    "command": "command",
    "seed": "seed",
    "budget": "budget",
    "parameters": "parameters",
    "steps_per_second": "optimizer steps a second",
    "checkpoints": "weights are of step(s)",
    "versions": "versions",
}


def build_card(facts: Facts) -> str:
    """The whole card: YAML metadata, then Markdown."""
    if auto_class_of_facts(facts) != "AutoModelForSeq2SeqLM":
        return _card_of_text(facts)
    return _template(TEMPLATE).render(
        facts=facts,
        missing=MISSING,
        metadata=metadata(facts).to_yaml(),
        direction=_direction(facts),
        shape=_shape(facts.config),
        use=how_to_use(facts) if facts.published else None,
        data_table=_data(facts),
        training_tables=[_training(result) for result in facts.results],
        plan_table=_plan(facts),
        score_tables=score_tables(facts.results),
        significance_tables=significance_tables(facts.results),
        comparisons=side_by_side(facts),
        legend=LEGEND,
        papers_table=facts.papers,
        decoding=_decoding(facts),
        lowercased=" and ".join(side for side, steps in facts.processing.items() if steps.get("lowercase")),
    )


def _card_of_text(facts: Facts) -> str:
    """Of a language model, or of an encoder with a projection."""
    what, part = what_it_is(facts)
    return _template(TEMPLATE_OF_TEXT).render(
        facts=facts,
        missing=MISSING,
        metadata=metadata(facts).to_yaml(),
        what=what,
        part=part,
        shape=_shape(facts.config),
        use=how_to_use_text(facts) if facts.published else None,
        plan_table=_plan(facts),
        data_table=_data(facts),
        training_tables=[_training(result) for result in facts.results],
        perplexity_table=perplexity_table(facts.results[0]) if facts.results else None,
    )


@cache
def _template(name: str) -> jinja2.Template:
    """A template beside this file; a name in it that it is not given is an error."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).get_template(name)


def _direction(facts: Facts) -> str:
    source, target = facts.languages
    if modules := _of_modules(facts.config):
        into = "them" if modules[0] == modules[1] else _listed(modules[1])
        return (
            f"from each of {_listed(modules[0])} into any of {into}, named by `source_language` and `target_language`"
        )
    if facts.codes:
        names = ", ".join(f"{language_name(code)} (`<2{code}>`)" for code in facts.codes)
        return f"into {names}, named by a code before the source"
    if source and source == target:
        return (
            f"distorted {language_name(source)} ({source}) back into what it was: it is what a translation begins with"
        )
    if source and target:
        return f"{language_name(source)} ({source}) to {language_name(target)} ({target})"
    return f"one language into another (languages: {MISSING})"


def _of_modules(config: Any) -> tuple[list[str], list[str]] | None:
    """Source and target languages of a model with modules for several; None for any other."""
    if not hasattr(config, "source_languages") or config.is_pair:
        return None
    return config.source_languages, config.target_languages


def _listed(codes: list[str]) -> str:
    return ", ".join(f"{language_name(code)} ({code})" for code in codes)


def _shape(config: Any) -> str:
    if hasattr(config, "members"):
        members = ", ".join(f"{one.model_type} ({_shape(one)})" for one in config.members())
        return f"{config.normalization}-level normalization, alpha {config.alpha}, beta {config.beta}, of {members}"
    sides = [side for side in ("encoder", "decoder") if hasattr(config, f"{side}_layers")]
    if not config.is_encoder_decoder:
        sides = sides[:1]
    layers = f"{'+'.join(str(getattr(config, f'{side}_layers')) for side in sides) or '?+?'} layers"
    recurrent = hasattr(config, "input_feeding") and getattr(config, "coders", "rnn") == "rnn"
    heads = None if recurrent else next((getattr(config, f"{side}_attention_heads", None) for side in sides), None)
    width = [layers, f"width {getattr(config, 'd_model', '?')}", *([f"{heads} heads"] if heads else [])]
    norm = None if recurrent else getattr(config, "norm_position", None)
    return ", ".join([*width, *([f"{norm}-norm"] if norm else []), f"vocabulary {_vocabulary(config)}"])


def _vocabulary(config: Any) -> str:
    source, target = config.vocab_size, getattr(config, "decoder_vocab_size", None)
    return f"{source:,}" if target in (None, source) else f"{source:,} (source) and {target:,} (target)"


def _data(facts: Facts) -> Table | None:
    data = facts.data
    if not data:
        return None
    return facts_table(
        {
            "name": data.get("name"),
            "licence of the data": data.get("licence") or data.get("license"),
            **({"on the Hub": hub_datasets(data)} if hub_datasets(data) else {}),
            **_corpora(data.get("train")),
            **_corpora_of_tasks({} if facts.results else facts.recipe.get("tasks") or {}),
        }
    )


def _corpora_of_tasks(tasks: Mapping[str, Any]) -> dict[str, str]:
    """The same of each task of a recipe; what was trained has them all in its results."""
    return {f"{name}, {key}": text for name, task in tasks.items() for key, text in _corpora(task["data"]).items()}


def _corpora(corpora: Any) -> dict[str, str]:
    """A row for each corpus: its files, and how many pairs were kept and dropped where that is recorded."""
    many = corpora if isinstance(corpora, list) else [corpora] if isinstance(corpora, Mapping) else []
    rows = {}
    for number, entry in enumerate(many, 1):
        if isinstance(entry, Mapping):
            corpus = entry["corpus"] if isinstance(entry.get("corpus"), Mapping) else entry
            counts = {key: value for key, value in entry.items() if key != "corpus" and isinstance(value, int)}
            dropped = entry.get("dropped") or entry.get("counts")
            parts = [
                _files(corpus),
                _made(corpus, entry.get("synthetic")),
                show(counts) if counts and corpus is not entry else "",
            ]
            if isinstance(dropped, Mapping) and corpus is not entry:
                parts.append(f"dropped: {show(dropped)}")
            rows[f"corpus {number}"] = "; ".join(part for part in parts if part)
    return rows


def _files(corpus: Mapping[str, Any]) -> str:
    files = corpus.get("files")
    if isinstance(files, Mapping):
        return ", ".join(f"`{name}`" for name in files.values())
    return f"`{corpus.get('path') or corpus.get('dataset') or corpus.get('synthetic') or MISSING}`"


def _made(corpus: Mapping[str, Any], manifest: Any) -> str:
    """How a synthetic corpus was made and is used, as far as it is recorded."""
    if not isinstance(manifest, Mapping):
        return ""
    model = f"by `{manifest['model']}` " if manifest.get("model") else ""
    use = {key: corpus[key] for key in ("ratio", "tag") if corpus.get(key)}
    how = f"{manifest.get('direction', '')}-translated {model}({show(manifest.get('method') or {})})"
    return "; ".join(part for part in (how, show(use) if use else "") if part)


def _training(result: Mapping[str, Any]) -> Table:
    """How one seed was trained."""
    rows = {label: result.get(key) for key, label in _RUN.items() if key != "checkpoints" or key in result}
    rows["command"] = f"`{rows['command']}`" if rows["command"] else None
    if isinstance(rows["versions"], Mapping):
        rows["versions"] = ", ".join(f"{package} {version}" for package, version in rows["versions"].items())
    rows["seed"] = str(rows["seed"]) if rows["seed"] is not None else None
    return facts_table(rows)


def _plan(facts: Facts) -> Table | None:
    """How the recipe means it to be trained."""
    from hf_mlnmt.training.schedules import in_use

    if not facts.recipe:
        return None
    plan = {key: facts.recipe.get(key) for key in ("seed", "budget", "batch", "optimizer")}
    method = {key: value for key in ("objective", "init_from") if (value := facts.recipe.get(key))}
    if facts.recipe.get("tasks") or method.get("objective") == "translation":
        method.pop("objective")
    tasks = facts.recipe.get("tasks") or {}
    for name, task in tasks.items() if any(task["objective"] != "translation" for task in tasks.values()) else ():
        method[f"task {name}"] = {key: task[key] for key in ("objective", "share")}
    if fuse := facts.recipe.get("model", {}).get("fuse"):
        method["fused of"] = {key: fuse[key] for key in ("translation", "language_model")}
    return facts_table({**method, **plan, "schedule": in_use(facts.recipe.get("schedule") or {}) or None})


def _decoding(facts: Facts) -> list[str]:
    """A paragraph for each thing that is known of it."""
    scored = facts.recorded("decoding")
    blocks = []
    if facts.results:
        blocks.append(f"The scores above were made with: {show(scored)}.")
    elif facts.recipe.get("decoding"):
        blocks.append(f"Planned by the recipe: {show(facts.recipe['decoding'])}.")
    if facts.generation:
        settings = {key: value for key, value in facts.generation.items() if key not in ("transformers_version",)}
        blocks.append("`generation_config.json`, what `generate()` does unless told otherwise: " + _settings(settings))
    formula = facts.generation.get("length_normalization")
    if formula:
        blocks.append(
            f"The scores' length normalisation is `{formula}`, which only the package's pipeline and command do; "
            "`generate()` by itself divides by the length to the power of `length_penalty`."
        )
    return blocks


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}={value!r}`" for key, value in settings.items()) + "."
