"""Detection of a text's language, served or not: py3langid (naive Bayes over byte sequences, 140 languages)."""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import base_language, is_within

_SHORT = 40  # characters below which the other texts of a request say more
_LONGEST = 2_000  # characters that are looked at
_PRIOR = 1.25  # times as likely is the first served language before anything is read
_NEVER = 0.1  # of an even share, below which a text is in no served language, whichever it is in
SURE = 40.0  # percent, below which a text is taken to be in the first served language


class Detected(NamedTuple):
    """A language and its confidence in percent: 0 where it is no likelier than the others, 100 if certain; `taken_as`:
    the served one that a text of a language that is not served is translated as."""

    language: str
    confidence: float
    taken_as: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields that are not None, for JSON."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def rank(text: str, served: Collection[str]) -> list[Detected]:
    """Returns the served languages that can be detected, the likeliest first; of a text without letters the first at 0.
    A language that is not served goes before them where the text is surely in that.

    Raises: UserError where none can be, or without py3langid.
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
    """Returns the language of each text; short ones have that of all together, unsure ones the first that is served.

    Raises: UserError as `rank`; where `strict`, for a text whose language is not sure, or surely not served.
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
    """Returns whether a text is surely in `other`, and not in `language`; of a short one nothing is sure."""
    ranked = rank(text, (language, other)) if len(text) > _SHORT else [Detected(language, 0.0)]
    best = next(each for each in ranked if each.language in (language, other))
    return best.language == other and best.confidence >= SURE


@functools.lru_cache(16)
def _model(known: tuple[str, ...] | None) -> Any:
    """Returns the model of these languages, or of all; loading it takes a second."""
    if known is not None:
        model = copy.copy(_model(None))
        model.set_languages(known)
        return model
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise UserError("to detect languages, py3langid is needed: pip install 'hf-mlnmt[serve]'.") from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
