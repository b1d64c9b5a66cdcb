"""Processes text before the tokenizer and after decoding: Moses tokens, normalised punctuation, lower case.

Also encodes text as ids (`Side`, `Encoder`), in this process or in several (`in_processes`). Heavy packages are not
imported here, since each of those processes would import them.
"""

from __future__ import annotations

import pickle
import signal
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer as Backend

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import write_json
from hf_mlnmt.common.keys import Section, build, key
from hf_mlnmt.common.languages import lower
from hf_mlnmt.common.model_folder import TEXT_PROCESSING, read_part
from hf_mlnmt.data.filters import FilterReport, PairFilter
from hf_mlnmt.data.placeholders import with_placeholders
from hf_mlnmt.data.words import joined, spelt, without_invisible


@dataclass(frozen=True)
class TextProcessing(Section):
    """The processing of one language's text before the tokenizer, undone after decoding.

    `apply` normalises punctuation (Moses), tokenises (Moses, without XML escapes), lower-cases, in this order; `undo`
    detokenises. Normalisation and lower-casing lose information that `undo` cannot bring back.
    """

    language: str = key("en", "The code of the language; in a recipe unless told the side's.")
    moses: bool = key(False, "Split into tokens as Moses does; refused where its rules do not fit the language.")
    normalize: bool = key(False, "Normalise punctuation as Moses does.")
    lowercase: bool = key(False, "Write everything in small letters.")

    @property
    def identity(self) -> bool:
        """Returns whether `apply` and `undo` leave every text unchanged."""
        return not (self.moses or self.normalize or self.lowercase)

    def apply(self, text: str) -> str:
        """Returns a raw text normalised, tokenised and lower-cased as this object says: the tokenizer's input."""
        # Letters are joined with combining marks (NFC), because Moses splits separate marks from them.
        text = text if self.identity else unicodedata.normalize("NFC", without_invisible(text))
        if self.normalize:
            text = _moses("PunctNormalizer", self.language).normalize(text)
        if self.moses:
            # Moses' escapes (&apos; for ') are left out: they are needed in phrase tables only.
            text = _moses("Tokenizer", self.language).tokenize(text, return_str=True, escape=False)
        return lower(text, self.language) if self.lowercase else text

    def undo(self, text: str) -> str:
        """Returns a decoded text as raw text: joins Moses' tokens, if `moses` is set."""
        if not self.moses:
            return text
        return _moses("Detokenizer", self.language).detokenize(text.split(), unescape=False)


@cache
def _moses(kind: str, language: str) -> Any:
    """Makes one of sacremoses's classes for a language: once a process, since it compiles many expressions."""
    import sacremoses

    return getattr(sacremoses, f"Moses{kind}")(lang=language)


def save_processing(folder: str | Path, processing: Mapping[str, TextProcessing] | None) -> None:
    """Write text_processing.json into a model folder, or remove an old one when there is nothing to record."""
    path = Path(folder) / TEXT_PROCESSING
    if all(side.identity for side in (processing or {}).values()):
        path.unlink(missing_ok=True)
    else:
        write_json(path, {side: asdict(value) for side, value in (processing or {}).items()})


def load_processing(folder: str | Path) -> dict[str, TextProcessing]:
    """Read text_processing.json into {"source": ..., "target": ...}; a side that it does not name is not processed.

    Raises: UserError for a broken file, an unknown key or a wrong value.
    """
    path = Path(folder) / TEXT_PROCESSING
    sides = read_part(Path(folder), TEXT_PROCESSING)
    for side in sides:
        if side not in ("source", "target"):
            raise UserError(f"{path}: unknown key '{side}'; expected 'source' and 'target'.")
    return {side: build(TextProcessing, sides.get(side, {}), str(path), (side,)) for side in ("source", "target")}


def moses_languages() -> set[str]:
    """Returns codes of the languages that Moses has rules of their own for (a list of abbreviations)."""
    from sacremoses.corpus import NonbreakingPrefixes

    return set(NonbreakingPrefixes().available_langs.values())


MANY = 20  # fewer chunks are encoded in this process, without others
_IDLE = 60  # seconds without work after which a worker ends, as when its parent was killed


def cut(backend: Backend, texts: Sequence[str]) -> list[list[int]]:
    """Returns the subword ids of each text. A "</s>" or "<2de>" in a text is read as text, not as the token. Characters
    that the vocabulary lacks are first replaced (`joined`, `spelt`), unless the tokenizer is a byte-level BPE."""
    backend.encode_special_tokens = True
    if backend.token_to_id("\u0120") is None:
        if not backend.normalizer or backend.normalizer.normalize_str("e\u0301") != "\xe9":
            texts = joined(texts, backend.get_vocab)
        texts = [spelt(text, lambda sign: backend.token_to_id(sign) is not None) for text in texts]
    return [encoding.ids for encoding in backend.encode_batch_fast(texts)]


