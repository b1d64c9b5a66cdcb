"""The study of probing: several systems on several tasks, resumable, as rows and points with intervals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_mlnmt.analysis import figures
from hf_mlnmt.analysis.classifiers import PRESETS
from hf_mlnmt.analysis.features import check_layer, layer_count
from hf_mlnmt.analysis.probing import CLASSIFIERS, Classifier, probe, probe_key
from hf_mlnmt.analysis.probing_tasks import (
    ProbingTask,
    bigram_shift_task,
    language_task,
    length_task,
    word_content_task,
)
from hf_mlnmt.analysis.reading import usable_indices
from hf_mlnmt.analysis.senteval import find_files, read_task
from hf_mlnmt.analysis.studies import Systems
from hf_mlnmt.analysis.study import Study, named
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import write_json
from hf_mlnmt.generation.languages import has_modules

DONE = "probes"  # folder of finished probes, a file each


def read_sizes(text: str) -> list[int]:
    """ "1000,100,100" -> sentences for train, dev and test."""
    fields = text.split(",")
    if len(fields) != 3 or not all(field.strip().isdigit() and int(field) > 0 for field in fields):
        raise UserError(f"sizes {text!r}: expected three numbers, for train, dev and test, such as 10000,1000,1000.")
    return [int(field) for field in fields]


def make_tasks(
    systems: Systems,
    texts: Mapping[str, Sequence[str]],
    names: Sequence[str] | None,
    seed: int,
    sizes: Sequence[int],
    words: int,
    languages: tuple[str | None, str | None] = (None, None),
) -> list[ProbingTask]:
    """Tasks from raw text: {language: lines}, or {"": lines} of one text; None: all that can be made.

    length, word-content and bigram-shift are of the first text. Sentences that a system cannot take are left out.
    Raises: UserError for `language` with one text only.
    """
    fit = {}
    for name, lines in texts.items():
        kept = set(range(len(lines)))
        for parts in systems.values():
            kept &= set(usable_indices(parts, lines, *languages))
        fit[name] = [lines[i] for i in sorted(kept)]
    first = next(iter(fit.values()))
    makers: dict[str, Callable[[], ProbingTask]] = {
        "length": lambda: length_task(first, seed, sizes),
        "word-content": lambda: word_content_task(first, seed, sizes, words),
        "bigram-shift": lambda: bigram_shift_task(first, seed, sizes),
        "language": lambda: language_task(fit, seed, sizes),
    }
    return [makers[name]() for name in names or [name for name in makers if name != "language" or len(fit) > 1]]


def senteval_tasks(paths: Sequence[Path]) -> list[ProbingTask]:
    """Of files, and of all of SentEval's files in folders."""
    return [read_task(file) for path in paths for file in (find_files(path) if path.is_dir() else [path])]


def probing_study(
    systems: Systems,
    tasks: Sequence[ProbingTask],
    folder: str | Path,
    layers: Sequence[int] | None = None,
    classifiers: Sequence[Classifier] | None = None,
    preset: str = "multi-level",
    seed: int = 1,
    cache: str | Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
    pooling: str | None = None,
    **reading: Any,
) -> Study:
    """Every system on every task; each result is written into `folder` at once, and read there when it is asked again.

    layers: None for the last one of each encoder. pooling: of `embed_texts`, "flat", "mean" or "row 3": the model's
    embeddings (of an attention bridge, where there is one) in place of a layer's states.
    """
    study = Study("probing")
    if pooling is not None and layers:
        raise UserError("a layer's states or the model's embeddings: give layers or a pooling, not both.")
    chosen: dict[str, list[Any]] = {
        name: _layers(name, parts, layers) if pooling is None else [pooling] for name, parts in systems.items()
    }
    for task in tasks:
        for name, parts in systems.items():
            for layer in chosen[name]:
                for classifier in classifiers or CLASSIFIERS:
                    settings = PRESETS[preset]
                    key = probe_key(parts, task, layer, classifier, settings, seed)
                    row = _read(path := Path(folder) / DONE / f"{key}.json")
                    if row is None:
                        vectors = cache or Path(folder) / "vectors"
                        row = probe(parts, task, layer, classifier, settings, seed, vectors, **reading)
                        write_json(path, row)
                        place = f"layer {layer}" if isinstance(layer, int) else layer
                        tell(f"{name}, {task.name}, {place}, {classifier}: {row['accuracy']:.2f}")
                    study.rows.append({"system": name, **row})
    several = len({row["layer"] for row in study.rows}) > 1
    study.summary = [
        {
            **{key: row[key] for key in ("system", "task", "layer", "classifier")},
            "accuracy": f"{row['accuracy']:.2f}",
            "95 %": f"{row['low']:.1f} to {row['high']:.1f}",
            "most frequent": f"{row['majority']:.1f}",
        }
        for row in study.rows
    ]
    study.figures["probing"] = _figure(study.rows, several)
    return study


def _layers(name: str, parts: Any, layers: Sequence[int] | None) -> list[int]:
    if has_modules(parts.model):
        raise named(name, UserError("a model of several encoders is read at its bridge: give a pooling, such as flat."))
    try:
        return [check_layer(parts.model, layer) for layer in layers] if layers else [layer_count(parts.model)]
    except UserError as error:
        raise named(name, error) from error


def _figure(rows: Sequence[dict[str, Any]], several: bool) -> Any:
    names = list(dict.fromkeys(row["task"] for row in rows))
    titles = {"mlp": "two-layer perceptron", "logistic": "logistic regression"}
    panels: dict[str, dict[str, list[figures.Interval]]] = {}
    for row in rows:
        series = f"{row['system']}, layer {row['layer']}" if several else row["system"]
        line = panels.setdefault(titles[row["classifier"]], {}).setdefault(series, [(None, None, None)] * len(names))
        line[names.index(row["task"])] = (row["accuracy"], row["low"], row["high"])
    majorities = {row["task"]: row["majority"] for row in rows}
    levels = "most frequent class", [majorities[name] for name in names]
    return figures.points(panels, names, "", "accuracy (%)", levels)


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
