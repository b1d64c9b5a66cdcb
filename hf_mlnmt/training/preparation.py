"""What a training needs before its first step: tokenizers, encoded corpora, the model. Made once, then reused."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel, set_seed

from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.text import TextSide, TextSpec
from hf_mlnmt.data.tokenizer import Tokenizers, load_tokenizers, save_tokenizers, train_tokenizer
from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.files import atomic_folder, write_json
from hf_mlnmt.training import dev
from hf_mlnmt.training.arguments import generation_config
from hf_mlnmt.training.corpora import EncodedSet, RecipeCorpora
from hf_mlnmt.training.init_from import check_sources, initialise, local_folder, read_sources
from hf_mlnmt.training.objective_names import Ingredients
from hf_mlnmt.training.reading import build
from hf_mlnmt.training.recipe import Recipe
from hf_mlnmt.training.task_checks import MAIN_DEV, translates
from hf_mlnmt.training.tasks import Task
from hf_mlnmt.zoo.records import records_root
from hf_mlnmt.zoo.systems import config_for

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


class Preparation:
    """The parts of a run, made from a recipe and kept in the run's folder `output`."""

    def __init__(self, recipe: Recipe, data: Path, output: Path, tell: Tell) -> None:
        self.recipe, self.root, self.output, self.tell = recipe, data, output, tell
        self.corpora = RecipeCorpora(recipe, data, output, tell)
        self.dev_specs = self._dev_specs()
        languages = dataclasses.asdict(recipe.languages)
        self.test_specs = {
            name: self.corpora.pair_spec(fields, ("data", "test", name), languages)
            for name, fields in recipe.data.test.items()
        }

    def _dev_specs(self) -> dict[str, CorpusSpec | TextSpec]:
        """Name -> development set, the most important first."""
        specs: dict[str, CorpusSpec | TextSpec] = {}
        if self.recipe.data.dev is not None:
            languages = dataclasses.asdict(self.recipe.languages)
            specs[MAIN_DEV] = self.corpora.pair_spec(self.recipe.data.dev, ("data", "dev"), languages)
        for task in self.corpora.tasks:
            if task.section.dev is not None:
                read = self.corpora.text_spec if task.texts else self.corpora.pair_spec
                languages = dataclasses.asdict(task.section.languages or self.recipe.languages)
                specs[task.name] = read(task.section.dev, ("tasks", task.name, "dev"), languages)
        return specs

    # Tokenizers

    def tokenizers(self) -> Tokenizers:
        """Those of `tokenizer.path`, those of an earlier start of this run, or newly trained ones."""
        settings, folder = self.recipe.tokenizer, self.output / "tokenizer"
        if settings.path is not None:
            return load_tokenizers(self.root / settings.path if (self.root / settings.path).is_dir() else settings.path)
        if not folder.is_dir():
            sides = "both sides" if settings.joint else "each side"
            self.tell(f"training a {settings.kind} tokenizer of {settings.vocab_size} subwords for {sides}")
            with atomic_folder(folder) as new:
                save_tokenizers(new, *self._train_tokenizers())
        return load_tokenizers(folder)

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
            return train_tokenizer(lines, settings.kind, settings.vocab_size, codes, settings.byte_fallback)

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
                found.append({**named, "corpus": corpus, **part.report.to_dict()})
        return found

    def tasks(self, model: PreTrainedModel, tokenizers: Tokenizers, sets: Mapping[str, EncodedSet]) -> list[Task]:
        """The tasks, their objectives made for this model."""
        found = []
        for task in self.corpora.tasks:
            given = Ingredients(model, tokenizers, task.languages, self.recipe.label_smoothing)
            objective = task.objective.make(given)
            found.append(Task(sets[task.name], objective, task.section.share, task.name, task.languages))
        return found

    @staticmethod
    def name_losses(dev_sets: list[dev.DevSet], tasks: list[Task]) -> None:
        """Give each development set of a task that does not translate its task's objective to measure."""
        objectives = {task.name: task.objective for task in tasks if not task.objective.translates}
        for one in dev_sets:
            one.objective = objectives.get(one.name)

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
        raw = self.raw(name, spec)
        return dev.DevSet(
            encoded,
            raw.references,
            tokenizers.decode_target,
            metrics,
            sources=raw.sources,
            num_beams=self.recipe.evaluation.beams,
            max_length=self.recipe.decoding.max_new_tokens,
            name=name,
        )

    def raw(self, name: str, spec: CorpusSpec) -> RawPairs:
        """A development or test set as it is."""
        pairs = list(read_pairs(spec, self.root))
        if not pairs:
            raise UserError(f"{spec}: no sentence pairs; data.{name} needs some.")
        assert spec.languages is not None
        language = spec.languages["target"]
        return RawPairs(
            name,
            [pair[0] for pair in pairs],
            [pair[1] for pair in pairs],
            language,
            language if self.recipe.tokenizer.languages else None,
        )

    def test_sets(self) -> list[RawPairs]:
        """All test sets."""
        return [self.raw(name, spec) for name, spec in self.test_specs.items()]

    # Model

    def model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """A new model with seeded weights for these tokenizers, its generation_config as the recipe's decoding."""
        config = self.config(tokenizers)
        set_seed(self.recipe.seed)
        model = AutoModelForSeq2SeqLM.from_config(config)
        model.generation_config = generation_config(self.recipe, model.config)
        return model

    def config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        """The model's config for tokenizers of these sizes and ids.

        Raises: UserError for an unknown system, shape or field, or too few positions; what the config itself refuses.
        """
        config = self._config(tokenizers)
        longest = max(self.recipe.data.max_length, self.recipe.decoding.max_new_tokens + 1)
        positions = getattr(config, "max_position_embeddings", None)
        if positions is not None and positions < longest:
            raise UserError(
                f"{self.recipe.path}: data.max_length and decoding.max_new_tokens ask for {longest} positions, but the "
                f"model's max_position_embeddings is {positions}: raise it under model.settings, or lower the others."
            )
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

    def _config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        settings = self.recipe.model
        source, target = len(tokenizers.source), len(tokenizers.target)
        ids = {name: getattr(tokenizers.target, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
        fixed: dict[str, Any] = {"vocab_size": source, **ids, "decoder_start_token_id": ids["bos_token_id"]}
        fixed |= {"decoder_vocab_size": target}
        if not tokenizers.joint:
            fixed["share_encoder_decoder_embeddings"] = False
        for name in settings.settings.keys() & fixed.keys() - {"share_encoder_decoder_embeddings"}:
            raise UserError(
                f"{self.recipe.path}: model.settings.{name}: this is as the tokenizer says ({fixed[name]}). Leave it "
                "out; the size of the vocabulary is tokenizer.vocab_size."
            )
        if settings.system is not None:
            try:
                return config_for(settings.system, settings.shape, **{**settings.settings, **fixed})
            except UserError as error:
                raise UserError(f"{self.recipe.path}: model: {error}") from error
        path, ours = self._config_path()
        config = AutoConfig.from_pretrained(str(path))
        known = {item.name for item in dataclasses.fields(config)}
        for name in settings.settings:
            if name not in known:
                raise UserError(
                    f"{self.recipe.path}: model.settings.{name}: {type(config).__name__} has no such "
                    f"field{suggest(name, known)}."
                )
        if not ours:  # a model whose tokenizer this is
            return AutoConfig.from_pretrained(str(path), **settings.settings)
        if config.vocab_size != source:
            self.tell(
                f"the tokenizer has {source} entries, {path.name} says {config.vocab_size}: the tokenizer's count"
            )
        return AutoConfig.from_pretrained(str(path), **{**settings.settings, **fixed})

    def _config_path(self) -> tuple[Path, bool]:
        """Where the model's config is, and whether it is a record, which any tokenizer goes with.

        modeling/<record>.json beside the recipe's folder, or one of the project's own; without either, that of the
        model whose weights are all taken (init_from).
        """
        recipe = self.recipe
        name = f"{recipe.model.record or recipe.stem}.json"
        beside = (recipe.path.parent.parent if recipe.path else Path()) / "modeling" / name
        for path in (beside, records_root() / "modeling" / name):
            if path.is_file():
                return path, True
        sources = read_sources(recipe.init_from or {})
        if recipe.model.record is None and "all" in sources:
            return local_folder(sources["all"], self.root, f"{recipe.path}: init_from"), False
        raise UserError(
            f"{recipe.path}: model: there is no {beside}. Name a record that exists (model.record), or give "
            "model.system and model.shape."
        )
