"""Parallel corpora as streams of text pairs: text, tsv, csv, jsonl, JSON, parquet, data sets (Hub or folder).

Text may be packed (lines.py). The first row of a tsv or csv file may be a header that names the sides, or a pair of
sentences already. Every row has as many cells as the first one; a blank line is no row, and is counted.

A synthetic corpus is a folder of pairs of which one side was written by a model: source.txt and target.txt, line by
line, and manifest.json, which says by which model and method, of which text, what was dropped, and has the files'
sizes and SHA-256.
"""

from __future__ import annotations

import csv
import json
import logging
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from annotated_types import MinLen

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.files import Form, misfit, read_json
from hf_mlnmt.common.keys import Range, Section, key
from hf_mlnmt.common.languages import check_language, language_in, pair_of_name, same_language
from hf_mlnmt.common.made_from import sha256
from hf_mlnmt.common.model_folder import first_line
from hf_mlnmt.data.filters import FilterReport, Pair
from hf_mlnmt.data.formats import format_of
from hf_mlnmt.data.lines import (
    MAX_CHARACTERS,
    REMEDY,
    checked_blocks,
    checked_lines,
    count_text,
    open_text,
    problem_in,
    reason_of,
)

MANIFEST = "manifest.json"
SCHEMA = "hf_mlnmt.generation.synthetic.back_translation/1"
FILES = {"source": "source.txt", "target": "target.txt"}
COUNTS: Form = {"read": int, "kept": int, "found": {...: int}, "dropped": {...: int}}
MADE_FROM: Form = {
    "direction": str,
    "model": (None, {"name": str, "files": dict}),
    "text": [{"name": str, "lines": int, "sha256": str}],
    "method": dict,
    "tag": (None, str),
}
FORM: Form = {
    **MADE_FROM,
    "pairs": {"lines": int, **{side: {"bytes": int, "sha256": str} for side in FILES}},
    "counts": COUNTS,
}


@dataclass(frozen=True)
class Manifest:
    """The manifest of the synthetic corpus in `folder`; `content` is its JSON."""

    folder: Path
    content: Mapping[str, Any]

    @property
    def pairs(self) -> int:
        """Returns the number of pairs."""
        return self.content["pairs"]["lines"]

    @property
    def tag(self) -> str | None:
        """Returns the token that is to stand before every source of these pairs."""
        return self.content["tag"]

    def summary(self) -> dict[str, Any]:
        """Returns the corpus's direction, model, method and counts, for a results file."""
        model = self.content["model"]
        return {
            "direction": self.content["direction"],
            "model": model["name"] if model else None,
            "method": self.content["method"],
            "counts": self.content["counts"],
        }


def find_synthetic(name: str | Path, root: str | Path = ".") -> Path:
    """Returns the folder of a synthetic corpus, relative to `root` or to here.

    Raises: UserError when there is none, or it is not finished.
    """
    places = [Path(root) / name, Path(name)]
    places = [place.parent if place.name == MANIFEST else place for place in places]
    for place in places:
        if (place / MANIFEST).is_file():
            return place
    if unfinished := next((place for place in places if (place / "state.json").is_file()), None):
        raise UserError(
            f"{unfinished}: this back-translation is not finished. Start the command that makes it again: it goes on."
        )
    raise UserError(f"{name}: no synthetic corpus there (no {MANIFEST}). Make one: hf-mlnmt back-translate.")


def check_some(manifest: Manifest) -> None:
    """Raises UserError for a synthetic corpus without pairs."""
    if not manifest.pairs:
        counts, model = manifest.content["counts"], (manifest.content["model"] or {}).get("name", "its model")
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in counts["dropped"].items()) or "there was no text"
        none = f"{manifest.folder}: of {counts['read']:,} translations none is left ({dropped})."
        raise UserError(f"{none} Is the text in the language that {model} reads?")


