"""The one exception for mistakes a user can mend: the command line prints its text and no traceback."""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Bad input. The message names the file, line or field, what was expected, and what to do."""


class OptionError(UserError):
    """The same of options of a translation, by their names in Python; the command line says them as they are typed."""


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Puts a place, as "recipe.yaml: data.dev", before the message of a UserError of the block."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns " (did you mean 'x'?)" for the nearest other known word, or an empty string when none is near."""
    near = difflib.get_close_matches(word, [each for each in known if each != word], n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""


@functools.cache
def say_once(message: str) -> None:
    """Logs a warning that was not yet given in this process."""
    logging.getLogger("hf_mlnmt").warning(message)
