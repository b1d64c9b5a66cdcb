"""What is said of a key that users write, beside its type and default: a sentence of help, a range, a check.

A key is a field of a dataclass, made by `key`. The sections of a recipe (recipe/schema.py) and the corpora and filters
that recipes name (data/) are such dataclasses; recipe/building.py makes them of YAML.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

REQUIRED: Any = dataclasses.MISSING  # the default of a key that must be given


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both allowed unless they are said to be `above` and `below`.

    Args:
        says, more: other words of the message, before and behind "not <value>".
    """

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False
    says: str | None = None
    more: str = ""

    def problem(self, value: float) -> str | None:
        """The end of a message that begins with the key, for a value that is not in the range; else None."""
        words = self._words(value)
        return words and f" {self.says or words}, not {value}{self.more}."

    def _words(self, value: float) -> str | None:
        if not math.isfinite(value):
            return "must be a finite number"
        low = f"{'above' if self.above else 'at least'} {self.low:g}"
        if value < self.low or (self.above and value == self.low):
            return f"must be {low}" + (f" and below {self.high:g}" if self.below else "")
        if value > self.high or (self.below and value == self.high):
            return f"must be {low} and below {self.high:g}" if self.below else f"must be at most {self.high:,}"
        return None


@dataclass(frozen=True)
class Key:
    """What is said of a key.

    Args:
        help: a plain sentence for people.
        range: of the number, or of every number of a list.
        inside: of numbers in a section whose keys are not listed: key -> range.
        of: "module:class", the dataclasses of which one has the keys of this section, or of each section of a list;
            "OBJECTIVES" for the name of an objective with its settings.
        check: value -> the end of a message that begins with the key, or None; for what is no range.
    """

    help: str = ""
    range: Range | None = None
    inside: Mapping[str, Range] = field(default_factory=dict)
    of: tuple[str, ...] = ()
    check: Callable[[Any], str | None] | None = None


def key(default: Any, help: str, range: Range | None = None, **more: Any) -> Any:
    """A field of a dataclass, with its default; the other arguments are as of `Key`."""
    said: dict[str, Any] = {"metadata": {"key": Key(help, range, **more)}}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.copy(default), **said)
    if callable(default):  # the class of a section, all keys of which have defaults
        return dataclasses.field(default_factory=default, **said)
    return dataclasses.field(default=default, **said)


def keys_of(section: type) -> dict[str, Key]:
    """The keys of a section in order, with what is said of each."""
    return {item.name: item.metadata.get("key", Key()) for item in dataclasses.fields(section)}
