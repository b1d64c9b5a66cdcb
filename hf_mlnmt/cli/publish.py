"""`hf-mlnmt publish`: a complete Hub-style folder from a trained model, and its upload."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.cli import options

PANEL = "Publish"

_CARD = "Model card"
_HUB = "Upload"


def publish(
    model: Annotated[Path, typer.Argument(help="Model folder: a run's average/ or best/.")],
    output: Annotated[
        Path | None,
        options.output("Folder to make. An earlier publication there is replaced; anything else is refused."),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="Upload to this Hub repository.", rich_help_panel=_HUB),
    ] = None,
    private: Annotated[
        bool | None,
        typer.Option(
            "--private/--public",
            help="Who may see a new repository. Default: as its owner has set for all.",
            rich_help_panel=_HUB,
        ),
    ] = None,
    create_pr: Annotated[
        bool, typer.Option("--create-pr", help="Upload into a pull request.", rich_help_panel=_HUB)
    ] = False,
    revision: Annotated[
        str | None, typer.Option(help="Upload to this branch; made if it is not there.", rich_help_panel=_HUB)
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(
            "--licence",
            "--license",
            help="Of the weights, as the Hub spells it: apache-2.0, cc-by-nc-sa-4.0 ...",
            rich_help_panel=_CARD,
        ),
    ] = None,
    source_language: options.From = None,
    target_language: options.To = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Results file, whose scores the card shows. Default: results.json in the model folder.",
            rich_help_panel=_CARD,
        ),
    ] = None,
) -> None:
    """Make everything a Hub repository of the model needs, check it, and upload it.

    Weights as safetensors, config, clean generation config, tokenizers, the model's code, a model card with the
    scores and facts of results.json. Before anything goes out, the folder is loaded again in fresh processes, with
    this package and without it, and must compute what the model computes; it may hold no pickle, no path of this
    machine and no token.

    The card's languages are those of the results, unless --from and --to say which, as en and de.

    An upload that was interrupted goes on when the same command is run again.

    Examples:

        hf-mlnmt publish runs/demo/average -o published --licence apache-2.0
        hf-mlnmt publish runs/demo/average --push my-name/my-model --licence apache-2.0 --from en --to de
    """
    from hf_mlnmt.errors import UserError

    if output is None and push is None:
        raise UserError("nothing to do: give --output FOLDER, --push OWNER/NAME, or both.")
    if push is None and (create_pr or revision or private is not None):
        raise UserError("--create-pr, --revision and --private say how to upload: add --push OWNER/NAME.")
    if (source_language is None) != (target_language is None):
        raise UserError("give both --from and --to, or neither.")
    if create_pr and revision:
        raise UserError("--create-pr and --revision: choose one; a pull request goes to the main branch.")
    languages = (source_language, target_language) if source_language and target_language else None
    _run(model, output, push, private, create_pr, revision, licence, languages, results)


def _run(
    model: Path,
    output: Path | None,
    push: str | None,
    private: bool | None,
    create_pr: bool,
    revision: str | None,
    licence: str | None,
    languages: tuple[str, str] | None,
    results: Path | None,
) -> None:
    from hf_mlnmt.cli.terminal import plain_console, silence
    from hf_mlnmt.hub.publish import build_folder
    from hf_mlnmt.hub.upload import check_ready
    from hf_mlnmt.hub.upload import push as upload

    silence()
    console = plain_console()
    if push:
        check_ready(push)
    with tempfile.TemporaryDirectory() as scratch:
        name = push or None
        target = output or Path(scratch) / "model"
        built = build_folder(
            model, target, name=name, licence=licence, languages=languages, results=results, tell=console.print
        )
        for warning in built.warnings:
            console.print(f"warning: {warning}", style="yellow")
        if output:
            console.print(f"published in {output}")
        if push:
            console.print(f"uploading to {push}")
            address = upload(target, push, private=private, create_pr=create_pr, revision=revision, tell=console.print)
            print(address)
