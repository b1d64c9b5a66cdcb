"""Makes tables of results ("not recorded" for missing facts), reads templates of pages, names languages in English."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from hf_mlnmt.common.languages import base_language
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.evaluation.scores import title_of, with_arrow

MISSING = "not recorded"
DEV = ("val", "dev")  # names of development sets, which are not reported as test sets


class Score(NamedTuple):
    """A score in a results file with its test set, protocol, metric, 95 % interval, signature and seed."""

    test_set: str
    protocol: str
    metric: str
    score: float
    interval: tuple[float, float] | None
    signature: str | None
    seed: Any


def scores_of(results: Iterable[Mapping[str, Any]]) -> Iterator[Score]:
    """Yields all scores in the contents of results files, in their order; skips malformed entries."""
    for result in results:
        for test_set, protocols in _items(result.get("scores")):
            for protocol, metrics in _items(protocols):
                for metric, entry in _items(metrics):
                    score = dict(_items(entry)).get("score")
                    if isinstance(score, int | float) and not isinstance(score, bool):
                        interval = tuple(entry["ci"]) if entry.get("ci") else None
                        about = (interval, entry.get("signature"), result.get("seed"))
                        yield Score(test_set, protocol, metric, float(score), *about)


def score_tables(results: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Makes a table of scores for each protocol, with a column of seeds if there are several results."""
    seeds = ["seed"] if len(results) > 1 else []
    columns = ["test set", *seeds, "metric", Number("score"), Number("95 % interval"), "signature"]
    tables: dict[str, Table] = {}
    scores = list(scores_of(results))
    for score in scores:
        seed = [show(score.seed)] if seeds else []
        interval = "{:.2f} to {:.2f}".format(*score.interval) if score.interval else MISSING
        signature = f"`{score.signature}`" if score.signature else MISSING
        cells = [score.test_set, *seed, with_arrow(score.metric), f"{score.score:.2f}", interval, signature]
        tables.setdefault(score.protocol, Table(columns, [], title(score.protocol, scores))).rows.append(cells)
    return list(tables.values())


def facts_table(facts: Mapping[str, Any]) -> Table:
    """Makes a table without header, a row (name, value) for each fact; mappings become lists of "key value"."""
    return Table(["", ""], [[name, show(value)] for name, value in facts.items()])


def show(value: Any, missing: str = MISSING) -> str:
    """Returns a value of a results file as text; `missing` for None and empty values."""
    if value is None or value == "" or value == {} or value == []:
        return missing
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6f}".rstrip("0").rstrip(".") if abs(value) >= 1e-4 or value == 0 else f"{value:g}"
    if isinstance(value, Mapping):
        known = [(key, item) for key, item in value.items() if item is not None]
        return ", ".join(f"{str(key).replace('_', ' ')} {_plain(item)}" for key, item in known) or missing
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value)
    return str(value)


@cache
def template(name: str, autoescape: bool = False, folder: Path = Path(__file__).parent) -> jinja2.Template:
    """Reads a Jinja template in this file's folder or another; rendering fails for a variable without a value."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not autoescape,
        autoescape=autoescape,
    ).get_template(name)


def title(protocol: str, scores: Iterable[Score]) -> str:
    """Returns the title of the scores of a protocol among `scores`, with BLEU's tokenizers."""
    return title_of(protocol, [score.signature for score in scores if score.protocol == protocol])


def _plain(value: Any) -> str:
    return f"({show(value)})" if isinstance(value, Mapping) else show(value)


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, Mapping) else ()


_NAMES = """ar Arabic|bg Bulgarian|cs Czech|da Danish|de German|el Greek|en English|es Spanish|et Estonian|fi Finnish|
fr French|gl Galician|he Hebrew|hi Hindi|hr Croatian|hu Hungarian|id Indonesian|it Italian|ja Japanese|ko Korean|
lt Lithuanian|lv Latvian|nl Dutch|no Norwegian|pl Polish|pt Portuguese|ro Romanian|ru Russian|sk Slovak|sl Slovenian|
sr Serbian|sv Swedish|th Thai|tr Turkish|uk Ukrainian|vi Vietnamese|zh Chinese"""
NAMES: dict[str, str] = dict(entry.strip().split(" ", 1) for entry in _NAMES.split("|"))  # type: ignore[misc]
_EXAMPLES = {
    "cs": "Muž jede na kole.",
    "de": "Ein Mann fährt Fahrrad.",
    "en": "A man rides a bicycle.",
    "es": "Un hombre monta en bicicleta.",
    "fr": "Un homme fait du vélo.",
    "it": "Un uomo va in bicicletta.",
    "ro": "Un bărbat merge pe bicicletă.",
    "vi": "Một người đàn ông đi xe đạp.",
}


def language_name(code: str) -> str:
    """Returns the English name of a language code, German for de, Chinese (Hant) for zh-Hant; unknown codes as is."""
    language, _, variety = code.partition("-")
    return f"{NAMES[language]} ({variety})" if variety and language in NAMES else NAMES.get(code, code)


def example(code: str | None) -> str:
    """Returns an example sentence in a language; in English for other languages and None."""
    return _EXAMPLES.get(base_language(code or "en"), _EXAMPLES["en"])
