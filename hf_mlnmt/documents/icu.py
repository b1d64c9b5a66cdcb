"""Messages of ICU: the branches of plural, select and selectordinal are translated, their syntax is kept.

The text around a plural goes into each of its branches, so that a branch is a whole sentence:
"You have {n, plural, one {# dog} other {# dogs}}" -> "{n, plural, one {You have # dog} other {You have # dogs}}".
Categories are those of the target language (CLDR, by babel), made from `other` where the source has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from hf_mlnmt.data.placeholders import placeholders
from hf_mlnmt.documents.marked import Checked, Passage

_OPENS = re.compile(r"\{\s*(\w+)\s*,\s*(plural|selectordinal|select)\s*,\s*(offset:\d+\s*)?")
_KEY = re.compile(r"\s*(=\d+|\w+)\s*\{")
TAGS = ("zero", "one", "two", "few", "many", "other")  # plural categories in the order of CLDR
MOST = 32  # most branches of a translated message; those of several selectors are multiplied


class _Selector(NamedTuple):
    """A plural or select: the text from its brace to its branches, its variable, its kind, and its branches."""

    start: str
    name: str
    kind: str
    branches: dict[str, list[str | _Selector]]


def is_icu(raw: str) -> bool:
    """Returns whether a message has a plural or a select of ICU."""
    return _OPENS.search(raw) is not None


@cache
def plural_categories(language: str, ordinal: bool = False) -> dict[str, bool]:
    """Returns {plural category of a language (one, few, other...): whether the category is for the number 1 alone}.

    Raises: ImportError without babel, ValueError for a language that it does not know.
    """
    from babel import Locale
    from babel.core import UnknownLocaleError

    try:
        locale = Locale.parse(language.replace("-", "_"))
    except UnknownLocaleError as error:
        raise ValueError(str(error)) from error
    rule = locale.ordinal_form if ordinal else locale.plural_form
    numbers = {tag: [number for number in range(200) if rule(number) == tag] for tag in {*rule.tags, "other"}}
    return {tag: numbers[tag] == [1] for tag in TAGS if tag in numbers}


def forms_of(source: Mapping[str, str], categories: Mapping[str, bool]) -> dict[str, str]:
    """Returns {plural category of the target language: category of the source whose text is translated for it}.

    It is the same category only where the text says the number, or the category is of 1 alone: "One file" would be
    wrong where 21 is singular, too. Otherwise it is `other`.
    """
    counts = {tag: [*placeholders(text), "#" in text] for tag, text in source.items()}
    own = {tag: tag in source and (alone or counts[tag] == counts["other"]) for tag, alone in categories.items()}
    return {tag: tag if own[tag] else "other" for tag in categories}


def icu_message(raw: str, language: str | None, translate: Callable[[str], Checked]) -> Checked:
    """Returns a message, in which `translate` makes a message to translate of each branch; where that is not possible,
    one that stays untranslated.

    It stays without a target language or without babel, with braces in quotes, and with more than MOST branches.
    """
    try:
        parsed, end = _parse(raw, 0, None)
        if language is None or end != len(raw):
            raise ValueError("without a language, or with a brace that nothing opens")
        parts = list(_written(parsed, language, translate))
        if sum(isinstance(part, Checked) for part in parts) > MOST:
            raise ValueError("too many branches")
    except (ValueError, ImportError, RecursionError):
        return Checked([], str, raw, left=True)
    return Checked(parts, str, raw)


def _parse(raw: str, at: int, name: str | None) -> tuple[list[str | _Selector], int]:
    """Returns the parts of a message from `at` on, and where it ends; `name`: the variable of the plural around it,
    which # stands for. Raises: ValueError for what is no message."""
    parts: list[str | _Selector] = []
    start = at
    while at < len(raw) and not (raw[at] == "}" and name is not None):
        if raw[at] == "}" or (raw[at] == "'" and raw[at + 1 : at + 2] in ("{", "}", "#")):
            raise ValueError("a brace that nothing opens, or in quotes")
        if raw[at] != "{":
            at += 1
            continue
        opens = _OPENS.match(raw, at)
        if opens is None:  # a placeholder: {name}, {n, number}
            at = raw.index("}", at) + 1
            continue
        parts.append(raw[start:at])
        at, branches = opens.end(), {}
        while key := _KEY.match(raw, at):
            branches[key[1]], at = _parse(raw, key.end(), opens[1] if opens[2] != "select" else name or "")
            at += 1
        closes = re.compile(r"\s*\}").match(raw, at)
        if closes is None or "other" not in branches:
            raise ValueError("not closed, or without `other`")
        start = at = closes.end()
        parts.append(_Selector(opens[0], opens[1], opens[2], branches))
    if name is not None and at == len(raw):
        raise ValueError("not closed")
    return [*parts, raw[start:at]], at


def _written(
    parts: list[str | _Selector], language: str, translate: Callable[[str], Checked], number: str = ""
) -> Iterator[str | Passage | Checked]:
    """Yields the parts of a document for a message: its first selector outside, all other text in the branches.

    number: the variable of the plural around the parts, for which # stands.
    """
    where = next((place for place, part in enumerate(parts) if isinstance(part, _Selector)), None)
    if where is None:
        text, shown = "".join(map(str, parts)), f"{{{number}}}"  # the model reads a placeholder for #, the number
        if "#" not in text or shown in text or shown == "{}":
            yield translate(text)
        else:
            yield Checked([translate(text.replace("#", shown))], lambda made: made.replace(shown, "#"), text)
        return
    before, selector, behind = parts[:where], parts[where], parts[where + 1 :]
    assert isinstance(selector, _Selector)
    branches, plural = selector.branches, selector.kind != "select"
    if plural and any("#" in part for part in (*before, *behind) if isinstance(part, str)):
        raise ValueError("a # outside, which would become that of this plural")
    if plural:
        texts = {key: "".join(part for part in branch if isinstance(part, str)) for key, branch in branches.items()}
        chosen = forms_of(texts, plural_categories(language, selector.kind == "selectordinal"))
        exact = {key: branch for key, branch in branches.items() if key[0] == "="}
        branches = exact | {tag: branches[own] for tag, own in chosen.items()}
    yield selector.start
    for place, (key, branch) in enumerate(branches.items()):
        if plural and any(isinstance(part, _Selector) for part in (*branch, *behind)):
            if "offset:" in selector.start:
                raise ValueError("a # that would become that of another plural")
            spelt = f"{{{selector.name}, number}}"
            branch = [part.replace("#", spelt) if isinstance(part, str) else part for part in branch]
        yield f"{' ' * (place > 0)}{key} {{"
        yield from _written([*before, *branch, *behind], language, translate, selector.name if plural else number)
        yield "}"
    yield "}"
