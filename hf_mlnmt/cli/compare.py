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
)


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

    Each system is compared with the first: is the difference more than chance? Examples, of two files of translations,
    and of two models, which translate the source first:

        hf-mlnmt compare base.de new.de --reference test.de
        hf-mlnmt compare base=runs/a/best new=runs/b/best --source test.en --reference test.de

    Whole training runs that differ in the model alone: `hf-mlnmt compare-runs`.
    """
    from rich.console import Console

    from hf_mlnmt.evaluation import compare as compare_outputs
    from hf_mlnmt.evaluation import comparison_tables
    from hf_mlnmt.evaluation.outputs import load_system, name_systems, read_references
    from hf_mlnmt.evaluation.request import scoring_options
    from hf_mlnmt.files import check_file, write_json

    named = name_systems(systems)
    what = scoring_options(protocol, metric, language, target_language, reference[0])
    if output:
        check_file(output)
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
