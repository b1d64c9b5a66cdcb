"""A study: one question asked of several systems; its rows, figures, texts, and a summary for the terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_mlnmt.analysis import figures
from hf_mlnmt.analysis.writing import write_rows
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import write_text


@dataclass
class Study:
    """`rows`: every number; `summary`: a few of them, for the terminal; `figures` and `texts` by their files' names."""

    stem: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def write(self, folder: str | Path, settings: dict[str, Any]) -> list[Path]:
        """JSON, csv, png, svg and text files; returns their paths."""
        paths = write_rows(folder, self.stem, self.stem, self.rows, settings)
        for stem, figure in self.figures.items():
            paths += figures.save(figure, folder, stem)
        return paths + [write_text(Path(folder) / name, text) for name, text in self.texts.items()]


def named(name: str, error: UserError) -> UserError:
    """The same error, saying which system it is about."""
    return UserError(f"{name}: {error}")
