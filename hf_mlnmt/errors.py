"""The one exception for mistakes a user can mend: the command line prints its text and no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input. The message names the file, line or field, what was expected, and what to do."""


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns " (did you mean 'x'?)" for the nearest known word, or an empty string when none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""
