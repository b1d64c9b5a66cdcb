"""`hf-mlnmt compare`: several systems against the first, with intervals and paired significance tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.cli.evaluate import (
    BatchTokens,
    Beams,
    Device,
    Language,
    LengthNormalization,
    LengthPenalty,
    Metrics,
    Protocols,
    Reference,
    Seed,
    Source,
    SourceLanguage,
    TargetLanguage,
    decoding_options,
    what_to_score,
)
from hf_mlnmt.errors import UserError


def compare(
    context: typer.Context,
    systems: Annotated[
        list[str],
        typer.Argument(
            help="Files of translations, or model folders; NAME=PATH gives a name. The first is the baseline."
        ),
    ],
    reference: Reference,
    source: Source = None,
    language: Language = None,
    protocol: Protocols = None,
    metric: Metrics = None,
    bootstrap: Annotated[int, typer.Option(min=1, help="Resamples of the paired bootstrap and the intervals.")] = 1000,
    trials: Annotated[int, typer.Option(min=1, help="Shufflings of approximate randomisation.")] = 10_000,
    seed: Seed = 12345,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Processes for the tests; the numbers do not depend on it.")
    ] = 1,
    num_beams: Beams = None,
    length_penalty: LengthPenalty = None,
    length_normalization: LengthNormalization = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    batch_tokens: BatchTokens = None,
    device: Device = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write everything as JSON here.")] = None,
) -> None:
    """Compare systems on one test set: scores with 95 % intervals, paired bootstrap and approximate randomisation.

    `hf-mlnmt compare base.de new.de --reference test.de` compares two files;
    `hf-mlnmt compare base=runs/a/best new=runs/b/best --source test.en --reference test.de` translates first.
    """
    from rich.console import Console

    from hf_mlnmt.evaluation import compare as compare_outputs
    from hf_mlnmt.evaluation import comparison_tables
    from hf_mlnmt.evaluation.systems import load_system, read_references
    from hf_mlnmt.files import write_json

    named = name_systems(systems)
    what = what_to_score(protocol, metric, language, reference[0])
    references = read_references(reference)
    loaded = {
        name: load_system(path, source, references, reference, **decoding_options(context))
        for name, path in named.items()
    }
    comparison = compare_outputs(
        {name: system.lines for name, system in loaded.items()},
        references,
        **what,
        bootstrap=bootstrap,
        trials=trials,
        seed=seed,
        jobs=jobs,
    )
    Console().print(*comparison_tables(comparison), sep="\n")
    if output:
        decoding = {name: system.decoding for name, system in loaded.items() if system.decoding}
        print(f"Written to {write_json(output, {**comparison.to_dict(), 'decoding': decoding})}")


def name_systems(arguments: list[str]) -> dict[str, str]:
    """{name: path} from 'NAME=PATH' or 'PATH' (its own name). UserError on fewer than two, or on one name twice."""
    if len(arguments) < 2:
        raise UserError(
            "compare needs a baseline and at least one other system; for one system use `hf-mlnmt evaluate`."
        )
    named: dict[str, str] = {}
    for argument in arguments:
        # A path that exists is a path, whatever characters it has.
        name, _, path = argument.partition("=") if not Path(argument).exists() else (argument, "", "")
        if name in named:
            raise UserError(f"system {name!r} is given twice; give each a name of its own with NAME=PATH.")
        named[name] = path or argument
    return named
