"""docs/own-system.md: its code as a module of a reader's own, its recipe and its commands; what cannot be a system.

The same code inside of the package: tests/test_contributing.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest
import torch
import yaml
from helpers.docs import ROOT, SIZES, blocks, commands
from helpers.fresh import package
from helpers.once import made_once
from helpers.tiny_run import write_corpus, write_recipe

from hf_mlnmt import UserError, config_for
from hf_mlnmt.common.model_folder import load_model, trusting

PAGE = ROOT / "docs" / "own-system.md"
CODE = blocks(PAGE, "python")[0].text
DOORS = """
import json, sys
from typer.testing import CliRunner
from hf_mlnmt.cli import app
from hf_mlnmt.evaluation import score
from hf_mlnmt.training.callbacks import DrawCurves
DrawCurves.draw, score.__kwdefaults__["bootstrap"] = lambda *given: None, 9
found = []
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, words)
    found.append([done.exit_code, f"{done.output}{done.exception or ''}"])
open("found.json", "w").write(json.dumps(found))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the page's module, trained by its recipe at a small size."""
    return made_once(tmp_path_factory, "own-system", _train)


def _train(folder):
    (folder / "gated").mkdir()
    # A part of the module in a file beside it, which travels with it.
    part, rest = "(project(self.gate, states[-1]) / self.config.gate_temperature).softmax(dim=-1)", CODE
    assert part in rest
    rest = rest.replace(part, "tempered(project(self.gate, states[-1]), self.config.gate_temperature)")
    (folder / "gated" / "gate.py").write_text(rest.replace("\n@strict", "\nfrom .temper import tempered\n\n@strict", 1))
    (folder / "gated" / "temper.py").write_text("def tempered(x, by):\n    return (x / by).softmax(dim=-1)\n")
    write_corpus(folder / "DIR")
    for language in ("en", "de"):
        shutil.copy(folder / "DIR" / f"test.{language}", folder)
    model = yaml.safe_load(blocks(PAGE, "yaml")[0].text)["model"]
    model |= {"shape": "tiny", "settings": {**model["settings"], **SIZES}}
    write_recipe(folder / "gate.yaml", model=model, budget={"steps": 2}, checkpoints={"average": 2})
    export, train, *_ = (command.words for command in commands(blocks(PAGE, "bash")[0]))
    assert export == ("export", "PYTHONPATH=.")
    run(folder, [train[1:]], expected=0, path=folder)


def run(folder, verbs, expected, path=""):
    """What verbs print in a fresh process, which finds the module in the folder `path` alone."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{path}"}
    done = package("-c", DOORS, json.dumps(verbs), cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "found.json").read_text())
    assert [code for code, _ in found] == [expected] * len(verbs), found
    return [said for _, said in found]


def test_every_door_opens_with_trust_alone(trained, tmp_path):
    folder = tmp_path / "all"
    shutil.copytree(trained, folder)
    verbs = [list(one.words[1:]) for one in commands(blocks(PAGE, "bash")[0]) if not {"train", "export"} & {*one.words}]
    model = "runs/gate/average"
    verbs += [
        ["translate", model, "test.en"],
        ["compare", f"one={model}", f"two={model}", "-s", "test.en", "-r", "test.de", "--trials", "9"],
        ["export", model, "--format", "ctranslate2", "-o", "exported"],  # which lacks it, but loads it
    ]
    verbs = [[word for word in words if word != "--trust-remote-code"] for words in verbs]
    for said in run(folder, [*verbs, ["serve", model]], expected=1):
        assert "is not run unless you say so: --trust-remote-code" in said
    trusting_verbs = [[*words, "--trust-remote-code"] for words in verbs]
    run(folder, trusting_verbs[:-1], expected=0)
    (said,) = run(folder, trusting_verbs[-1:], expected=1)
    assert "CTranslate2, which lacks its parts beyond the baseline" in said
    assert {path.name for path in (folder / "gate").glob("*.py")} == {"gate.py", "temper.py"}


def test_a_folder_with_code_is_a_system(trained):
    folder = trained / "runs" / "gate" / "average"
    for load in (load_model, lambda name: config_for(str(name), "tiny")):
        with pytest.raises(UserError, match="is not run unless you say so: --trust-remote-code"):
            load(folder)
    with trusting():
        config = config_for(str(folder), "tiny", vocab_size=30)
        model = load_model(folder)
    assert (config.gate_temperature, config.d_model, config.vocab_size) == (0.5, 128, 30)
    states = [torch.randn(1, 3, 16) for _ in range(3)]
    encoder = model.model.encoder
    gate = (encoder.gate(states[-1]) / 0.5).softmax(-1)
    expected = gate[..., :1] * states[1] + gate[..., 1:] * states[2]
    torch.testing.assert_close(encoder.memory(states), expected)


ANOTHER = CODE.replace('"gate"', '"gate-{name}"')
WRONG = {
    "absent": (None, "No module named 'absent'"),
    "broken": ("1 / 0\n", "ZeroDivisionError"),
    "other": ("class GateConfig: pass\n", "no subclass of this package's TransformerConfig"),
    "nothing": ("", "has no attribute 'GateConfig'"),
    "same": (CODE.replace('"gate"', '"mlnmt-transformer"'), "'mlnmt-transformer' is already used"),
    "stock": (CODE.replace('"gate"', '"marian"'), "'marian' is already used"),
    "alone": (ANOTHER.split("class GateModel")[0], "has no attribute 'GateForCausalLM'"),
    "absolute": (f"import other\n{ANOTHER}", "'import other' is not copied along"),
    "itself": (f"import itself\n{ANOTHER}", "'import itself' is not copied along"),
    "missing": (f"from .part import x\n{ANOTHER}", "attempted relative import"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_system(name, tmp_path, monkeypatch):
    text, message = WRONG[name]
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "other.py").write_text("class GateConfig: pass\n")
    if text is not None:
        (tmp_path / f"{name}.py").write_text(text.replace("{name}", name))
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        config_for(f"{name}:GateConfig", "tiny")
    assert str(refused.value).startswith(f"system '{name}:GateConfig': ")
    assert "docs/own-system.md" in str(refused.value)


@pytest.mark.parametrize(
    "name", [":", "x:", ":GateConfig", "json:loads", "a.b.c:D", "no such:Thing", "os:path", "..:x"]
)
def test_names_of_no_system(name):
    with pytest.raises(UserError, match=re.escape(f"system '{name}': ")):
        config_for(name)
