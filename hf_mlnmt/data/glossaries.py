"""Glossaries: terms with the translations that they may have, and those that they must not have, from tables and TBX.

A table has a term and its translations in each row. Its header may name languages, of which those of the call are read,
and "forbidden": a translation that must not be, or a mark (x, yes, true, 1) that all of the row's must not.
"""

from __future__ import annotations

import csv
import logging
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
    else:
        _read_table(path, source, target, terms)
    return {term: {"use": use, "not": bad} if bad else use for term, (use, bad) in terms.items()}


def _read_table(path: Path, source: str | None, target: str | None, terms: dict[str, tuple[list[str], ...]]) -> None:
    sign = separator_of(path) if format_of(path) == ".csv" else ""
    names: list[str] = []
    own, others = 0, None
    for number, line in enumerate(read_lines(path, form="table"), start=1):
        cells = next(csv.reader([line], delimiter=sign), [""]) if sign else line.split("\t")
        cells = [part.strip() for part in cells]
        if number == 1 and len(cells) > 1 and looks_like_header(cells):
            log.warning("%s, line 1: is a header, no term", path)
            names = [cell.lower() for cell in cells]
            languages = [cell for cell in cells if cell.lower() not in ("forbidden", "source", "target")]
            if len(languages) > 2 or (languages and source and target):
                if source is None or target is None:
                    raise WhichLanguages(f"{path}: has {', '.join(languages)}: say which, --from and --to.")
                columns = [chosen(tuple(languages), code) for code in (source, target)]
                if None in columns:
                    raise UserError(f"{path}: has {', '.join(languages)}, not {source} and {target}.")
                own, others = (cells.index(str(column)) for column in columns)
            continue
        if not line.strip():
            continue
        at = names.index("forbidden") if "forbidden" in names else len(cells)
        term, told = cells[own], cells[at] if at < len(cells) else ""
        targets = [cell for place, cell in enumerate(cells) if place not in (own, at) and others in (None, place)]
        bad = [told] if told and told.lower() not in _MARKS else []
        if not (term and (targets or bad) and (all(targets) or bad or others is not None)):
            wanted = "term, comma, translations" if sign else "term, tab, translations"
            raise UserError(f"{path}, line {number}: {line!r} is no term; expected {wanted}.")
        use = list(filter(None, targets))
        use, bad = ([], use) if told and not bad else (use, bad)
        if use or bad:
            for some, more in zip(terms.setdefault(term, ([], [])), (use, bad)):
                some += more
