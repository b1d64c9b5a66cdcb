"""What commands that run a model are told of the machine, and of where the model comes from."""

from __future__ import annotations

import os
from typing import Annotated

import typer

PANEL = "Speed and machine"

Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1...; default: a GPU where there is one.", rich_help_panel=PANEL)
]
Dtype = Annotated[
    str, typer.Option(help="auto (as saved), float32, bfloat16, float16; int8 on a CPU.", rich_help_panel=PANEL)
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads, no more than there are cores.", rich_help_panel=PANEL)
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.", rich_help_panel=PANEL)]


def use_threads(threads: int | None) -> None:
    """Let PyTorch use so many threads of the CPU; more than there are cores only wait for one another."""
    if threads:
        import torch

        torch.set_num_threads(min(threads, os.cpu_count() or threads))
