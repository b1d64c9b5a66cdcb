"""`hf-mlnmt evaluate`: BLEU, chrF and TER of one model or one file of translations."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_mlnmt.errors import UserError

if TYPE_CHECKING:
    from hf_mlnmt.evaluation import Results
    from hf_mlnmt.evaluation.systems import SystemOutput

# `compare` takes these too.
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
        help="Two-letter code of the target language, for the classic protocol. "
        "Unless given, it is taken from the reference's name, as in test.de.gz.",
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
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", "-m", help="BLEU, chrF or TER; give it again for more. Unless given: all."),
]
Bootstrap = Annotated[int, typer.Option(min=0, help="Resamples for the 95 % confidence intervals; 0: none.")]
Seed = Annotated[int, typer.Option(min=1, help="Seed of the resampling.")]
Beams = Annotated[int | None, typer.Option("--beams", "-b", min=1, help="Beam size. Unless given: the model's.")]
LengthPenalty = Annotated[float | None, typer.Option(help="Exponent of the length normalisation.")]
LengthNormalization = Annotated[str | None, typer.Option(help="generate, length, length+1 or gnmt (docs/decoding.md).")]
SourceLanguage = Annotated[str | None, typer.Option(help="Source language code of a multilingual model.")]
TargetLanguage = Annotated[str | None, typer.Option(help="Target language code of a multilingual model.")]
BatchTokens = Annotated[int | None, typer.Option(min=1, help="Source tokens in one batch.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ... Unless given: a GPU if there is one.")]

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
    """The options of this command that say how a model translates."""
    return {name: context.params[name] for name in DECODING}


def what_to_score(
    protocols: list[str] | None, metrics: list[str] | None, language: str | None, reference: Path
) -> dict[str, Any]:
    """score()'s arguments from the command's; wrong ones are found before anything is translated."""
    from hf_mlnmt.evaluation.protocols import METRICS, Protocol, choose_protocols, metric_named
    from hf_mlnmt.evaluation.systems import language_of

    if language:
        Protocol("classic", language)
    language = language or language_of(reference)
    chosen = [how.name for how in choose_protocols(protocols, language)]
    return {"protocols": chosen, "language": language, "metrics": [metric_named(name) for name in metrics or METRICS]}


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
    save_translations: Annotated[Path | None, typer.Option(help="Write the translations here, one a line.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Results file (JSON) to write, or to add this test set to.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The system's name there.")] = None,
    test_set: Annotated[
        str | None,
        typer.Option(help="The test set's name there. Unless given: the reference's file name."),
    ] = None,
) -> None:
    """Score a model, or a file of translations, against raw references.

    `hf-mlnmt evaluate MODEL --source test.en --reference test.de` translates and scores;
    `hf-mlnmt evaluate --hypothesis out.de --reference test.de` scores a file.

    References and translations are raw text: do not lower-case or tokenise them, the classic protocol does it itself.
    """
    from rich.console import Console

    from hf_mlnmt.evaluation import score_protocols, score_tables
    from hf_mlnmt.evaluation.systems import load_system, read_references
    from hf_mlnmt.files import write_text

    if (model is None) == (hypothesis is None):
        raise UserError("Give either a model (with --source) or --hypothesis FILE.")
    if hypothesis is not None and not hypothesis.is_file():
        raise UserError(f"{hypothesis}: no such file.")
    what = what_to_score(protocol, metric, language, reference[0])
    results = _open_results(output, name or Path(str(model or hypothesis)).resolve().name, bool(name))
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
        _add_system(results, system)
        print(f"Scores written to {results.write(output)}")


def _open_results(path: Path | None, name: str, named: bool) -> Results | None:
    """The results file, old or new. It is opened before decoding, so that its errors cost no time."""
    from hf_mlnmt.evaluation import Results, read_results

    if path is None:
        return None
    if not path.exists():
        return Results(system=name)
    results = read_results(path)
    if named and results.system != name:
        raise UserError(f"{path}: holds the results of {results.system!r}, not of {name!r}. Give another --output.")
    return results


def _add_system(results: Results, system: SystemOutput) -> None:
    """What this run knows about the system; what training has written stays."""
    results.command = results.command or shlex.join(["hf-mlnmt", *sys.argv[1:]])
    results.parameters = results.parameters or system.parameters
    results.decoding = system.decoding or results.decoding
