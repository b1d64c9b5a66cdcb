"""Tables of results, "not recorded" where a fact is missing; templates of pages; names of languages in English."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.evaluation.scores import title_of, with_arrow

MISSING = "not recorded"
DEV = ("val", "dev")  # what development sets are called; other test sets are reported


class Score(NamedTuple):
    """A number of a results file with its label."""

    test_set: str
    protocol: str
    metric: str
    score: float
    interval: tuple[float, float] | None
    signature: str | None
    seed: Any


def scores_of(results: Iterable[Mapping[str, Any]]) -> Iterator[Score]:
    """Yields every score of results files, in their order; entries that are no scores are passed over."""
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
    """Makes a table for each protocol, so that none holds numbers of two; a column of seeds when there are several."""
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
    """Makes two columns without a head, a row for each fact; nested mappings become "key value" lists."""
    return Table(["", ""], [[name, show(value)] for name, value in facts.items()])


def show(value: Any, missing: str = MISSING) -> str:
    """Returns a recorded value as text; `missing` for None and what is empty."""
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
    """Reads a template beside this file or in another folder; a name in it that it is not given is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not autoescape,
        autoescape=autoescape,
    ).get_template(name)


def title(protocol: str, scores: Iterable[Score]) -> str:
    """Returns the title of a protocol's scores, which are among `scores`, with their tokenizers."""
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
    """Returns German for de, Chinese (Hant) for zh-Hant; a code without a name here stays as it is."""
    language, _, variety = code.partition("-")
    return f"{NAMES[language]} ({variety})" if variety and language in NAMES else NAMES.get(code, code)


def example(code: str | None) -> str:
    """Returns a sentence in that language (English when there is none)."""
    return _EXAMPLES.get(code or "en", _EXAMPLES["en"])
