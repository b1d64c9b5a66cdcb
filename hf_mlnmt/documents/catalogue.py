"""Reader of gettext's message catalogues (po), and the checks of translated messages in catalogues of any format.

polib finds damage in a catalogue. Translations are inserted at the offsets of messages, so that everything else keeps
its bytes. A translation with other placeholders than its message is refused: the message stays untranslated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import base_language
from hf_mlnmt.data.placeholders import KEY, NO_LINES, forms_of, placeholders
from hf_mlnmt.documents.icu import icu_message, is_icu
from hf_mlnmt.documents.marked import Checked, Form, Passage, Reading, Token, passages
from hf_mlnmt.documents.plain import split_at, tag
from hf_mlnmt.generation import Hypothesis

_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_ONE = r'"(?:[^"\\\n]|\\.)*+"'
_STATEMENT = re.compile(
    rf"^[ \t]*(msgctxt|msgid_plural|msgid|msgstr)(?:\[(\d+)\])?[ \t]*({_ONE}(?:\s*+{_ONE})*+)", re.MULTILINE
)
_ABOVE = re.compile(r"(?:^#(?!~).*\r?\n)*\Z", re.MULTILINE)  # matches all comments above a message
_EARLIER = re.compile(r"(?:^#\|.*\r?\n)*\Z", re.MULTILINE)  # matches comments #|, a message's earlier text
_HEADER = 'msgid ""\nmsgstr ""\n"MIME-Version: 1.0\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\t": "\\t"}
_CODES = {"t": "\t", "r": " ", "n": "\n"}
# Decodes and encodes the strings of a catalogue, which are escaped as in C.
_PO = Form(
    lambda raw: re.sub(r"\\(.)", lambda match: _CODES.get(match[1], match[1]), raw),
    lambda text: re.sub(r'[\\"\t]', lambda match: _ESCAPES[match[0]], text),
    again=str,
)


# Matches letters (group 1) outside of tags, entities, escapes and placeholders.
_LETTERS = re.compile(r"<[^<>]*>|&[#\w]+;|\\.|\$?\{[^{}]*\}|%(?:\(\w+\)|[\d$.*-])*\w|([^\W\d_])")
SPACED = r"\{\{\s[^{}]*\}\}|\{\w+,\s[^{}]*\}"  # matches placeholders with spaces: {{ name }}, {0, number}
_TAG_OR_CODE = re.compile(  # groups: a line's end, a tab, another code of C, an escaped sign, a tag or placeholder
    rf"((?:\\r)?\\n|\\r)|(\\t)|(\\x[\da-fA-F]+|\\[abfv0-7]+)|(\\.)|((?<!%)</?[a-zA-Z0-9][^<>]*>|&#?\w+;|{SPACED})"
)
_NAMED = re.compile(r"%(?:[({]|<\w|\d+\$|\d+%?$|%$)|\{\w|\$")  # named or numbered placeholders: in any order
# {languages: (number of plural forms, rule for the form of a number n)}; other languages have (2, "n != 1").
_SLAVIC = "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
_PLURALS = {
    "ja zh ko vi th id ms lo my km ka": (1, "0"),
    "fr pt-BR tr oc hy wa uz mg am ak ln ti": (2, "n > 1"),
    "ru uk be sr hr bs": (3, _SLAVIC),
    "pl": (3, "n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"),
    "cs sk": (3, "(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2"),
    "lt": (3, "n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2"),
    "lv": (3, "n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2"),
    "ro": (3, "n==1 ? 0 : (n==0 || (n%100 > 0 && n%100 < 20)) ? 1 : 2"),
    "sl": (4, "n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3"),
    "ga": (5, "n==1 ? 0 : n==2 ? 1 : n<7 ? 2 : n<11 ? 3 : 4"),
    "ar": (6, "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5"),
}
_RULES = {name: rule for names, rule in _PLURALS.items() for name in names.split()}


def doubled(form: Form) -> Form:
    """Returns `form` changed for messages of Java and ICU, in which an apostrophe is written as two."""
    return form._replace(
        read=lambda raw: form.read(raw).replace("''", "'"), quote=lambda text: form.quote(text.replace("'", "''"))
    )


def text_of_program(
    raw: str, reading: Reading, form: Form, tokens: Callable[[str], Iterator[Token]], icu: bool, strict: bool = False
) -> Checked:
    """Returns the text of a program as a Checked message. raw: as written in the file. icu: whether it is a message of
    ICU, each branch of which becomes a message.

    tokens: splits raw text into tokens. strict: as of `message`.
    """

    def translate(text: str) -> Checked:
        return message([*passages(tokens(text), form, reading.check)], text, form, strict)

    return icu_message(raw, reading.language, translate) if icu else translate(raw)


def message(inner: Sequence[str | Passage], raw: str, form: Form, strict: bool = False) -> Checked:
    """Returns a message as Checked, by which a translation is refused unless it has the same placeholders. inner: parts
    of the message; raw: as written in the file. If the message marks the letter of an access key (&File), the mark is
    left out of the text to translate, and put before a letter of the translation.

    strict: the message is a format string of C or Python, in which a % before any other sign is wrong.
    """
    texts = [part for part in inner if isinstance(part, Passage)]
    keys = [(passage, key) for passage in texts for key in KEY.finditer(passage.text)]
    sign = letter = ""
    if len(keys) == 1:
        passage, found = keys[0]
        sign, letter = found[0], passage.text[found.end()]
        passage.leave_out(found.start())
    wanted = _of_program(form.read(raw), strict)

    def finish(text: str) -> str | None:
        if _of_program(form.read(text), strict) != wanted:
            return None
        return _with_key(text, form.quote(sign), letter) if sign else text

    return Checked(list(inner), finish, raw)


def _of_program(text: str, strict: bool) -> tuple[Counter[str], list[str]]:
    """Returns the counts of a text's placeholders, and (if strict) in order those that are filled by position."""
    found = placeholders(text, strict)
    return Counter(found), [each for each in found if strict and not _NAMED.match(each)]


