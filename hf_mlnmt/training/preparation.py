"""The parts of a training before its first step: tokenizers, encoded corpora, model, tasks. Made once, then reused.

`RecipeCorpora` reads a recipe's corpora, `Preparation` makes the parts, `CLASSES` has its objectives by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import transformers
from accelerate import PartialState
from transformers import PreTrainedConfig, PreTrainedModel, set_seed

from hf_mlnmt.common.errors import UserError, naming
from hf_mlnmt.common.files import atomic_folder, read_json, write_json
from hf_mlnmt.common.keys import build
from hf_mlnmt.common.languages import direction_of, same_language
from hf_mlnmt.common.made_from import digest, stamps
from hf_mlnmt.convert.vocabularies import read_sentencepiece
from hf_mlnmt.data.augmented import Augmented, Way
from hf_mlnmt.data.corpus import (
    CorpusSpec,
    Manifest,
    RawPairs,
    TextSide,
    TextSpec,
    check_some,
    find_synthetic,
    read_manifest,
    read_pairs,
    read_raw,
    size_of,
)
from hf_mlnmt.data.directions import Direction, direction, is_told, told
from hf_mlnmt.data.encoding import Progress, encode_corpus, filtered
from hf_mlnmt.data.filters import FilterReport, HeldOut, Overlap, Pair, PairFilter, plain
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.resegmented import BPEDropout, Resegmented
from hf_mlnmt.data.tokenizer import (
    Tokenizers,
    check_whole,
    ending,
    languages_of,
    load_tokenizers,
    save_tokenizers,
    train_tokenizer,
    with_end,
    with_mask,
)
from hf_mlnmt.data.training_set import Corpora, at_ratios, check_ratios
from hf_mlnmt.memory.index import MatchesBehind, TranslationMemory
from hf_mlnmt.recipe.checks import read_objective
from hf_mlnmt.recipe.schema import MAIN_DEV, NamedObjective, Recipe, TaskSection, translates
from hf_mlnmt.training import checkpoints, dev, folder, model_making
from hf_mlnmt.training.adapters import add_adapter
from hf_mlnmt.training.arguments import generation_config
from hf_mlnmt.training.distillation import Distillation
from hf_mlnmt.training.fusion_objectives import FusionNBest, FusionSymbol, FusionTrellis
from hf_mlnmt.training.init_from import embeddings_of, initialise, local_folder, read_sources
from hf_mlnmt.training.objectives import (
    DecoderLanguageModel,
    EncoderCloze,
    EncoderLanguageModel,
    Ingredients,
    Objective,
    PseudoEncoder,
    Translation,
)
from hf_mlnmt.training.tasks import Task, seed_of
from hf_mlnmt.zoo.systems import architecture_of

SIDES: tuple[TextSide, TextSide] = ("source", "target")
Spec = CorpusSpec | TextSpec
Texts = tuple[Spec, list[TextSide]]
EncodedSet = Corpora | Resegmented | Augmented
LARGE = 20_000  # corpora of at least this many items show the progress of their encoding

CLASSES: dict[str, type[Objective]] = {
    "translation": Translation,
    "distillation": Distillation,
    "encoder-lm": EncoderLanguageModel,
    "encoder-cloze": EncoderCloze,
    "decoder-lm": DecoderLanguageModel,
    "pseudo-encoder": PseudoEncoder,
    "fusion-symbol": FusionSymbol,
    "fusion-n-best": FusionNBest,
    "fusion-trellis": FusionTrellis,
}
"""The objectives that a recipe can name (OBJECTIVES in recipe/schema.py, with their settings)."""


def make_objective(named: NamedObjective, given: Ingredients) -> Objective:
    """Returns the objective that a recipe names. Raises: UserError where model or tokenizers do not go with it."""
    objective, side = CLASSES[named.name].of(named.settings, given), named.key.side
    if side is not None and not given.tokenizers.joint and given.sides - {side}:
        raise UserError(
            f"{named.name} trains on text of the {side} side, and this text has the other side's vocabulary: give text "
            f"of the {side} language (side: {side}), or use one vocabulary for both (tokenizer.joint)."
        )
    return objective


@dataclass(frozen=True)
class TaskCorpora:
    """A task of a recipe, its keys read and checked."""

    name: str
    section: TaskSection
    languages: dict[str, str]
    objective: NamedObjective
    seed: int
    pairs: Sequence[CorpusSpec] = ()  # `pairs` or `texts` is empty
    texts: Sequence[TextSpec] = ()

    @property
    def specs(self) -> Sequence[Spec]:
        """Returns the task's corpora: pairs, or text of one language."""
        return self.pairs or self.texts


