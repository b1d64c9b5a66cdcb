"""Who searches: generate(), or CTranslate2 where it is installed, can run the model, and finds the same.

For each kind of search (beams, translations a sentence), up to four sentences of the first batch, its shortest, go
through generate() too; engine_check.py says what must be equal. If it is not, the engine is given up for the rest of
the pipeline's life, that is said, and generate() translates everything, this batch included.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.engine import Request, Translator, installed, request_of
from hf_mlnmt.engine.translator import why_not
from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.generation.engine_check import ROUNDING, difference, rounding_gap
from hf_mlnmt.generation.found import Found, by_generate
from hf_mlnmt.generation.loading import Parts, in_int8

logger = logging.getLogger(__name__)

ENGINES = ("auto", "ctranslate2", "torch")
VARIABLE = "HF_MLNMT_ENGINE"  # the default, where nothing is said
COMPARED = 4  # sentences


def choose_engine(engine: str | None) -> str:
    """One of ENGINES: what is asked for, else what the variable says, else auto. Raises: UserError."""
    chosen = engine or os.environ.get(VARIABLE) or "auto"
    if chosen not in ENGINES:
        raise UserError(f"engine {chosen!r}: unknown{suggest(chosen, ENGINES)}; known: {', '.join(ENGINES)}.")
    if chosen == "ctranslate2" and not installed():
        raise UserError("engine 'ctranslate2' needs CTranslate2: pip install 'hf-mlnmt[export]'.")
    return chosen


class Search:
    """Translations of token ids, by the engine that can find them.

    Args:
        parts: in float32 if they are to be `rounded` to int8.
        engine: one of ENGINES; with "ctranslate2", a model that it cannot run is refused, and searches end as it ends
            them unless the caller says `early_stopping`.
    """

    def __init__(self, parts: Parts, engine: str = "torch", rounded: bool = False, name: str = "the model"):
        self.parts, self.engine, self.rounded, self.name = parts, engine, rounded, name
        self.dtype = "int8" if rounded else str(parts.model.dtype).removeprefix("torch.")
        self.translator: Translator | None = None
        self.checked: set[tuple[int, ...]] = set()
        self.said: set[str] = set()
        self.refused = self._why_not()
        if self.refused and engine == "ctranslate2":
            raise UserError(f"engine 'ctranslate2' cannot run {name}: {self.refused}. Use torch, or auto.")

    def __call__(
        self, sequences: list[list[int]], arguments: dict[str, Any], skipped: int, scored: bool
    ) -> list[list[Found]]:
        """As `by_generate`."""
        request = self._request(arguments)
        if request is None:
            return by_generate(self.torch_parts, sequences, arguments, skipped, scored)
        if self.engine == "ctranslate2":  # what generate() still does is to end as the engine's searches do
            arguments = {**arguments, "early_stopping": request.beams > 1}
        found = self._translate(sequences, request, scored)
        if request.kind not in self.checked and (wrong := self._check(sequences, found, request, arguments, skipped)):
            self._refuse(wrong)
            return by_generate(self.torch_parts, sequences, arguments, skipped, scored)
        if again := [i for i, hypotheses in enumerate(found) if not hypotheses]:
            cut = [sequences[i] for i in again]
            for i, row in zip(again, by_generate(self.torch_parts, cut, arguments, skipped, scored), strict=True):
                found[i] = row
        return found

    @cached_property
    def torch_parts(self) -> Parts:
        """What generate() is called with."""
        return in_int8(self.parts) if self.rounded else self.parts

    def _why_not(self) -> str | None:
        """Why the engine cannot run the model, or None."""
        if self.engine == "torch":
            return "torch was asked for"
        return why_not(self.parts.model, self.dtype) if installed() else "CTranslate2 is not installed"

    def _request(self, arguments: dict[str, Any]) -> Request | None:
        """The search in the engine's words; None: generate() shall do it."""
        if self.refused:
            return None
        request = request_of(self.parts.model, arguments, own_stopping=self.engine == "ctranslate2")
        if isinstance(request, str):
            self._say(f"generate() translates, not CTranslate2, because of {request}")
            return None
        return request if self.translator or self._load() else None

    def _load(self) -> bool:
        tokenizers = Tokenizers(self.parts.source, self.parts.target)
        try:
            self.translator = Translator.of(self.parts.model, tokenizers, self.dtype, self._tell)
        except (OSError, RuntimeError, ValueError, UserError) as error:
            self._refuse(f"it cannot load the model ({error})")
        return self.translator is not None

    def _translate(self, sequences: list[list[int]], request: Request, scored: bool) -> list[list[Found]]:
        """Of each sequence its translations, or nothing where generate() would have put an end at the limit."""
        assert self.translator is not None
        try:
            rows = self.translator.search(sequences, request)
        except RuntimeError as error:
            if "out of memory" in str(error):
                raise torch.OutOfMemoryError(str(error)) from error
            raise
        end = self.translator.end
        cut = [request.last_is_forced and any(ids[-1:] != [end] for ids in row) for row in rows]
        kept = [[] if is_cut else row[: request.count] for row, is_cut in zip(rows, cut, strict=True)]
        sums = iter(self._sums(sequences, kept, request) if scored else [0.0] * sum(map(len, kept)))
        return [[Found(ids, next(sums)) for ids in row] for row in kept]

    def _sums(self, sequences: Sequence[list[int]], rows: Sequence[list[list[int]]], request: Request) -> list[float]:
        """The engine's log probability of each translation, forced first tokens left out."""
        assert self.translator is not None
        sources = [source for source, row in zip(sequences, rows, strict=True) for _ in row]
        targets = [ids for row in rows for ids in row]
        first = int(request.first is not None)
        return [sum(logs[first:]) for logs in self.translator.log_probabilities(sources, targets)] if targets else []

    def _check(
        self, sequences: list[list[int]], found: list[list[Found]], request: Request, arguments: Any, skipped: int
    ) -> str | None:
        """What is wrong with the engine's translations; if nothing is, a line for the user, and None."""
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        chosen = [i for i in order if found[i]][:COMPARED]
        if not chosen:  # all of them ended at the limit, and are generate()'s
            return None
        self.checked.add(request.kind)
        sources, theirs = [sequences[i] for i in chosen], [[one.ids for one in found[i]] for i in chosen]
        where = f"CTranslate2 {importlib.metadata.version('ctranslate2')} translates, {self.dtype}"
        if self.rounded:
            gap = rounding_gap(self.parts, sources, theirs, self._sums(sources, theirs, request), skipped)
            if not gap <= ROUNDING:
                return f"in int8 its log probabilities differ by {gap:.2g} a token from float32's"
            self._say(f"{where}: log probabilities of {len(chosen)} sentences within {gap:.2g} a token of float32's")
            return None
        rows = by_generate(self.parts, sources, arguments, skipped, False)
        if wrong := difference(self.parts, sources, theirs, [[one.ids for one in row] for row in rows], skipped):
            return wrong
        self._say(f"{where}: {len(chosen)} sentences compared with generate(), no difference")
        return None

    def _refuse(self, reason: str) -> None:
        self.refused, self.translator = reason, None
        self._say(f"generate() translates from now on, not CTranslate2: {reason}")

    def _tell(self, line: str) -> None:
        self._say(f"{self.name} for CTranslate2, {self.dtype}: {line}")

    def _say(self, line: str) -> None:
        """Once."""
        if line not in self.said:
            self.said.add(line)
            logger.warning(line)
