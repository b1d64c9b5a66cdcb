"""The study of text of one language on Multi30k: every method alone and together, two directions, few pairs and all.

    python studies/monolingual.py --data DIR --output studies/runs --dry-run
    python studies/monolingual.py --data DIR --output studies/runs --rows headline --seeds 1,2,3 --pairs 10000

DIR holds train, val and test_2016_flickr (en, de) and monolingual/train.en.gz, train.de.gz: captions of the same images
by other writers. Everything is done by verbs of hf-mlnmt, each of which goes on where it was stopped: so does this, and
what is done is not looked at again. monolingual_rows.py says what the rows are.

All trainings have the settings of training/multi30k-ende-short/base.yaml and --steps steps, pre-trainings and
language models too; multi-task has as many of translation, so the double of all. Fused models are searched with the
scales that were best on val. Other seeds than the first are of the headline rows with the fewest pairs; what these need
beside the baseline (pre-training, language models, scales, synthetic text) is of the first.

After each row its setting's comparison (`hf-mlnmt compare --methods`) and the tables are made anew, in --results.
Departs from the thesis: one epoch of a higher ratio is longer, and all rows have the same steps, so fewer epochs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from monolingual_rows import BASE, HEADLINE, ROWS, SCORES, Rows, Setting, Work
from monolingual_tables import STUDY, study_page

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.files import write_json, write_text
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.recipe.reading import read_recipe

Planned = tuple[Setting, str, int]


def relative(path: str) -> Path:
    """As seen from here: what is stored holds no path of this machine."""
    return Path(os.path.relpath(path))


class Study:
    """The rows in their order, and where everything lies."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.output, self.data = options, relative(options.output), relative(options.data)
        self.results = relative(options.results) if options.results else self.output / "results"
        self.seeds = [int(seed) for seed in options.seeds.split(",")]
        pairs = sorted(int(number) for number in options.pairs.split(","))
        directions = [direction.split("-") for direction in options.directions.split(",")]
        self.settings = [Setting(source, target, count) for count in pairs for source, target in directions]
        self.rows = Rows(
            self.output, self.data, options.steps, options.fused_steps, options.grid_sentences, self.seeds[0]
        )
        self.failed: dict[str, str] = {}

    def names(self) -> list[str]:
        """The rows asked for, in the order in which they are made. UserError for one that there is not."""
        asked = self.options.rows
        if asked in ("all", "headline"):
            return list(ROWS if asked == "all" else HEADLINE)
        names = asked.split(",")
        if wrong := [name for name in names if name not in ROWS]:
            raise UserError(f"--rows {wrong[0]}: no such row{suggest(wrong[0], ROWS)}. Rows: {', '.join(ROWS)}.")
        return ["parallel", *(name for name in ROWS if name in names and name != "parallel")]

    def planned(self) -> Iterator[Planned]:
        """Every row with its seed. Of a setting first the headline, then its other seeds, then the rest."""
        first, *others = self.seeds
        for setting in self.settings:
            names = self.names()
            head = [name for name in names if name in HEADLINE]
            yield from ((setting, name, first) for name in head)
            if setting.pairs == self.settings[0].pairs:
                yield from ((setting, name, seed) for seed in others for name in head)
            yield from ((setting, name, first) for name in names if name not in HEADLINE)

    def works(self) -> dict[str, Work]:
        """Everything that the rows need, once, in order."""
        found: dict[str, Work] = {}
        for planned in self.planned():
            for work in self.rows.row(*planned).all():
                found.setdefault(work.name, work)
        return found

    # Running

    def run(self) -> int:
        """Make what is missing; the exit code. A work that fails stops only what needs it."""
        for setting, name, seed in self.planned():
            row = self.rows.row(setting, name, seed)
            for work in row.all():
                self._make(work)
            if self.is_done(row):
                self._compare(setting, row)
                self.write()
        for name, why in self.failed.items():
            print(f"failed: {name}: {why}", file=sys.stderr)
        return 1 if self.failed else 0

    def _make(self, work: Work) -> None:
        if work.name in self.failed:
            return
        if lacking := [need.name for need in work.needs if need.name in self.failed]:
            self.failed[work.name] = f"needs {lacking[0]}"
            return
        self.write_recipe(work)
        commands = work.commands()
        if self.is_done(work):
            return
        started = time.time()
        for words in commands:
            if code := self._call(words):
                self.failed[work.name] = f"hf-mlnmt {' '.join(words[:2])} ... ended with {code}"
                return
        if work.of is not None:
            finish(work)
        content = {"made_of": self._digest(work), "minutes": round((time.time() - started) / 60, 2)}
        write_json(self._mark(work), content)

    def _call(self, words: list[str]) -> int:
        print("hf-mlnmt", *words, flush=True)
        code = subprocess.run([sys.executable, "-m", "hf_mlnmt", *words]).returncode
        if code < 0 or code in (130, 143):  # by a signal: the user wants all of it to stop
            sys.exit(128 - code if code < 0 else code)
        return code

    def _compare(self, setting: Setting, row: Work) -> None:
        baseline = self.rows.row(setting, "parallel", self.seeds[0])
        folder, mark = self.results / str(setting), self.output / "done" / f"{row.name}.compared"
        if mark.is_file() and (folder / f"{row.name}.json").is_file():
            return
        runs = dict.fromkeys([str(baseline.folder), str(row.folder)])
        if row is baseline or len(runs) == 1:
            return
        words = ["compare", *runs, "--methods", "--output", str(folder), "--data", str(self.data)]
        if code := self._call(words):
            self.failed[f"{row.name}, compared"] = f"hf-mlnmt compare ended with {code}"
        else:
            write_text(mark, "")

    def write_recipe(self, work: Work) -> None:
        """The YAML of a training, unless it is there as it would be; read once, so that mistakes are found early."""
        if work.recipe is None:
            return
        path = self.output / "recipes" / f"{work.name.rsplit('.', 1)[0]}.yaml"
        text = f"# Made by studies/monolingual.py\n{yaml.safe_dump(self._changed(work.recipe), sort_keys=False)}"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
            read_recipe(path)

    def _changed(self, recipe: dict[str, Any]) -> dict[str, Any]:
        """With the keys of --set, for all trainings."""
        content = json.loads(json.dumps(recipe))
        for setting in self.options.set or []:
            name, _, value = setting.partition("=")
            *outer, last = name.split(".")
            inner = content
            for key in outer:
                inner = inner.setdefault(key, {})
            inner[last] = yaml.safe_load(value)
        return content

    def is_done(self, work: Work) -> bool:
        """Whether it was made, by the same commands and recipe."""
        mark = self._mark(work)
        return mark.is_file() and json.loads(mark.read_text(encoding="utf-8"))["made_of"] == self._digest(work)

    def _mark(self, work: Work) -> Path:
        return self.output / "done" / f"{work.name}.json"

    def _digest(self, work: Work) -> str:
        recipe = None if work.recipe is None else self._changed(work.recipe)
        try:
            commands = work.commands()
        except FileNotFoundError:  # its grid is not there, so it was not made
            commands = []
        # As they were before there were groups of verbs: what was made then is not made again.
        commands = [words[1:] if words[0] in ("model", "analyse") else words for words in commands]
        return hashlib.sha256(json.dumps([recipe, commands]).encode()).hexdigest()

    # What is found

    def write(self) -> None:
        """study.json, with what no comparison has, and the page of tables.

        What an earlier queue put there, from folders that this one does not have, stays.
        """
        facts = self.facts()
        if (self.results / STUDY).is_file():
            facts = with_earlier(facts, _read(self.results / STUDY))
        write_json(self.results / STUDY, facts)
        write_text(self.results / "README.md", study_page(self.results))

    def facts(self) -> dict[str, Any]:
        """Perplexities of models of text, grids, synthetic corpora and the courses of fused losses, by setting."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for work in self.works().values():
            if not self.is_done(work):
                continue
            name, setting = _parts(work)
            kinds = found.setdefault(setting, {"texts": {}, "grids": {}, "synthetic": {}, "fused_losses": {}})
            if work.kind == "grid":
                rows = _read(work.folder / "grid.json")["rows"]
                kept = ("alpha", "beta", "BLEU", "TER", "length_ratio")
                kinds["grids"][name] = [{key: row[key] for key in kept} for row in rows]
            elif work.kind == "translate":
                kinds["synthetic"][name] = _read(work.folder / "manifest.json")["counts"]
            elif name.startswith("text-"):
                results = _read(work.folder / "best" / "results.json")
                kinds["texts"][name] = {key: results[key] for key in ("perplexity", "budget")}
            elif name.startswith("fused-loss-"):
                results = _read(work.folder / "results.json")
                lines = (work.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
                losses = [line for line in map(json.loads, lines) if "loss" in line]
                terms = ("step", "loss", "loss_log_q", "loss_log_z")
                course = [{key: line[key] for key in terms if key in line} for line in losses]
                kinds["fused_losses"][name] = {"dev": results["dev"], "losses": course, "budget": results["budget"]}
        return {"base": BASE, "seeds": self.seeds, "settings": found}

    def dry(self) -> None:
        """Write the recipes; print rows, what is to be made for each, and estimates. Nothing is started."""
        lines, seen, left = [], set(), 0.0
        counts: dict[str, int] = {}
        for setting, name, seed in self.planned():
            row = self.rows.row(setting, name, seed)
            new = [work for work in dict.fromkeys(row.all()) if work.name not in seen and not self.is_done(work)]
            for work in new:
                self.write_recipe(work)
                counts[work.kind] = counts.get(work.kind, 0) + 1
            seen |= {work.name for work in new}
            minutes = sum(work.minutes for work in new)
            left += minutes
            made = ", ".join(_parts(work)[0] if work is not row else "the row" for work in new) or "nothing"
            lines.append([str(setting), name, str(seed), made, f"{minutes:.0f}", f"{left:.0f}"])
        columns = ["setting", "row", Number("seed"), "to be made", Number("CPU minutes"), Number("up to here")]
        print(Table(columns, lines, "The study of text of one language").markdown())
        kinds = {"train": "trainings", "translate": "corpora to translate", "grid": "grids", "score": "fused searches"}
        total = ", ".join(f"{counts.get(kind, 0)} {what}" for kind, what in kinds.items())
        print(
            f"\n{len(lines)} rows to see; left: {total}; about {left:.0f} CPU minutes on one core ({left / 60:.1f} h)"
        )


def with_earlier(facts: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """The facts, and of the earlier ones what they do not have."""
    settings = {name: dict(kinds) for name, kinds in facts["settings"].items()}
    for name, kinds in earlier["settings"].items():
        own = settings.setdefault(name, {})
        for kind, found in kinds.items():
            own[kind] = {**found, **own.get(kind, {})}
    return {**facts, "seeds": sorted({*facts["seeds"], *earlier["seeds"]}), "settings": settings}


def finish(work: Work) -> None:
    """results.json of a fused search as that of a run: its translation model's, with its own scores."""
    assert work.of is not None
    model, scored = _read(work.of.folder / "results.json"), _read(work.folder / SCORES)
    own = {key: scored[key] for key in ("scores", "outputs", "parameters", "command")}
    fuse = work.commands()[0]
    made = f"searched with {' '.join(fuse)}"
    write_json(
        work.folder / "results.json",
        {**model, **own, "system": work.name.rsplit(".", 1)[0], "made_by": [*model.get("made_by", []), made]},
    )


