"""A model in CTranslate2: token ids in, token ids out."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.engine import cache, conversion
from hf_mlnmt.engine.request import Request

Rows = list[list[int]]


def installed() -> bool:
    """Whether there is a CTranslate2 to call."""
    try:
        return bool(importlib.metadata.version("ctranslate2"))
    except importlib.metadata.PackageNotFoundError:
        return False


def why_not(model: Any, dtype: str) -> str | None:
    """Why CTranslate2 cannot run this model with these numbers, or None."""
    if model.device.type not in ("cpu", "cuda"):
        return f"device {model.device}"
    if model.device.type == "cpu" and dtype not in ("float32", "int8"):
        return f"{dtype} on a CPU (say float32 or int8)"
    if dtype not in ("float32", "float16", "bfloat16", "int8"):
        return dtype
    lacking = conversion.lacks(conversion.single_decoder(model))
    return f"it lacks {lacking}" if lacking else None


class Translator:
    """Searches and scores with a converted model; `dtype` is that of its weights and products."""

    def __init__(self, folder: Path, model: Any, tokenizers: Tokenizers, dtype: str):
        """Raises: RuntimeError from CTranslate2."""
        import ctranslate2

        config, device = model.config, model.device
        self.pieces = conversion.vocabulary_of(tokenizers.source, config.vocab_size)
        self.tokens = conversion.vocabulary_of(tokenizers.target, config.decoder_vocab_size, target=True)
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        self.end = config.eos_token_id
        # The number of threads is one of the whole process: CTranslate2 would choose its own for PyTorch too.
        where = {"device": device.type, "device_index": device.index or 0, "intra_threads": torch.get_num_threads()}
        self.engine: Any = ctranslate2.Translator(str(folder), compute_type=dtype, **where)

    @classmethod
    def of(cls, model: Any, tokenizers: Tokenizers, dtype: str, tell: Callable[[str], None]) -> Translator:
        """From the cache, or converted now; `tell` is told when. Raises: OSError, UserError, RuntimeError."""
        model = conversion.single_decoder(model)
        config = model.config
        vocabularies = [
            conversion.vocabulary_of(tokenizers.source, config.vocab_size),
            conversion.vocabulary_of(tokenizers.target, config.decoder_vocab_size, target=True),
        ]

        def build(folder: Path) -> None:
            conversion.write(model, tokenizers, folder, dtype)

        with cache.entry(f"{cache.content_hash(model, vocabularies)}-{dtype}", build, tell) as folder:
            return cls(folder, model, tokenizers, dtype)

    def search(self, sources: Sequence[Sequence[int]], request: Request) -> list[Rows]:
        """`request.count` translations of each source, best first: generated ids, the end of sentence included."""
        prefix = None if request.first is None else [[self.tokens[request.first]]] * len(sources)
        results = self.engine.translate_batch(
            [[self.pieces[index] for index in ids] for ids in sources],
            target_prefix=prefix,
            beam_size=request.beams,
            num_hypotheses=request.count,
            length_penalty=request.length_penalty,
            suppress_sequences=[[self.tokens[index]] for index in request.forbidden] or None,
            return_end_token=True,
            max_input_length=0,
            max_decoding_length=request.limit,
            min_decoding_length=0,
        )
        return [[[self.ids[token] for token in found] for found in result.hypotheses] for result in results]

    def log_probabilities(self, sources: Sequence[Sequence[int]], targets: Rows) -> list[list[float]]:
        """ln P of every token of the targets, given as `search` returns them."""
        results = self.engine.score_batch(
            [[self.pieces[index] for index in ids] for ids in sources],
            [[self.tokens[index] for index in ids if index != self.end] for ids in targets],  # it adds the end itself
            max_input_length=0,
        )
        return [result.log_probs[: len(ids)] for ids, result in zip(targets, results, strict=True)]
