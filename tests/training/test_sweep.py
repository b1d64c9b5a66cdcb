"""Sweeps: which runs there are, the queue that trains them whatever happens, and what is made of their scores."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers import fresh
from helpers.tiny_run import write_corpus, write_recipe
from typer.testing import CliRunner

from hf_mlnmt.cli import app
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.training.sweep import Queue, duration, last_words, plan, read_values, state_of, write_table


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("2..8", [2, 3, 4, 5, 6, 7, 8]),
        ("-1..1", [-1, 0, 1]),
        ("1,4..6, 9", [1, 4, 5, 6, 9]),
        ("post,pre", ["post", "pre"]),
        ("[1],[1,2],null,true", [[1], [1, 2], None, True]),
        ("'a,b',{x: [1, 2]}", ["a,b", {"x": [1, 2]}]),
    ],
)
def test_values(text, values):
    found = read_values(text)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "no values"), ("8..2", "expected LOW..HIGH"), ("1..1000000", "at most 10,000"), ("[1", "not valid YAML")],
)
def test_wrong_values(text, message):
    with pytest.raises(UserError, match=message):
        read_values(text, "--over x")


@pytest.fixture
def recipe(tmp_path) -> Path:
    return write_recipe(tmp_path / "tiny.yaml")


DROPOUT, DEPTH = "model.settings.dropout=0.1,0.2", "model.settings.encoder_layers=1..2"


def test_the_runs_of_a_plan(recipe, tmp_path):
    """All keys with all, each with every seed; what a run replaces reads back as the very value."""
    other = write_recipe(tmp_path / "other.yaml")
    jobs = plan([recipe], [DROPOUT, DEPTH], [1, 2], ["batch.tokens=50"])
    assert [job.name for job in jobs][:3] == [
        "tiny.dropout-0.1.encoder_layers-1.seed1",
        "tiny.dropout-0.1.encoder_layers-1.seed2",
        "tiny.dropout-0.1.encoder_layers-2.seed1",
    ]
    assert len(jobs) == 8
    read = jobs[-1].recipe()
    assert (read.model.settings["dropout"], read.model.settings["encoder_layers"], read.seed) == (0.2, 2, 2)
    assert read.batch.tokens == 50
    small = plan([recipe], ["optimizer.learning_rate=1e-5"])[0].recipe()
    assert small.optimizer.learning_rate == 1e-5
    assert [job.name for job in plan([recipe, other], [], [3, 1])] == [
        "tiny.seed3", "tiny.seed1", "other.seed3", "other.seed1"
    ]  # fmt: skip
    assert [job.name for job in plan([recipe])] == ["tiny.seed1"]  # the recipe's own


def test_systems_of_a_setup():
    """Each by the recipe of that name in the setup, or as its base says; a job reads it again."""
    jobs = plan(["multi30k-ende", "wmt14-ende"], ["batch.tokens=50"], [3], systems=["m-10", "transformer-wide"])
    assert [job.name for job in jobs] == [
        f"{system}.{setup}.tokens-50.seed3"
        for setup in ("multi30k-ende", "wmt14-ende")
        for system in ("m-10", "transformer-wide")
    ]
    recipes = [job.recipe() for job in jobs]
    assert [recipe.model.system for recipe in recipes] == ["m-10", "transformer"] * 2
    assert [recipe.model.settings.get("encoder_ffn_dim") for recipe in recipes] == [None, 512, None, 4096]
    with pytest.raises(UserError, match=r"run m-10\.multi30k-ende\.seed1: is there twice"):
        plan(["multi30k-ende"], systems=["m-10", "m-10"])
    with pytest.raises(UserError, match="did you mean 'enc-dc'"):
        plan(["multi30k-ende"], systems=["m-10", "encdc"])


def test_mistakes_are_found_before_anything_begins(recipe):
    for over, message in [
        (["dropout"], "expected KEY=VALUES"),
        (["seed=1,2"], "--seeds"),
        ([DROPOUT, DROPOUT], "all values of a key at once"),
        (["bugdet.steps=1,2"], "did you mean 'budget'"),
    ]:
        with pytest.raises(UserError, match=message):
            plan([recipe], over)
    with pytest.raises(UserError, match="is there twice"):
        plan([recipe, recipe])
    with pytest.raises(UserError, match="no such file, and no setup"):
        plan(["nothing.yaml"])


# The queue, with programs in the trainings' place.

WORK = """
import json, pathlib, signal, sys, time
folder, what = pathlib.Path(sys.argv[1]), sys.argv[2]
def stop(*_):
    (folder / "state").write_text("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
folder.mkdir(parents=True, exist_ok=True)
(folder / "recipe.yaml").write_text(pathlib.Path(sys.argv[3]).read_text())
if what == "fail":
    print("reading data", "error: no such file: x", "look for it", sep="\\n")
    sys.exit(1)
(folder / "begun").write_text("")
if what == "kill":
    import os
    os.kill(os.getpid(), signal.SIGKILL)
end = time.monotonic() + (60 if what == "wait" else 0.2)
while time.monotonic() < end:
    time.sleep(0.01)
(folder / "results.json").write_text(sys.argv[4])
"""


class Trainings:
    """Starts a program for each job; `do` says what it does, by the run's name; remembers starts and their number."""

    def __init__(self, root: Path, do: dict[str, str] | None = None):
        self.root, self.do, self.started, self.most, self.processes = root, do or {}, [], 0, []

    def __call__(self, job, log: Path) -> subprocess.Popen:
        kept = self.root / f"{job.name}.yaml"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(job.recipe().to_yaml())
        arguments = [str(self.root / job.name), self.do.get(job.name, "work"), str(kept), "{}"]
        with log.open("ab") as file:
            process = subprocess.Popen([sys.executable, "-c", WORK, *arguments], stdout=file, stderr=file)
        self.processes = [each for each in self.processes if each.poll() is None] + [process]
        self.started.append(job.name)
        self.most = max(self.most, len(self.processes))
        return process


def kinds(states):
    return list(states.values())


@pytest.fixture
def jobs(recipe):
    return plan([recipe], [], [1, 2, 3, 4])


def test_all_are_trained_and_never_again(jobs, tmp_path):
    trainings, said = Trainings(tmp_path / "out"), []
    states = Queue(tmp_path / "out", trainings, 2, said.append).run(jobs)
    assert trainings.started == [job.name for job in jobs]
    assert trainings.most == 2
    assert kinds(states) == ["finished"] * 4
    assert "1/4 tiny.seed1: started" in said
    assert any(line.startswith("4/4 tiny.seed4: finished after ") for line in said)
    again = Trainings(tmp_path / "out")
    Queue(tmp_path / "out", again, 2, said.append).run(jobs)
    assert again.started == []


def test_one_that_fails_is_kept_and_the_rest_goes_on(jobs, tmp_path):
    root, said = tmp_path / "out", []
    trainings = Trainings(root, {"tiny.seed2": "fail", "tiny.seed3": "kill"})
    states = Queue(root, trainings, 1, said.append).run(jobs)
    assert kinds(states) == ["finished", "failed", "failed", "finished"]
    assert "2/4 tiny.seed2: failed: no such file: x\nlook for it" in said
    assert any("memory runs out" in line for line in said)
    mended = Trainings(root)
    assert kinds(Queue(root, mended, tell=said.append).run(jobs)) == ["finished"] * 4
    assert mended.started == ["tiny.seed2", "tiny.seed3"]
    assert "2/4 tiny.seed2: started again" in said


def test_a_signal_stops_in_order_and_the_next_call_goes_on(jobs, tmp_path):
    root, said = tmp_path / "out", []
    trainings = Trainings(root, {job.name: "wait" for job in jobs[1:]})

    def interrupt() -> None:
        begun = [root / name / "begun" for name in ("tiny.seed2", "tiny.seed3")]
        while not all(path.exists() for path in begun):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=interrupt, daemon=True).start()
    queue = Queue(root, trainings, 2, said.append)
    states = queue.run(jobs)
    assert queue.signum == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert kinds(states) == ["finished", "begun", "begun", "new"]
    assert all((root / name / "state").read_text() == "saved" for name in ("tiny.seed2", "tiny.seed3"))
    assert "2/4 tiny.seed2: stopped" in said
    after = Trainings(root)
    assert kinds(Queue(root, after, 2, said.append).run(jobs)) == ["finished"] * 4
    assert after.started == ["tiny.seed2", "tiny.seed3", "tiny.seed4"]