def read_manifest(folder: str | Path) -> Manifest:
    """Reads a manifest; compares sizes and SHA-256 of the files beside it with those that it records.

    Raises: UserError when it is missing or not one of ours, and naming each file that changed since.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise UserError(f"{folder}: no {MANIFEST} there: it is no synthetic corpus, or not a finished one.")
    content = read_json(path)
    if content.get("schema") != SCHEMA:
        raise UserError(f"{path}: not a manifest of a synthetic corpus ('schema' is not {SCHEMA}).")
    if problem := misfit(content, FORM):
        raise UserError(f"{path}: {problem} Make the corpus again in another folder.")
    problems = {file: _difference(Path(folder) / file, content["pairs"][side]) for side, file in FILES.items()}
    if changed := [f"{file}: {problem}" for file, problem in problems.items() if problem]:
        raise UserError(
            f"{path}: files changed since it was written: {'; '.join(changed)}. Put back what was there, or make the "
            "corpus again in another folder."
        )
    return Manifest(Path(folder), content)


def _difference(path: Path, told: Mapping[str, Any]) -> str | None:
    if not path.is_file():
        return "is missing"
    if (size := path.stat().st_size) != told["bytes"]:
        return f"has {size:,} bytes, {told['bytes']:,} expected"
    now = sha256(path)
    return None if now == told["sha256"] else f"its SHA-256 is {now[:12]}..., {told['sha256'][:12]}... expected"


log = logging.getLogger(__name__)
_SIDES = ("source", "target")
Quoting = Literal["none", "csv"]
_NULL = {"NA", "NaN", "nan", "NULL", "null", "\\N"}  # what programs write into a csv file where there is nothing
_BLANK = "blank line"


class _Null(str):
    """A cell of a csv file that has one of _NULL, with which programs write that there is no value."""


_TURNED = "or the name; where the sides are exchanged, say reverse: true."
_HEADERS = [("source", "target"), ("src", "tgt"), ("src", "trg")]


WEIGHT = Range(0, 1000, above=True)


OF_DATASETS = ("config", "split", "streaming")


def check_keys(spec: Any, where: str, others: Sequence[str] = ()) -> None:
    """Raises UserError for a wrong limit, weight or bad_lines, and for keys without effect, such as `others`."""
    if spec.limit is not None and spec.limit < 1:
        raise UserError(f"{where}: limit must be at least 1, not {spec.limit}.")
    if spec.bad_lines not in ("error", "drop"):
        raise UserError(f"{where}: bad_lines is 'error' or 'drop', not {spec.bad_lines!r}.")
    if problem := WEIGHT.problem(spec.weight):
        raise UserError(f"{where}: weight{problem} Leave the text out to show none of it.")
    usual = {each.name: each.default for each in fields(spec)}
    others = (*others, *(() if spec.path else ("quoting",)), *(() if spec.dataset else OF_DATASETS))
    if name := next((name for name in others if getattr(spec, name) != usual[name]), None):
        what = "a data set (dataset: NAME)" if name in OF_DATASETS else "a table (path)"
        raise UserError(f"{where}: {name} is of {what}, and has no effect here. Leave it out.")


@dataclass
class CorpusSpec(Section):
    """A corpus of pairs: give `files`, `path`, `dataset` or `synthetic`. Paths are relative to the data folder."""

    files: dict[str, str] | None = key(
        None, "{source: train.en.gz, target: train.de.gz}: line i of one translates line i of the other."
    )
    path: str | None = key(
        None,
        "One file of pairs: .tsv, .csv, .jsonl, .json (lines or an array, which is read as a whole) or .parquet; text "
        "may be packed as gz, bz2, xz, zst or a zip of one file, also in files.",
    )
    dataset: str | None = key(
        None, "A name on the Hub, or a folder that `save_to_disk` wrote or that `load_dataset` knows."
    )
    config: str | None = key(None, "The configuration of the data set.")
    split: str = key("train", "The split of the data set.")
    streaming: bool = key(False, "Read the data set without downloading it ahead.")
    columns: dict[str, Any] | None = key(
        None,
        "{source: en, target: de}: fields of path or dataset; of tsv, names of a header line or numbers from 1. Unless "
        'told, 1 and 2 of tsv, or what its line 1 names; of records "source" and "target", fields named as languages, '
        'or a "translation" that holds these.',
    )
    languages: dict[str, str] | None = key(None, "{source: en, target: de}; unless told, those of the task or recipe.")
    weight: Annotated[float, WEIGHT] = key(1.0, "How often an epoch shows each pair.")
    quoting: Quoting | None = key(
        None,
        'csv: a field of .tsv or .csv may stand in double quotes, with tabs, commas and line breaks in it, and "" for '
        "a quote; none: quotes are text. Unless told csv for .csv, none for .tsv, with a warning where they look so.",
    )
    bad_lines: Literal["error", "drop"] = key(
        "error",
        "At invalid UTF-8, control characters, overlong lines, rows of another width, null and broken JSON: stop, or "
        "drop the pair and count it.",
    )
    synthetic: str | None = key(None, "A folder that back-translation wrote; its files are compared with its manifest.")
    reverse: bool = key(
        False, "Source and target change places as they are read; languages are those of the pairs as they come out."
    )
    limit: int | None = key(None, "Only the first so many pairs, at least 1.")
    tag: Annotated[str, MinLen(0)] | None = key(
        None, 'A token such as `<bt>` before every source; of a synthetic corpus its manifest\'s, and "" is none.'
    )
    ratio: float | None = key(None, "Of a synthetic corpus: so many of its pairs to each pair of the others.")

    def __post_init__(self) -> None:
        given = [name for name in ("files", "path", "dataset", "synthetic") if getattr(self, name)]
        if len(given) != 1:
            names = "files, path, dataset and synthetic"
            raise UserError(f"corpus: give one of {names}, not {' and '.join(given) or 'none'}.")
        if self.ratio is not None and not (self.synthetic and 0 < self.ratio < 1e6):
            raise UserError(
                f"corpus: ratio {self.ratio:g} is for a synthetic corpus, and above 0: so many synthetic pairs to each "
                "pair of the other corpora (0.5, 1, 2 ...). Elsewhere weight says how often a pair is shown."
            )
        for name in ("files", "columns", "languages"):
            value = getattr(self, name)
            kinds = (str, int) if name == "columns" else str
            if value is not None and not (
                isinstance(value, Mapping)
                and set(value) == set(_SIDES)
                and all(isinstance(side, kinds) for side in value.values())
            ):
                raise UserError(f"corpus: {name} needs 'source' and 'target', as in {{source: ..., target: ...}}.")
        check_keys(self, f"corpus: {self}", ("columns",) if self.is_two_files else ())
        codes, columns = self.languages or {}, self.columns or {}
        if columns and columns["source"] == columns["target"] and codes.get("source") != codes.get("target"):
            raise UserError(
                f"corpus: columns: both sides are {columns['source']}, and the languages are "
                f"{' and '.join(codes.values())}. Name one for each side."
            )
        files, of_pairs = self.files or {}, self.path if pair_of_name(self.path or "") else None
        if len({*files.values()}) == 1 and any(
            same_language(language_in(files["source"]), code) for code in codes.values()
        ):
            return  # text of one of the languages, which is copied
        for side, other in zip(_SIDES, _SIDES[::-1] if self.reverse else _SIDES):  # languages are those after reversing
            for said in filter(None, [files.get(side), f"columns.{side}.{columns.get(side)}", of_pairs]):
                check_language(said, codes.get(other), "it is read as", f"Mend languages.{other}, {_TURNED}")

    def __str__(self) -> str:
        if self.files:
            return f"{self.files['source']} + {self.files['target']}"
        if self.path or self.synthetic:
            return str(self.path or self.synthetic)
        return " ".join(filter(None, [self.dataset, self.config, self.split]))

    def reading(self) -> tuple[Any, ...]:
        """Returns all that decides how the text is read, but for the files themselves."""
        usual = (self.dataset, self.config, self.split, self.columns, self.languages, self.bad_lines)
        return usual + tuple(
            (name, value) for name in ("reverse", "limit", "tag", "quoting") if (value := getattr(self, name))
        )

    @property
    def is_two_files(self) -> bool:
        """Returns whether the corpus is two files of text: line i of one is the translation of line i of the other."""
        return bool(self.files or self.synthetic)

    def local_files(self, root: str | Path = ".") -> list[Path]:
        """Returns the files that are read; none for a data set."""
        if self.synthetic:
            return [find_synthetic(self.synthetic, root) / name for name in FILES.values()]
        names = self.files.values() if self.files else [self.path] if self.path else []
        return [Path(root) / name for name in names]


def read_pairs(
    spec: CorpusSpec, root: str | Path = ".", report: FilterReport | None = None, skip: int = 0
) -> Iterator[Pair]:
    """Yields (source, target) texts in order, a pair at a time, empty sides included.

    `report`, if given, counts the lines that `bad_lines: drop` leaves out. skip: number of records of a data set to
    pass over. Raises UserError naming file and line, or field and what the record has.
    """
    report = report if report is not None else FilterReport()
    if spec.limit is not None:
        return islice(read_pairs(replace(spec, limit=None), root, report), spec.limit)
    if spec.reverse:
        there = spec.languages and {"source": spec.languages["target"], "target": spec.languages["source"]}
        pairs = read_pairs(replace(spec, reverse=False, languages=there), root, report, skip)
        return ((target, source) for source, target in pairs)
    if spec.is_two_files:
        return side_by_side(spec.local_files(root), spec.bad_lines == "drop", report)
    if spec.dataset:
        rows = _rows_of(_dataset(spec, Path(root)).skip(skip), f"{spec}", _folder_of(spec, Path(root)))
        return _records(rows, spec, f"{spec}, record", report, skip)
    assert spec.path
    path = Path(root) / spec.path
    if format_of(path) not in FORMATS:
        raise UserError(f"{path}: expected {', '.join(FORMATS)}, also packed; for two text files use 'files'.")
    return FORMATS[format_of(path)](spec, path, report)


def side_by_side(paths: Sequence[Path], drop: bool, report: FilterReport, remedy: str = REMEDY) -> Iterator[Any]:
    """Yields a tuple of line i of each file, for every i; with `drop` leaves out, and counts, those with a bad line.

    Raises: UserError for a bad line, and for files of different lengths.
    """
    sides = [checked_blocks(path, None if drop else remedy) for path in paths]
    number, lines = 0, [list[str]() for _ in paths]
    problems: list[str | None] = [None for _ in paths]
    while True:
        for side, blocks in enumerate(sides):
            if not lines[side]:
                lines[side], problems[side] = next(blocks, ([], None))
        together = min(map(len, lines))
        if not together:
            counts = [number + len(own) + sum(len(some) for some, _ in rest) for own, rest in zip(lines, sides)]
            check_together(paths, counts)
            return
        rows = zip(*(own[:together] for own in lines))
        if problem := problems[0] or problems[-1]:
            report.drop(problem, *next(rows))
        else:
            yield from rows
        number, lines = number + together, [own[together:] for own in lines]


def check_together(paths: Sequence[Path], lines: Sequence[int]) -> None:
    """Raises: UserError for files with different numbers of lines."""
    if lines[0] != lines[-1]:
        raise UserError(
            f"{paths[0]} has {lines[0]:,} lines and {paths[-1]} has {lines[-1]:,}: they do not go together line by "
            "line. Check that both are of one corpus and that no tool split lines at other characters."
        )


def _read_tsv(spec: CorpusSpec, path: Path, report: FilterReport) -> Iterator[Pair]:
    columns = [(spec.columns or {"source": 1, "target": 2})[side] for side in _SIDES]
    numbers = [column - 1 for column in columns] if all(isinstance(column, int) for column in columns) else None
    if numbers and min(numbers) < 0:
        raise UserError(f"{path}: columns are counted from 1, so {columns} cannot be; 1 is the first.")
    width = 2 if spec.columns is None and spec.bad_lines == "drop" else 0  # 0: as many as the first row
    is_csv = (spec.quoting or ("csv" if format_of(path) == ".csv" else "none")) == "csv"
    says_quoting, is_first = spec.quoting is not None or is_csv, True
    for number, cells, problem in _rows(spec, path, is_csv):
        where = f"{path}, line {number}"
        if not any(cells) and not problem and len(cells) < 2:
            report.drop(_BLANK)
            continue
        if numbers is None:
            numbers, width = [_position(str(column), cells, where) for column in columns], len(cells)
            continue
        named = _header(cells, spec, where) if is_first and spec.columns is None else None
        is_first = False
        if named:
            numbers, width = named, len(cells)
            continue
        if not width and not problem:
            width = _width(cells, numbers, spec, where)
        pair, problem = (("", ""), problem) if problem else _cells_of(cells, numbers, width)
        if problem:
            _refuse(problem, where, "\t".join(cells), spec, report, f" {_OF_ROWS}" if "columns" in problem else "")
            continue
        if not says_quoting and (quoted := next(filter(_looks_quoted, pair), None)):
            says_quoting = True  # warns once
            log.warning(
                "%s: a field looks quoted, as spreadsheets write it, and is read as it stands: %.60s. Say quoting: csv "
                "to read what is between the quotes, or quoting: none where they are text.",
                where,
                quoted,
            )
        yield pair


def _width(cells: list[str], numbers: list[int], spec: CorpusSpec, where: str) -> int:
    """Returns a table's number of columns, from its first row. UserError for more than two if none are named."""
    if spec.columns is None and len(cells) > 2:
        filled = [number for number, cell in enumerate(cells, 1) if cell]
        source, target = filled[-2:] if len(filled) > 1 else (1, 2)
        raise UserError(
            f"{where}: {len(cells)} columns, and which are the pair is not said. Name them, as in columns: "
            f"{{source: {source}, target: {target}}}. {_OF_ROWS}"
        )
    return max(len(cells), *(column + 1 for column in numbers))


