"""`hf-mlnmt analyse masking`: what models lose without a collected layer or an auxiliary; auxiliaries by themselves."""

from enum import StrEnum
from typing import Any

from hf_mlnmt.cli import options
from hf_mlnmt.cli.evaluate import Language, Resamples, Seed, Trials
from hf_mlnmt.cli.options import TRANSLATION, decoding_options, option
from hf_mlnmt.cli.terminal import finish, load_systems, tell
from hf_mlnmt.generation.translating.options import DecodingOptions

Question = StrEnum("Question", ["layers", "auxiliaries", "decoders"])


@decoding_options(*TRANSLATION)
def masking(
    models: options.Models,
    source: options.Source,
    reference: options.Reference,
    output: options.OutputFolder,
    what: list[Question] | None = option(None, "Unless given: all that a model has.", "--what", "-w"),
    protocol: str = option("cased", "cased or classic."),
    language: Language = None,
    bootstrap: Resamples = 1000,
    trials: Trials = 10_000,
    seed: Seed = 12345,
    *,
    decoding: DecodingOptions,
    device: options.Device = None,
) -> None:
    """Translate a test set with each part of a model left out, and compare with the whole model.

    - layers: one collected encoder layer replaced by zeros (layer aggregation, m-00 .. m-11)
    - auxiliaries: one auxiliary's features replaced by zeros, and all of them (ms-<layers>-aif)
    - decoders: each auxiliary decoder by itself (ms-<layers>, with and without AIF)

    The translations are kept beside the figure.

    Example:

        hf-mlnmt analyse masking runs/m-10/average -s test.en -r test.de -o analysis
    """
    from hf_mlnmt.analysis.masking import masking_study
    from hf_mlnmt.common.languages import check_files
    from hf_mlnmt.evaluation.outputs import read_references, read_texts
    from hf_mlnmt.evaluation.scores import check_counts, scoring_options

    language = scoring_options([protocol], ["BLEU"], language, None, reference[0])["language"]
    for model in models:
        check_files(model.path, [source], reference, decoding.told)
    sources, references = read_texts(source), read_references(reference)
    check_counts(sources, references, [str(source), *map(str, reference)])
    how: dict[str, Any] = {"protocol": protocol, "language": language}
    how |= {"bootstrap": bootstrap, "trials": trials, "seed": seed}
    questions: Any = what or None
    study = masking_study(load_systems(models, device), sources, references, questions, decoding.given, tell, **how)
    study.note = f"{len(sources):,} sentences of {source.name}; † p < 0.05, ‡ p < 0.01"
    files = {"source": str(source), "references": [str(path) for path in reference]}
    finish(study, output, {**files, **how, "decoding": decoding.given})
