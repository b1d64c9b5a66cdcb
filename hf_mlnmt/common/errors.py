"""The exception for mistakes that users can correct: the command line prints its text without a traceback."""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Wrong input by the user. The message names the file, line or field, what was expected, and what to do."""


class OptionError(UserError):
    """A UserError about options of translation: names them as in Python; the command line replaces them by its own."""


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Puts a place, as "recipe.yaml: data.dev", before the message of a UserError raised in the with block."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns " (did you mean 'x'?)" for the most similar other known word, or "" where none is similar."""
    near = difflib.get_close_matches(word, [each for each in known if each != word], n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""


@functools.cache
def say_once(message: str) -> None:
    """Logs a warning, unless the same one was logged before in this process."""
    logging.getLogger("hf_mlnmt").warning(message)
