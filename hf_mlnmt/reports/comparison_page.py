"""The page of a comparison, as Markdown and as HTML.

Markdown: tables of what the comparison's files hold, and nothing else. HTML: one file that fetches nothing, with plots,
and with what is known of the translations themselves: scores by source length, faulty outputs, every sentence with its
chrF, curves of the training.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps

from hf_mlnmt.analysis.curves import FILE as METRICS
from hf_mlnmt.analysis.curves import Metrics, dev_scores, label, read_metrics, series
from hf_mlnmt.analysis.outputs import OutputAnalysis
from hf_mlnmt.common.files import file_name
from hf_mlnmt.common.table import Number, Table, markdown_text
from hf_mlnmt.evaluation.comparison import Comparison, read_comparison, score_text, scores_are
from hf_mlnmt.evaluation.results import versions
from hf_mlnmt.evaluation.runs import changed_keys
from hf_mlnmt.evaluation.scores import with_arrow
from hf_mlnmt.evaluation.significance import LEGEND, TOO_FEW
from hf_mlnmt.reports.language_names import language_name
from hf_mlnmt.reports.paths import hide_paths
from hf_mlnmt.reports.svg import Point, forest, lines
from hf_mlnmt.reports.tables import MISSING, show, template
from hf_mlnmt.zoo.records import BASE, records_root

P_VALUES = ("approximate_randomisation", "paired_bootstrap", "welch")


def comparison_page(
    comparison: Comparison, own_budget: Mapping[str, Any] | None = None, sections: Sequence[str] = ()
) -> str:
    """Returns the page as Markdown. own_budget: of the baseline's recipe. sections: Markdown behind the overview."""
    page = template("comparison_page.md.jinja").render(
        comparison=comparison,
        own_budget=own_budget,
        overview=overview(comparison),
        notes=_notes(comparison),
        sections=sections,
        trained=is_trained(comparison),
        changes=_changes(comparison),
        detail_table=detail_table,
        language_name=language_name,
        missing=MISSING,
        show=show,
        legend=LEGEND,
    )
    return markdown_text(page)  # names and notes come from files


def page_of(folder: str | Path, root: str | Path | None = None) -> str:
    """Returns the README.md of a comparison's folder, from its JSON files and the recipe's own budget."""
    comparison = read_comparison(folder)
    return comparison_page(comparison, own_budget(comparison.baseline, root))


def own_budget(stem: str, root: str | Path | None = None) -> Mapping[str, Any] | None:
    """Returns the budget of the recipe of a run, <system>.<setup>; None if there is no such setup."""
    from hf_mlnmt.recipe.reading import is_recipe, read_recipe

    system, _, setup = stem.partition(".")
    folder = (Path(root) if root is not None else records_root()) / "training" / file_name(setup)
    path = next(filter(is_recipe, (folder / f"{file_name(system)}.yaml", folder / BASE)), None)
    return read_recipe(path).to_dict()["budget"] if path is not None else None


def is_trained(comparison: Comparison) -> bool:
    """Returns whether all runs say how they were trained; files of translations do not."""
    return all("recipe" in run for runs in comparison.runs.values() for run in runs.values())


def overview(comparison: Comparison) -> Table:
    """Makes a row for each system: its size, its time, BLEU of every test set and protocol with the difference."""
    columns = [
        Number(f"{test}, {_headline(comparison, test, protocol)} {protocol}") for test, protocol in comparison.places
    ]
    rows = []
    for system, runs in comparison.runs.items():
        cells = [with_difference(comparison, system, *test) for test in comparison.places]
        parameters = show(next(iter(runs.values())).get("parameters"))
        known = [parameters, minutes_of(runs)] if is_trained(comparison) else []
        rows.append([f"`{system}`", *known, str(len(runs)), *cells])
    facts = ["parameters", "CPU minutes", "seeds"] if is_trained(comparison) else ["runs"]
    return Table(["system", *map(Number, facts), *columns], rows)