def _with_key(raw: str, sign: str, letter: str) -> str:
    """Returns a raw translation with `sign` before a letter: preferably `letter`, and at a word's beginning."""
    places = [match.start(1) for match in _LETTERS.finditer(raw) if match[1]]
    cased = [place for place in places if raw[place].lower() != raw[place].upper()]
    if not cased:  # appends the access key to text in Chinese or Japanese, as in "(&F)"
        end = len(raw.rstrip(".:\u2026\u3002 "))
        return f"{raw[:end]}({sign}{letter.upper()}){raw[end:]}"
    best = min(cased, key=lambda place: (raw[place].lower() != letter.lower(), raw[place - 1 : place].isalpha(), place))
    return raw[:best] + sign + raw[best:]


def read_po(text: str, reading: Reading) -> list[str | Passage | Checked]:
    """Returns the parts of a catalogue; messages without a translation are to be translated, in all plural forms that
    the header declares.

    Translated and obsolete messages and comments stay. The header gets the target language, and its plural forms and
    encoding where it names none. A message whose translation is refused stays empty and is marked fuzzy.

    Raises: UserError where there is no message, and for a damaged catalogue.
    """
    entries: list[list[re.Match[str]]] = []
    for match in _STATEMENT.finditer(text):
        if not entries or (match[1] in ("msgctxt", "msgid") and entries[-1][-1][1] != "msgctxt"):
            entries.append([])
        entries[-1].append(match)
    if not any(match[1] == "msgid" for entry in entries for match in entry):
        raise UserError('no line begins with msgid "...": not a catalogue of gettext (po).')
    _check(text, entries)
    newline = "\r\n" if "\r\n" in text else "\n"
    tokens = partial(split_at, pattern=_TAG_OR_CODE, make=partial(_token, newline=newline))
    parts: list[str | Passage | Checked] = []
    done, numbers_of = 0, list[set[int]]()
    plurals = any(match[2] and any(_STRING.findall(match[3])) for entry in entries for match in entry)
    if reading.language and all("".join(_STRING.findall(e[0][3])) or e[0][1] == "msgctxt" for e in entries):
        header = _header(_HEADER.replace("\n", newline), reading.language, newline, False)
        parts, numbers_of = [header, newline], forms_of(header)
    for entry in entries:
        reading.check()
        said = {match[1]: "".join(_STRING.findall(match[3])) for match in entry}
        targets = [match for match in entry if match[1] == "msgstr"]
        if not said.get("msgid"):
            header = _header(text[entry[0].start() : entry[-1].end()], reading.language, newline, plurals)
            numbers_of = forms_of(header)
            parts += [text[done : entry[0].start()], header]
            done = entry[-1].end()
            continue
        if not targets or any(string for match in targets for string in _STRING.findall(match[3])):
            continue
        earlier = _EARLIER.search(text, done, entry[0].start())
        start = earlier.start() if earlier else entry[0].start()
        own = re.findall(r"^#,(.*)", text[done : entry[0].start()], re.MULTILINE)
        flags = {flag.strip() for each in own for flag in each.split(",")}
        strict = any(re.fullmatch(r"(?!no-|qt|kde).*-format", flag) for flag in flags)
        java = "java-format" in flags and "{" in said["msgid"]
        numbers = [match[2] for match in targets]
        if targets[0][2] is not None and numbers_of:
            numbers = [*map(str, range(len(numbers_of)))]
        alike = placeholders(said["msgid"]) == placeholders(said.get("msgid_plural", ""))
        first, last = targets[0].start(), targets[-1].start(3) + len(targets[-1][3].rstrip())
        end = text.find("\n", last) + 1 or len(text)
        begin = _ABOVE.search(text, done, start).start()  # type: ignore[union-attr]
        before = text[start:first]
        whole: list[str | Passage | Checked | Callable[[Hypothesis], str]] = [before]
        for number in numbers:
            ours = numbers_of[int(number)] if number and numbers_of else {1} if number in (None, "0") else set()
            # Translates the singular for a form of 1, 21, 31... too, if the singular has the number as a placeholder.
            one = ours == {1} or (alike and 1 in ours and len(numbers_of) > 1)
            raw = said["msgid"] if one else said.get("msgid_plural", said["msgid"])
            name = "msgstr" if number is None else f"msgstr[{number}]"
            behind = text[last:end] if number == numbers[-1] else newline
            before += f'{name} ""{behind}'
            icu = is_icu(raw)
            form = doubled(_PO) if java or icu else _PO
            whole += [f'{name} "', text_of_program(raw, reading, form, tokens, icu, strict), f'"{behind}']
        before, mark = text[start:end] if len(numbers) == len(targets) else before, f"#, fuzzy{newline}"
        known = "fuzzy" in flags
        told, marked = text[begin:start], text[begin:start] + ("" if known else mark)
        whole[:0] = [partial(_origin, newline), marked if reading.fuzzy else told]
        parts += [text[done:begin], Checked(whole, str, marked + before)]
        done = end
    return [*parts, text[done:]]


