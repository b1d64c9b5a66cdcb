"""A study: one question asked of several systems; its rows, figures, texts, and a summary for the terminal.

Its files are JSON with the settings, the same rows as csv, and figures beside them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_mlnmt.analysis import figures
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import file_name, write_json, write_text
from hf_mlnmt.evaluation.results import versions

SCHEMA = "hf_mlnmt.analysis/1"


def write_rows(
    folder: str | Path, stem: str, what: str, rows: Sequence[dict[str, Any]], settings: dict[str, Any], **more: Any
) -> list[Path]:
    """Write `stem`.json (rows, settings, versions) and `stem`.csv (rows), numbers not rounded; returns the paths."""
    content = {"schema": SCHEMA, "what": what, "settings": settings, "versions": versions(), **more, "rows": list(rows)}
    json_path = write_json(Path(folder) / f"{stem}.json", content)
    return [json_path, write_text(Path(folder) / f"{stem}.csv", to_csv(rows))]


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Returns rows as csv, a column for every key that a row has, in the order of first use; None is empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@dataclass
class Study:
    """`rows`: every number; `summary`: a few of them, for the terminal; `figures` and `texts` by their files' names.

    `note`: what a reader of a figure alone has to know besides: the sample, what intervals and marks are.
    """

    stem: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def of(self, test: str) -> Study:
        """Returns the study under names that hold a test set's, where several test sets are studied."""
        figures = {f"{stem}.{file_name(test)}": figure for stem, figure in self.figures.items()}
        return replace(self, stem=f"{self.stem}.{file_name(test)}", figures=figures)

    def write(self, folder: str | Path, settings: dict[str, Any]) -> list[Path]:
        """Writes JSON, csv, png, svg and text files; returns their paths."""
        paths = write_rows(folder, self.stem, self.stem, self.rows, settings)
        for stem, figure in self.figures.items():
            figures.caption(figure, self.note)
            paths += figures.save(figure, folder, stem)
        return paths + [write_text(Path(folder) / name, text) for name, text in self.texts.items()]


@contextmanager
def naming(system: str) -> Iterator[None]:
    """Lets a UserError from inside name the system that it is about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{system}: {error}") from error
