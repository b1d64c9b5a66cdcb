"""`hf-mlnmt masking`: what models lose without a collected layer or an auxiliary, and what auxiliaries can do alone."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from hf_mlnmt.cli.analysing import Device, Models, OutputFolder, SourceFile, finish, load_systems, tell
from hf_mlnmt.cli.evaluate import BatchTokens, Beams, Language, LengthPenalty, Reference, Seed
from hf_mlnmt.errors import UserError


class Question(str, Enum):  # noqa: UP042 (typer shows the members of a str enum)
    """What can be left out of a model."""

    layers = "layers"
    auxiliaries = "auxiliaries"
    decoders = "decoders"


def masking(
    models: Models,
    source: SourceFile,
    reference: Reference,
    output: OutputFolder,
    what: Annotated[
        list[Question] | None, typer.Option("--what", "-w", help="Unless given: all that a model has.")
    ] = None,
    protocol: Annotated[str, typer.Option("--protocol", "-p", help="cased or classic.")] = "cased",
    language: Language = None,
    bootstrap: Annotated[int, typer.Option(min=1, help="Resamples of the paired bootstrap.")] = 1000,
    trials: Annotated[int, typer.Option(min=1, help="Shufflings of approximate randomisation.")] = 10_000,
    seed: Seed = 12345,
    num_beams: Beams = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = None,
    device: Device = None,
) -> None:
    """Translate a test set with each part of a model left out, and compare with the whole model.

    - layers: one collected encoder layer replaced by zeros (layer aggregation, m-00 .. m-11)
    - auxiliaries: one auxiliary's features replaced by zeros, and all of them (ms-<layers>-aif)
    - decoders: each auxiliary decoder by itself (ms-<layers>, with and without AIF)

    The translations are kept beside the figure.

    Example:

        hf-mlnmt masking runs/m-10/average -s test.en -r test.de -o analysis
    """
    from hf_mlnmt.files import check_folder_name

    check_folder_name(output)

    from hf_mlnmt.analysis.masking_study import masking_study
    from hf_mlnmt.evaluation.outputs import read_references, read_texts
    from hf_mlnmt.evaluation.request import scoring_options

    asked = scoring_options([protocol], ["BLEU"], language, None, reference[0])
    sources, references = read_texts(source), read_references(reference)
    if len(sources) != len(references[0]):
        raise UserError(f"{source} has {len(sources)} lines, {reference[0]} {len(references[0])}: expected the same.")
    options: dict[str, Any] = {"num_beams": num_beams, "length_penalty": length_penalty, "batch_tokens": batch_tokens}
    decoding = {key: value for key, value in options.items() if value is not None}
    how: Any = {
        "protocol": protocol,
        "language": asked["language"],
        "bootstrap": bootstrap,
        "trials": trials,
        "seed": seed,
    }
    questions: Any = [question.value for question in what] if what else None
    study = masking_study(load_systems(models, device), sources, references, questions, decoding, tell, **how)
    files = {"source": str(source), "references": [str(path) for path in reference]}
    finish(study, output, {**files, **how, "decoding": decoding})
