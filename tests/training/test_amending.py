"""A run that is amended: only what changed is done again, and it ends as a run with the new recipe from the start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from helpers.tiny_run import killed, run, same_weights, write_recipe
from safetensors.torch import load_file

from hf_mlnmt import UserError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def finished(whole, tmp_path):
    """A copy of a finished run, and its recipe."""
    folder, recipe, _ = whole
    return shutil.copytree(folder, tmp_path / "finished"), recipe


def times(output: Path) -> dict[str, int]:
    """When each product of a run was written."""
    paths = [*output.glob("*/model.safetensors"), *output.glob("translations/*"), *output.glob("checkpoints/*")]
    return {str(path.relative_to(output)): path.stat().st_mtime_ns for path in paths}


def written_again(output: Path, before: dict[str, int]) -> set[str]:
    after = times(output)
    return {name for name in after if after[name] != before.get(name)}


def results(output: Path, model: str = "") -> dict:
    return json.loads((output / model / "results.json").read_text())


def test_a_test_set_is_added(finished, data):
    output, recipe = finished
    before, old = times(output), results(output)
    text = run(recipe, data, output, settings=["data.test.second.files={source: val.en, target: val.de}"])
    assert "changed since the last start: data.test.second" in text
    assert written_again(output, before) == {"translations/second.best.de", "translations/second.average.de"}
    new = results(output)
    assert list(new["scores"]) == ["made_up", "second"]
    assert new["scores"]["made_up"] == old["scores"]["made_up"]
    assert yaml.safe_load((output / "recipe.yaml").read_text())["data"]["test"].keys() == {"made_up", "second"}
    rows = [line for line in text.splitlines() if line.startswith(("│ made_up", "│ second"))]
    assert len(rows) == 4
    # and taken out again: nothing is translated
    before = times(output)
    run(recipe, data, output)
    assert list(results(output)["scores"]) == ["made_up"]
    assert not written_again(output, before)


def test_a_test_set_is_mended(finished, data, tmp_path):
    """Its files are other ones, under the same names: nobody said so, it is seen."""
    output, recipe = finished
    mended, before, old = shutil.copytree(data, tmp_path / "mended"), times(output), results(output)
    (mended / "test.de").write_text((data / "test.de").read_text().replace(".", " !"))
    assert "is finished" not in run(recipe, mended, output)
    assert not written_again(output, before)  # the references alone are other ones
    assert results(output)["scores"] != old["scores"]
    assert "is finished" in run(recipe, mended, output)
    (mended / "test.en").write_text((data / "test.en").read_text().replace("ba", "do"))
    run(recipe, mended, output)
    assert written_again(output, before) == {"translations/made_up.best.de", "translations/made_up.average.de"}


def test_other_decoding(finished, whole, data):
    output, recipe = finished
    before = times(output)
    change = ["decoding.beams=3", "decoding.max_new_tokens=9"]
    run(recipe, data, output, settings=change)
    again = written_again(output, before)
    assert {"translations/made_up.best.de", "translations/made_up.average.de"} <= again
    assert not {name for name in again if name.startswith("checkpoints")}
    assert json.loads((output / "best" / "generation_config.json").read_text())["num_beams"] == 3
    assert results(output)["decoding"]["beams"] == 3
    run(recipe, data, output)  # and as it was
    for name in ("made_up.best.de", "made_up.average.de"):
        left, right = (folder / "translations" / name for folder in (output, whole[0]))
        assert left.read_text() == right.read_text()
    assert results(output)["scores"] == results(whole[0])["scores"]


def test_another_average(finished, data):
    output, recipe = finished
    before = times(output)
    run(recipe, data, output, settings=["checkpoints.average=2"])
    assert written_again(output, before) == {"average/model.safetensors", "translations/made_up.average.de"}
    assert results(output)["checkpoints"] == [16, 20]
    each = [load_file(output / f"checkpoints/checkpoint-{step}/model.safetensors") for step in (16, 20)]
    for name, mean in load_file(output / "average/model.safetensors").items():
        assert torch.equal(mean, ((each[0][name].double() + each[1][name].double()) / 2).float())
    # The last three of five, and the best one if it is another.
    kept = sorted(int(folder.name.split("-")[1]) for folder in output.glob("checkpoints/checkpoint-*"))
    assert kept[-3:] == [12, 16, 20]
    more, listed = len(kept) + 1, ", ".join(map(str, kept))
    with pytest.raises(UserError, match=f"checkpoints.average is {more}, but this run has kept {len(kept)}: {listed}"):
        run(recipe, data, output, settings=[f"checkpoints.average={more}", f"checkpoints.keep={more}"])
    assert "is finished" in run(recipe, data, output, settings=["checkpoints.average=2", "checkpoints.keep=4"])


def test_more_steps(data, tmp_path):
    """Continued it ends with the weights of one trained so long from the start, though its schedule hears of losses."""
    schedule = {"name": "newbob", "warmup": 3}
    recipe = write_recipe(tmp_path / "r.yaml", scores=False, schedule=schedule, budget={"steps": 8})
    run(recipe, data, tmp_path / "run")
    text = run(recipe, data, tmp_path / "run", settings=["budget.steps=16"])
    assert "changed since the last start: budget.steps" in text
    assert "going on from" in text
    run(recipe, data, tmp_path / "fresh", settings=["budget.steps=16"])
    assert same_weights(tmp_path / "run", tmp_path / "fresh")
    assert results(tmp_path / "run")["budget"]["steps"] == 16
    with pytest.raises(UserError, match="16 steps are done, and the budget is now 12"):
        run(recipe, data, tmp_path / "run", settings=["budget.steps=12"])
    assert "is finished" in run(recipe, data, tmp_path / "run", settings=["budget.steps=16"])


def test_a_cosine_cannot_be_continued(finished, data):
    output, recipe = finished
    with pytest.raises(UserError, match=r"budget.steps: 20 -> 40\n.*schedule cosine comes down to its end"):
        run(recipe, data, output, settings=["budget.steps=40"])


def test_more_patience(data, tmp_path):
    evaluation = {"every": 4, "metrics": ["bleu"], "best": "bleu", "patience": 2}
    asked = {"optimizer": {"learning_rate": 1e-9}, "evaluation": evaluation, "data": {"test": {}}}
    recipe = write_recipe(tmp_path / "r.yaml", **asked)
    run(recipe, data, tmp_path / "run")
    assert results(tmp_path / "run")["budget"]["steps"] == 12
    run(recipe, data, killed(tmp_path / "run", tmp_path / "again"))  # it stays ended
    assert results(tmp_path / "again")["budget"]["steps"] == 12
    with pytest.raises(UserError, match=r"evaluation.patience: 2 -> 1"):
        run(recipe, data, tmp_path / "run", settings=["evaluation.patience=1"])
    run(recipe, data, tmp_path / "run", settings=["evaluation.patience=3"])
    assert results(tmp_path / "run")["budget"]["steps"] == 16


@pytest.mark.parametrize("dry_run", [False, True])
def test_conflicts_are_shown_key_by_key(finished, data, dry_run):
    output, recipe = finished
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    settings = ["seed=2", "model.settings.d_model=32", "data.train.files.source=val.en", "decoding.beams=3"]
    settings += ["data.train.files.target=val.de"]
    with pytest.raises(UserError) as caught:
        run(recipe, data, output, settings=settings, dry_run=dry_run)
    lines = str(caught.value).splitlines()
    assert lines[1:4] == [
        "  data.train: {'files': {'source': 'train.en', 'target': 'train.de'}} -> "
        "{'files': {'source': 'val.en', 'target': 'val.de'}}",
        "  model.settings.d_model: 16 -> 32",
        "  seed: 1 -> 2",
    ]
    assert "decoding" not in " ".join(lines[1:4])
    assert before == {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}


def test_a_key_that_was_not_known_then_has_its_default(finished, data):
    """recipe.yaml of an older version lacks it."""
    output, recipe = finished
    kept = yaml.safe_load((output / "recipe.yaml").read_text())
    del kept["precision"], kept["data"]["bpe_dropout"]
    (output / "recipe.yaml").write_text(yaml.safe_dump(kept))
    assert "is finished" in run(recipe, data, output)
    (output / "recipe.yaml").write_text(yaml.safe_dump({**kept, "unheard_of": 1}))
    with pytest.raises(UserError, match=r"unheard_of: unknown key(.|\n)*another version's training"):
        run(recipe, data, output)


def test_without_checkpoints_a_finished_run_stays_as_it_is(finished, data):
    output, recipe = finished
    shutil.rmtree(output / "checkpoints")
    assert "is finished" in run(recipe, data, output)
    with pytest.raises(UserError, match=r"decoding.beams cannot be changed: .*checkpoints are gone"):
        run(recipe, data, output, settings=["decoding.beams=3"])


def test_an_amendment_that_was_interrupted(finished, data, tmp_path, monkeypatch):
    """Between the new models and their scores; the same command goes on."""
    output, recipe = finished

    def kill(*_, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hf_mlnmt.training.run.score_protocols", kill)
        with pytest.raises(KeyboardInterrupt):
            run(recipe, data, output, settings=["decoding.beams=3"])
    assert not (output / "results.json").exists()
    before = times(output)
    run(recipe, data, output, settings=["decoding.beams=3"])
    assert "best/model.safetensors" not in written_again(output, before)
    assert results(output)["decoding"]["beams"] == results(output, "best")["decoding"]["beams"] == 3
