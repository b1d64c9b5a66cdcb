"""`hf-mlnmt analyse fusion-grid`: which alpha and beta suit a fused model."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import TRANSLATION, argument, decoding_options, option
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.options import DecodingOptions


@decoding_options(*TRANSLATION, without=("alpha", "beta"), progress=True)
def fusion_grid(
    model: Annotated[str, argument(..., "Fused model folder (hf-mlnmt model fuse), or a name on the Hub.")],
    source: options.Source,
    reference: options.Reference,
    output: Annotated[Path, options.output_folder(..., "Folder for grid.json, .csv, .png and .svg.")],
    alpha: list[float] | None = option(None, "A scale to try; repeat it. Default: the thesis's."),
    beta: list[float] | None = option(None, "A scale to try; repeat it. Default: the thesis's."),
    normalization: Literal["symbol", "sequence"] | None = option(None, "In the place of the model's own."),
    sentences: int | None = option(None, "Take only so many first sentences: a rough grid in less time.", min=1),
    device: options.Device = None,
    *,
    decoding: DecodingOptions,
) -> None:
    """Translate and score a development set with every alpha and beta of a grid; print, keep and draw the scores.

    Without --alpha and --beta it is the thesis's grid (docs/monolingual-fusion.md). Every point is kept:
    stopped, the same command goes on.

    Example:

        hf-mlnmt analyse fusion-grid fused -s val.de -r val.en -o grids/sequence
    """
    from hf_mlnmt.analysis.fusion_grid import Grid, best, draw, summary
    from hf_mlnmt.cli.terminal import print_rows, silence, tell
    from hf_mlnmt.common.languages import check_files
    from hf_mlnmt.evaluation.outputs import read_references
    from hf_mlnmt.generation import TranslationPipeline
    from hf_mlnmt.generation.translating.lines import text_groups

    silence()
    check_files(model, [source], reference, decoding.told)
    references = [list(lines)[:sentences] for lines in read_references(reference)]
    sources = [line for group in text_groups([str(source)], 2048) for line in group][:sentences]
    if any(len(lines) != len(sources) for lines in references):
        raise UserError(f"{source} has {len(sources)} lines, {reference[0]} {len(references[0])}: not one set.")
    pipeline = TranslationPipeline.from_pretrained(model, device=device)
    if normalization is not None and hasattr(pipeline.model, "factors"):
        pipeline.model.config.normalization = normalization
    asked = {name: value for name, value in decoding.given.items() if name != "progress"}
    grid = Grid(pipeline, sources, references, output, alpha, beta, {"batch_tokens": 4096, **asked})
    tell(f"{len(grid.points)} points, {len(grid.missing())} to do, {grid.normalization}-level normalization")
    rows = grid.run(decoding.progress)
    top = best(rows)
    print_rows("BLEU", summary(rows))
    typer.echo(f"best: alpha {top['alpha']:g}, beta {top['beta']:g}, BLEU {top['BLEU']:.2f}")
    tell("\n".join(map(str, draw(rows, output))))
