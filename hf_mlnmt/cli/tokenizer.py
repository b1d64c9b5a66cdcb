"""`hf-mlnmt tokenizer`: train a BPE or unigram tokenizer on text files and say how well it fits them."""

from pathlib import Path
from typing import Any, Literal

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import argument, option
from hf_mlnmt.common.errors import UserError

PANEL = "Train"


def tokenizer(
    output: Path = options.output_folder(..., "Folder to write; AutoTokenizer loads it."),
    files: list[Path] | None = argument(None, "Text files (plain or packed), one sentence a line, of any languages."),
    source: list[Path] | None = option(None, "Source side, instead of FILES; again for more.", "--source", "-s"),
    target: list[Path] | None = option(None, "Target side, instead of FILES; again for more.", "--target", "-t"),
    separate: bool = option(False, "A vocabulary for each side, or one for both.", "--separate/--joint"),
    kind: Literal["bpe", "unigram"] = option("bpe", "How subwords are learnt.", "--kind", "-k"),
    vocab_size: int = option(8000, "Entries in all, special tokens and bytes included.", "--vocab-size", "-v", min=1),
    languages: str = option("", "Target languages of a multilingual model, as de,fr: gives the codes <2de> and <2fr>."),
    tag: list[str] | None = option(None, "A further token, as <bt>, before sources of corpora; again for more."),
    byte_fallback: bool = option(True, "Spell unknown characters in bytes; without it they become <unk>."),
    alphabet_limit: int | None = option(None, "Keep so many characters, the most frequent ones.", min=1),
    keep: list[str] | None = option(None, "What is never cut, as {name}, or digits, each on its own; again for more."),
    moses: bool = option(False, "First cut the text into Moses tokens, which is undone after decoding."),
    normalize: bool = option(False, "First make punctuation uniform, as Moses does."),
    lowercase: bool = option(False, "First lower-case the text."),
    source_language: options.From = None,
    target_language: options.To = None,
    check: list[Path] | None = option(None, "Report on this file too, as on text not seen; again for more."),
    bad_lines: Literal["error", "drop"] = option("error", "Lines that cannot be read: stop, or leave them out."),
    overwrite: bool = option(False, "Replace a tokenizer that is there."),
) -> None:
    """Train a tokenizer on text files: BPE or unigram, one vocabulary or one for each side.

    Prints the vocabulary's size and, for each file, the rates of unknown and byte pieces and the subwords per word.
    `hf-mlnmt train` makes its own tokenizer; this verb is for trying sizes and kinds. --moses and --normalize need the
    languages of the two sides, as in --from en --to de.

    Examples:

        hf-mlnmt tokenizer train.en.gz train.de.gz --vocab-size 8000 --output tokenizer
        hf-mlnmt tokenizer -s train.en.gz -t train.de.gz --separate --kind unigram -o tokenizer
    """
    if (output / "tokenizer.json").exists() and not overwrite:
        raise UserError(f"{output}: there is a tokenizer already. Give another --output, or --overwrite to replace it.")

    from rich.console import Console

    from hf_mlnmt.common.languages import check_language
    from hf_mlnmt.data.tokenizer import LineReader, processing_of, report_table, sides_of, train_on_files

    sides = sides_of(files, source, target, separate or moses or normalize or lowercase)
    for side, code in (("source", source_language), ("target", target_language)):
        for path in sides[side]:
            check_language(path, code, "it is read as", "Exchange --from and --to, or the files.")
    processing = processing_of(source_language, target_language, moses, normalize, lowercase)
    read = LineReader(drop=bad_lines == "drop")
    codes = [code.strip() for code in languages.split(",") if code.strip()]
    how: dict[str, Any] = {"kind": kind, "vocab_size": vocab_size, "languages": codes, "tags": tag or []}
    how |= {"byte_fallback": byte_fallback, "alphabet_limit": alphabet_limit, "keep": keep or []}
    trained = train_on_files(sides, read, processing, separate, progress=True, **how)
    trained.save(output)
    console = Console(soft_wrap=True)
    console.print(report_table(trained, sides, check or [], read, f"tokenizer in {output}"))
    for path, report in read.dropped.items():
        if count := report.dropped.total():
            console.print(f"{path}: {count:,} bad lines were left out.")
