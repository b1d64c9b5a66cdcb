"""`hf-mlnmt model average`: one model from the mean weights of several checkpoints."""

from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import argument, option


def average(
    checkpoints: Annotated[list[Path], argument(..., "Model or checkpoint folders; or one run's folder, with --last.")],
    output: options.ModelToWrite,
    last: int | None = option(None, "Take the last N checkpoints of the run's folder.", min=1),
    force: options.Force = False,
) -> None:
    """Average the weights of checkpoints of one architecture.

    Config, tokenizers and generation settings are those of the last one named; the direction is kept in results.json.

    Example:

        hf-mlnmt model average runs/a --last 5 -o average-of-5
    """
    from hf_mlnmt.common.files import check_new_folder
    from hf_mlnmt.training.checkpoints import checkpoints_to_average, write_model

    check_new_folder(output, force, "config.json")
    folders = checkpoints_to_average(checkpoints, last)
    write_model(output, folders[-1], folders)
    typer.echo(f"{output}: the average of {', '.join(map(str, folders))}", err=True)
