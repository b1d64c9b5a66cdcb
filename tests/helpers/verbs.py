"""Calls of verbs of the command in this process."""

from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from hf_mlnmt import UserError


def of_verbs(*verbs: Callable[..., Any]) -> tuple[Callable[..., str], Callable[..., str]]:
    """Returns a function that returns what a verb prints, and one that returns what it refuses."""
    app = typer.Typer()
    for verb in verbs:
        app.command()(verb)

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def refused(*arguments: object) -> str:
        with pytest.raises(UserError) as error:
            run(*arguments)
        return str(error.value)

    return run, refused
