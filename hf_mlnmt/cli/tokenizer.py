"""`hf-mlnmt tokenizer`: train a BPE or unigram tokenizer on text files and say how well it fits them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_mlnmt.errors import UserError

if TYPE_CHECKING:
    from hf_mlnmt.data.tokenizer import Tokenizers


class Kind(str, Enum):  # noqa: UP042 (typer shows the members of a str enum)
    """How subwords are learnt."""

    bpe = "bpe"
    unigram = "unigram"


class BadLines(str, Enum):  # noqa: UP042
    """What to do at a line that is not clean text."""

    error = "error"
    drop = "drop"


def tokenizer(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write; AutoTokenizer loads it.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="Text files (plain or .gz), one sentence a line, of any languages.")
    ] = None,
    source: Annotated[
        list[Path] | None, typer.Option("--source", "-s", help="Source side; again for more. Instead of FILES.")
    ] = None,
    target: Annotated[
        list[Path] | None, typer.Option("--target", "-t", help="Target side; again for more. Instead of FILES.")
    ] = None,
    separate: Annotated[
        bool, typer.Option("--separate/--joint", help="A vocabulary for each side, or one for both.")
    ] = False,
    kind: Annotated[Kind, typer.Option("--kind", "-k", help="How subwords are learnt.")] = Kind.bpe,
    vocab_size: Annotated[
        int, typer.Option("--vocab-size", "-v", min=1, help="Entries in all, special tokens and bytes included.")
    ] = 8000,
    languages: Annotated[
        str, typer.Option(help="Target languages of a multilingual model, as de,fr: gives the codes <2de> and <2fr>.")
    ] = "",
    byte_fallback: Annotated[
        bool, typer.Option(help="Spell unknown characters in bytes; without it they become <unk>.")
    ] = True,
    alphabet_limit: Annotated[
        int | None, typer.Option(min=1, help="Keep so many characters, the most frequent ones (BPE only).")
    ] = None,
    max_length: Annotated[int, typer.Option(min=1, help="The tokenizer's model_max_length.")] = 512,
    moses: Annotated[bool, typer.Option(help="Moses tokenisation first; recorded, and undone after decoding.")] = False,
    normalize: Annotated[bool, typer.Option(help="Moses punctuation normalisation first; recorded.")] = False,
    lowercase: Annotated[bool, typer.Option(help="Lower-case first; recorded.")] = False,
    source_language: Annotated[str | None, typer.Option(help="For Moses: language of the source side.")] = None,
    target_language: Annotated[str | None, typer.Option(help="For Moses: language of the target side.")] = None,
    check: Annotated[
        list[Path] | None,
        typer.Option(help="Report on this file too, as on text not seen in training; again for more."),
    ] = None,
    bad_lines: Annotated[
        BadLines, typer.Option(help="Invalid UTF-8, control characters, overlong lines: stop, or leave them out.")
    ] = BadLines.error,
    overwrite: Annotated[bool, typer.Option(help="Replace a tokenizer that is there.")] = False,
) -> None:
    """Train a tokenizer on text files: BPE or unigram, one vocabulary or one for each side.

    Prints the vocabulary's size and, for each file, the rates of unknown and byte pieces and the subwords per word.

    Examples:

    hf-mlnmt tokenizer train.en.gz train.de.gz --vocab-size 8000 --output tokenizer

    hf-mlnmt tokenizer --source train.en.gz --target train.de.gz --separate --kind unigram --output tokenizer
    """
    sides = _sides(files, source, target, separate, moses or normalize or lowercase)
    if (output / "tokenizer.json").exists() and not overwrite:
        raise UserError(f"{output}: there is a tokenizer already. Give another --output, or --overwrite to replace it.")

    from hf_mlnmt.data.processing import TextProcessing
    from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer

    if (moses or normalize) and not (source_language and target_language):
        raise UserError("--moses and --normalize depend on the language: give --source-language and --target-language.")
    named = {"source": source_language or "en", "target": target_language or "en"}
    processing = {side: TextProcessing(named[side], moses, normalize, lowercase) for side in named}
    clean = _Reader(bad_lines is BadLines.drop)

    def train(*names: str) -> Any:
        texts = (processing[name].apply(line) for name in names for path in sides[name] for line in clean(path))
        codes = [code.strip() for code in languages.split(",") if code.strip()]
        return train_tokenizer(
            texts, kind.value, vocab_size, codes, byte_fallback, max_length, alphabet_limit, progress=True
        )

    if separate:
        trained = Tokenizers(train("source"), train("target"), processing)
    else:
        joint = train("source", "target")
        trained = Tokenizers(joint, joint, processing)
    trained.save(output)
    _report(trained, sides, check or [], clean, output)


def _sides(
    files: list[Path] | None, source: list[Path] | None, target: list[Path] | None, separate: bool, processed: bool
) -> dict[str, list[Path]]:
    """The files of each side; FILES without sides count as source."""
    if files and (source or target):
        raise UserError("Give either FILES, or --source and --target, not both.")
    if files and (separate or processed):
        raise UserError(
            "--separate, --moses, --normalize and --lowercase need to know the sides: --source and --target."
        )
    if files:
        return {"source": files, "target": []}
    if not (source and target):
        raise UserError("No text: give FILES, or --source FILE and --target FILE.")
    return {"source": source, "target": target}


class _Reader:
    """Reads a file's lines, leaving out the bad ones when told to, and counts these (once a file)."""

    def __init__(self, drop: bool) -> None:
        self.drop = drop
        self.dropped: dict[Path, int] = {}

    def __call__(self, path: Path) -> Iterator[str]:
        from hf_mlnmt.data.lines import read_lines

        bad: list[int] = []
        note: Callable[[str, int, str], None] = lambda reason, number, text: bad.append(number)  # noqa: E731
        for number, line in enumerate(read_lines(path, note if self.drop else None), start=1):
            if not bad or bad[-1] != number:
                yield line
        if bad:
            self.dropped[path] = len(bad)


def _report(trained: Tokenizers, sides: dict[str, list[Path]], check: list[Path], clean: _Reader, output: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from hf_mlnmt.data.tokenizer import statistics

    table = Table(title=f"tokenizer in {output}", title_justify="left")
    for name in ("text", "vocabulary", "lines", "words", "subwords", "subwords/word", "<unk>", "bytes", "longest"):
        table.add_column(name, justify="left" if name == "text" else "right")
    rows = [(side, path) for side, paths in sides.items() for path in paths]
    rows += [(side, path) for path in check for side in (("source",) if trained.joint else ("source", "target"))]
    for side, path in rows:
        subword = trained.source if side == "source" else trained.target
        counts = statistics(subword, map(trained.processing[side].apply, clean(path)))
        name = str(path) if trained.joint else f"{path} ({side})"
        numbers = [f"{number:,}" for number in (len(subword), counts.lines, counts.words, counts.subwords)]
        rates = [f"{counts.subwords_per_word:.3f}", f"{counts.unknown_rate:.3%}", f"{counts.byte_rate:.3%}"]
        table.add_row(name, *numbers, *rates, f"{counts.longest:,}")
    console = Console(soft_wrap=True)
    console.print(table)
    for path, count in clean.dropped.items():
        console.print(f"{path}: {count:,} bad lines were left out.")
