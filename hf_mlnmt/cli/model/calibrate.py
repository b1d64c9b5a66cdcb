"""`hf-mlnmt model calibrate`: how sure a model is of a translation, fitted on a development set."""

from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import TRANSLATION, argument, decoding_options
from hf_mlnmt.generation.translating.options import DecodingOptions


@decoding_options(*TRANSLATION, split="sentences")
def calibrate(
    model: Annotated[Path, argument(..., "Model folder: a run's average/ or best/.")],
    source: options.Source,
    reference: Annotated[Path, options.option(..., "Their references.", "--reference", "-r")],
    *,
    decoding: DecodingOptions,
    device: options.Device = None,
) -> None:
    """Fit confidences to a development set, and keep them in the model's generation_config.json.

    Translations are made as ever and compared with the references: `translate --confidence` then says how sure the
    model is of each. Take sentences that the model was not trained on, 100 or more.

    Example:

        hf-mlnmt model calibrate runs/demo/average --source val.en.gz --reference val.de.gz
    """
    options.use_machine()
    from hf_mlnmt.generation.choosing.confidence import calibrate_folder

    found = calibrate_folder(model, source, reference, decoding, device)
    typer.echo(f"{model}: calibrated on {found.sentences:,} sentences", err=True)
