"""What the commands that train are told beside their recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataFolder = Annotated[
    Path, typer.Option("--data", "-d", help="Folder that the file names of recipes are relative to.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY.SUB=VALUE", help="Replace a key of the recipe. Give it again for more."),
]
RecipeSeed = Annotated[int | None, typer.Option("--seed", min=0, help="Replace the recipe's seed.")]
