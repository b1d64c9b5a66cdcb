"""Finds addresses, numbers, tags and placeholders: parts of a source that its translation must have unchanged.

`Kept` finds the parts that `keep` names, by names of PATTERNS or regular expressions. Documents put back parts that a
translation lacks (`kept`, `lost`), always. `with_placeholders` makes training pairs in which tokens stand for parts.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from gettext import c2py  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from hf_mlnmt.common.errors import OptionError, UserError, suggest

_NUMBER = r"\d+(?:[.,:/]\d+)*"
_NUMBERS = re.compile(_NUMBER, re.ASCII)
_FORMAT = (
    r"%(?:\([^()\s]+\)|<\w+>|\d+\$)?[-+\#0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?"
    r"(?:(?:hh?|ll?|[zjtLqv])?[diouxXeEfFgGcrsaApPj@]|<?PRI\w+>?)"
)
# \w, \d match ASCII alone, so that a part is found beside a Chinese character too.
PATTERNS = {
    "url": r"https?://[!-~]*[\w/#=&-] | www\.[!-~]*[\w/]",
    "email": r"(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+",
    "number": rf"(?<!\w){_NUMBER}(?!\w)",
    "tag": r"</?[A-Za-z\d][^<>]*>",
    # Placeholders in programs: {name}, {{name}}, ${x}, $x, %{x}; %s and the like of C, Python, Ruby, Objective C;
    # placeholders of libraries: Boost %1%, Symfony %name%, Qt %1 and %n, Drupal @count, Laravel :name.
    "placeholder": rf"\{{\{{[^{{}}\s]*\}}\}} | [$%]?\{{[^{{}}\s]*\}} | {_FORMAT}(?:(?!\w)|(?=x%)) | %\w+% | %%"
    r"| %(?:\d+\$)?\#@\w+@ | (?<![\w%])%L?(?:\d{1,2}|n)(?![\w%]) | (?<![\w@:%!.])[@:%!][a-z_]{2,}(?![\w@:%]|\.\w)"
    r"| (?<![\w$])\$[A-Za-z_]\w*(?![\w$])",
}
# All format directives that begin with %, and Lisp's: only to compare a source's with its translation's.
_STRICT = re.compile(
    r"%(?:\([^()\s]*\)|\{[^{}\s]*\}|<\w+>)?[ ]?[-+\#0'\d$*.,:]*(?:<?PRI\w+>?|(?:hh?|ll?|[zjtLqIv])?[A-Za-z@%<>]?)"
    r"| \{[^{}\s]*\} | \$\w+ | (?<!\w)~[A-Za-z%]",
    re.VERBOSE | re.ASCII,
)
_PLACEHOLDERS = re.compile(PATTERNS["placeholder"], re.VERBOSE | re.ASCII)
_KEPT = re.compile(
    rf"""{PATTERNS["url"]} | {PATTERNS["email"]} | {PATTERNS["placeholder"]} | </?\d+\s*/?> | <\w+/>"""
    r"""| (?<![\w-])[\w-]++\.(?:x?html?|xml|json|csv|txt|pdf|docx?|png|jpe?g|gif|svg|zip|py)(?!\w)"""  # files
    r"""| (?<!\w)(?: [A-Z]+-?\d[A-Z\d-]*+(?!\w) | \w*[^\W_]_[^\W_]\w* )"""  # codes such as A4, COVID-19, snake_case
    rf"""| (?P<number>{PATTERNS["number"]})""",
    re.VERBOSE | re.ASCII,
)
_SMALL = "[a-zß-öø-ÿ]"
# What may stand before the sign within a word that begins with a capital, as Creat_e; file_name is an identifier.
_CAPITAL = "|".join(rf"(?<=\b[A-ZÀ-Ý]{_SMALL}{{{size}}}_)" for size in range(16))
# The sign that marks an access key's letter: &File, E&xit (Qt, Windows), _Open, E_xit (GTK), ~Edit (LibreOffice).
KEY = re.compile(
    r"(?<![\w&])&(?=[^\W\d_])(?!\w+;)|(?<=\w)&(?=[a-z])(?!\w+;)|(?<!\w)[_~](?=[^\W\d_])|"
    rf"_(?={_SMALL}+\b)(?:{_CAPITAL})"
)
_KEY_BEHIND = re.compile(r"\s?\([&_~]\w\)")  # an access key after the text, as in Chinese: (&F)
NO_LINES = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # str.splitlines ends lines here, gettext does not
_LONGEST = 1000  # most characters of a user's regular expression
_MOST = 100  # most patterns that a user may give
_REPEATS = 10_000  # the greatest product allowed of the numbers in a pattern's repeats, such as {3}
_SECONDS, _A_CHARACTER = 2.0, 1e-5  # most processor time to find parts: 2 s plus 10 us a character


def kept(text: str) -> Iterator[tuple[str, int, int]]:
    """Yields (text, start, end) of each part to keep; of a number only its digits, as separators differ by language."""
    for match in _KEPT.finditer(text):
        yield re.sub(r"\D", "", match[0]) if match["number"] else match[0], match.start(), match.end()


def placeholders(text: str, strict: bool = False) -> list[str]:
    """Returns the placeholders in a program's message; strict: everything that C, Python or Lisp would read as one."""
    return [match[0] for match in (_STRICT if strict else _PLACEHOLDERS).finditer(text)]