def test_trainings_end_with_an_error_of_ours(jobs, tmp_path):
    trainings = Trainings(tmp_path / "out", {job.name: "wait" for job in jobs})

    def tell(text) -> None:
        if text.startswith("2/4"):
            raise ValueError("full")

    with pytest.raises(ValueError, match="full"):
        Queue(tmp_path / "out", trainings, 2, tell).run(jobs)
    codes = [process.wait(timeout=200) for process in trainings.processes]
    assert len(codes) == 2
    assert set(codes) <= {143, -signal.SIGTERM}  # the latter before it could say what it does then


def test_a_folder_with_another_training_is_refused(recipe, tmp_path):
    jobs = plan([recipe], [], [1])
    Queue(tmp_path / "out", Trainings(tmp_path / "out"), tell=lambda text: None).run(jobs)
    other = plan([recipe], [], [1], ["optimizer.learning_rate=0.5"])
    with pytest.raises(UserError, match=r"optimizer.learning_rate: 0.01 -> 0.5"):
        state_of(tmp_path / "out", other[0])
    amended = plan([recipe], [], [1], ["decoding.beams=4"])  # train scores it again
    (tmp_path / "out" / jobs[0].name / "checkpoints" / "checkpoint-7").mkdir(parents=True)
    assert state_of(tmp_path / "out", amended[0]) == "begun"
    assert state_of(tmp_path / "out", jobs[0]) == "finished"


