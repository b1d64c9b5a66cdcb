"""Outputs to score: lines read from a hypothesis file, or translated by a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import check_files, check_language, language_in
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.words import is_visible
from hf_mlnmt.evaluation.scores import Lines, check_counts
from hf_mlnmt.generation.translating.options import DecodingOptions


@dataclass(frozen=True)
class SystemOutput:
    """The outputs of one system; of a model also its decoding and its number of parameters."""

    name: str
    lines: list[str]
    parameters: int | None = None
    decoding: dict[str, Any] = field(default_factory=dict)


def read_texts(path: str | Path) -> list[str]:
    """Reads the lines of a UTF-8 text file, plain or gz, without trailing white space, as sacreBLEU; empty lines stay.

    Raises UserError: no such file, no lines, a broken archive, invalid UTF-8 (with the line's number).
    """
    # Control characters are let through: a model with byte tokens may write any, and is scored as it is.
    remedy = "Convert the file to UTF-8, for example with iconv."
    return [line.rstrip() for line in read_lines(path, max_characters=10**9, keep_controls=True, remedy=remedy)]


def read_references(paths: Sequence[str | Path]) -> list[list[str]]:
    """Reads a list of lines per file, all of the same length.

    Raises: UserError naming files and counts when they differ, and for a file of blank lines alone.
    """
    references = [read_texts(path) for path in paths]
    for path, lines in zip(paths, references):
        if not any(map(is_visible, lines)):
            raise UserError(f"{path}: all {len(lines)} lines are blank: no references to score with. Check the file.")
    check_counts(references[0], references[1:], [str(path) for path in paths])
    return references


def load_system(
    path: str | Path,
    source: str | Path | None,
    references: Sequence[Lines],
    reference_names: Iterable[str | Path],
    decoding: DecodingOptions,
    device: str | None = None,
    keep: Path | None = None,
) -> SystemOutput:
    """Loads the outputs of a hypothesis file, or of a model that translates the file `source`, as many as references.

    Numbers of lines, and the languages that names and the model's results say, are compared before it starts. `keep`:
    as of `translate`.
    """
    is_text = Path(path).is_file()
    file = path if is_text else source
    if file is None:
        if not Path(path).exists():
            raise UserError(f"{path}: no such file or model folder.")
        raise UserError(f"{path}: a model needs the source sentences (--source).")
    reference_names = list(reference_names)
    if is_text:
        says = next(filter(language_in, reference_names), path)
        for name in (path, *reference_names):
            check_language(name, language_in(says), f"that of {says}", "Give outputs and references of one language.")
    else:
        check_files(path, [file], reference_names, (decoding.told[0], None))
    lines = read_texts(file)
    check_counts(lines, references, [str(file), *map(str, reference_names)])
    if is_text:
        return SystemOutput(str(path), lines)
    return translate(path, lines, file, decoding, device, keep)


def translate(
    model: str | Path,
    sources: Sequence[str],
    file: str | Path,
    decoding: DecodingOptions,
    device: str | None = None,
    keep: Path | None = None,
) -> SystemOutput:
    """Translates the lines of a file with a model.

    keep: where the translations are written as they come; stopped, the same call goes on from there.
    """
    from hf_mlnmt.generation import TranslationPipeline

    pipeline = TranslationPipeline.from_pretrained(str(model), device=device)
    if keep is None:
        lines = list(pipeline(list(sources), decoding, progress=True))
    else:
        lines = _kept(pipeline, str(model), decoding, str(file), len(sources), keep)
    keys = ("num_beams", "length_penalty", "early_stopping", "max_new_tokens", "max_length")
    defaults = {key: getattr(pipeline.model.generation_config, key, None) for key in keys}
    search = {key: value for key, value in {**defaults, **decoding.given}.items() if value is not None}
    return SystemOutput(str(model), lines, pipeline.model.num_parameters(), search)


def _kept(pipeline: Any, model: str, decoding: DecodingOptions, file: str, count: int, keep: Path) -> list[str]:
    """Translates a file's lines into another, as `hf-mlnmt translate -o` does; returns the translations."""
    from hf_mlnmt.generation.synthetic.journal import identity_of_model
    from hf_mlnmt.generation.translating.call import TranslationCall
    from hf_mlnmt.generation.translating.hypotheses import format_result
    from hf_mlnmt.generation.translating.lines import WINDOW, identities, made_from, opened, text_groups
    from hf_mlnmt.generation.translating.pipeline import progress_bar

    new: list[str] = []
    about = made_from(identity_of_model(model), identities([file]), decoding)
    with opened(keep, about) as (done, write), progress_bar(count) as update:
        update(done)
        call = TranslationCall(pipeline, decoding)
        for _, group, results in call.translate_groups(text_groups([file], WINDOW), update, 1, done, True):
            lines = [format_result(0, *pair, False, False, True) for pair in zip(group, results)]
            new += lines
            write("".join(f"{line}\n" for line in lines), done + len(new))
    return [*(read_texts(keep)[:done] if done else []), *new]
