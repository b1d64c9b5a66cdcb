"""Tells the format of a file by the ending of its name, and makes the messages that refuse other formats.

Code that opens text uses these functions (lines.py, documents/, the server). A file whose ending is in no table, such
as the language in a.en, is lines of text; where an ending in a table may be a language too, its first bytes decide.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Literal

from hf_mlnmt.common.errors import UserError

Form = Literal["lines", "table", "column", "any", "xml"]
"""What a file is read as: lines of text, lines that may be rows of a table, also the first column of a table, or
whatever its name says, also XML."""

PACKERS = (".gz", ".bz2", ".xz", ".lzma", ".zst", ".zip")
TABLES = (".tsv", ".csv", ".jsonl", ".json", ".parquet")
DOCUMENTS = (
    *(".html", ".htm", ".xhtml", ".md", ".markdown", ".srt", ".vtt", ".po", ".pot"),
    *(".xlf", ".xliff", ".sdlxliff", ".mqxliff", ".docx", ".pptx", ".xlsx", ".odt", ".odp", ".epub", ".ass", ".sbv"),
    # Files with the messages of a program.
    *(".properties", ".resx", ".strings", ".stringsdict", ".arb", ".ts", ".php", ".yml", ".yaml"),
)
UNTRANSLATED = {"new", "needs-translation", "initial"}  # XLIFF's states of units whose target is no translation
_REFUSED = {
    "says where each letter stands on a page, not what a sentence is. Give the document that the PDF was made from "
    "(.docx, .odt, .html), or its text: pdftotext FILE.pdf FILE.txt": "pdf",
    "is a page as it is printed. Give the document that it was made from": "ps eps djvu xps",
    "is a document of another kind. Save it as .docx or .odt, as by soffice --headless --convert-to docx FILE": (
        "doc rtf wpd wps docm dotx dotm pages gdoc ott odm fodt sxw"
    ),
    "is a presentation of another kind. Save it as .pptx or .odp": "ppt pps pptm potx potm ppsx ppsm otp odg fodp",
    "is a workbook of another kind. Save it as .xlsx": "xlsm xlsb xls ods fods numbers",
    "is an e-book of another kind. Convert it: ebook-convert FILE FILE.epub": "mobi azw azw3 fb2",
    "holds subtitles of another kind. Save it as .srt": "ssa sub lrc ttml dfxp smi sami stl scc itt usf",
    "holds a program's texts in a form that is not read here. Convert it to .po or .xliff (Translate Toolkit)": (
        "xcstrings resw ini toml plist ftl"
    ),
    "holds translations beside their sources: export it as .tmx, which train --pair reads": "sdltm sdltb",
    "holds translations beside their sources; train --pair reads it. Make a file of lines, or .xliff": "tmx tbx",
    "is markup that is not read here. Convert it: pandoc FILE -o FILE.html": (
        "xml svg tex latex rst adoc asciidoc org textile mediawiki typ docbook dbk dita ipynb"
    ),
    "is Markdown with code in it. Name it .md where that code may be translated": "mdx rmd qmd",
    "is a page with its pictures. Save it as .html": "mhtml mht webarchive",
    "is a test set with marks around its sentences. Take these out, or name the set to sacrebleu": "sgm sgml",
    "holds words with their analyses. Take its sentences out": "conll conllu",
}
REFUSED = {f".{ending}": reason for reason, endings in _REFUSED.items() for ending in endings.split()}
# Ending that may also be a language code or part of a name -> the pattern that a file of that format begins with.
_BEGINS = {
    ".ps": rb"%!PS",
    ".org": rb"#\+|\*+ ",
    ".sub": rb"\{\d+\}\{\d+\}|\[INFORMATION\]|\d\d:\d\d:\d\d",
    ".lrc": rb"\[(\w\w:|\d+:\d)",
    ".smi": rb"(?i)<SAMI\b",
}
# Ending of a document that other files may have too -> the pattern that such a document begins with.
_DOCUMENTS_BEGIN = {
    ".ts": rb"<(\?xml|!DOCTYPE TS|TS)\b",
    ".arb": rb"\{",
    ".ass": rb"\[Script Info\]",
    ".xml": rb"(?s)(<\?xml.*?\?>|<!--.*?-->|\s)*<resources\b",
    ".json": rb"\{",
    ".csv": rb"[^\n]*\bsource\b[^\n]*\btarget\b",
}
_MARKUP = re.compile(rb"(?i)<(\?xml|!doctype|html)\b")
_ANYHOW = "If it is text all the same, a sentence a line: translate --format text, or the name {}.txt."


def format_of(path: Path) -> str:
    """Returns a file's last suffix but those of compression, in lower case: .tsv for a.tsv.xz; "" if it has none."""
    return next((suffix for suffix in map(str.lower, reversed(path.suffixes)) if suffix not in PACKERS), "")


def refusal(name: str | Path, start: bytes | None = None) -> str | None:
    """Returns the error message for a file whose ending is of a format that this package cannot read; else None.

    start: the file's first bytes, which tell endings that may be languages; without it these are not refused.
    """
    ending = format_of(Path(str(name)))
    begins = _BEGINS.get(ending)
    if ending not in REFUSED or (begins and not (start and re.match(begins, _text(start)))):
        return None
    return f"{name}: {ending[1:]} {REFUSED[ending]}."


def is_document_by(ending: str, start: bytes | None) -> bool:
    """Returns whether a file whose ending is in DOCUMENTS is a document. If files of other formats have that ending
    too, the file's first bytes decide."""
    begins = _DOCUMENTS_BEGIN.get(ending)
    return begins is None or bool(start and re.match(begins, _text(start)))


def no_lines(path: Path, form: Form, start: bytes | None = None) -> str | None:
    """Returns the error message for a file that is not lines of text, by its ending or first bytes; else None."""
    ending, anyhow = format_of(path), _ANYHOW.format(path.name)
    if form in ("any", "xml"):
        return None
    if problem := refusal(path, start):
        return f"{problem} {anyhow}"
    if ending in TABLES and form == "lines":
        return (
            f"{path}: is a table, and lines of text are expected. Make a file of its column with the text; in a recipe "
            f"path, with columns, reads it. {anyhow}"
        )
    if ending in DOCUMENTS and is_document_by(ending, start):
        return (
            f"{path}: is a document ({ending[1:]}), which translate alone reads as one, and lines of text are expected "
            f"here. Take its sentences out of it. {anyhow}"
        )
    if start and _MARKUP.match(_text(start)):
        return f"{path}: is XML or HTML. Name it as its format is named (.html, .xliff). {anyhow}"
    return None


def check_output(path: str | Path, *inputs: str | Path) -> None:
    """Raises UserError if lines of text would be written to a name with another format's ending that no input has."""
    ending = format_of(Path(path))
    if ending in {*map(format_of, map(Path, inputs))}:
        return
    documents = set(DOCUMENTS) - set(_DOCUMENTS_BEGIN)
    if ending in documents | {".csv", ".parquet"} or refusal(path):
        raise UserError(f"{path}: what is written are lines of text, which that name does not say. Name it .txt.")


_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def in_xml(text: str) -> str:
    """Returns a text escaped for XML (&amp; &lt; &gt;), without the control characters that XML forbids."""
    return escape(_NO_XML.sub("", text), quote=False)


def _text(start: bytes) -> bytes:
    return start.removeprefix(b"\xef\xbb\xbf").lstrip()
