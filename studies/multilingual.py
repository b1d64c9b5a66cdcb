"""The study of many languages on Multi30k: bilingual LSTMs, the attention bridge, zero-shot, a tagged Transformer.

    python studies/multilingual.py --data DIR --output runs/many --dry-run
    python studies/multilingual.py --data DIR --output runs/many --updates 800 --rows copies,tagged

DIR holds train, val and test_2016_flickr of cs, de, en and fr. Everything is done by the verbs of hf-mlnmt, each of
which goes on where it was stopped: so does this. Several can run side by side with other --rows.

1. `hf-mlnmt tokenizer`: one vocabulary of the four languages, which every row uses.
2. `hf-mlnmt train`: one row after the other, each direction with the same number of updates (--updates): a model of
   twelve directions has twelve times the steps of a bilingual one; bilingual ones marked x4 have as many updates as
   each encoder and decoder of the model of sixteen directions has. Recipes differ from training/multi30k-many
   in directions and steps, and in the learning rate of the LSTMs, which was chosen on val; the tagged Transformer has
   the settings of the zoo's short recipe.
3. `hf-mlnmt evaluate --matrix` and `hf-mlnmt analyse retrieve` for each model of many languages.
4. Tables, and everything as JSON in --results.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from multilingual_tables import STUDY, study_tables

from hf_mlnmt.common.files import read_json, write_json, write_text
from hf_mlnmt.recipe.reading import trained_pairs
from hf_mlnmt.recipe.schema import Directions

LANGUAGES = ("cs", "de", "en", "fr")
TEST = "test_2016_flickr"
LEFT_OUT = ("de-fr", "fr-de")


@dataclass(frozen=True)
class Row:
    """A model of the study: what of training/multi30k-many it extends, its directions, other keys of its recipe."""

    name: str
    what: str
    recipe: str = "bridge-rnn"
    directions: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    """Other keys of the recipe."""
    system: str | None = None
    """In the place of the recipe's, at its shape."""
    times: int = 1
    """Updates, in units of --updates."""

    @property
    def trained(self) -> int:
        """How many directions are trained, copies among them."""
        given = Directions(list(LANGUAGES), "train.<language>.gz", **{"copies": True, **self.directions})
        pairs = trained_pairs(given, self.name)
        return len(pairs) + (len(set(itertools.chain(*pairs))) if given.copies else 0)


def _pair(name: str, what: str, pair: str, **more: Any) -> Row:
    return Row(f"{name}.{pair}", f"{what}, {pair}", directions={"pairs": [pair], "copies": False}, **more)


