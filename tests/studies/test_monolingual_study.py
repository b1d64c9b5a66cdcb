"""The queue of studies/monolingual.py: its rows, their order, what is done again, what a failure stops; tables."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from monolingual_tables import LAYOUTS, study_page, study_pages, study_tables

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import write_json
from hf_mlnmt.evaluation.outputs import COMPARISON

STUDY = "monolingual"


@pytest.fixture
def make(study_module, tmp_path, monkeypatch):
    """A study in a folder, with more options."""
    monkeypatch.chdir(tmp_path)

    def study(*words: str) -> Any:
        return study_module.Study(study_module.parser().parse_args(["--data", "data", "--output", "runs", *words]))

    return study


def test_every_row_is_of_recipes_that_can_be_read_and_of_relative_paths(make, tmp_path):
    study = make("--pairs", "29000", "--directions", "de-en", "--steps", "7")
    kinds: dict[str, int] = {}
    for work in study.works().values():
        assert str(tmp_path) not in str(work)
        kinds[work.kind] = kinds.get(work.kind, 0) + 1
        study.write_recipe(work)  # which reads it
        if work.recipe is not None:
            steps = {"multitask-cloze-and-lm": 21}.get(work.name.split(".")[0])
            if steps or work.name.startswith(("parallel.", "pretrain", "bt", "text")):
                assert work.recipe["budget"] == {"steps": steps or 7}
        assert str(tmp_path) not in json.dumps(work.recipe)
    assert kinds["train"] == 2 + 1 + 12 + 10 + 5 + 5 + 1 + 8 + 5
    assert kinds["translate"] == 2


def test_the_order_makes_every_moments_table_useful(make):
    study = make("--seeds", "1,2", "--pairs", "29000,10000")
    planned = list(study.planned())
    assert [name for _, name, _ in planned[:5]] == [
        "parallel", "bt-beam-1", "multitask-decoder-lm", "pretrain-both", "fusion-sequence"
    ]  # fmt: skip
    assert {str(setting) for setting, _, _ in planned[: len(planned) // 4]} == {"deen-10000"}
    assert {setting.pairs for setting, _, seed in planned if seed == 2} == {10000}
    works = list(study.works().values())
    for number, work in enumerate(works):
        assert {need.name for need in work.needs} <= {other.name for other in works[:number]}
    other = study.rows.row(study.settings[0], "bt-pretrain-fusion", 2)
    assert {need.name for need in other.all() if ".seed2" in need.name} == {
        "bt-pretrain.deen-10000.seed2", "bt-pretrain-fusion.deen-10000.seed2"
    }  # fmt: skip


def test_an_unknown_row_is_named(make):
    with pytest.raises(UserError, match="did you mean 'parallel'"):
        make("--rows", "paralel").names()


def test_what_is_done_is_left_alone_and_a_failure_stops_what_needs_it(make, monkeypatch):
    study = make("--rows", "bt-beam-1,multitask-decoder-lm", "--directions", "de-en", "--pairs", "10")
    calls: list[list[str]] = []

    def call(words: list[str]) -> int:
        calls.append(words)
        return 1 if words[0] == "back-translate" else 0

    monkeypatch.setattr(study, "_call", call)
    monkeypatch.setattr(study, "write", lambda: None)
    assert study.run() == 1
    assert [words[0] for words in calls] == ["train", "train", "back-translate", "train", "compare"]
    assert study.failed["bt-beam-1.deen-10.seed1"] == "needs deen-10.beam"
    again = make("--rows", "bt-beam-1,multitask-decoder-lm", "--directions", "de-en", "--pairs", "10")
    calls.clear()
    monkeypatch.setattr(again, "_call", call)
    monkeypatch.setattr(again, "write", lambda: None)
    again.run()
    assert [words[0] for words in calls] == ["back-translate", "compare"]
    other = make("--rows", "parallel", "--directions", "de-en", "--pairs", "10", "--steps", "9")
    assert not other.is_done(other.rows.row(other.settings[0], "parallel", 1)), "of other steps"


def test_a_fused_search_becomes_a_run_like_its_models(study_module, make, tmp_path):
    study = make("--directions", "de-en", "--pairs", "10")
    row = study.rows.row(study.settings[0], "fusion-sequence", 1)
    grid = [{"alpha": 1.0, "beta": beta, "BLEU": 5 - abs(beta - 0.1)} for beta in (0.0, 0.1, 0.5)]
    write_json(row.needs[2].folder / "grid.json", {"rows": grid})
    fuse = row.commands()[0]
    assert fuse[fuse.index("--beta") + 1] == "0.1"
    before = [words[words[0] == "model" :] for words in row.commands()]  # `fuse`, as an earlier version called it
    digest = hashlib.sha256(json.dumps([None, before]).encode()).hexdigest()
    write_json(study.output / "done" / f"{row.name}.json", {"made_of": digest})
    assert study.is_done(row)
    write_json(row.of.folder / "results.json", {"system": "parallel.deen-10", "seed": 1, "budget": 3, "scores": {}})
    scored = {"scores": {"val": 1}, "outputs": {}, "parameters": 7, "command": "hf-mlnmt evaluate", "system": "x"}
    write_json(row.folder / "scores.json", scored)
    study_module.finish(row)
    made = json.loads((row.folder / "results.json").read_text())
    assert made["system"] == "fusion-sequence.deen-10"
    assert (made["scores"], made["budget"], made["parameters"]) == ({"val": 1}, 3, 7)
    assert "--beta 0.1" in made["made_by"][0]


def test_what_an_earlier_queue_found_stays(make, study_module, monkeypatch):
    """A new queue begins without the folders of the one before: its facts are added to those in --results."""
    study = make("--results", "results")
    old = {"texts": {"old": 1, "both": 1}, "grids": {"old": [1]}}
    write_json(study.results / "study.json", {"base": "x", "seeds": [2], "settings": {"deen-10": old, "ende-10": {}}})
    new = {"base": "x", "seeds": [1], "settings": {"deen-10": {"texts": {"both": 2}}}}
    monkeypatch.setattr(study, "facts", lambda: new)
    monkeypatch.setattr(study_module, "study_page", lambda results: "")
    study.write()
    written = json.loads((study.results / "study.json").read_text())
    assert written["seeds"] == [1, 2]
    assert written["settings"] == {"deen-10": {"texts": {"old": 1, "both": 2}, "grids": {"old": [1]}}, "ende-10": {}}


def write_results(folder: Path, system: str, bleu: float) -> None:
    entry = {"BLEU": {"score": bleu}, "TER": {"score": 50.0}}
    content = {
        "schema": "hf_mlnmt.results/1",
        "system": system,
        "seed": 1,
        "scores": {test: {"cased": entry} for test in ("val", "test_2016_flickr")},
        "outputs": {"val": {"cased": {"length_ratio": 0.98, "sentences": 1014}}},
    }
    write_json(folder / f"{system}.seed1.json", content)


def test_the_tables_hold_what_is_there_and_nothing_else(tmp_path):
    folder = tmp_path / "deen-10"
    write_results(folder, "parallel.deen-10", 30.0)
    tested = {"BLEU": {"difference": 2.0, "approximate_randomisation": 0.001}}
    tests = {"bt-beam-1.deen-10": {"seeds": [1], "tested": {"val": {"cased": tested}}}}
    content = {"schema": "hf_mlnmt.comparison/3", "baseline": "parallel.deen-10", "settings": {}}
    write_json(folder / COMPARISON, {**content, "systems": {}})
    assert study_tables(tmp_path) == {}, "a baseline alone is no table"
    write_results(folder, "bt-beam-1.deen-10", 32.0)
    write_json(folder / COMPARISON, {**content, "systems": tests, "compares": "methods"})
    tables = study_tables(tmp_path)
    assert set(tables) == {"overview", "combined", "ratios", "lengths"}
    assert tables["overview"].rows == [
        ["none (baseline)", "30.0 / 50.0", "30.0 / 50.0", "1"],
        ["back-translation 1:1", "32.0‡ / 50.0", "32.0 / 50.0", "1"],
    ]
    assert "Published, other data" in study_page(tmp_path)
    write_json(tmp_path / "results" / "toy" / "study.json", {})
    shutil.copytree(folder, tmp_path / "results" / "toy" / folder.name)
    pages = study_pages(tmp_path)
    assert pages == {tmp_path / "results" / "toy" / "README.md": study_page(tmp_path / "results" / "toy")}


def test_every_row_of_the_study_has_a_place_in_a_table(study_module):
    shown = {row for _, rows, _ in LAYOUTS.values() for _, row in rows}
    assert shown == set(study_module.ROWS)
