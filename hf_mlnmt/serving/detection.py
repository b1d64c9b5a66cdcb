"""Which of the served languages a text is in: py3langid (naive Bayes over byte sequences, 150 languages)."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from hf_mlnmt.errors import UserError

_SHORT = 40  # characters below which the other texts of a request say more
_LONGEST = 2_000  # characters that are looked at


class Detected(NamedTuple):
    """A language and how sure it is: a probability among all languages, in percent."""

    language: str
    confidence: float


def rank(text: str, served: Collection[str]) -> list[Detected]:
    """The served languages that can be told apart, the likeliest first; of a text without letters one at 0.

    Raises: UserError where none can be, or without py3langid.
    """
    model = _model()
    if not any(one in model.labels for one in served):
        raise UserError(f"none of the served languages ({', '.join(served)}) can be detected: say which it is.")
    if not any(map(str.isalpha, text)):
        return [Detected("en" if "en" in served else next(iter(served)), 0.0)]
    ranked = [Detected(code, round(100 * share, 1)) for code, share in model.rank(text[:_LONGEST])]
    return [one for one in ranked if one.language in served]


def languages(texts: Sequence[str], served: Collection[str]) -> list[Detected]:
    """The language of each text; short ones have that of all together."""
    together = functools.cache(lambda: rank(" ".join(one[:_SHORT] for one in texts), served)[0])
    return [rank(one, served)[0] if len(one) > _SHORT or len(texts) == 1 else together() for one in texts]


@functools.cache
def _model() -> Any:
    """Loaded when it is first needed, which takes a second."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise UserError("to detect languages, py3langid is needed: pip install 'hf-mlnmt[serve]'.") from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
