"""Translates lines of files and pipes into a file or standard output, for `hf-mlnmt translate`.

Lines of a pipe are translated as they arrive. Translations are written as plain text, n-best lists or JSON. An output
file is first written in a folder beside it (journal.py), so that a stopped translation can be resumed.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from glob import escape
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hf_mlnmt import __version__
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_path, check_file, explained, is_special, only_one, packing
from hf_mlnmt.common.made_from import check_same, digest, identity_of_text, sha256_of_files
from hf_mlnmt.data.formats import Form, format_of, in_xml
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.tables import looks_like_header, rows
from hf_mlnmt.generation.translating.journal import Journal
from hf_mlnmt.generation.translating.options import DecodingOptions

if TYPE_CHECKING:
    from hf_mlnmt.generation.translating.hypotheses import Hypothesis
    from hf_mlnmt.generation.translating.pipeline import TranslationPipeline

STANDARD_INPUT = "-"
WINDOW = 2048  # lines of a file that are read and sorted by length together
FIRST_WINDOW = 64  # lines that are translated first, so that translations are seen soon
_NOTHING: dict[str, Any] = {"model": None, "text": [], "settings": {}}
_MADE_FROM = {"model": (None, {"name": str, "files": dict}), "settings": dict}
_MADE_FROM |= {"text": [{"name": str, "lines": int, "sha256": str}]}
_CHUNK = 1 << 16
_NUL = "contains a NUL character: not a text file, or not UTF-8."
_REMEDY = "Convert the text to UTF-8, for example with iconv."


def identities(inputs: Sequence[str], form: Form = "lines") -> list[dict[str, Any]] | None:
    """Returns each file's name, number of lines and hash; None where standard input is among them."""
    return None if STANDARD_INPUT in inputs else [identity_of_text(name, _lines(name, form)) for name in inputs]


def text_groups(inputs: Sequence[str], window: int, form: Form = "lines") -> Iterator[list[str]]:
    """Yields the lines of several inputs one after the other, in groups to be translated together.

    The first window is yielded in several groups, the first of FIRST_WINDOW lines, each later one twice as long.
    """
    of_inputs = (pipe_groups() if name == STANDARD_INPUT else file_groups(name, window, form) for name in inputs)
    groups = chain.from_iterable(of_inputs)
    rest, size = next(groups, []), FIRST_WINDOW
    while len(rest) >= 3 * size:
        yield rest[:size]
        rest, size = rest[size:], 2 * size
    if rest:
        yield rest
    yield from groups


def file_groups(path: str | Path, size: int, form: Form = "lines") -> Iterator[list[str]]:
    """Yields the lines of a plain or packed file, `size` at a time."""
    lines = _lines(path, form)
    while group := list(islice(lines, size)):
        yield group


