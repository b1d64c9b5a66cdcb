"""The `hf-mlnmt` command: one verb per file, each importing what it needs only when it runs."""

from __future__ import annotations

import sys

import typer

from hf_mlnmt.cli.attention import attention
from hf_mlnmt.cli.average import average
from hf_mlnmt.cli.compare import compare
from hf_mlnmt.cli.compare_runs import compare_runs
from hf_mlnmt.cli.coverage import coverage
from hf_mlnmt.cli.demo import demo
from hf_mlnmt.cli.describe import describe
from hf_mlnmt.cli.drop_auxiliaries import drop_auxiliaries
from hf_mlnmt.cli.evaluate import evaluate
from hf_mlnmt.cli.export import export
from hf_mlnmt.cli.masking import masking
from hf_mlnmt.cli.outputs import outputs
from hf_mlnmt.cli.probe import probe
from hf_mlnmt.cli.publish import publish
from hf_mlnmt.cli.tokenizer import tokenizer
from hf_mlnmt.cli.train import train
from hf_mlnmt.cli.translate import translate
from hf_mlnmt.errors import UserError

app = typer.Typer(
    name="hf-mlnmt",
    help="Neural machine translation models for Transformers: train, translate, score, publish.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for verb in (
    demo,
    tokenizer,
    train,
    average,
    drop_auxiliaries,
    translate,
    evaluate,
    compare,
    compare_runs,
    describe,
    coverage,
    attention,
    masking,
    probe,
    outputs,
    publish,
    export,
):
    app.command()(verb)


def main() -> None:
    """Run the command; a user's mistake is one message and exit code 1, Ctrl-C is exit code 130."""
    try:
        app()
    except UserError as error:
        from rich.console import Console

        Console(stderr=True).print("error:", style="bold red", end=" ")
        print(error, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        sys.stderr.close()
        sys.exit(141)
