"""`hf-mlnmt fuse`: translation models and language models as one translation model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def fuse(
    models: Annotated[
        list[str], typer.Argument(help="Model folders or Hub names: translation models and language models.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model folder to write.")],
    alpha: Annotated[float, typer.Option(help="Scale of the translation models, 0 or more.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Scale of the language models, 0 or more.")] = 0.1,
    normalization: Annotated[
        str,
        typer.Option(
            help="symbol: the product is normalised at every token; sequence: never, which the thesis favours."
        ),
    ] = "sequence",
    weight: Annotated[
        list[float] | None,
        typer.Option(
            "--weight", "-w", help="One for each model, in their order: repeat it. Default: equal within a kind."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the output folder if it is a model's.")] = False,
) -> None:
    """Fuse translation models and language models of one target vocabulary: p_TM^alpha p_LM^beta.

    The result is a model folder like any other. alpha and beta are kept in it, and can be changed with every call
    (hf-mlnmt translate --alpha --beta); hf-mlnmt fusion-grid finds good ones. A fused model among the models stands for
    its translation models, so that another language model can take the place of its own. See docs/monolingual.md.

    Examples:

        hf-mlnmt fuse runs/de-en/average runs/lm.en/average -o fused
        hf-mlnmt fuse runs/seed1/average runs/seed2/average -o ensemble
        hf-mlnmt fuse fused runs/other-lm.en/average --normalization symbol -o other
    """
    from rich.console import Console
    from transformers.utils import logging

    from hf_mlnmt.files import check_new_folder
    from hf_mlnmt.generation.fusing import fuse_folders

    logging.disable_progress_bar()
    check_new_folder(output, force, "config.json")
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    settings = {"alpha": alpha, "beta": beta, "normalization": normalization, "weights": weight}
    fuse_folders(models, output, console.print, **settings)
    print(output)
