"""Translations as lines of a file or of standard output: plain, n-best lists, JSON."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hf_mlnmt.files import atomic_path

if TYPE_CHECKING:
    from hf_mlnmt.generation import Hypothesis, TranslationPipeline


def translate_groups(
    pipeline: TranslationPipeline,
    groups: Iterable[list[str]],
    output: Path | None,
    *,
    jsonl: bool = False,
    scores: bool = False,
    total: int | None = None,
    **options: Any,
) -> None:
    """Translate group by group and write a line (or an n-best list) for each text, flushed after each group.

    output: a file, or None for standard output. jsonl, scores: see `format_result`. total: for the progress bar.
    options: the fields of DecodingOptions.
    """
    sources: list[str] = []

    def remembered() -> Iterator[list[str]]:
        for group in groups:
            sources.extend(group)
            yield group

    results = pipeline.stream_groups(remembered(), total=total, **options)
    with opened(output) as stream:
        for number, result in enumerate(results):
            print(format_result(number, sources.pop(0), result, jsonl, scores), file=stream)
            if not sources:  # the end of what was translated together
                stream.flush()


@contextmanager
def opened(output: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file (compressed when its name ends in .gz) that appears when everything is written."""
    if output is None:
        yield sys.stdout
        return
    with atomic_path(output) as temporary:
        opener: Any = gzip.open if output.suffix == ".gz" else open
        with opener(temporary, "wt", encoding="utf-8", newline="\n") as stream:
            yield stream


def format_result(number: int, source: str, result: str | list[Hypothesis], jsonl: bool, scores: bool) -> str:
    """One text's result as it is written.

    Plain: the translation, or 'number ||| translation ||| score' for each of an n-best list (numbers from 0, as in
    Moses). jsonl: an object with source, translation, with `scores` also score, log_probability and length, and n_best
    when there is more than one.
    """
    if not jsonl:
        if isinstance(result, str):
            return result
        return "\n".join(f"{number} ||| {best.text} ||| {best.score:.6f}" for best in result)
    record: dict[str, Any] = {"source": source}
    if isinstance(result, str):
        record["translation"] = result
    else:
        record |= _record(result[0], scores)
        if len(result) > 1:
            record["n_best"] = [_record(hypothesis, scores=True) for hypothesis in result]
    return json.dumps(record, ensure_ascii=False)


def _record(hypothesis: Hypothesis, scores: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"translation": hypothesis.text}
    if scores:
        record["score"] = hypothesis.score
        record["log_probability"] = hypothesis.log_probability
        record["length"] = hypothesis.length
    return record
