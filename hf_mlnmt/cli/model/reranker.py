"""`hf-mlnmt model reranker`: the weights of a reranker, fitted on a development set."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import SAMPLING, TRANSLATION, decoding_options, option
from hf_mlnmt.generation.translating.options import DecodingOptions


@decoding_options(*TRANSLATION, *SAMPLING, without=("seed",), progress=True)
def reranker(
    model: options.Model,
    source: options.Source,
    reference: Annotated[Path, option(..., "Their references.", "--reference", "-r")],
    output: Annotated[Path, options.output(..., "The file to write (JSON).")],
    feature: list[str] = option(
        ["score", "length"],
        "What candidates are scored by; repeat it: model, score, length, coverage, translation=MODEL, reverse=MODEL, "
        "language-model=MODEL, command=COMMAND; of a fused model translation-models, language-models.",
        metavar="NAME",
    ),
    metric: Literal["BLEU", "chrF"] = option("BLEU", "What of the development set is to become best."),
    samples: int = option(64, "With --sample: so many candidates of each sentence.", min=2, max=10_000),
    seed: int = option(1, "Of the search for weights, and of --sample.", min=0),
    device: options.Device = None,
    *,
    decoding: DecodingOptions,
) -> None:
    """Fit the weights of a reranker to a development set, for translate --rerank.

    The candidates of each sentence, all beams or samples, get the values of features; weights are searched whose best
    candidates have the best score. The file says what it was made from, and the scores.

    Example:

        hf-mlnmt model reranker en-de -s val.en -r val.de -o rerank.json -b 16 --feature score --feature reverse=de-en
    """
    options.use_machine()
    from dataclasses import replace

    from hf_mlnmt.analysis.tuning import make_reranker

    made = make_reranker(
        model,
        source,
        reference,
        output,
        feature,
        replace(decoding, seed=seed if decoding.do_sample else None),
        metric=metric,
        samples=samples,
        seed=seed,
        device=device,
        shown=decoding.progress,
    )
    said, weights = made["made_from"], ", ".join(f"{name} {weight:.3g}" for name, weight in made["features"].items())
    typer.echo(f"{output}: {weights}")
    typer.echo(
        f"{metric} of {source}: {said['search_alone']:.2f} as searched, {said['reranked']:.2f} reranked, "
        f"{said['reranked_by_weights_of_the_other_half']:.2f} by weights of the other half"
    )