def _cells_of(cells: list[str], numbers: list[int], width: int) -> tuple[Pair, str | None]:
    """Returns the pair of a row, and what is wrong with the row, or None."""
    if len(cells) != width:
        return ("", ""), f"another number of columns ({len(cells)} columns, {width} expected)"
    pair = cells[numbers[0]], cells[numbers[1]]
    nothing = [text for text in pair if isinstance(text, _Null)]
    problem = "no text (a field is {}; where it is a word, put it in double quotes)"
    return pair, problem.format(nothing[0]) if nothing else None


_OF_ROWS = "A tab or separator inside a text needs quotes around it, and quoting: csv."


def _rows(spec: CorpusSpec, path: Path, is_csv: bool) -> Iterator[tuple[int, list[str], str | None]]:
    """Yields for each row the number of its first line, its cells, and what is wrong with its lines, or None."""
    lines = checked_lines(path, None if spec.bad_lines == "drop" else REMEDY, form="any")
    separator = separator_of(path) if format_of(path) == ".csv" else "\t"
    if not is_csv:
        for number, (line, problem) in enumerate(lines, start=1):
            yield number, line.split(separator), problem
        return
    number, ahead = 1, deque[tuple[str, str | None]]()  # lines that a broken row read beyond its first
    taken: list[tuple[str, str | None]] = []

    def take() -> Iterator[str]:
        while each := ahead.popleft() if ahead else next(lines, None):
            taken.append(each)
            yield f"{each[0]}\n"

    while True:
        taken.clear()
        try:
            row, broken = next(csv.reader(take(), delimiter=separator, strict=True)), None
            cells = [cell.replace("\n", " ") for cell in row]
            if not _NULL.isdisjoint(cells):
                quoted = "".join(line for line, _ in taken).split('"')[1::2]
                cells = [_Null(cell) if cell in _NULL and cell not in quoted else cell for cell in cells]
        except StopIteration:
            return
        except csv.Error as error:  # an unclosed quote reads all lines up to the next quote
            cells, broken = [taken[0][0]], f"broken quoting ({error})"
            ahead.extendleft(reversed(taken[1:]))
            del taken[1:]
        yield number, cells, next((problem for _, problem in taken if problem), broken)
        number += len(taken)


