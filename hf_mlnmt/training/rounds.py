"""Rounds: trainings that build on one another, each on what a model of an earlier round translated for it.

Reference: back-translation as in the thesis on monolingual data, 4.3: a round in the other direction, then one on its
translations. More rounds iterate it in both directions (Hoang et al. 2018, "Iterative Back-Translation for Neural
Machine Translation").

The run's folder has <round>.synthetic/, the corpus translated for a round, and <round>/, the folder of its training,
done by run.py. kept/ has text translated by init_from's model, so that its skill is not forgotten (`keep`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import build
from hf_mlnmt.common.languages import check_direction, check_language
from hf_mlnmt.common.model_folder import check_name
from hf_mlnmt.data.corpus import MANIFEST, check_some
from hf_mlnmt.data.directions import told_of
from hf_mlnmt.generation.synthetic.back_translation import Method, Settings, Watcher, back_translate
from hf_mlnmt.recipe.reading import REVERSE, lay_over, read_content, recipe_of, turn_round
from hf_mlnmt.recipe.schema import FILE_NAME, Recipe, Round, TaskSection, TranslationSection
from hf_mlnmt.training.init_from import local_folder, read_sources


@dataclass(frozen=True)
class PlannedRound:
    """A round whose keys are checked. recipe: without the synthetic corpus, which may not be made yet."""

    name: str
    round: Round
    recipe: Recipe
    file: Path
    method: Method | None = None
    settings: Settings | None = None
    by_round: bool = False  # whether a model of an earlier round makes its synthetic corpus
    before: PlannedRound | None = None  # the round of `after`, whose model is trained further

    @property
    def languages(self) -> tuple[str, str]:
        """Returns the codes of the source and the target language."""
        return self.recipe.languages.source, self.recipe.languages.target

    def files(self, data: Path) -> list[Path]:
        """Returns the files whose text is translated for this round."""
        text = self.round.translate.text if self.round.translate else []
        return [data / name for name in ([text] if isinstance(text, str) else text)]

    def synthetic(self, output: Path) -> Path:
        """Returns the folder of the round's synthetic corpus; `output`: the folder of all rounds."""
        return output / f"{self.name}.synthetic"

    @property
    def source(self) -> PlannedRound:
        """Returns the round whose synthetic corpus this one is trained on: itself, or the `source` of round `after`."""
        return self if self.before is None else self.before.source

    def whole_recipe(self, output: Path) -> Recipe:
        """Returns the recipe with the synthetic corpus among the training corpora, if it is made already, and with the
        model of `after` as init_from."""
        recipe, source = copy.deepcopy(self.recipe), self.source
        if source.round.translate is not None and (source.synthetic(output) / MANIFEST).is_file():
            train: Any = [] if source.round.alone else recipe.data.train
            ratio = {} if source.round.ratio is None else {"ratio": source.round.ratio}
            synthetic = {"synthetic": str(source.synthetic(output)), **ratio}
            recipe.data.train = [*(train if isinstance(train, list) else [train]), synthetic]
        if self.before is not None:
            recipe.init_from = recipe.tokenizer.path = str(output / self.before.name / "average")
        return recipe

    def translate(self, data: Path, output: Path, watcher: Watcher) -> None:
        """Makes the synthetic corpus of a round that has one; continues an interrupted one."""
        section, settings = self.round.translate, self.settings
        assert section is not None
        if settings is not None and settings.references:
            settings = replace(settings, references=tuple(str(data / name) for name in settings.references))
        manifest = back_translate(
            str(output / str(section.model) / "average") if self.by_round else section.model,
            self.files(data),
            self.synthetic(output),
            self.method,
            settings,
            forward=section.forward,
            tag=section.tag,
            watcher=watcher,
        )
        check_some(manifest)


def read_rounds(
    path: Path, settings: list[str] | tuple[str, ...] = (), seed: int | None = None
) -> dict[str, PlannedRound]:
    """Reads and checks the rounds of a recipe; `settings` and `seed` replace keys of all rounds. UserError for a key
    that is wrong."""
    content, lines = read_content(path, settings, seed)
    described = content.pop("rounds", None)
    if not described or not isinstance(described, dict):
        raise UserError(
            f"{path}: rounds: expected names of rounds with their keys; see docs/monolingual-back-translation.md."
        )
    recipe_of(copy.deepcopy(content), path, lines)  # raises for mistakes in the keys of all rounds, with their lines
    planned: dict[str, PlannedRound] = {}
    for name, keys in described.items():
        planned[str(name)] = _planned(path, str(name), keys or {}, content, planned, [*map(str, described)])
    return planned


