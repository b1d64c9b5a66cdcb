"""Work on models: average and fuse them, drop auxiliary decoders, calibrate confidences, change a vocabulary."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import SAMPLING, TRANSLATION, argument, decoding_options, option
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.options import DecodingOptions

PANEL = "Train"


def add_language(
    model: options.Model,
    output: options.ModelToWrite,
    code: list[str] | None = option(None, "New codes, as the model's are written: gag_Latn; several."),
    like: list[str] | None = option(None, "For each new code a near language that the model has: tur_Latn."),
    text: Annotated[Path | None, option(..., "Text of the new languages, one sentence a line.")] = None,
    characters: bool = option(False, "Add the characters of the text that the vocabulary lacks."),
    pieces: int = option(0, "Add so many pieces, learnt from the text.", min=0),
    force: options.Force = False,
) -> None:
    """Add languages or letters to the vocabulary of a trained model: NLLB, mBART-50, MADLAD, multilingual Marian.

    The embedding of a code begins as the near language's, of a character as its base letter's, of a piece as the mean
    of its parts. All old ids stay. The folder loads in Transformers as the model did; a training teaches what is new:
    hf-mlnmt train --pair ... --init-from OUTPUT.

    Example:

        hf-mlnmt model add-language facebook/nllb-200-distilled-600M --code gag_Latn --like tur_Latn -o nllb-gag
    """
    from hf_mlnmt.common.files import atomic_folder, check_new_folder
    from hf_mlnmt.convert.vocabulary_changes import add_languages

    codes, near = code or [], like or []
    if len(codes) != len(near):
        raise UserError(f"{len(codes)} --code and {len(near)} --like: each new code needs a near language.")
    check_new_folder(output, force, "config.json")
    with atomic_folder(output) as folder:
        made = add_languages(model, folder, dict(zip(codes, near, strict=True)), text, characters, pieces)
    for sign, (count, words) in made.characters.items():
        has = "added" if sign in made.entries else "not in the vocabulary (--characters adds it)"
        typer.echo(f"{sign} U+{ord(sign):04X}: {count:,} times, as in {', '.join(words)}: {has}", err=True)
    for token, number in made.codes.items():
        typer.echo(f"{token}: id {number}", err=True)
    learnt = len(made.entries) - sum(len(entry) == 1 for entry in made.entries)
    if pieces:
        first = ", ".join(made.entries[-learnt:][:5]) if learnt else "none"
        typer.echo(f"{learnt:,} pieces learnt: {first} ...", err=True)


def average(
    checkpoints: Annotated[list[Path], argument(..., "Model or checkpoint folders; or one run's folder, with --last.")],
    output: options.ModelToWrite,
    last: int | None = option(None, "Take the last N checkpoints of the run's folder.", min=1),
    force: options.Force = False,
) -> None:
    """Average the weights of checkpoints of one architecture.

    Config, tokenizers and generation settings are those of the last checkpoint named; results.json keeps the languages.

    Example:

        hf-mlnmt model average runs/a --last 5 -o average-of-5
    """
    from hf_mlnmt.common.files import check_new_folder
    from hf_mlnmt.training.checkpoints import checkpoints_to_average, write_model

    check_new_folder(output, force, "config.json")
    folders = checkpoints_to_average(checkpoints, last)
    write_model(output, folders[-1], folders)
    typer.echo(f"{output}: the average of {', '.join(map(str, folders))}", err=True)


@decoding_options(*TRANSLATION, split="sentences")
def calibrate(
    model: Annotated[Path, argument(..., "Model folder: a run's average/ or best/.")],
    source: options.Source,
    reference: Annotated[Path, options.option(..., "Their references.", "--reference", "-r")],
    *,
    decoding: DecodingOptions,
    device: options.Device = None,
) -> None:
    """Fit confidences and the usual ratio of lengths to a development set; save both in generation_config.json.

    The sources are translated with the usual options and compared with the references; `translate --confidence` then
    shows how sure the model is of each translation, and `--summary` of a whole file. From the ratio of lengths more
    omissions are seen. Take 100 sentences or more that the model was not trained on.

    Example:

        hf-mlnmt model calibrate runs/demo/average --source val.en.gz --reference val.de.gz
    """
    options.use_machine()
    from hf_mlnmt.generation.choosing.confidence import calibrate_folder

    found = calibrate_folder(model, source, reference, decoding, device)
    typer.echo(f"{model}: calibrated on {found.sentences:,} sentences", err=True)


def drop_auxiliaries(
    model: Annotated[Path, argument(..., "Model folder of a system ms-...: a run's average/ or best/.")],
    output: options.ModelToWrite,
    auxiliary: int | None = option(
        None, "Take the auxiliary decoder on this encoder layer, not the main one.", metavar="LAYER", min=1
    ),
    force: options.Force = False,
) -> None:
    """Drop the auxiliary decoders of a model with multi-level supervision: a smaller model with the same translations.

    With auxiliary information fusion the main decoder reads the auxiliary decoders, so they cannot be dropped; each can
    still be written as a model of its own by `--auxiliary`.

    Example:

        hf-mlnmt model drop-auxiliaries runs/ms-12.multi30k-ende/average -o plain
    """
    from hf_mlnmt.common.files import check_new_folder
    from hf_mlnmt.export import write_single_decoder

    check_new_folder(output, force, "config.json")
    write_single_decoder(model, output, auxiliary)
    what = "the main decoder" if auxiliary is None else f"the auxiliary decoder on encoder layer {auxiliary}"
    typer.echo(f"{output}: {model} with {what} alone", err=True)


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
    values. Of a fused model among the models only the translation models are used. See docs/monolingual-fusion.md.

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

    The features of each sentence's candidates, all beams or samples, are computed; weights are searched whose chosen
    candidates have the best score. The file records weights, scores, and what it was made from.

    Example:

        hf-mlnmt model reranker en-de -s val.en -r val.de -o rerank.json -b 16 --feature score --feature reverse=de-en
    """
    options.use_machine()
    from hf_mlnmt.analysis.tuning import make_reranker

    decoding = replace(decoding, seed=seed if decoding.do_sample else None)
    how: dict[str, Any] = {"metric": metric, "samples": samples, "seed": seed, "device": device}
    made = make_reranker(model, source, reference, output, feature, decoding, shown=decoding.progress, **how)
    said, weights = made["made_from"], ", ".join(f"{name} {weight:.3g}" for name, weight in made["features"].items())
    typer.echo(f"{output}: {weights}")
    typer.echo(
        f"{metric} of {source}: {said['search_alone']:.2f} as searched, {said['reranked']:.2f} reranked, "
        f"{said['reranked_by_weights_of_the_other_half']:.2f} by weights of the other half"
    )


