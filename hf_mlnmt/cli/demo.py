"""`hf-mlnmt demo`: everything from nothing to a published, reloaded translation model, on a corpus of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.cli import options

PANEL = "First steps"


def demo(
    output: Annotated[Path, options.output("Folder for corpus, run and model.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the corpus and of the training.")] = 1,
    small: Annotated[
        bool, typer.Option("--small", help="Train for seconds: whether everything works, not how well it translates.")
    ] = False,
) -> None:
    """Train, score, try, publish and reload a small English-German model: minutes on two cores, no network.

    The corpus is written by a grammar of the project's own; its test set holds combinations of words that training
    never shows. Started again after an interruption it goes on where it was. Afterwards, try words of your own:

        echo "The cat sees a bird." | hf-mlnmt translate demo/run/average
    """
    from rich.console import Console

    from hf_mlnmt.cli.processes import cores, run_in_processes
    from hf_mlnmt.demo.tour import tour

    code = tour(output, seed, small, min(2, cores()), run_in_processes, Console(stderr=True))
    if code:
        raise typer.Exit(code)
