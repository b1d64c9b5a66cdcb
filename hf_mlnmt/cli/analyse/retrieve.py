"""`hf-mlnmt analyse retrieve`: how well sentence embeddings find translations."""

from pathlib import Path

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import NamedPath, by_name, named_argument, named_option
from hf_mlnmt.common.errors import UserError


def retrieve(
    model: NamedPath = named_argument(..., "Model folder or Hub name, or NAME=PATH."),
    files: list[NamedPath] = named_argument(
        ..., "Files of two or more languages; line i says the same in all of them.", metavar="LANGUAGE=FILE"
    ),
    also: list[NamedPath] | None = named_option(None, "Another model to stand beside it; again for more.", "--also"),
    pooling: options.Pooling = None,
    target_language: options.To = None,
    output: Path | None = options.output(None, "Also write the numbers here, as JSON."),
    device: options.Device = None,
) -> None:
    """Find for every sentence the nearest one of another language, by cosine: is it its translation?

    --to is for a model that is told the target by a token before the source (tagged): it is put before every text.

    Example:

        hf-mlnmt analyse retrieve runs/bridge/average de=test.de.gz en=test.en.gz fr=test.fr.gz
    """
    from hf_mlnmt.analysis.embeddings import embed_file, retrieval, retrieval_rows
    from hf_mlnmt.cli.terminal import print_rows, silence
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
