"""`hf-mlnmt model trim`: a model whose vocabulary holds what texts use."""

from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import option


def trim(
    model: options.Model,
    text: Annotated[list[Path], option(..., "Text of every language to keep, one sentence a line; several files.")],
    output: options.ModelToWrite,
    languages: list[str] | None = option(None, "The codes to keep; default: all that the model has."),
    least: int = option(1, "Leave out subwords that occur less often in all texts together.", min=1),
    force: options.Force = False,
) -> None:
    """Cut a model's vocabulary to what texts use: a smaller file, a faster search, the same translations.

    Subwords of the texts stay, and single characters, digits and punctuation, which spell everything else. The folder
    loads in Transformers as the model did, before a training or after it.

    Example:

        hf-mlnmt model trim facebook/nllb-200-distilled-600M --text a.en a.mk --languages eng_Latn mkd_Cyrl -o en-mk
    """
    from hf_mlnmt.common.files import atomic_folder, check_new_folder
    from hf_mlnmt.convert.trimming import trim

    check_new_folder(output, force, "config.json")
    with atomic_folder(output) as folder:
        made = trim(model, text, folder, languages, least)
    for kind, (before, after) in {"entries": made.entries, "parameters": made.parameters}.items():
        typer.echo(f"{kind:<12}{before:>14,} -> {after:,} ({after / before:.0%})", err=True)
    typer.echo(f"{'one forward':<12}{1000 * made.seconds[0]:>11.0f} ms -> {1000 * made.seconds[1]:.0f} ms", err=True)
    for name, share in made.shares.items():
        typer.echo(f"{share:.2%} of the lines of {name} are cut into the same subwords as before", err=True)
