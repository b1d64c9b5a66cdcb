"""What a model that is trained on does not forget: text that it translated itself before, as a task of its own.

The folder of the run has kept/, the synthetic corpus; the batches of that task are shared out as those of any other.
Reference: Li and Hoiem 2016, "Learning without Forgetting", arXiv:1606.09282, with whole translations (Kim and Rush
2016, section 3.2) in the place of distributions.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import check_language
from hf_mlnmt.data.corpus import MANIFEST, check_some
from hf_mlnmt.data.directions import told_of
from hf_mlnmt.generation.synthetic.back_translation import Settings, Watcher, back_translate
from hf_mlnmt.recipe.schema import Recipe, TaskSection
from hf_mlnmt.training.init_from import local_folder, read_sources

KEPT = "kept"  # the task, and its folder in the run's


def translate_kept(recipe: Recipe, data: Path, output: Path, watcher: Watcher) -> None:
    """Translates the text of `keep` by the model of init_from; what was interrupted goes on.

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
    """Returns a recipe in which `keep` has become a task beside what else is trained, if its corpus is there."""
    if recipe.keep is None or not (output / KEPT / MANIFEST).is_file():
        return recipe
    keep, tasks = recipe.keep, recipe.sections()
    if KEPT in tasks:
        raise UserError(f"{recipe.path}: tasks.{KEPT}: this is the name of the task of `keep`. Choose another.")
    whole = sum(section.share for section in tasks.values())
    share = whole * keep.share / (1 - keep.share)
    tasks[KEPT] = TaskSection({"synthetic": str(output / KEPT)}, share=share, languages=keep.languages)
    data = dataclasses.replace(recipe.data, train=None)
    return dataclasses.replace(recipe, data=data, tasks=tasks, objective="translation", keep=None)
