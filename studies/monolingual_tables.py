"""The tables of the study of text of one language (studies/monolingual.py), in the forms of the thesis's chapter 4.

Made of a folder with a comparison for each setting (`hf-mlnmt compare --methods`), named as deen-10000, and
study.json. A row that is not there yet is left empty; a setting that has nothing but its baseline is no column.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from papers import printed_tables

from hf_mlnmt.common.files import read_json
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.evaluation.comparison import Comparison, read_comparison
from hf_mlnmt.evaluation.outputs import COMPARISON
from hf_mlnmt.evaluation.significance import LEGEND
from hf_mlnmt.reports.comparison import PAGE

STUDY = "study.json"
DEV, TEST, PROTOCOL = "val", "test_2016_flickr", "cased"
NONE = ("none (baseline)", "parallel")
_RATIOS = {"1:0.5": "0_5", "1:1": "1", "1:2": "2", "1:4": "4"}
_PARTS = {
    "encoder, language model": "encoder-lm",
    "encoder, cloze": "encoder-cloze",
    "decoder, language model": "decoder-lm",
    "all, pseudo-encoder": "pseudo-encoder",
}
# name -> title, label and row of each line, names in printed_tables() of what the thesis has of it
LAYOUTS: dict[str, tuple[str, list[tuple[str, str]], tuple[str, ...]]] = {
    "overview": (
        "Methods by themselves (as table 4.32)",
        [
            NONE,
            ("twice the steps", "parallel-long"),
            ("back-translation 1:1", "bt-beam-1"),
            ("pre-training, encoder and the rest", "pretrain-both"),
            ("pre-training, both in turns", "pretrain-together"),
            ("pre-training, both in turns, four times as long", "pretrain-together-long"),
            ("multi-task, decoder", "multitask-decoder-lm"),
            ("fusion in the search, sequence level", "fusion-sequence"),
            ("fusion in the search, symbol level", "fusion-symbol"),
        ],
        ("monolingual-overview",),
    ),
    "combined": (
        "Upon back-translation (as table 4.38)",
        [
            NONE,
            ("fusion", "fusion-sequence"),
            ("pre-training", "pretrain-both"),
            ("pre-training of both in turns, four times as long", "pretrain-together-long"),
            ("back-translation 1:1", "bt-beam-1"),
            ("back-translation, fusion", "bt-fusion"),
            ("back-translation, pre-training", "bt-pretrain"),
            ("back-translation, pre-training of both in turns, four times as long", "bt-pretrain-long"),
            ("back-translation, pre-training, fusion", "bt-pretrain-fusion"),
        ],
        ("with-back-translation",),
    ),
    "ratios": (
        "Back-translation by ratio and method (as table 4.30)",
        [NONE]
        + [
            (f"{method}, {ratio}", f"bt-{method}-{name}")
            for method in ("beam", "sampled", "tagged")
            for ratio, name in _RATIOS.items()
        ],
        ("back-translation",),
    ),
    "losses": (
        "Pre-training: the effect of the loss and of the text (as table 4.25)",
        [NONE]
        + [
            (f"{part}; {text}", f"pretrain-{name}{end}")
            for part, name in {**_PARTS, "encoder and the rest": "both"}.items()
            for text, end in (("own sides", "-biling"), ("all text", ""))
        ],
        ("pre-training-control", "pre-training"),
    ),
    "multi-task": (
        "Multi-task: translation as often as in the baseline, and the other tasks as often again",
        [NONE]
        + [(part, f"multitask-{name}") for part, name in _PARTS.items()]
        + [("encoder, cloze, and decoder", "multitask-cloze-and-lm")],
        ("multi-task",),
    ),
    "fusion": (
        "Fusion: criterion of training, language model of training and of search (as tables 4.17 to 4.19)",
        [NONE]
        + [
            (f"none, {level}; {text}", f"fusion-{level}{end}")
            for level in ("symbol", "sequence")
            for text, end in (("own side", "-biling"), ("all text", ""))
        ]
        + [
            (f"symbol; {names[one]}, {names[other]}", f"trained-symbol-{one}-{other}")
            for names in ({"biling": "own side", "mono": "all text"},)
            for one in names
            for other in names
        ]
        + [
            ("12-best; own side, all text", "trained-n-best-biling-mono"),
            ("12-best; all text, all text", "trained-n-best-mono-mono"),
            ("trellis; all text, all text", "trained-trellis-mono-mono"),
        ],
        ("search-fusion", "fusion-training"),
    ),
}
STUDY_FOLDER = "multi30k-monolingual"  # in results/
STUDY_TABLES = (*LAYOUTS, "lengths", "texts", "fused-losses")
LENGTHS = [NONE, ("symbol", "fusion-symbol"), ("sequence", "fusion-sequence"), ("back-translation 1:1", "bt-beam-1")]


def study_tables(folder: str | Path) -> dict[str, Table]:
    """Every table that something is there for, by name: those of LAYOUTS, "lengths", "texts" and "fused-losses"."""
    comparisons = _comparisons(Path(folder))
    found = {name: _scores(comparisons, *layout[:2]) for name, layout in LAYOUTS.items()}
    found["lengths"] = _lengths(comparisons)
    facts = read_json(Path(folder) / STUDY).get("settings", {})
    found["texts"], found["fused-losses"] = _texts(facts), _courses(facts)
    return {name: table for name, table in found.items() if table.rows}


def study_page(folder: str | Path) -> str:
    """README.md of the study's folder: our tables, each with the thesis's own below it and apart."""
    blocks = [
        "# Text of one language: Multi30k",
        "Made by `studies/monolingual.py`; each setting (direction and number of parallel pairs) has a folder with its "
        "runs, budgets and tests: "
        + ", ".join(f"[{name}]({name}/README.md)" for name in _comparisons(Path(folder)))
        + f". Cells are BLEU / TER, cased, means over seeds. {LEGEND}",
    ]
    for name, table in study_tables(folder).items():
        blocks += [f"## {table.title}", table.markdown()]
        for printed in LAYOUTS[name][2] if name in LAYOUTS else ():
            one = printed_tables()[printed]
            blocks += [f"Published, other data ({one.source}). {one.title}:", one.table().markdown()]
    return "\n\n".join(blocks) + "\n"


def study_pages(root: Path) -> dict[Path, str]:
    """The pages of all such studies in results/, as they should be; a study has a comparison for each setting."""
    folders = sorted({path.parent.parent for path in (root / "results").glob(f"*/*/{COMPARISON}")})
    return {folder / PAGE: study_page(folder) for folder in folders if (folder / STUDY).is_file()}


def _comparisons(folder: Path) -> dict[str, Comparison]:
    """{setting: comparison}, few pairs first."""
    names = [path.parent.name for path in folder.glob(f"*/{COMPARISON}")]
    return {name: read_comparison(folder / name) for name in sorted(names, key=_order)}


def _order(setting: str) -> tuple[int, str]:
    direction, _, pairs = setting.partition("-")
    return int(pairs), direction


def _scores(comparisons: Mapping[str, Comparison], title: str, rows: Sequence[tuple[str, str]]) -> Table:
    """A line for each row that any setting has: val and test of every setting that has more than its baseline."""
    methods = [row for _, row in rows if row != NONE[1]]
    shown = {
        setting: comparison
        for setting, comparison in comparisons.items()
        if any(f"{row}.{setting}" in comparison.runs for row in methods)
    }
    lines = []
    for label, row in rows:
        cells, seeds = [], []
        for setting, comparison in shown.items():
            system = f"{row}.{setting}"
            seeds.append(str(len(comparison.runs.get(system, ()))))
            cells += [_cell(comparison, system, test) for test in (DEV, TEST)]
        if any(cells):
            lines.append([label, *cells, ", ".join(seeds)])
    columns = [Number(f"{setting} {test}") for setting in shown for test in ("val", "test")]
    return Table(["", *columns, Number("seeds")], lines, title)


def _cell(comparison: Comparison, system: str, test: str) -> str:
    if system not in comparison.runs:
        return ""
    bleu, ter = (statistics.fmean(comparison.scores(system, test, PROTOCOL, metric)) for metric in ("BLEU", "TER"))
    return f"{bleu:.1f}{comparison.mark(system, test, PROTOCOL, 'BLEU')} / {ter:.1f}"


def _lengths(comparisons: Mapping[str, Comparison]) -> Table:
    """Words of val's translations to one of the references (table 4.13)."""
    lines = []
    for label, row in LENGTHS:
        cells = []
        for setting, comparison in comparisons.items():
            runs = comparison.runs.get(f"{row}.{setting}", {}).values()
            found = [run["outputs"][DEV][PROTOCOL]["length_ratio"] for run in runs]
            cells.append(f"{statistics.fmean(found):.3f}" if found else "")
        if any(cells):
            lines.append([label, *cells])
    title = "Length of val's translations to that of the references (as table 4.13)"
    return Table(["", *map(Number, comparisons)], lines if len(lines) > 1 else [], title)