def _notes(comparison: Comparison) -> list[tuple[str, int, str]]:
    """Returns (system, seed, note) of what results files note of their budgets (`budget.note`, written by hand)."""
    runs = [(system, seed, run) for system, by_seed in comparison.runs.items() for seed, run in by_seed.items()]
    budgets = [(system, seed, run.get("budget") or {}) for system, seed, run in runs]
    return [(system, seed, budget["note"]) for system, seed, budget in budgets if budget.get("note")]


def minutes_of(runs: Mapping[int, Mapping[str, Any]]) -> str:
    """Returns the processor time of a training, the mean of those that say it."""
    budgets = [run.get("budget") or {} for run in runs.values()]
    known = [budget["cpu_minutes"] for budget in budgets if budget.get("cpu_minutes")]
    return f"{statistics.fmean(known):.1f}" if known else MISSING


def with_difference(comparison: Comparison, system: str, test_set: str, protocol: str) -> str:
    """Returns BLEU of a system, in brackets its difference to the baseline with a mark of its p-value."""
    scores, difference, _ = detail(comparison, system, test_set, protocol, _headline(comparison, test_set, protocol))
    return f"{scores} ({difference})" if difference else scores


def _headline(comparison: Comparison, test_set: str, protocol: str) -> str:
    """Returns BLEU, or the first metric where it was not scored."""
    metrics = comparison.metrics(test_set, protocol)
    return "BLEU" if "BLEU" in metrics else metrics[0]


def mean_text(scores: Sequence[float]) -> str:
    """Returns the mean over seeds, and of several the standard deviation."""
    text = f"{statistics.fmean(scores):.2f}"
    return f"{text} ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else text


def detail_table(comparison: Comparison, test_set: str, protocol: str) -> Table:
    """Makes a table of a test set and protocol: each metric's mean, difference and p-values side by side."""
    metrics = comparison.metrics(test_set, protocol)
    names = [name for metric in metrics for name in (with_arrow(metric), "difference", "p")]
    rows = []
    for system in comparison.runs:
        cells = [cell for metric in metrics for cell in detail(comparison, system, test_set, protocol, metric)]
        rows.append([f"`{system}`", *cells])
    return Table(["system", *(Number(name) for name in names)], rows)


def detail(comparison: Comparison, system: str, test_set: str, protocol: str, metric: str) -> tuple[str, str, str]:
    """Returns mean score, difference and p-values ("equal": equal outputs); of the baseline the score alone."""
    place = (system, test_set, protocol, metric)
    scores = mean_text(comparison.scores(*place))
    tested = comparison.tested(*place)
    if tested is None:
        return scores, "", ""
    p_values = " / ".join(f"{tested[name]:.3f}" for name in P_VALUES if tested.get(name) is not None)
    if comparison.too_few(test_set, protocol):
        p_values = TOO_FEW
    elif not tested["difference"]:
        p_values = "equal"
    return scores, f"{tested['difference']:+.2f}{comparison.mark(*place)}", p_values


def _changes(comparison: Comparison) -> dict[str, tuple[str, list[str]]]:
    """Returns of each method its steps and the keys of the recipe that are not the baseline's; {} for systems."""
    from hf_mlnmt.recipe.schema import default_keys

    if not comparison.methods or not is_trained(comparison):
        return {}
    defaults, changes = default_keys(), {}
    for system in [name for name in comparison.runs if name != comparison.baseline]:
        run = next(iter(comparison.runs[system].values()))
        changed = [*changed_keys(run, comparison.first, defaults), *run.get("made_by", [])]
        changes[system] = show((run.get("budget") or {}).get("steps")), changed or ["nothing"]
    return changes


FIRST_RUN = "Lengths, outputs and sentences are of the first run of each system."
Curves = Mapping[str, Metrics]
"""Of systems whose run is known."""
Analyses = Mapping[str, OutputAnalysis]
"""Of test sets whose translations are there; of all the same systems."""


