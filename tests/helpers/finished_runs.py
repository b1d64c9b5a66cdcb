"""Folders as `hf-mlnmt train` leaves them, of toy translations: what comparisons of runs are made of."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

from hf_mlnmt.evaluation import score_protocols
from hf_mlnmt.reports.comparison import add_runs

WORDS = ["ein", "Hund", "läuft", "über", "das", "Gras", "und", "die", "Frau", "sieht", "den", "roten", "Ball"]
NAMES = {"base": "transformer.multi30k-ende", "a": "m-10.multi30k-ende", "b": "s-agg.multi30k-ende"}
FEW = {"bootstrap": 50, "trials": 100}


def sentences(seed: int, wrong: float) -> list[str]:
    """104 sentences, the references when wrong is 0."""
    rng, noise = random.Random(1), random.Random(seed)
    rows = [[rng.choice(WORDS) for _ in range(8)] for _ in range(104)]
    return [" ".join(noise.choice(WORDS) if noise.random() < wrong else word for word in row) + "." for row in rows]


OUTPUTS = {"base": sentences(2, 0.3), "a": sentences(3, 0.1), "b": sentences(4, 0.32)}
SECOND = {"base": sentences(5, 0.33), "a": sentences(6, 0.12)}  # of another seed


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@functools.cache  # many tests write the same runs
def scores_of(outputs: tuple[str, ...]) -> str:
    """JSON: protocol -> metrics."""
    scores = score_protocols(outputs, sentences(0, 0), language="de", bootstrap=20)
    return json.dumps({name: value.to_dict() for name, value in scores.items()})


def write_run(folder: Path, key: str, outputs: list[str] | None = None, **changes: Any) -> Path:
    """What `hf-mlnmt train` leaves of a run."""
    outputs = outputs or OUTPUTS[key]
    files = {"source": "test.en", "target": "test.de"}
    results: dict[str, Any] = {
        "schema": "hf_mlnmt.results/1", "system": NAMES[key], "seed": 1, "data": {"name": "toy"},
        "budget": {"steps": 10, "epochs": 1.0, "target_tokens": 99, "processes": 1, "device": "cpu",
                   "seconds": 9.0, "cpu_minutes": 2.5},
        "command": "hf-mlnmt train", "versions": {"torch": "2"}, "parameters": 1234567, "steps_per_second": 1.0,
        "decoding": {"beams": 2}, "scores": {"test": json.loads(scores_of(tuple(outputs)))},
        "outputs": {}, "significance": {}, "languages": {"source": "en", "target": "de"},
        "recipe": {"model": {"settings": {}}, "data": {"test": {"test": {"files": files}}}, "batch": {"tokens": 7},
                   "seed": 1},
    }  # fmt: skip
    for name, value in changes.items():
        inner = results
        *outer, last = name.split("__")
        for part in outer:
            inner = inner[part]
        inner[last] = value
    write_lines(folder / "translations" / "test.average.de", outputs)
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (folder / "recipe.yaml").write_text("seed: 1\n")
    (folder / "average").mkdir(exist_ok=True)
    (folder / "average" / "config.json").write_text(json.dumps({"d_model": 16, "model_type": key}))
    return folder


def write_runs(folder: Path) -> Path:
    """A run of each system, and the references in `data`."""
    for key in NAMES:
        write_run(folder / key, key)
    write_lines(folder / "data" / "test.en", sentences(0, 0))
    write_lines(folder / "data" / "test.de", sentences(0, 0))
    return folder


def compare(runs: Path, output: Path) -> Path:
    """A comparison of these runs."""
    add_runs([runs / "base", runs / "a", runs / "b"], output, runs / "data", **FEW)
    return output
