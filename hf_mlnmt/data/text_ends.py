"""What a tokenizer puts around a text: </s> behind it, or, for a causal language model to go on, <s> before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_mlnmt.data.tokenizer import Tokenizers, save_tokenizers
from hf_mlnmt.model_folder import TARGET_TOKENIZER


def begin_texts(folder: str | Path) -> None:
    """Let the tokenizer of a language model's folder put <s> before a text, and nothing behind it: so `generate` and
    a text-generation pipeline go on where a text ends. Of two vocabularies the target's is the model's.

    A tokenizer of another kind than ours stays as it is.
    """
    folder = Path(folder)
    own = folder / TARGET_TOKENIZER if (folder / TARGET_TOKENIZER).is_dir() else folder
    tokenizer = AutoTokenizer.from_pretrained(own)
    if _is_ours(tokenizer):
        _surround(tokenizer, f"{tokenizer.bos_token} $A", tokenizer.bos_token, tokenizer.bos_token_id)
        from hf_mlnmt.data.processing import load_processing

        save_tokenizers(folder, tokenizer, None, load_processing(folder))


def ending(tokenizers: Tokenizers) -> Tokenizers:
    """The tokenizers, with </s> behind every text again where `begin_texts` took it away."""
    for tokenizer in {
        id(one): one for one in (tokenizers.source, tokenizers.target, *tokenizers.each.values())
    }.values():
        if _is_ours(tokenizer) and begins_texts(tokenizer):
            _surround(tokenizer, f"$A {tokenizer.eos_token}", tokenizer.eos_token, tokenizer.eos_token_id)
    return tokenizers


def begins_texts(tokenizer: Any) -> bool:
    """Whether it puts <s> before a text and nothing behind it."""
    return bool(tokenizer("")["input_ids"] == [tokenizer.bos_token_id])


def _is_ours(tokenizer: Any) -> bool:
    return type(tokenizer) is PreTrainedTokenizerFast and None not in (tokenizer.bos_token_id, tokenizer.eos_token_id)


def _surround(tokenizer: Any, template: str, token: str, number: int) -> None:
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=template, pair=f"{template} {template.replace('$A', '$B')}", special_tokens=[(token, number)]
    )
