"""Analyse models: attention, scores without a part of the model, probes, embeddings, costs, curves of trainings."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.evaluate import Language, Resamples, Seed, Trials
from hf_mlnmt.cli.options import (
    TRANSLATION,
    NamedPath,
    argument,
    by_name,
    decoding_options,
    named_argument,
    named_option,
    option,
)
from hf_mlnmt.cli.terminal import finish, load_systems, print_rows, silence, tell
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.options import DecodingOptions

PANEL = "Look into a model"


What = StrEnum("What", ["distance", "entropy", "divergence", "dependency", "alignments", "maps", "coverage"])


@decoding_options(num_beams=5)
def attention(
    models: options.Models,
    source: options.Source,
    output: options.OutputFolder,
    what: list[What] = option(..., "The question; give it again for more.", "--what", "-w"),
    target: Path | None = option(None, "Translations to look at. Default: the model's greedy ones.", "--target", "-t"),
    side: Literal["encoder", "decoder"] = option("encoder", "distance, entropy, divergence: whose self-attention."),
    sample: int = option(1000, "Sentences to draw from the file; 0: all.", min=0),
    seed: int = option(1, "Seed of the sample.", min=0),
    layer: int | None = option(None, "alignments, maps, coverage: one decoder layer, from 1.", min=1),
    head: int | None = option(None, "alignments, maps, coverage: one head, from 1; else the mean.", min=1),
    gold: Path | None = option(None, "alignments: those made by people, i-j sure, i?j possible."),
    one_based: bool = option(False, "The gold alignments count words from 1."),
    sentence: int | None = option(None, "maps, coverage, dependency: the line of the sentence to draw.", min=1),
    source_language: options.From = None,
    target_language: options.To = None,
    *,
    decoding: DecodingOptions,
    device: options.Device = None,
) -> None:
    """Measure and draw attention weights: JSON, csv, png and svg in the folder --output.

    - distance, entropy: of every self-attention head, by layer; several models in one figure
    - divergence: between the two units of the dual contextual module (enc-dc, dec-dc, full-dc)
    - dependency: of the main decoder on its auxiliaries (ms-<layers>-aif)
    - alignments: words linked by the attention over the source, and their error rate
    - maps: the attention over the source in one sentence
    - coverage: the sum of attention to each source subword of one sentence, and the fertilities of the system
      fertility; in a search with --beams unless --target is given

    docs/analysis.md has the equations.

    Example:

        hf-mlnmt analyse attention runs/a/average runs/b/average -s test.en -o analysis --what distance --what entropy
    """
    from hf_mlnmt.analysis import self_attention, source_attention
    from hf_mlnmt.analysis.reading import between, draw_sample
    from hf_mlnmt.evaluation.outputs import read_texts

    sources, targets = read_texts(source), read_texts(target) if target else None
    golden = source_attention.read_gold(read_texts(gold), gold, one_based) if gold else None
    languages = (source_language, target_language)
    systems = between(load_systems(models, device, [source], [target] if target else [], languages), *languages)
    for name, parts in systems.items():
        if (used := parts.model.config._attn_implementation) != "eager":
            tell(f"{name}: attention is computed by 'eager' here, as {used!r} returns no weights")
    drawn = draw_sample(systems, sources, targets, sample or None, seed, languages)
    classes = {name: type(parts.model).__name__ for name, parts in systems.items()}
    for question in dict.fromkeys(what):
        used = drawn
        if question in ("distance", "entropy"):
            study = self_attention.heads_study(systems, used, question, side)
        elif question == "divergence":
            study = self_attention.divergence_study(systems, used, side)
        elif question == "dependency":
            study = self_attention.dependency_study(systems, used, sentence)
        elif question == "alignments":
            if golden is not None and len(golden) != len(sources):
                raise UserError(f"{gold}: {len(golden)} lines for {len(sources)} sentences: expected the same.")
            used = draw_sample(systems, sources, targets, None, seed, languages)
            chosen = [golden[line - 1] for line in used.lines] if golden is not None else None
            study = source_attention.alignment_study(systems, used, chosen, layer, head)
        else:
            line = sentence or drawn.lines[0]
            if line > len(sources):
                raise UserError(f"--sentence {line}: {source} has {len(sources)} lines.")
            pair = [sources[line - 1]], [targets[line - 1]] if targets else None
            used = draw_sample(systems, *pair, None, seed, languages)
            summed, beams = (True, decoding.num_beams or 1) if question == "coverage" else (False, 1)
            study = source_attention.sentence_study(systems, used, layer, head, summed, beams)
        settings = {"source": str(source), "seed": seed}
        settings |= {"beams": decoding.num_beams} if question == "coverage" else {}
        shown = f"line {line}" if question in ("maps", "coverage") else f"{len(used.sources):,} sentences"
        study.note = f"{shown} of {source.name}"
        finish(study, output, {**settings, **used.settings(), "systems": classes})


@decoding_options(num_beams=1)
def cost(
    systems: Annotated[
        list[NamedPath],
        named_argument(..., "Systems of the zoo, model folders or Hub names; NAME=... names one. First: the baseline."),
    ],
    output: options.OutputFolder,
    shape: str = option("small", "Of systems: tiny, small or base; a folder has its own."),
    vocabulary: int = option(8000, "Of systems; a folder has its own.", min=10),
    tokens: int = option(1024, "Target tokens of a training step.", min=1),
    length: int = option(20, "Subwords of a sentence.", min=2),
    batch: int = option(32, "Sentences that are decoded at once.", min=1),
    steps: int = option(2, "Training steps of a turn.", min=1),
    rounds: int = option(5, "Turns that count; medians are shown.", min=1),
    threads: options.Threads = 1,
    device: str = options.machine("cpu", "cpu or cuda."),
    *,
    decoding: DecodingOptions,
) -> None:
    """Measure parameters, operations, memory and speed of systems, relative to the first: JSON, csv, png, svg.

    Parameters, operations and peak memory of a training step, training steps/s, decoding tokens/s; in brackets as a
    multiple of the baseline, which is measured right before each (docs/analysis.md). Weights and sentences are random.

    Example:

        hf-mlnmt analyse cost transformer m-10 enc-dc -o analysis
    """
    import torch

    from hf_mlnmt.analysis.cost import Work, cost_study
    from hf_mlnmt.zoo.systems import positions_of

    if device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"--device {device}: there is no such GPU here.")
    configs = {name: _config(path, shape, vocabulary) for name, path in by_name(systems).items()}
    for name, config in configs.items():
        if not config.is_encoder_decoder:
            raise UserError(f"{name}: is no translation model; only the costs of translation models are measured.")
        if not getattr(config, "is_pair", True):
            raise UserError(f"{name}: has modules of several languages; save one pair of them (model.pair) first.")
        if (positions := positions_of(config)) and positions < length:
            raise UserError(f"--length {length}: {name} reads {positions} tokens (max_position_embeddings) at most.")
    drawn = min([vocabulary, *(config.vocab_size for config in configs.values())])
    work = Work(drawn, tokens, length, batch, decoding.num_beams or 1, steps, rounds, device)
    options.use_machine(threads)  # the trainer makes the same settings of allocator and threads
    study = cost_study(configs, work, tell)
    finish(study, output, {"shape": shape, "threads": threads, "systems": list(map(str, systems))})
    tell(f"measured on: {study.rows[0]['machine']}")


def _config(name: str, shape: str, vocabulary: int) -> Any:
    from hf_mlnmt.zoo.systems import config_for

    if "/" not in name and not Path(name).exists():
        return config_for(name, shape, vocab_size=vocabulary)
    from hf_mlnmt.common.model_folder import fetch_small_files, read_config

    return read_config(fetch_small_files(name))


def curves(
    runs: list[NamedPath] = named_argument(..., "Folders of runs; NAME=PATH gives a name for the figure."),
    output: Path = options.output_folder(Path("curves"), "Folder for curves.png, .svg, .csv and .json."),
    over: str = option("step", "step or epoch: what the curves are drawn over."),
) -> None:
    """Draw losses, dev scores, learning rate and speed of trainings, finished or running: png, svg, csv, JSON.

    Example:

        hf-mlnmt analyse curves runs/transformer runs/enc-dc -o comparison
    """
    from hf_mlnmt.evaluation.curves import curves_study, read_metrics

    named = by_name(runs)
    study = curves_study({name: read_metrics(path) for name, path in named.items()}, over)
    finish(study, output, {"runs": named, "over": over})


def embed(
    model: options.Model,
    file: Path = argument(..., "Text, a sentence a line; also .gz."),
    output: Path = options.output(..., "An array of NumPy, .npy: float32 (lines, width)."),
    source_language: options.From = None,
    target_language: options.To = None,
    pooling: options.Pooling = None,
    device: options.Device = None,
) -> None:
    """Write an embedding for each line of a text, from the model's encoder and, if there is one, attention bridge.

    --from is the language of the text, for a model of several languages. --to is for a model whose sources begin with
    a token of the target language (tagged): the token is put before each text.

    Example:

        hf-mlnmt analyse embed runs/bridge/average test.de.gz --from de -o test.de.npy
    """
    import numpy as np

    from hf_mlnmt.analysis.embeddings import embed_file
    from hf_mlnmt.common.files import atomic_path, check_file
    from hf_mlnmt.common.languages import check_files
    from hf_mlnmt.generation.choosing.embedding import check_told
    from hf_mlnmt.generation.translating.loading import load

    if output.suffix != ".npy":
        raise UserError(f"--output {output}: expected a name that ends in .npy.")
    check_file(output)
    silence()
    check_files(model, [file], told=(source_language, target_language))
    parts = load(model, device)
    check_told(parts, source_language, target_language)
    vectors = embed_file(parts, file, source_language, pooling, target_language)
    with atomic_path(output) as path, path.open("wb") as handle:
        # numpy.save into an open file does not report a full disk if the error occurs while C's buffer is written.
        np.lib.format.write_array_header_1_0(handle, np.lib.format.header_data_from_array_1_0(vectors))
        handle.write(vectors.data)
    typer.echo(f"{output}: {vectors.shape[0]} sentences, {vectors.shape[1]} numbers each", err=True)


@decoding_options(*TRANSLATION, without=("alpha", "beta"), progress=True)
def fusion_grid(
    model: Annotated[str, argument(..., "Fused model folder (hf-mlnmt model fuse), or a name on the Hub.")],
    source: options.Source,
    reference: options.Reference,
    output: Annotated[Path, options.output_folder(..., "Folder for grid.json, .csv, .png and .svg.")],
    alpha: list[float] | None = option(None, "A scale to try; repeat it. Default: the thesis's."),
    beta: list[float] | None = option(None, "A scale to try; repeat it. Default: the thesis's."),
    normalization: Literal["symbol", "sequence"] | None = option(None, "In the place of the model's own."),
    sentences: int | None = option(None, "Take only so many first sentences: a rough grid in less time.", min=1),
    device: options.Device = None,
    *,
    decoding: DecodingOptions,
) -> None:
    """Translate and score a development set with every alpha and beta of a grid; print, save and draw the scores.

    Without --alpha and --beta the grid is the thesis's (docs/monolingual-fusion.md).

    Example:

        hf-mlnmt analyse fusion-grid fused -s val.de -r val.en -o grids/sequence
    """
    from hf_mlnmt.analysis.fusion_grid import best, grid_points, grid_study
    from hf_mlnmt.common.languages import check_files
    from hf_mlnmt.evaluation.outputs import read_references
    from hf_mlnmt.generation import TranslationPipeline
    from hf_mlnmt.generation.translating.lines import text_groups

    silence()
    check_files(model, [source], reference, decoding.told)
    references = [list(lines)[:sentences] for lines in read_references(reference)]
    sources = [line for group in text_groups([str(source)], 2048) for line in group][:sentences]
    if any(len(lines) != len(sources) for lines in references):
        raise UserError(f"{source} has {len(sources)} lines, {reference[0]} {len(references[0])}: not one set.")
    pipeline = TranslationPipeline.from_pretrained(model, device=device)
    if normalization is not None and hasattr(pipeline.model, "factors"):
        pipeline.model.config.normalization = normalization
    points, level = grid_points(pipeline, alpha, beta), pipeline.model.config.normalization
    tell(f"{len(points)} points, {level}-level normalization")
    search = {"batch_tokens": 4096, **decoding.given, "progress": decoding.progress}
    study = grid_study(pipeline, sources, references, points, **search)
    top, files = best(study), {"source": str(source), "references": list(map(str, reference))}
    settings = {"model": model, **files, "sentences": len(sources), "normalization": level}
    finish(study, output, {**settings, "decoding": search})
    typer.echo(f"best: alpha {top['alpha']:g}, beta {top['beta']:g}, BLEU {top['BLEU']:.2f}")


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

    The translations are written beside the figure.

    Example:

        hf-mlnmt analyse masking runs/m-10/average -s test.en -r test.de -o analysis
    """
    from hf_mlnmt.analysis.masking import masking_study
    from hf_mlnmt.evaluation.outputs import read_references, read_texts
    from hf_mlnmt.evaluation.scores import check_counts, scoring_options

    language = scoring_options([protocol], ["BLEU"], language, None, reference[0])["language"]
    sources, references = read_texts(source), read_references(reference)
    check_counts(sources, references, [str(source), *map(str, reference)])
    how: dict[str, Any] = {"protocol": protocol, "language": language}
    how |= {"bootstrap": bootstrap, "trials": trials, "seed": seed}
    questions: Any = what or None
    systems = load_systems(models, device, [source], reference, decoding.told)
    study = masking_study(systems, sources, references, questions, decoding.given, tell, **how)
    study.note = f"{len(sources):,} sentences of {source.name}; † p < 0.05, ‡ p < 0.01"
    files = {"source": str(source), "references": [str(path) for path in reference]}
    finish(study, output, {**files, **how, "decoding": decoding.given})


