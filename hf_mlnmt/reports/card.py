"""The model card, README.md: made of Facts alone. Every number in it stands in results.json or in a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_mlnmt.reports.card_comparisons import in_the_papers, side_by_side
from hf_mlnmt.reports.facts import Facts
from hf_mlnmt.reports.language_names import language_name
from hf_mlnmt.reports.metadata import hub_datasets, metadata
from hf_mlnmt.reports.tables import MISSING, facts_table, score_tables, show, significance_tables
from hf_mlnmt.reports.usage import how_to_use

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
    sections = {
        "Paper": _paper(facts),
        "How to use": how_to_use(facts) if facts.published else _to_come(facts),
        "Training data": _data(facts),
        "Training": _training(facts),
        "Scores": _scores(facts),
        **side_by_side(facts),
        **in_the_papers(facts),
        "Decoding": _decoding(facts),
        "Limitations": _limitations(facts),
    }
    body = "\n\n".join(f"## {heading}\n\n{text}" for heading, text in sections.items())
    return f"---\n{metadata(facts).to_yaml()}\n---\n\n# {facts.name}\n\n{_what(facts)}\n\n{body}\n"


def _what(facts: Facts) -> str:
    config = facts.config
    kind = facts.model_class.__name__
    text = f"Translates {_direction(facts)}. Architecture: `{kind}` (`{config.model_type}`), {_shape(config)}."
    if facts.carries_code:
        text += " A model of the [Transformers](https://github.com/huggingface/transformers)-compatible zoo `hf_mlnmt`."
    licence = f"Licence of the weights: {facts.licence}." if facts.licence else f"Licence of the weights: {MISSING}."
    return f"{text}\n\n{licence}"


def _direction(facts: Facts) -> str:
    source, target = facts.languages
    if facts.codes:
        names = ", ".join(f"{language_name(code)} (`<2{code}>`)" for code in facts.codes)
        return f"into {names}, named by a code before the source"
    if source and target:
        return f"{language_name(source)} ({source}) to {language_name(target)} ({target})"
    return f"one language into another (languages: {MISSING})"


def _shape(config: Any) -> str:
    layers = f"{getattr(config, 'encoder_layers', '?')}+{getattr(config, 'decoder_layers', '?')} layers"
    heads = getattr(config, "encoder_attention_heads", None)
    width = [layers, f"width {getattr(config, 'd_model', '?')}", *([f"{heads} heads"] if heads else [])]
    norm = getattr(config, "norm_position", None)
    return ", ".join([*width, *([f"{norm}-norm"] if norm else []), f"vocabulary {_vocabulary(config)}"])


def _vocabulary(config: Any) -> str:
    source, target = config.vocab_size, getattr(config, "decoder_vocab_size", None)
    return f"{source:,}" if target in (None, source) else f"{source:,} (source) and {target:,} (target)"


def _paper(facts: Facts) -> str:
    if facts.citation is None:
        return f"Citation: {MISSING} by the model's class."
    return f"If you use this architecture, cite the paper that it is from:\n\n```bibtex\n{facts.citation}\n```"


def _to_come(facts: Facts) -> str:
    stem = facts.name
    return (
        f"This is the card of a record: `modeling/{stem}.json` says what the model is, `training/{stem}.yaml` how it "
        "is trained. Train and publish it:\n\n```shell\n"
        f"hf-mlnmt train training/{stem}.yaml --data DIR\n"
        f"hf-mlnmt publish runs/{stem}/average --to published/{stem}\n```"
    )


def _data(facts: Facts) -> str:
    data = facts.data
    if not data:
        return f"Training data: {MISSING}. Its licence: {MISSING}."
    rows: dict[str, Any] = {
        "name": data.get("name"),
        "licence of the data": data.get("licence") or data.get("license"),
        **({"on the Hub": hub_datasets(data)} if hub_datasets(data) else {}),
        **_corpora(data.get("train")),
    }
    if not facts.results:
        return "Planned by the recipe:\n\n" + facts_table(rows).markdown()
    return facts_table(rows).markdown()


def _corpora(corpora: Any) -> dict[str, str]:
    """A row for each corpus: its files, and how many pairs were kept and dropped where that is recorded."""
    many = corpora if isinstance(corpora, list) else [corpora] if isinstance(corpora, Mapping) else []
    rows = {}
    for number, entry in enumerate(many, 1):
        if isinstance(entry, Mapping):
            corpus = entry["corpus"] if isinstance(entry.get("corpus"), Mapping) else entry
            counts = {key: value for key, value in entry.items() if key != "corpus" and isinstance(value, int)}
            dropped = entry.get("dropped") or entry.get("counts")
            parts = [_files(corpus), show(counts) if counts and corpus is not entry else ""]
            if isinstance(dropped, Mapping) and corpus is not entry:
                parts.append(f"dropped: {show(dropped)}")
            rows[f"corpus {number}"] = "; ".join(part for part in parts if part)
    return rows


def _files(corpus: Mapping[str, Any]) -> str:
    files = corpus.get("files")
    if isinstance(files, Mapping):
        return ", ".join(f"`{name}`" for name in files.values())
    return f"`{corpus.get('path') or corpus.get('dataset') or MISSING}`"


def _training(facts: Facts) -> str:
    if not facts.results:
        from hf_mlnmt.training.schedules import in_use

        plan = {key: facts.recipe.get(key) for key in ("seed", "budget", "batch", "optimizer")}
        plan["schedule"] = in_use(facts.recipe.get("schedule") or {}) or None
        planned = f"\n\nPlanned by the recipe:\n\n{facts_table(plan).markdown()}" if facts.recipe else ""
        return f"Training: {MISSING}." if facts.published else f"Not trained yet.{planned}"
    blocks = []
    for result in facts.results:
        rows = {label: result.get(key) for key, label in _RUN.items() if key != "checkpoints" or key in result}
        rows["command"] = f"`{rows['command']}`" if rows["command"] else None
        if isinstance(rows["versions"], Mapping):
            rows["versions"] = ", ".join(f"{package} {version}" for package, version in rows["versions"].items())
        rows["seed"] = str(rows["seed"]) if rows["seed"] is not None else None
        blocks.append(facts_table(rows).markdown())
    return "\n\n".join(blocks)


def _scores(facts: Facts) -> str:
    tables = [f"### Protocol {table.title}\n\n{table.markdown()}" for table in score_tables(facts.results)]
    if not tables:
        return f"Scores: {MISSING}." if facts.results or facts.published else "No results yet."
    text = (
        "Each protocol is a measure of its own: numbers of one are not comparable with numbers of the other. "
        "References are raw text in both; the signature says exactly what was computed.\n\n" + "\n\n".join(tables)
    )
    tested = [f"{table.title}\n\n{table.markdown()}" for table in significance_tables(facts.results)]
    significance = "\n\n".join(tested)
    return f"{text}\n\n### Significance\n\n{significance}" if significance else text


def _decoding(facts: Facts) -> str:
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
    return "\n\n".join(blocks) or f"Decoding settings: {MISSING}."


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}={value!r}`" for key, value in settings.items()) + "."


def _limitations(facts: Facts) -> str:
    name = facts.data.get("name")
    domain = f"text like its training data ({name})" if name else "text like its training data"
    points = [
        f"It was made for {domain}; other domains, registers and spellings are translated worse, and no other was "
        "measured unless a table above says so."
        if facts.published
        else f"It is meant for {domain}.",
        "It translates sentence by sentence and knows no context beyond the one it is given.",
        "Automatic scores do not show whether a translation is faithful: it may omit, add or invent, and it may repeat "
        "biases of its data. Have somebody check what matters.",
    ]
    positions = getattr(facts.config, "max_position_embeddings", None)
    if positions:
        points.append(f"Source and translation hold at most {positions:,} subwords each.")
    if facts.processing:
        lossy = [side for side, steps in facts.processing.items() if steps.get("lowercase")]
        points.append(
            "Text is prepared as `text_processing.json` says"
            + (f"; upper case is lost ({' and '.join(lossy)})." if lossy else ".")
        )
    if len(facts.results) == 1:
        points.append("The scores are of one seed; other seeds differ.")
    return "\n".join(f"- {point}" for point in points)
