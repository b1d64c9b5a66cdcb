"""Texts of programs beside their keys: properties, resx, Apple's, Android's, Flutter's, Qt's, i18next, PHP, YAML, CSV.

The Translate Toolkit reads and writes them (`pip install 'hf-mlnmt[localise]'`; its licence is GPL-2.0-or-later, in
parts GPL-3.0-or-later). In a file of one language every text is translated; where translations stand beside their texts
(Qt, CSV) those that have none. Plurals get the forms of the target language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.placeholders import has_words
from hf_mlnmt.documents.catalogue import SPACED, doubled, text_of_program
from hf_mlnmt.documents.icu import TAGS, forms_of, is_icu, plural_categories
from hf_mlnmt.documents.marked import PLAIN, Checked, Document, Passage, Reading, Token, check_text
from hf_mlnmt.documents.plain import split_at, tag

# {file name ending: module and class of the Translate Toolkit that reads the format}
STORES = {
    ".properties": "properties.javautf8file",
    ".resx": "resx.RESXFile",
    ".strings": "properties.stringsutf8file",
    ".stringsdict": "stringsdict.StringsDictFile",
    ".xml": "aresource.AndroidResourceFile",
    ".arb": "jsonl10n.ARBJsonFile",
    ".ts": "ts2.tsfile",
    ".json": "jsonl10n.I18NextV4File",
    ".php": "php.LaravelPHPFile",
    ".yml": "yaml.YAMLFile",
    ".yaml": "yaml.YAMLFile",
    ".csv": "csvl10n.csvfile",
}
_BESIDE = (".ts", ".csv")  # formats of files that hold both texts and translations
_FORM = PLAIN._replace(again=str, needed=bool)
_LINE_OR_TAG = re.compile(rf"(\r?\n|\\n)|</?[a-zA-Z0-9][^<>]*>|&#?\w+;|{SPACED}")
# The language that a file names: the first key of YAML (_RAILS, of Ruby on Rails), "@@locale" in Flutter's (_LOCALE).
_RAILS = re.compile(rb"\A((?:[ \t]*#.*\n|---.*\n|\s)*)([a-z]{2,3}(?:[-_]\w+)?)(:[ ]*\n)")
_LOCALE = re.compile(rb'("@@locale"\s*:\s*")([^"]*)(")')


def read_localised(content: bytes, reading: Reading, ending: str) -> Document:
    """Parses a file of a program's texts. ending: a key of STORES.

    Raises: UserError for a file that cannot be read, and without the Translate Toolkit.
    """
    if re.search(rb"<!ENTITY\b", content):
        raise UserError("declares entities, which are not read here. Write their texts out.")
    try:
        store = _store(content, ending)
    except ImportError as error:
        raise UserError(f"{ending} needs the Translate Toolkit ({error}): pip install 'hf-mlnmt[localise]'.") from error
    original, target = content, reading.language and reading.language.encode()
    if target and (named := {".arb": _LOCALE, ".yml": _RAILS, ".yaml": _RAILS}.get(ending)):
        content = named.sub(lambda match: match[1] + target + match[3], content, count=1)
    try:
        store.parse(content)
        tags = _tags(store)
        units = [unit for unit in store.units if unit.istranslatable() and not unit.isheader()]
    except Exception as error:  # the parser of each format raises its own exceptions
        raise UserError(f"cannot be read as {ending}: {error}. Mend it.") from error
    if ending in (".yml", ".yaml") and not all(unit.getid() for unit in units):
        raise UserError("is a single text without keys: not the texts of a program.")
    if ending in (".yml", ".yaml"):  # drops values without words: numbers would be written as strings
        store.units = units = [unit for unit in units if has_words(str(unit.target or ""))]
    found = [(unit, forms) for unit in units if (forms := _forms(unit, ending, tags))]
    if reading.language and ending != ".csv":
        store.settargetlanguage(reading.language.replace("-", "_"))
    members: dict[str, list[str | Passage | Checked]] = {}
    places: list[tuple[Any, bool, dict[str, str]]] = []
    for unit, forms in found:
        reading.check()
        texts = {f"{len(places)} {tag}": text for tag, text in _in_target(forms, reading.language, store)}
        members |= {name: [_message(check_text(text), reading, ending)] for name, text in texts.items()}
        places.append((unit, bool(forms[0][0]), texts))
    arrays = re.findall(rb"(?s)<string-array\b.*?</string-array>", content) if ending == ".xml" else []
    # The toolkit does not read arrays: their items are counted as messages that stay untranslated.
    items = sum(array.count(b"<item") for array in arrays)
    members |= {f"array {number}": [Checked([], str, "", left=True)] for number in range(items)}
    return Document(members, reading, original, partial(_packed, store, places, ending, reading))


def _store(content: bytes, ending: str) -> Any:
    """Returns the toolkit's empty store for a file; some endings have several kinds. Raises: ImportError."""
    module, name = STORES[ending].split(".")
    if ending == ".properties" and "\ufffd" in content.decode(errors="replace"):  # the file is Latin-1, not UTF-8
        name = "javafile"
    elif ending == ".strings" and content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        name = "stringsfile"
    elif module == "yaml" and _RAILS.match(content):
        name = "RubyYAMLFile"
    return getattr(import_module(f"translate.storage.{module}"), name)()


