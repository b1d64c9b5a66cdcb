"""The rows of the study of text of one language (monolingual.py): what each is made of, as recipes and commands.

| name | row |
| --- | --- |
| parallel, parallel-long | the baseline; the baseline with twice the steps |
| bt-METHOD-RATIO | back-translation: beam, sampled or tagged; 1 : 0.5, 1, 2 or 4 |
| pretrain-OBJECTIVE, pretrain-both | begins as trained on text; both: encoder of cloze, the rest of pseudo-encoder |
| pretrain-together | begins as trained on both in turns: its one table of embeddings is of both languages |
| pretrain-together-long | the same with four times the steps before |
| pretrain-...-biling | the same on the parallel data's own side: the effect of the added loss alone |
| multitask-OBJECTIVE, multitask-cloze-and-lm | the baseline's steps of translation, and as many of each other task |
| fusion-LEVEL, fusion-LEVEL-biling | a language model in the search alone: of all text, of the parallel target side |
| trained-CRITERION-TEXT-TEXT | the fused loss, a language model of the first text; the search with that of the second |
| bt-fusion, bt-pretrain, bt-pretrain-fusion | back-translation with beams at 1:1, and the others upon it |
| bt-pretrain-long | back-translation with beams at 1:1, beginning as pretrain-together-long |
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BASE = "multi30k-ende-short"
TAG, TEST, DEV, DEV_LINES = "<bt>", "test_2016_flickr", "val", 1014
RATIOS = (0.5, 1, 2, 4)
BT_METHODS = {"beam": "beam", "sampled": "sampling", "tagged": "beam"}  # row -> method of the text
SOURCE, TARGET = ("encoder-lm", "encoder-cloze"), ("decoder-lm", "pseudo-encoder")
LEVELS, TEXTS = ("sequence", "symbol"), ("mono", "biling")
CRITERIA: dict[str, Any] = {
    "symbol": "fusion-symbol",
    "n-best": {"name": "fusion-n-best", "n": 12},
    "trellis": {"name": "fusion-trellis", "beams": 12, "k": 1},
}
HEADLINE = (
    "parallel", "bt-beam-1", "multitask-decoder-lm", "pretrain-both", "fusion-sequence", "fusion-symbol",
    "bt-fusion", "bt-pretrain", "bt-pretrain-fusion",
)  # fmt: skip
LONG = 4  # times the steps of a pre-training that is to be long
SPARE = 1.2  # lines of text for each pair that is needed: some are dropped

# Processor minutes of the tiny shape on one core, for the estimate alone.
STEP, SCORING, LINES = 10 / 2606, 0.5, 150 * 60  # of a training step; of two test sets; lines translated in a minute
SHARES = {"decoder-lm": 0.5, "encoder-lm": 0.6, "encoder-cloze": 0.6, "pseudo-encoder": 1.0}  # of STEP
FUSED_SHARES = {"symbol": 0.5, "n-best": 5.5, "trellis": 34.0}  # of STEP, with a quarter of its batch


def _rest() -> Iterator[str]:
    yield from (f"fusion-{level}-biling" for level in LEVELS)
    yield from (f"trained-symbol-{one}-{other}" for one in TEXTS for other in TEXTS)
    yield from (f"trained-n-best-{text}-mono" for text in TEXTS)
    yield "trained-trellis-mono-mono"
    yield from ("pretrain-together", "pretrain-together-long", "bt-pretrain-long")
    yield from (f"pretrain-{name}" for name in (*SOURCE, *TARGET))
    yield from (f"bt-{method}-{_written(ratio)}" for ratio in RATIOS for method in BT_METHODS)
    yield "parallel-long"
    yield from (f"multitask-{name}" for name in (*SOURCE, *TARGET, "cloze-and-lm"))
    yield from (f"pretrain-{name}-biling" for name in (*SOURCE, *TARGET, "both"))


def _written(ratio: float) -> str:
    return f"{ratio:g}".replace(".", "_")  # a dot would end the name of the row


ROWS = tuple(dict.fromkeys((*HEADLINE, *_rest())))


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

    def side(self, objective: str) -> str:
        """The language of an objective's text."""
        return self.source if objective in SOURCE else self.target

    def text(self, objective: str, text: str = "mono") -> list[dict[str, Any]]:
        """Its side of the parallel data; of "mono" with the captions in its language."""
        language = self.side(objective)
        own: dict[str, Any] = {"path": f"train.{language}.gz", "language": language, "limit": self.pairs}
        return [own, {"path": f"monolingual/train.{language}.gz", "language": language}][: 1 + (text == "mono")]