@dataclass(frozen=True)
class Side:
    """Encodes raw texts of one side: processes them, cuts them into ids by `cut`, puts the ids `front` before each."""

    processing: TextProcessing
    cut: Callable[[Sequence[str]], Sequence[Any]]
    front: tuple[int, ...] = ()

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of all texts, one after the other, int32, and how many each has, int32 (texts,)."""
        texts = [without_invisible(self.processing.apply(text)) for text in texts]
        rows = self.cut(texts)
        if self.front:
            rows = [[*self.front, *row] for row in rows]
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        return np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths


class EncodedChunk(NamedTuple):
    """An encoded chunk: the filter's report; indices and hashes (`PairFilter.passing`) of the items that passed; and
    for each side the ids of all these items, concatenated, and their lengths."""

    report: FilterReport
    passed: list[int]
    hashes: np.ndarray
    sides: list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Encoder:
    """Filters and encodes a chunk: a list of pairs, or of texts where there is one side.

    behind: finds for each pair a text of the target's language, or "", which is encoded behind the source's `</s>`
        where both together have at most `longest` subwords.
    """

    sides: list[Side]
    pair_filter: PairFilter | None = None
    placeholders: Mapping[str, str] = field(default_factory=dict)
    behind: Callable[[Sequence[Any]], list[str]] | None = None
    longest: int = 0

    def __call__(self, chunk: Sequence[Any]) -> EncodedChunk:
        report, passed, hashes = FilterReport(), list(range(len(chunk))), np.zeros(0, np.uint64)
        if self.pair_filter is not None:
            passed, hashes = self.pair_filter.passing(chunk, report)
        items = [chunk[number] for number in passed]
        if self.placeholders and len(self.sides) > 1:
            items = list(with_placeholders(items, self.placeholders))
        texts: Any = [items] if len(self.sides) == 1 else zip(*items) if items else ((), ())
        sides = [side(own) for side, own in zip(self.sides, texts)]
        if self.behind is not None and items:
            sides[0] = self._joined(*sides[0], self.behind(items))
        return EncodedChunk(report, passed, hashes, sides)

    def _joined(self, ids: np.ndarray, lengths: np.ndarray, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of sources with those of texts behind them, one after the other, and how many each has."""
        more, of_more = self.sides[1](texts)
        fits = np.array([bool(text) for text in texts]) & (lengths + of_more <= self.longest)
        rows = zip(*(np.split(part, np.cumsum(sizes)[:-1]) for part, sizes in ((ids, lengths), (more, of_more))), fits)
        return np.concatenate(
            [part for own, other, fit in rows for part in (own, other)[: 1 + fit]]
        ), lengths + of_more * fits


@contextmanager
def in_processes(encoder: Encoder, count: int) -> Iterator[Callable[[Sequence[Any]], Iterable[EncodedChunk]]]:
    """Context manager: yields a function that encodes chunks by `encoder` in `count` processes, in order.

    It encodes in this process if there are few chunks, or the tokenizer cannot be pickled. Raises: UserError
    where a process dies.
    """
    # loky is used, because multiprocessing would run the user's script again in each process.
    from joblib.externals.loky import ProcessPoolExecutor

    pool, waiting = None, list[Any]()
    try:
        job = pickle.dumps(encoder)
    except (pickle.PicklingError, TypeError, AttributeError):
        count = 1

    def encode(chunks: Sequence[Any]) -> Iterable[EncodedChunk]:
        nonlocal pool, waiting
        if count == 1 or (pool is None and len(chunks) < MANY):
            return map(encoder, chunks)
        if pool is None:
            own = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
            pool = ProcessPoolExecutor(count, timeout=_IDLE, env=own, initializer=_begin, initargs=(job,))
        waiting = [pool.submit(_encode, chunk) for chunk in chunks]
        return (each.result() for each in waiting)

    try:
        yield encode
    except BrokenProcessPool as error:
        raise UserError(
            "a process that encodes text was killed, as where memory is short. What was encoded is kept: run the same "
            "command again, with fewer data.processes."
        ) from error
    finally:
        for each in waiting:
            each.cancel()
        if pool is not None:
            pool.shutdown()


_job = b""  # in a worker process: the pickled Encoder that it uses


def _begin(job: bytes) -> None:
    global _job
    _job = job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the process that started this one


@cache
def _encoder() -> Encoder:
    return pickle.loads(_job)  # type: ignore[no-any-return]


def _encode(chunk: Sequence[Any]) -> EncodedChunk:
    return _encoder()(chunk)
