"""The study of back-translation on Multi30k: ratios and methods, two directions, little and all of the parallel data.

    python studies/back_translation.py --data DIR --output studies/runs --dry-run
    python studies/back_translation.py --data DIR --output studies/runs --seeds 1,2,3 --pairs 10000

DIR holds train, val and test_2016_flickr (en, de) and monolingual/train.en.gz, train.de.gz: captions of the same images
by other writers. Everything is done by the verbs of hf-mlnmt, each of which goes on where it was stopped: so does this.

1. `hf-mlnmt sweep`: the systems on parallel data alone, both directions: the baselines, and each other's translators.
2. `hf-mlnmt back-translate`: the target side's captions, by each method.
3. `hf-mlnmt sweep`: the settings of the baseline (training/transformer.multi30k-ende-short.yaml: the same steps and
   batches) on parallel and synthetic pairs at each ratio, with the baseline's tokenizer.
4. A table in the form of the thesis's 4.30, and its numbers as JSON.

Departs from the thesis: one epoch of a higher ratio is longer, and all rows have the same steps, so fewer epochs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hf_mlnmt.files import write_json, write_text
from hf_mlnmt.table import Number, Table

BASE = "transformer.multi30k-ende-short"
TAG = "<bt>"
METHODS = {"beam": "beam", "sampled": "sampling", "tagged": "beam"}  # row -> method of the text
TEST = "test_2016_flickr"
SPARE = 1.2  # lines of text for each pair that is needed: some are dropped


@dataclass(frozen=True)
class Setting:
    """A direction and how many parallel pairs there are."""

    source: str
    target: str
    pairs: int

    def __str__(self) -> str:
        return f"{self.source}{self.target}-{self.pairs}"

    @property
    def turned(self) -> Setting:
        """The other direction."""
        return Setting(self.target, self.source, self.pairs)

    def parallel(self, part: str = "train") -> dict[str, Any]:
        """A corpus of a recipe."""
        files = {"source": f"{part}.{self.source}.gz", "target": f"{part}.{self.target}.gz"}
        return {"files": files, **({"limit": self.pairs} if part == "train" else {})}


@dataclass(frozen=True)
class Row:
    """A system: a setting, with synthetic pairs of a method at a ratio."""

    setting: Setting
    method: str | None = None
    ratio: float = 0

    @property
    def stem(self) -> str:
        """The recipe's name: what stands before its first dot is the system's."""
        ratio = f"{self.ratio:g}".replace(".", "_")
        return f"{f'{self.method}-{ratio}' if self.method else 'parallel'}.{self.setting}"


class Study:
    """The rows, and where everything lies."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.output = options, Path(options.output)
        pairs = [int(number) for number in options.pairs.split(",")]
        directions = [direction.split("-") for direction in options.directions.split(",")]
        self.settings = [Setting(source, target, count) for count in pairs for source, target in directions]
        self.ratios = [float(number) for number in options.ratios.split(",")]
        self.methods = options.methods.split(",")
        both = [setting for one in self.settings for setting in (one, one.turned)]
        self.parallel = [Row(setting) for setting in dict.fromkeys(both)]
        self.rows = [
            Row(setting, method, ratio) for setting in self.settings for method in self.methods for ratio in self.ratios
        ]

    def synthetic(self, setting: Setting, method: str) -> Path:
        """The folder of a synthetic corpus."""
        return self.output / "synthetic" / f"{setting}.{METHODS[method]}"

    def recipe(self, row: Row) -> dict[str, Any]:
        """The keys of a row's recipe."""
        setting = row.setting
        data: dict[str, Any] = {"train": setting.parallel(), "dev": setting.parallel("val")}
        data["test"] = {name: setting.parallel(name) for name in ("val", TEST)}
        content: dict[str, Any] = {"extends": BASE, "model": {"record": BASE}}
        content |= {"languages": {"source": setting.source, "target": setting.target}, "data": data}
        if row.method is None:
            return {**content, "tokenizer": {"tags": [TAG]}}
        corpus: dict[str, Any] = {"synthetic": str(self.synthetic(setting, row.method)), "ratio": row.ratio}
        corpus["tag"] = TAG if row.method == "tagged" else ""
        data["train"] = [setting.parallel(), corpus]
        first = self.options.seeds.split(",")[0]
        return {
            **content,
            "tokenizer": {"path": str(self.output / f"parallel/{Row(setting).stem}.seed{first}/tokenizer")},
        }

    def write_recipes(self) -> None:
        """All recipes, in recipes/."""
        for row in (*self.parallel, *self.rows):
            text = yaml.safe_dump(self.recipe(row), sort_keys=False)
            write_text(self.output / "recipes" / f"{row.stem}.yaml", f"# Made by studies/back_translation.py\n{text}")

    def commands(self) -> Iterator[list[str]]:
        """Each command of hf-mlnmt, in order."""
        options = self.options
        yield self._sweep("parallel", self.parallel)
        for setting in self.settings:
            for method in dict.fromkeys(METHODS[name] for name in self.methods):
                lines = math.ceil(setting.pairs * max(self.ratios) * SPARE)
                first = options.seeds.split(",")[0]
                model = self.output / "parallel" / f"{Row(setting.turned).stem}.seed{first}" / "average"
                text = Path(options.data) / "monolingual" / f"train.{setting.target}.gz"
                folder = self.output / "synthetic" / f"{setting}.{method}"
                yield ["back-translate", str(model), str(text), "-o", str(folder), "-m", method, "--limit", str(lines)]
        yield self._sweep("rows", self.rows)

    def _sweep(self, name: str, rows: list[Row]) -> list[str]:
        recipes = [str(self.output / "recipes" / f"{row.stem}.yaml") for row in rows]
        words = ["sweep", *recipes, "--data", self.options.data, "-o", str(self.output / name)]
        words += ["--seeds", self.options.seeds, "--order", "seeds", "--jobs", str(self.options.jobs)]
        return [*words, *(word for setting in self.options.set or [] for word in ("--set", setting))]

    def results(self, row: Row) -> list[dict[str, Any]]:
        """Results files of a row's seeds, as far as they are there."""
        folder = self.output / ("rows" if row.method else "parallel")
        paths = [folder / f"{row.stem}.seed{seed}" / "results.json" for seed in self.options.seeds.split(",")]
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]

    def table(self) -> Table:
        """Ratios and methods down, settings across: BLEU and TER of val (as 4.30) and BLEU of the test set, cased."""
        kinds = [(None, 0.0), *((method, ratio) for method in self.methods for ratio in self.ratios)]
        names = [[f"{setting} {score}" for score in ("val BLEU", "val TER", "test BLEU")] for setting in self.settings]
        columns = ["human:synthetic", *(Number(name) for group in names for name in group), Number("seeds")]
        lines = []
        for method, ratio in kinds:
            cells, seeds = [], []
            for setting in self.settings:
                found = self.results(Row(setting, method, ratio))
                cells += [_mean(found, *place) for place in (("val", "BLEU"), ("val", "TER"), (TEST, "BLEU"))]
                seeds.append(len(found))
            lines.append([f"{method} 1:{ratio:g}" if method else "none (baseline)", *cells, str(min(seeds))])
        return Table(columns, lines, "Back-translation on Multi30k, equal steps, cased (means over seeds)")

    def summary(self) -> dict[str, Any]:
        """Every number of the table with the run's own budget and data."""
        rows = [row for row in (*self.parallel, *self.rows) if self.results(row)]
        return {
            row.stem: [
                {key: result[key] for key in ("seed", "budget", "data", "scores")} for result in self.results(row)
            ]
            for row in rows
        }


