"""Translates the text of documents and keeps their markup: web pages, subtitles, Office files, message catalogues.

FORMATS has an entry for each file name ending. A format's reader parses text, or the bytes of an archive, to a Document
(marked.py), which has the `texts` to translate; its `write` returns the document with the translations in place.
A .docx, for example: office.py unpacks it, xml.py makes tokens, marked.py texts and marks; matching.py finds the places
of the marks in the translation, marked.py joins both, office.py packs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_path, check_file, packing
from hf_mlnmt.common.languages import direction_of, language_tag
from hf_mlnmt.data.formats import TABLES, check_output, format_of, is_document_by, refusal
from hf_mlnmt.data.lines import open_text
from hf_mlnmt.documents.catalogue import read_po
from hf_mlnmt.documents.html import read_html
from hf_mlnmt.documents.localised import STORES, read_localised
from hf_mlnmt.documents.markdown import read_markdown
from hf_mlnmt.documents.marked import Checked, Document, Passage, Reading, check_text, width_of
from hf_mlnmt.documents.office import MEMBERS, read_archive
from hf_mlnmt.documents.plain import read_ass, read_sbv, read_srt, read_text, read_vtt
from hf_mlnmt.documents.xml import read_xliff
from hf_mlnmt.generation import DecodingOptions, TranslationCall

if TYPE_CHECKING:
    from hf_mlnmt.generation import Hypothesis, TranslationPipeline

log = logging.getLogger(__name__)
_MOST = 8  # translations among which one is looked for that is short enough


class Format(NamedTuple):
    """A format: its reader, either of `text` (str) or of an `archive` (bytes).

    `declared`: for a format whose files may name their encoding, the error handler of str.encode for characters that
    the named encoding lacks; None: files name no encoding. `marks`: a translation can be marked as not reviewed.
    """

    text: Callable[[str, Reading], Iterable[str | Passage | Checked]] | None = None
    archive: Callable[[bytes, Reading], Document] | None = None
    declared: str | None = None
    marks: bool = False


FORMATS = {
    ".txt": Format(read_text),
    **dict.fromkeys((".html", ".htm", ".xhtml"), Format(read_html, declared="xmlcharrefreplace")),
    **dict.fromkeys((".md", ".markdown"), Format(read_markdown)),
    ".srt": Format(read_srt),
    ".vtt": Format(read_vtt),
    ".sbv": Format(read_sbv),
    ".ass": Format(read_ass),
    **dict.fromkeys((".po", ".pot"), Format(read_po, declared="strict", marks=True)),
    **dict.fromkeys((".xlf", ".xliff", ".sdlxliff", ".mqxliff"), Format(read_xliff, None, "xmlcharrefreplace", True)),
    **{f".{kind}": Format(archive=partial(read_archive, kind=kind)) for kind in MEMBERS},
    **{ending: Format(archive=partial(read_localised, ending=ending), marks=ending == ".ts") for ending in STORES},
}
_ENCODING = re.compile(
    rb"""(?s)(?:<\?xml[^>]*?\sencoding=["']|.{0,2000}?(?:<meta\b[^>]*?|"Content-Type:[^"]*?)\bcharset=["']?)([\w.:-]+)"""
)


def is_document(name: str | Path) -> bool:
    """Returns whether a file is a document by its ending, one of FORMATS, and not lines of text as `a.en` or `a.txt`.

    Where an ending has other meanings too (a.ts, a.json, a.xml), the beginning of the file decides.
    """
    path, ending = Path(name), format_of(Path(name))
    if ending not in FORMATS.keys() - {".txt"} or is_document_by(ending, None):
        return ending in FORMATS.keys() - {".txt"}
    if not path.is_file():
        return False
    with open_text(path) as file:
        return is_document_by(ending, file.read(2000))


def check_format(name: str, ending: str) -> None:
    """Raises UserError if `ending` is none of FORMATS. name: the file's name, for a message that suggests a remedy."""
    if ending not in FORMATS:
        raise UserError(refusal(name) or f"file format not supported; choose one of {', '.join(FORMATS)}.")


def read(text: str, ending: str, reading: Reading | None = None) -> Document:
    """Parses a document of a text format from a string; the document's `write` returns a string.

    Raises: UserError for a document that cannot be read.
    """
    reading, reader = reading or Reading(), FORMATS[ending].text
    assert reader is not None
    mark = "\ufeff" * text.startswith("\ufeff")  # the byte order mark, which is kept
    parts = reader(check_text(text[len(mark) :]), reading)
    return Document({"": [mark, *parts]}, reading, text, lambda members: members[""])


def read_bytes(content: bytes, ending: str, reading: Reading | None = None) -> Document:
    """Parses a document from its file's bytes; the document's `write` returns bytes.

    Raises: UserError for a document that cannot be read, and for `fuzzy` where the format has no such mark.
    """
    reading, form = reading or Reading(), FORMATS[ending]
    if reading.fuzzy and not form.marks:
        raise UserError(f"--fuzzy (fuzzy) is of .po, .xliff and .ts, and {ending} has no such mark. Leave it out.")
    if form.archive:
        return form.archive(content, reading)
    named = _ENCODING.match(content) if form.declared else None
    utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    encoding = "utf-16" if utf16 else named[1].decode() if named else "utf-8"
    encoding = "utf-8" if encoding == "CHARSET" else encoding  # xgettext writes charset=CHARSET into headers
    try:
        document = read(content.decode(encoding), ending, reading)
    except UnicodeDecodeError as error:
        raise UserError(f"byte {error.start} is not {encoding.upper()}. Save it as UTF-8.") from error
    except (LookupError, UnicodeError) as error:
        raise UserError(f"its encoding {encoding!r} is unknown. Save it as UTF-8.") from error

    def pack(members: dict[str, str]) -> bytes:
        try:
            return members[""].encode(encoding, form.declared or "strict")
        except UnicodeError as error:
            raise UserError(
                f"its encoding {encoding} lacks characters of the translation. Save it as UTF-8."
            ) from error

    return replace(document, original=content, pack=pack)


def read_file(path: str | Path, reading: Reading | None = None) -> Document:
    """Reads a document from a plain or packed file, in the format of its ending. Raises: UserError as `read_lines`."""
    path, ending = Path(path), format_of(Path(path)) if is_document(path) else ".txt"
    if FORMATS[ending].archive and path.is_file() and path.suffix.lower() == ending:
        content = path.read_bytes()
    else:
        with open_text(path, "any" if is_document(path) else "lines") as file:
            content = file.read()
    try:
        return read_bytes(content, ending, reading)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def translate_document(
    pipeline: TranslationPipeline,
    document: Document,
    options: DecodingOptions,
    update: Callable[[int], Any],
    tell: Callable[[int, str, Hypothesis], Any] = lambda number, text, best: None,
    counts: dict[str, Any] | None = None,
) -> Any:
    """Translates a document and returns what its `write` returns. Inline elements are placed by alignments of words,
    where the model has alignments.

    tell: called for each text with its number, from 1, and its translation. counts: gets counts for JSON.
    """
    try:
        call, best = _searched(pipeline, document, replace(options, alignments=True), update)
    except UserError:
        call, best = _searched(pipeline, document, options, update)
    if document.too_long(best) and not (options.do_sample or options.mbr or options.rerank):
        _shorten(pipeline, document, call.options, best)
    call.report()
    for number, (text, hypothesis) in enumerate(zip(document.texts, best, strict=True), 1):
        tell(number, text, hypothesis)
    written, long = document.write(best), len(document.too_long(best))
    if counts is not None:
        counts |= call.summary() | {"left": document.left, "too_long": long}
    if long:
        log.warning("%d translations are longer than their maxwidth, and so were the %d best of each.", long, _MOST)
    if document.left:
        log.warning(
            "%d messages are left untranslated, in po as fuzzy: their placeholders did not come back as they were, "
            "they are messages of ICU without known branches, or translated in part (XLIFF), or arrays (Android).",
            document.left,
        )
    return written


def _searched(
    pipeline: TranslationPipeline, document: Document, options: DecodingOptions, update: Callable[[int], Any]
) -> tuple[TranslationCall, list[Hypothesis]]:
    """Returns the call that translated a document's texts, and the best translation of each."""
    call = TranslationCall(pipeline, options)
    if call.memory is not None:
        document.keep_whole(call.memory.knows)
    return call, [ranked[0] for ranked in call.translate(document.texts, 1, update)]


def _shorten(
    pipeline: TranslationPipeline, document: Document, options: DecodingOptions, best: list[Hypothesis]
) -> None:
    """Replaces translations that are too long for their units by the first of the _MOST best ones that fits, if any."""
    most, texts = max(_MOST, options.num_beams or 1), document.texts
    call = TranslationCall(pipeline, replace(options, num_beams=most, num_return_sequences=most))
    long = document.too_long(best)
    found = iter(call.translate([texts[number] for numbers, _ in long for number in numbers], 1, lambda done: None))
    for numbers, limit in long:
        ranks = zip(*[next(found) for _ in numbers], strict=True)
        if (first := next((rank for rank in ranks if width_of(rank) <= limit), None)) is not None:
            best[numbers.start : numbers.stop] = first


def translate_file(
    pipeline: TranslationPipeline, path: str | Path, output: str | Path, *, fuzzy: bool = False, **options: Any
) -> Path:
    """Translates a document into the file `output`, and returns its path.

    Args:
        path, output: files of the same format of FORMATS; files with other endings are lines of text.
        fuzzy: translations in .po, .xliff and .ts are marked as not reviewed.
        options: the fields of DecodingOptions.

    Raises: UserError for a document that cannot be read, and where the formats differ.
    """
    check_endings(path, output)
    decoding = DecodingOptions(split="sentences").with_keywords(options)
    target = language_of(pipeline.name, decoding.target_language)
    document = read_file(path, Reading(language=target, fuzzy=fuzzy))
    written = translate_document(pipeline, document, decoding, lambda done: None)
    with atomic_path(check_file(output)) as temporary:
        temporary.write_bytes(packing(output)(written))
    return Path(output)


def language_of(model: str, code: str | None) -> str | None:
    """Returns the language tag of `code`, or without a code that of the target language that the model's folder names;
    None if the folder names none."""
    pair = direction_of(model) if code is None and Path(model).is_dir() else None
    told = pair[1] if pair else code
    return told and language_tag(told)


def check_endings(path: str | Path, output: str | Path) -> None:
    """Raises UserError where the ending of `output` is of another format than that of `path`."""
    own, ending = format_of(Path(path)), format_of(Path(output))
    if not is_document(path):
        check_output(output, path)
    elif FORMATS.get(ending) != FORMATS[own] and (ending in (*FORMATS, *TABLES) or refusal(output)):
        raise UserError(f"{output}: {path} is written in its own format. Name it {own}.")
