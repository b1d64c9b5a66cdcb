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
    Resamples,
    Seed,
    Source,
    SourceLanguage,
    TargetLanguage,
    Trials,
    decoding_options,
)

PANEL = "Score"


def compare(
    context: typer.Context,
    systems: Annotated[
        list[str],
        typer.Argument(
            help="Files of translations, or model folders; NAME=PATH gives a name, the same NAME several times is runs "
            "of several seeds. The first is the baseline."
        ),
    ],
    reference: Reference,
    source: Source = None,
    language: Language = None,
    protocol: Protocols = None,
    metric: Metrics = None,
    bootstrap: Resamples = 1000,
    trials: Trials = 10_000,
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
    html: Annotated[
        Path | None, typer.Option(help="Write one page here: tables, plots, every sentence with differences marked.")
    ] = None,
    groups: Annotated[
        str, typer.Option(help="Source lengths in words: wmt, iwslt, or where groups begin, such as 10,20,30.")
    ] = "iwslt",
    maps: Annotated[
        Path | None, typer.Option(help="For the page: a folder of `hf-mlnmt attention -w maps`, drawn side by side.")
    ] = None,
) -> None:
    """Compare systems on one test set: scores with 95 % intervals, paired bootstrap and approximate randomisation.

    Each system is compared with the first: is the difference more than chance? Examples, of two files of translations,
    and of two models, which translate the source first:

        hf-mlnmt compare base.de new.de --reference test.de
        hf-mlnmt compare base=runs/a/best new=runs/b/best --source test.en --reference test.de

    Of several seeds, means and tests over all of them; --html is one file with lengths, faults and every sentence:

        hf-mlnmt compare base=a1.de base=a2.de new=b1.de new=b2.de -r test.de -s test.en --html comparison.html

    Whole training runs that differ in the model alone: `hf-mlnmt compare-runs`.
    """
    from rich.console import Console

    from hf_mlnmt.analysis.outputs import read_starts
    from hf_mlnmt.evaluation import compare as compare_outputs
    from hf_mlnmt.evaluation import comparison_tables
    from hf_mlnmt.evaluation.outputs import load_system, name_systems, read_references, read_texts
    from hf_mlnmt.evaluation.scores import scoring_options
    from hf_mlnmt.files import check_file, write_json
    from hf_mlnmt.reports.compare_extras import curves_of, extras_of, read_maps
    from hf_mlnmt.reports.compare_page import write_page

    named = name_systems(systems)
    what = scoring_options(protocol, metric, language, target_language, reference[0])
    for path in filter(None, (output, html)):
        check_file(path)
    starts, drawn = read_starts(groups), read_maps(maps) if maps else {}
    references = read_references(reference)
    loaded = {
        name: [load_system(path, source, references, reference, **decoding_options(context)) for path in paths]
        for name, paths in named.items()
    }
    comparison = compare_outputs(
        {name: [run.lines for run in runs] for name, runs in loaded.items()},
        references,
        **what,
        bootstrap=bootstrap,
        trials=trials,
        seed=seed,
        jobs=jobs,
    )
    Console().print(*comparison_tables(comparison), sep="\n")
    if not output and not html:
        return
    sources = read_texts(source) if source else None
    firsts = {name: runs[0].lines for name, runs in loaded.items()}
    how = {"protocol": what["protocols"][0], "language": what["language"], "bootstrap": bootstrap, "seed": seed}
    extras = extras_of(firsts, references, sources, starts, **how)
    if output:
        decoding = {name: runs[0].decoding for name, runs in loaded.items() if runs[0].decoding}
        content = {**comparison.to_dict(), "decoding": decoding, **extras.to_dict()}
        print(f"Written to {write_json(output, content)}")
    if html:
        title = f"{', '.join(list(named)[:4])}{' …' if len(named) > 4 else ''} on {reference[0].name}"
        curves = curves_of({name: paths[0] for name, paths in named.items()})
        print(f"Written to {write_page(html, comparison, extras, title=title, curves=curves, maps=drawn)}")