def separator_of(path: Path) -> str:
    """Returns a csv file's separator: of comma, semicolon and tab the first that cuts each of 20 rows in two, or else
    in equally many, or else is in row 1. (csv.Sniffer takes the comma of "Hello, you;Hallo, du".)"""
    head = [line for line, _ in islice(checked_lines(path, None, form="any"), 20)]
    signs = ",;\t"
    try:
        widths = {sign: {len(row) for row in csv.reader(head, delimiter=sign) if any(row)} for sign in signs}
    except csv.Error:  # a field of over 131,072 characters
        widths = {}
    even = [sign for sign, of_rows in widths.items() if len(of_rows) == 1 and of_rows != {1}]
    even.sort(key=lambda sign: widths[sign] != {2})
    return next(iter(even), next((sign for sign in signs if sign in head[0]), ","))


def _looks_quoted(text: str) -> bool:
    """Returns whether a cell stands in double quotes with doubled ones inside, or its quotes end in another line."""
    inside = text[1:].removesuffix('"').replace('""', "")
    ends = len(text) > 1 and text.endswith('"')
    return text.startswith('"') and '"' not in inside and (not ends or '""' in text[1:-1])


def _refuse(problem: str, where: str, example: str, spec: CorpusSpec, report: FilterReport, more: str = "") -> None:
    """Raises UserError for a row that is no pair, or counts it with `bad_lines: drop`."""
    if spec.bad_lines == "error":
        raise UserError(f"{where}: {problem}.{more} {REMEDY}")
    report.drop(reason_of(problem), example)


