"""`hf-mlnmt fusion-grid`: which alpha and beta suit a fused model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def fusion_grid(
    model: Annotated[str, typer.Argument(help="Fused model folder (hf-mlnmt fuse), or a name on the Hub.")],
    source: Annotated[Path, typer.Option("--source", "-s", help="Sentences to translate (text or .gz).")],
    reference: Annotated[
        list[Path], typer.Option("--reference", "-r", help="Raw references (text or .gz); give it again for more.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for grid.json, .csv, .png and .svg.")],
    alpha: Annotated[
        list[float] | None, typer.Option("--alpha", "-a", help="A scale to try; repeat it. Default: the thesis's.")
    ] = None,
    beta: Annotated[
        list[float] | None, typer.Option("--beta", "-b", help="A scale to try; repeat it. Default: the thesis's.")
    ] = None,
    normalization: Annotated[
        str | None, typer.Option(help="symbol or sequence, in the place of the model's own.")
    ] = None,
    beams: Annotated[int | None, typer.Option(min=1, help="Beam size. Default: the model's own.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Exponent of the length normalisation.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest translation in tokens.")] = None,
    sentences: Annotated[
        int | None, typer.Option(min=1, help="Take only so many first sentences: a rough grid in less time.")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Source tokens in a batch, padding included.")] = 4096,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; default: a GPU where there is one.")] = None,
    progress: Annotated[bool, typer.Option(help="Progress bar on stderr, where that is a terminal.")] = True,
) -> None:
    """Translate and score a development set with every alpha and beta of a grid; print, keep and draw the scores.

    Without --alpha and --beta it is the thesis's grid: seven by eight with symbol-level normalization, seven of
    gamma = beta / alpha with sequence-level normalization, which knows nothing else; beta 0, the translation model
    alone, beside them. What is done is kept after every point: stopped, the same command goes on.

    Examples:

        hf-mlnmt fusion-grid fused -s val.de -r val.en -o grids/sequence
        hf-mlnmt fusion-grid fused -s val.de -r val.en -o grids/symbol --normalization symbol -a 0.5 -a 1 -b 0 -b 0.1
    """
    from rich.console import Console
    from transformers.utils import logging

    from hf_mlnmt.analysis.fusion_grid import Grid, draw, tables
    from hf_mlnmt.errors import UserError
    from hf_mlnmt.evaluation.outputs import read_references
    from hf_mlnmt.files import check_folder_name
    from hf_mlnmt.generation import TranslationPipeline
    from hf_mlnmt.generation.lines import text_groups

    if normalization not in (None, "symbol", "sequence"):
        raise UserError(f"--normalization {normalization}: choose symbol or sequence.")
    check_folder_name(output)
    logging.disable_progress_bar()
    references = [list(lines)[:sentences] for lines in read_references(reference)]
    sources = [line for group in text_groups([str(source)], 2048) for line in group][:sentences]
    if any(len(lines) != len(sources) for lines in references):
        raise UserError(f"{source} has {len(sources)} lines, {reference[0]} {len(references[0])}: not one set.")
    pipeline = TranslationPipeline.from_pretrained(model, device=device)
    if normalization is not None and hasattr(pipeline.model, "factors"):
        pipeline.model.config.normalization = normalization
    asked = {"num_beams": beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens}
    options: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    options["batch_tokens"] = batch_tokens
    grid = Grid(pipeline, sources, references, output, alpha, beta, options)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"{len(grid.points)} points, {len(grid.missing())} to do, {grid.normalization}-level normalization")
    rows = grid.run(progress)
    Console().print(*tables(rows), sep="\n")
    for path in draw(rows, output):
        console.print(str(path))
