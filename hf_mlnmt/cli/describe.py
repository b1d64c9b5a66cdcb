"""`hf-mlnmt describe`: what a model is, from its folder, its Hub name or its record."""

from __future__ import annotations

from typing import Annotated

import typer

PANEL = "Look into a model"


def describe(
    model: Annotated[
        str,
        typer.Argument(
            help="Model folder, Hub name, or record: a name as transformer.multi30k-ende, or modeling/<name>.json."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    card: Annotated[
        bool,
        typer.Option(
            "--card", help="Print the model card of a record (Markdown), without what papers report of the system."
        ),
    ] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub name.")] = None,
) -> None:
    """Show a model's architecture, parameters by part, config, tokenizer, generation settings and scores.

    The weights are not read. What was not recorded is shown as "not recorded".

    Examples:

        hf-mlnmt describe runs/demo/average
        hf-mlnmt describe modeling/transformer.multi30k-ende.json --card
    """
    import json
    import sys
    from pathlib import Path

    from transformers.utils import logging

    from hf_mlnmt.errors import UserError

    logging.set_verbosity_error()
    if card:
        from hf_mlnmt.reports.record_cards import card_for_record
        from hf_mlnmt.zoo.records import record_path, stems

        path = record_path("modeling", model) if model in stems() else Path(model)
        if path.suffix != ".json" or path.parent.name != "modeling":
            raise UserError(
                f"--card {model}: give a record, modeling/<stem>.json; a model folder's card is its README.md."
            )
        sys.stdout.write(card_for_record(path.name.removesuffix(".json"), path.parent.parent))
        return
    from rich.console import Console

    from hf_mlnmt.reports.description import describe as describe_model
    from hf_mlnmt.reports.rendering import render

    description = describe_model(model, revision)
    if as_json:
        print(json.dumps(description, indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False, markup=False)
    for block in render(description):
        console.print(block)
