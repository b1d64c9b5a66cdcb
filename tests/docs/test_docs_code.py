"""The Python and the YAML of the docs: what no test of its own runs, runs here; recipes have keys that exist.

docs/decoding.md runs from its first block to its last, and prints what the page says.
"""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
from importlib.util import find_spec

import pytest
import torch
import yaml
from helpers.docs import PAGES, ROOT, Block, blocks
from helpers.synthetic_corpora import write_synthetic
from helpers.tiny_run import write_recipe
from helpers.training_helpers import Pairs
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainingArguments
from typer.testing import CliRunner

from hf_mlnmt.cli import app
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.recipe import read_recipe
from hf_mlnmt.training.preparation import RecipeCorpora

RUN_BY_TESTS = {"README.md", "docs/README.md", "docs/decoding.md", "docs/export.md", "docs/opus-mt.md"}
RUN_BY_TESTS |= {"docs/own-system.md", "docs/scale.md", "docs/scores.md", "docs/serving.md", "docs/tutorial.md"}
WITH_PYTHON = [
    page for page in PAGES if page.relative_to(ROOT).as_posix() not in RUN_BY_TESTS and blocks(page, "python")
]
RECIPES = [block for page in PAGES for block in blocks(page, "yaml") if yaml.safe_load(block.text)]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
@pytest.mark.usefixtures("quick", "one_thread")
def test_python_runs(page, stand_ins, tmp_path, monkeypatch):
    """With what the page takes for granted: a model, a batch, sentences, data, a file of them; nothing is uploaded."""
    monkeypatch.chdir(tmp_path)
    uploaded = []
    monkeypatch.setattr("hf_mlnmt.hub.push", lambda *what, **how: uploaded.append(what))
    (tmp_path / "big.txt").write_text("A dog.\nTwo dogs.\n", encoding="utf-8")
    scope = {
        "sentences": ["The dog sees the ball.", "A cat."],
        "batch": {"input_ids": torch.tensor([[5, 6, 1]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)},
        "training_set": Pairs(),
        "args": Seq2SeqTrainingArguments("run", max_steps=1, report_to="none", save_strategy="no", use_cpu=True),
        "model": AutoModelForSeq2SeqLM.from_pretrained(stand_ins.system()),
    }
    for block in blocks(page, "python"):
        for name in re.findall(r'"([^"\n]+)"', block.text):
            stand_ins.put(name, tmp_path)
        exec(compile(block.text, f"{block.page}, line {block.line}", "exec"), scope)
    assert bool(uploaded) == (page.name == "publishing.md")


@pytest.mark.parametrize(
    "block", RECIPES, ids=lambda one: f"{one.page}-{[x for x in RECIPES if x.page == one.page].index(one)}"
)
def test_recipes_are_read(block, tmp_path):
    """A part of a recipe is laid over a whole one; rounds are read in tests/training/test_rounds.py."""
    content = yaml.safe_load(block.text)
    if "rounds" in content:
        return
    write_synthetic(tmp_path / "synthetic" / "news", ["ba do"])
    pair = content.get("languages", {"source": "en", "target": "de"})
    write_recipe(tmp_path / "en-de.yaml", languages=pair, **({"data": {"train": None}} if "tasks" in content else {}))
    alone = "extends" in content or {"languages", "data", "budget"} <= set(content) or "directions" in content
    path = tmp_path / "recipe.yaml"
    path.write_text(block.text if alone else f"extends: en-de.yaml\n{block.text}", encoding="utf-8")
    RecipeCorpora(read_recipe(path), tmp_path)  # reads the keys of corpora and filters, too


def typed(block: Block) -> str:
    """What the lines of a shell block print: those of hf-mlnmt in this process, what stands before a pipe in bash."""
    printed = ""
    for line in block.text.splitlines():
        before, ours, words = line.partition("hf-mlnmt ")
        bash = ["bash", "-ec", before.rstrip("| ")]
        said = subprocess.run(bash, capture_output=True, text=True, check=True).stdout if before else ""
        if ours:
            done = CliRunner().invoke(app, shlex.split(words, comments=True), input=said)
            assert done.exit_code == 0, (line, done.output, done.exception)
            said = done.stdout
        printed += said
    return printed


def same(printed: str, shown: str) -> bool:
    """Whether two outputs are equal, and scores to two digits."""
    number = r"-?\d+\.\d+"
    found, expected = ([float(score) for score in re.findall(number, text)] for text in (printed, shown))
    return re.sub(number, "", printed) == re.sub(number, "", shown) and found == pytest.approx(expected, abs=0.01)


@pytest.mark.usefixtures("one_thread", "watched")
def test_decoding_prints_what_the_page_shows(tmp_path, monkeypatch, capsys):
    """What stands before an output, commands and Python, prints it; each model is loaded once."""
    monkeypatch.chdir(tmp_path)
    load = functools.cache(TranslationPipeline.from_pretrained)

    def once(name: str, **ignored: object) -> TranslationPipeline:
        return load(name, "cpu")

    monkeypatch.setattr(TranslationPipeline, "from_pretrained", once)
    (tmp_path / "published").symlink_to(ROOT / "published")
    scope: dict = {}
    wanted = {"mbr": "fastchrf"}
    missing = [word for word, package in wanted.items() if not find_spec(package)]
    printed, compared = [], 0
    for block in blocks(ROOT / "docs" / "decoding.md", "bash", "python", "text"):
        where = f"{block.page}, line {block.line}"
        if block.language == "text":
            for said in printed:
                assert same(said, block.text), (where, said)
            compared, printed = compared + len(printed), []
        elif not any(word in block.text for word in missing):
            if block.language == "python":
                exec(compile(block.text, where, "exec"), scope)
            printed.append(typed(block) if block.language == "bash" else capsys.readouterr().out)
    assert compared >= 25 - 2 * len(missing)
    assert not printed