def _mean(results: list[dict[str, Any]], test: str, metric: str) -> str:
    scores = [result["scores"][test]["cased"][metric]["score"] for result in results]
    return f"{statistics.mean(scores):.2f}" if scores else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the corpus")
    parser.add_argument("--output", required=True, help="folder of everything that is made")
    parser.add_argument("--directions", default="de-en,en-de")
    parser.add_argument("--pairs", default="10000,29000", help="parallel pairs, the first of the corpus")
    parser.add_argument("--ratios", default="0.5,1,2,4")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"of {', '.join(METHODS)}")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--set", action="append", help="KEY.SUB=VALUE for every training, as to try it all quickly")
    parser.add_argument("--dry-run", action="store_true", help="write the recipes, print the commands, start nothing")
    options = parser.parse_args()
    study = Study(options)
    study.write_recipes()
    for words in study.commands():
        print("hf-mlnmt", *words, flush=True)
        if not options.dry_run and (code := subprocess.run([sys.executable, "-m", "hf_mlnmt", *words]).returncode):
            sys.exit(code)
    if options.dry_run:
        return
    write_json(study.output / "back-translation.json", study.summary())
    page = f"{study.table().markdown()}\n"
    write_text(study.output / "back-translation.md", page)
    print(page)


if __name__ == "__main__":
    main()
