"""Numbers, times, codes, addresses and placeholders: parts of a text that a translation has as the source has them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

_NUMBER = r"\d+(?:[.,:/]\d+)*"
_NUMBERS = re.compile(_NUMBER, re.ASCII)
# Letters and digits are those of ASCII: a Chinese character may stand beside each of these.
_KEPT = re.compile(
    r"""https?://[!-~]*[\w/#=&-] | www\.[!-~]*[\w/] | (?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+"""  # addresses
    r"""| \$?\{[^{}\s]*\} | %(?:\(\w+\)|\d+\$)?[-+#0]?\d*(?:\.\d+)?(?:hh?|ll?|z)?[diouxXeEfFgGcsp@](?!\w)"""
    r"""| </?\d+\s*/?> | <\w+/>"""  # placeholders of programs: {name}, ${x}, %s, %1$d, <0/>
    r"""| (?<![\w-])[\w-]++\.(?:x?html?|xml|json|csv|txt|pdf|docx?|png|jpe?g|gif|svg|zip|py)(?!\w)"""  # files
    r"""| (?<!\w)(?: [A-Z]+-?\d[A-Z\d-]*+(?!\w) | \w*[^\W_]_[^\W_]\w* )"""  # codes: A4, COVID-19, snake_case
    rf"""| (?<!\w)(?P<number>{_NUMBER})(?!\w)""",
    re.VERBOSE | re.ASCII,
)


def kept(text: str) -> Iterator[tuple[str, int, int]]:
    """Yields what is to be kept, with its place; of a number the digits, for each language has marks of its own."""
    for match in _KEPT.finditer(text):
        yield re.sub(r"\D", "", match[0]) if match["number"] else match[0], match.start(), match.end()


def lost(source: str, translation: str) -> Counter[str]:
    """Returns what a translation lacks of its source, and how often."""
    wanted = Counter(name for name, *_ in kept(source))
    if not wanted:
        return wanted
    numbers = Counter(re.sub(r"\D", "", number) for number in _NUMBERS.findall(translation))
    return wanted - (Counter(name for name, *_ in kept(translation)) | numbers)


def has_words(text: str) -> bool:
    """Returns whether a text has letters beside what is kept: something to translate."""
    return any(map(str.isalpha, _KEPT.sub("", text)))
