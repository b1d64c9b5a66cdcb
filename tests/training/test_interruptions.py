"""No interruption changes the weights of a training (kills, signals, damage); what cannot be continued is refused."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import typer
from helpers import fresh
from helpers.tiny_run import killed, run, same_weights, write_recipe
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli.train import train
from hf_mlnmt.common import matmul_backends
from hf_mlnmt.training.callbacks import SIGNALS, Interrupted, ShowProgress
from hf_mlnmt.training.dev import DevSet

pytestmark = pytest.mark.usefixtures("one_thread")


def start(recipe: Path, data: Path, output: Path) -> fresh.Popen:
    """The same run by the command line, in another process."""
    code = "import typer; from hf_mlnmt.cli.train import train; typer.run(train)"
    command = [sys.executable, "-c", code, recipe, "--data", data, "--output", output]
    return fresh.Popen(command, stderr=fresh.PIPE, stdout=fresh.DEVNULL, level="package")


def wait_for(path: Path, process: fresh.Popen, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.005)


def test_killed_and_started_again_it_ends_with_the_same_weights(plain, data, tmp_path):
    """kill -9 once at a checkpoint and once anywhere; then it runs to its end."""
    folder, recipe = plain
    output = tmp_path / "run"
    process = start(recipe, data, output)
    wait_for(output / "checkpoints" / "checkpoint-8", process)
    process.kill()
    process.wait()
    assert not (output / "average").exists()
    process = start(recipe, data, output)
    time.sleep(random.uniform(0.1, 2))
    process.kill()
    process.wait()
    run(recipe, data, output)
    assert same_weights(folder, output)
    assert not list(output.rglob("*.part"))


@pytest.mark.parametrize("stage", ["tokenizer", "data", "best"])
def test_interrupted_between_the_stages(plain, data, tmp_path, stage):
    """What later stages left is taken away: the state after a kill at the end of an earlier one."""
    folder, recipe = plain
    output = shutil.copytree(folder, tmp_path / "run")
    later = {
        "tokenizer": ["data", "checkpoints", "best", "average", "results.json"],
        "data": ["checkpoints", "best", "average", "results.json"],
        "best": ["average", "results.json"],
    }[stage]
    for name in later:
        shutil.rmtree(output / name) if (output / name).is_dir() else (output / name).unlink()
    run(recipe, data, output)
    assert same_weights(folder, output)


def test_a_corrupted_checkpoint_is_passed_over_and_told(plain, data, tmp_path):
    folder, recipe = plain
    output = killed(folder, tmp_path / "run", 20)
    weights = output / "checkpoints" / "checkpoint-16" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    text = run(recipe, data, output)
    assert "checkpoint-16: model.safetensors is missing or not as it was written" in text
    assert "going on from" in text
    assert "checkpoint-12" in text
    assert same_weights(folder, output)


@pytest.mark.parametrize("began", [["training"], None])
def test_a_run_goes_on_with_the_products_it_began_with(began, plain, data, tmp_path, monkeypatch):
    """Whatever is faster here, and another processor is told; one that began on a GPU has PyTorch's alone."""
    folder, recipe = plain
    output = killed(folder, tmp_path / "run", 20)
    path, found = output / "products.json", set()
    assert json.loads(path.read_text()) == matmul_backends.record()
    path.unlink()
    if began is not None:
        path.write_text(json.dumps({**matmul_backends.record(), "processor": "a 6502", "onednn": began}))
    show = ShowProgress.on_step_end
    monkeypatch.setattr(
        ShowProgress,
        "on_step_end",
        lambda *given, **more: [found.add(matmul_backends.chosen()), show(*given, **more)][1],
    )
    monkeypatch.delenv(matmul_backends.VARIABLE, raising=False)
    text = run(recipe, data, output)
    assert found == {frozenset(began or ())}
    assert ("processor a 6502 -> " in text) == (began is not None)
    assert "going on from" in text


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_leaves(plain, data, tmp_path, monkeypatch, signum):
    folder, recipe = plain
    output = tmp_path / "run"
    show = ShowProgress.on_step_end

    def and_signal(self, args, state, control, **kwargs):
        if state.global_step == 6:
            signal.raise_signal(signum)
        show(self, args, state, control, **kwargs)

    handlers = [signal.getsignal(number) for number in SIGNALS]
    with monkeypatch.context() as patch:
        patch.setattr(ShowProgress, "on_step_end", and_signal)
        app = typer.Typer()
        app.command()(train)
        result = CliRunner().invoke(app, [str(recipe), "--data", str(data), "--output", str(output)])
    assert result.exit_code == 128 + signum
    assert f"{signal.Signals(signum).name}: stopped at step 6; the state is saved" in result.output
    assert handlers == [signal.getsignal(number) for number in SIGNALS]
    assert "going on from" in run(recipe, data, output)
    assert same_weights(folder, output)


def test_a_signal_in_an_evaluation_saves_after_the_next_step(plain, data, tmp_path, monkeypatch):
    folder, recipe = plain
    output, evaluate = tmp_path / "run", DevSet.evaluate

    def and_signal(self, *given, **more):
        if (output / "checkpoints" / "checkpoint-4").exists():
            signal.raise_signal(signal.SIGTERM)
        return evaluate(self, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(DevSet, "evaluate", and_signal)
        with pytest.raises(Interrupted, match="SIGTERM: stopped at step 9; the state is saved"):
            run(recipe, data, output)
    run(recipe, data, output)
    assert same_weights(folder, output)


def test_the_signal_of_a_scheduler_is_one_of_them():
    assert getattr(signal, "SIGUSR1", signal.SIGTERM) in SIGNALS


def test_two_runs_in_one_folder_are_refused(data, tmp_path):
    fcntl = pytest.importorskip("fcntl")

    recipe = write_recipe(tmp_path / "recipe.yaml")
    output = tmp_path / "run"
    output.mkdir()
    with (output / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another training is running"):
            run(recipe, data, output)


def test_changed_data_is_refused(plain, data, tmp_path):
    folder, recipe = plain
    output = shutil.copytree(folder, tmp_path / "run")
    (output / "results.json").unlink()
    other = shutil.copytree(data, tmp_path / "data")
    with (other / "train.en").open("a") as source, (other / "train.de").open("a") as target:
        source.write("ba\n")
        target.write("baab.\n")
    with pytest.raises(UserError, match="the tokenizer, or how they are read, changed"):
        run(recipe, other, output)


def test_a_step_of_other_batches_is_refused(plain, data, tmp_path):
    folder, recipe = plain
    output = shutil.copytree(folder, tmp_path / "run")
    (output / "results.json").unlink()
    with pytest.raises(UserError, match=r"sees 1 batches, and batch.accumulate: 2 with 1 process\(es\) makes 2"):
        run(recipe, data, output, settings=["batch.accumulate=2"])
