"""Parallel corpora as streams of text pairs: plain or gz text, tsv, jsonl, parquet, data sets (Hub or folder).

The first line of a tsv file may be a header that names the sides, or a pair of sentences already.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal

from hf_mlnmt.data.filters import FilterReport, Pair
from hf_mlnmt.data.lines import MAX_CHARACTERS, REMEDY, note_in, problem_in, read_lines, reason_of
from hf_mlnmt.data.synthetic import FILES as SYNTHETIC_FILES
from hf_mlnmt.data.synthetic import find_synthetic
from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.keys import key
from hf_mlnmt.model_folder import first_line

log = logging.getLogger(__name__)
_SIDES = ("source", "target")
_HEADERS = [("source", "target"), ("src", "tgt"), ("src", "trg")]


@dataclass
class CorpusSpec:
    """Where a corpus is; one of `files`, `path`, `dataset` and `synthetic`. Paths are relative to the data folder."""

    files: dict[str, str] | None = key(
        None, "{source: train.en.gz, target: train.de.gz}: line i of one translates line i of the other."
    )
    path: str | None = key(None, "One file of pairs: .tsv, .jsonl (both also .gz) or .parquet.")
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
    weight: float = key(1.0, "How often an epoch shows each pair.")
    bad_lines: Literal["error", "drop"] = key(
        "error", "At invalid UTF-8, control characters and overlong lines: stop, or drop the pair and count it."
    )
    synthetic: str | None = key(None, "A folder that back-translation wrote; its files are compared with its manifest.")
    reverse: bool = key(
        False, "Source and target change places as they are read; languages are those of the pairs as they come out."
    )
    limit: int | None = key(None, "Only the first so many pairs, at least 1.")
    tag: str | None = key(
        None, 'A token such as `<bt>` before every source; of a synthetic corpus its manifest\'s, and "" is none.'
    )
    ratio: float | None = key(None, "Of a synthetic corpus: so many of its pairs to each pair of the others.")

    def __post_init__(self) -> None:
        given = [name for name in ("files", "path", "dataset", "synthetic") if getattr(self, name)]
        if len(given) != 1:
            names = "files, path, dataset and synthetic"
            raise UserError(f"corpus: give one of {names}, not {' and '.join(given) or 'none'}.")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"corpus: limit must be at least 1, not {self.limit}.")
        if self.ratio is not None and not (self.synthetic and 0 < self.ratio < 1e6):
            raise UserError(
                f"corpus: ratio {self.ratio:g} is for a synthetic corpus, and above 0: so many synthetic pairs to each "
                "pair of the other corpora (0.5, 1, 2 ...). Elsewhere weight says how often a pair is shown."
            )
        for name in ("files", "columns", "languages"):
            value = getattr(self, name)
            if value is not None and not _has_sides(value, int if name == "columns" else str):
                raise UserError(f"corpus: {name} needs 'source' and 'target', as in {{source: ..., target: ...}}.")
        if self.bad_lines not in ("error", "drop"):
            raise UserError(f"corpus: bad_lines is 'error' or 'drop', not '{self.bad_lines}'.")
        if not self.weight > 0:
            raise UserError(f"corpus: weight must be above 0, not {self.weight}. Leave the corpus out instead.")

    def __str__(self) -> str:
        if self.files:
            return f"{self.files['source']} + {self.files['target']}"
        if self.path or self.synthetic:
            return str(self.path or self.synthetic)
        return " ".join(filter(None, [self.dataset, self.config, self.split]))

    def reading(self) -> tuple[Any, ...]:
        """What decides how the text is read, but for the files themselves."""
        usual = (self.dataset, self.config, self.split, self.columns, self.languages, self.bad_lines)
        return usual + tuple((name, value) for name in ("reverse", "limit", "tag") if (value := getattr(self, name)))

    @property
    def is_two_files(self) -> bool:
        """Whether line i of one file goes with line i of another."""
        return bool(self.files or self.synthetic)

    def local_files(self, root: str | Path = ".") -> list[Path]:
        """The files that are read; none for a data set."""
        if self.synthetic:
            return [find_synthetic(self.synthetic, root) / name for name in SYNTHETIC_FILES.values()]
        names = self.files.values() if self.files else [self.path] if self.path else []
        return [Path(root) / name for name in names]


def _has_sides(value: Any, *types: type) -> bool:
    """Whether this is a mapping of both sides to text (or another type)."""
    return (
        isinstance(value, Mapping)
        and set(value) == set(_SIDES)
        and all(isinstance(side, (str, *types)) for side in value.values())
    )


def read_pairs(spec: CorpusSpec, root: str | Path = ".", report: FilterReport | None = None) -> Iterator[Pair]:
    """Yield (source, target) texts in order, a pair at a time, empty sides included.

    `report`, if given, counts what `bad_lines: drop` drops. Raises UserError naming file and line, or field and what
    the record has.
    """
    report = report if report is not None else FilterReport()
    if spec.limit is not None:
        return islice(read_pairs(replace(spec, limit=None), root, report), spec.limit)
    if spec.reverse:
        there = spec.languages and {"source": spec.languages["target"], "target": spec.languages["source"]}
        pairs = read_pairs(replace(spec, reverse=False, languages=there), root, report)
        return ((target, source) for source, target in pairs)
    if spec.is_two_files:
        return _read_files(spec, Path(root), report)
    if spec.dataset:
        return _records(_dataset(spec, Path(root)), spec, f"{spec}, record", report)
    assert spec.path
    path = Path(root) / spec.path
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix != ".gz"]
    if not suffixes or suffixes[-1] not in FORMATS:
        raise UserError(
            f"{path}: expected .tsv, .jsonl (or these with .gz) or .parquet; for two text files use 'files'."
        )
    return FORMATS[suffixes[-1]](spec, path, report)


def _read_files(spec: CorpusSpec, root: Path, report: FilterReport) -> Iterator[Pair]:
    paths = spec.local_files(root)
    problems: list[str] = []
    sides = [read_lines(path, note_in(problems) if spec.bad_lines == "drop" else None) for path in paths]
    for number, (source, target) in enumerate(zip_longest(*sides)):
        if source is None or target is None:
            counts = [number + (text is not None) + sum(1 for _ in rest) for text, rest in zip((source, target), sides)]
            raise UserError(
                f"{paths[0]} has {counts[0]:,} lines and {paths[1]} has {counts[1]:,}: they do not go together line by "
                "line. Check that both are of one corpus and that no tool split lines at other characters."
            )
        if problems:
            report.drop(problems[0], f"{source} ||| {target}")
            problems.clear()
        else:
            yield source, target


def _read_tsv(spec: CorpusSpec, path: Path, report: FilterReport) -> Iterator[Pair]:
    columns = [(spec.columns or {"source": 1, "target": 2})[side] for side in _SIDES]
    numbers = [column - 1 for column in columns] if all(isinstance(column, int) for column in columns) else None
    if numbers and min(numbers) < 0:
        raise UserError(f"{path}: columns are counted from 1, so {columns} cannot be; 1 is the first.")
    problems: list[str] = []
    lines = read_lines(path, note_in(problems) if spec.bad_lines == "drop" else None)
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t")
        if numbers is None:
            numbers = [_position(str(column), cells, path) for column in columns]
            continue
        if number == 1 and spec.columns is None and (named := _header(cells, spec, path)):
            numbers = named
            continue
        if problems:
            report.drop(problems.pop(), line)
            continue
        if len(cells) <= max(numbers):
            expected = f"at least {max(numbers) + 1} columns separated by tabs"
            raise UserError(f"{path}, line {number}: {expected} expected, {len(cells)} found. Mend the line.")
        yield cells[numbers[0]], cells[numbers[1]]


def _header(cells: list[str], spec: CorpusSpec, path: Path) -> list[int] | None:
    """The sides' columns (from 0) where line 1 names them; None where it is a pair.

    Raises: UserError where that cannot be told.
    """
    names = [cell.strip().lower() for cell in cells]
    languages = [tuple(spec.languages[side].lower() for side in _SIDES)] if spec.languages else []
    for source, target in [*_HEADERS, *languages]:
        if source in names and target in names:
            columns = [names.index(source), names.index(target)]
            read = " and ".join(repr(cells[column]) for column in columns)
            log.warning("%s: line 1 is a header; columns %s are read", path, read)
            return columns
    if _looks_like_header([cell.strip() for cell in cells]):
        raise UserError(
            f"{path}, line 1: looks like a header ({', '.join(cells)}). Name the columns, as in columns: "
            f"{{source: {cells[0]}, target: {cells[1]}}}; if it is a pair, say columns: {{source: 1, target: 2}}."
        )
    return None


def _looks_like_header(words: Sequence[str]) -> bool:
    """Whether two cells or more are codes or English names of languages ("en", "German"), or names of sides."""
    if sum(0 < len(word) <= 12 and word.isalpha() for word in words) < 2:
        return False
    from sacremoses.corpus import NonbreakingPrefixes

    known = {*NonbreakingPrefixes().available_langs}
    anyhow = known.union(*_HEADERS)
    # Codes in small letters only: "No" and "Is" are words of a sentence.
    return sum(word in known or (len(word) > 2 and word.lower() in anyhow) for word in words) >= 2


def _position(column: str, header: list[str], path: Path) -> int:
    if column not in header:
        raise UserError(f"{path}, line 1: no column '{column}'{suggest(column, header)} in the header: {header}.")
    return header.index(column)


def _read_jsonl(spec: CorpusSpec, path: Path, report: FilterReport) -> Iterator[Pair]:
    lines = read_lines(path, max_characters=20 * MAX_CHARACTERS)
    return _records(_objects(lines, path), spec, f"{path}, line", report)


def _objects(lines: Iterator[str], path: Path) -> Iterator[Any]:
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise UserError(
                f"{path}, line {number}: not valid JSON ({error}). One object a line is expected."
            ) from error


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
    """The records of a data set on the Hub, or in a folder under `root` or anywhere."""
    import datasets

    assert spec.dataset
    folder = next((path for path in (root / spec.dataset, Path(spec.dataset)) if path.is_dir()), None)
    try:
        if folder and any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
            loaded = datasets.load_from_disk(str(folder))
            return loaded[spec.split] if isinstance(loaded, datasets.DatasetDict) else loaded
        name = str(folder) if folder else spec.dataset
        return datasets.load_dataset(name, spec.config, split=spec.split, streaming=spec.streaming)
    except Exception as error:  # the library raises many kinds: no network, no such name, split or config
        raise UserError(
            f"data set '{spec}': cannot be loaded ({type(error).__name__}: {first_line(error)}). "
            "Check name, config and split; offline, give a local folder or files."
        ) from error


def _records(records: Iterable[Any], spec: CorpusSpec, where: str, report: FilterReport) -> Iterator[Pair]:
    """The pairs of records; a field is refused or dropped for what `read_lines` refuses in a line."""
    for number, record in enumerate(records, start=1):
        pair = _pair(record, spec, f"{where} {number}")
        problem = problem_in(pair[0]) or problem_in(pair[1])
        if problem and spec.bad_lines == "error":
            raise UserError(f"{where} {number}: {problem}. {REMEDY}")
        if problem:
            report.drop(reason_of(problem), " ||| ".join(pair))
        else:
            yield pair


def _pair(record: Any, spec: CorpusSpec, where: str) -> Pair:
    """Source and target of a record, see CorpusSpec.columns."""
    if not isinstance(record, Mapping):
        raise UserError(f"{where}: an object with fields is expected, not {type(record).__name__}.")
    inner = record.get("translation")
    places = [record] + ([inner] if isinstance(inner, Mapping) else [])
    names = [spec.columns] if spec.columns else [{side: side for side in _SIDES}, spec.languages or {}]
    for place in places:
        for columns in filter(None, names):
            if all(columns[side] in place for side in _SIDES):
                return _text(place, columns["source"], where), _text(place, columns["target"], where)
    wanted = " or ".join(f"'{columns['source']}' and '{columns['target']}'" for columns in names if columns)
    has = ", ".join(map(str, places[-1]))
    raise UserError(
        f"{where}: fields {wanted} expected, found {has}. Name them: columns: {{source: ..., target: ...}}."
    )


def _text(record: Mapping[str, Any], name: str, where: str) -> str:
    value = record[name]
    if not isinstance(value, str):
        raise UserError(f"{where}: field '{name}' must be text, not {type(value).__name__} ({value!r:.40}).")
    return value.replace("\r\n", " ").replace("\n", " ")


# The formats of one file of pairs, by its suffix; text of one language is a column of one of them.
FORMATS = {".tsv": _read_tsv, ".jsonl": _read_jsonl, ".json": _read_jsonl, ".parquet": _read_parquet}
