"""Detection of the language of texts, by py3langid (naive Bayes over byte sequences, 140 languages).

Served languages are those that the caller's model can translate from.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import base_language, is_within

_SHORT = 40  # a text of at most so many characters gets the language of all texts of its request together
_LONGEST = 2_000  # characters of a text that are read
_PRIOR = 1.25  # factor on the probability of the first served language
_NEVER = 0.1  # share of the mean probability of all languages below which no served language is possible
SURE = 40.0  # percent of confidence below which a text counts as of the first served language


class Detected(NamedTuple):
    """A language and its confidence in percent: 0 where it is no likelier than the others, 100 if certain; `taken_as`:
    for a language that is not served, the served language that the text is translated as."""

    language: str
    confidence: float
    taken_as: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields that are not None, for JSON."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def rank(text: str, served: Collection[str]) -> list[Detected]:
    """Returns the served languages that can be detected, the likeliest first; before them a language that is not
    served, where the text is surely in it. A text without letters: the first served language alone, with confidence 0.

    Raises: UserError where no served language can be detected, or without py3langid.
    """
    codes = {base_language(code): code for code in reversed([*served])}
    known = tuple(label for label in dict.fromkeys(map(base_language, served)) if label in _model(None).labels)
    if not known:
        raise UserError(f"none of the served languages ({', '.join(served)}) can be detected: say which it is.")
    first = next(iter(served))
    if not any(map(str.isalpha, text)):
        return [Detected(first, 0.0)]
    every, others = _model(None).rank(text[:_LONGEST]), list[Detected]()
    of_served = [share for label, share in every if any(is_within(label, code) for code in served)]
    label, share = every[0]
    likelier = share not in of_served and label != "zxx"
    if likelier and (100 * share >= SURE or max(of_served) < _NEVER / len(every)):
        others = [Detected(label, round(100 * share, 1))]
    ranks = ((codes[label], share) for label, share in _model(known).rank(text[:_LONGEST]))
    weights = {code: share * (_PRIOR if code == first else 1) for code, share in ranks}
    total, even = sum(weights.values()), 1 / len(known)
    above = {code: (weight / total - even) / (1 - even) if even < 1 else 1.0 for code, weight in weights.items()}
    ranked = sorted(above, key=lambda code: -above[code])
    rest = 1 - sum(other.confidence for other in others) / 100
    return [*others, *(Detected(code, round(100 * rest * max(above[code], 0.0), 1)) for code in ranked)]


def languages(texts: Sequence[str], served: Collection[str], strict: bool = False) -> list[Detected]:
    """Returns the language of each text: of a short text that of all texts together, of an unsure one the first served.

    Raises: UserError as `rank`; if `strict`, also for a text whose language is not sure, or is surely not served.
    """
    together = functools.cache(lambda: rank(" ".join(text[:_SHORT] for text in texts), served))
    detected = []
    for number, text in enumerate(texts, 1):
        best, *others = rank(text, served) if len(text) > _SHORT or len(texts) == 1 else together()
        if best.language not in served:
            if strict:
                raise UserError(
                    f"source: text {number} looks like {best.language} ({best.confidence:g} %), which is not served; "
                    f"known: {', '.join(served)}."
                )
            best = best._replace(taken_as=others[0].language)
        elif best.confidence < SURE:
            if strict:
                raise UserError(
                    f"source: the language of text {number} is not sure ({best.language} at {best.confidence:g} %, "
                    f"{SURE:g} are needed): say which it is."
                )
            first = next(iter(served))
            best = next((other for other in [best, *others] if other.language == first), Detected(first, 0.0))
        detected.append(best)
    return detected


def is_of_another(text: str, language: str, other: str) -> bool:
    """Returns whether a text is surely in the language `other` rather than `language`; False for a short text."""
    ranked = rank(text, (language, other)) if len(text) > _SHORT else [Detected(language, 0.0)]
    best = next(each for each in ranked if each.language in (language, other))
    return best.language == other and best.confidence >= SURE


@functools.lru_cache(16)
def _model(known: tuple[str, ...] | None) -> Any:
    """Returns py3langid's model for these languages; for all if None, which takes a second to load."""
    if known is not None:
        model = copy.copy(_model(None))
        model.set_languages(known)
        return model
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise UserError("to detect languages, py3langid is needed: pip install 'hf-mlnmt[serve]'.") from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
