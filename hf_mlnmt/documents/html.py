"""Reader of HTML, and of the XHTML of e-books: finds tags by a regular expression, so that markup stays as it is.

Parsers (lxml, selectolax) would change the spelling of tags, entities and line ends when they write the page again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

from hf_mlnmt.documents.marked import HTML, Form, Passage, Reading, Token, passages


def names_of(text: str) -> frozenset[str]:
    """Splits a text at white space and returns the set of the names in it."""
    return frozenset(text.split())


_INLINE = names_of(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark q s small span strike strong sub sup time "
    "tt u"
)
_VOID = names_of("area base br col embed hr img input link meta param source track wbr")
_OPAQUE_INLINE = names_of("code kbd samp var math svg object audio video canvas")
_RAW = names_of("script style textarea title iframe noembed noframes xmp")  # elements whose content is not markup
_OPAQUE = _OPAQUE_INLINE | _RAW - {"title"} | {"pre", "template"}
# Ruby readings (rt, rp, rtc) spell the pronunciation of source characters: they are left out of translations.
_RUBY, _READINGS = names_of("ruby rb rbc"), names_of("rt rp rtc")
_END_OF_READING = re.compile(r"</r(?:t|p|tc)\s*>|(?=</ruby|<r[tp][\s>])|\Z", re.IGNORECASE)
_ENDED_BY_SIBLING = names_of("p li dt dd td th tr option")
# Matches a tag or comment; without its end, up to the end of the text. Possessive quantifiers avoid backtracking.
TAG = re.compile(
    r"""<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)|</(?P<end>[a-zA-Z][^\s/>]*)[^>]*>?|<[!?/][^>]*>?"""
    r"""|<(?P<start>[a-zA-Z][^\s/>]*+)(?P<attributes>(?:[^>"'=]|=\s*+(?:"[^"]*"|'[^']*')?|["'])*+)>|<[a-zA-Z].*\Z""",
    re.DOTALL,
)
ATTRIBUTE = re.compile(r"""([^\s"'<>/=]+)(?:(\s*=\s*)("[^"]*"|'[^']*'|[^\s"'=<>`]+))?""")
# Attributes whose values are translated: of any tag (_SPOKEN), and of one tag only (_SPOKEN_OF).
_SPOKEN = {"title", "aria-label", "aria-description", "alt", "placeholder"}
_SPOKEN_OF = {("option", "label"), ("optgroup", "label"), ("track", "label")}
_BUTTONS, _DESCRIPTIONS = (
    names_of("submit button reset"),
    re.compile(r"(?:(?:og|twitter):)?(?:description|title)|.*:alt"),
)


def read_html(text: str, reading: Reading) -> list[str | Passage]:
    """Returns the parts of a web page, a fragment of one, or a chapter of an e-book."""
    return list(passages(html_tokens(text, reading), HTML, reading.check))


def attributes(tag: str) -> dict[str, str]:
    """Returns {name in small letters: value} of the attributes of a start tag."""
    return {match[1].lower(): unescape((match[3] or "").strip("\"'")) for match in ATTRIBUTE.finditer(tag)}


def quoted(value: str, reading: Reading) -> str:
    """Registers an attribute's value for translation, and returns its placeholder in quotes; returns a value without
    words as it is."""
    mark = value[0] if value[0] in "\"'" else '"'
    written = {"&": "&amp;", "<": "&lt;", mark: "&quot;" if mark == '"' else "&#39;"}
    form = Form(unescape, lambda text: re.sub("[&<\"']", lambda match: written.get(match[0], match[0]), text))
    slot = reading.text(value.strip(mark), form)
    return value if slot == value.strip(mark) else mark + slot + mark


def html_tokens(html: str, reading: Reading) -> Iterator[Token]:
    """Yields the tokens of a page; `<i/>` is an empty element in XHTML (after `<?xml`), else a start tag."""
    at, closing = 0, html.lstrip("\ufeff")[:5] == "<?xml"
    while match := TAG.search(html, at):
        if match.start() > at:
            yield Token("text", html[at : match.start()])
        at, raw, name = match.end(), match[0], (match["start"] or match["end"] or "").lower()
        inline = name in _INLINE or "-" in name
        empty = closing and raw.endswith("/>")
        if not name:
            yield Token("mark", raw)
        elif name in _RUBY | _READINGS:
            if name in _READINGS and match["start"]:
                at = _END_OF_READING.search(html, at).end()  # type: ignore[union-attr]
            yield Token("gone", html[match.start() : at])
        elif match["end"]:
            yield Token("end" if inline else "break", raw, name)
        elif untranslated(match["attributes"]):
            at = at if empty or name in _VOID else _end_of_element(html, at, name)
            yield Token("mark" if inline or name in _OPAQUE_INLINE else "break", html[match.start() : at], "kept")
        else:
            raw = _start_tag(raw, name, reading)
            if name == "br":
                yield Token("line", raw, name)
            elif name in _VOID:
                yield Token("mark" if name in ("img", "wbr", "input") else "break", raw, "kept" * (name != "wbr"))
            elif name in _OPAQUE or empty:
                start = at
                at = at if empty else _end_of_element(html, at, name)
                yield Token("mark" if inline or name in _OPAQUE_INLINE else "break", raw + html[start:at], "kept")
            else:
                yield Token("start" if inline else "break", raw, name)
    if at < len(html):
        yield Token("text", html[at:])


def _start_tag(raw: str, name: str, reading: Reading) -> str:
    """Returns a start tag with language and direction of the translation, and placeholders for texts in attributes."""
    named = attributes(raw[len(name) + 1 :]) if "=" in raw else {}
    if name == "html" and "dir" not in named and reading.right_to_left:
        raw, named["dir"] = f'{raw[:-1]} dir="rtl">', "rtl"
    if not named:
        return raw
    spoken, code = set(_SPOKEN), named.get("lang") or named.get("xml:lang")
    ours = name in ("html", "body") or (code and reading.relabelled(code) == reading.language)
    labels = ["lang", "xml:lang", *["content"] * (named.get("http-equiv", "").lower() == "content-language")]
    if name == "meta" and _DESCRIPTIONS.fullmatch(named.get("name") or named.get("property") or ""):
        spoken.add("content")
    if name == "input" and named.get("type", "").lower() in _BUTTONS:
        spoken.add("value")

    def attribute(match: re.Match[str]) -> str:
        key, value = match[1].lower(), match[3]
        if value and (key in spoken or (name, key) in _SPOKEN_OF):
            return match[1] + match[2] + quoted(value, reading)
        plain = (value or "").strip("\"'")
        if plain and key in labels:
            return match[1] + match[2] + value.replace(plain, reading.relabelled(plain))
        if key == "dir" and plain.lower() in ("ltr", "rtl") and ours and reading.language:
            return match[1] + match[2] + value.replace(plain, "rtl" if reading.right_to_left else "ltr")
        return match[0]

    return raw[: len(name) + 1] + ATTRIBUTE.sub(attribute, raw[len(name) + 1 :])


def untranslated(raw: str) -> bool:
    """Returns whether a tag has translate="no" or the class notranslate; raw: its attributes."""
    if "translate" not in raw.lower():
        return False
    named = attributes(raw)
    return named.get("translate", "").lower() == "no" or "notranslate" in named.get("class", "").split()


def _end_of_element(html: str, at: int, name: str) -> int:
    """Returns the offset after the end tag of an element whose start tag ends at `at`; without an end tag the start of
    the next sibling, or the document's end."""
    if name in _RAW:
        match = re.compile(rf"</{name}(?=[\s/>])[^>]*>?", re.IGNORECASE).search(html, at)
        return match.end() if match else len(html)
    depth = 1
    for match in re.compile(rf"<(/?)({re.escape(name)})(?=[\s/>])", re.IGNORECASE).finditer(html, at):
        if not match[1] and depth == 1 and name in _ENDED_BY_SIBLING:
            return match.start()
        tag = TAG.match(html, match.start())
        assert tag is not None
        depth += -1 if match[1] else not tag[0].endswith("/>")
        if not depth:
            return tag.end()
    return len(html)
