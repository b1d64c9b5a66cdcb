"""Two processes by `accelerate launch` on the CPU do what one process does with two accumulated batches."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from types import SimpleNamespace

import pytest
import yaml
from helpers.docs import ROOT, blocks
from helpers.processes import launch, two_processes
from helpers.tiny_run import run, same_weights, write_corpus, write_recipe

from hf_mlnmt.training import checkpoints, processes

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def two(tmp_path_factory, one_thread) -> SimpleNamespace:
    """Four steps by two processes, and eight by one that accumulates two batches; no dropout, which each draws."""
    folder = tmp_path_factory.mktemp("two")
    data, recipe = write_corpus(folder / "data"), folder / "recipe.yaml"
    write_recipe(recipe, budget={"steps": 4}, logging={"every": 1}, schedule={"name": "inverse_sqrt", "warmup": 3})
    content = yaml.safe_load(recipe.read_text())
    content["model"]["settings"]["dropout"] = 0.0
    recipe.write_text(yaml.safe_dump(content))
    (folder / "main.py").write_text("from hf_mlnmt.cli import main; main()")
    command = [str(folder / "main.py"), "train", str(recipe), "--data", str(data), "--output"]
    two_processes(*command, str(folder / "two"))
    run(recipe, data, folder / "one", settings=["batch.accumulate=2", "budget.steps=8"])
    return SimpleNamespace(two=folder / "two", one=folder / "one", recipe=recipe, data=data, command=command)


def test_two_processes_equal_two_accumulated_batches(two):
    states = [checkpoints.read_state(folder / "checkpoints" / "checkpoint-4") for folder in (two.two, two.one)]
    assert [state["meter"]["processes"] for state in states] == [2, 1]
    assert states[0]["meter"]["tokens"] == states[1]["meter"]["tokens"]
    assert len(states[0]["log_history"]) == 5
    names = {"loss", "eval_loss", "eval_bleu", "learning_rate"}
    histories = [
        [{name: entry[name] for name in names & entry.keys()} for entry in state["log_history"]] for state in states
    ]
    for entry, other in zip(*histories, strict=True):
        assert entry == pytest.approx(other, rel=1e-6)
    weights = [folder / "checkpoints" / "checkpoint-4" / "model.safetensors" for folder in (two.two, two.one)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    rng = {path.name for path in (two.two / "checkpoints" / "checkpoint-4").glob("rng*")}
    assert rng == {"rng_state_0.pth", "rng_state_1.pth"}


@pytest.mark.parametrize("settings", [[], ["batch.accumulate=2"]])
def test_one_process_goes_on_to_the_same_bytes(two, tmp_path, settings, monkeypatch):
    """It accumulates the two batches of a step, told to or not; at the same place, too, where a step has three."""
    output = shutil.copytree(two.two, tmp_path / "run")
    said = run(two.recipe, two.data, output, settings=[*settings, "budget.steps=8"])
    assert (
        "made by 2 process(es), now there are 1. The data go on at the same place; a step sees the same batches" in said
    )
    assert same_weights(two.one, output)
    monkeypatch.setattr("hf_mlnmt.training.run.accumulated", lambda *asked: 3)
    run(two.recipe, two.data, output, settings=[*settings, "budget.steps=12"])
    meter = checkpoints.read_state(output / "checkpoints" / "checkpoint-12")["meter"]
    assert (meter["group"], meter["batches"]) == (2, [8 * 2 + 4 * 3])


@pytest.mark.versions
def test_accelerate_launch_does_the_same(two, tmp_path):
    launch(*two.command, str(tmp_path / "run"))
    assert same_weights(two.two, tmp_path / "run")


APART = """
import os, sys
from hf_mlnmt.cli import main

sys.argv[sys.argv.index("--output") + 1] += os.environ["RANK"]
main()
"""


@pytest.mark.parametrize("what", ["recipe", "pair"])
def test_machines_without_a_common_folder_train_nothing(tmp_path, what):
    """Two processes, each with an output folder of its own."""
    data, script = write_corpus(tmp_path / "data", {"train": 300, "val": 10, "test": 10}), tmp_path / "apart.py"
    script.write_text(APART)
    asked = [str(write_recipe(tmp_path / "recipe.yaml"))] if what == "recipe" else ["--pair", "train.en", "train.de"]
    arguments = [str(script), "train", *asked, "--data", str(data), "--output", str(tmp_path / "run")]
    for said in two_processes(*arguments, code=1):
        assert f"error: process 1 on {socket.gethostname()}: {tmp_path}/run1/{what}" in said
        assert "the first process has it, this one not. Put --output on a disk that all machines mount" in said
        assert "Traceback" not in said
    assert not list(tmp_path.glob("run*/checkpoints"))
    assert not (tmp_path / "run1" / "data").exists()


LONG = """
import signal, socket, sys, time
from datetime import timedelta
from pathlib import Path

import torch

from hf_mlnmt import UserError
from hf_mlnmt.training.processes import check_same, join_group, largest, main_first, meet, of_all, of_main, together


def message(block):
    try:
        block()
    except UserError as error:
        return str(error)


