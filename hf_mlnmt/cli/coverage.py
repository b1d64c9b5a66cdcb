"""`hf-mlnmt coverage`: a picture of what a translation's attention has read of its source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def coverage(
    model: Annotated[str, typer.Argument(help="Model folder or Hub name.")],
    sentence: Annotated[str, typer.Argument(help="The sentence to translate.")],
    translation: Annotated[
        str | None, typer.Option("--translation", "-t", help="Look at this translation, not at the model's own.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture: .png, .svg or .pdf.")] = Path(
        "coverage.png"
    ),
    layer: Annotated[
        int | None, typer.Option(min=1, help="One decoder layer, counted from 1; all of them if left out.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(min=1, help="One head, counted from 1; the mean of all if left out.")
    ] = None,
    beams: Annotated[int, typer.Option("--beams", min=1, help="Beam size of the translation.")] = 5,
) -> None:
    """Draw how much attention each source subword has had, target subword by target subword, and the fertilities.

    Works for every model of this package with attention over source positions; only the system fertility has
    fertilities (how many target subwords each source subword is expected to need). Needs matplotlib.

    Example:

        hf-mlnmt coverage runs/demo/average "The cat sees a bird." -o coverage.png
    """
    from transformers.utils import logging

    from hf_mlnmt.analysis.coverage import check_picture, draw, measure
    from hf_mlnmt.generation.loading import load

    check_picture(output)

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    found = measure(load(model), sentence, translation, beams)
    typer.echo(f"{draw(found, output, layer, head, Path(model).name)}: {' '.join(found.target)}", err=True)
