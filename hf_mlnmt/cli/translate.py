"""`hf-mlnmt translate`: text files or standard input through a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import MACHINE, SAMPLING, TRANSLATION, decoding_options

PANEL = "Translate"
_OUTPUT = "Output"


@decoding_options(*TRANSLATION, *SAMPLING, "num_return_sequences", progress=True)
def translate(
    model: options.Model,
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Text files, one text a line, plain or .gz. Without any, or for -: standard input."),
    ] = None,
    *,
    decoding: dict[str, Any],
    output: Annotated[
        Path | None,
        options.output(
            "Write here when all is done, compressed if the name ends in .gz. Default: standard output.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl",
            help="A JSON object a line: source, translation, with --n-best also n_best.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    scores: Annotated[
        bool, typer.Option("--scores", help="With --jsonl: score, log probability and length.", rich_help_panel=_OUTPUT)
    ] = False,
    window: Annotated[
        int,
        typer.Option(
            min=1,
            help="Lines of a file that are read and sorted by length together: more is faster and takes more memory.",
            rich_help_panel=MACHINE,
        ),
    ] = 2048,
    device: options.Device = None,
    dtype: options.Dtype = "auto",
    engine: Annotated[
        str,
        typer.Option(
            help="torch: generate(). ctranslate2: CTranslate2, by its own rules of ending a search.",
            rich_help_panel=MACHINE,
            autocompletion=lambda: ["torch", "ctranslate2"],
        ),
    ] = "torch",
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Run code from the model's repository.", rich_help_panel=MACHINE),
    ] = False,
) -> None:
    """Translate text files or standard input, a line at a time; empty lines stay empty, order is kept.

    With --n-best the lines are 'line number from 0 ||| translation ||| score'.

    Examples:

        hf-mlnmt translate runs/demo/average test.en.gz -o test.de
        echo "Hello." | hf-mlnmt translate facebook/nllb-200-distilled-600M --from eng_Latn --to deu_Latn
        hf-mlnmt translate MODEL test.en --beams 6 --n-best 6 --jsonl

    What the options do to the search, and other toolkits' names for them: docs/decoding.md.
    """
    from hf_mlnmt.errors import UserError
    from hf_mlnmt.files import check_file

    if scores and not jsonl:
        raise UserError("--scores needs --jsonl (n-best lists, --n-best, have scores without it).")
    if output is not None:
        check_file(output)
        if any(output.is_file() and Path(name).is_file() and output.samefile(name) for name in files or ()):
            raise UserError(f"--output {output}: is one of the texts to translate. Choose another name.")
    if scores:
        decoding.setdefault("num_return_sequences", 1)
    inputs = list(files or ["-"])

    from hf_mlnmt.generation.lines import count_texts, text_groups, translate_groups

    pipeline = _load(model, threads, revision, trust_remote_code, device=device, dtype=dtype, engine=engine)
    total = count_texts(inputs) if decoding.get("progress") and sys.stderr.isatty() else None
    groups = text_groups(inputs, window)
    translate_groups(pipeline, groups, output, jsonl=jsonl, scores=scores, total=total, **decoding)


def _load(model: str, threads: int | None, revision: str | None, trust: bool, **how: Any) -> Any:
    from transformers.utils import logging

    from hf_mlnmt.generation import TranslationPipeline
    from hf_mlnmt.memory import keep_memory

    keep_memory()
    logging.disable_progress_bar()
    options.use_threads(threads)
    if revision:
        how["revision"] = revision
    if trust:
        how["trust_remote_code"] = True
    return TranslationPipeline.from_pretrained(model, **how)