def _parts(work: Work) -> tuple[str, str]:
    """The name without setting and seed, and the setting."""
    if work.kind == "translate":
        setting, method = work.name.split(".")
        return method, setting
    name, setting, rest = (*work.name.split("."), "")[:3]
    return f"{name}.{rest}" if work.kind == "grid" else name, setting


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--data", required=True, help="folder of the corpus")
    found.add_argument("--output", required=True, help="folder of everything that is made")
    found.add_argument("--results", help="folder of comparisons and tables; default: OUTPUT/results")
    found.add_argument("--rows", default="all", help="headline, all, or names with commas between them")
    found.add_argument("--directions", default="de-en,en-de")
    found.add_argument("--pairs", default="10000,29000", help="parallel pairs, the first of the corpus")
    found.add_argument("--steps", type=int, default=2606, help="of each training")
    found.add_argument("--fused-steps", type=int, default=200, help="of the trainings with a fused loss")
    found.add_argument(
        "--seeds", default="1", help="1,2,3: others than the first for headline rows of the fewest pairs"
    )
    found.add_argument("--grid-sentences", type=int, default=300, help="of val, for the symbol level's 63 points")
    found.add_argument("--set", action="append", help="KEY.SUB=VALUE for every training, as to try it all quickly")
    found.add_argument(
        "--dry-run", action="store_true", help="write the recipes, print rows and estimates, start nothing"
    )
    return found


def main(words: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    try:
        study = Study(parser().parse_args(words))
        if study.options.dry_run:
            study.dry()
            return 0
        return study.run()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
