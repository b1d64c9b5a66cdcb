"""`hf-mlnmt matrix`: the scores of a model of many languages, from each into each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PANEL = "Score"


def matrix(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run of a recipe with `directions`.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="The recipe's data folder: also measure how many translations are in a wrong language."
        ),
    ] = None,
    test: Annotated[str | None, typer.Option(help="The test sets' common name. Default: the first.")] = None,
    model: Annotated[str, typer.Option(help="average or best.")] = "average",
    metric: Annotated[str, typer.Option("--metric", "-m", help="bleu, chrf or ter.")] = "bleu",
    protocol: Annotated[str, typer.Option(help="classic or cased (docs/scores.md).")] = "classic",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for matrix.json and a picture. Default: the run's.")
    ] = None,
) -> None:
    """Print the scores of all pairs of languages as a table, and draw it; pairs that were not trained have a star.

    The wrong-language share comes from a classifier of character n-grams that is trained on the training corpora; its
    own accuracy, on the references, stands beside it. The picture needs matplotlib.

    Example:

        hf-mlnmt matrix runs/bridge-rnn.multi30k-many --data data/multi30k
    """
    from rich.console import Console

    from hf_mlnmt.analysis.figures import Panel, heat_maps, save
    from hf_mlnmt.evaluation.matrix import read_matrix
    from hf_mlnmt.files import write_json

    found = read_matrix(run, test, model, protocol, metric, data)
    console = Console()
    console.print(found.table())
    values = [[found.scores.get(f"{source}-{target}") for target in found.targets] for source in found.sources]
    panels = [Panel(f"{metric} ({protocol})", values, found.sources, found.targets)]
    if found.off_target:
        console.print(found.off_target_table())
    folder = output or run
    written = [write_json(folder / "matrix.json", found.to_dict())]
    written += save(heat_maps(panels, "from", "to", metric), folder, "matrix")
    typer.echo(", ".join(map(str, written)), err=True)
