"""`hf-mlnmt perplexity`: how well a model predicts text, per subword, per word and in bits per byte."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

PANEL = "Score"


def perplexity(
    model: Annotated[str, typer.Argument(help="A model folder or a name on the Hub.")],
    files: Annotated[list[Path], typer.Argument(help="Raw text, one sentence a line (text or .gz).")],
    sources: Annotated[
        list[Path] | None,
        typer.Option("--sources", "-s", help="Of a translation model: what each file translates; one for each."),
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="Of a multilingual model: code of the language of the files.")
    ] = None,
    source_language: Annotated[
        str | None, typer.Option(help="Of a model with an encoder for each language: code of that of --sources.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the numbers here too, as JSON.")] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens in one batch, padding included.")] = 4096,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ... Unless given: a GPU if there is one.")] = None,
) -> None:
    """Perplexity of text: of a language model, or of a translation model given the sources.

    Every sentence is scored by itself, its end included. Models of different vocabularies are compared by bits per
    byte, or per word.

    Examples:

        hf-mlnmt perplexity runs/lm.multi30k-de/average val.de test.de
        hf-mlnmt perplexity runs/transformer.multi30k-ende/average val.de --sources val.en
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from transformers.utils import logging

    from hf_mlnmt.data.lines import read_lines
    from hf_mlnmt.errors import UserError
    from hf_mlnmt.evaluation.perplexity import load_scored, perplexity, table_of
    from hf_mlnmt.files import write_json

    if sources and len(sources) != len(files):
        raise UserError(f"{len(sources)} --sources for {len(files)} files: give one for each, in their order.")
    texts = {str(file): list(read_lines(file)) for file in files}
    read = [list(read_lines(file)) for file in sources or []]
    logging.disable_progress_bar()
    network, tokenizers = load_scored(model, device)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    found = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        for number, (name, lines) in enumerate(texts.items()):
            shown = functools.partial(bar.advance, bar.add_task(name, total=len(lines)))
            given = read[number] if read else None
            languages = {"language": language, "source_language": source_language}
            try:
                found[name] = perplexity(network, tokenizers, lines, given, batch_tokens, shown, **languages)
            except UserError as error:
                raise UserError(f"{name}: {error}") from error
    Console().print(table_of(found))
    if output is not None:
        write_json(output, {"model": model, "perplexity": {name: one.to_dict() for name, one in found.items()}})
