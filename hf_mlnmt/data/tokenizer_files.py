"""A tokenizer from text files, as `hf-mlnmt tokenizer` trains it, and the table of how well it fits them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.data.corpus import side_by_side
from hf_mlnmt.data.filters import FilterReport
from hf_mlnmt.data.processing import TextProcessing, moses_languages
from hf_mlnmt.data.tokenizer import Tokenizers, statistics, train_tokenizer

log = logging.getLogger(__name__)
Sides = Mapping[str, Sequence[Path]]
REMEDY = "Mend the file, or leave such lines out: --bad-lines drop."


class LineReader:
    """Reads files' lines; with `drop` the bad ones are left out, and counted in `dropped` by file."""

    def __init__(self, drop: bool) -> None:
        self.drop, self.dropped = drop, dict[Path, FilterReport]()

    def __call__(self, path: Path) -> Iterator[str]:
        """Yields the lines of a file. Raises UserError at a bad one unless they are dropped."""
        self.dropped[path] = FilterReport()
        return (line for (line,) in side_by_side([path], self.drop, self.dropped[path], REMEDY))


def sides_of(
    files: Sequence[Path] | None,
    source: Sequence[Path] | None,
    target: Sequence[Path] | None,
    separate: bool,
    processed: bool,
) -> dict[str, list[Path]]:
    """Returns {"source": files, "target": files} from a command's options; files without sides count as source.

    Raises UserError when there is no text, or `separate` vocabularies or text processing lack the sides.
    """
    if files and (source or target):
        raise UserError("Give either FILES, or --source and --target, not both.")
    if files and (separate or processed):
        raise UserError(
            "--separate, --moses, --normalize and --lowercase need to know the sides: --source and --target."
        )
    if files:
        return {"source": list(files), "target": []}
    if not (source and target):
        raise UserError("No text: give FILES, or --source FILE and --target FILE.")
    return {"source": list(source), "target": list(target)}


def processing_of(
    source_language: str | None, target_language: str | None, moses: bool, normalize: bool, lowercase: bool
) -> dict[str, TextProcessing]:
    """Returns both sides' text processing from a command's options. Raises UserError where it needs the languages."""
    named = {"source": source_language, "target": target_language}
    if (moses or normalize) and not all(named.values()):
        raise UserError("--moses and --normalize depend on the language: give --from and --to.")
    if any(named.values()) and not (moses or normalize or lowercase):
        raise UserError(
            "--from and --to are for --moses and --normalize: add one of these, or leave them out. The "
            "languages of a multilingual model are --languages."
        )
    for language in dict.fromkeys(filter(None, named.values())):
        if moses and language not in moses_languages():
            log.warning("language %r: Moses has no rules of its own for it; its general ones cut the text", language)
    return {side: TextProcessing(language or "en", moses, normalize, lowercase) for side, language in named.items()}


def train_on_files(
    sides: Sides, read: LineReader, processing: Mapping[str, TextProcessing], separate: bool, **options: Any
) -> Tokenizers:
    """Trains one tokenizer of both sides' processed text, or one for each side. `options`: train_tokenizer's."""

    def train(*names: str) -> Any:
        def texts() -> Iterator[str]:
            return (processing[name].apply(line) for name in names for path in sides[name] for line in read(path))

        if not any(map(str.strip, texts())):
            paths = ", ".join(str(path) for name in names for path in sides[name])
            raise UserError(f"{paths}: every line is empty, and a tokenizer needs text. Check the files.")
        return train_tokenizer(texts, **options)

    if separate:
        return Tokenizers(train("source"), train("target"), dict(processing))
    joint = train("source", "target")
    return Tokenizers(joint, joint, dict(processing))


def report_table(trained: Tokenizers, sides: Sides, check: Sequence[Path], read: LineReader, title: str) -> Table:
    """Makes a row for each file: sizes, subwords a word, rates of unknown and byte pieces, the longest line."""
    numbers = ("vocabulary", "lines", "words", "subwords", "subwords/word", "<unk>", "bytes", "longest")
    rows: list[list[str]] = []
    read_of = [(side, path) for side, paths in sides.items() for path in paths]
    read_of += [(side, path) for path in check for side in (("source",) if trained.joint else ("source", "target"))]
    for side, path in read_of:
        subword = trained.source if side == "source" else trained.target
        counts = statistics(subword, map(trained.processing[side].apply, read(path)))
        name = str(path) if trained.joint else f"{path} ({side})"
        counted = [f"{number:,}" for number in (len(subword), counts.lines, counts.words, counts.subwords)]
        rates = [f"{counts.subwords_per_word:.3f}", f"{counts.unknown_rate:.3%}", f"{counts.byte_rate:.3%}"]
        rows.append([name, *counted, *rates, f"{counts.longest:,}"])
    return Table(["text", *map(Number, numbers)], rows, title)