def _header(cells: list[str], spec: CorpusSpec, where: str) -> list[int] | None:
    """Returns the sides' columns (from 0) where the first row names them; None where it is a pair.

    Raises: UserError where that cannot be told.
    """
    names = [re.sub(r"^([a-z]{2,3})[-_][a-z]{2,4}$", r"\1", cell.strip().lower()) for cell in cells]  # en-US is en
    languages = [tuple(spec.languages[side].lower() for side in _SIDES)] if spec.languages else []
    for source, target in [*_HEADERS, *languages]:
        if source in names and target in names:
            columns = [names.index(source), names.index(target)]
            read = " and ".join(repr(cells[column]) for column in columns)
            log.warning("%s: is a header; columns %s are read", where, read)
            return columns
    if looks_like_header([cell.strip() for cell in cells]):
        raise UserError(
            f"{where}: looks like a header ({', '.join(cells)}). Name the columns, as in columns: "
            f"{{source: {cells[0]}, target: {cells[1]}}}; if it is a pair, say columns: {{source: 1, target: 2}}."
        )
    return None


def looks_like_header(words: Sequence[str]) -> bool:
    """Returns whether two cells or more are codes or English names of languages ("en", "German"), or names of sides."""
    if sum(0 < len(word) <= 12 for word in words) < 2:  # tells most rows before the slow import
        return False
    from sacremoses.corpus import NonbreakingPrefixes

    known = {*NonbreakingPrefixes().available_langs}
    anyhow = known.union(*_HEADERS)
    # Codes in small letters only: "No" and "Is" are words of a sentence.
    return sum(word in known or (len(word) > 2 and word.lower() in anyhow) for word in words) >= 2


