"""`hf-mlnmt domains`: every system on several test sets, and language models on their references."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hf_mlnmt.cli.evaluate import (
    BatchTokens,
    Beams,
    Device,
    Language,
    LengthPenalty,
    Metrics,
    Protocol,
    Resamples,
    Seed,
    Trials,
    decoding_options,
)
from hf_mlnmt.cli.options import OutputFolder
from hf_mlnmt.cli.options import by_name as name_models
from hf_mlnmt.cli.terminal import finish, tell
from hf_mlnmt.errors import UserError

PANEL = "Score"


def domains(
    context: typer.Context,
    systems: Annotated[
        list[str],
        typer.Argument(
            help="Model folders, or files of translations, with {test} for the test set's name; NAME=PATH gives a "
            "name. The first is the baseline."
        ),
    ],
    test: Annotated[list[str], typer.Option("--test", "-t", help="NAME=SOURCE,REFERENCE, once for each test set.")],
    output: OutputFolder,
    language_model: Annotated[
        list[str] | None,
        typer.Option("--lm", help="Also the perplexity of the first references: a language model, or NAME=PATH."),
    ] = None,
    protocol: Protocol = "cased",
    metric: Metrics = None,
    language: Language = None,
    bootstrap: Resamples = 1000,
    trials: Trials = 10_000,
    seed: Seed = 12345,
    num_beams: Beams = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = None,
    device: Device = None,
) -> None:
    """Score systems on test sets of several domains: JSON, csv, png and svg in the folder --output.

    A line for each system, a column for each test set; on each, tests against the first system as `compare` does them.

    Examples:

        hf-mlnmt domains base=runs/a/average new=runs/b/average -t news=news.en,news.de -t talks=talks.en,talks.de \\
            --lm runs/lm/average -o analysis

        hf-mlnmt domains base=out/base.{test}.de new=out/new.{test}.de -t news=news.en,news.de -o analysis
    """
    from hf_mlnmt.files import check_folder_name

    check_folder_name(output)

    from hf_mlnmt.analysis.domains import domain_study, read_tests
    from hf_mlnmt.evaluation.outputs import load_system, read_references
    from hf_mlnmt.evaluation.scores import scoring_options

    tests, named = read_tests(test), name_models(systems)
    asked = scoring_options([protocol], metric, language, None, Path(next(iter(tests.values())).references[0]))
    references = {name: read_references(one.references) for name, one in tests.items()}
    outputs: dict[str, dict[str, list[str]]] = {}
    for name, one in tests.items():
        outputs[name] = {}
        for system, path in named.items():
            tell(f"{name}: {system}")
            place, known = path.replace("{test}", name), references[name]
            found = load_system(place, one.source, known, one.references, **decoding_options(context))
            outputs[name][system] = found.lines
    perplexities = _perplexities(name_models(language_model or []), references, device)
    how = {"bootstrap": bootstrap, "trials": trials, "seed": seed, **asked}
    settings = {"tests": test, "systems": named, "language_models": language_model or [], **how}
    finish(domain_study(outputs, references, perplexities, **how), output, settings)


def _perplexities(models: dict[str, str], references: dict[str, list[list[str]]], device: str | None) -> Any:
    from hf_mlnmt.evaluation.perplexity import load_scored, perplexity

    found: dict[str, dict[str, Any]] = {test: {} for test in references}
    for name, path in models.items():
        network, tokenizers = load_scored(path, device)
        if network.config.is_encoder_decoder:
            raise UserError(f"--lm {path}: a translation model; for its perplexity: hf-mlnmt perplexity --sources.")
        for test, lines in references.items():
            tell(f"{test}: {name}")
            try:
                found[test][name] = perplexity(network, tokenizers, lines[0])
            except UserError as error:
                raise UserError(f"{test}: {name}: {error}") from error
    return found