def _origin(newline: str, best: Hypothesis) -> str:
    """Returns a comment that says where a translation comes from; "" without a memory."""
    where = f"memory {best.match.percent} %" if best.match else best.origin
    return f"# {where}{newline}" if where else ""


def _check(text: str, entries: Sequence[Sequence[re.Match[str]]]) -> None:
    """Raises UserError for a damaged catalogue, naming the line: errors of polib, and damage that polib ignores."""
    import polib

    line, said = None, ""
    try:
        polib.pofile(NO_LINES.sub(" ", text) + "\n", check_for_duplicates=False)
    except (OSError, ValueError, IndexError) as error:
        found = re.search(r"\(line (\d+)\)(.*)", str(error))
        line, said = (int(found[1]), found[2]) if found else (None, f": {error}")
    ends = [0, *(match.end() for entry in entries for match in entry)]
    starts = [*(match.start() for entry in entries for match in entry), len(text)]
    for end, start in zip(ends, starts):
        if between := re.search(r"^[ \t]*[^\s#].*", text[end:start], re.MULTILINE):
            line = min(line or len(text), text.count("\n", 0, end + between.start()) + 1)
    for entry in entries:
        numbers = [match[2] for match in entry if match[1] == "msgstr"]
        plural = any(match[1] == "msgid_plural" for match in entry)
        if not numbers or plural == (numbers[0] is None):
            line = min(line or len(text), text.count("\n", 0, entry[0].start()) + 1)
            said = said or ": a message without msgstr" + "[0]" * plural
    if line or said:
        where = f"line {line}" if line else "a line"
        raise UserError(f"{where}{said}: no message of gettext (po). Mend it; msgfmt -c says what is wrong.")


def _token(match: re.Match[str], newline: str) -> Token:
    line, tab, _, _, markup = match.groups()
    if line or markup:
        return tag(markup) if markup else Token("line", f'{line}"{newline}"' if line.endswith("n") else line)
    return Token("break", tab) if tab else Token("mark" if match[3] else "text", match[0])


def _header(header: str, language: str | None, newline: str, plurals: bool) -> str:
    """Returns a header with the language, and with plural forms and encoding where it lacks them. Plural forms of
    another language are replaced, unless a message has translations in them (`plurals`)."""
    header = header.replace("charset=CHARSET", "charset=UTF-8")
    if not language:
        return header
    count, rule = _RULES.get(language) or _RULES.get(base_language(language)) or (2, "n != 1")
    fields = {"Language": language.replace("-", "_"), "Plural-Forms": f"nplurals={count}; plural=({rule});"}
    was = re.search(r"(?<![\w-])Language: *(\w+)", header)
    other = was is not None and base_language(was[1]) != base_language(language) and not plurals
    header = re.sub(r"(?<![\w-])Language: *[\w@-]*(?=\\n)", f"Language: {fields['Language']}", header)
    old = r"[^\\]*" if other else r"(?:nplurals=INTEGER[^\\]*)?"
    header = re.sub(rf"Plural-Forms: *{old}(?=\\n)", f"Plural-Forms: {fields['Plural-Forms']}", header)
    for name, told in fields.items():
        if not re.search(rf"(?<![\w-]){name}:", header) and "\\n" in header:
            end = len(header.rstrip())
            header = f'{header[:end]}{newline}"{name}: {told}\\n"{header[end:]}'
    return header