def pipe_groups(stream: Any = None) -> Iterator[list[str]]:
    """Yields lists of the lines of standard input (or `stream`) that have arrived: one line that a person typed, or
    hundreds that a program wrote. Raises: UserError for closed standard input, or a line that is no valid text."""
    if stream is None and sys.stdin is None:
        raise UserError("standard input is closed: give the names of files, or text by a pipe.")
    source: Any = stream or sys.stdin.buffer
    number, rest = 1, b""
    while chunk := source.read1(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [_text(line, number + i, "standard input") for i, line in enumerate(lines)]
            number += len(lines)
    if rest:
        yield [_text(rest, number, "standard input")]


def _lines(path: str | Path, form: Form) -> Iterator[str]:
    """Yields a file's lines, or a table's first column, of any length, empty ones and control characters included.

    Raises: UserError for NUL.
    """
    if form == "column" and format_of(Path(path)) in (".csv", ".tsv"):
        table = rows(SimpleNamespace(bad_lines="error"), Path(path))
        yield from (cells[0] for number, cells, _ in table if number > 1 or not looks_like_header(cells))
        return
    free: dict[str, Any] = {"max_characters": 10**9, "keep_controls": True, "may_be_empty": True}
    lines = read_lines(path, _REMEDY, form=form, **free)
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise UserError(f"{path}, line {number}: {_NUL}")
        yield line


def _text(line: bytes, number: int, name: str) -> str:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}, line {number}: invalid UTF-8 (byte {line[error.start]:#04x}). {_REMEDY}") from error
    if "\0" in text:
        raise UserError(f"{name}, line {number}: {_NUL}")
    # The first line may begin with a byte order mark, which is removed.
    return text.removeprefix("\ufeff") if number == 1 else text


def _encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _show(text: str | bytes) -> None:
    if isinstance(text, str):
        print(text, end="", flush=True)
    else:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()


@contextmanager
def _stream(output: Path | None) -> Iterator[Callable[[str | bytes], Any]]:
    """Context manager that opens standard output (None), a device or a pipe; yields a function that writes to it."""
    if output is None:
        yield _show
        return
    with explained(output), output.open("wb", buffering=0) as stream:
        yield lambda text: stream.write(packing(output)(_encoded(text)))


def row(line: int, source: str, best: Hypothesis) -> str:
    """Returns a translation's line for a file of doubtful ones: line number, warnings, source, translation; "" for a
    translation without warnings."""
    cells = (str(line), ",".join(best.warnings), source, best.text)
    return "\t".join(" ".join(cell.split()) for cell in cells) + "\n" if best.warnings else ""


@contextmanager
def opened(
    output: Path | None, about: Mapping[str, Any] | None = None, doubtful: Path | None = None
) -> Iterator[tuple[int, Callable[..., Any]]]:
    """Context manager that opens an output; yields the number of lines an earlier call wrote, and a function `write`.

    write(text, done, rows): writes text (bytes for a document), and rows into the file `doubtful`; done: the number of
    lines that are written with this text.

    To standard output, a device or a pipe the text is written at once. A file is made in the folder NAME.part, packed
    as its name says, and resumed from there after a stop. `about`: what the output is made from, {"model", "text",
    "settings"}; without it a stopped output is deleted.

    Raises: UserError where NAME.part was made from something else, naming what differs.
    """
    if output is None or is_special(output):
        with (
            atomic_path(check_file(doubtful)) if doubtful else nullcontext() as aside,
            aside.open("wb") if aside else nullcontext() as side,
            _stream(output) as show,
        ):
            yield 0, lambda text, done, rows="": (show(text), side and side.write(rows.encode()))
        return
    pack, sides = packing(output), {} if doubtful is None else {"doubtful": check_file(doubtful)}
    with explained(output):
        target = check_file(output)
        folder = target.with_name(f"{target.name}.part")
        with only_one(folder, f"{output}: another process is writing it. Wait for that, or choose another name."):
            journal = Journal(folder, {"translations": target, **sides}, about or _NOTHING, _MADE_FROM)
            state = journal.kept()
            if state and not state["about"]["text"]:  # made from a pipe or by random draws: cannot be resumed
                state = None
            if state:
                remedy = f"Delete that folder, or choose another name than {output}"
                now = about or {**state["about"], "text": []}
                check_same(state["about"], now, f"{folder}: holds the beginning", remedy)
            journal.restore(state)
            whole = False
            try:
                yield (
                    journal.progress["lines"],
                    lambda text, done, rows="": journal.append(
                        {"translations": pack(_encoded(text)), **dict.fromkeys(sides, rows.encode())}, done
                    ),
                )
                if not journal.progress["lines"]:
                    journal.append({"translations": pack(b"")}, 0)
                journal.finish()
                whole = True
            finally:
                journal.close()
                if whole or not about or not journal.progress["lines"]:
                    shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Style:
    """The form in which results are written: text or JSON, and what is written for translations that are unsure.

    `below`: a translation of less confidence is written after `mark`; without a mark the source is written instead.
    `memory`: the languages of a TMX file, as "en de", in which each text makes a unit.
    """

    jsonl: bool = False
    scores: bool = False
    below: float | None = None
    mark: str | None = None
    memory: str | None = None

    def written(self, number: int, source: str, result: Sequence[Hypothesis], plain: bool = False) -> str:
        """Returns the text that is written for the translations `result` of text `number` (from 0).

        Without jsonl: if `plain` the translation, else 'number ||| translation ||| score' for each translation (as in
        Moses); then ' ||| 0-0 1-2' for an alignment. jsonl: an object with source, translation, alignment, confidences
        and next word; if `scores` also score, log_probability and length; n_best where there are several translations.
        """
        from hf_mlnmt.generation.translating.alignments import to_pharaoh

        if self.below is not None:
            result = [self._marked(source, best, self.below) for best in result]
        if self.memory:
            sides = zip(self.memory.split(), (source, result[0].text))
            told = [f'<prop type="x-origin">{origin}</prop>'] if (origin := result[0].origin) else []
            told += [f'<tuv xml:lang="{code}"><seg>{in_xml(text)}</seg></tuv>' for code, text in sides]
            return f"<tu>{''.join(told)}</tu>" if source.strip() else ""
        links = [None if best.alignment is None else to_pharaoh(best.alignment) for best in result]
        if not self.jsonl:
            lines = [best.text.replace("\n", " ") for best in result]
            if not plain:
                lines = [f"{number} ||| {line} ||| {best.score:.6f}" for line, best in zip(lines, result)]
            return "\n".join(line if link is None else f"{line} ||| {link}" for line, link in zip(lines, links))
        records: list[dict[str, Any]] = []
        numbers = "score", "log_probability", "length"
        named = ("confidence", "word_confidences", "word", "probability", "origin")
        for best, link in zip(result, links):
            records.append({"translation": best.text} | ({} if link is None else {"alignment": link}))
            records[-1] |= {name: value for name in named if (value := getattr(best, name, None)) is not None}
            records[-1] |= {"warnings": list(best.warnings)} if best.warnings else {}
            if self.scores or len(result) > 1:
                records[-1] |= {name: getattr(best, name) for name in numbers}
        record: dict[str, Any] = {"source": source, **records[0]}
        if not self.scores:
            record = {name: value for name, value in record.items() if name not in numbers}
        if len(records) > 1:
            record["n_best"] = records
        return json.dumps(record, ensure_ascii=False)

    def around(self) -> tuple[str, str]:
        """Returns the texts to write before and after all translations: head and end of TMX, else two empty ones."""
        if self.memory is None:
            return "", ""
        head = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4">\n<header '
            f'creationtool="hf-mlnmt" creationtoolversion="{__version__}" segtype="block" o-tmf="text" adminlang="en" '
            f'srclang="{self.memory.split()[0]}" datatype="plaintext"/>\n<body>\n'
        )
        return head, "</body>\n</tmx>\n"

    def _marked(self, source: str, best: Hypothesis, below: float) -> Hypothesis:
        if (best.confidence or 0.0) >= below:
            return best
        return replace(best, text=source if self.mark is None else self.mark + best.text)


class TextFiles:
    """The source lines of files or standard input, to be translated line by line into one output.

    Args:
        inputs: names of files; "-" is standard input.
        of_lines: {name of a decoding option: file with that option's value for each source line}.
        window: lines that are read and sorted by length together. form: of the inputs, as in `read_lines`.
    Raises: UserError for a file that cannot be read, or a file of `of_lines` with another number of lines.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        decoding: DecodingOptions,
        of_lines: Mapping[str, Path] | None = None,
        window: int = WINDOW,
        form: Form = "lines",
    ) -> None:
        self.texts, self.of_lines, self.window = identities(inputs, form), of_lines or {}, window
        given: dict[str, Any] = {name: list(_lines(file, "lines")) for name, file in self.of_lines.items()}
        self.decoding = replace(decoding, **given)
        self.groups = text_groups(inputs, window, form)
        self.total = None if self.texts is None else sum(text["lines"] for text in self.texts)
        if self.total is not None:
            self._check_counts(self.total)

    def _check_counts(self, texts: int) -> None:
        for name, file in self.of_lines.items():
            if (given := len(getattr(self.decoding, name))) != texts:
                raise UserError(f"{file}: {given} lines for {texts} texts: give one for each text.")

    def made_from(self, model: Mapping[str, Any], style: Style, **others: Any) -> dict[str, Any] | None:
        """Returns the record of model, texts and settings that `opened` compares before it resumes a stopped output;
        None if that cannot be resumed.

        model: the model's identity (common/made_from.py). others: further settings that decide the translations.
        """
        if self.texts is None or self.decoding.depends_on_all_before:
            return None
        settings = {field.name: getattr(self.decoding, field.name) for field in fields(self.decoding)}
        if names := settings.pop("memory"):  # names are replaced by hashes of the memories and added entries
            patterns = [(Path(name).parent, escape(Path(name).name)) for name in names]
            settings["memories"] = [sha256_of_files(place, [own, f"{own}.*.added"]) for place, own in patterns]
        settings |= {"window": self.window, **asdict(style), **others}
        settings = {
            name: digest(value) if isinstance(value, Mapping | list) and value else value
            for name, value in settings.items()
            if name != "progress"
        }
        return {"model": model, "text": self.texts, "settings": settings}

    def translate(
        self,
        pipeline: TranslationPipeline,
        write: Callable[[str, int, str], Any],
        update: Callable[[int], Any],
        done: int = 0,
        style: Style = Style(),
        tell: Callable[[Hypothesis], Any] = lambda best: None,
    ) -> dict[str, Any]:
        """Writes the translations of all lines but the first `done`, and returns counts of them (`summary`); `write`,
        `done`: as `opened` yields them.

        update: called with the number of lines translated since the last call. tell: called with each translation.
        """
        from hf_mlnmt.generation.translating.call import TranslationCall

        call, count, (head, end) = TranslationCall(pipeline, self.decoding), done, style.around()
        plain = not self.decoding.num_return_sequences and not style.scores  # write translations alone, no n-best lists
        groups = call.translate_groups(self.groups, update, done, self.texts is not None)
        for line, group, results in groups:
            count += len(group)
            numbered = enumerate(zip(group, results, strict=True), line - 1)
            text = "".join(f"{style.written(number, *pair, plain)}\n" for number, pair in numbered)
            before, last = head * (count == len(group)), count == self.total
            aside = (row(number, source, best[0]) for number, (source, best) in enumerate(zip(group, results), line))
            write(before + text + end * last, count, "".join(aside))
            for best in results:
                tell(best[0])
        if end and (count != self.total or not count):
            write(head * (not count) + end, count, "")
        if self.total is None:
            self._check_counts(count)
        return call.summary()
