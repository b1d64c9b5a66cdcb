"""Where the records modeling/<stem>.json, training/<stem>.yaml and model_cards/<stem>.md are: checkout or wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hf_mlnmt.errors import UserError, suggest

Kind = Literal["modeling", "training", "model_cards"]
SUFFIXES: dict[Kind, str] = {"modeling": ".json", "training": ".yaml", "model_cards": ".md"}


def records_root() -> Path:
    """The folder that holds modeling/, training/ and model_cards/: inside an installed wheel, else the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "records"
    return installed if installed.is_dir() else package.parent


def stems(root: Path | None = None) -> list[str]:
    """The names of all records below `root`, by default this project's own."""
    return sorted(path.name.removesuffix(".json") for path in ((root or records_root()) / "modeling").glob("*.json"))


def record_path(kind: Kind, name: str | Path) -> Path:
    """`name` itself if it is a file, else the record of that stem.

    Raises: UserError naming the nearest stem.
    """
    if Path(name).is_file():
        return Path(name)
    path = records_root() / kind / f"{Path(name).name.removesuffix(SUFFIXES[kind])}{SUFFIXES[kind]}"
    if path.is_file() and Path(name).parent in (Path(), Path(kind)):
        return path
    raise UserError(
        f"{name}: no such file, and no record of that name{suggest(str(name), stems())}. Records: {', '.join(stems())}."
    )
