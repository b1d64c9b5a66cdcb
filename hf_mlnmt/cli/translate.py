"""`hf-mlnmt translate`: translates text files, documents or standard input by a model."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import EVERY, argument, decoding_options, option
from hf_mlnmt.common.errors import OptionError, UserError
from hf_mlnmt.common.files import check_file
from hf_mlnmt.generation.translating.options import OUTPUT, SEARCH, DecodingOptions

PANEL = "Translate"
_of_output, _of_search = (partial(option, rich_help_panel=panel) for panel in (OUTPUT, SEARCH))


@decoding_options(*EVERY, progress=True, split="sentences")
def translate(
    model: options.Model,
    files: list[str] | None = argument(
        None, "Text files, one text a line, or one document (.docx, .srt...). None, or -: standard input."
    ),
    *,
    decoding: DecodingOptions,
    format: Literal["text"] | None = option(None, "The files are lines of text, whatever their names say."),
    output: Path | None = _of_output(
        None, "Write here, packed as the name says, as a memory in .tmx; default: to stdout.", "--output", "-o"
    ),
    jsonl: bool = _of_output(False, "A JSON object a line: source, translation, alignment, n_best."),
    scores: bool = _of_output(False, "With --jsonl: score, log probability and length."),
    prefix_file: Path | None = _of_search(None, "A line for each text: what its translation begins with."),
    must_file: Path | None = _of_search(None, "A line for each text: phrases that its translation has."),
    must_not_file: Path | None = _of_search(None, "A line for each text: phrases that its translation has not."),
    doubtful: Path | None = _of_output(
        None, "File of translations probably wrong (tsv): line, warnings, source, text."
    ),
    summary: bool = _of_output(False, "Say how good the whole is likely to be; the model must be calibrated."),
    report: Path | None = _of_output(None, "Write counts of this run here (JSON): bands of matches, doubtful texts."),
    below: float | None = _of_output(None, "--mark or --leave what has less confidence.", min=0, max=1),
    mark: str | None = _of_output(None, "Put before translations --below."),
    leave: bool = _of_output(False, "Leave the source where the translation is --below."),
    fuzzy: bool = _of_output(False, "Mark translations in .po, .xliff and .ts as not reviewed."),
    window: int = options.machine(2048, "Lines that are read and sorted by length together.", min=1),
    device: options.Device = None,
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    revision: options.Revision = None,
) -> None:
    """Translate text files or standard input, a line at a time; empty lines stay empty, order is kept.

    A document keeps its form: .docx, .xlsx, .odt, .epub, .html, .md, .srt, .po, .xliff, .json... (docs/documents.md).

    The sentences of a line are translated one by one; --split long gives the model whole lines. With -o the same
    command resumes after a stop at any moment, and ends with the same bytes. With --n-best the lines are 'line number
    from 0 ||| translation ||| score'; --alignments appends ' ||| 0-0 1-2' to each. The options: docs/decoding.md.

    Examples:

        hf-mlnmt translate runs/demo/average test.en.gz -o test.de
        echo "Hello." | hf-mlnmt translate facebook/nllb-200-distilled-600M --from eng_Latn --to deu_Latn
        hf-mlnmt translate MODEL report.docx -o report.de.docx
    """
    for name in ("confidence", "alternatives"):
        if getattr(decoding, name) and not jsonl:
            raise UserError(f"--{name} needs --jsonl.")
    if (below is None) == (mark is not None or leave) or (mark is not None and leave):
        raise UserError("--below P needs --mark TEXT or --leave, one of the two, and they need it.")
    if below is not None or summary:
        decoding = replace(decoding, confidence=True)
    if scores and not jsonl:
        raise UserError("--scores needs --jsonl (n-best lists, --n-best, have scores without it).")
    from hf_mlnmt.generation.translating.lines import Style, TextFiles, opened, row

    given = {"target_prefix": prefix_file, "force_phrases": must_file, "bad_phrases": must_not_file}
    files_of = {name: file for name, file in given.items() if file is not None}
    if both := next((name for name in files_of if getattr(decoding, name) is not None), None):
        raise OptionError(f"{both}: given for all texts, and by a file with a line for each; leave one out.")
    if doubtful is not None and not decoding.is_watched:
        raise UserError(
            "--doubtful: translations are not watched with --no-watch, n-best lists, samples or beginnings."
        )
    for file in filter(None, (output, doubtful, report)):
        check_file(file)
    if scores and not decoding.num_return_sequences and not decoding.alternatives:
        decoding = replace(decoding, num_return_sequences=1)
    inputs = list(files or ["-"])

    from rich.console import Console

    from hf_mlnmt import documents
    from hf_mlnmt.cli.terminal import Progress
    from hf_mlnmt.common.files import write_json
    from hf_mlnmt.common.languages import check_files, direction_of, language_tag
    from hf_mlnmt.common.made_from import identity_of_model
    from hf_mlnmt.common.model_folder import fetch_small_files
    from hf_mlnmt.data.formats import Form, check_output, format_of
    from hf_mlnmt.generation import TranslationPipeline, quality_of

    decoding, document, texts = decoding.with_languages_of(model), None, None
    memory, counts = None, dict[str, Any]()
    if named := None if format else next(filter(documents.is_document, inputs), None):
        lists: dict[str, Any] = {"--n-best": decoding.num_return_sequences, "--alignments": decoding.alignments}
        lists |= {"--jsonl": jsonl, "a file of lines": files_of, "--below": below is not None}
        lists |= {"a second file": inputs[1:]}
        options.refuse(lists, f"{named} is translated as one document, not line by line. Leave it out.")
        if output is not None:
            documents.check_endings(named, output)
        target = documents.language_of(model, decoding.target_language)
        document = documents.read_file(named, documents.Reading(language=target, fuzzy=fuzzy))
        if output is None and document.original[:2] == b"PK" and sys.stdout.isatty():
            raise UserError(f"{named}: is nothing that a terminal shows: give its translation a name, -o FILE.")
    else:
        options.refuse({"--fuzzy": fuzzy}, "is of documents. Leave it out.")
        if output is not None and format_of(output) == ".tmx":
            lists = {"--n-best": decoding.num_return_sequences, "--alignments": decoding.alignments, "--jsonl": jsonl}
            options.refuse(lists, f"{output} has a translation of each text and no more. Leave it out.")
            codes = zip(decoding.told, direction_of(fetch_small_files(model)) or (None, None))
            memory = " ".join(language_tag(told or own or "und") for told, own in codes)
        elif output is not None:
            check_output(output, *inputs)
        form: Form = "any" if format else "column" if memory else "lines"
        texts = TextFiles(inputs, decoding, files_of, window, form)
    bare = [Path(named).with_suffix("")] if named else inputs  # a document's ending is no language: a.ts, a.arb
    check_files(model, bare, list(files_of.values()), decoding.told)
    options.use_machine(threads)
    how: dict[str, Any] = {"revision": revision} if revision else {}
    pipeline = TranslationPipeline.from_pretrained(model, device=device, dtype=dtype, **how)
    style = Style(jsonl, scores, below, mark, memory)
    about = None
    if texts and texts.texts and output is not None:
        about = texts.made_from(
            identity_of_model(model, **how), style, dtype=dtype, doubtful=doubtful and doubtful.name
        )
    total = len(document.texts) if document else texts.total if texts else None
    # Shows no progress bar where translations are written to the terminal.
    shown = decoding.progress and not (output is None and sys.stdout.isatty())
    kept = "kept but for the last --window. The same command goes on." if about else ""
    quality = quality_of(pipeline.model, ()) if summary else None
    count_in: Any = quality.add if quality else lambda best: None
    with Progress(Console(stderr=True), kept, shown) as progress, opened(output, about, doubtful) as (done, write):
        if done:
            progress.say(f"going on at line {done + 1:,} of {total:,}")

        def update(count: int) -> None:
            progress.show((progress.done or done) + count, total)

        progress.show(done, total)
        if document:
            rows = list[str]()

            def tell(number: int, text: str, best: Any) -> None:
                rows.append(row(number, text, best))
                count_in(best)

            found = documents.translate_document(pipeline, document, decoding, update, tell, counts)
            write(found, len(document.texts), "".join(rows))
        elif texts:
            counts = texts.translate(pipeline, write, update, done, style, count_in)
    if quality:
        counts["quality"] = quality.to_dict()
        typer.echo(str(quality), err=True)
    if report:
        write_json(report, {"model": model, "files": inputs, **counts})
