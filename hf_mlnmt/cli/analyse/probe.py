"""`hf-mlnmt analyse probe`: what a classifier can read from frozen encoders about their sentences."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import NamedPath, named_option
from hf_mlnmt.cli.terminal import finish, load_systems, tell
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import check_folder_name

Task = StrEnum("Task", ["length", "word-content", "bigram-shift", "language"])
Classifier = StrEnum("Classifier", ["mlp", "logistic"])


def probe(
    models: options.Models,
    output: options.OutputFolder,
    text: Annotated[
        list[NamedPath] | None,
        named_option("--text", help="Raw sentences to make tasks from; XX=FILE, twice or more, for 'language'."),
    ] = None,
    senteval: Annotated[
        list[Path] | None, typer.Option(help="SentEval's probing files, or the folder they are in.")
    ] = None,
    pairs: Annotated[
        list[Path] | None, typer.Option(help="Scored pairs, two sentences and a score with tabs between: correlations.")
    ] = None,
    task: Annotated[
        list[Task] | None, typer.Option(help="Which to make of --text. Unless given: all that can be.")
    ] = None,
    layer: Annotated[
        list[int] | None, typer.Option(min=0, help="Of the encoder, 0: embeddings. Unless given: the last.")
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(help="Read the model's embeddings, as `embed` writes them, not a layer: flat, mean, or a row."),
    ] = None,
    classifier: Annotated[list[Classifier] | None, typer.Option(help="Unless given: both.")] = None,
    preset: Annotated[
        Literal["multi-level", "dual-context"],
        typer.Option(help="Perceptron of thesis, ch. 4 (multi-level), or ch. 5 (dual-context)."),
    ] = "multi-level",
    words: Annotated[int, typer.Option(min=2, help="word-content: how many words; the paper has 1,000.")] = 100,
    sizes: Annotated[str, typer.Option(help="Sentences for train, dev and test, at most.")] = "100000,10000,10000",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the tasks and the perceptron.")] = 1,
    cache: Annotated[Path | None, typer.Option(help="Folder of vectors. Unless given: vectors/ in --output.")] = None,
    source_language: options.From = None,
    target_language: options.To = None,
    device: options.Device = None,
) -> None:
    """Train classifiers on frozen sentence vectors, or correlate their cosines: JSON, csv, png and svg in --output.

    The vectors are the mean of an encoder layer's states; with --pooling the model's embeddings, which are those of
    the attention bridge where there is one. --pairs: Pearson and Spearman between cosines of embeddings and scores.

    Vectors are kept, and a finished probe is not repeated: the same command goes on where it was interrupted, and
    further models, tasks and layers are added.

    Examples:

        hf-mlnmt analyse probe runs/a/average runs/b/average --text train.en -o analysis
        hf-mlnmt analyse probe runs/bridge/average --pairs sts.en.tsv --from en -o analysis
    """
    check_folder_name(output)

    from hf_mlnmt.analysis.probing import make_tasks, probing_study, read_sizes, senteval_tasks
    from hf_mlnmt.analysis.similarity import read_pairs, similarity_study
    from hf_mlnmt.data.lines import read_lines

    if not text and not senteval and not pairs:
        raise UserError(
            "probe needs sentences: --text FILE for tasks made from them, --senteval FILE or FOLDER, or --pairs FILE."
        )
    scored = {str(path): read_pairs(path) for path in pairs or []}
    texts = {one.name: one.path for one in text or []}
    systems = load_systems(models, device)
    row = int(pooling) if pooling and pooling.isdigit() else None
    if scored:
        similarities = similarity_study(systems, scored, source_language, pooling if row is None else row)
        finish(similarities, output, {"pooling": pooling, "source_language": source_language})
    if not text and not senteval:
        return
    lines = {name: list(read_lines(path)) for name, path in texts.items()}
    languages = (source_language, target_language)
    tasks = make_tasks(systems, lines, task or None, seed, read_sizes(sizes), words, languages) if lines else []
    tasks += senteval_tasks(senteval or [])
    reading = {"source_language": source_language, "target_language": target_language}
    place = pooling if row is None else f"row {row}"
    kinds: Any = classifier or None
    study = probing_study(systems, tasks, output, layer, kinds, preset, seed, cache, tell, place, **reading)
    settings = {"preset": preset, "seed": seed, "texts": texts, "senteval": [str(path) for path in senteval or []]}
    finish(study, output, {**settings, "sizes": sizes, "words": words})
