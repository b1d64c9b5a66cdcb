"""Rounds: trainings that build on one another, each on what a model of an earlier round translated for it.

Reference: back-translation as in the thesis on monolingual data, 4.3: a round in the other direction, then one on its
translations. More rounds iterate it in both directions (Hoang et al. 2018, "Iterative Back-Translation for Neural
Machine Translation").

| in the folder | what |
| --- | --- |
| <round>.synthetic/ | what was translated for it, with its manifest |
| <round>/ | its training, as any other's |
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation import Results
from hf_mlnmt.generation.back_translation import Method, Settings, Watcher, back_translate
from hf_mlnmt.recipe.building import build
from hf_mlnmt.recipe.reading import REVERSE, lay_over, read_content, recipe_of, turn_round
from hf_mlnmt.recipe.schema import FILE_NAME, Recipe, Round, TranslationSection
from hf_mlnmt.training.run import run_recipe
from hf_mlnmt.zoo.records import record_path


@dataclass
class Stage:
    """A round, checked: its recipe is without the synthetic corpus, which may not be there yet."""

    name: str
    round: Round
    recipe: Recipe
    method: Method | None = None
    settings: Settings | None = None

    @property
    def translation(self) -> TranslationSection | None:
        """What is translated for it."""
        return self.round.translate

    def files(self, data: Path) -> list[Path]:
        """The text that is translated."""
        assert self.translation is not None
        text = self.translation.text
        return [data / name for name in ([text] if isinstance(text, str) else text)]


class Rounds:
    """The rounds of a recipe, in order, and the folder that they are in.

    Args:
        path: a recipe with `rounds`, or the name of a record.
        settings, seed: replace keys of all rounds, as of `read_recipe`.

    Raises: UserError naming the round and the key.
    """

    def __init__(
        self,
        path: str | Path,
        data: str | Path = ".",
        output: str | Path | None = None,
        settings: list[str] | tuple[str, ...] = (),
        seed: int | None = None,
        console: Console | None = None,
    ) -> None:
        self.path, self.data = record_path("training", path), Path(data)
        self.console = console or Console(stderr=True)
        content, lines = read_content(self.path, settings, seed)
        named = self.path.stem if seed is None else f"{self.path.stem}.seed{seed}"
        self.output = Path(output or Path("runs") / named)
        described = content.pop("rounds", None)
        if not described or not isinstance(described, dict):
            raise UserError(f"{self.path}: rounds: expected names of rounds with their keys; see docs/training.md.")
        recipe_of(copy.deepcopy(content), self.path, lines)  # its mistakes, with their lines
        self.stages: dict[str, Stage] = {}
        for name, keys in described.items():
            self.stages[name] = self._stage(str(name), keys or {}, content)

    def _stage(self, name: str, keys: Any, content: dict[str, Any]) -> Stage:
        at = ("rounds", name)
        where = f"{self.path}: {'.'.join(at)}"
        if not FILE_NAME.fullmatch(name) or name.endswith(".synthetic"):
            raise UserError(f"{where}: the name is a folder's: letters, digits and _ . + - are expected.")
        described = build(Round, keys, str(self.path), at)
        own = copy.deepcopy(lay_over(content, described.recipe))
        own["model"] = own.get("model") or {"record": self.path.stem}
        if own.get(REVERSE, False) is not described.reverse:
            own[REVERSE] = True
            turn_round(own)
        own[REVERSE] = False
        recipe = recipe_of(own, self.path.with_name(f"{self.path.stem}.{name}.yaml"))
        stage = Stage(name, described, recipe)
        if described.translate is None:
            if described.ratio is not None:
                raise UserError(f"{where}.ratio: there is no synthetic corpus; say with translate what is translated.")
            return stage
        section = described.translate
        if recipe.data.train is None:
            raise UserError(f"{where}: synthetic corpora of rounds are added to data.train, not to tasks.")
        method = {"name": section.method} if isinstance(section.method, str) else section.method
        stage.method = build(Method, method, str(self.path), (*at, "translate", "method"))
        stage.settings = build(Settings, section.settings, str(self.path), (*at, "translate", "settings"))
        if section.tag and recipe.tokenizer.path is None and section.tag not in recipe.tokenizer.tags:
            raise UserError(
                f"{where}.translate.tag: the tokenizer will have no token {section.tag}: add tokenizer: {{tags: "
                f"['{section.tag}']}} to the recipe."
            )
        self._check_model(stage, where)
        return stage

    def _check_model(self, stage: Stage, where: str) -> None:
        section = stage.round.translate
        assert section is not None
        other = self.stages.get(str(section.model))
        if other is None:
            if section.model is not None and str(section.model) == stage.name:
                raise UserError(f"{where}.translate.model: a round cannot translate for itself; name an earlier one.")
            return
        same = other.round.reverse == stage.round.reverse
        if same is not section.forward:
            needed = "its own direction" if section.forward else "the other direction"
            raise UserError(
                f"{where}.translate.model: round {other.name} translates {'-'.join(_languages(other))}, but this one, "
                f"{'-'.join(_languages(stage))}, needs a model of {needed}. Set {REVERSE} in one of them, or forward."
            )

    def run(self, watcher: Watcher | None = None) -> dict[str, Results]:
        """Every round in its turn; what is finished is passed over, what was interrupted goes on.

        Raises: UserError; Interrupted after a signal in a training, when its state is saved.
        """
        for warning in self.doubts():
            self._tell(warning, "yellow")
        found: dict[str, Results] = {}
        for stage in self.stages.values():
            self._tell(f"round {stage.name}: {'-'.join(_languages(stage))}", "bold")
            recipe = stage.recipe
            if stage.translation is not None:
                self._translate(stage, watcher or Watcher())
                recipe = self.with_synthetic(stage)
            results = run_recipe(recipe, self.data, self.output / stage.name, console=self.console)
            assert results is not None
            found[stage.name] = results
        return found

    def dry(self) -> None:
        """Check every round and print what it would cost; of what is not translated yet, without it."""
        for warning in self.doubts():
            self._tell(warning, "yellow")
        for stage in self.stages.values():
            self._tell(f"round {stage.name}: {'-'.join(_languages(stage))}", "bold")
            there = stage.translation is not None and (self.synthetic(stage) / "manifest.json").is_file()
            if stage.translation is not None and not there:
                self._tell(f"{self.synthetic(stage)} is still to be made: what follows is without it.")
            recipe = self.with_synthetic(stage) if there else stage.recipe
            run_recipe(recipe, self.data, self.output / stage.name, dry_run=True, console=self.console)

    def doubts(self) -> Iterator[str]:
        """Read the texts and count: warnings about ratios that they will hardly fill.

        Raises: UserError for a text that is not there or cannot be read.
        """
        for stage in self.stages.values():
            if stage.translation is None or stage.settings is None:
                continue
            lines = sum(sum(1 for _ in read_lines(path, bad=_ignore)) for path in stage.files(self.data))
            lines = min(lines, stage.settings.limit or lines)
            for files in self._parallel_files(stage):
                pairs = sum(1 for _ in read_lines(self.data / files["source"], bad=_ignore))
                if stage.round.ratio is not None and stage.round.ratio * pairs > lines:
                    yield (
                        f"{self.path}: rounds.{stage.name}.ratio is {stage.round.ratio:g}, for {pairs:,} parallel "
                        f"pairs, and the text has {lines:,} lines: unless filters take enough of the pairs, this will "
                        "be refused. Lower ratio, or give more text."
                    )

    def _parallel_files(self, stage: Stage) -> Iterator[dict[str, str]]:
        train = stage.recipe.data.train
        if isinstance(train, dict) and train.get("files") and not train.get("limit"):
            yield train["files"]

    def synthetic(self, stage: Stage) -> Path:
        """The folder of a round's synthetic corpus."""
        return self.output / f"{stage.name}.synthetic"

    def with_synthetic(self, stage: Stage) -> Recipe:
        """The recipe of a round with its synthetic corpus among the training corpora."""
        recipe = copy.deepcopy(stage.recipe)
        train = recipe.data.train
        corpus: dict[str, Any] = {"synthetic": str(self.synthetic(stage))}
        if stage.round.ratio is not None:
            corpus["ratio"] = stage.round.ratio
        recipe.data.train = [*(train if isinstance(train, list) else [train]), corpus]  # type: ignore[list-item]
        return recipe

    def _translate(self, stage: Stage, watcher: Watcher) -> None:
        section, model = stage.translation, None
        assert section is not None
        if section.model is not None:
            model = str(self.output / section.model / "average") if section.model in self.stages else section.model
        back_translate(
            model,
            stage.files(self.data),
            self.synthetic(stage),
            stage.method,
            stage.settings,
            forward=section.forward,
            tag=section.tag,
            watcher=watcher,
        )

    def _tell(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def _languages(stage: Stage) -> tuple[str, str]:
    return stage.recipe.languages.source, stage.recipe.languages.target


_ignore: Callable[[str, int, str], None] = lambda reason, number, text: None  # noqa: E731
