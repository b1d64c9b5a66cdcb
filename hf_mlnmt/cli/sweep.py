"""`hf-mlnmt sweep`: runs many trainings from a queue: recipes x values of keys x seeds."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import argument, option
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import variable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hf_mlnmt.training.sweep import Job

PANEL = "Train"


def sweep(
    recipes: list[str] = argument(..., "Setups of this project, folders like them, or YAML files."),
    system: str | None = option(None, "What is trained, m-10,enc-dc: systems of the zoo, recipes of the setup."),
    over: list[str] | None = option(None, "A key and its values: 2..8, a,b or [1],[1,2].", metavar="KEY=VALUES"),
    seeds: str | None = option(None, "Seeds of each point, 1,2,3 or 1..5. Unless given: the recipe's own."),
    data: options.DataFolder = Path(),
    output: Path | None = options.output(None, "Folder of the sweep. Default: sweeps/<recipe>, sweeps/zoo for many."),
    set_: options.Settings = None,
    jobs: int = option(1, "Trainings side by side.", "--jobs", "-j", min=1),
    processes: int = option(1, "Processes of each training.", "--processes", "-p", min=1),
    commands: bool = option(False, "Print a command for each run that is not finished, and start nothing."),
    dry_run: bool = option(False, "Check all recipes and data, list the runs, start nothing."),
) -> None:
    """Train many models: recipes, values of their keys, seeds; print a table at the end.

    The folder has the state of all runs. The same command resumes a stopped sweep: finished runs are left alone, failed
    ones are tried again. A run that fails does not stop the others; its output is in logs/. sweep.csv is written after
    each run. See docs/sweeps.md.

    Example:

        hf-mlnmt sweep multi30k-ende-short --system enc-dc --over model.settings.kernel_size=2..8 --seeds 1,2,3
        hf-mlnmt sweep multi30k-ende-short --seeds 1..8 --commands | parallel --jobs 4
    """
    from rich.progress import Progress

    from hf_mlnmt.cli.processes import check_processes, cores, start_alone
    from hf_mlnmt.cli.terminal import plain_console, show
    from hf_mlnmt.common.table import Number, Table
    from hf_mlnmt.training.folder import alone
    from hf_mlnmt.training.sweep import Queue, check_points, plan, read_values, state_of, write_table

    check_processes(jobs * processes, "--jobs times --processes")
    numbers = read_values(seeds, "--seeds") if seeds else None
    for number in numbers or ():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise UserError(f"--seeds: {number!r} is no seed; expected whole numbers such as 1,2,3 or 1..5.")
    systems = [name.strip() for name in system.split(",")] if system else []
    planned = plan(recipes, over or [], numbers, set_ or [], systems)
    stems = {job.recipe().stem for job in planned}
    root = output or Path("sweeps") / (stems.pop() if len(stems) == 1 else "zoo")
    if (root / "recipe.yaml").is_file():
        raise UserError(f"{root}: is the folder of one training. Choose another --output for the sweep.")
    console = plain_console()
    states = {job.name: state_of(root, job) for job in planned}
    if dry_run:
        check_points(planned, data, lambda text: console.print(text, style="yellow"))
        rows = [[str(number), job.name, states[job.name]] for number, job in enumerate(planned, 1)]
        show(Table([Number(""), "run", "state"], rows))
        return
    check_points([job for job in planned if states[job.name] != "finished"], data)

    def words(job: Job) -> list[str]:
        arguments = ["train", str(job.path), "--data", str(data), "--output", str(root / job.name)]
        arguments += ["--seed", str(job.seed), *(word for setting in job.settings for word in ("--set", setting))]
        return arguments + (["--processes", str(processes)] if processes > 1 else [])

    if commands:
        for job in planned:
            if states[job.name] != "finished":
                print(shlex.join(["hf-mlnmt", *words(job)]))
        return
    environment = {"OMP_NUM_THREADS": str(variable("OMP_NUM_THREADS", int, max(1, cores() // (jobs * processes))))}
    with alone(root), Progress(console=console, transient=True) as bar:
        task = bar.add_task("runs", total=len(planned))

        def watch(states: Mapping[str, str]) -> None:
            bar.update(task, completed=list(states.values()).count("finished"))
            write_table(root, planned, states)

        queue = Queue(root, lambda job, log: start_alone(words(job), log, environment), jobs, bar.console.print, watch)
        states = queue.run(planned)
    show(write_table(root, planned, states))
    if queue.signum is not None:
        console.print("stopped; the same command goes on.")
        raise typer.Exit(128 + queue.signum)
    if failed := [name for name, state in states.items() if state == "failed"]:
        raise UserError(f"{len(failed)} of {len(planned)} runs failed: {', '.join(failed)}. See {root / 'logs'}.")
