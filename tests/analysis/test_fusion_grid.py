"""The grid over alpha and beta: its points, their scores, the command, and what is refused."""

from __future__ import annotations

import json
import logging

import pytest
from helpers.fused_folders import write_fused
from helpers.model_folders import SENTENCES
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.analysis.fusion_grid import ALPHAS, BETAS, GAMMAS, METRICS, best, grid_points, grid_study
from hf_mlnmt.cli import app
from hf_mlnmt.evaluation import score
from hf_mlnmt.generation import TranslationPipeline

SOURCES, REFERENCES = SENTENCES[:6], [SENTENCES[10:16]]
OPTIONS = {"num_beams": 2, "max_new_tokens": 8, "batch_tokens": 4096}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_fused(tmp_path_factory.mktemp("fused") / "model")


def fused(folder, normalization="symbol"):
    pipeline = TranslationPipeline.from_pretrained(folder)
    pipeline.model.config.normalization = normalization
    return pipeline


def test_every_point_has_its_own_scores(folder):
    pytest.importorskip("matplotlib")
    pipeline = fused(folder)
    points = grid_points(pipeline, [1.0, 0.5], [2.0, 0.0])
    assert points == [(0.5, 0.0), (0.5, 2.0), (1.0, 0.0), (1.0, 2.0)]
    study = grid_study(pipeline, SOURCES, REFERENCES, points, progress=False, **OPTIONS)
    assert [(row["alpha"], row["beta"]) for row in study.rows] == points
    for row in study.rows:
        lines = pipeline(SOURCES, alpha=row["alpha"], beta=row["beta"], **OPTIONS)
        expected = score(lines, REFERENCES, bootstrap=0)
        assert [row[name] for name in METRICS] == pytest.approx([expected[name] for name in METRICS], abs=1e-4)
    assert [row["alpha"] for row in study.summary] == [0.5, 1.0]
    assert max(row[f"beta {beta}"] for row in study.summary for beta in (0, 2)) == best(study)["BLEU"]


def test_the_theses_grids_are_the_default(folder):
    assert grid_points(fused(folder)) == [(alpha, beta) for alpha in ALPHAS for beta in BETAS]
    assert grid_points(fused(folder, "sequence")) == [(1.0, gamma) for gamma in GAMMAS]
    assert (len([beta for beta in BETAS if beta]), len([gamma for gamma in GAMMAS if gamma])) == (8, 7)


def test_bad_scales(folder):
    for alphas, betas in (([-1.0], None), (None, [float("nan")])):
        with pytest.raises(UserError, match="must be a number of at least 0"):
            grid_points(fused(folder), alphas, betas)
    for normalization in ("symbol", "sequence"):
        with pytest.raises(UserError, match="every alpha and beta is 0"):
            grid_points(fused(folder, normalization), [0.0], [0.0])
        with pytest.raises(UserError, match="alpha=1e-300: float32 does not hold it"):
            grid_points(fused(folder, normalization), [1e-300], [1e-300])
    with pytest.raises(UserError, match="is no fused model"):
        grid_points(TranslationPipeline.from_pretrained(folder.parent / "model-tm"))


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
