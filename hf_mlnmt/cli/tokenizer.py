"""`hf-mlnmt tokenizer`: train a BPE or unigram tokenizer on text files and say how well it fits them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import check_folder_name

PANEL = "Train"


def tokenizer(
    output: Annotated[Path, options.output("Folder to write; AutoTokenizer loads it.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="Text files (plain or packed), one sentence a line, of any languages.")
    ] = None,
    source: Annotated[
        list[Path] | None,
        typer.Option("--source", "-s", help="File of the source side, instead of FILES; give it again for more."),
    ] = None,
    target: Annotated[
        list[Path] | None,
        typer.Option("--target", "-t", help="File of the target side, instead of FILES; give it again for more."),
    ] = None,
    separate: Annotated[
        bool, typer.Option("--separate/--joint", help="A vocabulary for each side, or one for both.")
    ] = False,
    kind: Annotated[Literal["bpe", "unigram"], typer.Option("--kind", "-k", help="How subwords are learnt.")] = "bpe",
    vocab_size: Annotated[
        int, typer.Option("--vocab-size", "-v", min=1, help="Entries in all, special tokens and bytes included.")
    ] = 8000,
    languages: Annotated[
        str, typer.Option(help="Target languages of a multilingual model, as de,fr: gives the codes <2de> and <2fr>.")
    ] = "",
    tag: Annotated[
        list[str] | None,
        typer.Option(help="A further token, as <bt>, that corpora may put before their sources; again for more."),
    ] = None,
    byte_fallback: Annotated[
        bool, typer.Option(help="Spell unknown characters in bytes; without it they become <unk>.")
    ] = True,
    alphabet_limit: Annotated[
        int | None, typer.Option(min=1, help="Keep so many characters, the most frequent ones.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="A placeholder that is never cut, as {name}, or digits, each on its own; again for more."),
    ] = None,
    max_length: Annotated[
        int, typer.Option(min=2, help="Longest text in subwords that the tokenizer promises (model_max_length).")
    ] = 512,
    moses: Annotated[
        bool,
        typer.Option(
            help="First cut the text into Moses tokens; recorded with the tokenizer, and undone after decoding."
        ),
    ] = False,
    normalize: Annotated[
        bool, typer.Option(help="First make punctuation uniform, as Moses does; recorded with the tokenizer.")
    ] = False,
    lowercase: Annotated[bool, typer.Option(help="First lower-case the text; recorded with the tokenizer.")] = False,
    source_language: options.From = None,
    target_language: options.To = None,
    check: Annotated[
        list[Path] | None,
        typer.Option(help="Report on this file too, as of text not seen in training; give it again for more."),
    ] = None,
    bad_lines: Annotated[
        Literal["error", "drop"],
        typer.Option(help="Invalid UTF-8, control characters, overlong lines: stop, or leave them out."),
    ] = "error",
    overwrite: Annotated[bool, typer.Option(help="Replace a tokenizer that is there.")] = False,
) -> None:
    """Train a tokenizer on text files: BPE or unigram, one vocabulary or one for each side.

    Prints the vocabulary's size and, for each file, the rates of unknown and byte pieces and the subwords per word.
    `hf-mlnmt train` makes a tokenizer by itself; this is for trying sizes and kinds. --moses and --normalize need the
    languages of the two sides, as in --from en --to de.

    Examples:

        hf-mlnmt tokenizer train.en.gz train.de.gz --vocab-size 8000 --output tokenizer
        hf-mlnmt tokenizer -s train.en.gz -t train.de.gz --separate --kind unigram -o tokenizer
    """
    if (check_folder_name(output) / "tokenizer.json").exists() and not overwrite:
        raise UserError(f"{output}: there is a tokenizer already. Give another --output, or --overwrite to replace it.")

    from rich.console import Console

    from hf_mlnmt.data.tokenizer_files import LineReader, processing_of, report_table, sides_of, train_on_files

    sides = sides_of(files, source, target, separate, moses or normalize or lowercase)
    processing = processing_of(source_language, target_language, moses, normalize, lowercase)
    read = LineReader(drop=bad_lines == "drop")
    trained = train_on_files(
        sides,
        read,
        processing,
        separate,
        kind=kind,
        vocab_size=vocab_size,
        languages=[code.strip() for code in languages.split(",") if code.strip()],
        tags=tag or [],
        byte_fallback=byte_fallback,
        max_length=max_length,
        alphabet_limit=alphabet_limit,
        keep=keep or [],
        progress=True,
    )
    trained.save(output)
    console = Console(soft_wrap=True)
    console.print(report_table(trained, sides, check or [], read, f"tokenizer in {output}"))
    for path, count in read.dropped.items():
        console.print(f"{path}: {count:,} bad lines were left out.")
