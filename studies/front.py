"""The tables of results on the README: the models in published/, and the rows that a reader wants first of results/.

Of results/ first trainings by themselves, then parts of comparisons of runs, each with its baseline on its first line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.evaluation.comparison import read_comparison
from hf_mlnmt.evaluation.outputs import COMPARISON
from hf_mlnmt.evaluation.significance import LEGEND as MARKS
from hf_mlnmt.reports.comparison_page import mean_text, minutes_of, with_difference
from hf_mlnmt.reports.facts import load_results
from hf_mlnmt.reports.tables import MISSING

TESTS, PROTOCOL = ("val", "test_2016_flickr"), "cased"
LEGEND = (
    "Cased BLEU, means over seeds ± standard deviation; in brackets the difference to the baseline above over the "
    f"seeds that both have. {MARKS} This table shows only some of them. CPU minutes are of the training alone, "
    "without what it begins with or learns from, and means over seeds that several processors trained; settings were "
    "chosen on val."
)
# record -> what it is called here; all of its seeds
RECORDS = {"transformer.multi30k-ende-long": "English to German, 29,000 pairs: the baseline, best settings found"}
# folder in results/ -> {system or row without its setup: what it is called here}, the baseline first
PARTS: dict[str, dict[str, str]] = {
    "multi30k-ende-short": {
        "transformer": "English to German, 29,000 pairs: the baseline, short training",
        "ms-123-aif": "multi-level supervision, `ms-123-aif`, the best of all systems on val",
    },
    "multi30k-monolingual/deen-10000": {
        "parallel": "German to English, 10,000 pairs: the baseline, short training",
        "bt-beam-1": "back-translated captions, 1:1",
    },
}


def models_table(root: str | Path) -> Table:
    """The models of Multi30k in published/, of many directions with the mean of their scores."""
    lines = []
    for file in sorted(Path(root).glob("published/*/results.json")):
        run, folder = load_results(file), file.parent
        if not {name.partition(".")[0] for name in run["scores"]} & {*TESTS}:
            continue  # the text of another kind: README says its scores in words
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        cells = [
            f"[published/{folder.name}](published/{folder.name})",
            f"{run['parameters'] / 1e6:.1f}",
            f"{size / 1e6:.1f}",
        ]
        for test in TESTS:
            scores = [scores for name, scores in run["scores"].items() if name.partition(".")[0] == test]
            for protocol in ("cased", "classic"):
                values = [each[protocol]["BLEU"]["score"] for each in scores]
                cells.append(f"{sum(values) / len(values):.1f}" if values else MISSING)
        lines.append(cells)
    heads = [f"{test}, {protocol} BLEU" for test in TESTS for protocol in ("cased", "classic")]
    return Table(["model", *map(Number, ("million parameters", "MB", *heads))], lines)


def front_table(root: str | Path) -> Table:
    """The rows that are there; `root` is the folder that results/ lies in."""
    results = Path(root) / "results"
    lines = [*_of_records(results), *_of_comparisons(results)]
    return Table(["Multi30k", *map(Number, ("CPU minutes", "seeds", *TESTS))], lines)


def _of_records(results: Path) -> Iterator[list[str]]:
    for stem, label in RECORDS.items():
        files = [*results.glob(f"{stem}.json"), *results.glob(f"{stem}.seed*.json")]
        runs = {run["seed"]: run for run in map(load_results, files)}
        if runs:
            scores = [[run["scores"][test][PROTOCOL]["BLEU"]["score"] for run in runs.values()] for test in TESTS]
            yield [label, minutes_of(runs), str(len(runs)), *map(mean_text, scores)]


def _of_comparisons(results: Path) -> Iterator[list[str]]:
    for part, names in PARTS.items():
        if not (results / part / COMPARISON).is_file():
            continue
        comparison = read_comparison(results / part)
        by_name = {system.partition(".")[0]: system for system in comparison.runs}
        for name, label in names.items():
            if (system := by_name.get(name)) is not None:
                runs = comparison.runs[system]
                scores = [with_difference(comparison, system, test, PROTOCOL) for test in TESTS]
                yield [label, minutes_of(runs), str(len(runs)), *scores]
