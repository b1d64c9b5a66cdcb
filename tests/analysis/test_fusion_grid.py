"""The grid over alpha and beta: its points, what it keeps, going on, and what it refuses."""

from __future__ import annotations

import csv
import json
import logging

import pytest
from helpers.fused_folders import write_fused
from helpers.model_folders import SENTENCES
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.analysis.fusion_grid import ALPHAS, BETAS, GAMMAS, Grid, best, summary
from hf_mlnmt.cli import app
from hf_mlnmt.evaluation import score
from hf_mlnmt.generation import TranslationPipeline

SOURCES, REFERENCES = SENTENCES[:6], [SENTENCES[10:16]]
OPTIONS = {"num_beams": 2, "max_new_tokens": 8, "batch_tokens": 4096}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_fused(tmp_path_factory.mktemp("fused") / "model")


def grid(folder, output, normalization="symbol", sources=SOURCES, **scales):
    pipeline = TranslationPipeline.from_pretrained(folder)
    pipeline.model.config.normalization = normalization
    return Grid(pipeline, sources, REFERENCES, output, options=dict(OPTIONS), **scales)


def test_every_point_has_its_own_scores(folder, tmp_path):
    made = grid(folder, tmp_path, alphas=[1.0, 0.5], betas=[0.0, 2.0])
    rows = made.run(progress=False)
    assert [(row["alpha"], row["beta"]) for row in rows] == [(0.5, 0.0), (0.5, 2.0), (1.0, 0.0), (1.0, 2.0)]
    for row in rows:
        lines = made.pipeline(SOURCES, alpha=row["alpha"], beta=row["beta"], **OPTIONS)
        expected = score(lines, REFERENCES, bootstrap=0)
        assert [row[name] for name in ("BLEU", "chrF", "TER")] == pytest.approx(
            [expected[name] for name in ("BLEU", "chrF", "TER")], abs=1e-4
        )
    assert json.loads((tmp_path / "grid.json").read_text())["rows"] == rows
    with (tmp_path / "grid.csv").open() as stream:
        assert [float(row["TER"]) for row in csv.DictReader(stream)] == [row["TER"] for row in rows]
    shown = summary(rows)
    assert [row["alpha"] for row in shown] == [0.5, 1.0]
    assert max(row[f"beta {beta}"] for row in shown for beta in (0, 2)) == best(rows)["BLEU"]


def test_it_goes_on_where_it_was(folder, tmp_path, monkeypatch):
    whole = grid(folder, tmp_path / "whole", alphas=[1.0], betas=[0.0, 0.5, 2.0]).run(progress=False)
    made, done = grid(folder, tmp_path / "part", alphas=[1.0], betas=[0.0, 0.5, 2.0]), []
    once = made._score

    def interrupted(alpha, beta):
        if done:
            raise KeyboardInterrupt
        done.append(beta)
        return once(alpha, beta)

    monkeypatch.setattr(made, "_score", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.run(progress=False)
    again = grid(folder, tmp_path / "part", alphas=[1.0], betas=[0.0, 0.5, 2.0])
    assert [beta for _, beta in again.missing()] == [0.5, 2.0]
    found = again.run(progress=False)
    for row in (*found, *whole):
        row.pop("seconds")
    assert found == whole
    wider = grid(folder, tmp_path / "part", alphas=[1.0], betas=[0.0, 4.0])
    assert wider.missing() == [(1.0, 4.0)]
    for other in ({"sources": SOURCES[::-1]}, {"normalization": "sequence"}):
        with pytest.raises(UserError, match=r"is the grid of something else: (sources|normalization) differ"):
            grid(folder, tmp_path / "part", **other)
    (tmp_path / "part" / "grid.json").write_text("{")
    with pytest.raises(UserError, match=r"grid\.json: not valid JSON"):
        grid(folder, tmp_path / "part")


def test_the_theses_grids_are_the_default(folder, tmp_path):
    symbol, sequence = grid(folder, tmp_path / "a"), grid(folder, tmp_path / "b", "sequence")
    assert (symbol.alphas, symbol.betas) == (list(ALPHAS), list(BETAS))
    assert (sequence.alphas, sequence.betas) == ([1.0], list(GAMMAS))
    assert (len([beta for beta in BETAS if beta]), len([gamma for gamma in GAMMAS if gamma])) == (8, 7)


def test_bad_scales(folder, tmp_path):
    for scales in ({"alphas": [-1.0]}, {"betas": [float("nan")]}):
        with pytest.raises(UserError, match="must be a number of at least 0"):
            grid(folder, tmp_path, **scales)
    for normalization in ("symbol", "sequence"):
        with pytest.raises(UserError, match="every alpha and beta is 0"):
            grid(folder, tmp_path, normalization, alphas=[0.0], betas=[0.0])
        with pytest.raises(UserError, match="alpha=1e-300: float32 does not hold it"):
            grid(folder, tmp_path, normalization, alphas=[1e-300], betas=[1e-300])
    with pytest.raises(UserError, match="is no fused model"):
        Grid(TranslationPipeline.from_pretrained(folder.parent / "model-tm"), SOURCES, REFERENCES, tmp_path)


@pytest.mark.parametrize(
    "changes", [{"rows": [1]}, {"rows": None}, {"rows": [{"alpha": 1.0}]}, {"rows": {}}, {"settings": []}]
)
def test_an_earlier_grid_that_is_none_is_refused(folder, tmp_path, changes):
    grid(folder, tmp_path, alphas=[1.0], betas=[0.0]).run(progress=False)
    content = json.loads((tmp_path / "grid.json").read_text())
    (tmp_path / "grid.json").write_text(json.dumps(content | changes))
    with pytest.raises(UserError, match=rf"grid\.json: {next(iter(changes))}"):
        grid(folder, tmp_path, alphas=[1.0], betas=[0.0]).run(progress=False)


def test_command(folder, tmp_path):
    for name, lines in (("val.de", SOURCES), ("val.en", REFERENCES[0])):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    files = ["-s", str(tmp_path / "val.de"), "-r", str(tmp_path / "val.en"), "-o", str(tmp_path / "grid")]
    options = ["--beams", "2", "--max-new-tokens", "8", "--sentences", "4", "--beta", "0", "--beta", "0.5"]
    said = CliRunner().invoke(app, ["analyse", "fusion-grid", str(folder), *files, *options])
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    assert said.exit_code == 0, said.exception
    assert "best: alpha 1, beta" in said.stdout
    assert {path.name for path in (tmp_path / "grid").iterdir()} == {f"grid.{x}" for x in ("json", "csv", "png", "svg")}
    assert json.loads((tmp_path / "grid" / "grid.json").read_text())["settings"]["sentences"] == 4
    (tmp_path / "val.en").write_text("one line\n")
    said = CliRunner().invoke(app, ["analyse", "fusion-grid", str(folder), *files, *options])
    assert "4 lines" in str(said.exception)
