"""`hf-mlnmt train --processes 2`: the command starts itself as two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from helpers import fresh
from helpers.processes import two_processes
from helpers.tiny_run import write_corpus, write_recipe

from hf_mlnmt import UserError
from hf_mlnmt.cli.processes import (
    LOST,
    PARENT,
    SIGNALS,
    TO_SAVE,
    check_processes,
    end_with_parent,
    lost_the_others,
    run_in_processes,
)
from hf_mlnmt.cli.train import _asking
from hf_mlnmt.training import checkpoints


def test_far_more_processes_than_cores_are_a_slip_of_the_hand(monkeypatch):
    check_processes(2, "--processes")
    with pytest.raises(UserError, match=r"-p: 100000 processes, and this machine has \d+ cores"):
        check_processes(100_000, "-p")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(UserError, match="-p: srun has started 4 processes, which train together"):
        check_processes(2, "-p")


def test_two_processes_train_one_model_and_go_on(tmp_path):
    """Until Slurm's signal before the end of a job's time comes, which they answer with the code that is asked for."""
    data, recipe, run = write_corpus(tmp_path / "data"), tmp_path / "recipe.yaml", tmp_path / "run"
    write_recipe(recipe, schedule={"name": "inverse_sqrt", "warmup": 3}, budget={"steps": 10**6})
    arguments = ["train", str(recipe), "--data", str(data), "--output", str(run), "--requeue-code", "75"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", fresh.FORKING, fresh.COMMAND, *arguments, "--processes", "2"]
    process = fresh.Popen(command, environment, stderr=subprocess.PIPE, level="package")
    end = time.monotonic() + 200
    while not (run / "checkpoints" / "checkpoint-4").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    said = process.communicate(timeout=100)[1]
    assert process.returncode == 75, said
    step = checkpoints.step_of(checkpoints.checkpoints(run / "checkpoints")[-1])
    assert f"SIGUSR1: stopped at step {step}; the state is saved" in said
    assert "Traceback" not in said
    # as its two processes do, but forks, which need not import anything
    (tmp_path / "main.py").write_text("from hf_mlnmt.cli import main; main()")
    two_processes(str(tmp_path / "main.py"), *arguments, "--set", f"budget.steps={step + 4}")
    results = json.loads((run / "results.json").read_text())
    assert (results["budget"]["processes"], results["budget"]["steps"]) == (2, step + 4)
    optimizer = torch.load(run / f"checkpoints/checkpoint-{step + 4}/optimizer.pt", weights_only=True)
    assert {int(state["step"]) for state in optimizer["state"].values()} == {step + 4}


def test_exit_codes_that_ask_for_another_start():
    assert [_asking(75, code) for code in (0, 1, 130, 137, 128 + signal.SIGTERM, 138)] == [0, 1, 130, 137, 75, 75]
    assert [_asking(None, code) for code in (0, 143)] == [0, 143]


@pytest.fixture
def start_two(tmp_path, monkeypatch):
    """Starts two processes of a shell script, which finds its RANK and the file \"began\", in hf-mlnmt's place."""

    def start(script: str) -> int:
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        return run_in_processes(2, ["train"])

    for name in ("OMP_NUM_THREADS", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "TORCHELASTIC_SIGNALS_TO_HANDLE", PARENT):
        monkeypatch.setenv(name, "1")  # and put back
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(TO_SAVE))
    return start


def test_processes_find_one_another_and_only_the_first_one_speaks(start_two, capfd, tmp_path):
    script = 'echo "$RANK of $WORLD_SIZE at $MASTER_ADDR, $1 $2 $3" | tee said$RANK'
    assert start_two(script) == 0
    assert capfd.readouterr().out == "0 of 2 at 127.0.0.1, -m hf_mlnmt train\n"
    assert (tmp_path / "said1").read_text() == "1 of 2 at 127.0.0.1, -m hf_mlnmt train\n"


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGINT])
def test_a_signal_reaches_all_and_is_the_exit_code(start_two, tmp_path, capfd, signum):
    """However long they take to save: a process that is told to end is not killed after torchrun's 30 seconds."""
    handlers = [signal.getsignal(number) for number in SIGNALS]
    script = (
        f"trap 'sleep 0.2; echo saved > saved$RANK; exit 1' {signum}; touch began$RANK; while :; do sleep 0.05; done"
    )

    def send() -> None:
        while len(list(tmp_path.glob("began*"))) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signum)

    threading.Thread(target=send).start()
    assert start_two(script) == 128 + signum
    assert len(list(tmp_path.glob("saved*"))) == 2
    assert "torch" not in capfd.readouterr().err
    assert handlers == [signal.getsignal(number) for number in SIGNALS]
    assert TO_SAVE > 3600


LOSES = f"sleep 0.5; exit {LOST}"
FAILS = "echo 'error: no such file' >&2; exit 1"
FAILS_LATE = "echo error: disk full >&2; exit 1"


@pytest.mark.parametrize(
    ("ranks", "code", "said"),
    [
        (
            ("exec sleep 60", "kill -KILL $$"),
            137,
            "error: process 1 of 2 was ended by SIGKILL, and the others with it. The",
        ),
        (("exec sleep 60", FAILS), 1, "error: no such file"),
        ((LOSES, f"trap '{{ {FAILS_LATE}; }}' TERM; sleep 60 & wait"), 1, "error: disk full"),
        ((LOSES, LOSES), LOST, "lost the connection to the others, and none of them said why."),
        ((LOSES, "exec sleep 60"), LOST, "lost the connection to the others, and none of them said why."),
        (("exit 143", "exit 143"), 143, ""),
    ],
)
def test_of_processes_that_fail_the_first_is_one_message(start_two, capfd, ranks, code, said):
    first, second = ranks
    assert start_two(f"if [ $RANK = 0 ]; then {first}; else {second}; fi") == code
    printed = capfd.readouterr().err
    assert said in printed
    assert printed.count("error:") == bool(said)


def test_a_process_ends_with_its_starter(tmp_path):
    """However that ends; it has time to save its state, as by SIGTERM."""
    child = "import sys, time; from hf_mlnmt.cli.processes import end_with_parent; assert end_with_parent()\n"
    child += "print('ready', flush=True); time.sleep(60)"
    parent = "import os, subprocess, sys; from hf_mlnmt.cli.processes import PARENT\n"
    parent += f"command = [sys.executable, '-c', {child!r}]\n"
    parent += "subprocess.Popen(command, env={**os.environ, PARENT: str(os.getpid())}).wait()"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.kill()
    assert process.stdout.read() == "", "the end of a pipe that the child has held open"
    process.wait()


def test_errors_that_only_say_that_another_is_gone():
    gloo = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:42"
    assert lost_the_others(RuntimeError(gloo))
    assert not lost_the_others(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not lost_the_others(ValueError(gloo))


def test_a_command_without_such_a_parent_watches_nothing(monkeypatch):
    monkeypatch.delenv(PARENT, raising=False)
    before = threading.active_count()
    assert not end_with_parent()
    assert threading.active_count() == before
