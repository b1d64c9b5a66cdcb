"""`hf-mlnmt train` and `average` from the command line."""

from __future__ import annotations

import pytest
import torch
import typer
from helpers.tiny_run import write_corpus, write_recipe
from helpers.training_helpers import tiny_model
from safetensors.torch import load_file
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli.model import average
from hf_mlnmt.cli.train import train
from hf_mlnmt.training import average_checkpoints
from hf_mlnmt.training.callbacks import Interrupted

app = typer.Typer()
app.command()(train)
app.command()(average)


def call(*arguments: object, ok: bool = True):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if ok:
        assert result.exit_code == 0, result.output
    return result


def test_help_names_every_option():
    for verb in ("train", "average"):
        text = call(verb, "--help").output
        assert "--output" in text
    for option in ("--data", "--set", "--seed", "--dry-run"):
        assert option in call("train", "--help").output


def test_train_with_settings_then_average(tmp_path):
    data, recipe = write_corpus(tmp_path / "data"), write_recipe(tmp_path / "recipe.yaml", scores=False)
    output = tmp_path / "run"
    call("train", recipe, "--data", data, "--output", output, "--set", "budget.steps=8", "--seed", 4)
    assert '"seed": 4' in (output / "results.json").read_text()
    call("average", output, "--last", 2, "--output", tmp_path / "two")
    expected = average_checkpoints([output / "checkpoints" / f"checkpoint-{step}" for step in (4, 8)])
    found = load_file(tmp_path / "two" / "model.safetensors")
    assert all((found[name] == tensor).all() for name, tensor in expected.items())
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (tmp_path / "two" / name).is_file()


def test_average_does_not_overwrite(tmp_path):
    model = tmp_path / "model"
    tiny_model().save_pretrained(model)
    result = call("average", model, "--output", model, ok=False)
    assert isinstance(result.exception, UserError)
    assert "is there already" in str(result.exception)
    with pytest.raises(UserError, match="not several folders"):
        raise call("average", model, model, "--last", 2, "--output", tmp_path / "x", ok=False).exception


def test_a_recipe_with_rounds_is_trained_by_the_same_verb(tmp_path):
    recipe = write_recipe(tmp_path / "recipe.yaml", rounds={"back": {"reverse": True}, "forth": {}})
    data = write_corpus(tmp_path / "data")
    said = call("train", recipe, "--data", data, "--output", tmp_path / "out", "--set", "budget.steps=8", "--dry-run")
    assert "round back: de-en" in said.stderr
    assert said.stderr.index("round back: de-en") < said.stderr.index("round forth: en-de")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("end", "code", "left_open"),
    [(None, 0, False), (Interrupted(15, "stopped"), 143, False), (UserError("others wait"), 1, True)],
)
def test_the_group_of_processes_is_closed_unless_others_may_wait_in_it(tmp_path, monkeypatch, end, code, left_open):
    def run_recipe(*_, **__):
        if end is not None:
            raise end

    monkeypatch.setattr("hf_mlnmt.training.run_recipe", run_recipe)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        assert call("train", write_recipe(tmp_path / "recipe.yaml"), ok=False).exit_code == code
        assert torch.distributed.is_initialized() == left_open
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def test_wrong_key_is_an_error_with_the_right_one(tmp_path):
    recipe = write_recipe(tmp_path / "recipe.yaml")
    result = call("train", recipe, "--set", "batch.token=3", ok=False)
    assert "did you mean 'tokens'" in str(result.exception)