def corpora_of(section: TaskSection) -> list[dict[str, Any]]:
    """Returns the keys of each training corpus of a task."""
    return section.data if isinstance(section.data, list) else [section.data]


def key_of_dev(name: str) -> str:
    """Returns the recipe's key of the development set with this name."""
    return "data.dev" if name == MAIN_DEV else f"tasks.{name}.dev"


class RecipeCorpora:
    """Reads and checks the corpora of a recipe: those of its tasks, and its dev and test sets by name."""

    def __init__(self, recipe: Recipe, root: Path, output: Path = Path()) -> None:
        self.recipe, self.root, self.output = recipe, root, output
        self.manifests: dict[str, Manifest] = {}  # manifests of synthetic corpora, by the corpora's names in the recipe
        self._filter = build(PairFilter, recipe.data.filters, str(recipe.path), ("data", "filters"))
        self.tasks = [self._task(number, *item) for number, item in enumerate(recipe.sections().items())]
        only = self.tasks[0] if recipe.tasks is None else None
        languages = dataclasses.asdict(recipe.languages)
        self.dev: dict[str, Spec] = {}  # development sets by name, the most important first
        if recipe.data.dev is not None:
            self.dev[MAIN_DEV] = self._scored(recipe.data.dev, ("data", "dev"), languages, only)
        for task in self.tasks:
            if task.section.dev is not None:
                own = dataclasses.asdict(task.section.languages or recipe.languages)
                self.dev[task.name] = self._scored(task.section.dev, ("tasks", task.name, "dev"), own, task)
        self.test = {
            name: self._scored(fields, ("data", "test", name), languages, only)
            for name, fields in recipe.data.test.items()
        }

    @cached_property
    def filter(self) -> PairFilter:
        """Returns the filter of training pairs; with drop_test_pairs it drops scored pairs too, and keeps its digest
        once the run has begun, so that the training data stay as they are when test sets are added."""
        if not self.recipe.data.drop_test_pairs:
            return self._filter
        pairs = [tuple(map(plain, pair)) for pairs in self.scored_pairs().values() for pair in pairs]
        now, kept = digest(pairs), self.output / HELD_OUT
        if folder.has_begun(self.output) and kept.is_file():  # test sets may be added to a run that has begun
            now = read_json(kept, {"digest": str})["digest"]
        elif PartialState().is_main_process:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(kept, {"digest": now})
        held = tuple(frozenset(filter(None, own)) for own in zip(*pairs))
        return HeldOut(**vars(self._filter), digest=now, held=held)

    @cached_property
    def train(self) -> dict[str, Spec]:
        """Returns {key of the recipe and corpus: training corpus}."""
        return {
            f"{'data.train' if self.recipe.tasks is None else f'tasks.{task.name}.data'} {spec}": spec
            for task in self.tasks
            for spec in task.specs
        }

    @cached_property
    def scored(self) -> dict[str, Spec]:
        """Returns {key of the recipe: development or test set}."""
        dev = {key_of_dev(name): spec for name, spec in self.dev.items()}
        return dev | {f"data.test.{name}": spec for name, spec in self.test.items()}

    def scored_pairs(self) -> dict[str, list[Pair]]:
        """Reads the development and test sets of pairs; returns them by their keys of the recipe."""
        sets = self.scored.items()
        return {key: list(read_pairs(spec, self.root)) for key, spec in sets if isinstance(spec, CorpusSpec)}

    @cached_property
    def overlap(self) -> Overlap:
        """Returns the object that counts, while a corpus is encoded, which scored pairs are in it."""
        return Overlap(self.scored_pairs())

    def _scored(
        self, fields: dict[str, Any], at: tuple[str, ...], languages: dict[str, str], task: TaskCorpora | None
    ) -> Spec:
        """Reads a development or test set: text where it is of a task on text, else pairs."""
        if task is not None and task.texts:
            return self.text_spec(fields, at, languages, task.objective.key.side)
        return self.pair_spec(fields, at, languages)

    def _task(self, number: int, name: str, section: TaskSection) -> TaskCorpora:
        recipe = self.recipe
        languages = dataclasses.asdict(section.languages or recipe.languages)
        at = ("data", "train") if recipe.tasks is None else ("tasks", name, "data")
        its_key = ("objective",) if recipe.tasks is None else ("tasks", name, "objective")
        objective = read_objective(section.objective, str(recipe.path), its_key)
        seed = seed_of(recipe.seed, number)
        if objective.key.reads == "text":
            texts = [self.text_spec(fields, at, languages, objective.key.side) for fields in corpora_of(section)]
            languages = {"text": "+".join(dict.fromkeys(str(spec.language) for spec in texts))}
            return TaskCorpora(name, section, languages, objective, seed, texts=texts)
        pairs = [self.pair_spec(fields, at, languages) for fields in corpora_of(section)]
        with naming(f"{recipe.path}: {'.'.join(at)}"):
            check_ratios(pairs, recipe.data.temperature)
        return TaskCorpora(name, section, languages, objective, seed, pairs)

    def pair_spec(self, fields: dict[str, Any], at: tuple[str, ...], languages: dict[str, str]) -> CorpusSpec:
        """Makes the spec of a corpus of pairs from its keys `fields` in the recipe; at: the path of these keys.

        languages: for a corpus that names none. Raises: UserError for a tag without a token.
        """
        spec = build(CorpusSpec, fields, str(self.recipe.path), at)
        with naming(f"{self.recipe.path}: {'.'.join(at)}"):
            spec = dataclasses.replace(spec, languages=spec.languages or languages)
        if spec.synthetic:
            check_some(manifest := read_manifest(find_synthetic(spec.synthetic, self.root)))
            self.manifests[spec.synthetic] = manifest
            spec = dataclasses.replace(spec, tag=manifest.tag if spec.tag is None else spec.tag)
        tokenizer = self.recipe.tokenizer
        if spec.tag and tokenizer.path is None and spec.tag not in tokenizer.tags:
            raise UserError(
                f"{self.recipe.path}: {'.'.join(at)}: the tokenizer will have no token {spec.tag}, which is to stand "
                f"before the sources: add tokenizer: {{tags: ['{spec.tag}']}}, or say tag: '' for none."
            )
        return spec

    def text_spec(
        self, fields: dict[str, Any], at: tuple[str, ...], languages: dict[str, str], usual: TextSide | None = None
    ) -> TextSpec:
        """Makes the spec of text of one language from its keys `fields` in the recipe; at: the path of these keys.

        The side is that of `side`, or of the language, or without both `usual`. UserError if none says the side.
        """
        spec = build(TextSpec, fields, str(self.recipe.path), at)
        if spec.language is None and spec.side is None and usual is not None:
            spec = dataclasses.replace(spec, side=usual)
        sides: list[TextSide] = [side for side in SIDES if languages[side] == spec.language]
        if len(set(languages.values())) == 1:  # both sides have the same language
            sides = sides[-1:]
        if spec.side is None and len(sides) != 1:
            raise UserError(
                f"{self.recipe.path}: {'.'.join(at)}: give language as one of {languages['source']} and "
                f"{languages['target']}, or side: source or target: whose vocabulary is this text to get?"
            )
        side = spec.side or sides[0]
        with naming(f"{self.recipe.path}: {'.'.join(at)}"):
            return dataclasses.replace(spec, side=side, language=spec.language or languages[side])

    def sides(self) -> Iterator[tuple[Spec, TextSide, str]]:
        """Yields (corpus, side, language) for each side of every training corpus."""
        for task in self.tasks:
            for pairs in task.pairs:
                yield from ((pairs, side, (pairs.languages or {}).get(side, "")) for side in SIDES)
            for text in task.texts:
                yield text, text.side or "source", str(text.language)

    def on_side(self, *sides: TextSide, apart: bool = False) -> list[Texts]:
        """Returns corpora with text of these sides. apart: text that is on both sides is returned for each of them."""
        return self._once([(spec, side) for spec, side, _ in self.sides() if side in sides], apart)

    def in_language(self, language: str) -> list[Texts]:
        """Returns corpora and sides with text in a language."""
        return self._once([(spec, side) for spec, side, code in self.sides() if code == language])

    @staticmethod
    def _once(texts: Sequence[tuple[Spec, TextSide]], apart: bool = False) -> list[Texts]:
        """Returns corpora to read, each once, and the sides of each: a file that several tasks read counts once."""
        corpora: dict[int, Texts] = {}
        for spec, side in texts:
            corpora.setdefault(id(spec), (spec, []))[1].append(side)
        found, chosen = set[Any](), list[Texts]()
        for least in (2, 1):  # first corpora with two new sides, so that fewer corpora are read
            for spec, sides in corpora.values():
                names = {(_name_of(spec, side), apart and side): side for side in sides}
                new = {name: side for name, side in names.items() if name not in found}
                if len(new) >= least:
                    chosen.append((spec, list(new.values())))
                    found.update(new)
        return chosen

    def texts(self, spec: Spec, sides: Sequence[TextSide], share: float = 1.0) -> Iterator[tuple[TextSide, str]]:
        """Yields (side, text) of items that pass the filters, of a drawn share of a corpus. UserError if none do."""
        report = FilterReport()
        placeholders = self.recipe.data.placeholders
        for item in filtered(spec, self.root, self.filter, report, share, self.recipe.seed, placeholders):
            yield from ((side, item if isinstance(item, str) else item[SIDES.index(side)]) for side in sides)
        if not report.kept:
            what = "pair" if isinstance(spec, CorpusSpec) else "sentence"
            raise UserError(f"{spec}: no {what} is left. Relax data.filters.\n{report.table(f'{what}s')}")


