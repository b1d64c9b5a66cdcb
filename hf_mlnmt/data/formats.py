"""What the ending of a file's name says of its content, and what to do with a file that is not read here.

All that opens text asks here (lines.py, documents/, the server). An ending that is in no table may be anything, also a
language, as in a.en, and such a file is lines of text; endings that are languages too are told by how the file begins.
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
    *(".xlf", ".xliff", ".sdlxliff", ".mqxliff", ".docx", ".pptx", ".odt", ".odp", ".epub"),
)
UNTRANSLATED = {"new", "needs-translation", "initial"}  # states of XLIFF whose target is but a copy of the source
_REFUSED = {
    "says where each letter stands on a page, not what a sentence is. Give the document that the PDF was made from "
    "(.docx, .odt, .html), or its text: pdftotext FILE.pdf FILE.txt": "pdf",
    "is a page as it is printed. Give the document that it was made from": "ps eps djvu xps",
    "is a format of programs long gone. Convert it: soffice --headless --convert-to docx FILE": "doc rtf wpd wps",
    "is a format of programs long gone. Convert it: soffice --headless --convert-to pptx FILE": "ppt pps",
    "is a document of another kind. Save it as .docx": "docm dotx dotm pages gdoc",
    "is a presentation of another kind. Save it as .pptx": "pptm potx potm ppsx ppsm",
    "is a document of another kind. Save it as .odt or .odp": "ott otp odm odg fodt fodp sxw",
    "is a workbook. Save the sheet as .csv and make a file of the column with the text, or name it in a recipe": (
        "xlsx xlsm xlsb xls ods fods numbers"
    ),
    "is an e-book of another kind. Convert it: ebook-convert FILE FILE.epub": "mobi azw azw3 fb2",
    "holds subtitles with times and marks of its own. Save it as .srt": (
        "ass ssa sub sbv lrc ttml dfxp smi sami stl scc itt usf"
    ),
    "holds a program's texts beside their keys. Convert it to .po or .xliff, as the Translate Toolkit does": (
        "arb yml yaml properties strings stringsdict xcstrings resx resw ts ini toml plist"
    ),
    "holds translations beside their sources; train --pair reads it. Make a file of lines, or .xliff": "tmx tbx",
    "holds translations beside their sources. Export it as .tmx": "sdltm sdltb",
    "is markup that is not read here. Convert it: pandoc FILE -o FILE.html": (
        "xml svg tex latex rst adoc asciidoc org textile mediawiki typ docbook dbk dita ipynb"
    ),
    "is Markdown with code in it. Name it .md where that code may be translated": "mdx rmd qmd",
    "is a page with its pictures. Save it as .html": "mhtml mht webarchive",
    "is a test set with marks around its sentences. Take these out, or name the set to sacrebleu": "sgm sgml",
    "holds words with their analyses. Take its sentences out": "conll conllu",
}
REFUSED = {f".{ending}": reason for reason, endings in _REFUSED.items() for ending in endings.split()}
# Of what may be a language or a name of one's own: how a file of that format begins.
_BEGINS = {
    ".ts": rb"<(\?xml|!DOCTYPE TS|TS)\b",
    ".arb": rb"\{",
    ".ps": rb"%!PS",
    ".org": rb"#\+|\*+ ",
    ".sub": rb"\{\d+\}\{\d+\}|\[INFORMATION\]|\d\d:\d\d:\d\d",
    ".lrc": rb"\[(\w\w:|\d+:\d)",
    ".ass": rb"\[Script Info\]",
    ".smi": rb"(?i)<SAMI\b",
}
_MARKUP = re.compile(rb"(?i)<(\?xml|!doctype|html)\b")
_ANYHOW = "If it is text all the same, a sentence a line: translate --format text, or the name {}.txt."


def format_of(path: Path) -> str:
    """Returns a file's suffix in small letters, behind which it may be packed: .tsv of a.tsv.xz."""
    return next((suffix for suffix in map(str.lower, reversed(path.suffixes)) if suffix not in PACKERS), "")


def refusal(name: str | Path, start: bytes | None = None) -> str | None:
    """Returns what to say of a file whose format is not read here, by its ending, or None.

    start: how it begins, by which some endings that may be languages are told; without it they are none.
    """
    ending = format_of(Path(str(name)))
    begins = _BEGINS.get(ending)
    if ending not in REFUSED or (begins and not (start and re.match(begins, _text(start)))):
        return None
    return f"{name}: {ending[1:]} {REFUSED[ending]}."


def no_lines(path: Path, form: Form, start: bytes | None = None) -> str | None:
    """Returns what to say of a file that is no lines of text, by its ending and by how it begins, or None."""
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
    if ending in DOCUMENTS:
        return (
            f"{path}: is a document ({ending[1:]}), which translate alone reads as one, and lines of text are expected "
            f"here. Take its sentences out of it. {anyhow}"
        )
    if start and _MARKUP.match(_text(start)):
        return f"{path}: is XML or HTML. Name it as its format is named (.html, .xliff). {anyhow}"
    return None


def check_output(path: str | Path, *inputs: str | Path) -> None:
    """Raises UserError for a name of lines that says another format, unless an input that is read as lines has it."""
    ending = format_of(Path(path))
    if ending in {*map(format_of, map(Path, inputs))}:
        return
    if ending in (*DOCUMENTS, ".csv", ".parquet") or refusal(path):
        raise UserError(f"{path}: what is written are lines of text, which that name does not say. Name it .txt.")


_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def in_xml(text: str) -> str:
    """Returns a text as XML has it, without the characters that it cannot have."""
    return escape(_NO_XML.sub("", text), quote=False)


def _text(start: bytes) -> bytes:
    return start.removeprefix(b"\xef\xbb\xbf").lstrip()