def _position(column: str, header: list[str], where: str) -> int:
    if column not in header:
        raise UserError(f"{where}: no column '{column}'{suggest(column, header)} in the header: {header}.")
    return header.index(column)


class _Problem(str):
    """Stands for a record that cannot be read: what is wrong with it."""


def _no_object(record: Any) -> _Problem:
    return _Problem(f"no object with fields (but {type(record).__name__})")


def _read_jsonl(spec: CorpusSpec, path: Path, report: FilterReport) -> Iterator[Pair]:
    remedy, most = None if spec.bad_lines == "drop" else REMEDY, 20 * MAX_CHARACTERS
    lines = checked_lines(path, remedy, max_characters=most, form="any")
    return _records(_objects(lines), spec, f"{path}, line", report)


def _objects(lines: Iterator[tuple[str, str | None]]) -> Iterator[Any]:
    for line, problem in lines:
        if problem:
            yield _Problem(problem)
        elif not line.strip():
            yield _Problem(_BLANK)
        else:
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                yield _Problem(f"not valid JSON ({error}; one object a line is expected)")


def _read_json(spec: CorpusSpec, path: Path, report: FilterReport) -> Iterator[Pair]:
    with open_text(path) as text:
        content = text.read() if text.peek(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[") else None
    if content is None:
        return _read_jsonl(spec, path, report)
    try:
        records = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error}). An array of objects is expected, or one a line.") from error
    return _records(records, spec, f"{path}, record", report)


