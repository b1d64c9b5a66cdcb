"""`hf-mlnmt analyse curves`: how trainings went, one or several in one picture."""

from pathlib import Path

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import NamedPath, by_name, named_argument, option
from hf_mlnmt.cli.terminal import finish


def curves(
    runs: list[NamedPath] = named_argument(..., "Folders of runs; NAME=PATH gives a name for the figure."),
    output: Path = options.output_folder(
        Path("curves"), "Folder for curves.png, curves.svg, curves.csv and curves.json."
    ),
    over: str = option("step", "step or epoch: what the curves are drawn over."),
) -> None:
    """Draw losses, dev scores, learning rate and speed of trainings, finished or still going: png, svg, csv, JSON.

    Example:

        hf-mlnmt analyse curves runs/transformer runs/enc-dc -o comparison
    """
    from hf_mlnmt.evaluation.curves import curves_study, read_metrics

    named = by_name(runs)
    study = curves_study({name: read_metrics(path) for name, path in named.items()}, over)
    finish(study, output, {"runs": named, "over": over})
