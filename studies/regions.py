"""Tables in pages that people write: what stands between two marks is made of results/, the zoo and the recipe's keys.

    <!-- report: results -->
    | record | ...
    <!-- /report -->

| name | what |
| --- | --- |
| results | a row for each file of results/ and test set; development sets are left out |
| results:STEM,STEM | the same of these records |
| first:STEM,STEM | the same, of each the first seed alone |
| published | what the papers print, by setup, ours beside it; then their other tables |
| published:SETUP | of one setup |
| printed:NAME | one of the papers' other tables (published.py) |
| systems:FOLDER | the systems of a comparison of runs, results/FOLDER; systems:FOLDER:NAME,NAME of these alone |
| claims:FOLDER | what the papers say of them, answered |
| front | rows of our comparisons that a reader wants first (front.py) |
| models | the models in published/ |
| keys | every key of a recipe (hf_mlnmt/recipe/schema.py) |
| study:NAME | a table of a study (monolingual_tables.py, multilingual_tables.py, decoding.py), as far as it is run |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import decoding
import monolingual_tables as monolingual
import multilingual_tables as multilingual
from claims import claims_table, comparison_pages, comparisons
from front import LEGEND, front_table, models_table
from keys_page import json_schema, keys_as_markdown, settings_as_markdown
from papers import printed_tables

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.files import write_text
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.evaluation.comparison import Comparison, read_comparison
from hf_mlnmt.evaluation.significance import LEGEND as MARKS
from hf_mlnmt.reports.comparison_page import mean_text, minutes_of, with_difference
from hf_mlnmt.reports.facts import load_results
from hf_mlnmt.reports.tables import DEV, MISSING
from hf_mlnmt.zoo.records import records_root
from published import setup_tables

BEGIN, END = re.compile(r"^<!-- report: (\S+) -->$", re.MULTILINE), "<!-- /report -->"
PAGES = ("README.md", "docs/*.md", "docs/studies/*.md")
STUDIES = {table: study for study in (monolingual, multilingual, decoding) for table in study.STUDY_TABLES}


def brief(comparison: Comparison, wanted: Sequence[str] = ()) -> Table:
    """`overview` for a page that is about more: classic BLEU alone, and the systems without their setup's name.

    wanted: these systems and the baseline; none: all. UserError for one that there is not.
    """
    names = {name.partition(".")[0]: name for name in comparison.runs}
    if gone := [name for name in wanted if name not in names]:
        raise UserError(f"no runs of {gone[0]!r}{suggest(gone[0], names)}")
    tests = [(test, protocol) for test, protocol in comparison.places if protocol == "classic"]
    rows = []
    for short, name in names.items():
        if wanted and name != comparison.baseline and short not in wanted:
            continue
        runs = comparison.runs[name]
        size = next(iter(runs.values())).get("parameters")
        millions = f"{size / 1e6:.1f}" if size else MISSING
        scores = [with_difference(comparison, name, *test) for test in tests]
        rows.append([f"`{short}`", millions, minutes_of(runs), str(len(runs)), *scores])
    columns = ["parameters (M)", "CPU minutes", "seeds", *(f"{test}, BLEU classic" for test, _ in tests)]
    return Table(["system", *map(Number, columns)], rows)


def pages(root: Path) -> list[Path]:
    """README and docs, as far as they are there."""
    return [path for pattern in PAGES for path in sorted(root.glob(pattern))]


def filled(path: Path, root: Path) -> str:
    """The page's text with every region made anew. UserError for an unknown name or a mark without its end."""
    text, found, at = path.read_text(encoding="utf-8"), [], 0
    for mark in BEGIN.finditer(text):
        line = text.count("\n", 0, mark.start()) + 1
        end = text.find(END, mark.end())
        if end < 0 or (BEGIN.search(text, mark.end(), end)):
            raise UserError(f"{path}, line {line}: {mark[0]} has no {END} behind it.")
        made = region(mark[1], root, path.parent, f"{path}, line {line}")
        found += [text[at : mark.end()], "\n", made, "\n"]
        at = end
    return "".join([*found, text[at:]])


def region(name: str, root: Path, folder: Path, where: str = "report") -> str:
    """The Markdown of one region, its links relative to `folder`. UserError for a name that there is not."""
    kind, _, rest = name.partition(":")
    link = "../" * len(folder.resolve().relative_to(root.resolve()).parts)
    if kind in ("results", "first"):
        return results_table(root, link, rest.split(",") if rest else None, where, kind == "first").markdown()
    if name == "keys":
        return keys_as_markdown()
    if name == "settings":
        return settings_as_markdown()
    if name == "models":
        return models_table(root).markdown()
    if name == "front":
        return f"{front_table(root).markdown()}\n\n{LEGEND}"
    if name == "published":
        return _published(_ours(root, link))
    if kind == "published" and rest in (tables := setup_tables(_ours(root, link))):
        return tables[rest].markdown()
    if kind == "printed" and rest in printed_tables():
        return printed_tables()[rest].table().markdown()
    if kind == "study" and rest in STUDIES:
        return _study(rest, root, link)
    compared = {path.name: path for path in comparisons(root)}
    if kind in ("systems", "claims") and rest.partition(":")[0] in compared:
        return _compared(kind, rest, compared, root, link, where)
    known = [
        "results",
        "first",
        "front",
        "models",
        "keys",
        "settings",
        "published",
        *(f"published:{one}" for one in setup_tables({})),
    ]
    known += [*(f"printed:{one}" for one in printed_tables()), *(f"study:{one}" for one in STUDIES)]
    known += [f"{part}:{one}" for part in ("systems", "claims") for one in compared]
    raise UserError(f"{where}: no region {name!r}{suggest(name, known)}. There are: {', '.join(known)}.")


