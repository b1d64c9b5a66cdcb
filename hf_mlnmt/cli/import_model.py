"""`hf-mlnmt import`: a model of another format as one of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_model(
    model: Annotated[str, typer.Argument(help="Folder or file of the other format, or a Hub name.", metavar="MODEL")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder to make. An earlier import there is replaced, nothing else."),
    ],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.")] = None,
) -> None:
    """Make a model folder from OPUS-MT, NLLB, M2M100, BART, mBART or another toolkit's checkpoint.

    Weights, tokenizer and generation settings are taken over. Where the original's own code is at hand the outputs are
    compared; import.json in the folder says how, and which tensor went where. See docs/opus-mt.md.

    Example:

        hf-mlnmt import Helsinki-NLP/opus-mt-en-de --output opus-en-de
    """
    from rich.console import Console
    from transformers.utils import logging

    from hf_mlnmt.convert import import_model as convert

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    imported = convert(model, output, tell=console.print, **({"revision": revision} if revision else {}))
    for note in imported.record["notes"]:
        console.print(f"note: {note}")
    if (difference := imported.record["largest_difference_of_logits"]) is not None:
        console.print(f"largest difference of logits from the original's: {difference:.2g}")
    print(imported.folder)
