"""The differences between the releases of Transformers that this package supports.

From 5.24 on generate(), the masks and the outputs say `cache`; before they said `past_key_values`. Here it is `cache`:
`takes_cache` makes every forward that has one take the other name too, and `CACHE` is the field of an output in the
installed release. Whoever hands a cache to Transformers, or takes one from it, asks here for the name.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from transformers.modeling_outputs import BaseModelOutputWithPast

CACHE = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else "past_key_values"
CACHE_NAMES = ("cache", "past_key_values")
PREFIX_BY_ROW = CACHE != "cache"  # before 5.24 prefix_allowed_tokens_fn is asked for the row where a text has several


def takes_cache(forward: Callable) -> Callable:
    """Lets a forward with an argument `cache` take `past_key_values` too; from 5.24 on it warns, as Transformers do.

    Where both are given `cache` counts, as in Transformers, unless it holds nothing yet: PEFT hands its prefix over as
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
