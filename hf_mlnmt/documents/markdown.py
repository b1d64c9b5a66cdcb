"""Reader of Markdown: markdown-it finds the blocks and their lines, a regular expression the marks inside of blocks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from html import unescape
from itertools import pairwise
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference
from mdit_py_plugins.admon import admon_plugin
from mdit_py_plugins.container import container_plugin
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.footnote import footnote_plugin

from hf_mlnmt.documents.html import html_tokens
from hf_mlnmt.documents.marked import HTML, Form, Passage, Reading, Token, passages

_BLOCKS = MarkdownIt("commonmark", {"inline_definitions": True}).enable("table").disable("inline")
_BLOCKS.use(admon_plugin).use(deflist_plugin).use(footnote_plugin, inline=False, move_to_end=False)
_BLOCKS.use(container_plugin, "any", validate=lambda *_: True)
_SHORT = r"\{\{(?:(?!\}\}).)*\}\}|\{%(?:(?!%\}).)*%\}"  # matches short codes of Hugo and Jekyll
# Lines without text to translate that markdown-it does not know: front matter, formulas, comments, MDX imports...
# Fenced code is matched too, so that the other patterns do not match inside of code.
_LINES = re.compile(
    rf"""\A(?P<front>---|\+\+\+)[ ]*\n(?:.*\n)*?(?:(?P=front)|\.\.\.)[ ]*$
    |^[ \t>]*(?P<fence>`{{3,}}|~{{3,}})[^`\n]*\n(?:.*\n){{0,300}}?[ \t>]*(?P=fence)[`~]*[ ]*$
    |^[ \t>]*(?:(?P<sign>\$\$|%%)(?:.*\n(?:[ \t]*+\S.*\n){{0,300}}?)?.*(?P=sign)
        |\\\[(?:.*\n(?:[ \t]*+\S.*\n){{0,300}}?)?.*\\\])[ ]*$
    |^[ \t]*\{{/\*(?:.*\n){{0,300}}?.*\*/\}}[ ]*$
    |^\\begin\{{(?P<name>\w+\*?)\}}(?:.*\n){{0,300}}?.*\\end\{{(?P=name)\}}[ ]*$
    |^[ \t]*\{{[{{%][<%]?-?\s*(?P<code>highlight|raw|comment|mermaid|katex|math|code)\b(?:.*\n){{1,300}}?
        .*\{{[{{%][<%]?-?\s*(?:end|/)\s*(?P=code)\b.*$
    |^[ \t>]*(?:\{{\{{[<%](?:.*\n){{0,30}}?.*[%>]\}}\}}|{_SHORT}|\[\[?_?(?:TOC|toc)_?\]\]?|\*\[[^\]\n]+\]:.*)[ ]*$
    |^import\s+(?:[\w$*{{}}\s,]{{0,500}}?\sfrom\s+)?(?:"[^"\n]*"|'[^'\n]*');?[ ]*$
    |^export\s+(?:default|const|let|function|class|async|\{{).*(?:\n.*\S.*)*$""",
    re.MULTILINE | re.VERBOSE,
)
# _BAR replaces each | inside of code (_CODE_IN_ROW), where it does not end a cell of a table.
_BAR, _CODE_IN_ROW = "\ufdd2", re.compile(r"(?<!`)(`+)[^`\n]*\1(?!`)")
_CONTAINER = re.compile(r":{3,}[ ]*(?:\{[^}\n]*\}|[\w-]+)(?:\[|[ ]+)([^\]{}\n]+)")
_PUNCTUATION = r"""[!-/:-@\[-`{-~]"""
_DESTINATION = rf"""\((?:<[^<>\n]*>|{_SHORT}|(?:[^\s()]|\([^\s()]*\))*)(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)"""
_INLINE = re.compile(
    rf"""(?P<escape>\\{_PUNCTUATION})
    |(?P<code>(?P<ticks>`++).+?(?<!`)(?P=ticks)(?!`)|\$\$[^$\n]+\$\$|\$[^\s$](?:[^$\n]*[^\s$])?\$(?!\d))    # formulas
    |(?P<mark>\[\^[^\[\]\s]+\]:?|\[![A-Z]+\]|^\[[ xX]\]\ |\{{\s*[\#.:][^{{}}]*\}}            # notes, alerts, tasks
        |<[a-zA-Z][\w+.-]*:[^\s<>]*>|<[^\s<>@]+@[^\s<>@]+>                                    # addresses
        |{_SHORT}|\{{/\*.*?\*/\}}|!?\[\[[^\[\]\n]+\]\]|\[-?@[^\[\]\n]+\](?![(\[])|\+\+[\w+-]+\+\+    # and keys
        |(?<![\w:]):(?:[+-]1|[\d_+-]*[a-z][\w+-]*):(?![\w:]))                                   # :smile:
    |(?P<image>!\[(?P<alt>[^\[\]]*)\](?P<to>{_DESTINATION}|\[[^\]]*\]))
    |(?P<open>\[)|(?P<close>\](?:{_DESTINATION}|\[[^\]]*\]))
    |(?P<tag><(?P<opaque>code|kbd|samp|var|math|svg)\b[^<>]*>.*?</(?P=opaque)>|</?[a-zA-Z][^<>]*>|<!--.*?(?:-->|\Z))|(?P<run>\*+|_+|~~|==)""",
    re.DOTALL | re.VERBOSE,
)
_LABEL = re.compile(r"\[([^\[\]]+)\](?:\[\])?(?![(\[])")
_TITLE = re.compile(r"""[("'\s]["']([^"']+)["']\s*\)$""")
# Matches characters of a translation that Markdown would read as markup, and that are escaped.
_MARKUP = re.compile(r"""[\\`]|\](?=[(\[])|(?<!\s)\*|\*(?!\s|\Z)|(?<![^\W_])_|_(?![^\W_])|<(?=[a-zA-Z/!?])|~~""")
_BEGINS_ITEM = re.compile(r"\A(\d+(?=[.)]\s)|(?=[#>+-]\s))")


def _quote(text: str) -> str:
    alone = {sign for sign in "*_`" if text.count(sign) == 1}
    text = _MARKUP.sub(lambda match: match[0] if match[0] in alone else "\\" + match[0], text)
    return _BEGINS_ITEM.sub(r"\1\\", text)


def _read(raw: str) -> str:
    return unescape(re.sub(rf"\\({_PUNCTUATION})", r"\1", raw))


_MARKDOWN = Form(_read, _quote, str, needed=re.compile(r"\[|<a\b").match)
_CELL = _MARKDOWN._replace(quote=lambda text: _quote(text).replace("|", r"\|"))


def read_markdown(text: str, reading: Reading) -> list[str | Passage]:
    """Returns the parts of a Markdown text, with passages for paragraphs, headings, lists, quotes, tables and HTML."""
    starts = [0, *(match.end() for match in re.compile("\n").finditer(text)), len(text)]
    result: list[str | Passage] = []
    at, first, last = 0, 0, len(text)
    environment: dict[str, Any] = {}
    form, before = _MARKDOWN, ""
    for token in _BLOCKS.parse(_blocks(text), environment):
        reading.check()
        if token.map:  # a table's cell has no line numbers: those of its row remain in `first` and `last`
            lines = token.map[0], max(token.map[0] + 1, token.map[1])
            first, last = (starts[min(line, len(starts) - 1)] for line in lines)
        if token.type == "html_block":
            result += [text[at:first], *passages(html_tokens(text[first:last], reading), HTML, reading.check)]
            at = last
        elif token.type in ("definition", "container_any_open"):
            titled = _CONTAINER.match(text, first + len(text[first:last]) - len(text[first:last].lstrip("> \t")))
            start, title = (titled.start(1), titled[1]) if titled else (-1, token.meta.get("title", ""))
            start = text.rfind(title, max(at, first), last) if token.type == "definition" else start
            if title and start >= at:
                result += [text[at:start], *passages([Token("text", title)], _MARKDOWN, reading.check)]
                at = start + len(title)
        elif token.type == "inline" and token.content:
            pieces, end = [], max(at, first)
            for line in token.content.split("\n"):
                bar = r"\\?\|" if form is _CELL else r"\|"
                sought = re.escape(line).replace(r"\|", bar).replace(_BAR, r"\|")
                found = re.compile('(?<=")' * (before == "admonition_title_open") + sought).search(text, end, last)
                if not found:  # the parser changed the text, so its offset is unknown: the block is not translated
                    break
                pieces.append(found.span())
                end = found.end()
            else:
                content = "\n".join(text[start:end] for start, end in pieces)
                gaps = iter([text[end:start] for (_, end), (start, _) in pairwise(pieces)])
                tokens = _Block(content, gaps, reading, environment.get("references", {})).read()
                result += [text[at : pieces[0][0]], *passages(tokens, form, reading.check)]
                at = end
        form, before = _CELL if token.type in ("th_open", "td_open") else _MARKDOWN, token.type
    return [*result, text[at:]]


def _blocks(text: str) -> str:
    """Returns the text for markdown-it, with as many lines, in which lines without text to translate become rules."""
    text = re.sub(r"\r\n?", lambda match: "\n" if len(match[0]) == 2 else " ", text)
    # Replaces each line that _LINES matches, but not fenced code, by a rule (***).
    ruled = re.compile(r"^([ \t>]*)[^\s>].*", re.MULTILINE)
    text = _LINES.sub(lambda match: match[0] if match["fence"] else ruled.sub(r"\1***", match[0]), text)
    # Makes tabs of MkDocs-Material (===) admonitions (!!!), whose titles and texts are translated.
    text = re.sub(r'^([ \t]*)===[+!]? (?=")', r"\1!!! tab ", text, flags=re.MULTILINE)
    return _CODE_IN_ROW.sub(lambda code: re.sub(r"(?<!\\)\|", _BAR, code[0]), text)


class _Block:
    """Splits the text of a block into tokens; gaps: what is between its lines in the file (line ends, quote marks)."""

    def __init__(self, text: str, gaps: Iterator[str], reading: Reading, references: dict[str, Any]) -> None:
        self.text, self.gaps, self.reading, self.references = text, gaps, reading, references
        self.tokens: list[Token] = []
        self.opened: list[tuple[int, str]] = []  # (number of a token that may open an element, mark that closes it)
        self.names: Counter[str] = Counter()
        self.label = ""

    def read(self) -> list[Token]:
        """Splits the block at escapes, code, links, images, tags and emphasis marks, and returns the tokens."""
        at = 0
        while match := _INLINE.search(self.text, at):
            self.reading.check()
            self._add_text(self.text[at : match.start()])
            at, raw = match.end(), match[0]
            if match["escape"]:
                self._add_text(raw)
            elif match["image"]:
                raw = f"![{self.reading.text(match['alt'], _MARKDOWN)}]{self._titled(match['to'])}"
                self.tokens.append(Token("mark", self._placed(raw), "kept"))
            elif match["code"] or match["mark"]:
                self.tokens.append(Token("mark", self._placed(raw), "kept"))
            elif match["tag"]:
                tokens = html_tokens(raw, self.reading)
                self.tokens += [token._replace(raw=self._placed(token.raw)) for token in tokens]
            elif match["open"]:
                label = _LABEL.match(self.text, match.start())
                if label and normalizeReference(label[1]) not in self.references:
                    label = None
                # Keeps the label of a link [text][], which is closed as [translation][text].
                self.label = label[1] if label and label[0].endswith("[]") else ""
                if label and not self.label:
                    at = label.end()
                    self.tokens.append(Token("mark", self._placed(label[0])))
                else:
                    self._open("[")
            elif match["run"]:
                self._run(match)
            elif self.names["["] and (self.label or raw != "][]"):
                self._close("[", f"][{self.label}]" if raw == "][]" else self._titled(raw))
            else:
                self._add_text(raw)
        self._add_text(self.text[at:])
        return self.tokens

    def _run(self, match: re.Match[str]) -> None:
        """Adds a run of emphasis marks: closes elements that are open, opens one, or adds the run as text."""
        raw = match[0]
        before = self.text[max(0, match.start() - 1) : match.start()] or " "
        after = self.text[match.end() : match.end() + 1] or " "
        inside = raw[0] == "_" and before.isalnum() and after.isalnum()
        while raw and not before.isspace() and not inside:
            mark = next((mark for mark in (raw, raw[:2], raw[:1]) if self.names[mark]), None)
            if mark is None:
                break
            self._close(mark, mark)
            raw = raw[len(mark) :]
        if raw and not after.isspace() and not inside and len(raw) <= 3:
            self._open(raw)
        elif raw:
            self._add_text(raw)

    def _open(self, mark: str) -> None:
        self.opened.append((len(self.tokens), mark))
        self.names[mark] += 1
        self.tokens.append(Token("text", mark))

    def _close(self, mark: str, raw: str) -> None:
        """Closes the element that `mark` opened; marks that were opened since then become text."""
        name = ""
        while name != mark:
            number, name = self.opened.pop()
            self.names[name] -= 1
        self.tokens[number] = Token("start", mark, mark)
        self.tokens.append(Token("end", self._placed(raw), mark))

    def _add_text(self, raw: str) -> None:
        first, *others = raw.split("\n")
        for line in others:
            said = first.rstrip(" \t\\")
            self.tokens += [Token("text", said), Token("line", first[len(said) :] + next(self.gaps))]
            first = line
        self.tokens.append(Token("text", first))

    def _placed(self, raw: str) -> str:
        return re.sub("\n", lambda match: next(self.gaps), raw)

    def _titled(self, raw: str) -> str:
        """Returns the end of a link, with its title registered for translation."""
        title = _TITLE.search(raw)
        if not title:
            return raw
        return raw[: title.start(1)] + self.reading.text(title[1], _MARKDOWN) + raw[title.end(1) :]
