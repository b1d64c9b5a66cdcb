"""`hf-mlnmt evaluate`: BLEU, chrF and TER of one model or one file of translations."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_mlnmt.errors import UserError

PANEL = "Score"

# Other commands that score take these too.
Reference = Annotated[
    list[Path],
    typer.Option("--reference", "-r", help="Raw references (text or .gz); give it again for more."),
]
Source = Annotated[Path | None, typer.Option("--source", "-s", help="Sentences to translate (text or .gz).")]
Language = Annotated[
    str | None,
    typer.Option(
        "--language",
        "-l",
        help="Two-letter code of the language that is scored, for the classic protocol. "
        "Unless given: --target-language, or the reference's name, as in test.de.gz.",
    ),
]
Protocols = Annotated[
    list[str] | None,
    typer.Option(
        "--protocol",
        "-p",
        help="cased or classic; give it again for both. Unless given: both, or cased alone without a language.",
    ),
]
Protocol = Annotated[str, typer.Option("--protocol", "-p", help="cased or classic.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", "-m", help="BLEU, chrF or TER; give it again for more. Unless given: all."),
]
Bootstrap = Annotated[int, typer.Option(min=0, help="Resamples for the 95 % confidence intervals; 0: no intervals.")]
Resamples = Annotated[int, typer.Option(min=1, help="Resamples of the paired bootstrap and the intervals.")]
Trials = Annotated[int, typer.Option(min=1, help="Shufflings of approximate randomisation.")]
Seed = Annotated[int, typer.Option(min=1, help="Seed of the resampling.")]
_MODELS = "How a model translates (unless given: as its generation_config.json says)"
Beams = Annotated[int | None, typer.Option("--beams", "-b", min=1, help="Beam size.", rich_help_panel=_MODELS)]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Exponent of the length normalisation.", rich_help_panel=_MODELS)
]
LengthNormalization = Annotated[
    str | None,
    typer.Option(help="Its formula: generate, length, length+1 or gnmt (docs/decoding.md).", rich_help_panel=_MODELS),
]
SourceLanguage = Annotated[
    str | None, typer.Option(help="Of a multilingual model: code of the language to read.", rich_help_panel=_MODELS)
]
TargetLanguage = Annotated[
    str | None,
    typer.Option(help="Of a multilingual model: code of the language to translate into.", rich_help_panel=_MODELS),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        min=1, help="Source tokens in one batch, padding included; 4096 unless given.", rich_help_panel=_MODELS
    ),
]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda, cuda:1, ... Unless given: a GPU if there is one.", rich_help_panel=_MODELS),
]

_FILES = "What is written"
DECODING = (
    "num_beams",
    "length_penalty",
    "length_normalization",
    "source_language",
    "target_language",
    "batch_tokens",
    "device",
)


def decoding_options(context: typer.Context) -> dict[str, Any]:
    """The options of this command that say how a model translates, as far as it has them."""
    return {name: context.params[name] for name in DECODING if name in context.params}


def evaluate(
    context: typer.Context,
    reference: Reference,
    model: Annotated[str | None, typer.Argument(help="Model folder, or a model's name on the Hub.")] = None,
    hypothesis: Annotated[
        Path | None,
        typer.Option("--hypothesis", "-i", help="Translations to score (text or .gz)."),
    ] = None,
    source: Source = None,
    language: Language = None,
    protocol: Protocols = None,
    metric: Metrics = None,
    bootstrap: Bootstrap = 1000,
    seed: Seed = 12345,
    num_beams: Beams = None,
    length_penalty: LengthPenalty = None,
    length_normalization: LengthNormalization = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    batch_tokens: BatchTokens = None,
    device: Device = None,
    save_translations: Annotated[
        Path | None,
        typer.Option(help="Write the model's translations to this file too, one a line.", rich_help_panel=_FILES),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Results file (JSON) to write, or to add this test set to.", rich_help_panel=_FILES
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the system in the results file. Unless given: the model's or the file's.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    test_set: Annotated[
        str | None,
        typer.Option(
            help="Name of the test set in the results file. Unless given: the reference's file name.",
            rich_help_panel=_FILES,
        ),
    ] = None,
) -> None:
    """Score a model, or a file of translations, against raw references.

    References and translations are raw text: do not lower-case or tokenise them. The protocol "cased" scores them as
    they are, as the sacrebleu command does; "classic" lower-cases and Moses-tokenises both sides itself, as many older
    papers do. docs/scores.md says which to compare with what.

    Examples, first a model (which translates the source), then a file of translations:

        hf-mlnmt evaluate MODEL --source test.en --reference test.de
        hf-mlnmt evaluate --hypothesis out.de --reference test.de
    """
    from rich.console import Console

    from hf_mlnmt.evaluation import open_results, score_protocols, score_tables
    from hf_mlnmt.evaluation.outputs import load_system, read_references
    from hf_mlnmt.evaluation.scores import scoring_options
    from hf_mlnmt.files import check_file, write_text

    if (model is None) == (hypothesis is None):
        raise UserError("Give either a model (with --source) or --hypothesis FILE.")
    if hypothesis is not None and not hypothesis.is_file():
        raise UserError(f"{hypothesis}: no such file.")
    if hypothesis is not None and save_translations:
        raise UserError("--save-translations is for a model; --hypothesis is a file already.")
    if bootstrap == 1:
        raise UserError("--bootstrap 1: an interval needs more resamples, 1000 are usual; 0 leaves it out.")
    what = scoring_options(protocol, metric, language, target_language, reference[0])
    if save_translations:
        check_file(save_translations)
    results = (
        open_results(output, name or Path(str(model or hypothesis)).resolve().name, bool(name)) if output else None
    )
    references = read_references(reference)
    system = load_system(str(model or hypothesis), source, references, reference, **decoding_options(context))
    if save_translations:
        write_text(save_translations, "".join(line.replace("\n", " ") + "\n" for line in system.lines))
    scores = score_protocols(system.lines, references, bootstrap=bootstrap, seed=seed, **what)
    console = Console()
    console.print(*score_tables(scores), sep="\n")
    if not what["language"] and not protocol:
        console.print("Classic scores too: give the target language with --language.", style="dim")
    if results and output:
        results.add_scores(test_set or reference[0].name.removesuffix(".gz"), scores)
        results.add_system(system, shlex.join(["hf-mlnmt", *sys.argv[1:]]))
        print(f"Scores written to {results.write(output)}")
