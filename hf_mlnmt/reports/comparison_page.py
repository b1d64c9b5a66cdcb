"""Makes the page of a comparison: as Markdown with tables of results, as HTML also with studies and all sentences."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps

from hf_mlnmt.common.files import file_name
from hf_mlnmt.common.made_from import Changes, differences
from hf_mlnmt.common.table import Number, Table, markdown_text
from hf_mlnmt.evaluation.comparison import Comparison, read_comparison, scores_are
from hf_mlnmt.evaluation.figures import Study, rows_table, svg_text
from hf_mlnmt.evaluation.results import versions
from hf_mlnmt.evaluation.scores import with_arrow
from hf_mlnmt.evaluation.significance import LEGEND, P_VALUES, TOO_FEW
from hf_mlnmt.reports.paths import hide_paths
from hf_mlnmt.reports.tables import MISSING, language_name, show, template
from hf_mlnmt.zoo.records import BASE, records_root


def comparison_page(
    comparison: Comparison, own_budget: Mapping[str, Any] | None = None, sections: Sequence[str] = ()
) -> str:
    """Returns the page as Markdown. own_budget: of the baseline's recipe; sections: Markdown below the overview."""
    page = template("comparison_page.md.jinja").render(
        _common(comparison),
        own_budget=own_budget,
        sections=sections,
        detail_table=detail_table,
        language_name=language_name,
        missing=MISSING,
        show=show,
    )
    return markdown_text(page)  # escapes "<" in names and notes of files


def _common(comparison: Comparison) -> dict[str, Any]:
    """Returns the variables that both templates of the page have."""
    return {
        "comparison": comparison,
        "overview": overview(comparison),
        "notes": _notes(comparison),
        "trained": is_trained(comparison),
        "changes": _changes(comparison),
        "legend": LEGEND,
    }


def page_of(folder: str | Path, root: str | Path | None = None) -> str:
    """Returns the text of a comparison folder's README.md, made from its JSON files and the baseline's recipe."""
    comparison = read_comparison(folder)
    return comparison_page(comparison, own_budget(comparison.baseline, root))


def own_budget(stem: str, root: str | Path | None = None) -> Mapping[str, Any] | None:
    """Returns the budget in the recipe of a run named <system>.<setup>; None if there is no such setup."""
    from hf_mlnmt.recipe.reading import is_recipe, read_recipe

    system, _, setup = stem.partition(".")
    folder = (Path(root) if root is not None else records_root()) / "training" / file_name(setup)
    path = next(filter(is_recipe, (folder / f"{file_name(system)}.yaml", folder / BASE)), None)
    return read_recipe(path).to_dict()["budget"] if path is not None else None


def is_trained(comparison: Comparison) -> bool:
    """Returns whether all runs are of training: their results have a recipe, unlike those of files of translations."""
    return all("recipe" in run for runs in comparison.runs.values() for run in runs.values())


def overview(comparison: Comparison) -> Table:
    """Makes a table of systems: parameters, CPU minutes, runs, BLEU of test sets and protocols with differences."""
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
    """Returns (system, seed, note) for all runs with a hand-written `budget.note` in their results files."""
    runs = [(system, seed, run) for system, by_seed in comparison.runs.items() for seed, run in by_seed.items()]
    budgets = [(system, seed, run.get("budget") or {}) for system, seed, run in runs]
    return [(system, seed, budget["note"]) for system, seed, budget in budgets if budget.get("note")]


def minutes_of(runs: Mapping[int, Mapping[str, Any]]) -> str:
    """Returns the mean of the runs' CPU minutes as text, over the runs that have them recorded."""
    budgets = [run.get("budget") or {} for run in runs.values()]
    known = [budget["cpu_minutes"] for budget in budgets if budget.get("cpu_minutes")]
    return f"{statistics.fmean(known):.1f}" if known else MISSING