Task = StrEnum("Task", ["length", "word-content", "bigram-shift", "language"])
Classifier = StrEnum("Classifier", ["mlp", "logistic"])


def probe(
    models: options.Models,
    output: options.OutputFolder,
    text: list[NamedPath] | None = named_option(None, "Sentences to make tasks from; XX=FILE for 'language'."),
    senteval: list[Path] | None = option(None, "SentEval's probing files, or the folder they are in."),
    pairs: list[Path] | None = option(None, "Scored pairs, two sentences and a score with tabs between: correlations."),
    task: list[Task] | None = option(None, "Which to make of --text. Unless given: all that can be."),
    layer: list[int] | None = option(None, "Of the encoder, 0: embeddings. Unless given: the last.", min=0),
    pooling: str | None = option(None, "Read the model's embeddings, not a layer: flat, mean, or a row."),
    classifier: list[Classifier] | None = option(None, "Unless given: both."),
    preset: Literal["multi-level", "dual-context"] = option("multi-level", "Perceptron of thesis, ch. 4, or ch. 5."),
    words: int = option(100, "word-content: how many words; the paper has 1,000.", min=2),
    sizes: str = option("100000,10000,10000", "Sentences for train, dev and test, at most."),
    seed: int = option(1, "Seed of the tasks and the perceptron.", min=0),
    source_language: options.From = None,
    target_language: options.To = None,
    device: options.Device = None,
) -> None:
    """Train classifiers on frozen sentence vectors, or correlate the cosines of pairs with scores that people gave.

    The vectors are the mean of an encoder layer's states; with --pooling the model's embeddings. The folder --output
    gets JSON, csv, png and svg.

    Examples:

        hf-mlnmt analyse probe runs/a/average runs/b/average --text train.en -o analysis
        hf-mlnmt analyse probe runs/bridge/average --pairs sts.en.tsv --from en -o analysis
    """
    from hf_mlnmt.analysis.embeddings import read_pairs, similarity_study
    from hf_mlnmt.analysis.probing import make_tasks, probing_study, read_sizes, senteval_tasks
    from hf_mlnmt.data.lines import read_lines

    if not text and not senteval and not pairs:
        raise UserError("probe needs sentences: --text FILE, --senteval FILE or FOLDER, or --pairs FILE.")
    unnamed = [file.path for file in text or () if not file.name]
    texts = {file.name: file.path for file in text or []}
    languages = (source_language, target_language)
    systems = load_systems(models, device, [*unnamed, *(pairs or ())], (), languages)
    scored = {str(path): read_pairs(path) for path in pairs or []}
    row = int(pooling) if pooling and pooling.isdigit() else None
    if scored:
        similarities = similarity_study(systems, scored, source_language, pooling if row is None else row)
        finish(similarities, output, {"pooling": pooling, "source_language": source_language})
    if not text and not senteval:
        return
    lines = {name: list(read_lines(path)) for name, path in texts.items()}
    tasks = make_tasks(systems, lines, task or None, seed, read_sizes(sizes), words, languages) if lines else []
    tasks += senteval_tasks(senteval or [])
    place = pooling if row is None else f"row {row}"
    kinds: Any = classifier or None
    study = probing_study(systems, tasks, layer, kinds, preset, seed, tell, place, languages)
    settings = {"preset": preset, "seed": seed, "texts": texts, "senteval": [str(path) for path in senteval or []]}
    finish(study, output, {**settings, "sizes": sizes, "words": words})


