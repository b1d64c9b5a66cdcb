"""`hf-mlnmt describe`: shows the facts about a model, by its folder, Hub name or record, or about this machine."""

import json

from hf_mlnmt.cli.options import argument, option
from hf_mlnmt.cli.terminal import silence
from hf_mlnmt.common.errors import UserError

PANEL = "Look into a model"


def describe(
    model: str | None = argument(None, "Folder, Hub name, config.json, or a record: multi30k-ende-short/m-10."),
    as_json: bool = option(False, "Print JSON instead of tables.", "--json"),
    revision: str | None = option(None, "Branch, tag or commit of a Hub name."),
    machine: bool = option(False, "The processor, and which library multiplies."),
) -> None:
    """Show a model's system, paper, equations, parameters by part, config, tokenizer, generation settings and scores.

    Only the names and shapes of the weights are read. Facts that were not recorded are shown as "not recorded".

    Examples:

        hf-mlnmt describe multi30k-ende-short/m-10
        hf-mlnmt describe --machine
    """
    silence()
    if machine == (model is not None):
        raise UserError("describe: name a model, or say --machine.")

    from rich.console import Console

    from hf_mlnmt.reports.description import describe as describe_model
    from hf_mlnmt.reports.description import describe_machine, render, render_machine

    description = describe_machine() if model is None else describe_model(model, revision)
    if as_json:
        print(json.dumps(description, indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False, markup=False)
    for block in render_machine(description) if model is None else render(description):
        console.print(block)
