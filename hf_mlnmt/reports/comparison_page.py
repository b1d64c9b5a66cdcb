"""The page of a comparison: Markdown tables of what its files hold, and nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.evaluation.report import with_arrow
from hf_mlnmt.evaluation.runs import changed_keys
from hf_mlnmt.evaluation.significance import LEGEND, TOO_FEW
from hf_mlnmt.reports.comparison import RunComparison, read_comparison
from hf_mlnmt.reports.language_names import language_name
from hf_mlnmt.reports.tables import MISSING, show, title
from hf_mlnmt.table import Number, Table
from hf_mlnmt.zoo.records import records_root

P_VALUES = ("approximate_randomisation", "paired_bootstrap", "welch")


def comparison_page(
    comparison: RunComparison, own_budget: Mapping[str, Any] | None = None, sections: Sequence[str] = ()
) -> str:
    """The page. own_budget: that of the baseline's recipe; sections: Markdown that is to stand behind the overview."""
    blocks = [
        f"# {_heading(comparison.first, comparison.methods)}",
        f"{same_for_all(comparison, own_budget)} Baseline: `{comparison.baseline}`. Made by `hf-mlnmt compare-runs` "
        "from the files beside this page.",
        overview(comparison).markdown(),
        *_notes(comparison),
        *sections,
    ]
    for test_set, protocol in _tests(comparison):
        heading = f"## {test_set}, protocol {title(protocol)}"
        blocks.append(f"{heading}\n\n{detail_table(comparison, test_set, protocol).markdown()}")
    blocks += [_legend(comparison), *([_changes(comparison)] if comparison.methods else ())]
    blocks.append(_signatures(comparison.first))
    return "\n\n".join(blocks) + "\n"


def page_of(folder: str | Path, root: str | Path | None = None) -> str:
    """The README.md of a comparison's folder, from its JSON files, and the recipe's own budget from the record."""
    comparison = read_comparison(folder)
    return comparison_page(comparison, own_budget(comparison.baseline, root))


def own_budget(stem: str, root: str | Path | None = None) -> Mapping[str, Any] | None:
    """The budget of a record's recipe; None if there is no such record."""
    from hf_mlnmt.training.recipe import read_recipe

    path = (Path(root) if root is not None else records_root()) / "training" / f"{stem}.yaml"
    return read_recipe(path).to_dict()["budget"] if path.is_file() else None


def _heading(results: Mapping[str, Any], methods: bool) -> str:
    languages = results["languages"]
    direction = f"{language_name(languages['source'])} to {language_name(languages['target'])}"
    what = "Methods" if methods else "Systems"
    return f"{what} side by side: {(results.get('data') or {}).get('name') or MISSING}, {direction}"


def _tests(comparison: RunComparison) -> list[tuple[str, str]]:
    return [(test, protocol) for test, protocols in comparison.first["scores"].items() for protocol in protocols]


def same_for_all(comparison: RunComparison, own_budget: Mapping[str, Any] | None) -> str:
    """What the systems of a comparison share, and how their budget stands to the recipe's own."""
    budget, seeds = comparison.first["budget"], list(comparison.runs[comparison.baseline])
    which = f"seed ({seeds[0]})" if len(seeds) == 1 else f"seeds ({', '.join(map(str, seeds))}; a run for each)"
    shown = f"{budget['steps']:,} steps, {budget['epochs']:.1f} epochs, {budget['target_tokens']:,} target tokens"
    text = f"Every system was trained with the same recipe, data, {which} and budget: {shown}."
    if comparison.methods:
        text = f"The rows are ways to train one model, {which}; the baseline has {shown}. What else a row has is below."
    fewer = [name for name, runs in comparison.runs.items() if len(runs) < len(seeds)]
    if fewer:
        text += f" Not all seeds are there yet of {', '.join(f'`{name}`' for name in fewer)}."
    steps = (own_budget or {}).get("steps")
    if steps and steps > budget["steps"] and not comparison.methods:
        text += (
            f" That is a small budget (the recipe's own is {steps:,} steps): it compares how far the systems come with "
            "it, not what they reach."
        )
    return text


def overview(comparison: RunComparison) -> Table:
    """A row for each system: its size, its time, BLEU of every test set and protocol with the difference."""
    columns = [Number(f"{test}, BLEU {protocol}") for test, protocol in _tests(comparison)]
    rows = []
    for system, runs in comparison.runs.items():
        cells = [with_difference(comparison, system, *test) for test in _tests(comparison)]
        parameters = show(next(iter(runs.values())).get("parameters"))
        rows.append([f"`{system}`", parameters, minutes_of(runs), str(len(runs)), *cells])
    return Table(["system", Number("parameters"), Number("CPU minutes"), Number("seeds"), *columns], rows)


def _notes(comparison: RunComparison) -> list[str]:
    """What the results files note of their budgets (`budget.note`, written by hand): one block, or none."""
    lines = [
        f"- `{system}`, seed {seed}: {run['budget']['note']}"
        for system, runs in comparison.runs.items()
        for seed, run in runs.items()
        if run["budget"].get("note")
    ]
    return ["Notes on the budgets:\n\n" + "\n".join(lines)] if lines else []


