"""What can be known of corpora before any work: they are there, can be read, go together, and are not one another."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from pathlib import Path

from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.text import TextSpec, read_text, word_overlap
from hf_mlnmt.errors import UserError

FIRST_PAIRS = 100  # of a training corpus: that they are read shows that columns and fields are right


@dataclass(frozen=True)
class Seen:
    """What the check of a corpus found.

    `identity` is equal for equal corpora alone. `subwords` is what the target side has at least: one a line and one in
    ten bytes; 0 where it was not read.
    """

    identity: tuple[object, ...]
    subwords: int = 0
    sides_are_equal: bool = False


def check_corpora(
    train: Mapping[str, CorpusSpec | TextSpec], scored: Mapping[str, CorpusSpec | TextSpec], root: Path
) -> tuple[dict[str, Seen], list[str]]:
    """Read what is cheap to read of the training corpora, and the dev and test sets whole.

    Args:
        train, scored: key of the recipe -> training corpora, and development and test sets.
        root: the folder that their paths are relative to.

    Returns: what was seen of each, and warnings.

    Raises: UserError for a file that is missing, cannot be read or is empty, for sides of different lengths, for a
        record without the fields named, and for a development or test set in which one side is blank throughout.
    """
    seen = {key: _look(key, spec, root, whole=False) for key, spec in train.items()}
    seen |= {key: _look(key, spec, root, whole=True) for key, spec in scored.items()}
    warnings = [
        f"{key}: source and target are the same text. Check the file names."
        for key, each in seen.items()
        if each.sides_are_equal
    ]
    for one, other in combinations(seen, 2):
        if other in scored and seen[one].identity == seen[other].identity:
            warnings.append(f"{one} and {other} are the same sentences: scores of these say nothing about other text.")
    return seen, warnings


def doubts_about_sides(key: str, specs: Sequence[CorpusSpec], root: Path) -> Iterator[str]:
    """Warnings, with evidence, about synthetic corpora whose sides look as if they were exchanged."""
    parallel = next((spec for spec in specs if not spec.synthetic), None)
    if parallel is None:
        return
    sources, targets = zip(*islice(read_pairs(parallel, root), FIRST_PAIRS))
    for spec in specs:
        theirs = [target for _, target in islice(read_pairs(spec, root), FIRST_PAIRS)] if spec.synthetic else []
        own, other = word_overlap(theirs, targets), word_overlap(theirs, sources)
        if other.share > own.share:
            yield (
                f"{key} {spec}: are its sides exchanged? Of its targets' words {other.share:.0%} stand in the source "
                f"side of {parallel} ({', '.join(other.words)}) and {own.share:.0%} in its target side. Text of the "
                "target language is translated backward, of the source language with --forward; reverse: true turns a "
                "corpus round."
            )


def _look(key: str, spec: CorpusSpec | TextSpec, root: Path, whole: bool) -> Seen:
    return _look_at_text(key, spec, root) if isinstance(spec, TextSpec) else _look_at_pairs(key, spec, root, whole)


def _look_at_text(key: str, spec: TextSpec, root: Path) -> Seen:
    try:
        files = [_lines_of(path) for path in spec.local_files(root) if path.suffix != ".parquet"]
        sentences = list(islice(read_text(spec, root), FIRST_PAIRS))
    except UserError as error:
        raise UserError(f"{key}: {error}") from error
    if not any(sentence.strip() for sentence in sentences):
        raise UserError(f"{key}: {spec}: there is no text at its beginning.")
    identity = (str(spec), spec.column, *(checksum for _, checksum, _ in files))
    return Seen(identity, sum(lines + size // 10 for lines, _, size in files))


def _look_at_pairs(key: str, spec: CorpusSpec, root: Path, whole: bool) -> Seen:
    try:
        files = [_lines_of(path) for path in spec.local_files(root) if path.suffix != ".parquet"]
        pairs = list(islice(read_pairs(spec, root), None if whole else FIRST_PAIRS))
    except UserError as error:
        raise UserError(f"{key}: {error}") from error
    if spec.is_two_files and files[0][0] != files[1][0]:
        source, target = spec.local_files(root)
        raise UserError(
            f"{key}: {source} has {files[0][0]:,} lines and {target} has {files[1][0]:,}: they do not go together line "
            "by line. Check that both are of one corpus and that no tool split lines at other characters."
        )
    for side, name in enumerate(("source", "target") if whole else ()):
        if not any(pair[side].strip() for pair in pairs):
            raise UserError(f"{key}: {spec}: every {name} sentence is blank, so that nothing can be scored.")
    if spec.is_two_files:
        subwords = files[1][0] + files[1][2] // 10
        shown = (spec.reverse, spec.limit) if spec.reverse or spec.limit else ()
        return Seen((*(checksum for _, checksum, _ in files), *shown), subwords, files[0] == files[1])
    identity = (spec.path, spec.dataset, spec.config, spec.split, *sorted((spec.columns or {}).items()))
    return Seen(identity, sum(lines + size // 20 for lines, _, size in files))


def _lines_of(path: Path) -> tuple[int, int, int]:
    """Number of lines, a checksum and the number of bytes of the text, of a plain or gz file."""
    next(read_lines(path, bad=lambda *_: None), None)  # says what is wrong with a file that cannot be read
    count, checksum, size, last = 0, 0, 0, b"\n"
    for block in _blocks(path):
        count, checksum, size = count + block.count(b"\n"), zlib.crc32(block, checksum), size + len(block)
        last = block[-1:]
    return count + (last != b"\n"), checksum, size


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as raw:
        is_gz = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        handle = gzip.GzipFile(fileobj=raw) if is_gz else raw
        try:
            while block := handle.read(1 << 20):
                yield block
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{path}: broken gz file ({error}). Copy or download it again.") from error
