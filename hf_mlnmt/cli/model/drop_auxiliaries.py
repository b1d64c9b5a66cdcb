"""`hf-mlnmt model drop-auxiliaries`: a model with multi-level supervision as a plain one, for translation alone."""

from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import argument, option


def drop_auxiliaries(
    model: Annotated[Path, argument(..., "Model folder of a system ms-...: a run's average/ or best/.")],
    output: options.ModelToWrite,
    auxiliary: int | None = option(
        None, "Take the auxiliary decoder on this encoder layer, not the main one.", metavar="LAYER", min=1
    ),
    force: options.Force = False,
) -> None:
    """Drop the auxiliary decoders of a model with multi-level supervision: smaller, and it translates the same.

    With auxiliary information fusion the main decoder reads its auxiliaries, so they cannot be dropped; each can still
    be taken out by `--auxiliary`.

    Example:

        hf-mlnmt model drop-auxiliaries runs/ms-12.multi30k-ende/average -o plain
    """
    from hf_mlnmt.common.files import check_new_folder
    from hf_mlnmt.export import write_single_decoder

    check_new_folder(output, force, "config.json")
    write_single_decoder(model, output, auxiliary)
    what = "the main decoder" if auxiliary is None else f"the auxiliary decoder on encoder layer {auxiliary}"
    typer.echo(f"{output}: {model} with {what} alone", err=True)