def retrieve(
    model: NamedPath = named_argument(..., "Model folder or Hub name, or NAME=PATH."),
    files: list[NamedPath] = named_argument(
        ..., "Files of two or more languages; line i says the same in all of them.", metavar="LANGUAGE=FILE"
    ),
    also: list[NamedPath] | None = named_option(None, "Another model to stand beside it; again for more."),
    pooling: options.Pooling = None,
    target_language: options.To = None,
    output: Path | None = options.output(None, "Also write the numbers here, as JSON."),
    device: options.Device = None,
) -> None:
    """Find for each sentence the nearest one of another language, by cosine, and count how often it is the translation.

    --to is for a model whose sources begin with a token of the target language (tagged): it is put before each text.

    Example:

        hf-mlnmt analyse retrieve runs/bridge/average de=test.de.gz en=test.en.gz fr=test.fr.gz
    """
    from hf_mlnmt.analysis.embeddings import embed_file, retrieval, retrieval_rows
    from hf_mlnmt.common.files import check_file, write_json
    from hf_mlnmt.common.languages import check_language
    from hf_mlnmt.generation.translating.loading import load

    languages = {file.name: Path(file.path) for file in files}
    if len(languages) < 2 or len(languages) < len(files) or not all(languages):
        raise UserError("give language=FILE for at least two languages, each once, as in de=test.de en=test.en.")
    for code, file in languages.items():
        check_language(file, code, "it is read as", "Mend what stands before the =, or give the file of it.")
    if output is not None:
        check_file(output)
    silence()
    accuracies = {}
    for name, folder in by_name([model, *(also or [])]).items():
        parts = load(folder, device)
        vectors = {code: embed_file(parts, file, code, pooling, target_language) for code, file in languages.items()}
        accuracies[name] = retrieval(vectors)
    print_rows("accuracy@1 in %", retrieval_rows(accuracies))
    if output is not None:
        content = {"models": accuracies} if also else {"accuracy": accuracies[model.label]}
        settings = {"pooling": pooling, "target_language": target_language}
        write_json(output, {"schema": "hf_mlnmt.retrieval/1", **settings, **content})
