"""Glossaries: terms with the translations that they may have, and those that they must not have, from tables and TBX.

A table has a term and its translations in each row. Its header may name languages, of which those of the call are read,
and "forbidden": a translation that must not be, or a mark (x, yes, true, 1) that all of the row's must not.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.bilingual import BILINGUAL, UnitReport, chosen, found_in
from hf_mlnmt.data.formats import TABLES, format_of
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.tables import looks_like_header, separator_of

log = logging.getLogger(__name__)
_MARKS = {"x", "yes", "true", "1"}
Terms = dict[str, Any]
"""{term: its translations, or {"use": translations, "not": forbidden ones} where there are such}."""


class WhichLanguages(UserError):
    """A glossary has several languages, and a call says none."""


def read_terms(path: Path, source: str | None, target: str | None) -> Terms:
    """Returns the terms of a file, for these languages where it has several.

    Raises: UserError for a row that is no term, and where a language is not there; WhichLanguages where None is given.
    """
    terms: dict[str, tuple[list[str], list[str]]] = {}
    if (ending := format_of(path)) in BILINGUAL and ending not in TABLES:
        if source is None or target is None:
            raise WhichLanguages(f"{path}: its terms are in several languages: say which, --from and --to.")
        for found in found_in(path, source, target, report := UnitReport()):
            if found.why in (None, "forbidden"):
                terms.setdefault(found.source, ([], []))[found.why is not None].extend(found.targets)
        if not terms:
            has = ", ".join(report.languages) or "none"
            raise UserError(f"{path}: has no term of {source} and {target}, but of {has}.")
        return _checked(terms)
    sign = separator_of(path) if ending == ".csv" else ""
    own, others, at = 0, None, -1
    for number, line in enumerate(read_lines(path, form="table"), start=1):
        cells = next(csv.reader([line], delimiter=sign), [""]) if sign else line.split("\t")
        cells = [part.strip() for part in cells]
        if number == 1 and len(cells) > 1 and looks_like_header(cells):
            log.warning("%s, line 1: is a header, no term", path)
            at = next((place for place, cell in enumerate(cells) if cell.lower() == "forbidden"), -1)
            own, others = _columns(path, cells, source, target)
            continue
        term, told = cells[own : own + 1], cells[at] if 0 <= at < len(cells) else ""
        targets = [cell for place, cell in enumerate(cells) if place not in (own, at) and others in (None, place)]
        bad = [told] if told and told.lower() not in _MARKS else []
        if line.strip() and not (all(term) and (targets or bad) and (all(targets) or bad or others)):
            wanted = "term, comma, translations" if sign else "term, tab, translations"
            raise UserError(f"{path}, line {number}: {line!r} is no term; expected {wanted}.")
        use = list(filter(None, targets))
        for some, more in zip(terms.setdefault(term[0], ([], [])), ([], use) if told and not bad else (use, bad)):
            some += more
    return _checked(terms)


def _columns(path: Path, header: list[str], source: str | None, target: str | None) -> tuple[int, int | None]:
    """Returns the columns of the languages that a header names; None for a target in all others."""
    languages = [cell for cell in header if cell.lower() not in ("forbidden", "source", "target")]
    if len(languages) < 3 and (not languages or source is None or target is None):
        return 0, None
    if source is None or target is None:
        raise WhichLanguages(f"{path}: has {', '.join(languages)}: say which, --from and --to.")
    own, other = (chosen(tuple(languages), code) for code in (source, target))
    if own is None or other is None:
        raise UserError(f"{path}: has {', '.join(languages)}, not {source} and {target}.")
    return header.index(own), header.index(other)


def _checked(terms: Mapping[str, tuple[list[str], list[str]]]) -> Terms:
    return {term: {"use": use, "not": bad} if bad else use for term, (use, bad) in terms.items() if use or bad}
