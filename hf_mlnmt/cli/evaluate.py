"""`hf-mlnmt evaluate`: scores of a model or of translations, perplexity, the matrix of all languages."""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import TRANSLATION, argument, decoding_options, option, refuse
from hf_mlnmt.cli.terminal import Progress, show, silence, tell
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.options import DecodingOptions

PANEL = "Score"

# Options of all commands that score.
Language = Annotated[
    str | None,
    option(..., "Code of the language that is scored. Default: --to, or the reference's.", "--language", "-l"),
]
Protocols = Annotated[
    list[str] | None, option(..., "cased or classic; again for both. Default: what the language has.")
]
Metrics = Annotated[list[str] | None, option(..., "BLEU, chrF or TER; again for more. Default: all.", "--metric", "-m")]
Tokenize = Annotated[str | None, option(..., "A tokenizer of sacreBLEU's for BLEU, such as flores200; cased alone.")]
Bootstrap = Annotated[int, option(..., "Resamples for the 95 % confidence intervals; 0: no intervals.", min=0)]
Resamples = Annotated[int, option(..., "Resamples of the paired bootstrap and the intervals.", min=1)]
Trials = Annotated[int, option(..., "Shufflings of approximate randomisation.", min=1)]
Seed = Annotated[int, option(..., "Seed of the resampling.", min=1)]
_of_files = partial(option, rich_help_panel="What is written")