def brief(comparison: RunComparison, wanted: Sequence[str] = ()) -> Table:
    """`overview` for a page that is about more: classic BLEU alone, and the systems without their setup's name.

    wanted: these systems and the baseline; none: all. UserError for one that there is not.
    """
    names = {name.partition(".")[0]: name for name in comparison.runs}
    if gone := [name for name in wanted if name not in names]:
        raise UserError(f"no runs of {gone[0]!r}{suggest(gone[0], names)}")
    tests = [(test, protocol) for test, protocol in _tests(comparison) if protocol == "classic"]
    rows = []
    for short, name in names.items():
        if wanted and name != comparison.baseline and short not in wanted:
            continue
        runs = comparison.runs[name]
        size = next(iter(runs.values())).get("parameters")
        millions = f"{size / 1e6:.1f}" if size else MISSING
        scores = [with_difference(comparison, name, *test) for test in tests]
        rows.append([f"`{short}`", millions, minutes_of(runs), str(len(runs)), *scores])
    columns = ["parameters (M)", "CPU minutes", "seeds", *(f"{test}, BLEU classic" for test, _ in tests)]
    return Table(["system", *map(Number, columns)], rows)


def minutes_of(runs: Mapping[int, Mapping[str, Any]]) -> str:
    """Processor time of a training, the mean of those that say it."""
    known = [run["budget"]["cpu_minutes"] for run in runs.values() if run["budget"].get("cpu_minutes")]
    return f"{statistics.fmean(known):.1f}" if known else MISSING


def with_difference(comparison: RunComparison, system: str, test_set: str, protocol: str) -> str:
    """BLEU of a system, in brackets its difference to the baseline with a mark of its p-value."""
    scores = comparison.scores(system, test_set, protocol, "BLEU")
    tested = comparison.tested(system, test_set, protocol, "BLEU")
    if tested is None:
        return mean_text(scores)
    return f"{mean_text(scores)} ({tested['difference']:+.2f}{comparison.mark(system, test_set, protocol, 'BLEU')})"


def mean_text(scores: Sequence[float]) -> str:
    """The mean of one score a seed, and of several the standard deviation."""
    text = f"{statistics.fmean(scores):.2f}"
    return f"{text} ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else text


def detail_table(comparison: RunComparison, test_set: str, protocol: str) -> Table:
    """Of one test set and protocol: each metric's mean, difference and p-values side by side."""
    metrics = list(comparison.first["scores"][test_set][protocol])
    names = [name for metric in metrics for name in (with_arrow(metric), "difference", "p")]
    rows = []
    for system in comparison.runs:
        cells = (cell for metric in metrics for cell in detail(comparison, system, test_set, protocol, metric))
        rows.append([f"`{system}`", *cells])
    return Table(["system", *(Number(name) for name in names)], rows)


def narrow_tables(comparison: RunComparison) -> list[Table]:
    """The same of every test set and protocol for the terminal: score, difference and p one below the other."""
    tables = []
    for test_set, protocol in _tests(comparison):
        metrics = list(comparison.first["scores"][test_set][protocol])
        rows = [
            [system, *("\n".join(filter(None, detail(comparison, system, test_set, protocol, m))) for m in metrics)]
            for system in comparison.runs
        ]
        columns = ["system", *(Number(with_arrow(metric)) for metric in metrics)]
        tables.append(Table(columns, rows, f"{test_set}, {protocol}", lines=True))
    return tables


def detail(comparison: RunComparison, system: str, test_set: str, protocol: str, metric: str) -> tuple[str, str, str]:
    """Mean score, difference and p-values of one system; the baseline has the score alone."""
    scores = mean_text(comparison.scores(system, test_set, protocol, metric))
    tested = comparison.tested(system, test_set, protocol, metric)
    if tested is None:
        return scores, "", ""
    difference = f"{tested['difference']:+.2f}{comparison.mark(system, test_set, protocol, metric)}"
    return scores, difference, TOO_FEW if comparison.too_few(test_set, protocol) else " / ".join(p_values(tested))


def p_values(tested: Mapping[str, Any]) -> Iterator[str]:
    """Those of the three tests that there are; "equal" for equal outputs."""
    if not tested["difference"]:
        yield "equal"
        return
    for name in P_VALUES:
        if tested.get(name) is not None:
            yield f"{tested[name]:.3f}"


def _changes(comparison: RunComparison) -> str:
    """Of each method the keys of the recipe that are not the baseline's, and its steps."""
    from hf_mlnmt.training.recipe_keys import default_keys

    lines, defaults = ["What each row has that the baseline has not:"], default_keys()
    for system, runs in comparison.runs.items():
        if system != comparison.baseline:
            run = next(iter(runs.values()))
            changed = [*changed_keys(run, comparison.first, defaults), *run.get("made_by", [])]
            steps = (run.get("budget") or {}).get("steps")
            lines.append(f"- `{system}` ({show(steps)} steps): {'; '.join(changed) or 'nothing'}")
    return "\n".join(lines)


def _legend(comparison: RunComparison) -> str:
    seeds = max(len(runs) for runs in comparison.runs.values())
    over = "scores are means over seeds ± their standard deviation; " if seeds > 1 else ""
    welch = " / of Welch's t-test on the seeds' scores" if seeds > 1 else ""
    return (
        f"Differences are to the baseline; {over}p is of approximate randomisation "
        f"({show(comparison.settings.get('trials'))} trials) / of the paired bootstrap "
        f"({show(comparison.settings.get('bootstrap'))} resamples){welch}, each uncorrected. {LEGEND} That number is "
        f"{len(comparison.tests)}.{comparison.note} Both resampling tests ask what "
        "other sentences would have given; what other seeds would have given only Welch's asks. CPU minutes are "
        f"processor time of the training alone. Decoding: {show(comparison.first.get('decoding'))}."
    )


def _signatures(results: Mapping[str, Any]) -> str:
    lines = []
    for protocol, metrics in next(iter(results["scores"].values())).items():
        lines += [f"- {protocol} {name}: `{entry['signature']}`" for name, entry in metrics.items()]
    return "Signatures:\n\n" + "\n".join(lines)
