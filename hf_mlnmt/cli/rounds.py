"""`hf-mlnmt rounds`: trainings that translate for one another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.cli.recipes import DataFolder, RecipeSeed, Settings


def rounds(
    recipe: Annotated[Path, typer.Argument(help="A recipe with the key rounds, or the name of a record.")],
    data: DataFolder = Path(),
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of all rounds. Unless given: runs/<recipe>, with --seed's number."),
    ] = None,
    set_: Settings = None,
    seed: RecipeSeed = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all rounds and print what they would cost; leave nothing.")
    ] = False,
) -> None:
    """Train in rounds: each on what the model of an earlier round translated for it (iterated back-translation).

    Stopped at any moment and started again with the same command, it goes on in the middle of the round. The folder
    then holds a training for each round, <round>/average and so on, and its synthetic corpus, <round>.synthetic.

    Example:

        hf-mlnmt rounds my-rounds.yaml --data DIR --dry-run

    docs/monolingual-back-translation.md describes the key.
    """
    from rich.console import Console

    from hf_mlnmt.cli.progress import LinesProgress
    from hf_mlnmt.generation.back_translation import Watcher
    from hf_mlnmt.training.callbacks import Interrupted
    from hf_mlnmt.training.rounds import Rounds

    console = Console(stderr=True)

    def tell(text: str, style: str | None = None) -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    plan = Rounds(recipe, data, output, set_ or [], seed, console)
    if dry_run:
        plan.dry()
        return
    progress = LinesProgress(console)
    try:
        plan.run(Watcher(tell, lambda text: tell(f"warning: {text}", "yellow"), progress.show))
    except Interrupted as interrupted:
        tell(str(interrupted))
        raise typer.Exit(128 + interrupted.signum) from interrupted
    finally:
        progress.close()
