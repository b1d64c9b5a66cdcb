"""`hf-mlnmt model fuse`: translation models and language models as one translation model."""

from typing import Annotated

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import argument, option


def fuse(
    models: Annotated[list[str], argument(..., "Model folders or Hub names: translation models and language models.")],
    output: options.ModelToWrite,
    alpha: float = option(1.0, "Scale of the translation models, 0 or more."),
    beta: float = option(0.1, "Scale of the language models, 0 or more."),
    normalization: str = option("sequence", "symbol: the product is normalised at every token; sequence: never."),
    weight: list[float] | None = option(None, "One for each model, in order: repeat it. Default: equal within a kind."),
    force: options.Force = False,
) -> None:
    """Fuse translation models and language models of one target vocabulary: p_TM^alpha p_LM^beta.

    The result is a model folder like any other, which keeps alpha and beta; hf-mlnmt analyse fusion-grid finds good
    ones. A fused model among the models stands for its translation models. See docs/monolingual-fusion.md.

    Examples:

        hf-mlnmt model fuse runs/de-en/average runs/lm.en/average -o fused
        hf-mlnmt model fuse runs/seed1/average runs/seed2/average -o ensemble
    """
    from hf_mlnmt.cli.terminal import plain_console, silence
    from hf_mlnmt.common.files import check_new_folder
    from hf_mlnmt.generation.translating.fusing import fuse_folders

    silence()
    check_new_folder(output, force, "config.json")
    settings = {"alpha": alpha, "beta": beta, "normalization": normalization, "weights": weight}
    fuse_folders(models, output, plain_console().print, **settings)
    print(output)
