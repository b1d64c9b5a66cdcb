"""`hf-mlnmt retrieve`: how well sentence embeddings find translations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hf_mlnmt.cli.embed import POOLING, TARGET, load_parts, vectors_of


def retrieve(
    model: Annotated[str, typer.Argument(help="Model folder or Hub name.")],
    files: Annotated[
        list[str], typer.Argument(help="language=FILE for two or more languages; line i says the same in all of them.")
    ],
    also: Annotated[
        list[str] | None,
        typer.Option("--also", "-a", help="Another model, FOLDER or NAME=FOLDER, to stand beside it; may be repeated."),
    ] = None,
    pooling: Annotated[str | None, typer.Option(help=POOLING)] = None,
    target: Annotated[str | None, typer.Option("--target-language", "-t", help=TARGET)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write the numbers here, as JSON.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda ... Default: a GPU where there is one.")] = None,
) -> None:
    """Translation retrieval: for every sentence the nearest one of another language, by cosine; is it its translation?

    Example:

        hf-mlnmt retrieve runs/bridge/average de=test.de.gz en=test.en.gz fr=test.fr.gz

        hf-mlnmt retrieve runs/k1/average de=test.de.gz en=test.en.gz --also runs/k25/average --also k50=runs/k50
    """
    from rich.console import Console

    from hf_mlnmt.analysis.embeddings import retrieval
    from hf_mlnmt.errors import UserError
    from hf_mlnmt.files import check_file, write_json

    named = dict(text.partition("=")[::2] for text in files)
    if len(named) < 2 or len(named) < len(files) or not all(named.values()):
        raise UserError("give language=FILE for at least two languages, each once, as in de=test.de en=test.en.")
    if output is not None:
        check_file(output)
    models = _named_models([model, *(also or [])])
    found = {}
    for name, folder in models.items():
        parts = load_parts(folder, device)
        vectors = {code: vectors_of(parts, Path(file), code, pooling, target) for code, file in named.items()}
        found[name] = retrieval(vectors)
    console = Console()
    if also:
        console.print(_side_by_side(found))
    else:
        console.print(_from_into(found[model], list(named)))
    if output is not None:
        content = {"accuracy": found[next(iter(found))]} if not also else {"models": found}
        settings = {"pooling": pooling, "target_language": target}
        write_json(output, {"schema": "hf_mlnmt.retrieval/1", **settings, **content})


def _named_models(given: list[str]) -> dict[str, str]:
    """Name -> folder or Hub name. Raises: UserError where two have one name."""
    from hf_mlnmt.errors import UserError

    named: dict[str, str] = {}
    for text in given:
        name, equal, folder = text.partition("=")
        name, folder = (name, folder) if equal and not Path(text).exists() else (text, text)
        if name in named:
            raise UserError(f"--also {text}: there are two models of that name; say NAME=FOLDER.")
        named[name] = folder
    return named


def _from_into(accuracy: dict[str, float], languages: list[str]) -> Any:
    """One model: rows are the languages of the queries."""
    from hf_mlnmt.table import Number, Table

    rows = [[a, *("" if a == b else f"{100 * accuracy[f'{a}-{b}']:.1f}" for b in languages)] for a in languages]
    return Table(["from / to", *map(Number, languages)], rows, "accuracy@1 in %", f"mean {_mean(accuracy):.1f}")


def _side_by_side(found: dict[str, dict[str, float]]) -> Any:
    """A row for each model."""
    from hf_mlnmt.table import Number, Table

    pairs = list(next(iter(found.values())))
    rows = [
        [name, f"{_mean(accuracy):.1f}", *(f"{100 * accuracy[pair]:.1f}" for pair in pairs)]
        for name, accuracy in found.items()
    ]
    return Table(["model", *map(Number, ("mean", *pairs))], rows, "accuracy@1 in %")


def _mean(accuracy: dict[str, float]) -> float:
    return 100 * sum(accuracy.values()) / len(accuracy)
