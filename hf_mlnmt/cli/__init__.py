"""The `hf-mlnmt` command: one verb per file, each importing what it needs only when it runs.

What a verb's file imports at its top must be light (typer, errors): help, a mistyped option and the shell's completion
come through all of them. What a verb does lies in the other rooms.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer

from hf_mlnmt.cli.add_language import add_language
from hf_mlnmt.cli.attention import attention
from hf_mlnmt.cli.average import average
from hf_mlnmt.cli.back_translate import back_translate
from hf_mlnmt.cli.compare import compare
from hf_mlnmt.cli.compare_runs import compare_runs
from hf_mlnmt.cli.cost import cost
from hf_mlnmt.cli.coverage import coverage
from hf_mlnmt.cli.curves import curves
from hf_mlnmt.cli.demo import demo
from hf_mlnmt.cli.describe import describe
from hf_mlnmt.cli.domains import domains
from hf_mlnmt.cli.drop_auxiliaries import drop_auxiliaries
from hf_mlnmt.cli.embed import embed
from hf_mlnmt.cli.evaluate import evaluate
from hf_mlnmt.cli.export import export
from hf_mlnmt.cli.fuse import fuse
from hf_mlnmt.cli.fusion_grid import fusion_grid
from hf_mlnmt.cli.import_model import import_model
from hf_mlnmt.cli.masking import masking
from hf_mlnmt.cli.matrix import matrix
from hf_mlnmt.cli.outputs import outputs
from hf_mlnmt.cli.perplexity import perplexity
from hf_mlnmt.cli.probe import probe
from hf_mlnmt.cli.publish import publish
from hf_mlnmt.cli.retrieve import retrieve
from hf_mlnmt.cli.rounds import rounds
from hf_mlnmt.cli.sweep import sweep
from hf_mlnmt.cli.tokenizer import tokenizer
from hf_mlnmt.cli.train import train
from hf_mlnmt.cli.translate import translate
from hf_mlnmt.errors import UserError

VERBS = {
    "First steps": (demo,),
    "Train": (tokenizer, train, rounds, sweep, add_language, curves, average, drop_auxiliaries, fuse),
    "Translate": (translate, back_translate),
    "Score": (evaluate, perplexity, compare, compare_runs, domains, fusion_grid, matrix),
    "Look into a model": (describe, cost, coverage, attention, masking, probe, outputs, embed, retrieve),
    "Publish": (publish, export),
    "Models of other toolkits": (import_model,),
}
NAMES: dict[Any, str] = {import_model: "import"}  # no function can have that name


def _paragraphs(text: str | None) -> str:
    """A docstring for any width of the terminal: a paragraph, or an item of a list, is one line; examples stay."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(each if each.startswith("  ") else re.sub(r"\n(?!- )\s*", " ", each) for each in paragraphs)


app = typer.Typer(
    name="hf-mlnmt",
    no_args_is_help=True,
    # Not "markdown": it takes <2de> in a help text for HTML and leaves it out.
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for panel, verbs in VERBS.items():
    for verb in verbs:
        app.command(NAMES.get(verb), rich_help_panel=panel, help=_paragraphs(verb.__doc__))(verb)


def _version(asked: bool) -> None:
    if asked:
        from importlib import metadata
        from platform import python_version

        from hf_mlnmt import __version__

        typer.echo(f"hf-mlnmt {__version__}")
        for package in ("torch", "transformers"):  # asked of the installation: importing them takes seconds
            typer.echo(f"{package} {metadata.version(package)}")
        typer.echo(f"Python {python_version()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    """Neural machine translation models for Transformers: train, translate, score, publish.

    `hf-mlnmt VERB --help` explains a verb. New here? `hf-mlnmt demo` does everything once, in minutes.
    """


def main() -> None:
    """Run the command, as the shell's exit code tells: 0; 1 for one message about what was wrong; 2 for its options.

    130 after Ctrl-C, 143 after SIGTERM.
    """
    _end_in_order()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # a full disk behind it must be found here, not as Python ends
    except UserError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of the output left, as `| head` does
        _drop_output()
        sys.exit(1)
    except OSError as error:  # the machine's refusals: no permission, no space, no network
        _drop_output()
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))


def _end_in_order() -> None:
    """Let SIGTERM and SIGHUP end the program as Ctrl-C does, so that nothing half-written is left."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup lets SIGHUP be ignored
            signal.signal(number, _stop)


def _stop(number: int, frame: object) -> NoReturn:
    print(f"stopped by {signal.Signals(number).name}", file=sys.stderr)
    sys.exit(128 + number)


def _fail(message: str) -> NoReturn:
    from rich.console import Console

    Console(stderr=True).print("error:", style="bold red", end=" ")
    print(message, file=sys.stderr)
    sys.exit(1)


def _drop_output() -> None:
    """What is still to be written to standard output goes nowhere: Python would try again as it ends, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
