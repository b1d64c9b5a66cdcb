"""What the commands of the analysis share: options, loading several models, writing and telling what was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_mlnmt.errors import UserError

if TYPE_CHECKING:
    from hf_mlnmt.analysis.study import Study
    from hf_mlnmt.generation.loading import Parts

Models = Annotated[
    list[str], typer.Argument(help="Model folders or Hub names; NAME=PATH gives a name for the figures.")
]
SourceFile = Annotated[Path, typer.Option("--source", "-s", help="Sentences, one a line (text or .gz).")]
OutputFolder = Annotated[Path, typer.Option("--output", "-o", help="Folder for JSON, csv and figures.")]
SampleSize = Annotated[int, typer.Option("--sample", "-n", min=0, help="Sentences to draw from the file; 0: all.")]
SampleSeed = Annotated[int, typer.Option(min=0, help="Seed of the sample.")]
SourceLanguage = Annotated[str | None, typer.Option(help="Source language code of a multilingual model.")]
TargetLanguage = Annotated[str | None, typer.Option(help="Target language code of a multilingual model.")]


def tell(text: str) -> None:
    """Print a line on standard error."""
    typer.echo(text, err=True)


def name_models(arguments: list[str]) -> dict[str, str]:
    """{name: path} from NAME=PATH or PATH, whose name is the run's: `ms-1` of runs/ms-1/average.

    Raises: UserError for one name twice.
    """
    found: dict[str, str] = {}
    for argument in arguments:
        name, given, path = argument.partition("=")
        if not given or Path(argument).exists():
            path, folder = argument, Path(argument).resolve()
            name = folder.parent.name if folder.name in ("average", "best", "hub") else folder.name
        if name in found:
            raise UserError(f"two models are called {name!r}; give each a name of its own with NAME=PATH.")
        found[name] = path
    return found


def load_systems(arguments: list[str], device: str | None) -> dict[str, Parts]:
    """Every model with its tokenizers, by name."""
    from transformers.utils import logging

    from hf_mlnmt.generation.loading import load

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return {name: load(path, device) for name, path in name_models(arguments).items()}


def tell_eager(systems: dict[str, Any]) -> None:
    """Say which models are switched to the implementation of attention that returns its weights."""
    for name, parts in systems.items():
        if (used := parts.model.config._attn_implementation) != "eager":
            tell(f"{name}: attention is computed by 'eager' here, as {used!r} returns no weights")


def finish(study: Study, output: Path, settings: dict[str, Any]) -> None:
    """Write a study, print its summary and say where the files are."""
    print_rows(study.stem, study.summary)
    paths = study.write(output, settings)
    tell(f"{study.stem}: written to {output}: " + ", ".join(path.name for path in paths))


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Rows as a table on the terminal; numbers with up to four digits behind the point."""
    from rich.console import Console

    from hf_mlnmt.table import Number, Table

    names = list(dict.fromkeys(key for row in rows for key in row))
    columns = [
        Number(name) if all(isinstance(row.get(name, 0), (int, float)) for row in rows) else name for name in names
    ]
    Console().print(Table(columns, [[_cell(row.get(name)) for name in names] for row in rows], title))


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
