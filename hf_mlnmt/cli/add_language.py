"""`hf-mlnmt add-language`: a new encoder or decoder for a trained model of many languages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.cli.recipes import DataFolder, Settings


def add_language(
    model: Annotated[str, typer.Argument(help="Folder of a trained model of many languages.")],
    recipe: Annotated[Path, typer.Argument(help="Recipe whose tasks name the new language and one that is there.")],
    data: DataFolder = Path(),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run. Default: runs/<recipe>.")
    ] = None,
    settings: Settings = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, train nothing.")] = False,
) -> None:
    """Train the modules of a new language; the bridge and all other languages stay as they are, bit for bit.

    The recipe is one of any training (`hf-mlnmt train`), with tasks for the pairs of the new language, and no model:
    the model and its tokenizer are those of MODEL. Stopped, it goes on. The finished model has all languages.

    Example:

        hf-mlnmt add-language runs/bridge/average french.yaml --data data/multi30k -o runs/bridge-fr
    """
    from hf_mlnmt.training import run_recipe

    own = [f"model.add_to={Path(model).resolve() if Path(model).is_dir() else model}"]
    run_recipe(recipe, data, output, [*(settings or []), *own], dry_run=dry_run)
