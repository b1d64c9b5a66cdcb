"""Everything that can be known before a training begins: its data, metrics, trackers, model, memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_mlnmt.data.corpus import CorpusSpec
from hf_mlnmt.data.text import TextSpec
from hf_mlnmt.data.tokenizer import languages_of
from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.recipe.checks import doubts
from hf_mlnmt.recipe.schema import Recipe
from hf_mlnmt.recipe.task_checks import MAIN_DEV
from hf_mlnmt.training import dev
from hf_mlnmt.training.arguments import schedule, training_arguments
from hf_mlnmt.training.data_checks import check_corpora, doubts_about_sides
from hf_mlnmt.training.init_from import initialise, read_sources
from hf_mlnmt.training.model_checks import check_model, expected_tokenizers
from hf_mlnmt.training.model_making import speaks_many
from hf_mlnmt.training.tasks import Task
from hf_mlnmt.training.text_checks import doubts_about_texts

if TYPE_CHECKING:
    from hf_mlnmt.training.preparation import Preparation


def check_before(preparation: Preparation, processes: int = 1) -> Iterator[str]:
    """Look at everything that a training will need; yields warnings. What takes long comes last.

    Raises: UserError for the first thing that is wrong.
    """
    recipe = preparation.recipe
    training_arguments(recipe, preparation.output)
    for name in recipe.evaluation.metrics:
        try:
            dev.metric(name)
        except UserError as error:
            raise UserError(f"{recipe.path}: evaluation.metrics: {error}") from error
    own = recipe.tokenizer.path is None
    modules = speaks_many(recipe, preparation.root)
    each = preparation.corpora.languages() if modules and not recipe.tokenizer.joint else []
    tokenizers: Any = expected_tokenizers(recipe, each) if own else preparation.tokenizers()
    check_model(preparation, tokenizers, processes, tokens=0)
    _check_weights(preparation, None if own else tokenizers)
    train: dict[str, CorpusSpec | TextSpec] = {
        f"{'data.train' if recipe.tasks is None else f'tasks.{task.name}.data'} {spec}": spec
        for task in preparation.corpora.tasks
        for spec in task.specs
    }
    scored: dict[str, CorpusSpec | TextSpec] = {
        "data.dev" if name == MAIN_DEV else f"tasks.{name}.dev": spec for name, spec in preparation.dev_specs.items()
    }
    scored |= {f"data.test.{name}": spec for name, spec in preparation.test_specs.items()}
    codes = recipe.tokenizer.languages if own else languages_of(tokenizers.source)
    pairs = [spec for task in preparation.corpora.tasks for spec in task.specs]
    yield from _check_languages(recipe, codes, pairs, list(scored.values()), modules)
    seen, warnings = check_corpora(train, scored, preparation.root)
    for task in preparation.corpora.tasks:
        yield from doubts_about_sides(task.name, task.pairs, preparation.root)
    texts = {key: spec for key, spec in train.items() if isinstance(spec, TextSpec)}
    others = [spec for spec in (*scored.values(), *train.values()) if spec not in texts.values()]
    yield from doubts_about_texts(texts, others, preparation.root, None if own else tokenizers)
    subwords = sum(seen[key].subwords for key in train)
    check_model(preparation, tokenizers, processes, min(recipe.batch.tokens, subwords))
    yield from warnings


def _check_weights(preparation: Preparation, tokenizers: Any) -> None:
    """That what init_from names is there and, where the tokenizers are known, that its weights fit in the model.

    A run that has begun no longer needs them.
    """
    recipe = preparation.recipe
    if recipe.init_from is None or (preparation.output / "checkpoints").is_dir():
        return
    preparation.check_sources()
    if tokenizers is not None:
        sources = read_sources(recipe.init_from)
        initialise(preparation.model(tokenizers), sources, preparation.root, tokenizers, str(recipe.path))


def _check_languages(
    recipe: Recipe, codes: Sequence[str], train: Sequence[Any], scored: Sequence[Any], decoders_of_each: bool
) -> Iterator[str]:
    """That the model can be told the target language of every pair, by one of the tokenizer's codes; yields a warning.

    Raises: UserError for pairs of a language without a code.
    """
    for spec in (*train, *scored):
        language = spec.languages["target"] if isinstance(spec, CorpusSpec) and spec.languages else None
        if codes and language is not None and language not in codes:
            raise UserError(
                f"{recipe.path}: {spec}: its target language is '{language}', and the tokenizer has codes of "
                f"{', '.join(codes)} alone{suggest(language, codes)}. Add it to tokenizer.languages, or mend languages."
            )
    pairs = [spec for spec in train if isinstance(spec, CorpusSpec) and spec.languages]
    several = list(dict.fromkeys(spec.languages["target"] for spec in pairs if spec.languages))
    if len(several) > 1 and not codes and not decoders_of_each:
        yield (
            f"the training pairs are into {' and '.join(several)}, and no code says into which: the model will guess "
            f"from the source. Set tokenizer.languages to [{', '.join(several)}]."
        )


def check_budget(recipe: Recipe, steps: int) -> Iterator[str]:
    """What must fit in the training, now that the length of an epoch is known; yields warnings.

    Raises: UserError naming the key.
    """
    try:
        saved = saved_steps(recipe, steps)
    except UserError as error:
        raise UserError(f"{recipe.path}: schedule: {error}") from error
    yield from doubts(recipe, steps, len(saved))


def doubts_about_rows(config: Any, tasks: Sequence[Task]) -> Iterator[str]:
    """A warning where most sentences have fewer positions than the attention bridge has rows, one for all tasks.

    With n positions the penalty of k rows is at least k - n (bridge.py): a floor that says nothing of a model.
    """
    rows = getattr(config, "bridge_heads", None)
    if rows is None or not config.penalty_weight:
        return
    positions = np.concatenate([task.data.source_lengths for task in tasks]) - bool(config.language_codes)
    short = float((positions < rows).mean())
    if short > 0.5:
        floor = float(np.clip(rows - positions, 0, None).mean())
        yield (
            f"{short:.0%} of the training sentences have fewer positions than the bridge's {rows} rows, and the "
            f"penalty of a sentence cannot be less than rows - positions: {floor:.1f} in the mean. With "
            "fewer rows (model.settings.bridge_heads) it can come closer to 0."
        )


def saved_steps(recipe: Recipe, steps: int) -> list[int]:
    """Steps of the checkpoints of a training of `steps` that count for the average."""
    ends = schedule(recipe).ends(steps)
    return ends or sorted({*range(recipe.evaluation.every, steps, recipe.evaluation.every), steps})