def _planned(
    path: Path, name: str, keys: Any, content: dict[str, Any], before: Mapping[str, PlannedRound], names: list[str]
) -> PlannedRound:
    """Reads and checks the keys of the round `name`. before: the earlier rounds. names: of all rounds."""
    at = ("rounds", name)
    where = f"{path}: {'.'.join(at)}"
    if not FILE_NAME.fullmatch(name) or name.endswith(".synthetic"):
        raise UserError(f"{where}: the name is a folder's: letters, digits and _ . + - are expected.")
    described = build(Round, keys, str(path), at)
    own = copy.deepcopy(lay_over(content, described.recipe or {}, str(path), at))
    own["model"] = own.get("model") or {"record": path.stem}
    if own.get(REVERSE, False) is not described.reverse:
        own[REVERSE] = True
        turn_round(own)
    own[REVERSE] = False
    recipe = recipe_of(own, path.with_name(f"{path.stem}.{name}.yaml"))
    if described.translate is None:
        for key in ("ratio", "alone"):
            if getattr(described, key):
                raise UserError(f"{where}.{key}: there is no synthetic corpus; say with translate what is translated.")
        other = None if described.after is None else before.get(described.after)
        if described.after is not None and (other is None or other.round.reverse != described.reverse):
            raise UserError(f"{where}.after: {described.after} is no earlier round of this direction.")
        if other is not None and recipe.init_from is not None:
            raise UserError(f"{where}.after: says which weights it begins with: leave init_from out.")
        return PlannedRound(name, described, recipe, path, before=other)
    if described.after is not None:
        raise UserError(f"{where}.after: goes on with what was translated before; leave translate out.")
    section = described.translate
    if recipe.data.train is None:
        raise UserError(f"{where}: synthetic corpora of rounds are added to data.train, not to tasks.")
    named = {"name": section.method} if isinstance(section.method, str) else section.method
    method = build(Method, named, str(path), (*at, "translate", "method"))
    settings = build(Settings, section.settings, str(path), (*at, "translate", "settings"))
    if section.tag and recipe.tokenizer.path is None and section.tag not in recipe.tokenizer.tags:
        raise UserError(
            f"{where}.translate.tag: the tokenizer will have no token {section.tag}: add tokenizer: {{tags: "
            f"['{section.tag}']}} to the recipe."
        )
    planned = PlannedRound(name, described, recipe, path, method, settings, section.model in before)
    _check_model(planned, section, where, before, names)
    read, written = planned.languages[:: 1 if section.forward else -1]
    for texts, code in ((planned.files(Path()), read), (settings.references, written)):
        for text in texts:
            check_language(text, code, f"{where}.translate takes", "Give text of that language, or mend forward.")
    if settings.reverse:
        check_direction(settings.reverse, (written, read), f"{where}.translate.settings.reverse: {settings.reverse}")
    return planned


def _check_model(
    planned: PlannedRound, section: TranslationSection, where: str, before: Mapping[str, PlannedRound], names: list[str]
) -> None:
    """Raises UserError for a model that is missing, trained later, or of another direction than the round needs."""
    where = f"{where}.translate.model"
    if section.model is None:
        return
    if other := before.get(section.model):
        if (other.round.reverse == planned.round.reverse) is not section.forward:
            needed = "its own direction" if section.forward else "the other direction"
            raise UserError(
                f"{where}: round {other.name} translates {'-'.join(other.languages)}, but this one, "
                f"{'-'.join(planned.languages)}, needs a model of {needed}. Set {REVERSE} in one of them, or forward."
            )
        return
    if section.model == planned.name:
        raise UserError(f"{where}: a round cannot translate for itself; name an earlier one.")
    if section.model in names:
        raise UserError(f"{where}: round {section.model} comes later; name an earlier one.")
    check_name(section.model)
    check_direction(section.model, planned.languages[:: 1 if section.forward else -1], f"{where}: {section.model}")


# Learning without forgetting: Li and Hoiem 2016, arXiv:1606.09282, here on whole translations (Kim and Rush 2016, 3.2)

KEPT = "kept"  # the name of the task of `keep`, and of the folder with its translations in the run's folder


def translate_kept(recipe: Recipe, data: Path, output: Path, watcher: Watcher) -> None:
    """Translates the text of `keep` with the model of init_from; continues an interrupted translation.

    Raises: UserError for text of another language, and for languages that the model is not told by these codes.
    """
    keep = recipe.keep
    assert keep is not None
    languages, files = keep.languages or recipe.languages, [keep.text] if isinstance(keep.text, str) else keep.text
    for name in files:
        check_language(name, languages.source, f"{recipe.path}: keep.text is", "Give text of that language.")
    model = local_folder(read_sources(recipe.init_from or {})["all"], data, f"{recipe.path}: init_from")
    settings = Settings(limit=keep.limit, **told_of(model, languages.source, languages.target))
    texts = [data / name for name in files]
    check_some(back_translate(model, texts, output / KEPT, settings=settings, forward=True, watcher=watcher))


def with_kept(recipe: Recipe, output: Path) -> Recipe:
    """Returns the recipe with the text of `keep` as one more task, if it is translated already; else unchanged.

    Raises: UserError for a task that has the name KEPT.
    """
    if recipe.keep is None or not (output / KEPT / MANIFEST).is_file():
        return recipe
    keep, tasks = recipe.keep, recipe.sections()
    if KEPT in tasks:
        raise UserError(f"{recipe.path}: tasks.{KEPT}: this is the name of the task of `keep`. Choose another.")
    whole = sum(section.share for section in tasks.values())
    share = whole * keep.share / (1 - keep.share)
    tasks[KEPT] = TaskSection({"synthetic": str(output / KEPT)}, share=share, languages=keep.languages)
    data = replace(recipe.data, train=None)
    return replace(recipe, data=data, tasks=tasks, objective="translation", keep=None)
