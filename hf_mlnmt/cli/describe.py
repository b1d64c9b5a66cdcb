"""`hf-mlnmt describe`: what a model is, from its folder, its Hub name or its record."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from hf_mlnmt.cli.terminal import silence

PANEL = "Look into a model"


def describe(
    model: Annotated[
        str,
        typer.Argument(help="Model folder, Hub name, config.json, or a model trained here: multi30k-ende-short/m-10."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    whole: Annotated[
        bool, typer.Option("--all", help="Of many test sets also the signatures, of many training corpora each.")
    ] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub name.")] = None,
) -> None:
    """Show a model's architecture, parameters by part, config, tokenizer, generation settings and scores.

    Of the weights, names and shapes are read. What was not recorded is shown as "not recorded".

    Examples:

        hf-mlnmt describe runs/demo/average
        hf-mlnmt describe multi30k-ende-short/m-10
    """
    silence()

    from rich.console import Console

    from hf_mlnmt.reports.description import describe as describe_model
    from hf_mlnmt.reports.description import render

    description = describe_model(model, revision)
    if as_json:
        print(json.dumps(description, indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False, markup=False)
    for block in render(description, whole):
        console.print(block)
