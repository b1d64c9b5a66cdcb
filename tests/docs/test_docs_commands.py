"""Every command of README and docs runs at a small size, or is parsed whole where PARSED says why it cannot.

Of the trainings of a page the first runs, the others are checked by --dry-run.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.docs import PAGES, ROOT, SIZES, Command, StandIns, blocks, commands
from helpers.synthetic_corpora import write_synthetic
from helpers.tiny_run import write_recipe
from typer.main import get_command
from typer.testing import CliRunner

from hf_mlnmt.cli import app

# What a command says: why it is parsed and not run.
PARSED = {
    r"--push ": "it uploads to the Hub",
    r"--processes \d|^(?:torchrun|accelerate) ": "several processes: tests/training/test_processes*.py",
    r"^hf-mlnmt serve ": "it serves until it is stopped",
    r"--memory ": "it wants a memory of its own: tests/generation/test_translation_memory.py",
    r"SLURM": "a job of an array",
    r"^hf-mlnmt train --student ": "it wants 200 pairs: tests/training/test_students.py",
    r"^hf-mlnmt train --pair ": "it wants 200 pairs: tests/training/test_pair.py, tests/docs/test_tutorial.py",
    r"train multi30k-\w+-(captions|student)": "it takes what the commands before it make of all captions",
    r"\.\.\.": "the page leaves words out",
    r"^hf-mlnmt sweep .*,key-value-full": "29 systems take their time; the ones of docs/sweeps.md run",
    r"--format firefox ": "it wants a student: tests/export/test_export_firefox.py",
    r"^hf-mlnmt (?:export|publish) runs/tiny/": "it goes on with a student: tests/export/test_static_space.py",
    r"runs/mine\.eng_Latn": "it goes on with a fine-tuned NLLB: tests/training/test_pretrained.py",
    r"^hf-mlnmt model [a-z-]+ facebook/": "it wants a model of the Hub: tests/convert/test_vocabulary_changes.py",
    r"^hf-mlnmt export runs/demo": "torch.onnx takes its time; tests/export/test_export_cli.py runs it",
}
RUN_BY_TESTS = {
    "docs/decoding.md": "tests/docs/test_docs_code.py",
    "docs/own-system.md": "tests/docs/test_own_system.py",
    "docs/scores.md": "tests/evaluation/test_docs.py",
    "docs/tutorial.md": "tests/docs/test_tutorial.py",
}
# What these do is seen where a page's blocks are run whole.
SHELL = {"cat", "echo", "export", "head", "printf", "python3", "source", "split", "tail"}
OTHERS = {"accelerate", "curl", "docker", "hf-mlnmt", "serve", "torchrun"}  # curl, docker and serve are not tried here
NAMES = {"T": "data/multi30k/test_2016_flickr"}  # what docs/studies/analysis.md says its short names stand for
MODELS = {"transformer", "enc-dc", "m-10", "accumulated-weight", "iter-c-agg", "ms-1", "ms-1-aif"}

RUN = {
    "budget": {"steps": 2, "epochs": None},
    "evaluation.every": 2,
    "checkpoints": {"keep": 1, "average": 1},
    "decoding": {"beams": 1, "max_new_tokens": 4},
    "schedule.warmup": 1,
    "schedule.restarts": 0,
}
# What makes a verb's work small; the last of two options counts.
SMALLER = {
    "analyse attention": "--sample 5",
    "analyse cost": "--shape tiny --rounds 1 --length 3 --batch 2 --vocabulary 50 --steps 1 --tokens 20",
    "analyse fusion-grid": "--sentences 2 --beams 1",
    "analyse masking": "--trials 10 --bootstrap 10 --beams 1",
    "analyse probe": "--sizes 60,20,20 --task length --classifier logistic",
    "compare": "--trials 10 --bootstrap 10",
    "evaluate": "--bootstrap 10",
    "model reranker": "--beams 2 --max-new-tokens 4",
    "sweep": "--dry-run",
}


def written() -> list[Command]:
    """The commands of all pages, in order."""
    return [
        command for page in PAGES for block in blocks(page, "bash", "shell") for command in commands(block, **NAMES)
    ]


WRITTEN = written()
OURS = [
    one for one in WRITTEN if one.words[0] in ("hf-mlnmt", "torchrun", "accelerate") and one.page not in RUN_BY_TESTS
]


def named(one: Command) -> str:
    """An id that says where it stands, and does not move with the lines of the page."""
    return f"{one.page}-{[same for same in OURS if same.page == one.page].index(one) + 1}"


def reason(one: Command) -> str | None:
    return next((why for what, why in PARSED.items() if re.search(what, " ".join(one.words))), None)


@functools.cache
def whole_command() -> Any:
    return get_command(app)


def parse(words: list[str]) -> str:
    """Click reads the words whole, and runs nothing; returns the verb."""
    command, verb = whole_command(), []
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"no verb {words[0]}"
        verb.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    command.make_context(verb[-1], list(words))
    return " ".join(verb)


def spelt_out(one: Command) -> list[str]:
    """The words behind `hf-mlnmt`, with a star as 1 and the short names of docs/studies/analysis.md as it says."""
    at = one.words.index("hf_mlnmt") if "hf_mlnmt" in one.words else 0
    words = [word.replace("*", "1") for word in one.words[at + 1 :]]
    if one.page == "docs/studies/analysis.md" and "cost" not in words:
        of = "translations/test_2016_flickr.average.de" if words[0] == "compare" else "average"
        words = [f"{word}=runs/{word}.seed1/{of}" if word in MODELS else word for word in words]
    return words


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipes(one: Command, stand_ins: StandIns) -> None:
    """The recipes that the page shows under their names, and the ones that it takes for granted, made here."""
    data = stand_ins.data()
    write_recipe(Path("en-de.yaml"))
    write_recipe(Path("RECIPE"))
    between = {"between": ["en", "cs"], "train": "train.<language>.gz", "dev": "val.<language>.gz"}
    nothing: dict[str, Any] = {"data": {"train": None, "dev": None, "test": {}}, "model": {}, "tokenizer": {}}
    evaluation = {"metrics": [], "best": "mean_loss"}
    write_recipe(Path("french.yaml"), directions=between, evaluation=evaluation, **nothing)
    for block in blocks(ROOT / one.page, "yaml"):
        if match := re.match(r"# ([\w-]+\.yaml)", block.text):
            Path(match[1]).write_text(block.text, encoding="utf-8")
    if one.page == "docs/monolingual-back-translation.md":
        lines = (data / "train.de").read_text("utf-8").splitlines()
        write_synthetic(Path("synthetic/news"), lines * 3)


def settings(words: list[str]) -> list[str]:
    """What makes a training small: a model as large as the stand-ins, two steps."""
    keys: dict[str, Any] = dict(RUN)
    of_text = "multi30k-en" in words and "--system" not in words
    if not any("add_to" in word for word in words):
        keys |= {f"model.settings.{key}": size for key, size in SIZES.items() if not (of_text and "encoder" in key)}
    return [
        word for key, value in keys.items() for word in ("--set", f"{key}={yaml.safe_dump(value, width=999).strip()}")
    ]


@pytest.mark.parametrize("one", OURS, ids=named)
@pytest.mark.usefixtures("quick", "one_thread")
def test_it_is_a_command_and_runs(one: Command, stand_ins: StandIns, here: Path, monkeypatch):
    words = spelt_out(one)
    for before, word in zip(["", *words], [*words, one.source or ""]):
        if before not in ("-o", "--output", "--html"):
            stand_ins.put(word.rpartition("=")[2], here)
    verb = parse(words)
    if reason(one):
        return
    if "ctranslate2" in words:
        pytest.importorskip("ctranslate2", reason="pip install 'hf-mlnmt[export]'")
    monkeypatch.setattr("hf_mlnmt.training.callbacks.DrawCurves.draw", lambda *ignored: None)
    monkeypatch.setattr(os, "nice", lambda more: 0)
    if verb.startswith("analyse") or verb in (
        "compare",
        "evaluate",
    ):  # drawing takes half of the time, and has its tests
        pytest.importorskip("matplotlib", reason="pip install 'hf-mlnmt[analysis]'")
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, to, **how: Path(to).write_bytes(b""))
    if verb == "analyse cost":  # a system beside the baseline
        words = [word for word in words if word not in ("m-10", "ms-1")]
    if verb == "train":
        recipes(one, stand_ins)
        begun = ["encoder-cloze.multi30k-de/best", "pseudo-encoder.multi30k-en/best"] if "pretrained" in words else []
        for name in ["published/en-de", *(f"runs/{name}" for name in ["transformer.multi30k-deen/tokenizer", *begun])]:
            stand_ins.put(name, here)
        first = next(other for other in OURS if other.page == one.page and "train" in other.words)
        words += [*settings(words), *(["--dry-run"] if one is not first else [])]
    text = Path(one.source).read_text("utf-8") if one.source else "Hello.\n"
    done = CliRunner().invoke(app, [*words, *SMALLER.get(verb, "").split()], input=text)
    assert done.exit_code == 0, (done.output[-1500:], done.exception)


def test_commands_of_others_are_there():
    """Of pip the extras, of make the targets, of Python the scripts and, by their text, the options, of uv the scripts.

    A job of Hugging Face, and uv, are not tried here: they need an account and a network.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for one in WRITTEN:
        first, *rest = one.words
        where = f"{one.page}, line {one.line}"
        if first == "pip":
            extras = ",".join(re.findall(r"hf-mlnmt\[(.+)\]", " ".join(rest)))
            assert {*filter(None, extras.split(","))} <= set(project["optional-dependencies"]), where
        elif first == "make":
            assert rest[0] in targets, where
        elif first == "python":
            script = (ROOT / rest[0]).read_text("utf-8")
            assert all(f'"{word}"' in script for word in rest[1:] if word.startswith("--")), where
        elif first in ("uv", "hf"):
            assert all((ROOT / word).is_file() for word in rest if word.endswith(".py")), where
            verb = rest[rest.index("hf-mlnmt") + 1] if "hf-mlnmt" in rest else "translate"
            assert verb in get_command(app).commands, where
        else:
            assert first in OTHERS | SHELL, where


def test_commands_within_the_text_have_verbs_and_options_that_exist():
    top: Any = get_command(app)
    for page in PAGES:
        for text in re.findall(
            r"`hf-mlnmt ([^`]+)`", re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
        ):
            words, command = shlex.split(text.replace("\n", " ")), top
            if words[0] == "VERB":
                continue
            while hasattr(command, "commands") and words:
                word = words.pop(0).rstrip(",")
                assert word in command.commands, f"{page.name}: {text}"
                command = command.commands[word]
            known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
            used = {word for word in words if re.match(r"--?[a-z]", word)}
            assert used <= known, f"{page.name}: {text}"