def _tags(store: Any) -> list[str]:
    """Returns the categories of plurals in a file, in the toolkit's order."""
    return getattr(store, "target_plural_tags", None) or store.get_plural_tags()


def _forms(unit: Any, ending: str, tags: list[str]) -> list[tuple[str, str]]:
    """Returns what is to be translated of a unit: ("", text), or each form of a plural with its category."""
    value = unit.source if ending in _BESIDE else unit.target or unit.source
    if ending in _BESIDE and any(getattr(unit.target, "strings", None) or [unit.target]):
        return []
    strings = [*map(str, getattr(value, "strings", None) or [])]
    if ending == ".ts" and unit.hasplural():
        return [("other", str(value))]
    if len(strings) < 2:
        of_data = ending == ".resx" and unit.xmlelement.get("type")  # whether the value is data such as a picture
        return [("", value)] if isinstance(value, str) and value and not of_data else []
    names = (
        tags if len(strings) == len(tags) else TAGS if len(strings) == len(TAGS) else ["one", *["other"] * len(strings)]
    )
    return [(name, text) for name, text in zip(names, strings) if text]


def _in_target(forms: list[tuple[str, str]], language: str | None, store: Any) -> list[tuple[str, str]]:
    """Returns, for each plural form that the target language has, the form that is translated for it."""
    if not forms[0][0] or not language:
        return forms
    source = dict(forms)
    source.setdefault("other", forms[-1][1])
    try:
        categories = plural_categories(language)
    except (ImportError, ValueError):
        categories = {}
    chosen = forms_of(source, {tag: categories.get(tag, False) for tag in _tags(store)})
    return [(tag, source[own]) for tag, own in chosen.items()]


def _message(raw: str, reading: Reading, ending: str) -> Checked:
    """Returns a text of a program, as a document has it; an ICU message by its branches."""
    icu = ending not in (".ts", ".strings", ".xml") and is_icu(raw)
    java = ending == ".properties" and re.search(r"\{\d", raw)
    form = doubled(_FORM) if java or (icu and ending != ".arb") else _FORM
    return text_of_program(raw, reading, form, _tokens, icu)


def _tokens(raw: str) -> Iterator[Token]:
    return split_at(raw, _LINE_OR_TAG, lambda match: Token("line", match[0]) if match[1] else tag(match[0]))


def _packed(
    store: Any, places: list[tuple[Any, bool, dict[str, str]]], ending: str, reading: Reading, made: dict[str, str]
) -> bytes:
    """Puts the translations into their units and returns the file. `places`: of each unit whether it is a plural, and
    its texts by the names of the document's members."""
    from translate.misc.multistring import multistring

    for unit, plural, texts in places:
        forms = [made[name] for name in texts]
        unit.target = multistring(forms) if plural else forms[0]
        if ending == ".ts":  # what stays as it was is not finished
            unit.markfuzzy(reading.fuzzy or forms == [*texts.values()])
    return bytes(store)