def with_difference(comparison: Comparison, system: str, test_set: str, protocol: str) -> str:
    """Returns BLEU of a system as text, with the difference to the baseline and its significance mark in brackets."""
    scores, difference, _ = detail(comparison, system, test_set, protocol, _headline(comparison, test_set, protocol))
    return f"{scores} ({difference})" if difference else scores


def _headline(comparison: Comparison, test_set: str, protocol: str) -> str:
    """Returns the metric for the overview: "BLEU", or the first metric where BLEU was not computed."""
    metrics = comparison.metrics(test_set, protocol)
    return "BLEU" if "BLEU" in metrics else metrics[0]


def mean_text(scores: Sequence[float]) -> str:
    """Returns the mean of scores as text, with "± standard deviation" if there are several."""
    text = f"{statistics.fmean(scores):.2f}"
    return f"{text} ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else text


def detail_table(comparison: Comparison, test_set: str, protocol: str) -> Table:
    """Makes a table of a test set and protocol: a row for each system with mean, difference and p-values by metric."""
    metrics = comparison.metrics(test_set, protocol)
    names = [name for metric in metrics for name in (with_arrow(metric), "difference", "p")]
    rows = []
    for system in comparison.runs:
        cells = [cell for metric in metrics for cell in detail(comparison, system, test_set, protocol, metric)]
        rows.append([f"`{system}`", *cells])
    return Table(["system", *(Number(name) for name in names)], rows)


def detail(comparison: Comparison, system: str, test_set: str, protocol: str, metric: str) -> tuple[str, str, str]:
    """Returns texts of mean score, difference and p-values ("equal" for equal scores); baseline: only the score."""
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
    """Returns {system: (steps, differences of its recipe from the baseline's)} in a comparison of methods, else {}."""
    if not comparison.methods or not is_trained(comparison):
        return {}
    changes, before = {}, with_defaults(comparison.first["recipe"])
    for system in [name for name in comparison.runs if name != comparison.baseline]:
        run = next(iter(comparison.runs[system].values()))
        changed = said(differences(before, with_defaults(run["recipe"]), ("logging", "seed")))
        steps = show((run.get("budget") or {}).get("steps"))
        changes[system] = steps, [*changed, *run.get("made_by", [])] or ["nothing"]
    return changes


def with_defaults(recipe: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns a recipe in which missing keys, also those of sections, have their defaults."""
    from hf_mlnmt.recipe.schema import default_keys

    defaults = default_keys() if defaults is None else defaults
    filled = {**defaults, **recipe}
    for key, value in defaults.items():
        if isinstance(value, Mapping) and isinstance(recipe.get(key), Mapping):
            filled[key] = with_defaults(recipe[key], value)
    return filled


def said(changes: Changes, other: str = "baseline") -> list[str]:
    """Returns a message for each change, such as "budget.steps (20; baseline 10)"; other: the old value's name."""
    return [f"{key} ({ours}; {other} {theirs})" for key, (theirs, ours) in sorted(changes.items())]


def html_page(
    comparison: Comparison, *, title: str, studies: Sequence[Study] = (), sentences: Mapping[str, Any] | None = None
) -> str:
    """Returns the page as HTML, a single file that loads nothing.

    studies: those with a summary are shown, with summary and figures. sentences: all sentences of all systems, as
    `hf_mlnmt.analysis.outputs.sentences_of` returns them.
    """
    scores = comparison.first["scores"]
    return template("comparison_page.html.jinja", autoescape=True).render(
        _common(comparison),
        title=hide_paths(title),
        data=htmlsafe_json_dumps(sentences, ensure_ascii=False),
        what=scores_are(comparison),
        detail_table=detail_table,
        systems=sentences["systems"] if sentences else [],
        sections=[
            (f"{test}, " * (len(scores) > 1) + comparison.title(test, protocol), test, protocol, scores[test][protocol])
            for test, protocol in comparison.places
        ],
        studies=[
            (study, list(map(svg_text, study.figures.values())), rows_table(study.stem, study.summary).html())
            for study in studies
            if study.summary
        ],
        settings={
            **{name: f"{value:,}" for name, value in comparison.settings.items()},
            "versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
        },
    )
