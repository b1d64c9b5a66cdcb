"""From a recipe's corpora to encoded data on disk: reading, filtering, encoding, in one call that is done once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.encoded import Encoded, EncodedPairs, EncodedText, fingerprint_of
from hf_mlnmt.data.filters import FilterReport, Pair, PairFilter, TextFilter
from hf_mlnmt.data.text import TextSpec, read_text
from hf_mlnmt.data.tokenizer import Tokenizers, check_tag, languages_of
from hf_mlnmt.errors import UserError


def encode_corpus(
    spec: CorpusSpec,
    root: str | Path,
    tokenizers: Tokenizers,
    folder: str | Path,
    pair_filter: PairFilter | None = None,
    max_length: int | None = None,
    progress: Callable[[int], Any] | None = None,
) -> EncodedPairs:
    """Read, filter and encode a corpus into `folder`; with the same files and settings there already, use that.

    Training data: give a filter and `max_length` (subwords). Development data: give neither, every pair stays.
    The language code of `spec.languages`' target is put before the source when the tokenizer has codes, and before it
    `spec.tag`.
    Raises UserError when nothing is left.
    """
    named = spec.languages or {}
    tokenizers = tokenizers.between(named.get("source"), named.get("target"))
    language = named.get("target") if _has_codes(tokenizers) else None
    key = fingerprint_of(spec, root, tokenizers, filter=repr(pair_filter), max_length=max_length, language=language)
    report = FilterReport()
    pairs = filtered_pairs(spec, root, pair_filter, report)
    check_tag(tokenizers.source, tag := spec.tag or None)
    encoded = EncodedPairs.build(pairs, tokenizers, folder, max_length, language, key, report, progress, tag)
    _check_something_left(encoded, spec)
    return encoded


def filtered_pairs(
    spec: CorpusSpec, root: str | Path, pair_filter: PairFilter | None = None, report: FilterReport | None = None
) -> Iterator[Pair]:
    """The raw text pairs of a corpus that pass the filter, as a stream; also what a tokenizer is trained on."""
    report = report if report is not None else FilterReport()
    pairs = read_pairs(spec, root, report)
    yield from pair_filter(pairs, report) if pair_filter else pairs


def encode_text(
    spec: TextSpec,
    root: str | Path,
    tokenizers: Tokenizers,
    folder: str | Path,
    text_filter: TextFilter | None = None,
    max_length: int | None = None,
) -> EncodedText:
    """As `encode_corpus`, for text of one language; `spec.side` must say whose vocabulary it gets."""
    assert spec.side is not None
    tokenizers = tokenizers.between(spec.language, spec.language)
    key = fingerprint_of(spec, root, tokenizers, filter=repr(text_filter), max_length=max_length)
    report = FilterReport()
    texts = filtered_text(spec, root, text_filter, report)
    encoded = EncodedText.build(texts, tokenizers, folder, spec.side, max_length, key, report)
    _check_something_left(encoded, spec)
    return encoded


def filtered_text(
    spec: TextSpec, root: str | Path, text_filter: TextFilter | None = None, report: FilterReport | None = None
) -> Iterator[str]:
    """The sentences of one language that pass the filter, as a stream."""
    report = report if report is not None else FilterReport()
    texts = read_text(spec, root, report)
    yield from text_filter(texts, report) if text_filter else texts


def _check_something_left(encoded: Encoded, spec: CorpusSpec | TextSpec) -> None:
    if len(encoded) == 0:
        one = encoded.unit.removesuffix("s")
        raise UserError(f"{spec}: no {one} is left. Relax the filters.\n{encoded.report.table(encoded.unit)}")


def _has_codes(tokenizers: Tokenizers) -> bool:
    return bool(languages_of(tokenizers.source))
