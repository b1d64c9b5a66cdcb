"""A tokenizer that splits at spaces, for models whose text was cut into subwords by somebody else before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Special(NamedTuple):
    """The special tokens of a toolkit's vocabularies. `start`: what the decoder begins with."""

    pad: str
    start: str
    end: str
    unknown: str


def words_tokenizer(ids: Mapping[str, int], special: Special, end: bool = True) -> Any:
    """Tokens are what white space separates, each with its id; `end`: text gets the end of sentence behind it.

    There is no decoder: what comes out are tokens with a space between them.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel(dict(ids), unk_token=special.unknown))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if end:
        token = (special.end, ids[special.end])
        backend.post_processor = processors.TemplateProcessing(single=f"$A {special.end}", special_tokens=[token])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=special.pad,
        bos_token=special.start,
        eos_token=special.end,
        unk_token=special.unknown,
        clean_up_tokenization_spaces=False,
    )
