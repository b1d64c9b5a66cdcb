"""The first line of a tsv file: a header that names the sides, or a pair of sentences already?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_SIDES = (("source", "target"), ("src", "tgt"), ("src", "trg"))


def header_columns(cells: Sequence[str], languages: Mapping[str, str] | None) -> list[int] | None:
    """Columns (from 0) of source and target, where the cells name both: as these or by the corpus's languages."""
    names = [cell.strip().lower() for cell in cells]
    pairs = [*_SIDES, (languages["source"].lower(), languages["target"].lower())] if languages else _SIDES
    return next(
        ([names.index(source), names.index(target)] for source, target in pairs if {source, target} <= {*names}), None
    )


def looks_like_header(cells: Sequence[str]) -> bool:
    """Whether two cells or more are codes or English names of languages ("en", "German"), or names of sides."""
    words = [cell.strip() for cell in cells]
    if sum(0 < len(word) <= 12 and word.isalpha() for word in words) < 2:
        return False
    from sacremoses.corpus import NonbreakingPrefixes

    known = NonbreakingPrefixes().available_langs
    sides = {name for pair in _SIDES for name in pair}
    # Codes in small letters only: "No" and "Is" are words of a sentence.
    return sum(word in known or (len(word) > 2 and word.lower() in {*known, *sides}) for word in words) >= 2
