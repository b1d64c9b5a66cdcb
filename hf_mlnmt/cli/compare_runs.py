"""`hf-mlnmt compare-runs`: finished trainings side by side with a baseline, kept as JSON and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.errors import UserError

PANEL = "Score"


def compare_runs(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders that `hf-mlnmt train` has made; the first is the baseline's, if OUTPUT has none."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the comparison, new or to be added to.")],
    data: Annotated[
        Path, typer.Option("--data", "-d", help="Folder of the raw references, the same --data as in training.")
    ] = Path(),
    methods: Annotated[
        bool,
        typer.Option(
            "--methods",
            help="The runs are ways to train, not models: recipe, data and budget may differ; a comparison keeps this.",
        ),
    ] = False,
    bootstrap: Annotated[int, typer.Option(min=1, help="Resamples of the paired bootstrap.")] = 1000,
    trials: Annotated[int, typer.Option(min=1, help="Shufflings of approximate randomisation.")] = 10_000,
    seed: Annotated[int, typer.Option(min=1, help="Of the tests.")] = 12345,
) -> None:
    """Compare training runs that differ in the model alone, of one seed or several: means, tests, one page of tables.

    Example, the first run being one of the baseline's:

        hf-mlnmt compare-runs runs/transformer.seed* runs/m-10.seed* --data DIR -o results/my-comparison

    Each system is tested against the baseline over the seeds that both have. Runs with another recipe, data or budget
    are refused, and the fields named; with --methods only those with other languages, test sets or decoding are.
    Unfinished runs are passed over: the same command adds them later, and keeps what is there even if its runs are
    gone. To compare translations of any origin use `compare`.
    """
    from rich.console import Console

    from hf_mlnmt.files import check_folder_name
    from hf_mlnmt.reports.comparing import add_runs
    from hf_mlnmt.reports.comparison import COMPARISON, PAGE, read_comparison
    from hf_mlnmt.reports.comparison_page import narrow_tables

    folders = list({path.resolve(): path for path in runs}.values())  # `runs/*` holds the baseline too
    if len(folders) < 2 and not (output / COMPARISON).is_file():
        raise UserError("compare-runs needs the baseline's run and at least one other.")
    check_folder_name(output)
    console = Console()

    def tell(text: str) -> None:
        typer.echo(text, err=True)

    add_runs(folders, output, data, tell, methods, bootstrap=bootstrap, trials=trials, seed=seed)
    for table in narrow_tables(read_comparison(output)):
        console.print(table)
    typer.echo(f"written to {output / PAGE} and the files beside it", err=True)