def test_durations():
    assert [duration(x) for x in (40, 720, 7500)] == ["40 s", "12 min", "2 h 5 min"]


def test_last_words(tmp_path):
    log = tmp_path / "log"
    assert last_words(log) == "its log is empty"
    log.write_text("error: old\nstep 1\n" + "\n".join(f"line {number}" for number in range(9)))
    assert last_words(log).startswith("old")
    log.write_text("\n".join(f"line {number}" for number in range(9)))
    assert last_words(log).splitlines() == ["line 4", "line 5", "line 6", "line 7", "line 8"]


# What is made of it.


def results(bleu: float, **more) -> str:
    scores = {"val": {"cased": {"BLEU": {"score": bleu, "signature": "x", "ci": None}}}}
    return json.dumps(
        {"schema": "hf_mlnmt.results/1", "system": "x", "parameters": 2_500_000, "scores": scores, **more}
    )


@pytest.fixture
def scored(recipe, tmp_path):
    """dropout 0.1: 10 and 13 BLEU; dropout 0.2: 20 and a failure."""
    root = tmp_path / "out"
    jobs = plan([recipe], [DROPOUT], [1, 2])
    for job, score in zip(jobs, (10.0, 13.0, 20.0)):
        (root / job.name).mkdir(parents=True)
        (root / job.name / "results.json").write_text(results(score))
    states = dict(zip((job.name for job in jobs), ["finished"] * 3 + ["failed"]))
    return write_table(root, jobs, states), root


def test_means_and_deviations(scored):
    """By hand: of 10 and 13 the mean is 11.5, the sample's deviation sqrt(2 * 1.5 ** 2) = 2.1213."""
    table, root = scored
    assert table.rows == [["tiny.dropout-0.1", "2 of 2", "11.50 ± 2.12"], ["tiny.dropout-0.2", "1 of 2", "20.00"]]
    rows = list(csv.DictReader((root / "sweep.csv").open()))
    assert [(row["seed"], row["state"], row["metric"], row["score"]) for row in rows] == [
        ("1", "finished", "BLEU", "10.0"),
        ("2", "finished", "BLEU", "13.0"),
        ("1", "finished", "BLEU", "20.0"),
        ("2", "failed", "", ""),
    ]