def html_page(comparison: Comparison, analyses: Analyses, *, title: str, curves: Curves | None = None) -> str:
    """Returns the page as HTML. curves: {system: metrics}, of `curves_of`."""
    known = [analysis for analysis in analyses.values() if analysis.sources is not None]
    notes = [] if known or not analyses else ["no --source: no lengths, no statistics of outputs"]
    return template("comparison_page.html.jinja", autoescape=True).render(
        title=hide_paths(title),
        data=htmlsafe_json_dumps(_data(analyses), ensure_ascii=False),
        comparison=comparison,
        trained=is_trained(comparison),
        what=scores_are(comparison),
        note_lines=_notes(comparison),
        trained_systems=list(curves or {}),
        overview=overview(comparison).html().replace("`", "") if is_trained(comparison) else None,
        changes=_changes(comparison),
        systems=list(next(iter(analyses.values())).outputs) if analyses else [],
        sections=[_section(comparison, *place) for place in comparison.places],
        lengths=[
            _lengths(analysis, _suffix(test, analyses)) for test, analysis in analyses.items() if analysis.lengths
        ],
        statistics={
            _suffix(test, analyses): _statistics(analysis) for test, analysis in analyses.items() if analysis.statistics
        },
        curves=_curves(curves or {}),
        notes=[*notes, *([FIRST_RUN] if comparison.several and analyses else []), *filter(None, [comparison.note])],
        legend=LEGEND,
        settings={
            **{name: f"{value:,}" for name, value in comparison.settings.items()},
            "versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
        },
    )


def _suffix(test: str, analyses: Analyses) -> str:
    """Returns the test set's part of a heading: nothing where there is one alone."""
    return f", {test}" if len(analyses) > 1 else ""


def _data(analyses: Analyses) -> dict[str, Any]:
    """Returns the sentences of all test sets, one behind the other."""
    known = list(analyses.values())
    systems = list(known[0].outputs) if known else []
    lines = [
        f"line {n}{_suffix(test, analyses)}"
        for test, analysis in analyses.items()
        for n, _ in enumerate(analysis.references, 1)
    ]
    sources = [line for analysis in known for line in analysis.sources or ()]
    return {
        "systems": systems,
        "line": lines,
        "source": sources if len(sources) == len(lines) and lines else None,
        "reference": [line for analysis in known for line in analysis.references],
        "outputs": {name: [line for analysis in known for line in analysis.outputs[name]] for name in systems},
        "chrf": {name: [round(score, 1) for analysis in known for score in analysis.chrf[name]] for name in systems},
    }


def _section(comparison: Comparison, test: str, protocol: str) -> dict[str, Any]:
    """Returns of a test set and protocol title, table of scores and tests, a plot for each metric, signatures."""
    metrics = comparison.metrics(test, protocol)
    several, title = len(comparison.first["scores"]) > 1, comparison.title(test, protocol)
    entries = comparison.first["scores"][test][protocol]
    return {
        "title": f"{test}, {title}" if several else title,
        "table": _scores(comparison, test, protocol).html(),
        "plots": {with_arrow(metric): _forest(comparison, test, protocol, metric) for metric in metrics},
        "signatures": {name: entry.get("signature", "") for name, entry in entries.items()},
    }


def _scores(comparison: Comparison, test: str, protocol: str) -> Table:
    """Makes a row for each system: of every metric score, difference, p-values, and the first of them corrected."""
    metrics = comparison.metrics(test, protocol)
    names = ["difference", "p", *(["Holm"] if len(comparison.tests) > 1 else []), "p boot."]
    names.append("p Welch" if comparison.several else "sacreBLEU p rand.")
    names = names if comparison.tests else []
    columns = [Number(name) for metric in metrics for name in (with_arrow(metric), *names)]
    rows = []
    for system in comparison.runs:
        cells = [system]
        for metric in metrics:
            cells.append(score_text(comparison, system, test, protocol, metric))
            cells += _tests(comparison, system, test, protocol, metric) or [""] * len(names)
        counted = comparison.counted(system, test, protocol)
        ratio = f"{counted['length_ratio']:.3f}" if "length_ratio" in counted else ""
        rows.append([*cells, ratio, str(counted.get("empty_outputs", ""))])
    return Table(["system", *columns, Number("length ratio"), Number("empty")], rows)