def trim(
    model: options.Model,
    text: Annotated[list[Path], option(..., "Text of every language to keep, one sentence a line; several files.")],
    output: options.ModelToWrite,
    languages: list[str] | None = option(None, "The codes to keep; default: all that the model has."),
    force: options.Force = False,
) -> None:
    """Remove the subwords that texts do not use from a model: a smaller file, a faster search, the same translations.

    Subwords of the texts stay, and single characters, digits and punctuation, which spell everything else. The folder
    loads in Transformers as the model did, before a training or after it.

    Example:

        hf-mlnmt model trim facebook/nllb-200-distilled-600M --text a.en a.mk --languages eng_Latn mkd_Cyrl -o en-mk
    """
    from hf_mlnmt.common.files import atomic_folder, check_new_folder
    from hf_mlnmt.convert import vocabulary_changes

    check_new_folder(output, force, "config.json")
    with atomic_folder(output) as folder:
        made = vocabulary_changes.trim(model, text, folder, languages)
    for kind, (before, after) in {"entries": made.entries, "parameters": made.parameters}.items():
        typer.echo(f"{kind:<12}{before:>14,} -> {after:,} ({after / before:.0%})", err=True)
    typer.echo(f"{'one forward':<12}{1000 * made.seconds[0]:>11.0f} ms -> {1000 * made.seconds[1]:.0f} ms", err=True)
    for name, share in made.shares.items():
        typer.echo(f"{share:.2%} of the lines of {name} are cut into the same subwords as before", err=True)
