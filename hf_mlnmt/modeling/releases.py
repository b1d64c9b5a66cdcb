"""What differs between the releases of Transformers that this package supports: the name of the decoder's cache.

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


def takes_cache(forward: Callable) -> Callable:
    """A forward with an argument `cache` that also takes `past_key_values`; from 5.24 on it warns, as Transformers do.

    Raises: ValueError when both are given.
    """

    @functools.wraps(forward)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        if "past_key_values" in kwargs:
            given = kwargs.pop("past_key_values")
            if CACHE == "cache":
                warnings.warn("`past_key_values` is deprecated: use `cache` instead", FutureWarning, stacklevel=2)
            if kwargs.get("cache") is None:
                kwargs["cache"] = given
            elif given is not None:
                raise ValueError("cache and past_key_values are two names of one argument: give one of them")
        return forward(*args, **kwargs)

    return renamed
