"""The tables of the study of many languages (studies/multilingual.py), from the files that it keeps.

<row>.seed<n>.json has a run's results, its matrix of directions and its retrieval; study.json names the rows in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hf_mlnmt.common.files import read_json
from hf_mlnmt.common.table import Number, Table

STUDY = "study.json"
STUDY_FOLDER = "multi30k-many"  # in results/
STUDY_TABLES = ("many-overview", "many-matrix", "many-pairs")
LEGEND = "Classic BLEU on test_2016_flickr; * never trained together."
WHOLE = ("copies-free", "copies")
"""The row whose directions have a table of their own: the first that there is."""
PAIRS = ("de-en", "en-de", "de-fr", "fr-de")
MATRIX = "matrix"  # what a run has that translates between several languages


def study_tables(folder: str | Path) -> dict[str, Table]:
    """Those of STUDY_TABLES that something is there for. Means over seeds."""
    folder = Path(folder)
    named = read_json(folder / STUDY)["rows"] if (folder / STUDY).is_file() else {}
    kept = {name: [read_json(path) for path in sorted(folder.glob(f"{name}.seed*.json"))] for name in named}
    kept = {name: runs for name, runs in kept.items() if runs}
    several = {name: runs for name, runs in kept.items() if MATRIX in runs[0]}
    found = {"many-overview": _overview(several, named)} if several else {}
    if whole := next((name for name in WHOLE if name in kept), None):
        found["many-matrix"] = _matrix(kept[whole])
    if pairs := {name: runs for name, runs in kept.items() if name not in several}:
        found["many-pairs"] = _pairs(pairs, named)
    return found


def _overview(kept: Mapping[str, Sequence[Any]], named: Mapping[str, str]) -> Table:
    """BLEU of four directions and of all, a star at zero-shot ones; translations in a wrong language; retrieval."""
    columns = ["steps", *PAIRS, "mean of 12", "mean of 12, cased", "wrong language %", "retrieval %", "seeds"]
    rows = []
    for name, runs in kept.items():
        classic, cased = (_bleu(runs, protocol) for protocol in ("classic", "cased"))
        zero = runs[0][MATRIX].get("zero_shot", [])
        cells = [f"{classic[pair]:.2f}{'*' if pair in zero else ''}" if pair in classic else "" for pair in PAIRS]
        cells += [f"{fmean(scores.values()):.2f}" if len(scores) == 12 else "" for scores in (classic, cased)]
        cells += [_share(runs, MATRIX, "off_target"), _share(runs, "retrieval", "accuracy")]
        rows.append([named[name], f"{runs[0]['budget']['steps']:,}", *cells, str(len(runs))])
    return Table(["model", *map(Number, columns)], rows, LEGEND)


def _matrix(runs: Sequence[Any]) -> Table:
    """From each language into each: BLEU, and in brackets the retrieval."""
    scores, found = _bleu(runs, "classic"), _mean(runs, "retrieval", "accuracy")
    sources, targets = (sorted({pair.split("-")[side] for pair in scores}) for side in (0, 1))
    rows = []
    for source in sources:
        pairs = [f"{source}-{target}" for target in targets]
        cells = [f"{scores[pair]:.1f} ({100 * found[pair]:.0f})" if pair in scores else "" for pair in pairs]
        rows.append([source, *cells])
    return Table(["from / to", *map(Number, targets)], rows, "Classic BLEU (accuracy@1 of retrieval in %)")


def _pairs(kept: Mapping[str, Sequence[Any]], named: Mapping[str, str]) -> Table:
    """BLEU of the models of one pair."""
    rows = []
    for name, runs in kept.items():
        scores = {protocol: _bleu(runs, protocol) for protocol in ("classic", "cased")}
        for pair in scores["classic"]:
            cells = [f"{scores[protocol][pair]:.2f}" for protocol in ("classic", "cased")]
            what = named[name].removesuffix(f", {pair}")
            rows.append([what, pair, f"{runs[0]['budget']['steps']:,}", *cells, str(len(runs))])
    columns = ["steps", "BLEU classic", "BLEU cased", "seeds"]
    return Table(["model", "pair", *map(Number, columns)], rows, "One pair of languages: BLEU on test_2016_flickr")


def _bleu(runs: Sequence[Any], protocol: str) -> dict[str, float]:
    """{pair: BLEU}, of tests called <name>.<pair>."""
    tests = runs[0]["scores"]
    return {
        test.rpartition(".")[2]: fmean(run["scores"][test][protocol]["BLEU"]["score"] for run in runs) for test in tests
    }


def _mean(runs: Sequence[Any], part: str, key: str) -> dict[str, float]:
    pairs = runs[0].get(part, {}).get(key, {})
    return {pair: fmean(run[part][key][pair] for run in runs) for pair in pairs}


def _share(runs: Sequence[Any], part: str, key: str) -> str:
    found = _mean(runs, part, key)
    return f"{100 * fmean(found.values()):.1f}" if found else ""
