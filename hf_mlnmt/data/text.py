"""Text of one language as a stream of sentences: plain or gz text, one column of tsv, jsonl, parquet or a data set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.filters import FilterReport
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.errors import UserError

TextSide = Literal["source", "target"]
_TABLES = (".tsv", ".jsonl", ".json", ".parquet")


@dataclass
class TextSpec:
    """Where text of one language is; one of `path` and `dataset`. Paths are relative to the data folder.

    path: a file of one sentence a line, plain or gz; or .tsv, .jsonl (both also .gz) or .parquet with `column`.
    dataset: a name on the Hub, or a folder, with `column`; with `config`, `split` and `streaming` as of `CorpusSpec`.
    column: the field that holds the text; of tsv a name of its header line or a number from 1.
    language: two letters.
    side: whose vocabulary and text processing it gets; unless told, that of the languages' side that `language` is.
    limit: only the first so many sentences.
    weight, bad_lines: as of `CorpusSpec`.
    """

    path: str | None = None
    dataset: str | None = None
    config: str | None = None
    split: str = "train"
    streaming: bool = False
    column: str | int | None = None
    language: str | None = None
    side: TextSide | None = None
    limit: int | None = None
    weight: float = 1.0
    bad_lines: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.dataset):
            raise UserError("text: give one of path and dataset.")
        if self.is_table != (self.column is not None):
            has = "has columns: say with column which one is the text." if self.is_table else "has no columns."
            raise UserError(f"text: {self} {has}")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"text: limit must be at least 1, not {self.limit}.")
        if not self.weight > 0:
            raise UserError(f"text: weight must be above 0, not {self.weight}. Leave the text out instead.")

    @property
    def is_table(self) -> bool:
        """Whether the text is one column of several, and not a file of lines."""
        suffixes = [suffix for suffix in Path(self.path or "").suffixes if suffix != ".gz"]
        return self.dataset is not None or (suffixes[-1:] != [] and suffixes[-1].lower() in _TABLES)

    def __str__(self) -> str:
        return self.path or " ".join(filter(None, [self.dataset, self.config, self.split]))

    def reading(self) -> tuple[Any, ...]:
        """What decides how the text is read, but for the files themselves."""
        usual = (self.dataset, self.config, self.split, self.column, self.language, self.side, self.bad_lines)
        return usual if self.limit is None else (*usual, self.limit)

    def local_files(self, root: str | Path = ".") -> list[Path]:
        """The files that are read; none for a data set."""
        return [Path(root) / self.path] if self.path else []


def read_text(spec: TextSpec, root: str | Path = ".", report: FilterReport | None = None) -> Iterator[str]:
    """Yield sentences in order, empty ones included; `report` and errors as of `read_pairs`."""
    report = report if report is not None else FilterReport()
    if spec.limit is not None:
        yield from islice(read_text(replace(spec, limit=None), root, report), spec.limit)
        return
    if spec.is_table:
        both = CorpusSpec(
            path=spec.path,
            dataset=spec.dataset,
            config=spec.config,
            split=spec.split,
            streaming=spec.streaming,
            columns={"source": spec.column, "target": spec.column},
            bad_lines=spec.bad_lines,
        )
        yield from (text for text, _ in read_pairs(both, root, report))
        return
    problems: list[str] = []
    note = (lambda reason, number, text: problems.append(reason)) if spec.bad_lines == "drop" else None
    for text in read_lines(Path(root) / str(spec.path), note):
        if problems:
            report.drop(problems.pop(), text)
        else:
            yield text