def _texts(facts: Mapping[str, Any]) -> Table:
    """Perplexities of language models and pre-trainings."""
    lines = []
    for setting, kinds in facts.items():
        for name, one in kinds["texts"].items():
            tests = one["perplexity"]
            shown = [f"{_perplexity(tests[test]):.1f}" if test in tests else "" for test in (DEV, TEST)]
            bits = [tests[test].get("bits_per_byte") for test in (DEV, TEST) if test in tests]
            objective, _, text = name.removeprefix("text-").rpartition("-")
            words = "own side" if text == "biling" else "all text"
            cells = [setting, objective, words, *shown, " / ".join(f"{bit:.2f}" for bit in bits if bit is not None)]
            lines.append([*cells, f"{one['budget']['steps']:,}"])
    columns = ["setting", "objective", "text", *map(Number, ("val", "test", "bits per byte", "steps"))]
    return Table(columns, lines, "Perplexity by subword, or by predicted token")


def _perplexity(numbers: Mapping[str, float]) -> float:
    return numbers.get("per_subword", numbers.get("per_predicted_token", float("nan")))


def _courses(facts: Mapping[str, Any]) -> Table:
    """What becomes of the loss, log q, log Z and of dev BLEU while a fused loss is trained (4.14)."""
    lines = []
    for setting, kinds in facts.items():
        for name, one in kinds["fused_losses"].items():
            losses, dev = one["losses"], [line["eval_bleu"] for line in one["dev"] if "eval_bleu" in line]
            cells = [
                _ends([line[key] for line in losses if key in line]) for key in ("loss", "loss_log_q", "loss_log_z")
            ]
            lines.append([setting, name.removeprefix("fused-loss-"), *cells, _ends(dev), f"{one['budget']['steps']:,}"])
    columns = ["setting", "criterion and text", *map(Number, ("loss", "log q", "log Z", "val BLEU, greedy", "steps"))]
    return Table(columns, lines, "Training with a fused loss: first and last of what was logged")


def _ends(values: Sequence[float]) -> str:
    return f"{values[0]:.2f} → {values[-1]:.2f}" if values else ""