def lost(source: str, translation: str) -> Counter[str]:
    """Counts the parts (`kept`) of a source that are missing in its translation: {part: how often}."""
    wanted = Counter(name for name, *_ in kept(source))
    if not wanted:
        return wanted
    numbers = Counter(re.sub(r"\D", "", number) for number in _NUMBERS.findall(translation))
    return wanted - (Counter(name for name, *_ in kept(translation)) | numbers)


def has_words(text: str) -> bool:
    """Returns whether a text has letters outside of its parts to keep (`kept`), which are to be translated."""
    return any(map(str.isalpha, _KEPT.sub("", text)))


class Part(NamedTuple):
    """A part of a text to keep: text[start:end], the pattern it matches, and the token that stands for it, or ""."""

    text: str
    start: int
    end: int
    pattern: str
    token: str = ""


def checked_patterns(given: Any, what: str) -> list[str]:
    """Returns a list of the patterns in `given`: a regular expression, names with commas between them, or a list.

    Raises: UserError for anything else, and for a regular expression that cannot be compiled, or matches no character.
    """
    parts: list[str] = []
    for each in [given] if isinstance(given, str) else given if isinstance(given, list | tuple) else [None]:
        if not isinstance(each, str) or not each.strip():
            raise OptionError(f"{what}: {given!r}: expected {', '.join(PATTERNS)}, or a regular expression.")
        names = list(filter(None, map(str.strip, each.split(","))))
        are_names = not PATTERNS.keys().isdisjoint(names)
        if are_names and (unknown := next((name for name in names if name not in PATTERNS), None)) is not None:
            raise OptionError(
                f"{what}: {unknown!r}{suggest(unknown, PATTERNS)} is none of {', '.join(PATTERNS)}, whose names have "
                "commas between them. Give a regular expression by itself, the option again for more."
            )
        parts += names if are_names else [each]
    if len(parts) > _MOST:
        raise OptionError(f"{what}: {len(parts):,} patterns; at most {_MOST}. Join some by |.")
    for each in parts:
        _compiled(each, what)
    return list(dict.fromkeys(parts))


def _compiled(pattern: str, what: str) -> Any:
    import regex  # unlike re, this module can limit the time of a search

    if pattern in PATTERNS:
        return regex.compile(PATTERNS[pattern], regex.VERBOSE | regex.ASCII)
    if pattern.isalpha() and (near := suggest(pattern, PATTERNS)):
        raise OptionError(f"{what}: {pattern!r}{near}. For the word itself, write (?:{pattern}).")
    repeats = math.prod(max(1, int(number)) for number in re.findall(r"\{(\d{1,9})[,}]", pattern))
    if len(pattern) > _LONGEST or repeats > _REPEATS:
        raise OptionError(
            f"{what}: a regular expression of {len(pattern):,} characters, written out {repeats:,} times by repeats in "
            f"repeats; at most {_LONGEST:,} and {_REPEATS:,}. Write a shorter one."
        )
    try:
        compiled = regex.compile(pattern)
        if compiled.fullmatch("", timeout=_SECONDS):
            raise OptionError(f"{what}: {pattern!r} matches where nothing is. Let it ask for a character.")
    except (regex.error, RecursionError, OverflowError, TimeoutError) as error:
        raise OptionError(f"{what}: {pattern!r} is no regular expression ({error}).") from error
    return compiled


