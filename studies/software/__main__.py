"""Makes a parallel corpus, English and another language, out of the translations in Debian's packages.

    python -m studies.software de -o FOLDER

Packages and what is read of them stay in the cache: run it again after an interruption, and it goes on.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_folder, read_json, write_json
from hf_mlnmt.common.made_from import digest, sha256
from hf_mlnmt.data.filters import FilterReport

from . import clean, packages, readers, sets


def read_entry(entry: packages.Entry, language: str, cache: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Returns what the manifest says of an entry, and its pairs as `rows`, from the cache where nothing changed.

    Raises: Missing for a package that apt does not know; UserError for one that cannot be fetched or read.
    """
    label = entry.label(language)
    kept = cache / "pairs" / language / f"{label.replace(' (', '.').rstrip(')')}.json"
    asked = digest([readers.VERSION, vars(entry), language])
    if kept.is_file() and (known := read_json(kept)).get("asked") == asked:
        return known
    (own, other), files = packages.read_sides(entry, language, cache)
    report = FilterReport()
    pairs = readers.KINDS[entry.kind](own, other, lambda text: tell(f"  {label}: {text}"))
    rows = [list(pair) for pair in clean.kept(pairs, report)]
    found: dict[str, Any] = {"asked": asked, "package": label, "project": entry.project, "licence": entry.licence}
    found |= {"files": {path.name: sha256(path) for path in files}}  # whose names hold the versions
    found |= {"pairs": len(rows), "words": sum(len(source.split()) for _, source, _ in rows)}
    found |= {"left out": dict(report.dropped), "rows": rows}
    write_json(kept, found)
    return found


def run(language: str, folder: Path, cache: Path, tell: Callable[[str], None]) -> None:
    """Fetches, reads, divides and writes.

    Raises: UserError for a folder that holds something else, and where the packages have no text of the language.
    """
    if not re.fullmatch("[a-z]{2,3}([_-][A-Za-z]+)?", language) or language == "en":
        raise UserError(f"{language}: is no code of a language other than English. Name one as packages do: de, pt_BR.")
    if folder.exists() and not (folder / "manifest.json").is_file():
        raise UserError(f"{folder}: holds something else. Name a new folder, or one that this wrote.")
    (cache / "pairs" / language).mkdir(parents=True, exist_ok=True)
    rows = list[sets.Row]()
    said: dict[str, Any] = {"training": {}, "licences": Counter(), "packages": [], "missing": {}}
    for entry in packages.read_list():
        label = entry.label(language)
        try:
            found = read_entry(entry, language, cache, tell)
        except packages.Missing as error:  # as where a project is not translated into the language
            said["missing"][label] = str(error)
            tell(f"{label}: left out: {error}")
            continue
        rows += [sets.Row(entry.project, label, *row) for row in found.pop("rows")]
        said["packages"].append(found)
        said["licences"][entry.licence] += found["pairs"]
        tell(f"{label}: {found['pairs']:,} pairs, {found['words']:,} words")
    parts, said["training"] = sets.divide(rows)
    if empty := " and ".join(name for name in ("train", "dev") if not parts[name]):
        raise UserError(f"{language}: the packages have no pairs for {empty}. Is it a code of a language?")
    write(folder, language, parts, said, tell)


def write(
    folder: Path, language: str, parts: dict[str, Any], said: dict[str, Any], tell: Callable[[str], None]
) -> None:
    """Writes each set that has pairs as two files of lines and one of JSON about them, manifest.json, recipe.yaml."""
    sources, described = {name: [row.source for row in rows] for name, rows in parts.items()}, dict[str, Any]()
    near = sets.near({name: sources[name] for name in sources if name.startswith("test.")}, sources["train"])
    with atomic_folder(folder) as new:
        for name, rows in sorted(parts.items()):
            if not rows:
                tell(f"{name}: no pairs, so no files")
                continue
            about = [dict[str, Any](project=row.project, package=row.package, key=row.key) for row in rows]
            columns = {"en": sources[name], language: [row.target for row in rows]}
            words = sum(len(text.split()) for text in columns["en"])
            described[name] = own = dict[str, Any](pairs=len(rows), words=words)
            own["projects"] = dict(Counter(row.project for row in rows).most_common())
            if name in near:
                about = [{**one, "near": match} for one, match in zip(about, near[name])]
                own["near"] = sum(map(bool, near[name]))
            columns["jsonl"] = [json.dumps(one, ensure_ascii=False) for one in about]
            for ending, lines in columns.items():
                (new / f"{name}.{ending}").write_text("".join(f"{line}\n" for line in lines), "utf-8")
            own["sha256"] = {ending: sha256(new / f"{name}.{ending}") for ending in columns}
            tell(f"{name}: {', '.join(f'{own[key]:,} {key}' for key in ('pairs', 'words', 'near') if key in own)}")
        write_json(new / "manifest.json", {"language": language, "sets": described, **said})
        (new / "recipe.yaml").write_text(yaml.safe_dump(recipe_of(language, list(described)), sort_keys=False), "utf-8")


def recipe_of(language: str, names: list[str]) -> dict[str, Any]:
    """Returns the recipe of a model from English, which extends that of German, by the names of the sets."""
    files = {name: {"files": {"source": f"{name}.en", "target": f"{name}.{language}"}} for name in names}
    tests = {name.removeprefix("test."): of_set for name, of_set in files.items() if name.startswith("test.")}
    data = {"train": files["train"], "dev": files["dev"], "test": tests or {"dev": files["dev"]}}
    known = {"extends": "software-ende", "languages": {"source": "en", "target": language}, "data": data}
    return {**known, "tokenizer": {"vocab_size": 8000}}


def main(words: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.software", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("language", help="a code as the packages have it: de, fr, cs, pt_BR")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--cache", type=Path, default=Path("software-cache"), help="for packages [software-cache]")
    options = parser.parse_args(words)
    try:
        run(options.language, options.output, options.cache, partial(print, flush=True))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
