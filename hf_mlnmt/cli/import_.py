"""`hf-mlnmt import`: converts a model of another format to a model of this package."""

from pathlib import Path

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import argument

PANEL = "Models of other toolkits"


def import_(
    model: str = argument(..., "Folder or file of the other format, or a Hub name.", metavar="MODEL"),
    output: Path = options.output(..., "Folder to make. An earlier import there is replaced, nothing else."),
    revision: options.Revision = None,
) -> None:
    """Make a model folder from a checkpoint of OPUS-MT, NLLB, M2M100, BART, mBART, Firefox, or another toolkit.

    Weights, tokenizer and generation settings are converted. Where the original's own code is installed the outputs are
    compared; import.json in the folder records the comparison, and each tensor's new name. See docs/opus-mt.md.

    Example:

        hf-mlnmt import Helsinki-NLP/opus-mt-en-de --output opus-en-de
        hf-mlnmt import model.ende.intgemm.alphas.bin --output student-en-de
    """
    from hf_mlnmt.cli.terminal import plain_console, silence
    from hf_mlnmt.convert import import_model

    silence()
    console = plain_console()
    imported = import_model(model, output, tell=console.print, **({"revision": revision} if revision else {}))
    for note in imported.record["notes"]:
        console.print(f"note: {note}")
    if (difference := imported.record["largest_difference_of_logits"]) is not None:
        console.print(f"largest difference of logits from the original's: {difference:.2g}")
    print(imported.folder)
