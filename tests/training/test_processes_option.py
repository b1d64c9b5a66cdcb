"""`hf-mlnmt train --processes 2`: the command starts itself as two processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import fresh
from helpers.processes import two_processes
from helpers.tiny_run import write_corpus, write_recipe

from hf_mlnmt import UserError
from hf_mlnmt.cli.processes import (
    LOST,
    PARENT,
    _explain,
    _first_failed,
    _wait,
    check_processes,
    end_with_parent,
    lost_the_others,
)


def test_far_more_processes_than_cores_are_a_slip_of_the_hand():
    check_processes(2, "--processes")
    with pytest.raises(UserError, match=r"-p: 100000 processes, and this machine has \d+ cores"):
        check_processes(100_000, "-p")


def test_two_processes_train_one_model_and_go_on(tmp_path):
    data, recipe = write_corpus(tmp_path / "data"), tmp_path / "recipe.yaml"
    write_recipe(recipe, schedule={"name": "inverse_sqrt", "warmup": 3})
    arguments = ["train", str(recipe), "--data", str(data), "--output", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def start(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hf_mlnmt", *arguments, "--processes", "2", *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)

    def check(steps: int) -> None:
        results = json.loads((tmp_path / "run" / "results.json").read_text())
        assert (results["budget"]["processes"], results["budget"]["steps"]) == (2, steps)

    missing = start("--set", "bugdet.steps=4")
    assert missing.returncode != 0
    assert "did you mean 'budget'" in missing.stderr
    done = start("--set", "budget.steps=4")
    assert done.returncode == 0, done.stderr[-3000:]
    check(4)
    # as its two processes do, but forks, which need not import anything
    (tmp_path / "main.py").write_text("from hf_mlnmt.cli import main; main()")
    two_processes(str(tmp_path / "main.py"), *arguments, "--set", "budget.steps=8")
    check(8)
    optimizer = torch.load(tmp_path / "run/checkpoints/checkpoint-8/optimizer.pt", weights_only=True)
    assert {int(state["step"]) for state in optimizer["state"].values()} == {8}


@pytest.fixture
def endless(tmp_path):
    """The command, training on two processes without an end in sight; its process, and those of both ranks."""
    data, recipe = write_corpus(tmp_path / "data"), tmp_path / "recipe.yaml"
    write_recipe(recipe, budget={"steps": 10**6}, evaluation={"every": 10}, logging={"every": 10})
    command = [sys.executable, "-c", fresh.FORKING, fresh.COMMAND, "train", recipe, "--data", data, "--processes", 2]
    with (tmp_path / "log").open("w") as log:
        main = fresh.Popen([*command, "--output", tmp_path / "run"], stderr=log, stdout=log, level="package")
    end = time.monotonic() + 200
    while not (tmp_path / "run" / "checkpoints" / "checkpoint-10").exists():
        assert main.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < end
        time.sleep(0.05)
    by_rank = sorted(children_of(main.pid), key=lambda pid: fresh.environment_of(pid)["RANK"])
    yield main, by_rank, tmp_path / "log"
    for pid in (main.pid, *by_rank):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    main.wait()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    """Ended, or a zombie that nobody has asked after."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds child processes in /proc")


@linux
def test_the_processes_end_with_a_command_that_is_killed(endless):
    main, ranks, log = endless
    main.kill()
    main.wait()
    end = time.monotonic() + 60
    while not all(map(gone, ranks)):
        assert time.monotonic() < end, log.read_text()[-2000:]
        time.sleep(0.1)
    assert "SIGTERM: stopped at step" in log.read_text()
    assert "Traceback" not in log.read_text()


@linux
def test_a_process_that_is_killed_is_one_message(endless):
    main, ranks, log = endless
    before = log.read_text()
    os.kill(ranks[1], signal.SIGKILL)
    assert main.wait(timeout=200) == 128 + signal.SIGKILL
    assert all(map(gone, ranks))
    said = log.read_text().removeprefix(before).splitlines()
    errors = [line for line in said if not line.startswith(("step ", "  source ", "  reference ", "  output "))]
    assert len(errors) == 1, errors
    assert errors[0].startswith("error: process 1 of 2 was ended by SIGKILL, and the others with it.")


@pytest.mark.parametrize(
    ("code", "said"), [(-signal.SIGABRT, ["SIGABRT", "terminate called"]), (-signal.SIGKILL, ["SIGKILL"]), (1, [])]
)
def test_the_log_of_a_process_that_ended_by_itself_is_shown(code, said, tmp_path, capsys):
    """It says why; one that was told to end says nothing of use."""
    log = tmp_path / "log"
    log.write_text("step 4\nterminate called after throwing an instance of 'gloo::EnforceNotMet'\n")
    _explain(1, [SimpleNamespace(returncode=each) for each in (0, code)], log)
    printed = capsys.readouterr().err
    assert all(word in printed for word in said)
    assert ("terminate called" in printed) is (code != -signal.SIGKILL)


@pytest.mark.parametrize(
    ("codes", "failed"),
    [([0, 1], 1), ([LOST, 1], 1), ([1, LOST], 0), ([LOST, -9], 1), ([1, -9], 1), ([143, 143], 0), ([LOST, LOST], 0)],
)
def test_who_is_to_blame(codes, failed):
    class Ended:
        def __init__(self, code):
            self.returncode = code

    assert _first_failed([Ended(code) for code in codes]) == failed


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


def test_a_process_that_dies_before_the_first_one_knows_of_it():
    """Rank 0 still runs, and does not learn of the others' end by itself: before they have met, for half an hour."""
    commands = ["exec sleep 60", "kill -KILL $$"]
    processes = [subprocess.Popen(["sh", "-c", command]) for command in commands]
    start = time.monotonic()
    try:
        assert _wait(processes) == 1
    finally:
        processes[0].kill()
    assert time.monotonic() - start < 20
    assert [process.returncode for process in processes] == [-signal.SIGTERM, -signal.SIGKILL]
