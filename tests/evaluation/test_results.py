"""The results file: its shape is a promise, what it does not know it keeps, and broken ones are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import Results, read_results, score_protocols


def test_the_file_has_the_documented_shape(tmp_path: Path, systems, references) -> None:
    results = Results(
        system="transformer", data={"train": "demo"}, seed=1, budget={"minutes": 4}, command="hf-mlnmt train"
    )
    results.parameters, results.steps_per_second, results.decoding = 123, 4.5, {"num_beams": 5}
    results.add_scores("test", score_protocols(systems["a"], references, language="de", bootstrap=10))
    content = json.loads(results.write(tmp_path / "results" / "stem.json").read_text(encoding="utf-8"))
    assert list(content) == [
        *("schema", "system", "data", "seed", "budget", "command", "versions", "parameters", "steps_per_second"),
        *("decoding", "scores", "outputs"),
    ]
    assert content["schema"] == "hf_mlnmt.results/1"
    assert list(content["scores"]["test"]) == ["cased", "classic"]
    assert list(content["scores"]["test"]["classic"]) == ["BLEU", "chrF", "TER"]
    entry = content["scores"]["test"]["classic"]["BLEU"]
    assert list(entry) == ["score", "signature", "ci"]
    assert entry["ci"][0] < entry["score"] < entry["ci"][1]
    assert set(content["outputs"]["test"]["cased"]) == {
        *("sentences", "references", "empty_outputs", "empty_references", "length_ratio")
    }
    assert {"python", "hf_mlnmt", "sacrebleu", "sacremoses"} <= set(content["versions"])


def test_reading_keeps_everything(tmp_path: Path, systems, references) -> None:
    path = tmp_path / "r.json"
    first = Results(system="x", seed=2, extra={"alignment": {"aer": 0.3}})
    first.add_scores("old", score_protocols(systems["a"], references, bootstrap=0))
    first.write(path)
    again = read_results(path)
    assert again == first
    again.add_scores("new", score_protocols(systems["b"], references, bootstrap=0))
    assert list(read_results(again.write(path)).scores) == ["old", "new"]
    assert json.loads(path.read_text())["alignment"] == {"aer": 0.3}


NAN = {"test": {"cased": {"BLEU": {"score": float("nan")}}}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("{", "not a JSON file"),
        ("[" * 200_000, "not a JSON file"),
        ("[]", "expected a results file"),
        ({"schema": "hf_mlnmt.results/2"}, "hf_mlnmt.results/2"),
        ({"system": None}, "system"),
        ({"system": "a`<b>"}, "backtick"),
        ({"system": "a\n# b"}, "line break"),
        ({"system": "a\0b"}, "control character"),
        ({"parameters": "many"}, "parameters: expected a whole number"),
        ({"languages": {"source": 1}}, r"languages\.source: expected a"),
        ({"data": {"train": -1}}, r"data\.train: expected a list"),
        ({"seed": "../x"}, "seed: expected a whole number"),
        ({"seed": float("nan")}, "seed: expected a whole number"),
        ({"outputs": {"t": {"cased": []}}}, r"outputs\.t.*: expected "),
        ({"scores": {"a\nb": {}}}, "line break"),
        ({"scores": {"test": None}}, "scores.test: expected a JSON object"),
        ({"scores": {"t": {"cased": {"BLEU": 30.5}}}}, r"scores\.t.*: expected "),
        ({"scores": NAN}, "scores.test.cased.BLEU.score: expected"),
        *[
            ({key: []}, rf"{key}: expected a JSON object")
            for key in ("scores", "outputs", "decoding", "versions", "significance")
        ],
    ],
)
def test_refused(tmp_path: Path, changes, message) -> None:
    path = tmp_path / "r.json"
    whole = {"schema": "hf_mlnmt.results/1", "system": "x"}
    path.write_text(changes if isinstance(changes, str) else json.dumps({**whole, **changes}))
    with pytest.raises(UserError, match=message) as error:
        read_results(path)
    assert str(path) in str(error.value)


def test_there_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_results(tmp_path / "r.json")