def _tests(comparison: Comparison, system: str, test: str, protocol: str, metric: str) -> list[str]:
    tested = comparison.tested(system, test, protocol, metric)
    if tested is None:
        return []
    few = comparison.too_few(test, protocol)
    p_values = [None if few else tested.get("approximate_randomisation")]
    if len(comparison.tests) > 1:
        p_values.append(comparison.corrected(test, protocol, metric)[system])
    beside = "welch" if comparison.several else "sacrebleu_randomisation"
    p_values += [tested.get("paired_bootstrap"), tested.get(beside)]
    shown = ("–" if p is None else f"{p:.4f}" for p in p_values)
    return [detail(comparison, system, test, protocol, metric)[1], *shown]


def _forest(comparison: Comparison, test: str, protocol: str, metric: str) -> str:
    points = {name: Point(*comparison.interval(name, test, protocol, metric)) for name in comparison.runs}
    where = f"{test}, {protocol}" if len(comparison.first["scores"]) > 1 else protocol
    return forest(points, f"{metric}, {where}: {scores_are(comparison)}", comparison.baseline)


def _lengths(analysis: OutputAnalysis, suffix: str) -> dict[str, Any]:
    """Returns of each metric a plot over the groups and a table with intervals and counts."""
    groups = list(dict.fromkeys(row["source_length"] for row in analysis.lengths))
    counts = {row["source_length"]: row["sentences"] for row in analysis.lengths}
    names = [f"{group} ({counts[group]})" for group in groups]
    plots, tables = {}, {}
    for metric in dict.fromkeys(row["metric"] for row in analysis.lengths):
        of_systems: dict[str, dict[float, float]] = {}
        cells: dict[str, list[str]] = {}
        for row in (row for row in analysis.lengths if row["metric"] == metric):
            if row["score"] is not None:
                of_systems.setdefault(row["system"], {})[groups.index(row["source_length"])] = row["score"]
            cells.setdefault(row["system"], []).append(_with_interval(row))
        plots[metric] = lines(of_systems, metric, f"{analysis.unit} of the source (sentences)", names)
        columns = ["system", *map(Number, names)]
        tables[metric] = Table(columns, [[name, *of] for name, of in cells.items()]).html()
    return {"suffix": suffix, "plots": plots, "tables": tables}


def _with_interval(row: Mapping[str, Any]) -> str:
    if row["score"] is None:
        return "–"
    half = "" if row["low"] is None else f" ± {(row['high'] - row['low']) / 2:.1f}"
    return f"{row['score']:.1f}{half}"


def _statistics(analysis: OutputAnalysis) -> str:
    shares = analysis.shares()
    kinds = [key for key in shares[0] if key not in ("system", "length_ratio")]
    columns = ["system", Number("length ratio"), *(Number(f"{kind.replace('_', ' ')} (%)") for kind in kinds)]
    rows = [
        [row["system"], f"{row['length_ratio']:.3f}", *(f"{100 * row[kind]:.2f}" for kind in kinds)] for row in shares
    ]
    return Table(columns, rows).html()


def _curves(curves: Curves) -> dict[str, str]:
    """Returns {what: plot over steps} of dev scores and losses."""
    plots = {}
    for key in ["eval_loss", *dev_scores(curves.values())]:
        points = {name: dict(zip(*series(metrics, key))) for name, metrics in curves.items()}
        if logged := {name: line for name, line in points.items() if line}:
            plots[label(key)] = lines(logged, label(key), "optimizer step")
    return plots


def curves_of(paths: Mapping[str, str | Path]) -> dict[str, list[dict[str, Any]]]:
    """Returns {system: lines of its training's metrics.jsonl} of those that are runs, or models in one's folder."""
    curves = {}
    for name, path in paths.items():
        folders = [folder for folder in (Path(path), Path(path).resolve().parent) if Path(path).is_dir()]
        if logged := [folder for folder in folders if (folder / METRICS).is_file()]:
            curves[name] = read_metrics(logged[0])
    return curves