@dataclass(frozen=True)
class Work:
    """Something that is made once.

    name: unique. kind: train, translate, grid or score. folder: where it lies. minutes: estimated, of processor time.
    needs: what is made before. recipe: of a training. commands: of hf-mlnmt, known when what it needs is there.
    of: of a score the row whose translation model it is; scales: its grid's folder.
    """

    name: str
    kind: str
    folder: Path
    minutes: float
    needs: tuple[Work, ...] = ()
    recipe: dict[str, Any] | None = field(default=None, compare=False)
    commands: Callable[[], list[list[str]]] = field(default=list, compare=False)
    of: Work | None = None

    def all(self) -> Iterator[Work]:
        """What it needs, at any depth, in order, and itself; some of it more than once."""
        for work in self.needs:
            yield from work.all()
        yield self


@dataclass(frozen=True)
class Rows:
    """Makes the work of each row. root: folder of everything; data: the corpus; steps: of a training."""

    root: Path
    data: Path
    steps: int
    fused_steps: int
    grid_sentences: int
    first_seed: int = 1

    def row(self, setting: Setting, name: str, seed: int) -> Work:
        """The work of a row; its folder is a run's for `hf-mlnmt compare`."""
        kind, _, rest = name.partition("-")
        if name in ("bt-fusion", "bt-pretrain-fusion"):
            return self._fused(setting, name, seed, "bt-beam-1" if name == "bt-fusion" else "bt-pretrain", "sequence")
        if kind == "fusion":
            level, _, text = rest.partition("-")
            return self._fused(setting, name, seed, "parallel", level, text or "mono")
        if kind == "trained":
            return self._trained(setting, name, seed, *rest.rsplit("-", 2))
        if kind == "multitask":
            return self._multitask(setting, name, seed, rest)
        beginning = {"bt-pretrain": "both", "bt-pretrain-long": "together-long"}.get(name, rest)
        begin = self._beginning(setting, beginning) if "pretrain" in name else {}
        change: dict[str, Any] = {}
        if begin:
            change["init_from"] = {part: f"{work.folder}/best" for part, work in begin.items()}
        needs = tuple(begin.values())
        if kind == "bt":
            method, _, ratio = ("beam-1" if begin else rest).partition("-")
            synthetic = self._synthetic(setting, BT_METHODS[method])
            corpus = {"synthetic": str(synthetic.folder), "ratio": float(ratio.replace("_", "."))}
            corpus["tag"] = TAG if method == "tagged" else ""
            change["data"] = {**self._corpora(setting), "train": [setting.parallel(), corpus]}
            needs += (synthetic,)
        return self._translation(setting, name, seed, change, needs, 2 if name == "parallel-long" else 1)

    def _corpora(self, setting: Setting) -> dict[str, Any]:
        tests = {name: setting.parallel(name) for name in (DEV, TEST)}
        return {"train": setting.parallel(), "dev": setting.parallel(DEV), "test": tests}

    def _training(
        self, stem: str, seed: int, recipe: dict[str, Any], needs: tuple[Work, ...], steps: int, share: float = 1.0
    ) -> Work:
        name = f"{stem}.seed{seed}"
        content = {"extends": BASE, **recipe, "budget": {"steps": steps}}
        folder, path = self.root / "runs" / name, self.root / "recipes" / f"{stem}.yaml"
        words = ["train", str(path), "--data", str(self.data), "--output", str(folder), "--seed", str(seed)]
        return Work(name, "train", folder, steps * STEP * share + SCORING, needs, content, lambda: [words])

    def _translation(
        self, setting: Setting, name: str, seed: int, change: dict[str, Any], needs: tuple[Work, ...], times: int
    ) -> Work:
        content: dict[str, Any] = {
            "languages": {"source": setting.source, "target": setting.target},
            "data": self._corpora(setting),
            **change,
        }
        if name == "parallel":
            content["tokenizer"] = {"tags": [TAG]}  # of the same data, so the same for every seed
        else:
            needs = (self.row(setting, "parallel", self.first_seed), *needs)
            content["tokenizer"] = {"path": self._tokenizer(setting)}
        stem = f"{name}.{setting}"
        return self._training(stem, seed, content, needs, self.steps * times)

    def _tokenizer(self, setting: Setting) -> str:
        return str(self.root / "runs" / f"parallel.{setting}.seed{self.first_seed}" / "tokenizer")

    # Text of one language

    def text_training(self, setting: Setting, objective: str, text: str = "mono") -> Work:
        """A language model or a pre-training, on the side that it is for: "mono", all text, or "biling"."""
        language = setting.side(objective)
        small = {"system": "lm", "shape": "tiny", "settings": {"norm_position": "pre"}}
        content = {
            "objective": {"name": objective, "label_smoothing": 0.0},
            "languages": {"source": language, "target": language},
            "data": {
                "train": setting.text(objective, text),
                "dev": {"path": f"{DEV}.{language}.gz"},
                "test": {name: {"path": f"{name}.{language}.gz"} for name in (DEV, TEST)},
            },
            **({"model": small} if objective == "decoder-lm" else {}),
            "tokenizer": {"path": self._tokenizer(setting)},
            "evaluation": {"metrics": [], "best": "loss"},
        }
        needs = (self.row(setting, "parallel", self.first_seed),)
        stem = f"text-{objective}-{text}.{setting}"
        return self._training(stem, self.first_seed, content, needs, self.steps, SHARES[objective])

    def _beginning(self, setting: Setting, what: str) -> dict[str, Work]:
        """init_from: part -> the pre-training."""
        text = "biling" if what.endswith("-biling") else "mono"
        what = what.removesuffix("-biling")
        if what in ("together", "together-long"):
            return {"all": self.together(setting, what, LONG if what == "together-long" else 1)}
        parts = {"encoder": "encoder-cloze", "all": "pseudo-encoder"} if what == "both" else {"all": what}
        return {part: self.text_training(setting, objective, text) for part, objective in parts.items()}

    def together(self, setting: Setting, name: str, times: int) -> Work:
        """One model trained on cloze and pseudo-encoder in turns, as often as each alone, or more `times`."""
        objectives = ("encoder-cloze", "pseudo-encoder")
        content = {
            "languages": {"source": setting.source, "target": setting.target},
            "data": {"train": None, "dev": None, "test": {}},
            "tasks": {objective: self._task(setting, objective) for objective in objectives},
            "tokenizer": {"path": self._tokenizer(setting)},
            "label_smoothing": 0.0,
            "evaluation": {"metrics": [], "best": "pseudo-encoder_loss"},
        }
        needs = (self.row(setting, "parallel", self.first_seed),)
        steps, share = times * len(objectives) * self.steps, sum(SHARES[name] for name in objectives) / len(objectives)
        return self._training(f"{name}.{setting}", self.first_seed, content, needs, steps, share)

    def _task(self, setting: Setting, objective: str) -> dict[str, Any]:
        language = setting.side(objective)
        dev = {"path": f"{DEV}.{language}.gz", "language": language}
        return {"data": setting.text(objective), "objective": objective, "dev": dev}

    def _multitask(self, setting: Setting, name: str, seed: int, what: str) -> Work:
        tasks: dict[str, Any] = {"translation": {"data": setting.parallel()}}
        for objective in ["encoder-cloze", "decoder-lm"] if what == "cloze-and-lm" else [what]:
            tasks[objective] = self._task(setting, objective)
        change = {"data": {**self._corpora(setting), "train": None}, "tasks": tasks}
        return self._translation(setting, name, seed, change, (), len(tasks))

    # Back-translation

    def _synthetic(self, setting: Setting, method: str) -> Work:
        model = self.row(setting.turned, "parallel", self.first_seed)
        lines, folder = math.ceil(setting.pairs * max(RATIOS) * SPARE), self.root / "synthetic" / f"{setting}.{method}"
        text = self.data / "monolingual" / f"train.{setting.target}.gz"
        words = ["back-translate", f"{model.folder}/average", str(text), "-o", str(folder), "--method", method]
        command = [*words, "--limit", str(lines)]
        return Work(f"{setting}.{method}", "translate", folder, lines / LINES, (model,), None, lambda: [command])

    # Fusion

    def _grid(self, setting: Setting, model: Work, level: str, text: str) -> Work:
        """Scores of val for all scales: of symbol level, with its many points, on the first sentences."""
        language_model = self.text_training(setting, "decoder-lm", text)
        name = f"{model.name.rsplit('.', 1)[0]}.{level}-{text}"
        fused, folder = self.root / "fused" / name, self.root / "grids" / name
        source, reference = self._files(setting, DEV)
        grid = ["analyse", "fusion-grid", str(fused), "-s", source, "-r", reference, "-o", str(folder), "--no-progress"]
        points, sentences = (63, min(self.grid_sentences, DEV_LINES)) if level == "symbol" else (8, DEV_LINES)
        grid += ["--sentences", str(sentences)] if level == "symbol" else []
        members = [f"{model.folder}/average", f"{language_model.folder}/best"]
        commands = [["model", "fuse", *members, "-o", str(fused), "--normalization", level, "--force"], grid]
        minutes, needs = points * sentences * 2 / LINES, (model, language_model)
        return Work(f"grid-{name}", "grid", folder, minutes, needs, None, lambda: commands)

    def _fused(self, setting: Setting, name: str, seed: int, row: str, level: str, text: str = "mono") -> Work:
        """A row's model and a language model; the row's first seed chooses the scales, for all seeds."""
        grid = self._grid(setting, self.row(setting, row, self.first_seed), level, text)
        return self._searched(setting, name, seed, self.row(setting, row, seed), grid, level, text)

    def _searched(self, setting: Setting, name: str, seed: int, model: Work, grid: Work, level: str, text: str) -> Work:
        stem, language_model = f"{name}.{setting}", self.text_training(setting, "decoder-lm", text)
        folder, fused = self.root / "runs" / f"{stem}.seed{seed}", self.root / "fused" / f"{stem}.seed{seed}"

        def commands() -> list[list[str]]:
            alpha, beta = best_scales(grid.folder)
            members = [f"{model.folder}/average", f"{language_model.folder}/best"]
            scales = ["--alpha", str(alpha), "--beta", str(beta), "--normalization", level]
            found = [["model", "fuse", *members, "-o", str(fused), *scales, "--force"]]
            for test in (DEV, TEST):
                source, reference = self._files(setting, test)
                lines = str(folder / "translations" / f"{test}.average.{setting.target}")
                output = ["--save-translations", lines, "--test-set", test, "--output", str(folder / SCORES)]
                words = ["evaluate", str(fused), "--source", source, "--reference", reference]
                found.append([*words, "--language", setting.target, *output])
            return found

        needs = (model, language_model, grid)
        return Work(f"{stem}.seed{seed}", "score", folder, 2 * SCORING, needs, None, commands, model)

    def _files(self, setting: Setting, part: str) -> tuple[str, str]:
        return str(self.data / f"{part}.{setting.source}.gz"), str(self.data / f"{part}.{setting.target}.gz")

    def _trained(self, setting: Setting, name: str, seed: int, criterion: str, text: str, searched: str) -> Work:
        """A few steps of the fused loss from the baseline, with the scales of the untrained fused model."""
        level = "symbol" if criterion == "symbol" else "sequence"
        translation = self.row(setting, "parallel", seed)
        language_model, steps = self.text_training(setting, "decoder-lm", text), self.fused_steps
        fuse = {"translation": f"{translation.folder}/average", "language_model": f"{language_model.folder}/best"}
        content = {
            "languages": {"source": setting.source, "target": setting.target},
            "data": {**self._corpora(setting), "train": None},
            "tasks": {"fusion": {"data": setting.parallel(), "objective": CRITERIA[criterion]}},
            "model": {"fuse": {**fuse, "alpha": 1.0, "beta": 0.1, "normalization": level}},
            "tokenizer": {"path": self._tokenizer(setting)},
            "label_smoothing": 0.0,
            "batch": {"tokens": 256},
            "optimizer": {"learning_rate": 1.0e-4, "weight_decay": 0.0},
            "schedule": {"warmup": max(1, steps // 10)},
            "evaluation": {"every": max(1, steps // 4)},
            "checkpoints": {"average": 1},
            "logging": {"every": max(1, steps // 20)},
        }
        share, needs = FUSED_SHARES[criterion], (translation, language_model)
        stem = f"fused-loss-{criterion}-{text}.{setting}"
        trained = self._training(stem, seed, content, needs, steps, share)
        grid = self._grid(setting, self.row(setting, "parallel", self.first_seed), level, searched)
        return self._searched(setting, name, seed, trained, grid, level, searched)


SCORES = "scores.json"


def best_scales(grid: Path) -> tuple[float, float]:
    """alpha and beta of the highest BLEU with a language model, of a folder of `hf-mlnmt analyse fusion-grid`."""
    rows = json.loads((grid / "grid.json").read_text(encoding="utf-8"))["rows"]
    best = max((row for row in rows if row["beta"] and row["alpha"]), key=lambda row: (row["BLEU"], row["beta"]))
    return best["alpha"], best["beta"]
