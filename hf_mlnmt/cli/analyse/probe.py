"""`hf-mlnmt analyse probe`: what a classifier can read from frozen encoders about their sentences."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import NamedPath
from hf_mlnmt.cli.terminal import finish, load_systems, tell
from hf_mlnmt.errors import UserError


class Task(str, Enum):  # noqa: UP042 (typer shows the members of a str enum)
    """The tasks made from raw text."""

    length = "length"
    word_content = "word-content"
    bigram_shift = "bigram-shift"
    language = "language"


class Preset(str, Enum):  # noqa: UP042
    """The papers' settings of the perceptron."""

    multi_level = "multi-level"
    dual_context = "dual-context"


class Classifier(str, Enum):  # noqa: UP042
    """What is trained on the vectors."""

    mlp = "mlp"
    logistic = "logistic"


def probe(
    models: options.Models,
    output: options.OutputFolder,
    text: Annotated[
        list[NamedPath] | None,
        typer.Option(
            "--text",
            "-t",
            parser=NamedPath.parse,
            help="Raw sentences to make tasks from; XX=FILE, twice or more, for 'language'.",
        ),
    ] = None,
    senteval: Annotated[
        list[Path] | None, typer.Option("--senteval", help="SentEval's probing files, or the folder they are in.")
    ] = None,
    pairs: Annotated[
        list[Path] | None,
        typer.Option("--pairs", help="Scored pairs, two sentences and a score with tabs between: correlations."),
    ] = None,
    task: Annotated[
        list[Task] | None, typer.Option("--task", help="Which to make of --text. Unless given: all that can be.")
    ] = None,
    layer: Annotated[
        list[int] | None, typer.Option("--layer", min=0, help="Of the encoder, 0: embeddings. Unless given: the last.")
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(help="Read the model's embeddings, as `embed` writes them, not a layer: flat, mean, or a row."),
    ] = None,
    classifier: Annotated[list[Classifier] | None, typer.Option("--classifier", help="Unless given: both.")] = None,
    preset: Annotated[
        Preset, typer.Option(help="Perceptron of thesis, ch. 4 (multi-level), or ch. 5 (dual-context).")
    ] = Preset.multi_level,
    words: Annotated[int, typer.Option(min=2, help="word-content: how many words; the paper has 1,000.")] = 100,
    sizes: Annotated[str, typer.Option(help="Sentences for train, dev and test, at most.")] = "100000,10000,10000",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the tasks and the perceptron.")] = 1,
    cache: Annotated[
        Path | None, typer.Option("--cache", help="Folder of vectors. Unless given: vectors/ in --output.")
    ] = None,
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
    from hf_mlnmt.files import check_folder_name

    check_folder_name(output)

    from hf_mlnmt.analysis.probing import make_tasks, probing_study, read_sizes, senteval_tasks
    from hf_mlnmt.analysis.similarity import read_pairs, similarity_study
    from hf_mlnmt.data.lines import read_lines

    if not text and not senteval and not pairs:
        raise UserError(
            "probe needs sentences: --text FILE for tasks made from them, --senteval FILE or FOLDER, or --pairs FILE."
        )
    scored = {str(path): read_pairs(path) for path in pairs or []}
    named_texts = {one.name: one.path for one in text or []}
    systems = load_systems(models, device)
    if scored:
        how = int(pooling) if pooling and pooling.isdigit() else pooling
        found = similarity_study(systems, scored, source_language, how)
        finish(found, output, {"pooling": pooling, "source_language": source_language})
    if not text and not senteval:
        return
    lines = {name: list(read_lines(path)) for name, path in named_texts.items()}
    languages = (source_language, target_language)
    chosen = [one.value for one in task] if task else None
    tasks = make_tasks(systems, lines, chosen, seed, read_sizes(sizes), words, languages) if lines else []
    tasks += senteval_tasks(senteval or [])
    reading = {"source_language": source_language, "target_language": target_language}
    place = f"row {pooling}" if pooling and pooling.isdigit() else pooling
    kinds: Any = [one.value for one in classifier] if classifier else None
    study = probing_study(systems, tasks, output, layer, kinds, preset.value, seed, cache, tell, place, **reading)
    settings = {
        "preset": preset.value,
        "seed": seed,
        "texts": named_texts,
        "senteval": [str(x) for x in senteval or []],
    }
    finish(study, output, {**settings, "sizes": sizes, "words": words})