@decoding_options(*TRANSLATION)
def evaluate(
    model: str | None = argument(None, "Model folder, or a model's name on the Hub; with --matrix a run's folder."),
    reference: list[Path] | None = option(
        None, "References (plain or packed); again for more. Of a perplexity: the texts.", "--reference", "-r"
    ),
    hypothesis: Path | None = option(None, "Translations to score (plain or packed).", "--hypothesis", "-i"),
    source: list[Path] | None = option(
        None, "Sentences to translate. Of a perplexity: those of each reference.", "--source", "-s"
    ),
    perplexity: bool = option(False, "How well the model predicts the references, given the sources."),
    matrix: bool = option(False, "The scores of a run of many languages, from each into each."),
    robustness: bool = option(False, "Also BLEU of the test set in CAPITALS, with typos, emoji... (a model's)."),
    language: Language = None,
    protocol: Protocols = None,
    metric: Metrics = None,
    tokenize: Tokenize = None,
    bootstrap: Bootstrap = 1000,
    seed: Seed = 12345,
    data: Path | None = option(None, "With --matrix, the recipe's data: counts wrong languages.", "--data", "-d"),
    save_translations: Path | None = _of_files(None, "Write the model's translations here too, one a line."),
    scores_file: Path | None = _of_files(
        None, "Of references as translations of --source: ln P and its score by length; .jsonl: tokens.", "--scores"
    ),
    output: Path | None = _of_files(
        None, "Results file (JSON) to write or add to. Of a matrix: a folder, else the run's.", "--output", "-o"
    ),
    name: str | None = _of_files(None, "The system's name in the results. Default: the model's or the file's."),
    test_set: str | None = _of_files(None, "The test set's name in the results. Default: the reference's file name."),
    *,
    decoding: DecodingOptions,
    device: options.Device = None,
) -> None:
    """Score a model, or a file of translations, against raw references.

    References and translations are raw text. The protocol "cased" scores them as they are, as sacrebleu does; "classic"
    lower-cases and Moses-tokenises both sides itself (docs/scores.md). Examples, first a model, then a file:

        hf-mlnmt evaluate MODEL --source test.en --reference test.de
        hf-mlnmt evaluate --hypothesis out.de --reference test.de

    With --robustness also its BLEU where the text is changed as people write: CAPITALS, typos, emoji (docs/scores.md).

    Perplexity, per subword and word and in bits per byte, under a language model, or under a translation model given
    the sources, each sentence by itself; and all pairs of a run of many languages (docs/multilingual.md):

        hf-mlnmt evaluate runs/lm.multi30k-de/average -r val.de -r test.de
        hf-mlnmt evaluate runs/transformer.multi30k-ende/average --perplexity -r val.de -s val.en
        hf-mlnmt evaluate runs/bridge-rnn.multi30k-many --matrix --data data/multi30k
    """
    from hf_mlnmt.evaluation.perplexity import is_language_model

    of_scores: dict[str, Any] = {"--hypothesis": hypothesis, "--name": name, "--language": language}
    of_scores |= {"--tokenize": tokenize, "--save-translations": save_translations, "--robustness": robustness}
    if matrix:
        others = {"--reference": reference, "--source": source, "--perplexity": perplexity, **of_scores}
        refuse(others | {"options of the search": decoding.given}, "--matrix does not read this. Leave it out.")
        _matrix(model, test_set, protocol or ["classic"], metric or ["bleu"], data, output)
        return
    refuse({"--data": data}, "the score of a test set does not read this. Leave it out.")
    if not reference:
        raise UserError("Give the references: --reference FILE.")
    if scores_file is not None:
        of_scores |= {"--protocol": protocol, "--metric": metric, "--output": output, "--perplexity": perplexity}
        refuse(of_scores, "--scores does not read this. Leave it out.")
        if model is None or len(source or []) != 1 or len(reference) != 1:
            raise UserError("--scores needs a model, one --source and one --reference, its translations.")
        _given(model, (source or [])[0], reference[0], scores_file, decoding, device)
        return
    if perplexity or (model is not None and not source and is_language_model(model)):
        if model is None:
            raise UserError("--perplexity is of a model: give its folder or name.")
        others = {**of_scores, "--protocol": protocol, "--metric": metric, "--test-set": test_set}
        searched = decoding.given.keys() - {"source_language", "target_language", "batch_tokens"}
        refuse(others | {"options of the search": searched}, "a perplexity does not read this. Leave it out.")
        _perplexity(model, reference, source or [], decoding, device, output)
        return
    if source and len(source) > 1:
        raise UserError(f"{len(source)} --source: a model translates one; give several with --perplexity.")

    from hf_mlnmt.common.files import check_file, write_text
    from hf_mlnmt.common.languages import language_in
    from hf_mlnmt.data.formats import check_output
    from hf_mlnmt.evaluation import open_results, score_protocols, score_tables
    from hf_mlnmt.evaluation.outputs import load_system, read_references
    from hf_mlnmt.evaluation.scores import scoring_options

    if (model is None) == (hypothesis is None):
        raise UserError("Give either a model (with --source) or --hypothesis FILE.")
    if hypothesis is not None and not hypothesis.is_file():
        raise UserError(f"{hypothesis}: no such file.")
    if hypothesis is not None and robustness:
        raise UserError("--robustness is of a model, which translates the changed text: give it, and --source.")
    if hypothesis is not None and save_translations:
        raise UserError("--save-translations is for a model; --hypothesis is a file already.")
    if bootstrap == 1:
        raise UserError("--bootstrap 1: an interval needs more resamples, 1000 are usual; 0 leaves it out.")
    what = scoring_options(protocol, metric, language, decoding.target_language, reference[0], tokenize)
    given = str(model or hypothesis)
    if save_translations:
        check_file(save_translations)
        check_output(save_translations)
    test_set = test_set or reference[0].name.removesuffix(".gz")
    results = open_results(output, name or Path(given).resolve().name, bool(name), test_set) if output else None
    references = read_references(reference)
    sources = source[0] if source else None
    system = load_system(given, sources, references, reference, decoding, device)
    if save_translations:
        write_text(save_translations, "".join(f"{line}\n" for line in system.lines))
    with Progress() as bars:
        how: dict[str, Any] = {"bootstrap": bootstrap, "seed": seed, "progress": bars.begin}
        scores = score_protocols(system.lines, references, **how, **what)
    show(*score_tables(scores))
    if robustness:
        from hf_mlnmt.evaluation.outputs import read_texts
        from hf_mlnmt.evaluation.robustness import robustness_table, score_changes
        from hf_mlnmt.generation import TranslationPipeline

        translate = partial(TranslationPipeline.from_pretrained(given, device=device), decoding=decoding, progress=True)
        codes = decoding.source_language or language_in(str(sources)), what["language"]
        found = score_changes(translate, read_texts(str(sources)), references, system.lines, codes, seed, tokenize)
        show(robustness_table({test_set: found}))
        if results:
            results.extra.setdefault("robustness", {})[test_set] = found
    if not what["language"] and not protocol:
        print("Classic scores too: give the target language with --language.")
    if results and output:
        results.add_scores(test_set, scores)
        results.add_system(system, shlex.join(["hf-mlnmt", *sys.argv[1:]]))
        print(f"Scores written to {results.write(output)}")