def _read_parquet(spec: CorpusSpec, path: Path, report: FilterReport) -> Iterator[Pair]:
    from pyarrow import ArrowException, parquet

    if not path.is_file():
        raise UserError(f"{path}: no such file. Check the path.")
    try:
        with parquet.ParquetFile(path) as file:
            records = (record for batch in file.iter_batches() for record in batch.to_pylist())
            yield from _records(records, spec, f"{path}, record", report)
    except ArrowException as error:
        raise UserError(f"{path}: cannot be read as parquet ({error}). Copy or download it again.") from error


def _folder_of(spec: CorpusSpec, root: Path) -> Path | None:
    """Returns the folder of a data set, looked up under `root`, then as a path; None for one on the Hub."""
    return next((path for path in (root / str(spec.dataset), Path(str(spec.dataset))) if path.is_dir()), None)


def _check_lines(folder: Path | None) -> None:
    """Raises UserError for the first line of a data set's .jsonl files that is no record; `datasets` names no line."""
    for path in sorted(folder.rglob("*.jsonl*")) if folder else ():
        remedy = "Mend it, or give the file as path, with bad_lines: drop."
        lines = checked_lines(path, remedy, max_characters=20 * MAX_CHARACTERS, form="any")
        for number, record in enumerate(_objects(lines), start=1):
            problem = record if isinstance(record, _Problem | Mapping) else _no_object(record)
            if isinstance(problem, _Problem) and problem != _BLANK:
                raise UserError(f"{path}, line {number}: {problem}. {remedy}")


def _dataset(spec: CorpusSpec, root: Path) -> Any:
    """Returns the records of a data set on the Hub or in a folder (`_folder_of`)."""
    import datasets

    folder = _folder_of(spec, root)
    try:
        if folder and any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
            loaded = datasets.load_from_disk(str(folder))
            return loaded[spec.split] if isinstance(loaded, datasets.DatasetDict) else loaded
        name = str(folder) if folder else spec.dataset
        return datasets.load_dataset(name, spec.config, split=spec.split, streaming=spec.streaming)
    except Exception as error:  # the library raises many kinds: no network, no such name, split or config
        _check_lines(folder)
        raise UserError(
            f"data set '{spec}': cannot be loaded ({type(error).__name__}: {first_line(error)}). "
            "Check name, config and split; offline, give a local folder or files."
        ) from error