# Those of training/multi30k-ende-short/base.yaml, found best on val for short runs of the Transformer.
PRE_NORM, POST_NORM = {"norm_position": "pre"}, {"norm_position": "post"}
SHORT = {"optimizer": {"name": "adamw", "learning_rate": 5e-3, "weight_decay": 0.2}, "schedule": {"warmup": 300}}
ADAM = {"optimizer": {"name": "adam", "learning_rate": 2e-3, "weight_decay": 0.0}}
PRINTED, FREE = ({"penalty_weight": weight} for weight in (1.0, 0.0))  # the paper's lambda; the recipe has none
FROM_AND_TO_ENGLISH = {"pairs": "with-en", "copies": False}
HEADLINE = [
    Row("copies", "bridge, many-to-many with A -> A"),
    _pair("rnn-x4", "no bridge, x4", "de-en", system="rnn", times=4),
    _pair("bridge-x4", "bridge, x4", "de-en", times=4),
    *(_pair("rnn", "no bridge", pair, system="rnn") for pair in ("de-en", "en-de")),
    *(_pair("bridge", "bridge", pair) for pair in ("de-en", "en-de")),
    Row("left-out-copies", "bridge, without de-fr, with A -> A", directions={"leave_out": ["de-fr"]}),
    Row("tagged", "tagged Transformer, many-to-many", "base", {"copies": False}, PRE_NORM, SHORT),
    Row("many", "bridge, many-to-many", directions={"copies": False}),
    Row("left-out", "bridge, without de-fr", directions={"leave_out": ["de-fr"], "copies": False}),
    _pair("rnn-x4", "no bridge, x4", "en-de", system="rnn", times=4),
    _pair("bridge-x4", "bridge, x4", "en-de", times=4),
]
MORE = [
    Row("tagged-post", "tagged Transformer, post-norm, Adam, 2e-3", "base", {"copies": False}, POST_NORM, ADAM),
    Row("with-english", "bridge, six directions", directions=FROM_AND_TO_ENGLISH),
    Row("with-english-copies", "bridge, six directions, with A -> A", directions={"pairs": "with-en"}),
    Row("transformer-copies", "bridge of Transformers, with A -> A", "bridge-transformer"),
    *(Row(f"copies-k{k}", f"the same with k = {k}", settings={"bridge_heads": k}) for k in (1, 25, 50)),
    *(_pair(f"bridge-k{k}", f"bridge, k = {k}", "de-en", settings={"bridge_heads": k}) for k in (1, 25, 50)),
    *(_pair("bridge-k10-free", "bridge, k = 10, no penalty", pair, settings=FREE) for pair in ("de-en", "en-de")),
    _pair("bridge-k50-free", "bridge, k = 50, no penalty", "de-en", settings={**FREE, "bridge_heads": 50}),
    *(
        _pair(f"bridge-penalty-{weight}", f"bridge, penalty {weight}", "de-en", settings={"penalty_weight": weight})
        for weight in (0.1, 0.01)
    ),
    Row("copies-free", "bridge, many-to-many with A -> A, no penalty", settings=FREE),
    Row("many-free", "bridge, many-to-many, no penalty", "bridge-rnn", {"copies": False}, FREE),
    Row(
        "left-out-copies-free",
        "bridge, without de-fr, with A -> A, no penalty",
        "bridge-rnn",
        {"leave_out": ["de-fr"]},
        FREE,
    ),
    Row(
        "left-out-free",
        "bridge, without de-fr, no penalty",
        "bridge-rnn",
        {"leave_out": ["de-fr"], "copies": False},
        FREE,
    ),
    Row("with-english-free", "bridge, six directions, no penalty", "bridge-rnn", FROM_AND_TO_ENGLISH, FREE),
    *(_pair("bridge-x4-free", "bridge, x4, no penalty", pair, settings=FREE, times=4) for pair in ("de-en", "en-de")),
]
ROWS = {row.name: row for row in [*HEADLINE, *MORE]}


