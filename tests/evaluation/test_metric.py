"""Metrics of the `evaluate` library as functions of lists, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import load_metric

pytestmark = pytest.mark.usefixtures("evaluate_cache")

STUB = """
import datasets
import evaluate
class Stub(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        return evaluate.MetricInfo(description="", citation="", inputs_description="",
                                   features=datasets.Features({COLUMNS}))
    def _compute(self, predictions, references, sources=()):
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
        '        return {"score": n, "counts": [n], "half": n / 2, "name": "x"}',
    )
    assert load_metric(path)(["a", "b"], ["a", "c"]) == {"exact": 1, "exact_half": 0.5}
    columns = '"predictions": text, "references": datasets.Sequence(text)'
    path = stub(
        tmp_path, "several", columns, 'return {"several": sum(p in r for p, r in zip(predictions, references))}'
    )
    assert load_metric(path)(["a", "b"], ["a", "cb"]) == {"several": 1}


def test_per_sentence_lists_are_averaged_and_sources_are_passed_on(tmp_path: Path) -> None:
    columns = '"predictions": text, "references": text, "sources": text'
    path = stub(tmp_path, "learnt", columns, 'return {"f1": [len(s) for s in sources], "name": "x"}')
    metric = load_metric(path)
    assert metric(["a", "b"], ["a", "b"], sources=["x", "yyy"]) == {"learnt_f1": 2}
    with pytest.raises(UserError, match="source sentences"):
        metric(["a"], ["a"])


def test_a_module_that_cannot_be_had_says_why(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        UserError, match=r"'meteor' could not be loaded.*switched off \(HF_HUB_OFFLINE.*bleu, chrf or ter"
    ):
        load_metric("meteor")
    path = stub(tmp_path, "needy", '"predictions": text, "references": text', "import nothing_of_this_name")
    (Path(path) / "needy.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(UserError, match=r"needs a package that is not installed.*nothing_of_this_name"):
        load_metric(path)
