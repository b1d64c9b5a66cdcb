"""`hf-mlnmt model add-language`: codes, characters and pieces more for a model of many languages."""

from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import option


def add_language(
    model: options.Model,
    output: options.ModelToWrite,
    code: list[str] | None = option(None, "New codes, as the model's are written: gag_Latn; several."),
    like: list[str] | None = option(None, "For each new code a near language that the model has: tur_Latn."),
    text: Annotated[Path | None, option(..., "Text of the new languages, one sentence a line.")] = None,
    characters: bool = option(False, "Add the characters of the text that the vocabulary lacks.", "--characters"),
    pieces: int = option(0, "Add so many pieces, learnt from the text.", min=0),
    force: options.Force = False,
) -> None:
    """Give a trained model new languages or letters: NLLB, mBART-50, MADLAD, Marian of several languages.

    A code's row begins as the near language's, a character's as its base letter's, a piece's as the mean of its parts.
    All old ids stay. The folder loads in Transformers as the model did; what is new is learnt by a training:
    hf-mlnmt train --pair ... --init-from OUTPUT.

    Example:

        hf-mlnmt model add-language facebook/nllb-200-distilled-600M --code gag_Latn --like tur_Latn -o nllb-gag
    """
    from hf_mlnmt.common.errors import UserError
    from hf_mlnmt.common.files import atomic_folder, check_new_folder
    from hf_mlnmt.convert.extending import add_languages

    codes, near = code or [], like or []
    if len(codes) != len(near):
        raise UserError(f"{len(codes)} --code and {len(near)} --like: each new code needs a near language.")
    check_new_folder(output, force, "config.json")
    with atomic_folder(output) as folder:
        made = add_languages(model, folder, dict(zip(codes, near, strict=True)), text, characters, pieces)
    for sign, (count, words) in made.characters.items():
        has = "added" if sign in made.entries else "not in the vocabulary (--characters adds it)"
        typer.echo(f"{sign} U+{ord(sign):04X}: {count:,} times, as in {', '.join(words)}: {has}", err=True)
    for token, number in made.codes.items():
        typer.echo(f"{token}: id {number}", err=True)
    learnt = len(made.entries) - sum(len(entry) == 1 for entry in made.entries)
    if pieces:
        first = ", ".join(made.entries[-learnt:][:5]) if learnt else "none"
        typer.echo(f"{learnt:,} pieces learnt: {first} ...", err=True)