def _given(
    model: str, source: Path, reference: Path, output: Path, decoding: DecodingOptions, device: str | None
) -> None:
    import json

    from hf_mlnmt.common.files import check_file, write_text
    from hf_mlnmt.data.lines import read_lines
    from hf_mlnmt.generation import TranslationPipeline

    check_file(output)
    silence()
    texts, translations = list(read_lines(source)), list(read_lines(reference))
    if len(texts) != len(translations):
        raise UserError(f"{source} has {len(texts)} lines and {reference} {len(translations)}: give one for each.")
    found = TranslationPipeline.from_pretrained(model, device=device).score(texts, translations, decoding)
    lines = [f"{each.log_probability:.6f}\t{each.score:.6f}" for each in found]
    if ".jsonl" in output.suffixes:
        names = ("log_probability", "score", "tokens", "token_log_probabilities")
        lines = [json.dumps({name: getattr(each, name) for name in names}, ensure_ascii=False) for each in found]
    write_text(output, "".join(f"{line}\n" for line in lines))
    tell(f"{output}: ln P and score by length of {len(found):,} translations")


def _perplexity(
    model: str,
    files: list[Path],
    sources: list[Path],
    decoding: DecodingOptions,
    device: str | None,
    output: Path | None,
) -> None:
    from hf_mlnmt.common.files import check_file, write_json
    from hf_mlnmt.evaluation.perplexity import file_perplexities, table_of

    if output is not None:
        check_file(output)
    silence()
    with Progress() as bars:
        of_files = file_perplexities(model, files, sources, decoding, device, bars.begin)
    show(table_of(of_files))
    if output is not None:
        write_json(output, {"model": model, "perplexity": {name: found.to_dict() for name, found in of_files.items()}})


def _matrix(
    run: str | None, test: str | None, protocols: list[str], metrics: list[str], data: Path | None, output: Path | None
) -> None:
    from hf_mlnmt.common.files import write_json
    from hf_mlnmt.evaluation.figures import Panel, heat_maps, save
    from hf_mlnmt.reports.matrix import read_matrix

    if run is None:
        raise UserError("--matrix is of a run: give its folder.")
    if len(protocols) > 1 or len(metrics) > 1:
        raise UserError("--matrix: one table has one --protocol and one --metric.")
    matrix = read_matrix(run, test, protocols[0], metrics[0], data)
    show(matrix.table(), *([matrix.off_target_table()] if matrix.off_target else []))
    values = [[matrix.scores.get(f"{source}-{target}") for target in matrix.targets] for source in matrix.sources]
    panels = [Panel(f"{matrix.metric} ({matrix.protocol})", values, matrix.sources, matrix.targets)]
    folder = output or matrix.run
    written = [write_json(folder / "matrix.json", matrix.to_dict())]
    written += save(heat_maps(panels, "from", "to", matrix.metric), folder, "matrix")
    tell(", ".join(map(str, written)))
