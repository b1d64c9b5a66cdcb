"""Reads corpora as streams: text pairs from text, tsv, csv, jsonl, JSON, parquet, data sets (Hub or folder) and the
formats of bilingual.py; sentences of one language from text or from one column of a table.

Text may be packed (lines.py). The first row of a tsv or csv file may be a header that names the sides, or a pair of
sentences already. Every row has as many cells as the first one; a blank line is no row, and is counted.

A synthetic corpus is a folder of pairs of which one side was written by a model: source.txt and target.txt, line by
line, and manifest.json, which says by which model and method, of which text, what was dropped, and has the files'
sizes and SHA-256.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from annotated_types import MinLen

from hf_mlnmt.common.errors import UserError, say_once
from hf_mlnmt.common.files import Form, misfit, read_json
from hf_mlnmt.common.keys import Range, Section, key
from hf_mlnmt.common.languages import check_language, language_in, pair_of_name, same_language
from hf_mlnmt.common.made_from import digest, sha256
from hf_mlnmt.common.model_folder import first_line
from hf_mlnmt.data.bilingual import BILINGUAL, UnitReport, read_units
from hf_mlnmt.data.filters import FilterReport, Pair
from hf_mlnmt.data.formats import format_of
from hf_mlnmt.data.lines import MAX_CHARACTERS, REMEDY, checked_lines, count_text, open_text, problem_in
from hf_mlnmt.data.tables import BLANK, read_table, refuse, side_by_side
from hf_mlnmt.data.tables import SIDES as _SIDES

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
    """The manifest of the synthetic corpus in `folder`; `content`: what its manifest.json contains."""

    folder: Path
    content: Mapping[str, Any]

    @property
    def pairs(self) -> int:
        """Returns the number of pairs."""
        return self.content["pairs"]["lines"]

    @property
    def tag(self) -> str | None:
        """Returns the token that is put before the source of every pair of this corpus, or None."""
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
    """Returns the folder of the synthetic corpus `name`, a path relative to `root` or to the current folder.

    Raises: UserError if neither has a manifest.json.
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
TextSide = Literal["source", "target"]
_TURNED = "or the name; where the sides are exchanged, say reverse: true."
Weight = Annotated[float, Range(0, 1000, above=True)]
Limit = Annotated[int, Range(1)]


def check_keys(spec: Any, where: str) -> None:
    """Raises UserError if a key of data sets (config, split, streaming) is set in a corpus that is no data set."""
    usual = {each.name: each.default for each in fields(spec)}
    names = () if spec.dataset else ("config", "split", "streaming")
    if name := next((name for name in names if getattr(spec, name) != usual[name]), None):
        raise UserError(f"{where}: {name} is of a data set (dataset: NAME), and has no effect here. Leave it out.")


