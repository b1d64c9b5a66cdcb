"""The `evaluate` module and load_metric(): the same numbers as score(), without a network."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from helpers import fresh

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import METRIC_PATH, load_metric, score

pytestmark = pytest.mark.usefixtures("evaluate_cache")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"}

LOADED_ELSEWHERE = """
import json, sys, evaluate
predictions, references, path = json.load(open(sys.argv[1]))
metric = evaluate.load(path)
results = [metric.compute(predictions=predictions, references=references),
           metric.compute(predictions=predictions, references=[[r, r] for r in references], protocol="classic",
                          language="de", bootstrap=20, seed=5)]
metric.add_batch(predictions=predictions[:5], references=references[:5])
metric.add_batch(predictions=predictions[5:], references=references[5:])
print(json.dumps([*results, metric.compute()]))
"""


def test_evaluate_loads_it_offline_in_a_fresh_process(tmp_path: Path, systems, references) -> None:
    given = tmp_path / "given.json"
    given.write_text(json.dumps([systems["a"], references, str(METRIC_PATH)]))
    environment = {**os.environ, **OFFLINE, "HF_HOME": str(tmp_path), "PYTHONPATH": str(METRIC_PATH.parents[2])}
    done = fresh.python("-c", LOADED_ELSEWHERE, str(given), env=environment)
    assert done.returncode == 0, done.stderr
    cased, classic, batched = json.loads(done.stdout.splitlines()[-1])
    ours = score(systems["a"], references, bootstrap=0)
    assert [cased[name] for name in ("bleu", "chrf", "ter")] == [ours[name] for name in ("BLEU", "chrF", "TER")]
    assert cased["signatures"] == {name: metric.signature for name, metric in ours.metrics.items()}
    assert (cased["length_ratio"], cased["protocol"], cased["ci"]) == (ours.length_ratio, "cased", {})
    assert batched == cased
    twice = score(systems["a"], [references] * 2, protocol="classic", language="de", bootstrap=20, seed=5)
    assert classic["bleu"] == twice["BLEU"]
    assert classic["signatures"]["BLEU"] == twice.metrics["BLEU"].signature
    assert classic["ci"]["TER"] == list(twice.metrics["TER"].ci)


def test_sentences_may_have_different_numbers_of_references(systems, references) -> None:
    metric = load_metric("hf_mlnmt", metrics=["BLEU"])
    grouped = [[line] if i % 2 else [line, systems["b"][i]] for i, line in enumerate(references)]
    filled = [references, [None if i % 2 else line for i, line in enumerate(systems["b"])]]
    assert metric(systems["a"], grouped)["bleu"] == score(systems["a"], filled, bootstrap=0)["BLEU"]
    assert metric(systems["a"], references) == metric(systems["a"], [[line] for line in references])


STUB = """
import datasets
import evaluate
class Stub(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        return evaluate.MetricInfo(description="", citation="", inputs_description="",
                                   features=datasets.Features({COLUMNS}))
    def _compute(self, predictions, references, sources=(), factor=1):
        RESULT
"""


def stub(folder: Path, name: str, columns: str, result: str) -> str:
    """A module of one's own, as a user may have one on disk."""
    path = folder / name
    path.mkdir()
    (path / f"{name}.py").write_text(STUB.replace("COLUMNS", columns).replace("RESULT", result))
    return str(path)


def test_any_module_becomes_a_function_of_lists_that_returns_numbers(tmp_path: Path) -> None:
    path = stub(
        tmp_path,
        "exact",
        '"predictions": text, "references": text',
        "n = sum(p == r for p, r in zip(predictions, references))\n"
        '        return {"score": n * factor, "counts": [n], "half": n / 2, "name": "x"}',
    )
    metric = load_metric(path, factor=10)
    assert metric(["a", "b"], ["a", "c"]) == {"exact": 10, "exact_half": 0.5}
    assert metric(["a", "b"], [["a"], ["b"]]) == {"exact": 20, "exact_half": 1}
    with pytest.raises(UserError, match="one reference"):
        metric(["a"], [["a", "b"]])


def test_per_sentence_lists_are_averaged_and_sources_are_passed_on(tmp_path: Path) -> None:
    columns = '"predictions": text, "references": text, "sources": text'
    path = stub(tmp_path, "learnt", columns, 'return {"f1": [len(s) for s in sources], "name": "x"}')
    metric = load_metric(path)
    assert metric(["a", "b"], ["a", "b"], sources=["x", "yyy"]) == {"learnt_f1": 2}
    with pytest.raises(UserError, match="source sentences"):
        metric(["a"], ["a"])


def test_a_module_that_cannot_be_had_says_why(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"'meteor' could not be loaded.*switched off \(HF_HUB_OFFLINE.*hf_mlnmt"):
        load_metric("meteor")
    path = stub(tmp_path, "needy", '"predictions": text, "references": text', "import nothing_of_this_name")
    (Path(path) / "needy.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(UserError, match=r"needs a package that is not installed.*nothing_of_this_name"):
        load_metric(path)
