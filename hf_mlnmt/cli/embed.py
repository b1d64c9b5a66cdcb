"""`hf-mlnmt embed`: a sentence embedding for every line of a text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

POOLING = (
    "flat (the bridge's rows side by side), mean, or a row's number from 0. Default: flat with a bridge, else mean."
)
TARGET = "Of a model that is told the target by a token before the source (tagged): put this one's before every text."


def embed(
    model: Annotated[str, typer.Argument(help="Model folder or Hub name.")],
    file: Annotated[Path, typer.Argument(help="Text, a sentence a line; also .gz.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="An array of NumPy, .npy: float32 (lines, width).")],
    language: Annotated[
        str | None, typer.Option("--language", "-l", help="Of the text, for a model of several languages.")
    ] = None,
    target: Annotated[str | None, typer.Option("--target-language", "-t", help=TARGET)] = None,
    pooling: Annotated[str | None, typer.Option(help=POOLING)] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda ... Default: a GPU where there is one.")] = None,
) -> None:
    """Write a vector for every line of a text: what the encoder and, if there is one, the attention bridge make of it.

    Example:

        hf-mlnmt embed runs/bridge/average test.de.gz -l de -o test.de.npy
    """
    import numpy as np

    from hf_mlnmt.errors import UserError
    from hf_mlnmt.files import atomic_path, check_file

    if output.suffix != ".npy":
        raise UserError(f"--output {output}: expected a name that ends in .npy.")
    check_file(output)
    parts = load_parts(model, device)
    vectors = vectors_of(parts, file, language, pooling, target)
    with atomic_path(output) as path, path.open("wb") as handle:
        np.save(handle, vectors, allow_pickle=False)
    typer.echo(f"{output}: {vectors.shape[0]} sentences, {vectors.shape[1]} numbers each", err=True)


def load_parts(model: str, device: str | None) -> Any:
    """Model and tokenizer, without a bar of Transformers' own."""
    from transformers.utils import logging

    from hf_mlnmt.generation.loading import load

    logging.disable_progress_bar()
    return load(model, device)


def vectors_of(parts: Any, file: Path, language: str | None, pooling: str | None, target: str | None) -> Any:
    """The embeddings of a file's lines, with a bar on stderr where that is a terminal."""
    from tqdm import tqdm

    from hf_mlnmt.analysis.embeddings import embed_texts
    from hf_mlnmt.data.lines import read_lines
    from hf_mlnmt.generation.languages import has_modules

    chosen: str | int = pooling or ("flat" if has_modules(parts.model) else "mean")
    chosen = int(chosen) if str(chosen).isdigit() else chosen
    texts = list(read_lines(file))
    with tqdm(total=len(texts), unit=" texts", file=sys.stderr, disable=None, leave=False) as bar:
        return embed_texts(parts, texts, language, chosen, progress=bar.update, target_language=target)
