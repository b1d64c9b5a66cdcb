"""The differences between the releases of Transformers that this package supports.

From 5.24 on generate(), the masks and the outputs name the cache `cache`, before `past_key_values`. This package's name
is `cache`: `takes_cache` lets every forward with that argument accept the other name too, and `CACHE` is the installed
release's name, to be used where a cache is passed to Transformers or read from its outputs.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from transformers.modeling_outputs import BaseModelOutputWithPast

CACHE = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else "past_key_values"
CACHE_NAMES = ("cache", "past_key_values")
PREFIX_BY_ROW = CACHE != "cache"  # before 5.24 prefix_allowed_tokens_fn gets a beam's row, not the text's number


def takes_cache(forward: Callable) -> Callable:
    """Wraps a forward so that its argument `cache` can be named `past_key_values`, with a warning from 5.24 on.

    Where both are given `cache` is used, as in Transformers, unless it is empty: PEFT passes its prefix as
    `past_key_values` in every step, beside the cache of generate().
    """

    @functools.wraps(forward)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        if "past_key_values" in kwargs:
            given = kwargs.pop("past_key_values")
            if CACHE == "cache":
                warnings.warn("`past_key_values` is deprecated: use `cache` instead", FutureWarning, stacklevel=2)
            cache = kwargs.get("cache")
            if cache is None or (given is not None and not cache.get_seq_length()):
                kwargs["cache"] = given
        return forward(*args, **kwargs)

    return renamed