def stale_pages(root: str | Path | None = None) -> dict[Path, str]:
    """The pages that do not say what results/ and the zoo say, those in results/ too, as they should be."""
    folder = _root(root)
    made = {path: filled(path, folder) for path in pages(folder)}
    made |= comparison_pages(folder) | monolingual.study_pages(folder)
    if (schema := folder / "docs" / "recipe.schema.json").is_file():
        made[schema] = json_schema()
    return {path: text for path, text in made.items() if not path.is_file() or path.read_text("utf-8") != text}


def write_pages(root: str | Path | None = None) -> list[Path]:
    """Make every region, and the pages of comparisons and studies, anew; returns the pages that changed."""
    return [write_text(path, text) for path, text in stale_pages(root).items()]


def results_table(
    root: Path, link: str = "", stems: Iterable[str] | None = None, where: str = "report", first: bool = False
) -> Table:
    """A row for each results file and test set: how it was trained, and its scores. first: no further seeds."""
    files = sorted((root / "results").glob("*.json"), key=lambda path: (_stem(path), len(path.name), path.name))
    wanted = list(stems) if stems is not None else None
    if wanted is not None and (gone := [stem for stem in wanted if stem not in map(_stem, files)]):
        raise UserError(f"{where}: no results of {gone[0]!r}{suggest(gone[0], map(_stem, files))}.")
    heads = ["cased BLEU", "classic BLEU", "chrF (cased)", "TER (cased)"]
    rows = []
    for path in files:
        if (wanted is None or _stem(path) in wanted) and not (first and path.stem != _stem(path)):
            results = load_results(path)
            seed = f", seed {results['seed']}" if results.get("seed") not in (None, 1) else ""
            name = f"[{_stem(path)}{seed}]({link}results/{path.name}){_size(results)}"
            tests = {test: of for test, of in results["scores"].items() if test not in DEV}
            rows += [[name, test, _training(results), *_scores(of)] for test, of in tests.items()]
    return Table(["record", "test set", "training", *map(Number, heads)], rows)


def _stem(path: Path) -> str:
    return re.sub(r"\.seed\d+$", "", path.name.removesuffix(".json"))


def _size(results: Mapping[str, Any]) -> str:
    parameters = results.get("parameters")
    return f", {parameters / 1e6:.1f} M parameters" if isinstance(parameters, int) else ""


def _training(results: Mapping[str, Any]) -> str:
    budget = results.get("budget") or {}
    known = {"steps": "{:,} steps", "epochs": "{:.1f} epochs", "cpu_minutes": "{:.0f} CPU minutes"}
    return ", ".join(text.format(budget[key]) for key, text in known.items() if budget.get(key) is not None) or MISSING


def _scores(protocols: Mapping[str, Any]) -> list[str]:
    columns = [("cased", "BLEU"), ("classic", "BLEU"), ("cased", "chrF"), ("cased", "TER")]
    found = [protocols.get(protocol, {}).get(metric, {}).get("score") for protocol, metric in columns]
    return [f"{score:.2f}" if score is not None else MISSING for score in found]


def _ours(root: Path, link: str) -> dict[str, str]:
    """{record: mean of its seeds' cased BLEU on its first test set, linked}."""
    by_stem: dict[str, list[Path]] = {}
    for path in sorted((root / "results").glob("*.json")):
        by_stem.setdefault(_stem(path), []).append(path)
    found = {}
    for stem, paths in by_stem.items():
        results = [load_results(path) for path in paths]
        tests = [test for test in results[0]["scores"] if test not in DEV]
        scores = [one["scores"][tests[0]]["cased"]["BLEU"]["score"] for one in results] if tests else []
        if scores:
            seeds = f" ({len(scores)} seeds)" if len(scores) > 1 else ""
            found[stem] = f"[{mean_text(scores)}{seeds}]({link}results/{paths[0].name})"
    return found


def _study(name: str, root: Path, link: str) -> str:
    """A table of a study, and where it is from; a sentence where nothing is there yet."""
    study = STUDIES[name]
    folder = f"results/{study.STUDY_FOLDER}"
    tables = study.study_tables(root / folder)
    if name not in tables:
        return "Not run yet."
    page = f"{folder}/{study.PAGES[name]}" if hasattr(study, "PAGES") else f"{folder}/README.md"
    return f"{tables[name].markdown()}\n\nOf [{folder}]({link}{page}). {study.LEGEND}"


def _compared(kind: str, rest: str, compared: Mapping[str, Path], root: Path, link: str, where: str) -> str:
    """A table of a comparison of runs, and where it is from."""
    name, _, systems = rest.partition(":")
    comparison = read_comparison(compared[name])
    place = f"{link}{compared[name].relative_to(root).as_posix()}/README.md"
    if kind == "claims":
        table = claims_table(comparison, compared[name])
        return "Nothing to say yet." if table is None else f"{table.markdown()}\n\nBy the rule of [its page]({place})."
    try:
        table = brief(comparison, systems.split(",") if systems else ())
    except UserError as error:
        raise UserError(f"{where}: {error}.") from error
    return (
        f"{table.markdown()}\n\nOf [results/{name}]({place}): means over seeds ± standard deviation, in brackets the "
        f"difference to the first row over the seeds that both have. {MARKS} That number is {len(comparison.tests)}."
        f"{comparison.note}"
    )


def _published(ours: Mapping[str, str]) -> str:
    blocks = []
    for setup, table in setup_tables(ours).items():
        blocks += [f"### {setup}", table.markdown()]
    for printed in printed_tables().values():
        blocks += [f"### {printed.title}", f"{printed.source}.", printed.table().markdown()]
    return "\n\n".join(blocks)


def _root(root: str | Path | None) -> Path:
    return Path(root) if root is not None else records_root()
