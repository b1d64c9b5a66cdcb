"""Recipes: every mistake is named with its line and the right key."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from helpers.tiny_run import write_recipe

from hf_mlnmt import UserError
from hf_mlnmt.training import read_recipe

ROOT = Path(__file__).resolve().parents[2]
GOOD = """\
languages: {source: en, target: de}
data:
  train: {files: {source: a.en, target: a.de}}
  dev: {files: {source: b.en, target: b.de}}
budget: {steps: 10}
"""


def read(tmp_path: Path, text: str, *settings: str):
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    return read_recipe(tmp_path / "r.yaml", list(settings))


def test_a_short_recipe_has_defaults(tmp_path):
    recipe = read(tmp_path, GOOD)
    assert recipe.budget.steps == 10
    assert recipe.label_smoothing == 0.1
    assert recipe.stem == "r"
    assert yaml.safe_load(recipe.to_yaml()) == recipe.to_dict()


def test_what_it_writes_it_reads(tmp_path):
    recipe = read_recipe(write_recipe(tmp_path / "r.yaml"))
    (tmp_path / "again.yaml").write_text(recipe.to_yaml())
    assert read_recipe(tmp_path / "again.yaml").to_dict() == recipe.to_dict()


def test_no_is_norwegian_and_off_is_false(tmp_path):
    """Where text is expected the written word counts, and where true or false is, YAML 1.1's words do."""
    text = GOOD.replace("{source: en, target: de}", "{source: en, target: no}\nreverse: yes", 1)
    text = text.replace(
        "budget", "  test: {on: {path: a.tsv, languages: {source: no, target: en}, reverse: no}}\nbudget"
    )
    text += "tokenizer: {joint: off}\nmodel: {settings: {share: on}}\narguments: {use_cpu: No}\n"
    recipe = read(tmp_path, text)
    assert (recipe.languages.source, recipe.languages.target) == ("no", "en")
    assert recipe.data.test["on"]["languages"] == {"source": "en", "target": "no"}
    assert recipe.data.test["on"]["reverse"] is True
    assert recipe.tokenizer.joint is False
    assert recipe.model.settings == {"share": True}
    assert recipe.arguments == {"use_cpu": False}
    assert read(tmp_path, GOOD, "languages.target=no", "reverse=off").languages.target == "no"


def test_settings_replace_keys(tmp_path):
    recipe = read(
        tmp_path, GOOD, "batch.tokens=99", "optimizer.learning_rate=2e-3", "budget={epochs: 2}", "evaluation.best=loss"
    )
    assert recipe.batch.tokens == 99
    assert recipe.optimizer.learning_rate == 0.002
    assert (recipe.budget.steps, recipe.budget.epochs) == (None, 2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("bacth: {tokens: 3}", r"r.yaml, line 6: bacth: unknown key \(did you mean 'batch'\?\)"),
        ("batch:\n  token: 3", r"line 7: batch.token: unknown key \(did you mean 'tokens'\?\)"),
        ("batch: {tokens: many}", "line 6: batch.tokens: expected a whole number, not 'many'"),
        ("batch: {tokens: 0}", "batch.tokens must be above 0, not 0"),
        ("batch: 3", "line 6: batch: expected a section with keys, not 3"),
        ("batch: {side: targt}", r"batch.side: 'targt' is not one of source, target, both \(did you mean 'target'\?\)"),
        ("optimizer: {betas: [a, b]}", "optimizer.betas: expected a number, not 'a'"),
        ("label_smoothing: 1.5", "label_smoothing must be below 1, not 1.5"),
        ("tokenizer: {joint: maybe}", "tokenizer.joint: expected true or false, not 'maybe'"),
        ("optimizer: {learning_rate: true}", "optimizer.learning_rate: expected a number, not True"),
        ("evaluation: {best: ter}", "evaluation.best is 'ter', which is not measured"),
        ("checkpoints: {average: 9}", "only 5 are kept"),
        ("model: {record: a, system: b}", "either record or system"),
        ("budget: {steps: 3}", r"line 6: budget is given twice \(first in line 5\)"),
        (
            "arguments: {label_smoothing_factor: 0.1}",
            "line 6: arguments.label_smoothing_factor: this is what label_smoothing says",
        ),
        ("training: {}\ntesting: {}", "a configuration of JoeyNMT .testing, training..*docs/coming-from.md"),
        ("task: {_name: translation}\noptimization: {}", "a configuration of fairseq"),
        ("prepared_data: x\nbatch_type: word", "a configuration of Sockeye"),
        ("src_vocab: x\ntrain_steps: 9", "a configuration of OpenNMT or Eole"),
        ("train-sets: [x]\nvocabs: [x]", "a configuration of Marian"),
        ("batch: {tokens: 3", "line .*not valid YAML"),
    ],
)
def test_mistakes_are_named(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, GOOD + change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected keys and values, found nothing"),
        (GOOD + "x: " + "[" * 5000, "not valid YAML"),
        (GOOD + "x: &a [*a]", "not valid YAML .Circular"),
        (GOOD + "seed: 2020-99-99", "not valid YAML .month must be in"),
        (GOOD + "seed: " + "9" * 5000, "not valid YAML"),
        (GOOD + "objective: {name: [1]}", r"objective: there is no objective \[1\]"),
        (GOOD.replace("languages: {source: en, target: de}", "seed: 1"), "missing key 'languages'"),
        (GOOD.replace(", target: de", "", 1), "line 1: languages: missing key 'languages.target'"),
        (GOOD.replace("{steps: 10}", "{}"), "give either steps or epochs"),
        (GOOD.replace("{steps: 10}", "{steps: 10, epochs: 1}"), "give either steps or epochs"),
    ],
)
def test_wrong_files(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("schedule: {restarts: -1, restart_steps: 4}", "schedule.restarts must be at least 0, not -1"),
        ("schedule: {name: newbob, restarts: 2, restart_steps: 4}", "this is newbob with 4"),
        ("schedule: {restarts: 2}", "cosine with 0"),
        (
            "schedule: {restarts: 2, restart_steps: 4, warmup: 2}",
            "schedule: restarts: 2 cycles of 4 steps .* training of 10",
        ),
        ("schedule: {restarts: 2, restart_steps: 4, warmup: 1}\nevaluation: {patience: 3}", "patience is 3 and"),
    ],
)
def test_senseless_restarts(tmp_path, more, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, GOOD + more)
    assert read(tmp_path, GOOD + "schedule: {restarts: 2, restart_steps: 4, warmup: 1}").schedule.restart_factor == 0.4


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_recipe(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="is a folder"):
        read_recipe(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe4\n")
    with pytest.raises(UserError, match="not UTF-8"):
        read_recipe(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    "setting",
    ["batch.tokens", "=3", "batch.tokens={", "seed.x=1", "bach.tokens=3", "seed=2020-99-99", "seed=" + "[" * 5000],
)
def test_bad_settings(tmp_path, setting):
    with pytest.raises(UserError):
        read(tmp_path, GOOD, setting)
