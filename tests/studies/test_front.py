"""The README's table of results: what stands in its cells is what the comparisons' own pages say."""

from __future__ import annotations

import json
from pathlib import Path

import front
import pytest
from helpers.finished_runs import NAMES, compare, write_runs
from regions import region

from hf_mlnmt.evaluation.comparison import read_comparison

ROOT = Path(__file__).resolve().parents[2]


def test_rows_are_those_of_the_comparisons_that_are_there(tmp_path, monkeypatch):
    compared = compare(write_runs(tmp_path / "runs"), tmp_path / "results" / "toy")
    names = {"transformer": "the baseline", "s-agg": "one system", "m-00": "not run"}
    monkeypatch.setattr(front, "PARTS", {"toy": names, "nothing": names})
    monkeypatch.setattr(front, "TESTS", ("test",))
    lines = region("front", tmp_path, tmp_path).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    assert [row[0] for row in rows] == ["the baseline", "one system"]
    page = (compared / "README.md").read_text()
    for row, key in zip(rows, ("base", "b")):
        whole = next(line for line in page.splitlines() if line.startswith(f"| `{NAMES[key]}` | "))
        assert set(row[1:]) <= {cell.strip() for cell in whole.split("|")}
    assert lines[-1] == front.LEGEND


def test_a_record_is_the_mean_of_its_seeds():
    (stem,) = front.RECORDS
    (row,) = (row for row in front.front_table(ROOT).rows if row[0] == front.RECORDS[stem])
    runs = [json.loads(path.read_text()) for path in (ROOT / "results").glob(f"{stem}*.json")]
    found = [run["scores"]["test_2016_flickr"]["cased"]["BLEU"]["score"] for run in runs]
    assert (row[2], float(row[-1].split()[0])) == (str(len(runs)), pytest.approx(sum(found) / len(found), abs=0.005))


def test_every_part_has_its_baseline_first():
    for part, names in front.PARTS.items():
        kept = ROOT / "results" / part / "comparison.json"
        if kept.is_file():
            assert json.loads(kept.read_text())["baseline"].partition(".")[0] == next(iter(names)), part


def test_the_zoos_row_is_the_best_on_val():
    part = "multi30k-ende-short"
    means = {}
    for record, runs in read_comparison(ROOT / "results" / part).runs.items():
        scores = [run["scores"]["val"]["cased"]["BLEU"]["score"] for run in runs.values()]
        means[record.partition(".")[0]] = sum(scores) / len(scores)
    assert [*front.PARTS[part]] == ["transformer", max(means, key=means.__getitem__)]
