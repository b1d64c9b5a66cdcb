"""What a training needs before its first step: tokenizers, encoded corpora, the model. Made once, then reused."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedConfig, PreTrainedModel, set_seed

from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.text import TextSide, TextSpec, ending, read_text
from hf_mlnmt.data.tokenizer import Tokenizers, load_tokenizers, save_tokenizers, train_tokenizer, with_mask
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import atomic_folder, write_json
from hf_mlnmt.recipe.building import build
from hf_mlnmt.recipe.schema import MAIN_DEV, Recipe, translates
from hf_mlnmt.training import checkpoints, dev
from hf_mlnmt.training.arguments import generation_config
from hf_mlnmt.training.corpora import EncodedSet, RecipeCorpora, TaskCorpora
from hf_mlnmt.training.init_from import check_sources, initialise, local_folder, read_sources
from hf_mlnmt.training.model_making import (
    auto_class,
    config_of_recipe,
    fused_model,
    speaks_many,
    token_rules,
    with_languages,
)
from hf_mlnmt.training.objective_making import Ingredients, make_objective
from hf_mlnmt.training.objectives import Objective
from hf_mlnmt.training.tasks import Task

Tell = Callable[[str], None]
ACCOUNT = "init_from.json"  # in the run's folder


@dataclass
class RawPairs:
    """A development or test set as raw text: what is translated and what it is compared with."""

    name: str
    sources: list[str]
    references: list[str]
    language: str  # of the references
    target_language: str | None = None  # what a multilingual model is asked for
    source_language: str | None = None


class Preparation:
    """The parts of a run, made from a recipe and kept in the run's folder `output`."""

    def __init__(self, recipe: Recipe, data: Path, output: Path, tell: Tell) -> None:
        self.recipe, self.root, self.output, self.tell = recipe, data, output, tell
        self.corpora = RecipeCorpora(recipe, data, output, tell)
        self.dev_specs = self._dev_specs()
        languages = dataclasses.asdict(recipe.languages)
        self.test_specs = {
            name: self._reader()(fields, ("data", "test", name), languages) for name, fields in recipe.data.test.items()
        }

    def _reader(self) -> Callable[..., CorpusSpec | TextSpec]:
        """What data.dev and data.test hold: pairs, or text where data.train is text."""
        task = self.corpora.tasks[0]
        alone = self.recipe.tasks is None and task.texts
        return self._text_reader(task) if alone else self.corpora.pair_spec

    def _text_reader(self, task: TaskCorpora) -> Callable[..., TextSpec]:
        return functools.partial(self.corpora.text_spec, usual=task.objective.key.side)

    def _dev_specs(self) -> dict[str, CorpusSpec | TextSpec]:
        """Name -> development set, the most important first."""
        specs: dict[str, CorpusSpec | TextSpec] = {}
        if self.recipe.data.dev is not None:
            languages = dataclasses.asdict(self.recipe.languages)
            specs[MAIN_DEV] = self._reader()(self.recipe.data.dev, ("data", "dev"), languages)
        for task in self.corpora.tasks:
            if task.section.dev is not None:
                read: Callable[..., CorpusSpec | TextSpec]
                read = self._text_reader(task) if task.texts else self.corpora.pair_spec
                languages = dataclasses.asdict(task.section.languages or self.recipe.languages)
                specs[task.name] = read(task.section.dev, ("tasks", task.name, "dev"), languages)
        return specs

    # Tokenizers

    def tokenizers(self) -> Tokenizers:
        """Those of `tokenizer.path`, those of an earlier start of this run, or newly trained ones."""
        settings, folder = self.recipe.tokenizer, self.output / "tokenizer"
        given = None
        if settings.path is not None:
            local = self.root / settings.path
            given = ending(load_tokenizers(local if local.is_dir() else settings.path))
            given = with_mask(given) if settings.mask else given
            if not (given.each and self.recipe.model.add_to):
                return given
        if not folder.is_dir() and (given is not None or self._one_for_each_language()):
            with atomic_folder(folder) as new:
                self._tokenizers_of_languages({} if given is None else given.each).save(new)
        elif not folder.is_dir():
            sides = "both sides" if settings.joint else "each side"
            self.tell(f"training a {settings.kind} tokenizer of {settings.vocab_size} subwords for {sides}")
            with atomic_folder(folder) as new:
                save_tokenizers(new, *self._train_tokenizers())
        return load_tokenizers(folder)

    def _one_for_each_language(self) -> bool:
        return not self.recipe.tokenizer.joint and speaks_many(self.recipe, self.root)

    def _tokenizers_of_languages(self, given: Mapping[str, Any]) -> Tokenizers:
        """One for each language of the tasks: those given, and newly trained ones for the others."""
        settings, each = self.recipe.tokenizer, dict(given)
        for language in self.corpora.languages():
            if language not in each:
                self.tell(f"training a {settings.kind} tokenizer of {settings.vocab_size} subwords for {language}")
                lines = self.corpora.texts_of(language)
                each[language] = train_tokenizer(
                    lines, settings.kind, settings.vocab_size, [], settings.byte_fallback, tags=settings.tags
                )
        return Tokenizers.of_languages(each)

    def _train_tokenizers(self) -> tuple[Any, Any, dict[str, TextProcessing]]:
        settings, languages = self.recipe.tokenizer, dataclasses.asdict(self.recipe.languages)
        processing = {
            side: build(
                TextProcessing,
                {"language": language, **settings.processing.get(side, {})},  # type: ignore[call-overload]
                str(self.recipe.path),
                ("tokenizer", "processing", side),
            )
            for side, language in languages.items()
        }

        def texts(side: TextSide) -> Iterator[str]:
            return map(processing[side].apply, self.corpora.texts(side))

        def train(lines: Iterator[str]) -> Any:
            codes = settings.languages
            return train_tokenizer(
                lines, settings.kind, settings.vocab_size, codes, settings.byte_fallback, tags=settings.tags
            )

        if settings.joint:
            return train(itertools.chain(texts("source"), texts("target"))), None, processing
        return train(texts("source")), train(texts("target")), processing

    # Data

    def training_sets(self, tokenizers: Tokenizers) -> dict[str, EncodedSet]:
        """The training set of each task, by the task's name."""
        return self.corpora.training_sets(tokenizers)

    def fingerprints(self, sets: Mapping[str, EncodedSet]) -> list[str]:
        """Of all encoded training corpora in order; of several tasks with the tasks' names."""
        prefix = "" if self.recipe.tasks is None else "{}: "
        return [prefix.format(name) + part.meta["fingerprint"] for name, one in sets.items() for part in one.parts]

    def reports(self, sets: Mapping[str, EncodedSet]) -> list[dict[str, Any]]:
        """Of each training corpus what the recipe says, what was read, kept and dropped; and whose of several tasks."""
        found = []
        for task in self.corpora.tasks:
            fields = task.section.data if isinstance(task.section.data, list) else [task.section.data]
            named = {} if self.recipe.tasks is None else {"task": task.name}
            for corpus, part in zip(fields, sets[task.name].parts):
                of_manifest = self.corpora.manifests.get(str(corpus.get("synthetic")))
                more = {"used": len(part), "synthetic": of_manifest.summary()} if of_manifest else {}
                found.append({**named, "corpus": corpus, **part.report.to_dict(), **more})
        return found

    def tasks(self, model: PreTrainedModel, tokenizers: Tokenizers, sets: Mapping[str, EncodedSet]) -> list[Task]:
        """The tasks, their objectives made for this model."""
        found = []
        for task in self.corpora.tasks:
            objective = self.objective(task, model, tokenizers)
            found.append(Task(sets[task.name], objective, task.section.share, task.name, task.languages))
        return found

    def objective(self, task: TaskCorpora, model: PreTrainedModel, tokenizers: Any) -> Objective:
        """A task's objective, made for a model. Raises: UserError naming the task."""
        sides = frozenset(text.side for text in task.texts if text.side)
        if getattr(tokenizers, "each", None) and task.pairs:
            tokenizers = tokenizers.between(task.languages["source"], task.languages["target"])
        given = Ingredients(model, tokenizers, task.languages, self.recipe.label_smoothing, task.seed, sides)
        try:
            return make_objective(task.objective, given)
        except UserError as error:
            raise UserError(f"{self.recipe.path}: task '{task.name}': {error}") from error

    @staticmethod
    def name_losses(dev_sets: list[dev.DevSet], tasks: list[Task]) -> None:
        """Give each development set of a task that does not translate its task's objective to measure.

        data.dev is of the one task that there is, where it is text.
        """
        objectives: dict[str, Objective | None] = {
            task.name: task.objective.measured() for task in tasks if not task.objective.translates
        }
        if len(tasks) == 1 and tasks[0].name not in {one.name for one in dev_sets}:
            objectives = dict.fromkeys([MAIN_DEV], objectives.get(tasks[0].name))
        for one in dev_sets:
            one.objective = objectives.get(one.name)
        if len(tasks) == 1 and dev_sets and dev_sets[0].references:
            dev_sets[0].parts = tasks[0].objective.measured_parts()

    def dev_sets(self, tokenizers: Tokenizers) -> list[dev.DevSet]:
        """The development sets, whole, with the recipe's metrics where they are translated."""
        lowercase = tokenizers.processing["target"].lowercase
        metrics = [dev.metric(name, lowercase) for name in self.recipe.evaluation.metrics]
        return [self._dev_set(name, spec, tokenizers, metrics) for name, spec in self.dev_specs.items()]

    def _dev_set(
        self, name: str, spec: CorpusSpec | TextSpec, tokenizers: Tokenizers, metrics: list[dev.Metric]
    ) -> dev.DevSet:
        encoded = self.corpora.encode(name if name == MAIN_DEV else f"{name}.dev", spec, tokenizers)
        if isinstance(spec, TextSpec) or not translates(self.recipe, name):
            return dev.DevSet(encoded, name=name)
        raw, named = self.raw(name, spec), spec.languages or {}
        return dev.DevSet(
            encoded,
            raw.references,
            tokenizers.between(named.get("source"), named.get("target")).decode_target,
            metrics,
            sources=raw.sources,
            num_beams=self.recipe.evaluation.beams,
            max_length=self.recipe.decoding.max_new_tokens,
            name=name,
            languages=spec.languages,
        )

    def raw(self, name: str, spec: CorpusSpec) -> RawPairs:
        """A development or test set as it is."""
        pairs = list(read_pairs(spec, self.root))
        if not pairs:
            raise UserError(f"{spec}: no sentence pairs; data.{name} needs some.")
        assert spec.languages is not None
        language, many = spec.languages["target"], speaks_many(self.recipe, self.root)
        return RawPairs(
            name,
            [pair[0] for pair in pairs],
            [pair[1] for pair in pairs],
            language,
            language if self.recipe.tokenizer.languages or many else None,
            spec.languages["source"] if many else None,
        )

    def test_sets(self) -> list[RawPairs]:
        """All test sets; of text of one language the sentences are the sources, and there are no references."""
        return [
            self.raw(name, spec) if isinstance(spec, CorpusSpec) else self.raw_text(name, spec)
            for name, spec in self.test_specs.items()
        ]

    def raw_text(self, name: str, spec: TextSpec) -> RawPairs:
        """A test set of text of one language as it is."""
        texts = list(read_text(spec, self.root))
        if not texts:
            raise UserError(f"{spec}: no sentences; data.{name} needs some.")
        return RawPairs(name, texts, [], str(spec.language))

    def encoded_test(self, name: str) -> Any:
        """A test set, encoded."""
        return self.corpora.encode(f"test.{name}", self.test_specs[name], self.tokenizers())

    # Model

    def model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """A new model with seeded weights for these tokenizers, its generation_config as the recipe's decoding.

        A fused model (model.fuse) has its members' weights.
        """
        config = self.config(tokenizers)
        set_seed(self.recipe.seed)
        folder = self.recipe.model.add_to
        if self.recipe.model.fuse is not None:
            model = fused_model(self.recipe, self.root)
        elif folder is not None:
            model = with_languages(local_folder(folder, self.root, f"{self.recipe.path}: model.add_to"), config)
        else:
            model = self.auto_class(config).from_config(config)
        if model.can_generate():
            model.generation_config = generation_config(self.recipe, model.config)
            saved = checkpoints.checkpoints(self.output / "checkpoints")
            model.generation_config.update(**token_rules(self.recipe, self.root, saved[-1] if saved else None))
        return model

    def auto_class(self, config: PreTrainedConfig) -> Any:
        """The Auto class of the model that the tasks train (model_making.py)."""
        translated = any(isinstance(spec, CorpusSpec) for spec in [*self.dev_specs.values(), *self.test_specs.values()])
        return auto_class(self.recipe, [task.objective for task in self.corpora.tasks], config, translated)

    def config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        """The model's config for tokenizers of these sizes and ids (model_making.py)."""
        config = config_of_recipe(self.recipe, tokenizers, self.root, self.tell)
        if any(getattr(task.objective.settings, "tie", False) for task in self.corpora.tasks):
            config.tie_projection = True
        return config

    def check_sources(self) -> None:
        """Refuse folders of `init_from` that no weights can be taken from."""
        if self.recipe.init_from is not None:
            check_sources(read_sources(self.recipe.init_from), self.root, str(self.recipe.path))

    def initialise(self, model: PreTrainedModel, tokenizers: Tokenizers) -> None:
        """Put the weights of `init_from` into a new model; the account is printed, and kept in the run's folder."""
        if self.recipe.init_from is None:
            return
        sources = read_sources(self.recipe.init_from)
        account = initialise(model, sources, self.root, tokenizers, str(self.recipe.path))
        self.tell(account.table())
        if PartialState().is_main_process:
            write_json(self.output / ACCOUNT, account.to_dict())

    def account(self) -> dict[str, Any] | None:
        """What `initialise` kept, when this run began."""
        path = self.output / ACCOUNT
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
