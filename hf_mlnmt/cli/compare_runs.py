"""`hf-mlnmt compare-runs`: finished trainings side by side with a baseline, kept as JSON and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.errors import UserError


def compare_runs(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders that `hf-mlnmt train` has made; the first is the baseline.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the comparison, new or to be added to.")],
    data: Annotated[
        Path, typer.Option("--data", "-d", help="Folder of the raw references, the same --data as in training.")
    ] = Path(),
    bootstrap: Annotated[int, typer.Option(min=1, help="Resamples of the paired bootstrap.")] = 1000,
    trials: Annotated[int, typer.Option(min=1, help="Shufflings of approximate randomisation.")] = 10_000,
    seed: Annotated[int, typer.Option(min=1, help="Of both tests.")] = 12345,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Processes for the tests; the numbers do not depend on it.")
    ] = 1,
) -> None:
    """Compare training runs that differ in the model alone: scores, paired tests against the first, one page of tables.

    Example, the first run being the baseline:

        hf-mlnmt compare-runs runs/transformer.multi30k-ende runs/*.multi30k-ende --data DIR -o results/my-comparison

    Runs with another recipe, seed, data or budget are refused, and the fields named. Unfinished runs are passed over:
    the same command adds them later and keeps what is there. To compare translations of any origin use `compare`.
    """
    from rich.console import Console

    from hf_mlnmt.files import check_folder_name
    from hf_mlnmt.reports.comparison import PAGE, add_runs, comparison_of
    from hf_mlnmt.reports.comparison_page import narrow_tables

    folders = list({path.resolve(): path for path in runs}.values())  # `runs/*` holds the baseline too
    if len(folders) < 2:
        raise UserError("compare-runs needs the baseline's run and at least one other.")
    check_folder_name(output)
    console = Console()

    def tell(text: str) -> None:
        typer.echo(text, err=True)

    add_runs(folders, output, data, tell, bootstrap=bootstrap, trials=trials, seed=seed, jobs=jobs)
    for table in narrow_tables(comparison_of(output)):
        console.print(table)
    typer.echo(f"written to {output / PAGE} and the JSON files beside it", err=True)
