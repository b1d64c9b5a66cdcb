"""What a comparison of systems says beyond scores: by source length, faulty outputs, every sentence with its chrF."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_mlnmt.analysis.curves import FILE as METRICS
from hf_mlnmt.analysis.curves import read_metrics
from hf_mlnmt.analysis.outputs import output_statistics, scores_by_length, sentence_scores
from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.language import LanguageGuesser
from hf_mlnmt.evaluation.scores import Lines

OWN, OTHER = "the source's", "the reference's"
SHOWN = 20


@dataclass(frozen=True)
class Extras:
    """`lengths`, `statistics`: rows, empty without sources; `chrf`: {system: of each sentence}; texts of one run."""

    references: Lines
    outputs: Mapping[str, Lines]
    chrf: Mapping[str, Sequence[float]]
    sources: Lines | None = None
    lengths: Sequence[Mapping[str, Any]] = ()
    statistics: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = field(default=())

    def differences(self, count: int = SHOWN) -> dict[str, list[dict[str, Any]]]:
        """{system: the sentences with the largest gains and losses of chrF against the first}, lines from 1."""
        baseline, *others = self.outputs
        found = {}
        for name in others:
            pairs = zip(self.chrf[name], self.chrf[baseline], strict=True)
            gaps = sorted(
                ((own - base, line) for line, (own, base) in enumerate(pairs, 1) if own != base), reverse=True
            )
            both = [*gaps[:count], *gaps[count:][-count:]]
            found[name] = [{"line": line, "difference": round(gap, 2)} for gap, line in both]
        return found

    def to_dict(self) -> dict[str, Any]:
        """For the JSON file: no texts, which are the user's own files."""
        content = {"lengths": list(self.lengths), "statistics": list(self.statistics)}
        return {key: value for key, value in content.items() if value} | {"differences": self.differences()}


def extras_of(
    outputs: Mapping[str, Lines],
    references: Sequence[Lines],
    sources: Lines | None,
    starts: Sequence[int],
    **scoring: Any,
) -> Extras:
    """Everything that can be said of one run of each system.

    sources: None where they are not known; then there are no lengths and no statistics. starts: where groups of source
    lengths, in words, begin (analysis.lengths). scoring: protocol, language, bootstrap and seed of the lengths.
    """
    chrf = {name: sentence_scores(lines, references) for name, lines in outputs.items()}
    if sources is None:
        return Extras(references[0], outputs, chrf, notes=["no --source: no lengths, no statistics of outputs"])
    counts = [len(line.split()) for line in sources]
    lengths = scores_by_length(outputs, references, counts, starts, **scoring)
    guess = LanguageGuesser({OWN: sources, OTHER: references[0]})
    statistics = [_statistics(name, lines, sources, references, guess) for name, lines in outputs.items()]
    return Extras(references[0], outputs, chrf, sources, lengths, statistics)


def _statistics(name: str, lines: Lines, sources: Lines, references: Sequence[Lines], guess: Any) -> dict[str, Any]:
    found = output_statistics(sources, lines, references, guess.others(lines, OTHER).__contains__)
    shares = {kind: value["share"] for kind, value in found.items() if isinstance(value, dict)}
    return {"system": name, "length_ratio": found["length_ratio"], **shares}


def curves_of(paths: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """{system: lines of its training's metrics.jsonl} of those that are models in the folder of a run."""
    folders = {name: Path(path).resolve().parent for name, path in paths.items() if Path(path).is_dir()}
    return {name: read_metrics(folder) for name, folder in folders.items() if (folder / METRICS).is_file()}


def read_maps(folder: str | Path) -> dict[str, dict[str, dict[str, Any]]]:
    """{title of a map: {system: {rows, columns, values}}} of what `hf-mlnmt analyse attention -w maps` wrote.

    Raises: UserError when there is none, or it is broken.
    """
    paths = sorted(Path(folder).glob("maps.*.json"))
    if not paths:
        raise UserError(
            f"{folder}: no maps there. Make them: hf-mlnmt analyse attention MODELS -s FILE -w maps -o {folder}"
        )
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path in paths:
        try:
            side = path.name.split(".")[1]
            for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
                one = found.setdefault(f"{side}, {row['map']}", {}).setdefault(
                    row["system"], {"rows": {}, "columns": {}, "values": {}}
                )
                one["rows"][row["row"]], one["columns"][row["column"]] = row["from"], row["to"]
                one["values"][row["row"], row["column"]] = row["weight"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: not what `hf-mlnmt analyse attention -w maps` writes ({error!r}).") from error
    return {title: {name: _filled(one) for name, one in systems.items()} for title, systems in found.items()}


def _filled(one: dict[str, Any]) -> dict[str, Any]:
    rows, columns = sorted(one["rows"]), sorted(one["columns"])
    return {
        "rows": [one["rows"][y] for y in rows],
        "columns": [one["columns"][x] for x in columns],
        "values": [[one["values"].get((y, x), 0.0) for x in columns] for y in rows],
    }
