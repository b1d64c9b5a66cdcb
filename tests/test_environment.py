"""Every environment variable that the package reads: none, an empty one, and one that holds what cannot be."""

from __future__ import annotations

import ast
import os
from importlib import import_module

import pytest
from helpers.package_code import FILES, nodes_of

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import REQUIRED, variable
from hf_mlnmt.training import processes

KINDS = {"str": str, "int": int, "bool": bool, "list": list}
NO_WORDS = {int: ("x", "-1", "1.5", "٣x", "1 2"), bool: ("x", "2", "-1"), list: ("'cc", 'gcc "'), tuple: ("x", "0")}
# Whole environments are handed on, or names looked for, in these.
WHOLE = {"common/keys.py", "common/memory.py", "cli/processes.py", "hub/check_reload.py", "training/arguments.py"}
SRUN = {"STEP_NUM_TASKS": "8", "PROCID": "5", "LOCALID": "1", "STEP_TASKS_PER_NODE": "4(x2)", "JOB_ID": "7"}
SRUN |= {"STEP_ID": "1", "STEP_NODELIST": "localhost"}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "15000", "LOCAL_RANK": "0"}


def calls():
    """(file, name, kind) of the variables that the package reads by their names."""
    for file in FILES:
        module = f"hf_mlnmt.{file.removesuffix('.py').replace('/', '.')}"
        for node in nodes_of(file):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "variable":
                name = node.args[0]
                if isinstance(name, ast.Name) and name.id.isupper():
                    name = getattr(import_module(module), name.id)
                elif isinstance(name, ast.Constant):
                    name = name.value
                else:
                    continue
                kind = node.args[1] if len(node.args) > 1 else ast.Name("str")
                if isinstance(kind, ast.Name) and kind.id in KINDS:
                    yield file, name, KINDS[kind.id]
                elif isinstance(kind, ast.Tuple):
                    yield file, name, ast.literal_eval(kind)


READ = sorted({(name, kind) for _, name, kind in calls()}, key=str)


def test_the_environment_is_read_at_one_place():
    names = {name for name, _ in READ}
    assert len(names) > 15
    assert {"CC", "RANK", "HF_MLNMT_NATIVE", "HF_MLNMT_PARENT"} <= names
    for file in FILES:
        for node in nodes_of(file):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
                assert file == "common/keys.py", ast.unparse(node)
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
                assert not isinstance(node.ctx, ast.Load), (file, ast.unparse(node))


@pytest.mark.parametrize(("name", "kind"), READ, ids=[name for name, _ in READ])
def test_a_variable_is_unset_empty_or_wrong(name, kind, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    assert variable(name, kind, "usual") == "usual"
    with pytest.raises(UserError, match=f"variable {name} is not set, and .* was expected"):
        variable(name, kind, REQUIRED)
    for empty in ("", "  "):
        monkeypatch.setenv(name, empty)
        assert variable(name, kind, "usual") == "usual"
    for wrong in NO_WORDS.get(tuple if isinstance(kind, tuple) else kind, ()):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(UserError) as raised:
            variable(name, kind, "usual")
        assert name in str(raised.value)
        assert repr(wrong) in str(raised.value)


def place(monkeypatch, **given):
    monkeypatch.setattr(os, "environ", {name: value for name, value in given.items() if value is not None})
    monkeypatch.setattr(processes, "PartialState", lambda **options: "joined")
    return processes.join_group()


@pytest.mark.parametrize("value", [None, "", "x", "-1", "1e3"])
@pytest.mark.parametrize("name", SRUN)
def test_what_srun_says(name, value, monkeypatch):
    given = {f"SLURM_{key}": text for key, text in SRUN.items()} | {f"SLURM_{name}": value}
    if name == "STEP_NUM_TASKS" and not value:
        assert place(monkeypatch, **given) == "joined"  # the script of a job
        return
    monkeypatch.setattr(processes.torch.accelerator, "device_count", lambda: 0)
    if name == "STEP_NODELIST" and value:
        value = {"x": "no.such.host.invalid"}.get(value, "a..b")
        with pytest.raises(UserError, match="no such place of the first process"):
            place(monkeypatch, **given | {"SLURM_STEP_NODELIST": value})
        return
    if name == "STEP_TASKS_PER_NODE" and value == "1e3":
        value = given["SLURM_STEP_TASKS_PER_NODE"] = "(x2)"
    with pytest.raises(UserError, match=f"variable SLURM_{name} is .* expected"):
        place(monkeypatch, **given)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"])
@pytest.mark.parametrize("value", [None, "", "x", "-1", "70000"])
def test_what_torchrun_says(name, value, monkeypatch):
    given = TORCHRUN | {name: value}
    if (name == "LOCAL_RANK" and value in (None, "", "70000")) or (name, value) == ("WORLD_SIZE", "70000"):
        assert place(monkeypatch, **given) == "joined"
        return
    if name == "MASTER_ADDR" and value:
        given[name] = "no.such.host.invalid"
    with pytest.raises(UserError, match=name):
        place(monkeypatch, **given)


def test_who_does_not_come_is_said_and_ends(monkeypatch, capfd):
    def never(**options):
        processes.time.sleep(0.1)
        raise processes.torch.distributed.DistNetworkError("The client socket has timed out")

    monkeypatch.setattr(processes, "TOLD_AFTER", 0.0)
    monkeypatch.setattr(os, "environ", dict(TORCHRUN))
    monkeypatch.setattr(processes, "PartialState", never)
    with pytest.raises(UserError, match=r"process 0: 2 processes .* 127.0.0.1, port 15000, and did not within 0.5 min"):
        processes.join_group(30)
    assert "waiting, for 0.5 minutes" in capfd.readouterr().err