def _rows_of(records: Any, name: str, folder: Path | None) -> Iterator[Any]:
    """Yields the records of a data set, whose Arrow files are mapped, not read into the memory."""
    number, tables = 0, records.with_format("arrow").iter(1000)
    while True:
        try:
            table = next(tables, None)
        except Exception as error:  # each format raises errors of its own
            _check_lines(folder)
            said = first_line(error.__cause__ or error)
            raise UserError(
                f"{name}: what follows record {number:,} cannot be read ({said}). Mend or drop it."
            ) from error
        if table is None:
            return
        yield from (rows := table.to_pylist())
        number += len(rows)


def size_of(spec: Any, root: str | Path, read: bool = False) -> int | None:
    """Returns how many items a corpus of pairs or of text has, bad ones included; None where that is not known.

    read: count the lines of text for it; a .json file and a data set that is streamed are not counted.
    """
    suffix, number = format_of(Path(spec.path or "")), None
    if spec.dataset:
        number = None if spec.streaming else _dataset(spec, Path(root)).num_rows
    elif suffix == ".parquet":
        from pyarrow import parquet

        number = parquet.read_metadata(Path(root) / spec.path).num_rows
    elif read and suffix != ".json":
        number = count_text(spec.local_files(root)[0]).lines
    return number if spec.limit is None or number is None else min(spec.limit, number)


def _records(
    records: Iterable[Any], spec: CorpusSpec, where: str, report: FilterReport, before: int = 0
) -> Iterator[Pair]:
    """Yields the pairs of records; a field is refused or dropped for what `read_lines` refuses in a line."""
    for number, record in enumerate(records, start=before + 1):
        if record == _BLANK and isinstance(record, _Problem):
            report.drop(_BLANK)
            continue
        pair = _pair(record, spec)
        problem = pair if isinstance(pair, _Problem) else problem_in(pair[0]) or problem_in(pair[1])
        if problem and number == 1 and problem.startswith(_FIELDS):  # all records lack them: a slip in the recipe
            raise UserError(f"{where} {number}: {problem}.")
        if problem:
            _refuse(problem, f"{where} {number}", str(record), spec, report)
        else:
            yield cast(Pair, pair)


_FIELDS = "fields missing"


def _pair(record: Any, spec: CorpusSpec) -> Pair | _Problem:
    """Returns source and target of a record (CorpusSpec.columns), or what is wrong with it."""
    if isinstance(record, _Problem):
        return record
    if not isinstance(record, Mapping):
        return _no_object(record)
    inner = record.get("translation")
    places = [record] + ([inner] if isinstance(inner, Mapping) else [])
    names = [spec.columns] if spec.columns else [{side: side for side in _SIDES}, spec.languages or {}]
    for place in places:
        for columns in filter(None, names):
            if all(columns[side] in place for side in _SIDES):
                texts = [place[columns[side]] for side in _SIDES]
                for side, value in zip(_SIDES, texts):
                    if not isinstance(value, str):
                        said = "null" if value is None else f"{type(value).__name__}, {value!r:.40}"
                        return _Problem(f"no text (field '{columns[side]}' is {said})")
                source, target = (text.replace("\r\n", " ").replace("\n", " ") for text in texts)
                return source, target
    wanted = " or ".join(f"'{columns['source']}' and '{columns['target']}'" for columns in names if columns)
    has = ", ".join(map(str, places[-1]))
    return _Problem(f"{_FIELDS} ({wanted} expected, found {has}; name them: columns: {{source: ..., target: ...}})")


# The formats of one file of pairs, by its suffix; text of one language is a column of one of them.
FORMATS = {
    ".tsv": _read_tsv,
    ".csv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
