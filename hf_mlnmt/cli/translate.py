"""`hf-mlnmt translate`: text files or standard input through a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_mlnmt.cli.machine import PANEL, Device, Dtype, Revision, Threads, use_threads

_SEARCH = "Search"
_SAMPLING = "Sampling"
_OUTPUT = "Output"


def translate(
    model: Annotated[str, typer.Argument(help="Model folder (a run's best/ or average/) or Hub name.")],
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Text files, one text a line, plain or .gz. Without any, or for -: standard input."),
    ] = None,
    source_language: Annotated[
        str | None, typer.Option("--source-language", "-s", help="Source language code, where the model needs one.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option("--target-language", "-t", help="Target language code, where the model needs one.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help='Put before every source as it is (T5: "translate English to German: ").')
    ] = None,
    beams: Annotated[
        int | None,
        typer.Option(
            "--beams", "-b", min=1, help="Beam size; 1 is greedy. Default: the model's own.", rich_help_panel=_SEARCH
        ),
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="Exponent a of the length normalisation: more is longer.", rich_help_panel=_SEARCH),
    ] = None,
    length_normalization: Annotated[
        str | None,
        typer.Option(
            help="What the score of a translation of Z subwords is divided by: generate (Transformers' own), "
            "length: Z^a, length+1: (1+Z)^a, gnmt: ((5+Z)/6)^a; a is --length-penalty.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    early_stopping: Annotated[
        str | None,
        typer.Option(
            help="When a sentence's search ends: true (enough finished), false (a guess that no better one will come), "
            "never (certain of it).",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest translation in tokens.", rich_help_panel=_SEARCH)
    ] = None,
    max_source_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Split longer lines into sentences. Default: what the model takes.", rich_help_panel=_SEARCH
        ),
    ] = None,
    split_long: Annotated[
        bool, typer.Option(help="Split lines that are too long; otherwise cut them off.", rich_help_panel=_SEARCH)
    ] = True,
    alpha: Annotated[
        float | None, typer.Option(help="Of a fused model: scale of the translation models.", rich_help_panel=_SEARCH)
    ] = None,
    beta: Annotated[
        float | None, typer.Option(help="Of a fused model: scale of the language models.", rich_help_panel=_SEARCH)
    ] = None,
    recombine: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Before each step join the beams that share their last K tokens: probabilities are added up, the "
            "better one stands for all.",
            metavar="K",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Sample instead of searching the best.", rich_help_panel=_SAMPLING)
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Above 0; above 1: more varied.", rich_help_panel=_SAMPLING)
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            min=0, help="Sample from the k likeliest tokens. Default, or 0: from all.", rich_help_panel=_SAMPLING
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Sample from the likeliest tokens that together have this probability.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the sampling.", rich_help_panel=_SAMPLING)] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write here when all is done, compressed if the name ends in .gz. Default: standard output.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    n_best: Annotated[
        int | None,
        typer.Option(
            "--n-best",
            "-n",
            min=1,
            help="n translations a line, as 'line number from 0 ||| translation ||| score'.",
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
    progress: Annotated[
        bool, typer.Option(help="Progress bar on stderr, where that is a terminal.", rich_help_panel=_OUTPUT)
    ] = True,
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Source tokens in a batch, padding included.", rich_help_panel=PANEL)
    ] = 4096,
    window: Annotated[
        int,
        typer.Option(
            min=1,
            help="Lines of a file that are read and sorted by length together: more is faster and takes more memory.",
            rich_help_panel=PANEL,
        ),
    ] = 2048,
    device: Device = None,
    dtype: Dtype = "auto",
    engine: Annotated[
        str,
        typer.Option(
            help="torch: generate(). ctranslate2: CTranslate2, by its own rules of ending a search.",
            rich_help_panel=PANEL,
        ),
    ] = "torch",
    threads: Threads = None,
    revision: Revision = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Run code from the model's repository.", rich_help_panel=PANEL),
    ] = False,
) -> None:
    """Translate text files or standard input, a line at a time; empty lines stay empty, order is kept.

    Examples:

        hf-mlnmt translate runs/demo/average test.en.gz -o test.de
        echo "Hello." | hf-mlnmt translate facebook/nllb-200-distilled-600M -s eng_Latn -t deu_Latn
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
    options: dict[str, Any] = {
        "source_language": source_language, "target_language": target_language, "prefix": prefix, "num_beams": beams,
        "length_penalty": length_penalty, "length_normalization": length_normalization, "seed": seed,
        "max_new_tokens": max_new_tokens, "max_source_tokens": max_source_tokens, "split_long": split_long,
        "do_sample": sample, "temperature": temperature, "top_k": top_k, "top_p": top_p, "batch_tokens": batch_tokens,
        "num_return_sequences": n_best or (1 if scores else None),
        "progress": progress, "alpha": alpha, "beta": beta, "recombine": recombine,
    }  # fmt: skip
    if early_stopping is not None:
        options["early_stopping"] = _early_stopping(early_stopping)
    inputs = list(files or ["-"])

    from hf_mlnmt.generation.lines import count_texts, text_groups, translate_groups
    from hf_mlnmt.generation.options import DecodingOptions

    DecodingOptions.of(options)  # mistakes are found before the model is loaded
    pipeline = _load(model, threads, revision, trust_remote_code, device=device, dtype=dtype, engine=engine)
    total = count_texts(inputs) if progress and sys.stderr.isatty() else None
    groups = text_groups(inputs, window)
    translate_groups(pipeline, groups, output, jsonl=jsonl, scores=scores, total=total, **options)


def _early_stopping(value: str) -> bool | str:
    from hf_mlnmt.errors import UserError, suggest

    values: dict[str, bool | str] = {"true": True, "false": False, "never": "never"}
    if value.lower() not in values:
        raise UserError(f"--early-stopping {value}: choose true, false or never{suggest(value.lower(), values)}.")
    return values[value.lower()]


def _load(model: str, threads: int | None, revision: str | None, trust: bool, **options: Any) -> Any:
    from transformers.utils import logging

    from hf_mlnmt.generation import TranslationPipeline
    from hf_mlnmt.memory import keep_memory

    keep_memory()
    logging.disable_progress_bar()
    use_threads(threads)
    if revision:
        options["revision"] = revision
    if trust:
        options["trust_remote_code"] = True
    return TranslationPipeline.from_pretrained(model, **options)
