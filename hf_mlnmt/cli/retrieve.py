"""`hf-mlnmt retrieve`: how well sentence embeddings find translations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.cli.embed import POOLING, load_parts, vectors_of


def retrieve(
    model: Annotated[str, typer.Argument(help="Model folder or Hub name.")],
    files: Annotated[
        list[str], typer.Argument(help="language=FILE for two or more languages; line i says the same in all of them.")
    ],
    pooling: Annotated[str | None, typer.Option(help=POOLING)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write the numbers here, as JSON.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda ... Default: a GPU where there is one.")] = None,
) -> None:
    """Translation retrieval: for every sentence the nearest one of another language, by cosine; is it its translation?

    Example:

        hf-mlnmt retrieve runs/bridge/average de=test.de.gz en=test.en.gz fr=test.fr.gz
    """
    from rich.console import Console

    from hf_mlnmt.analysis.embeddings import retrieval
    from hf_mlnmt.errors import UserError
    from hf_mlnmt.files import check_file, write_json
    from hf_mlnmt.table import Number, Table

    named = dict(text.partition("=")[::2] for text in files)
    if len(named) < 2 or len(named) < len(files) or not all(named.values()):
        raise UserError("give language=FILE for at least two languages, each once, as in de=test.de en=test.en.")
    if output is not None:
        check_file(output)
    parts = load_parts(model, device)
    found = retrieval({code: vectors_of(parts, Path(file), code, pooling) for code, file in named.items()})
    rows = [[a, *("" if a == b else f"{100 * found[f'{a}-{b}']:.1f}" for b in named)] for a in named]
    mean = 100 * sum(found.values()) / len(found)
    Console().print(Table(["from / to", *map(Number, named)], rows, "accuracy@1 in %", f"mean {mean:.1f}"))
    if output is not None:
        write_json(output, {"schema": "hf_mlnmt.retrieval/1", "pooling": pooling, "accuracy": found})
