"""CTranslate2 in the place of generate(), where it is asked for: token ids in, token ids out.

`request_of` says what generate() was asked in CTranslate2's words, or why it cannot be said in them. Of CTranslate2 4.8
(tested against generate()): a search with n beams ends when n hypotheses are finished, which is `early_stopping=True`;
a finished one is scored by log P / L^a, a forced first token counted in L; tokens that are forbidden get no
probability, and the others share it, which is `renormalize_logits=True`; at the length limit no end of sentence is
forced. Any option that is not listed here and is not left as it is by default is refused.
"""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.generation import ctranslate2_model

# Of a generation config, what `Request` expresses.
_EXPRESSED = {
    *("num_beams", "num_return_sequences", "length_penalty", "early_stopping", "max_length", "max_new_tokens"),
    *("bad_words_ids", "renormalize_logits", "forced_bos_token_id", "forced_eos_token_id", "do_sample"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
}
# What has no influence here: on sampling alone, on memory, on the form of the result, or remarks.
_IDLE = {
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "use_cache"),
    *("transformers_version", "generation_kwargs", "length_normalization", "disable_compile", "compile_config"),
}
# What asks for nothing though it is not None.
_NEUTRAL = {
    "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "diversity_penalty": 0.0, "guidance_scale": 1.0,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0,
    "num_beam_groups": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """A search that CTranslate2 can do."""

    beams: int
    count: int  # hypotheses wanted
    length_penalty: float
    limit: int  # generated tokens, end of sentence included
    forbidden: tuple[int, ...]  # tokens
    first: int | None  # the token that every translation begins with


def request_of(model: Any, arguments: dict[str, Any]) -> Request | str:
    """From the model's generation config and generate()'s arguments: the search, or what of it CTranslate2 has not.

    Where `arguments` say nothing of `early_stopping`, a search ends as CTranslate2's do.
    """
    config = copy.deepcopy(model.generation_config)
    if others := config.update(**arguments):
        return f"what the argument {next(iter(others))} asks"
    beams, count = config.num_beams or 1, config.num_return_sequences or 1
    limit = config.max_new_tokens or (config.max_length or 20) - 1
    words = config.bad_words_ids or []
    reason = (
        _unknown_option(config)
        or _why_not_tokens(model, config, words, beams)
        or _why_not_beams(config, beams, count, "early_stopping" not in arguments)
    )
    if limit > model.config.max_position_embeddings:
        reason = reason or f"max_new_tokens={limit}, more than the model's {model.config.max_position_embeddings}"
    return reason or Request(
        beams,
        count,
        1.0 if config.length_penalty is None else float(config.length_penalty),
        limit,
        tuple(word[0] for word in words),
        config.forced_bos_token_id,
    )


def _unknown_option(config: Any) -> str | None:
    if config.do_sample:
        return "do_sample"
    for name, value in vars(config).items():
        known = name.startswith("_") or name in _EXPRESSED or name in _IDLE
        if not known and value is not None and value is not False and value != _NEUTRAL.get(name):
            return f"{name}={value!r}"
    return None


def _why_not_tokens(model: Any, config: Any, words: list[list[int]], beams: int) -> str | None:
    for name in ("decoder_start_token_id", "eos_token_id"):
        if getattr(config, name) not in (None, getattr(model.config, name)):
            return f"{name}={getattr(config, name)}, which is not the model's own"
    end = model.config.eos_token_id
    if any(len(word) != 1 or word[0] == end for word in words):
        return "bad_words_ids of several tokens"
    if config.forced_eos_token_id not in (None, end):
        return f"forced_eos_token_id={config.forced_eos_token_id}"
    if words and beams > 1 and not config.renormalize_logits:
        return "bad_words_ids without renormalize_logits (CTranslate2 shares their probability out)"
    return None


def _why_not_beams(config: Any, beams: int, count: int, own_stopping: bool) -> str | None:
    if beams == 1:
        return None
    if config.early_stopping is not True and not own_stopping:
        return f"early_stopping={config.early_stopping or False} (CTranslate2's searches end as with True)"
    formula = getattr(config.length_penalty, "normalization", "generate")
    plain = formula == "generate" or (formula == "length" and config.forced_bos_token_id is None)
    if not plain:
        return f"length_normalization={formula}"
    if count > 1 and config.length_penalty == 0:
        return "several translations with length_penalty=0 (CTranslate2 ends such searches early)"
    return None


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
    lacking = ctranslate2_model.lacks(ctranslate2_model.single_decoder(model))
    return f"it lacks {lacking}" if lacking else None


class Translator:
    """Searches and scores with a converted model; `dtype` is that of its weights and products."""

    def __init__(self, folder: Path, model: Any, tokenizers: Tokenizers, dtype: str):
        """Raises: RuntimeError from CTranslate2."""
        import ctranslate2

        config, device = model.config, model.device
        self.pieces = ctranslate2_model.vocabulary_of(tokenizers.source, config.vocab_size)
        self.tokens = ctranslate2_model.vocabulary_of(tokenizers.target, config.decoder_vocab_size, target=True)
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        self.end = config.eos_token_id
        # The number of threads is one of the whole process: CTranslate2 would choose its own for PyTorch too.
        where = {"device": device.type, "device_index": device.index or 0, "intra_threads": torch.get_num_threads()}
        self.engine: Any = ctranslate2.Translator(str(folder), compute_type=dtype, **where)

    @classmethod
    def of(cls, model: Any, tokenizers: Tokenizers, dtype: str, tell: Callable[[str], None]) -> Translator:
        """From the cache, or converted now; `tell` is told when. Raises: OSError, UserError, RuntimeError."""
        model = ctranslate2_model.single_decoder(model)
        config = model.config
        vocabularies = [
            ctranslate2_model.vocabulary_of(tokenizers.source, config.vocab_size),
            ctranslate2_model.vocabulary_of(tokenizers.target, config.decoder_vocab_size, target=True),
        ]

        def build(folder: Path) -> None:
            ctranslate2_model.write(model, tokenizers, folder, dtype)

        with ctranslate2_model.entry(
            f"{ctranslate2_model.content_hash(model, vocabularies)}-{dtype}", build, tell
        ) as folder:
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
