"""`hf-mlnmt demo`: trains, scores, publishes and reloads a small translation model, on a corpus of our own."""

from pathlib import Path

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import option

PANEL = "First steps"


def demo(
    output: Path = options.output(Path("demo"), "Folder for corpus, run and model."),
    seed: int = option(1, "Seed of the corpus and of the training.", min=0),
    small: bool = option(False, "Train for seconds: whether everything works, not how well it translates."),
) -> None:
    """Train, score, try, publish and reload a small English-German model: minutes on two cores, no network.

    The corpus is written by a grammar of the project's own; its test set has combinations of words that are not in the
    training set. The same command resumes an interrupted demo. Afterwards, try words of your own:

        echo "The cat sees a bird." | hf-mlnmt translate demo/run/average
    """
    from rich.console import Console

    from hf_mlnmt.cli.processes import cores, run_in_processes
    from hf_mlnmt.demo.tour import tour

    code = tour(output, seed, small, min(2, cores()), run_in_processes, Console(stderr=True))
    if code:
        raise typer.Exit(code)