@dataclass
class CorpusSpec(Section):
    """A corpus of pairs: give `files`, `path`, `dataset` or `synthetic`. Paths are relative to the data folder."""

    files: dict[str, str] | None = key(
        None, "{source: train.en.gz, target: train.de.gz}: line i of one translates line i of the other."
    )
    path: str | None = key(
        None,
        "One file of pairs: .tsv, .csv, .jsonl, .json (lines or an array, which is read as a whole) or .parquet; a "
        "memory, catalogue or glossary (.tmx, .xliff, .po, .mo, .tbx), or a folder or zip of such. Text may be packed "
        "as gz, bz2, xz, zst or a zip of one file, also in files.",
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
    weight: Weight = key(1.0, "How often an epoch shows each pair.")
    bad_lines: Literal["error", "drop"] = key(
        "error",
        "At invalid UTF-8, control characters, overlong lines, rows of another width, null and broken JSON: stop, or "
        "drop the pair and count it.",
    )
    keep_accelerators: bool = key(
        False, "Of .po and .mo: the signs before the letters of keys, as in &File and _Open, stay in the text."
    )
    synthetic: str | None = key(None, "A folder that back-translation wrote; its files are compared with its manifest.")
    reverse: bool = key(
        False, "Source and target change places as they are read; languages are those of the pairs as they come out."
    )
    limit: Limit | None = key(None, "Only the first so many pairs.")
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
        check_keys(self, f"corpus: {self}")
        if self.columns and self.is_two_files:
            raise UserError(f"corpus: {self}: columns is of a table (path), and has no effect here. Leave it out.")
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
            return  # one file is both sides: its text is copied as its own translation
        # `languages` names the sides as they are after reversing; files and columns, as they are before.
        for side, other in zip(_SIDES, _SIDES[::-1] if self.reverse else _SIDES):
            for said in filter(None, [files.get(side), f"columns.{side}.{columns.get(side)}", of_pairs]):
                check_language(said, codes.get(other), "it is read as", f"Mend languages.{other}, {_TURNED}")

    def __str__(self) -> str:
        if self.files:
            return f"{self.files['source']} + {self.files['target']}"
        if self.path or self.synthetic:
            return str(self.path or self.synthetic)
        return " ".join(filter(None, [self.dataset, self.config, self.split]))

    def reading(self) -> tuple[Any, ...]:
        """Returns the values of all keys that decide which pairs are read from the files, for a digest."""
        usual = (self.dataset, self.config, self.split, self.columns, self.languages, self.bad_lines)
        others = ("reverse", "limit", "tag", "keep_accelerators")
        return usual + tuple((name, value) for name in others if (value := getattr(self, name)))

    @property
    def is_two_files(self) -> bool:
        """Returns whether the corpus is two files of text: line i of one is the translation of line i of the other."""
        return bool(self.files or self.synthetic)

    def local_files(self, root: str | Path = ".") -> list[Path]:
        """Returns the paths of the files that the corpus is read from; [] for a data set. Relative to `root`."""
        if self.synthetic:
            return [find_synthetic(self.synthetic, root) / name for name in FILES.values()]
        names = self.files.values() if self.files else [self.path] if self.path else []
        paths = [Path(root) / name for name in names]
        folder = [file for path in paths if path.is_dir() for file in sorted(path.rglob("*")) if file.is_file()]
        return folder or paths


def read_pairs(
    spec: CorpusSpec, root: str | Path = ".", report: FilterReport | None = None, skip: int = 0
) -> Iterator[Pair]:
    """Yields the pairs of a corpus, (source text, target text), in order; also those with an empty side.

    `report`, if given, counts the lines that `bad_lines: drop` leaves out. skip: number of records of a data set to
    pass over. Raises UserError for a bad line or record, with file and line, or field and the record's fields.
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
        rows = _rows_of(_dataset(spec, Path(root)).skip(skip), f"{spec}")
        return _records(rows, spec, f"{spec}, record", report, skip)
    assert spec.path
    path = Path(root) / spec.path
    if is_of_units(path):
        return _read_units(spec, path, report)
    if format_of(path) not in FORMATS:
        known = ", ".join(dict.fromkeys([*FORMATS, *BILINGUAL]))
        raise UserError(f"{path}: expected {known}, also packed, a folder or a zip; for two text files use 'files'.")
    return FORMATS[format_of(path)](spec, path, report)


def is_of_units(path: Path) -> bool:
    """Returns whether bilingual.py reads `path`: a translation memory, catalogue or glossary, a folder or a zip."""
    return format_of(path) not in FORMATS and (
        format_of(path) in BILINGUAL or path.is_dir() or path.suffix.lower() == ".zip"
    )


def _read_units(spec: CorpusSpec, path: Path, report: FilterReport) -> Iterator[Pair]:
    codes, units = spec.languages, UnitReport(0, report.dropped, report.examples, report.first)
    if codes is None:
        raise UserError(f"{path}: which languages? Say languages: {{source: en, target: de}}.")
    asked = codes["source"], codes["target"], units, spec.keep_accelerators, spec.bad_lines == "drop"
    yield from (unit[:2] for unit in read_units(path, *asked))
    say_once(f"{path}: {units}")


class _Problem(str):
    """Stands for a record that cannot be read: what is wrong with it."""


def _read_jsonl(spec: CorpusSpec, path: Path, report: FilterReport) -> Iterator[Pair]:
    remedy, most = None if spec.bad_lines == "drop" else REMEDY, 20 * MAX_CHARACTERS
    lines = checked_lines(path, remedy, max_characters=most, form="any")
    return _records(_objects(lines), spec, f"{path}, line", report)


def _objects(lines: Iterator[tuple[str, str | None]]) -> Iterator[Any]:
    for line, problem in lines:
        if problem:
            yield _Problem(problem)
        elif not line.strip():
            yield _Problem(BLANK)
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


def _dataset(spec: CorpusSpec, root: Path) -> Any:
    """Returns the records of a data set: of a folder under `root` or here, or on the Hub."""
    import datasets

    folder = next((path for path in (root / str(spec.dataset), Path(str(spec.dataset))) if path.is_dir()), None)
    try:
        if folder and any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
            loaded = datasets.load_from_disk(str(folder))
            return loaded[spec.split] if isinstance(loaded, datasets.DatasetDict) else loaded
        name = str(folder) if folder else spec.dataset
        return datasets.load_dataset(name, spec.config, split=spec.split, streaming=spec.streaming)
    except Exception as error:  # `datasets` raises exceptions of many kinds: no network, no such name, split or config
        raise UserError(
            f"data set '{spec}': cannot be loaded ({type(error).__name__}: {first_line(error)}). "
            "Check name, config and split; offline, give a local folder or files."
        ) from error


def _rows_of(records: Any, name: str) -> Iterator[Any]:
    """Yields the records of a data set, whose Arrow files are mapped, not read into the memory."""
    number, tables = 0, records.with_format("arrow").iter(1000)
    while True:
        try:
            table = next(tables, None)
        except Exception as error:  # `datasets` raises other exceptions for each file format
            said = first_line(error.__cause__ or error)
            raise UserError(
                f"{name}: what follows record {number:,} cannot be read ({said}). Mend or drop it."
            ) from error
        if table is None:
            return
        yield from (rows := table.to_pylist())
        number += len(rows)


def size_of(spec: Any, root: str | Path, read: bool = False) -> int | None:
    """Returns how many pairs or sentences a corpus has, bad lines included, at most its `limit`; None if unknown.

    read: count the lines of text files. Unknown: sizes of .json, streamed data sets and files that bilingual.py reads.
    """
    suffix, number = format_of(Path(spec.path or "")), None
    if spec.dataset:
        number = None if spec.streaming else _dataset(spec, Path(root)).num_rows
    elif suffix == ".parquet":
        from pyarrow import parquet

        number = parquet.read_metadata(Path(root) / spec.path).num_rows
    elif read and suffix != ".json" and not (spec.path and is_of_units(Path(root) / spec.path)):
        number = count_text(spec.local_files(root)[0]).lines
    return number if spec.limit is None or number is None else min(spec.limit, number)


def _records(
    records: Iterable[Any], spec: CorpusSpec, where: str, report: FilterReport, before: int = 0
) -> Iterator[Pair]:
    """Yields the pairs of records; a field is refused or dropped for what `read_lines` refuses in a line."""
    for number, record in enumerate(records, start=before + 1):
        if record == BLANK and isinstance(record, _Problem):
            report.drop(BLANK)
            continue
        pair = _pair(record, spec)
        problem = pair if isinstance(pair, _Problem) else problem_in(pair[0]) or problem_in(pair[1])
        # If the first record lacks the fields, so do all records: the recipe is wrong.
        if problem and number == 1 and problem.startswith(_FIELDS):
            raise UserError(f"{where} {number}: {problem}.")
        if problem:
            refuse(problem, f"{where} {number}", str(record), spec, report)
        else:
            yield cast(Pair, pair)


_FIELDS = "fields missing"


def _pair(record: Any, spec: CorpusSpec) -> Pair | _Problem:
    """Returns source and target of a record (CorpusSpec.columns), or what is wrong with it."""
    if isinstance(record, _Problem):
        return record
    if not isinstance(record, Mapping):
        return _Problem(f"no object with fields (but {type(record).__name__})")
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


# The formats of one file of pairs: suffix -> the function that reads such a file (also a single column, by TextSpec).
FORMATS = {
    ".tsv": read_table,
    ".csv": read_table,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
}


# Text of one language; development and test sets, which are read as raw text


@dataclass
class TextSpec(Section):
    """Text of one language: give `path` or `dataset`. Paths are relative to the data folder."""

    path: str | None = key(
        None,
        "One sentence a line; or .tsv, .csv, .jsonl, .json or .parquet with column; text may be packed as in a corpus.",
    )
    dataset: str | None = key(None, "A name on the Hub, or a folder, with column.")
    config: str | None = key(None, "The configuration of the data set.")
    split: str = key("train", "The split of the data set.")
    streaming: bool = key(False, "Read the data set without downloading it ahead.")
    column: str | int | None = key(
        None, "The field that holds the text; of tsv a name of its header line or a number from 1."
    )
    language: str | None = key(None, "The code of its language.")
    side: TextSide | None = key(
        None, "Whose vocabulary and text processing it gets; unless told, the side whose language it is."
    )
    limit: Limit | None = key(None, "Only the first so many sentences.")
    weight: Weight = key(1.0, "How often an epoch shows each sentence.")
    bad_lines: Literal["error", "drop"] = key(
        "error", "At invalid UTF-8, control characters and overlong lines: stop, or drop the sentence and count it."
    )

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.dataset):
            raise UserError("text: give one of path and dataset.")
        check_keys(self, f"text: {self}")
        if self.is_table != (self.column is not None):
            has = "has columns: say with column which one is the text." if self.is_table else "has no columns."
            raise UserError(f"text: {self} {has}")
        column = f"column.{self.column}"
        name = column if language_in(column) or not self.path else self.path
        check_language(name, self.language, "it is read as", "Mend language, or give text of that one.")

    @property
    def is_table(self) -> bool:
        """Returns whether the text is a column of a table (data set, .tsv, .jsonl ...), not a file of sentences."""
        return self.dataset is not None or format_of(Path(self.path or "")) in FORMATS

    def __str__(self) -> str:
        return self.path or " ".join(filter(None, [self.dataset, self.config, self.split]))

    def reading(self) -> tuple[Any, ...]:
        """Returns the values of all keys that decide which sentences are read from the file, for a digest."""
        usual = (self.dataset, self.config, self.split, self.column, self.language, self.side, self.bad_lines)
        return usual + ((self.limit,) if self.limit is not None else ())

    def local_files(self, root: str | Path = ".") -> list[Path]:
        """Returns [path of the file that the text is read from], below `root`; [] for a data set."""
        return [Path(root) / self.path] if self.path else []


def read_text(
    spec: TextSpec, root: str | Path = ".", report: FilterReport | None = None, skip: int = 0
) -> Iterator[str]:
    """Yields the sentences of a text in order, empty ones included; `report`, `skip` and errors as in `read_pairs`."""
    report = report if report is not None else FilterReport()
    if spec.limit is not None:
        yield from islice(read_text(replace(spec, limit=None), root, report), spec.limit)
        return
    if spec.is_table:
        names = ("path", "dataset", "config", "split", "streaming", "bad_lines")
        asked: dict[str, Any] = {name: getattr(spec, name) for name in names}
        both = CorpusSpec(columns={"source": spec.column, "target": spec.column}, **asked)
        yield from (text for text, _ in read_pairs(both, root, report, skip))
        return
    yield from (text for (text,) in side_by_side(spec.local_files(root), spec.bad_lines == "drop", report))


@dataclass
class RawPairs:
    """A development or test set as raw text. `language`: that of the references, or of the sources if there are none.

    `target_language` and `source_language`: the codes that a multilingual model is told; None: the model is not told.
    """

    name: str
    sources: list[str]
    references: list[str]
    language: str
    target_language: str | None = None
    source_language: str | None = None

    @property
    def asked(self) -> dict[str, str | None]:
        """Returns the options of the pipeline that tell the model the languages: {name: code, or None}."""
        names = {"target_language": self.target_language}
        return {**names, "source_language": self.source_language} if self.source_language else names


def read_raw(
    name: str, spec: CorpusSpec | TextSpec, root: Path, tell_target: bool = False, tell_source: bool = False
) -> RawPairs:
    """Reads a development or test set unfiltered; of a TextSpec the sentences become sources without references.

    Raises: UserError for an empty set.
    """
    if isinstance(spec, TextSpec):
        texts = list(read_text(spec, root))
        if not texts:
            raise UserError(f"{spec}: no sentences; data.{name} needs some.")
        return RawPairs(name, texts, [], str(spec.language))
    pairs = list(read_pairs(spec, root))
    if not pairs:
        raise UserError(f"{spec}: no sentence pairs; data.{name} needs some.")
    assert spec.languages is not None
    source, target = spec.languages["source"], spec.languages["target"]
    sources, references = map(list, zip(*pairs))
    return RawPairs(name, sources, references, target, target if tell_target else None, source if tell_source else None)


def digest_of_texts(sets: Sequence[RawPairs]) -> str:
    """Returns a digest of the sets' names, texts and target languages, which are equal where the digests are."""
    return digest([[each.name, each.sources, each.references, each.target_language] for each in sets])
