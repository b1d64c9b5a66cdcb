"""What generate() was asked, in CTranslate2's words, or the reason why it cannot be said in them.

Of CTranslate2 4.8 (tested against generate()): a search with n beams ends when n hypotheses are finished, which is
`early_stopping=True`; a finished one is scored by log P / L^a, a forced first token counted in L; tokens that are
forbidden get no probability, and the others share it, which is `renormalize_logits=True`; at the length limit no end
of sentence is forced. Any option that is not listed here and is not left as it is by default is refused.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

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