class Kept:
    """Finds the parts of texts that match a pattern: a name of PATTERNS or a regular expression."""

    def __init__(self, patterns: Iterable[str], what: str = "keep"):
        self.what = what
        self.patterns = {pattern: _compiled(pattern, what) for pattern in patterns}

    def __call__(self, texts: Sequence[str]) -> list[list[Part]]:
        """Returns the parts of each text, in order; of overlapping ones the first, of equal beginnings the longest.

        Raises: UserError for a regular expression that takes too long: texts of n characters have 2 s + n * 10 us.
        """
        given = _SECONDS + _A_CHARACTER * sum(map(len, texts))
        began = time.process_time()
        found = []
        for text in texts:
            parts: list[Part] = []
            for pattern, compiled in self.patterns.items():
                try:
                    left = max(1e-3, given - (time.process_time() - began))
                    for match in compiled.finditer(text, timeout=left):
                        start = match.end() - len(match[0].lstrip())
                        parts.append(Part(match[0].strip(), start, start + len(match[0].strip()), pattern))
                except TimeoutError as error:
                    raise OptionError(
                        f"{self.what}: the regular expression {pattern!r} does not come to an end: it tries too many "
                        "ways, as repeats inside of repeats do, such as (a+)+. Write it in another way."
                    ) from error
            end, apart = 0, []
            for part in sorted(parts, key=lambda part: (part.start, -part.end)):
                if part.text and part.start >= end:
                    apart.append(part)
                    end = part.end
            found.append(apart)
        return found


def replaced(text: str, parts: Iterable[Part]) -> str:
    """Returns a text with its `parts`, given in order, replaced by their tokens; parts without a token stay."""
    pieces, end = [], 0
    for part in parts:
        pieces += [text[end : part.start], part.token or part.text]
        end = part.end
    return "".join([*pieces, text[end:]])


def whole(part: str) -> re.Pattern[str]:
    """Returns a pattern that finds `part` in a text, but not inside a longer word of ASCII letters and digits."""
    before, behind = (r"(?<!\w)" * part[0].isalnum(), r"(?!\w)" * part[-1].isalnum())
    return re.compile(before + re.escape(part) + behind, re.ASCII)


def with_placeholders(pairs: Iterable[tuple[str, str]], placeholders: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the pairs; in every other pair with parts on both sides that match a pattern, tokens replace these parts.

    placeholders: {token: pattern}. A model so learns both the tokens and the parts themselves.
    """
    find, turn = Kept(placeholders.values(), "data.placeholders"), False
    tokens = {pattern: token for token, pattern in placeholders.items()}
    for pair in pairs:
        sides = [[part for part in parts if not re.search(r"\s", part.text)] for parts in find(pair)]
        counts = [Counter((part.pattern, part.text) for part in parts) for parts in sides]
        common = counts[0] & counts[1]
        turn = turn != bool(common)
        if common and turn and not any(token in text for token in placeholders for text in pair):
            left = [common.copy(), common.copy()]
            source, target = (
                replaced(text, [part._replace(token=tokens[part.pattern]) for part in parts if _take(of_side, part)])
                for text, parts, of_side in zip(pair, sides, left)
            )
            pair = source, target
        yield pair


def _take(left: Counter[tuple[str, str]], part: Part) -> bool:
    left[part.pattern, part.text] -= 1
    return left[part.pattern, part.text] >= 0


def without_key(*texts: str) -> list[str] | None:
    """Returns a program's message and its translation without the signs of access keys (&File); None unless the message
    has exactly one."""
    if len(KEY.findall(texts[0])) != 1:
        return None
    bare = [_KEY_BEHIND.sub("", text) for text in texts]
    return [KEY.sub("", text) if len(KEY.findall(text)) == 1 else text for text in bare]


def forms_of(header: str) -> list[set[int]]:
    """Returns for each plural form of a gettext catalogue which of the numbers 0 to 199 take it; [] if `header` has no
    rule. Raises: UserError for a rule that cannot be read."""
    if not (told := re.search(r"nplurals=(\d+);\s*plural=([^;\\]+)", header)):
        return []
    numbers: list[set[int]] = [set() for _ in range(min(int(told[1]), 10))]
    try:
        rule = c2py(told[2])
        for number in range(200):
            numbers[rule(number)].add(number)
    except (ValueError, ArithmeticError, IndexError, RecursionError) as error:
        raise UserError(f"its header's Plural-Forms are no rule ({error}): {told[0]}.") from error
    return numbers
