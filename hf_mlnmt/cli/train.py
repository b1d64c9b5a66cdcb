"""`hf-mlnmt train`: a whole training from a recipe, or several that translate for one another."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.cli import options

PANEL = "Train"


def train(
    recipe: Annotated[
        Path, typer.Argument(help="A setup of this project such as multi30k-ende, a folder like it, or a YAML file.")
    ],
    system: Annotated[
        str | None,
        typer.Option(
            help="What is trained: a system of the zoo, m-10, or a recipe of the setup. Default: the recipe's."
        ),
    ] = None,
    data: options.DataFolder = Path(),
    output: Annotated[
        Path | None,
        options.output(
            "Folder of this run, or of all rounds. Unless given: runs/<recipe>, with the seed if --seed is."
        ),
    ] = None,
    set_: options.Settings = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Replace the recipe's seed.")] = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes", "-p", min=1, help="Processes on this machine: GPUs, or cores. Each has batch.tokens a step."
        ),
    ] = 1,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check everything; print sizes, batches, steps and an estimate of time and memory; leave nothing.",
        ),
    ] = False,
) -> None:
    """Train a model: tokenizer, data, training, averaging, scores, a complete model folder.

    Stopped at any moment (Ctrl-C, SIGTERM, kill) and started again with the same command, it goes on from the
    last checkpoint and ends with the same weights. Several processes: `--processes 2`, or `accelerate launch` or
    `torchrun` with `-m hf_mlnmt train ...`. The run's folder then holds average/ and best/ (models to translate with
    or to publish), results.json, metrics.jsonl, curves.png and checkpoints/.

    A run is amended by starting it again with other test sets, decoding, `checkpoints.average` or, where the schedule
    allows it, a longer budget or another number of short cycles at the end: only what changed is done again.

    A recipe with the key `rounds` is several trainings, each on what the model of an earlier round translated for it
    (iterated back-translation). The folder then holds a training for each round, <round>/average and so on, and its
    synthetic corpus, <round>.synthetic (docs/monolingual-back-translation.md).

    `--set model.add_to=MODEL` trains a new language of a trained model of many languages. Its bridge and all other
    languages stay as they are, bit for bit; the model and its tokenizer are those of MODEL. The recipe has tasks for
    the pairs of the new language, and no model. The finished model has all languages (docs/multilingual.md).

    Examples:

        hf-mlnmt train multi30k-ende --system m-10 --data DIR --dry-run
        hf-mlnmt train my-recipe.yaml --data DIR
        hf-mlnmt train french.yaml --data DIR --set model.add_to=runs/bridge/average -o runs/bridge-fr
    """
    from hf_mlnmt.cli.processes import (
        LOST,
        end_at_once,
        end_with_parent,
        lost_the_others,
        run_in_processes,
        without_processes,
    )

    started_by_us = end_with_parent()
    if processes > 1:
        raise typer.Exit(run_in_processes(processes, without_processes(sys.argv[1:])))

    from accelerate import PartialState
    from rich.console import Console

    from hf_mlnmt.cli.terminal import LinesProgress
    from hf_mlnmt.training import run_recipe
    from hf_mlnmt.training.callbacks import Interrupted

    code = 0
    try:
        with LinesProgress(console := Console(stderr=True)) as progress:
            watcher = progress.watcher()
            run_recipe(recipe, data, output, set_ or [], seed, dry_run, console, watcher=watcher, system=system)
    except Interrupted as interrupted:
        typer.echo(str(interrupted), err=True)
        code = 128 + interrupted.signum
    except (RuntimeError, OSError) as error:
        if not lost_the_others(error):
            raise
        if not started_by_us:
            typer.echo("error: the connection to another process was lost: see what that one says.", err=True)
        sys.stderr.flush()
        os._exit(LOST)  # closing the group would wait for the others, and ending without it may abort
    if started_by_us:
        end_at_once(code)
    # A group of processes still open when Python ends aborts the process now and then: its threads outlive what they
    # use. After an error it stays open, as closing could wait for a process that never comes.
    PartialState().destroy_process_group()
    if code:
        raise typer.Exit(code)
