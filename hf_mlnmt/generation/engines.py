"""Who searches: generate(), or CTranslate2 where it is asked for by name.

CTranslate2 searches by its own rules: one with n beams ends when n hypotheses are finished, and one that reaches the
length limit has no end of sentence. What it cannot do is refused: nobody gets another engine than the one named.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.generation.batches import pad
from hf_mlnmt.generation.ctranslate2_search import Request, Translator, installed, request_of, why_not
from hf_mlnmt.generation.loading import Parts, in_int8
from hf_mlnmt.generation.options import forced_last
from hf_mlnmt.generation.scoring import generated_lengths, log_probabilities


class Found(NamedTuple):
    """A translation: all generated ids, a forced first one and the end of sentence included, and its ln P.

    `log_probability` is 0 unless it was asked for.
    """

    ids: list[int]
    log_probability: float


@torch.inference_mode()
def by_generate(
    parts: Parts, sequences: Sequence[Sequence[int]], arguments: dict[str, Any], skipped: int, scored: bool
) -> list[list[Found]]:
    """`num_return_sequences` translations of each sequence of ids, best first.

    Args:
        arguments: of generate(); at least num_return_sequences.
        skipped: how many first tokens are forced.
        scored: whether log probabilities are wanted.
    """
    model, n = parts.model, arguments["num_return_sequences"]
    pad_id = parts.source.pad_token_id
    input_ids, mask = pad(sequences, 0 if pad_id is None else pad_id, model.device)
    output = model.generate(input_ids=input_ids, attention_mask=mask, **arguments)
    output = getattr(output, "sequences", output)
    lengths = generated_lengths(output, model.generation_config.eos_token_id)
    sums = [0.0] * len(output)
    if scored:
        forced = (bool(skipped), forced_last(model, arguments))
        scales = {name: arguments[name] for name in ("alpha", "beta") if name in arguments}
        sums = log_probabilities(model, input_ids, mask, output, lengths, *forced, **scales).tolist()
    rows = zip(output.tolist(), lengths.tolist(), sums, strict=True)
    found = [Found(row[1 : 1 + length], total) for row, length, total in rows]
    return [found[i : i + n] for i in range(0, len(found), n)]


logger = logging.getLogger(__name__)

ENGINES = ("torch", "ctranslate2")


def check_engine(engine: str) -> None:
    """Raises: UserError for one that is unknown or not installed."""
    if engine not in ENGINES:
        raise UserError(f"engine {engine!r}: unknown{suggest(engine, ENGINES)}; known: {', '.join(ENGINES)}.")
    if engine == "ctranslate2" and not installed():
        raise UserError("engine 'ctranslate2' needs CTranslate2: pip install 'hf-mlnmt[export]'.")


class TorchSearch:
    """By generate(). `parts` are rounded to int8 where that is asked for."""

    def __init__(self, parts: Parts, rounded: bool = False):
        self.parts, self.rounded = in_int8(parts) if rounded else parts, rounded

    def __call__(
        self, sequences: list[list[int]], arguments: dict[str, Any], skipped: int, scored: bool
    ) -> list[list[Found]]:
        """As `by_generate`."""
        return by_generate(self.parts, sequences, arguments, skipped, scored)


class CTranslate2Search:
    """By CTranslate2. `parts` are in float32 if it shall round them to int8.

    Raises: UserError for a model that it cannot run.
    """

    def __init__(self, parts: Parts, rounded: bool = False, name: str = "the model"):
        self.parts, self.rounded, self.name = parts, rounded, name
        self.dtype = "int8" if rounded else str(parts.model.dtype).removeprefix("torch.")
        if reason := why_not(parts.model, self.dtype):
            raise UserError(f"engine 'ctranslate2' cannot run {name}: {reason}. Use the engine torch.")

    def __call__(
        self, sequences: list[list[int]], arguments: dict[str, Any], skipped: int, scored: bool
    ) -> list[list[Found]]:
        """As `by_generate`. Raises: UserError for a search that CTranslate2 does not know."""
        request = request_of(self.parts.model, arguments)
        if isinstance(request, str):
            raise UserError(f"engine 'ctranslate2' cannot do {request}: leave that out, or use the engine torch.")
        try:
            rows = self.translator.search(sequences, request)
        except RuntimeError as error:
            if "out of memory" in str(error):
                raise torch.OutOfMemoryError(str(error)) from error
            raise
        sums = iter(self._sums(sequences, rows, request) if scored else [0.0] * sum(map(len, rows)))
        return [[Found(ids, next(sums)) for ids in row] for row in rows]

    @cached_property
    def translator(self) -> Translator:
        """The converted model; converted at the first search, or taken from the user's cache."""
        tokenizers = Tokenizers(self.parts.source, self.parts.target)
        try:
            return Translator.of(self.parts.model, tokenizers, self.dtype, self._tell)
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(f"engine 'ctranslate2' cannot load {self.name}: {error}") from error

    def _sums(self, sequences: Sequence[list[int]], rows: Sequence[list[list[int]]], request: Request) -> list[float]:
        """The engine's log probability of each translation, forced first tokens left out."""
        sources = [source for source, row in zip(sequences, rows, strict=True) for _ in row]
        targets = [ids for row in rows for ids in row]
        first = int(request.first is not None)
        return [sum(logs[first:]) for logs in self.translator.log_probabilities(sources, targets)] if targets else []

    def _tell(self, line: str) -> None:
        logger.warning("%s for CTranslate2, %s: %s", self.name, self.dtype, line)