def command(*arguments):
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def test_a_dry_run_checks_and_lists(recipe, tmp_path):
    data = write_corpus(tmp_path / "data")
    out = tmp_path / "out"
    common = ["--over", DROPOUT, "--seeds", "1..2", "--data", data, "-o", out, "--dry-run"]
    impossible = command(recipe, "--over", "model.settings.dropout=0.5,1.0", *common[2:])
    assert "tiny.dropout-1.0.seed1" in str(impossible.exception)
    found = command(recipe, *common)
    assert found.exit_code == 0, found.output
    assert found.output.count("new") == 4
    assert not out.exists()
    (data / "test.de").unlink()
    refused = command(recipe, *common)
    assert isinstance(refused.exception, UserError)
    assert str(refused.exception).startswith("tiny.dropout-0.1.seed1: ")
    bad = command(recipe, "--over", "model.settings.dropout=0.5,1.0", "--data", data, "-o", out)
    assert "tiny.dropout-1.0.seed1" in str(bad.exception)
    assert not out.exists()
    assert "is no seed" in str(command(recipe, "--seeds", "1,x", "-o", out).exception)
    write_recipe(tmp_path / "recipe.yaml")
    assert "folder of one training" in str(command(recipe, "-o", tmp_path).exception)


def test_commands_for_job_arrays_and_what_they_left(whole, data, tmp_path):
    """Of the runs that are not finished; `compare` and the sweep itself read what they leave."""
    folder, recipe, _ = whole
    out = tmp_path / "an out"
    shutil.copytree(folder, out / "recipe.seed1")
    asked = [recipe, "--seeds", "1,2", "--data", data, "-o", out, "--set", "logging.every=9", "--commands"]
    (line,) = command(*asked).stdout.splitlines()
    name, *words = shlex.split(line)
    assert (name, *words[:2]) == ("hf-mlnmt", "train", str(recipe))
    trained = CliRunner().invoke(app, words)
    assert trained.exit_code == 0, trained.output
    assert command(*asked).stdout == ""
    runs = [str(out / f"recipe.seed{seed}") for seed in (1, 2)]
    compared = CliRunner().invoke(
        app, ["compare", f"first={runs[0]}", f"second={runs[1]}", "--data", str(data), "--methods"]
    )
    assert compared.exit_code == 0, compared.output
    assert "second" in compared.stdout


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds child processes in /proc")
def test_a_sweep_that_is_killed_leaves_nobody_behind_and_goes_on(tmp_path):
    data, out = write_corpus(tmp_path / "data"), tmp_path / "out"
    recipe = write_recipe(tmp_path / "tiny.yaml", budget={"steps": 200}, evaluation={"every": 100, "beams": 1})
    arguments = ["-c", fresh.FORKING, fresh.COMMAND, "sweep", recipe, "--seeds", "1", "--data", data, "-o", out]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    sweep = fresh.Popen([sys.executable, *arguments], level="package", **streams)
    end = time.monotonic() + 200
    metrics = out / "tiny.seed1" / "metrics.jsonl"
    while not (metrics.is_file() and metrics.read_text().count("\n") > 2):
        assert sweep.poll() is None, (out / "logs" / "tiny.seed1.log").read_text()
        assert time.monotonic() < end
        time.sleep(0.05)
    (child,) = Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children").read_text().split()
    sweep.kill()
    sweep.wait()
    while not ended(int(child)):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert "stopped at step" in (out / "logs" / "tiny.seed1.log").read_text()
    done = fresh.package(*map(str, arguments))
    assert done.returncode == 0, done.stderr
    assert "1/1 tiny.seed1: started again" in done.stdout + done.stderr
    assert ",finished," in (out / "sweep.csv").read_text()
