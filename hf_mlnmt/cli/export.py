"""`hf-mlnmt export`: writes a model for CTranslate2, ONNX Runtime, transformers.js, Firefox, or as MarianMTModel."""

from pathlib import Path
from typing import Any

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import option

PANEL = "Publish"


def export(
    model: options.Model,
    format: str = option(..., "ctranslate2, firefox, marian, onnx, or transformers.js."),
    output: Path = options.output(..., "Folder to make. An earlier export there is replaced, nothing else."),
    dtype: str | None = option(
        None, "float32; CTranslate2: also float16, int8; Firefox: int8; transformers.js: float32 and int8, or one."
    ),
    calibrate: Path | None = option(None, "For Firefox: some hundred source sentences; an unchanged import: none."),
    shortlist: Path | None = option(None, "For Firefox: a lexical shortlist as `marian-conv --shortlist` writes it."),
    shortlist_text: Path | None = option(None, "For Firefox: source text, whose attention makes a shortlist."),
    shortlist_teacher: str | None = option(None, "For Firefox: the model whose attention says that, not its own."),
) -> None:
    """Write a model for another engine, and check that the engine computes what generate() does.

    The folder also has export.json, with the differences of the outputs, and, except for Firefox, the tokenizers. In
    float32 outputs must be the same; for rounded weights the agreement is reported. docs/export.md has examples.

    Example:

        hf-mlnmt export runs/demo/average --format ctranslate2 --dtype int8 --output exported
    """
    from hf_mlnmt.cli.terminal import plain_console, silence
    from hf_mlnmt.export import export as write

    silence()
    console = plain_console()
    files: dict[str, Any] = {"calibration": calibrate, "shortlist": shortlist, "shortlist_text": shortlist_text}
    how: dict[str, Any] = {"dtype": dtype, "shortlist_teacher": shortlist_teacher, "tell": console.print}
    exported = write(model, output, format, **files, **how)
    for name, value in exported.record["compared_with_generate"].items():
        if isinstance(value, dict):
            sentences, tokens = value["same_sentences"], value["same_tokens"]
            console.print(
                f"{name}: {sentences:.0%} of the texts and {tokens:.1%} of their tokens as generate() translates them"
            )
        else:
            console.print(f"{name.replace('_', ' ')}: {value:.2g}")
    print(exported.folder)
