"""`hf-mlnmt translate`: text files or standard input through a model."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import SAMPLING, TRANSLATION, decoding_options
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import check_file
from hf_mlnmt.generation.lines import Shard
from hf_mlnmt.generation.options import OUTPUT, SEARCH

PANEL = "Translate"
_of_output = partial(typer.Option, rich_help_panel=OUTPUT)


@decoding_options(
    *TRANSLATION,
    *SAMPLING,
    "draws",
    "num_return_sequences",
    "alignments",
    "target_prefix",
    "terms",
    "terms_ignore_case",
    progress=True,
    split="sentences",
)
def translate(
    model: options.Model,
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Text files, one text a line, plain or packed. Without any, or for -: standard input."),
    ] = None,
    *,
    decoding: dict[str, Any],
    output: Annotated[
        Path | None,
        _of_output(
            "--output",
            "-o",
            help="Write here when all is done, compressed if the name ends in .gz. Default: standard output.",
        ),
    ] = None,
    jsonl: Annotated[
        bool,
        _of_output(
            "--jsonl",
            help="A JSON object a line: source, translation, alignment if asked for, with --n-best also n_best.",
        ),
    ] = False,
    scores: Annotated[bool, _of_output("--scores", help="With --jsonl: score, log probability and length.")] = False,
    prefix_file: Annotated[
        Path | None,
        typer.Option(
            "--prefix-file",
            help="A line for each text: what its translation begins with, as --target-prefix; an empty one: nothing.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    window: Annotated[
        int,
        options.machine(
            min=1,
            help="Lines of a file that are read and sorted by length together: more is faster and takes more memory.",
        ),
    ] = 2048,
    shard: options.Shard = None,
    device: options.Device = None,
    dtype: options.Dtype = "auto",
    engine: options.Engine = "torch",
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: Annotated[
        bool, options.machine("--trust-remote-code", help="Run code from the model's repository.")
    ] = False,
) -> None:
    """Translate text files or standard input, a line at a time; empty lines stay empty, order is kept.

    The sentences of a line are translated one by one; --split long gives the model whole lines.

    With --n-best the lines are 'line number from 0 ||| translation ||| score'; --alignments writes ' ||| 0-0 1-2' (word
    of the source, word of the translation) behind each.

    Examples:

        hf-mlnmt translate runs/demo/average test.en.gz -o test.de
        echo "Hello." | hf-mlnmt translate facebook/nllb-200-distilled-600M --from eng_Latn --to deu_Latn
        hf-mlnmt translate MODEL test.en --beams 6 --n-best 6 --jsonl
        hf-mlnmt translate MODEL news.en --shard $SLURM_ARRAY_TASK_ID/50 -o part.$SLURM_ARRAY_TASK_ID.gz

    What the options do to the search, and other toolkits' names for them: docs/decoding.md.
    """
    if scores and not jsonl:
        raise UserError("--scores needs --jsonl (n-best lists, --n-best, have scores without it).")
    part = Shard.parse(shard) if shard is not None else None
    if part and decoding.get("do_sample") and decoding.get("draws") != "text":
        raise UserError(
            "--shard with --sample needs --draws text, as does the whole: other draws follow from all before."
        )
    if prefix_file is not None and "target_prefix" in decoding:
        raise UserError("--prefix-file and --target-prefix: both say what translations begin with; leave one out.")
    if output is not None:
        check_file(output)
    if scores:
        decoding.setdefault("num_return_sequences", 1)
    inputs, lines = list(files or ["-"]), None

    from transformers.utils import logging

    from hf_mlnmt.generation import TranslationPipeline
    from hf_mlnmt.generation.lines import count_texts, file_groups, shard_groups, text_groups, translate_groups
    from hf_mlnmt.memory import keep_memory

    if part:
        lines, groups = shard_groups(inputs, window, part)
    else:
        groups = text_groups(inputs, window)
    keep_memory()
    logging.disable_progress_bar()
    options.use_threads(threads)
    how: dict[str, Any] = {"revision": revision} if revision else {}
    how |= {"trust_remote_code": True} if trust_remote_code else {}
    pipeline = TranslationPipeline.from_pretrained(model, device=device, dtype=dtype, engine=engine, **how)
    if prefix_file is not None:
        decoding["target_prefix"] = [line for group in file_groups(prefix_file, window) for line in group]
    total = None
    if decoding.get("progress") and sys.stderr.isatty():
        total = count_texts(inputs) if lines is None else len(lines)
    first = 0 if lines is None else lines.start
    translate_groups(pipeline, groups, output, jsonl=jsonl, scores=scores, total=total, first=first, **decoding)