def fail_on(rank):
    with together():
        if rank == state.process_index:
            raise UserError(f"no file on {rank}")


def make_in_turn(path):
    with main_first():
        path.write_text(path.read_text() + str(state.process_index) if path.exists() else "0")


state = join_group(300)
timeout = torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout
assert timeout == timedelta(seconds=300)
torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=1), torch.distributed.group.WORLD)
heard = []
signal.signal(signal.SIGALRM, lambda *_: heard.append(time.monotonic()))
meet()
signal.setitimer(signal.ITIMER_REAL, 0.2)
with main_first():
    if state.is_main_process:
        time.sleep(2)
over = of_main(time.monotonic())
assert heard[0] < over - 1, "a signal is heard while others are waited for"
assert of_main(state.process_index) == 0
assert of_all(state.process_index) == [0, 1]
assert largest(state.process_index * 15) == 15
assert message(lambda: fail_on(0)) == "no file on 0"
assert message(lambda: fail_on(1)) == f"process 1 on {socket.gethostname()}: no file on 1"
assert message(lambda: fail_on(2)) is None
versions = {"torch": "2.11", "transformers": f"5.{20 + state.process_index}"}
one = f"process 1 on {socket.gethostname()} has "
assert f"{one}transformers 5.21, and the first one 5.20" in message(lambda: check_same(versions))
keys = {"recipe: seed": "1", f"recipe: of {state.process_index}": "5"}
assert f"{one}recipe: of 0 None, and the first one 5" in message(lambda: check_same(keys))
make_in_turn(Path(sys.argv[1]))
assert Path(sys.argv[1]).read_text() == "01"
state.destroy_process_group()
"""


def test_processes_agree_however_long_it_takes(tmp_path):
    """Longer than the group waits for a step; signals are heard meanwhile."""
    (tmp_path / "long.py").write_text(LONG)
    two_processes(str(tmp_path / "long.py"), str(tmp_path / "made"))


SRUN = {
    "JOB_ID": 4_000_007,
    "STEP_ID": 1,
    "STEP_NUM_TASKS": 8,
    "PROCID": 5,
    "LOCALID": 1,
    "STEP_TASKS_PER_NODE": "4(x2)",
}


@pytest.mark.parametrize(
    ("nodes", "first"), [("gpu[07-09,12],login1", "gpu07"), ("n1,n2", "n1"), ("a[3,5]b[2-4]", "a3b2"), ("lone", "lone")]
)
def test_srun_alone_starts_a_group(monkeypatch, nodes, first):
    """By the variables that srun gives each task."""
    for name, value in {**SRUN, "STEP_NODELIST": nodes}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    theirs = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "")
    for name in (*theirs, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(os, "environ", os.environ.copy())
    processes._take_place_in_slurm()
    found = {name: os.environ[name] for name in theirs}
    numbers = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_PORT": "15008"}
    assert found == {**numbers, "MASTER_ADDR": first}


@pytest.mark.parametrize("change", [{"SLURM_STEP_NUM_TASKS": "1"}, {"RANK": "3"}, {"SLURM_STEP_NUM_TASKS": None}])
def test_the_script_of_a_job_and_a_launcher_in_it_are_left_alone(monkeypatch, change):
    """A script has the job's number of tasks, but is one process; torchrun's processes inherit what srun gave it."""
    given = {f"SLURM_{name}": str(value) for name, value in SRUN.items()} | {"SLURM_NTASKS": "8"} | change
    environment = {name: value for name, value in given.items() if value is not None}
    monkeypatch.setattr(os, "environ", dict(environment))
    processes._take_place_in_slurm()
    assert os.environ == environment


PROGRAMS = {
    "srun": """trap 'kill -USR1 $one $two' USR1
"$@" & one=$!; "$@" & two=$!
wait $one; code=$?; [ $code -gt 128 ] && { wait $one; code=$?; }; wait $two; exit $code""",
    "hf-mlnmt": """trap 'sleep 0.2; exit 75' USR1; touch begun$$
[ -z $FINAL ] || exit $FINAL; while :; do sleep 0.05; done""",
    "scontrol": 'echo "$@" >> requeued',
}


@pytest.mark.parametrize("final", ["", "0", "75", "137"])
def test_the_script_for_slurm_asks_for_another_turn_after_the_signal_alone(tmp_path, final):
    """With programs in the place of Slurm's and of the training, which ends with `final`, or else by the signal."""
    bash = shutil.which("bash") or pytest.skip("no bash")
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!{bash}\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (script,) = (block.text for block in blocks(ROOT / "docs" / "scale.md", "sh"))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "FINAL": final}
    job = subprocess.Popen([bash, "-c", script], cwd=tmp_path, env=environment)
    while len(list(tmp_path.glob("begun*"))) < 2:
        time.sleep(0.02)
    if not final:
        job.send_signal(signal.SIGUSR1)
    assert job.wait(timeout=60) == int(final or 75)
    assert (tmp_path / "requeued").exists() == (not final)
    assert final or (tmp_path / "requeued").read_text() == "requeue 7\n"