def _name_of(spec: Spec, side: TextSide) -> tuple[Any, ...]:
    """Returns a key that equal texts share: of two files the file of the side, else the corpus and the side."""
    if not isinstance(spec, CorpusSpec) or not spec.files:
        return repr(spec), side
    return spec.files[SIDES[(SIDES.index(side) + spec.reverse) % 2]], spec.limit


# In the run's folder: the record of loaded weights, and the digest of pairs that training leaves out.
ACCOUNT, HELD_OUT = "init_from.json", "data/held_out.json"
TOLD = 30  # with more corpora one report is printed for all of them


class Preparation:
    """Makes the parts of a run from its recipe. Files are kept in the run's folder `output` for the next start."""

    def __init__(
        self,
        recipe: Recipe,
        data: Path,
        output: Path,
        tell: Callable[[str], None],
        progress: Progress | None = None,
        check: bool = False,
    ) -> None:
        self.recipe, self.root, self.output, self.tell = recipe, data, output, tell
        self.progress, self.check = progress, check
        self.corpora = RecipeCorpora(recipe, data, output)
        self.trains_tokenizer = recipe.tokenizer.path is None

    # Tokenizers

    @cached_property
    def base(self) -> PreTrainedConfig | None:
        """Returns the config of init_from's model if that is an encoder-decoder of Transformers which is trained
        unchanged; else None."""
        return model_making.config_of_base(self.recipe, self.root)

    def direction(self, source: str | None, target: str | None) -> Direction | None:
        """Returns the tokens and arguments that tell the base model a direction; None for a model that is not told."""
        model = SimpleNamespace(config=self.base)
        if self.base is None or not target or not is_told(model, self.tokenizers.source):
            return None
        if hasattr(self.tokenizers.source, "supported_language_codes"):
            source = None  # a Marian model is told the target language alone
        name = str(read_sources(self.recipe.init_from or {})["all"])
        return direction(model, self.tokenizers.source, source, target, name)

    def _told(self, tokenizers: Tokenizers, source: str | None, target: str | None) -> Tokenizers:
        way = self.direction(source, target)
        return dataclasses.replace(tokenizers, tell=None) if way is None else told(tokenizers, way, target)

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """Returns the tokenizers of `tokenizer.path` or of an earlier start of this run, or trains them."""
        settings, place, given = self.recipe.tokenizer, self.output / "tokenizer", None
        if settings.path is not None:
            local = self.root / settings.path
            name = local if local.exists() else settings.path
            is_model = local.is_file() and local.suffix in (".model", ".spm")
            key = "model.add_to" if settings.path == self.recipe.model.add_to else "tokenizer.path"
            with naming(f"{self.recipe.path}: {key}"):
                loaded = read_sentencepiece(local) if is_model else load_tokenizers(name)
                given = with_end(ending(loaded), str(name), self.tell, self.base is not None)
            given = with_mask(given) if settings.mask else given
            if not (given.each and self.recipe.model.add_to):
                return given if self.base is None else dataclasses.replace(given, tell=self._told)
        made, made_of = folder.made_from(self.output), self._origin_of_tokenizers()
        if not place.is_dir() or not (made.same("tokenizer", made_of) or folder.has_begun(self.output)):
            with atomic_folder(place) as new:
                if given is not None or (not settings.joint and model_making.speaks_many(self.recipe, self.root)):
                    each = {} if given is None else dict(given.each)
                    for language in dict.fromkeys(language for _, _, language in self.corpora.sides()):
                        if language not in each:
                            each[language] = self._train_tokenizer(language, self.corpora.in_language(language))
                    Tokenizers.of_languages(each).save(new)
                else:
                    save_tokenizers(new, *self._tokenizers_of_sides())
            made.note("tokenizer", made_of)
        return load_tokenizers(place)

    def _origin_of_tokenizers(self) -> str:
        """Returns a digest of all that trained tokenizers depend on: keys, and sizes and times of the text files."""
        recipe, corpora = self.recipe, self.corpora
        keys = [recipe.languages, recipe.tokenizer, recipe.data.placeholders, recipe.model.add_to, recipe.seed]
        texts = [(spec.reading(), stamps(spec.local_files(self.root)), *at) for spec, *at in corpora.sides()]
        return digest(keys, corpora.filter, model_making.speaks_many(recipe, self.root), texts)

    def _train_tokenizer(
        self,
        what: str,
        corpora: Sequence[Texts],
        codes: Sequence[str] = (),
        processing: Mapping[TextSide, TextProcessing] = MappingProxyType({}),
    ) -> Any:
        """Trains a tokenizer on text of these corpora; records in it the sample it was trained on, if not on all."""
        settings = self.recipe.tokenizer
        counts = [(size_of(spec, self.root, read=True), len(sides)) for spec, sides in corpora]
        known = [count * sides for count, sides in counts if count is not None]
        share = min(1.0, settings.sample / max(1, sum(known)))
        drawn = ""
        if share < 1 or len(known) < len(counts):
            of = f"{sum(known):,}" if len(known) == len(counts) else "an unknown number of"
            drawn = f", from {settings.sample:,} of {of} lines (tokenizer.sample)"
        self.tell(f"training a {settings.kind} tokenizer of {settings.vocab_size} subwords for {what}{drawn}")

        def texts() -> Iterator[str]:
            most = settings.sample if len(known) < len(counts) else None
            for spec, sides in corpora:
                for side, text in islice(self.corpora.texts(spec, sides, share), most and most * len(sides)):
                    yield processing[side].apply(text) if side in processing else text

        with naming(f"{self.recipe.path}: tokenizer"):
            tokenizer = train_tokenizer(
                texts,
                settings.kind,
                settings.vocab_size,
                list(codes),
                settings.byte_fallback,
                alphabet_limit=settings.alphabet_limit,
                tags=settings.tags,
                keep=[*settings.keep, *self.recipe.data.placeholders],
            )
        if drawn:
            tokenizer.init_kwargs["trained_on"] = {
                "lines": sum(known),
                "sample": settings.sample,
                "seed": self.recipe.seed,
            }
        return tokenizer

    def processing(self) -> dict[Any, TextProcessing]:
        """Returns the text processing of each side (`tokenizer.processing`) for tokenizers that are trained here."""
        return {
            side: build(
                TextProcessing,
                {"language": language, **self.recipe.tokenizer.processing.get(side, {})},  # type: ignore[call-overload]
                str(self.recipe.path),
                ("tokenizer", "processing", side),
            )
            for side, language in zip(SIDES, (self.recipe.languages.source, self.recipe.languages.target))
        }

    def _tokenizers_of_sides(self) -> tuple[Any, Any, dict[Any, TextProcessing]]:
        """Trains the tokenizers of source and target (None: one for both); returns them and each side's processing."""
        codes, processing, corpora = self.recipe.tokenizer.languages, self.processing(), self.corpora
        if self.recipe.tokenizer.joint:
            apart = not all(each.identity for each in processing.values())
            texts = corpora.on_side(*SIDES, apart=apart)
            return self._train_tokenizer("both sides", texts, codes, processing), None, processing
        source, target = (
            self._train_tokenizer(f"the {side}", corpora.on_side(side), codes, processing) for side in SIDES
        )
        return source, target, processing

    # Data

    @cached_property
    def training_sets(self) -> dict[str, EncodedSet]:
        """Returns {task: its corpora, filtered and encoded}; prints what was dropped, of more than TOLD corpora in one
        sum."""
        specs = [spec for task in self.corpora.tasks for spec in task.specs]
        sets = {task.name: self._training_set(task, tell=len(specs) <= TOLD) for task in self.corpora.tasks}
        if len(specs) > TOLD:
            total = FilterReport()
            for part in (part for own in sets.values() for part in own.parts):
                total.add(part.report)
            self.tell(f"{len(specs):,} corpora\n{total.table()}")
        return sets

    def _training_set(self, task: TaskCorpora, tell: bool) -> EncodedSet:
        parts, data = [], self.recipe.data
        for number, spec in enumerate(task.specs):
            name = f"train{number}" if self.recipe.tasks is None else f"{task.name}.{number}"
            overlap = None if task.texts or folder.has_begun(self.output) else self.corpora.overlap
            part = self.encode(name, spec, self.corpora.filter, data.max_length, data.placeholders, overlap)
            remedy = "leaves them out" if data.drop_test_pairs else "set to true leaves them out"
            for message in overlap.messages() if overlap else ():
                key = "data.train" if self.recipe.tasks is None else f"tasks.{task.name}.data"
                self.tell(f"{key} {spec} {message} (data.drop_test_pairs {remedy})")
            if tell:
                self.tell(f"{spec}{part.found and f' ({part.found})'}\n{part.report.table(part.unit)}")
            parts.append(part)
        if task.texts:
            return Corpora(parts, [text.weight for text in task.texts], data.temperature, task.seed)
        chosen, weights = at_ratios(parts, task.pairs, task.seed)
        corpora = Corpora(chosen, weights, data.temperature, task.seed)
        made = self._resegmented(task, corpora) if data.bpe_dropout else corpora
        if not sum(self.recipe.augment.shares):
            return made
        ways = [self._way(spec) for spec in task.pairs]
        return Augmented(made, ways, self.recipe.augment, task.seed, data.max_length)

    def _way(self, spec: CorpusSpec) -> Way:
        """Returns how text of a corpus is encoded."""
        source, target = ((spec.languages or {}).get(side) for side in SIDES)
        tokenizers = self.tokenizers.between(source, target)
        told = target if languages_of(tokenizers.source) else None
        return tokenizers, tokenizers.sides(told, spec.tag or None), (source or "", target or "")

    def _resegmented(self, task: TaskCorpora, corpora: Corpora) -> Resegmented:
        data = self.recipe.data
        tokenizers = self.tokenizers.between(task.languages["source"], task.languages["target"])
        source = BPEDropout(tokenizers.source, data.bpe_dropout)
        target = source if tokenizers.joint else BPEDropout(tokenizers.target, data.bpe_dropout)
        self.tell(f"cutting words for BPE-dropout {data.bpe_dropout:g}")
        return Resegmented(corpora, source, target, data.bpe_dropout_epochs, task.seed, data.max_length)

    def encode(
        self,
        name: str,
        spec: Spec,
        pair_filter: PairFilter | None = None,
        max_length: int | None = None,
        placeholders: Mapping[str, str] = MappingProxyType({}),
        overlap: Overlap | None = None,
    ) -> Any:
        """Returns a corpus encoded in data/<name> of the run's folder; encodes it if that is missing or outdated."""
        told = False

        def show(done: int, total: int | None) -> None:  # shows progress for large corpora only
            nonlocal told
            if not told and done >= LARGE:
                self.tell(f"encoding {spec}")
                told = True
            if told and self.progress is not None:
                self.progress(done, total)

        check_whole(self.tokenizers, placeholders)
        folder, processes = self.output / "data" / name, self.recipe.data.processes
        behind = self._matches(spec, training=pair_filter is not None)
        how = (pair_filter, max_length, processes, show, self.check, placeholders, overlap, behind)
        return encode_corpus(spec, self.root, self.tokenizers, folder, *how)

    def _matches(self, spec: Spec, training: bool) -> MatchesBehind | None:
        """Returns what finds the texts behind the sources of a corpus (data.memory); None without a memory."""
        data = self.recipe.data
        if data.memory is None or isinstance(spec, TextSpec):
            return None
        if not self.tokenizers.joint:
            raise UserError(f"{self.recipe.path}: data.memory: needs one vocabulary for both sides (tokenizer.joint).")
        names = [data.memory] if isinstance(data.memory, str) else data.memory
        pair = {name: (spec.languages or {}).get(name) for name in SIDES}
        with naming(f"{self.recipe.path}: data.memory"):
            memory = TranslationMemory(*(self.root / name for name in names), **pair)
        return MatchesBehind(memory, *((data.no_match, data.other_match) if training else (0.0, 0.0)))

    def fingerprints(self) -> list[str]:
        """Returns the fingerprints of all encoded training corpora in order; of several tasks with the tasks' names."""
        prefix, sets = "" if self.recipe.tasks is None else "{}: ", self.training_sets
        return [prefix.format(name) + part.meta["fingerprint"] for name, own in sets.items() for part in own.parts]

    def reports(self) -> list[dict[str, Any]]:
        """Returns a report of each training corpus: its keys in the recipe, pairs read, kept and dropped, its task."""
        reports = []
        for task in self.corpora.tasks:
            named = {} if self.recipe.tasks is None else {"task": task.name}
            for corpus, part in zip(corpora_of(task.section), self.training_sets[task.name].parts):
                of_manifest = self.corpora.manifests.get(str(corpus.get("synthetic")))
                more = {"used": len(part), "synthetic": of_manifest.summary()} if of_manifest else {}
                reports.append({**named, "corpus": corpus, **part.report.to_dict(), **more})
        return reports

    def tasks(self, model: PreTrainedModel) -> list[Task]:
        """Returns the tasks, their objectives made for this model."""
        return [
            Task(self.training_sets[of.name], self.objective(of, model), of.section.share, of.name, of.languages)
            for of in self.corpora.tasks
        ]

    def objective(self, task: TaskCorpora, model: PreTrainedModel) -> Objective:
        """Returns a task's objective, made for a model. Raises: UserError naming the task."""
        sides, tokenizers = frozenset(text.side for text in task.texts if text.side), self.tokenizers
        if task.pairs:
            tokenizers = tokenizers.between(task.languages["source"], task.languages["target"])
        given = Ingredients(model, tokenizers, task.languages, self.recipe.label_smoothing, task.seed, sides, self.root)
        with naming(f"{self.recipe.path}: task '{task.name}'"):
            return make_objective(task.objective, given)

    @cached_property
    def dev_sets(self) -> list[dev.DevSet]:
        """Returns the development sets, unfiltered, with the recipe's metrics where they are translated."""
        return [self._dev_set(name, spec) for name, spec in self.corpora.dev.items()]

    def _dev_set(self, name: str, spec: Spec) -> dev.DevSet:
        encoded = self.encode(name if name == MAIN_DEV else f"{name}.dev", spec)
        if isinstance(spec, TextSpec) or not translates(self.recipe, name):
            return dev.DevSet(encoded, name=name)
        raw, languages = self.raw(name, spec), spec.languages or {}
        how = (self.tokenizers.processing["target"].lowercase, languages.get("target"))
        return dev.DevSet(
            encoded,
            raw.references,
            self.tokenizers.between(languages.get("source"), languages.get("target")).decode_target,
            [dev.metric(metric, *how) for metric in self.recipe.evaluation.metrics],
            sources=raw.sources,
            num_beams=self.recipe.evaluation.beams,
            max_length=self.recipe.decoding.max_new_tokens,
            name=name,
            languages=spec.languages,
            told=getattr(self.direction(languages.get("source"), languages.get("target")), "generate", {}),
        )

    def raw(self, name: str, spec: Spec) -> RawPairs:
        """Reads a development or test set as raw text."""
        many = model_making.speaks_many(self.recipe, self.root)
        languages = spec.languages or {} if isinstance(spec, CorpusSpec) else {}
        telling = self.direction(languages.get("source"), languages.get("target")) is not None
        both = many or (telling and not hasattr(self.tokenizers.source, "supported_language_codes"))
        return read_raw(name, spec, self.root, bool(self.recipe.tokenizer.languages or many or telling), both)

    def test_sets(self) -> list[RawPairs]:
        """Returns all test sets; those of text of one language have no references."""
        return [self.raw(name, spec) for name, spec in self.corpora.test.items()]

    def encoded_test(self, name: str) -> Any:
        """Returns the test set `name`, encoded."""
        return self.encode(f"test.{name}", self.corpora.test[name])

    # Model

    def model(self) -> PreTrainedModel:
        """Makes the model with seeded new weights, or those of fused models or of model.add_to; sets its
        generation_config, adds the adapter, and freezes the embeddings if the recipe says so."""
        config = self.config()
        set_seed(self.recipe.seed)
        if self.recipe.model.fuse is not None:
            model = model_making.fused_model(self.recipe, self.root)
        elif self.recipe.model.add_to is not None:
            model = model_making.with_languages(self.recipe, self.root, config)
        else:
            model = self.auto_class(config).from_config(config)
        if model.can_generate():
            model.generation_config = generation_config(self.recipe, model.config)
            saved = checkpoints.checkpoints(self.output / "checkpoints")
            rules = model_making.token_rules(self.recipe, self.root, saved[-1] if saved else None)
            model.generation_config.update(**rules)
        if self.recipe.adapter is not None:
            name = read_sources(self.recipe.init_from or {})["all"]
            with naming(str(self.recipe.path)):
                base = self.root / name if (self.root / name).is_dir() else name
                add_adapter(model, self.recipe.adapter, str(base))
        if self.recipe.freeze:
            for table in embeddings_of(model):
                table.requires_grad_(False)
        return model

    def auto_class(self, config: PreTrainedConfig) -> Any:
        """Returns the Auto class of the whole model, or of a part if all tasks train only that part. UserError if there
        are pairs to score and the model does not translate."""
        architecture = architecture_of(config)
        if architecture is None:
            name = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
        else:
            parts = {CLASSES[task.objective.name].whole_model for task in self.corpora.tasks}
            alone = next(iter(parts)) if len(parts) == 1 else None
            name = alone if alone in architecture.heads else architecture.auto_class
        scored = [*self.corpora.dev.values(), *self.corpora.test.values()]
        if name != "AutoModelForSeq2SeqLM" and any(isinstance(spec, CorpusSpec) for spec in scored):
            raise UserError(
                f"{self.recipe.path}: data.dev or data.test holds pairs, but the model that is trained here does not "
                "translate: give text of one language ({path: ..., language: ...}) with objective, or a dev set to "
                "each task."
            )
        return getattr(transformers, name)

    def config(self) -> PreTrainedConfig:
        """Returns the model's config, fitted to the tokenizers (model_making.py) and to tied projections of tasks."""
        config = model_making.config_of_recipe(self.recipe, self.tokenizers, self.root, self.tell)
        if any(getattr(task.objective.settings, "tie", False) for task in self.corpora.tasks):
            config.tie_projection = True
        return config

    def initialise(self, model: PreTrainedModel) -> None:
        """Copies the weights of `init_from` into a new model; prints a record of them and writes it into a file."""
        if PartialState().is_main_process:
            # an earlier start may have written this file, with another recipe
            (self.output / ACCOUNT).unlink(missing_ok=True)
        if self.recipe.init_from is None:
            return
        sources = read_sources(self.recipe.init_from)
        account = initialise(model, sources, self.root, self.tokenizers, str(self.recipe.path))
        here = (self.recipe.languages.source, self.recipe.languages.target)
        for name in dict.fromkeys(sources.values()):
            there = direction_of(local_folder(name, self.root))
            # equal languages: a language model
            if there and there[0] != there[1] and not all(map(same_language, there, here)):
                account.notes.append(f"{name} translates {' to '.join(there)}, this training {' to '.join(here)}")
        self.tell(account.table())
        if PartialState().is_main_process:
            write_json(self.output / ACCOUNT, vars(account))


def measured_by(tasks: Sequence[Task], dev_sets: Sequence[dev.DevSet]) -> list[dev.DevSet]:
    """Returns copies of the development sets; one that is not translated has the objective of its task, whose loss is
    measured."""
    objectives: dict[str, Objective | None] = {
        task.name: task.objective.measured() for task in tasks if not task.objective.translates
    }
    if len(tasks) == 1 and tasks[0].name not in {each.name for each in dev_sets}:
        objectives = dict.fromkeys([MAIN_DEV], objectives.get(tasks[0].name))
    return [dataclasses.replace(each, objective=objectives.get(each.name)) for each in dev_sets]
