"""`hf-mlnmt analyse probe`: what a classifier can read from frozen encoders about their sentences."""

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import NamedPath, named_option, option
from hf_mlnmt.cli.terminal import finish, load_systems, tell
from hf_mlnmt.common.errors import UserError

Task = StrEnum("Task", ["length", "word-content", "bigram-shift", "language"])
Classifier = StrEnum("Classifier", ["mlp", "logistic"])


def probe(
    models: options.Models,
    output: options.OutputFolder,
    text: list[NamedPath] | None = named_option(
        None, "Sentences to make tasks from; XX=FILE for 'language'.", "--text"
    ),
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
    """Train classifiers on frozen sentence vectors, or correlate their cosines: JSON, csv, png and svg in --output.

    The vectors are the mean of an encoder layer's states; with --pooling the model's embeddings.

    Examples:

        hf-mlnmt analyse probe runs/a/average runs/b/average --text train.en -o analysis
        hf-mlnmt analyse probe runs/bridge/average --pairs sts.en.tsv --from en -o analysis
    """
    from hf_mlnmt.analysis.embeddings import read_pairs, similarity_study
    from hf_mlnmt.analysis.probing import make_tasks, probing_study, read_sizes, senteval_tasks
    from hf_mlnmt.common.languages import check_files
    from hf_mlnmt.data.lines import read_lines

    if not text and not senteval and not pairs:
        raise UserError("probe needs sentences: --text FILE, --senteval FILE or FOLDER, or --pairs FILE.")
    unnamed = [file.path for file in text or () if not file.name]
    for model in models:
        check_files(model.path, [*unnamed, *(pairs or ())], told=(source_language, target_language))
    scored = {str(path): read_pairs(path) for path in pairs or []}
    texts = {file.name: file.path for file in text or []}
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
    place = pooling if row is None else f"row {row}"
    kinds: Any = classifier or None
    study = probing_study(systems, tasks, layer, kinds, preset, seed, tell, place, languages)
    settings = {"preset": preset, "seed": seed, "texts": texts, "senteval": [str(path) for path in senteval or []]}
    finish(study, output, {**settings, "sizes": sizes, "words": words})