class Study:
    """The rows, and where everything lies."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.output = options, Path(options.output)
        names = options.rows.split(",") if options.rows else [row.name for row in HEADLINE]
        if unknown := [name for name in names if name not in ROWS]:
            sys.exit(f"--rows: there is no row {unknown[0]!r}. There are: {', '.join(ROWS)}.")
        self.rows = [ROWS[name] for name in names]

    def run(self, row: Row) -> Path:
        """The run's folder."""
        return self.output / f"{row.name}.seed{self.options.seed}"

    def recipe(self, row: Row) -> dict[str, Any]:
        """The keys of a row's recipe."""
        steps = self.options.updates * row.trained * row.times
        content: dict[str, Any] = {"extends": f"multi30k-many/{row.recipe}"}
        content |= {"directions": row.directions} if row.directions else {}
        if row.system:
            content["model"] = {"system": row.system, "settings": None}
        else:
            printed = PRINTED if row.recipe.startswith("bridge") else {}
            content["model"] = {"settings": {**printed, **row.settings}}
        if row.recipe == "bridge-rnn":
            content["optimizer"] = {"learning_rate": self.options.learning_rate}
        content |= {"tokenizer": {"path": str(self.output / "tokenizer")}, "budget": {"steps": steps}}
        content["batch"] = {"tokens": 1024}
        content["schedule"] = {"warmup": min(400, steps // 4)}
        best = "loss" if row.trained == 1 else "mean_loss"
        content["evaluation"] = {"every": max(100, steps // 4), "metrics": [], "best": best}
        return {**content, **row.keys, "checkpoints": {"keep": 2, "average": 1}}

    def commands(self) -> Iterator[list[str]]:
        """Each command of hf-mlnmt, in order."""
        data, output = Path(self.options.data), self.output
        if not (output / "tokenizer").is_dir():
            files = [str(data / f"train.{language}.gz") for language in LANGUAGES]
            codes = ["--languages", ",".join(LANGUAGES)]
            yield ["tokenizer", *files, "-v", "10000", *codes, "-o", str(output / "tokenizer")]
        for row in self.rows:
            run = self.run(row)
            recipe = output / "recipes" / f"{row.name}.yaml"
            text = yaml.safe_dump(self.recipe(row), sort_keys=False)
            write_text(recipe, f"# Made by studies/multilingual.py: {row.what}\n{text}")
            if not (run / "results.json").is_file():
                words = ["train", str(recipe), "--data", str(data), "--output", str(run)]
                yield [*words, "--seed", str(self.options.seed)]
            if len(row.directions.get("pairs", [])) == 1:
                continue
            if not (run / "matrix.json").is_file():
                yield ["evaluate", str(run), "--matrix", "--data", str(data)]
            if not (run / "retrieval.json").is_file():
                files = [f"{language}={data / f'{TEST}.{language}.gz'}" for language in LANGUAGES]
                tagged = ["--to", "en"] if row.recipe == "base" else []
                yield ["analyse", "retrieve", str(run / "average"), *files, *tagged, "-o", str(run / "retrieval.json")]

    def keep(self) -> None:
        """What is kept of every finished run, in --results: a file each, and the names of all rows."""
        for row in ROWS.values():
            run = self.run(row)
            if (run / "results.json").is_file():
                content = read_json(run / "results.json")
                for name in ("matrix", "retrieval"):
                    if (run / f"{name}.json").is_file():
                        content[name] = read_json(run / f"{name}.json")
                write_json(Path(self.options.results) / f"{row.name}.seed{self.options.seed}.json", content)
        write_json(Path(self.options.results) / STUDY, {"rows": {row.name: row.what for row in ROWS.values()}})


def page(options: Any) -> str:
    """The page beside the results, of all rows that there are."""
    command = f"python studies/multilingual.py --data DIR --output runs/many --updates {options.updates}"
    tables = study_tables(options.results)
    wanted = [row.what for row in HEADLINE if not list(Path(options.results).glob(f"{row.name}.seed*.json"))]
    return (
        "# Many languages on Multi30k\n\n"
        f"Made by `{command} --seed {options.seed}` from the files beside this page: results of the runs with their "
        "budgets, commands, versions and signatures, the matrix of all directions with the share of translations in "
        "a wrong language, and accuracy@1 of translation retrieval among the 1,000 sentences of test_2016_flickr (mean "
        "of twelve directions; of the tagged Transformer the means of its states, <2en> before every text).\n\n"
        f"Tiny shape, one vocabulary of 10,000 subwords for cs, de, en and fr. Each direction has {options.updates} "
        "updates of at most 1,024 target tokens; bilingual models marked x4 have as many as each encoder and decoder "
        "of the model of sixteen directions. The LSTMs' learning rate was chosen on val (a pair of languages, 800 "
        "updates: 1e-3, 2e-3, 4e-3, 8e-3 gave a loss of 4.26, 3.83, 3.35, 3.35); the tagged Transformer has the "
        "settings of the zoo's short recipe, chosen on val too. One seed: what differs little need not differ with "
        "another one.\n\n"
        + "".join(f"{table.title}\n\n{table.markdown()}\n\n" for table in tables.values())
        + (f"Not run yet: {'; '.join(wanted)}.\n" if wanted else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the corpus")
    parser.add_argument("--output", required=True, help="folder of everything that is made")
    parser.add_argument("--results", default="results/multi30k-many", help="folder of what is kept")
    parser.add_argument("--rows", help=f"of {', '.join(ROWS)}; default: those before with-english")
    parser.add_argument("--updates", type=int, default=800, help="updates of each direction")
    parser.add_argument("--learning-rate", type=float, default=4e-3, help="of the LSTMs; the Transformer has its own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true", help="write the recipes, print the commands, start nothing")
    options = parser.parse_args()
    study = Study(options)
    for words in study.commands():
        print("hf-mlnmt", *words, flush=True)
        if not options.dry_run and (code := subprocess.run([sys.executable, "-m", "hf_mlnmt", *words]).returncode):
            sys.exit(code)
    if options.dry_run:
        return
    study.keep()
    for table in study_tables(options.results).values():
        print(table.markdown())
    write_text(Path(options.results) / "README.md", page(options))


if __name__ == "__main__":
    main()
