"""`hf-mlnmt outputs`: translations by source length, what is wrong with them, and where two systems differ most."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hf_mlnmt.cli.evaluate import (
    BatchTokens,
    Beams,
    Bootstrap,
    Device,
    Language,
    LengthPenalty,
    Protocol,
    Reference,
    Seed,
    decoding_options,
)
from hf_mlnmt.cli.options import OutputFolder
from hf_mlnmt.cli.options import by_name as name_models
from hf_mlnmt.cli.terminal import finish
from hf_mlnmt.errors import UserError

PANEL = "Look into a model"


def outputs(
    context: typer.Context,
    systems: Annotated[
        list[str], typer.Argument(help="Files of translations, or model folders; NAME=PATH gives a name.")
    ],
    source: Annotated[Path, typer.Option("--source", "-s", help="Source sentences (text or .gz).")],
    reference: Reference,
    output: OutputFolder,
    groups: Annotated[
        str, typer.Option("--groups", "-g", help="Source lengths: wmt, iwslt, or where groups begin, such as 10,20,30.")
    ] = "wmt",
    tokenizer: Annotated[
        str | None, typer.Option(help="Count lengths in this model's source subwords. Unless given: in words.")
    ] = None,
    languages: Annotated[
        list[str] | None,
        typer.Option("--language-text", help="XX=FILE, text of a further language that outputs may be in by mistake."),
    ] = None,
    differences: Annotated[int, typer.Option(min=0, help="Sentences to show each way, of each system.")] = 20,
    protocol: Protocol = "cased",
    language: Language = None,
    bootstrap: Bootstrap = 1000,
    seed: Seed = 12345,
    num_beams: Beams = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = None,
    device: Device = None,
) -> None:
    """Look at translations beyond one score: JSON, csv, png and svg in the folder --output.

    - lengths: BLEU and chrF by source length, with counts and intervals
    - statistics: length ratio, and which outputs are empty, copied, repeated, untranslated, or in the wrong language
    - differences: the sentences where each further system gains and loses most against the first

    Example:

        hf-mlnmt outputs base=a.de new=b.de -s test.en -r test.de -o analysis --tokenizer runs/base/average
    """
    from hf_mlnmt.files import check_folder_name

    check_folder_name(output)

    from hf_mlnmt.analysis.outputs import difference_study, length_study, read_starts, source_lengths, statistics_study
    from hf_mlnmt.evaluation.outputs import load_system, read_references, read_texts
    from hf_mlnmt.evaluation.scores import check_counts, scoring_options

    starts = read_starts(groups)
    asked = scoring_options([protocol], ["BLEU"], language, None, reference[0])
    sources, references = read_texts(source), read_references(reference)
    check_counts(sources, references, [str(source), *map(str, reference)])
    further = dict(_language_text(argument) for argument in languages or [])
    texts = {name: read_texts(path) for name, path in further.items()}
    found = {
        name: load_system(path, source, references, reference, **decoding_options(context)).lines
        for name, path in name_models(systems).items()
    }
    lengths = source_lengths(sources, tokenizer)
    how: Any = {"protocol": protocol, "language": asked["language"], "bootstrap": bootstrap, "seed": seed}
    settings = {"source": str(source), "references": [str(path) for path in reference], **how}
    unit = f"subwords of {tokenizer}" if tokenizer else "words"
    study = length_study(found, references, lengths, starts, "subwords" if tokenizer else "words", **how)
    finish(study, output, {**settings, "groups": starts, "unit": unit})
    finish(statistics_study(found, sources, references, texts), output, {**settings, "language_texts": further})
    if len(found) > 1 and differences:
        finish(difference_study(found, sources, references, differences), output, settings)


def _language_text(argument: str) -> tuple[str, str]:
    name, given, path = argument.partition("=")
    if not given or not name:
        raise UserError(f"--language-text {argument}: expected XX=FILE, a language and a file of its sentences.")
    return name, path
