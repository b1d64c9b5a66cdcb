"""The corpora of a recipe's tasks: what their keys say, the text for the tokenizers, the encoded training sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hf_mlnmt.data.corpus import CorpusSpec
from hf_mlnmt.data.encoded import encode_corpus, encode_text, filtered_pairs, filtered_text
from hf_mlnmt.data.filters import FilterReport, PairFilter
from hf_mlnmt.data.resegmented import BPEDropout, Resegmented
from hf_mlnmt.data.synthetic import Manifest, find_synthetic, read_manifest
from hf_mlnmt.data.text import TextSide, TextSpec
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.data.training_set import Corpora, at_ratios, check_ratios
from hf_mlnmt.errors import UserError
from hf_mlnmt.recipe.building import build
from hf_mlnmt.recipe.checks import read_objective
from hf_mlnmt.recipe.schema import NamedObjective, Recipe, TaskSection
from hf_mlnmt.training.rotation import seed_of

EncodedSet = Corpora | Resegmented
Spec = TypeVar("Spec", CorpusSpec, TextSpec)


@dataclass
class TaskCorpora:
    """A task of a recipe: what its keys say, read and checked."""

    name: str
    section: TaskSection
    languages: dict[str, str]
    objective: NamedObjective
    seed: int
    pairs: list[CorpusSpec] = dataclasses.field(default_factory=list)  # one of the two is empty
    texts: list[TextSpec] = dataclasses.field(default_factory=list)

    @property
    def specs(self) -> list[CorpusSpec] | list[TextSpec]:
        """The task's corpora: pairs, or text of one language."""
        return self.pairs or self.texts


class RecipeCorpora:
    """The training corpora of all tasks of a recipe.

    Raises: UserError naming the field, when it is made.
    """

    def __init__(self, recipe: Recipe, root: Path, output: Path, tell: Callable[[str], None]) -> None:
        self.recipe, self.root, self.output, self.tell = recipe, root, output, tell
        self.manifests: dict[str, Manifest] = {}  # of synthetic corpora, by their names in the recipe
        self.filter = build(PairFilter, recipe.data.filters, str(recipe.path), ("data", "filters"))
        self.tasks = [self._task(number, *item) for number, item in enumerate(recipe.sections().items())]

    def _task(self, number: int, name: str, section: TaskSection) -> TaskCorpora:
        recipe = self.recipe
        languages = dataclasses.asdict(section.languages or recipe.languages)
        at = ("data", "train") if recipe.tasks is None else ("tasks", name, "data")
        said = ("objective",) if recipe.tasks is None else ("tasks", name, "objective")
        objective = read_objective(section.objective, str(recipe.path), said)
        many = section.data if isinstance(section.data, list) else [section.data]
        task = TaskCorpora(name, section, languages, objective, seed_of(recipe.seed, number))
        if objective.key.reads == "text":
            task.texts = [self.text_spec(fields, at, languages, objective.key.side) for fields in many]
            task.languages = {"text": "+".join(dict.fromkeys(str(spec.language) for spec in task.texts))}
        else:
            task.pairs = [self.pair_spec(fields, at, languages) for fields in many]
            try:
                check_ratios(task.pairs, recipe.data.temperature)
            except UserError as error:
                raise UserError(f"{recipe.path}: {'.'.join(at)}: {error}") from error
        return task

    def pair_spec(self, fields: dict[str, Any], at: tuple[str, ...], languages: dict[str, str]) -> CorpusSpec:
        """A corpus of pairs; one that names no languages is of these."""
        spec = build(CorpusSpec, fields, str(self.recipe.path), at)
        if spec.synthetic:
            manifest = read_manifest(find_synthetic(spec.synthetic, self.root))
            self.manifests[spec.synthetic] = manifest
            spec = dataclasses.replace(spec, tag=manifest.tag if spec.tag is None else spec.tag)
        self._check_tag(spec.tag, at)
        return dataclasses.replace(spec, languages=spec.languages or languages)

    def _check_tag(self, tag: str | None, at: tuple[str, ...]) -> None:
        tokenizer = self.recipe.tokenizer
        if tag and tokenizer.path is None and tag not in tokenizer.tags:
            raise UserError(
                f"{self.recipe.path}: {'.'.join(at)}: the tokenizer will have no token {tag}, which is to stand before "
                f"the sources: add tokenizer: {{tags: ['{tag}']}}, or say tag: '' for none."
            )

    def text_spec(
        self,
        fields: dict[str, Any],
        at: tuple[str, ...],
        languages: dict[str, str],
        usual: TextSide | None = None,
    ) -> TextSpec:
        """Text of one language; its side unless told is the one that the language is of, or without that `usual`."""
        spec = build(TextSpec, fields, str(self.recipe.path), at)
        if spec.language is None and spec.side is None and usual is not None:
            spec = dataclasses.replace(spec, side=usual)
        sides: list[TextSide] = [side for side in ("source", "target") if languages[side] == spec.language]
        if len(set(languages.values())) == 1:  # text of one language throughout
            sides = sides[-1:]
        if spec.side is None and len(sides) != 1:
            raise UserError(
                f"{self.recipe.path}: {'.'.join(at)}: give language as one of {languages['source']} and "
                f"{languages['target']}, or side: source or target: whose vocabulary is this text to get?"
            )
        side = spec.side or sides[0]
        return dataclasses.replace(spec, side=side, language=spec.language or languages[side])

    def texts(self, side: TextSide) -> Iterator[str]:
        """All text of one side that passes the filters, for a tokenizer to learn from."""
        column = ("source", "target").index(side)
        for task in self.tasks:
            for pairs in task.pairs:
                report = FilterReport()
                yield from (pair[column] for pair in filtered_pairs(pairs, self.root, self.filter, report))
                self._check_something_left(pairs, report)
            for text in task.texts:
                report = FilterReport()
                if text.side == side:
                    yield from filtered_text(text, self.root, self.filter.of_text(), report)
                    self._check_something_left(text, report)

    def languages(self) -> list[str]:
        """All languages of the tasks, each once, in their order."""
        named = (spec.languages or {} for task in self.tasks for spec in task.pairs)
        of_texts = [str(spec.language) for task in self.tasks for spec in task.texts]
        return list(dict.fromkeys([code for one in named for code in one.values()] + of_texts))

    def texts_of(self, language: str) -> Iterator[str]:
        """All text of one language that passes the filters; a file that several tasks read counts once."""
        read = set()
        for task in self.tasks:
            for pairs in task.pairs:
                for column, side in enumerate(("source", "target")):
                    name = (pairs.files or {}).get(side) or repr(pairs)
                    if (pairs.languages or {}).get(side) == language and name not in read:
                        read.add(name)
                        report = FilterReport()
                        found = filtered_pairs(pairs, self.root, self.filter, report)
                        yield from (pair[column] for pair in found)
                        self._check_something_left(pairs, report)
            for text in task.texts:
                if text.language == language:
                    yield from filtered_text(text, self.root, self.filter.of_text(), FilterReport())

    def _check_something_left(self, spec: CorpusSpec | TextSpec, report: FilterReport) -> None:
        if not report.kept:
            what = "pair" if isinstance(spec, CorpusSpec) else "sentence"
            raise UserError(f"{spec}: no {what} is left. Relax data.filters.\n{report.table(f'{what}s')}")

    def training_sets(self, tokenizers: Tokenizers) -> dict[str, EncodedSet]:
        """Each task's filtered and encoded corpora, with a report of what was dropped; ready for their epochs."""
        return {task.name: self._training_set(task, tokenizers) for task in self.tasks}

    def _training_set(self, task: TaskCorpora, tokenizers: Tokenizers) -> EncodedSet:
        parts, data = [], self.recipe.data
        specs: Sequence[CorpusSpec | TextSpec] = task.specs
        for number, spec in enumerate(specs):
            name = f"train{number}" if self.recipe.tasks is None else f"{task.name}.{number}"
            part = self.encode(name, spec, tokenizers, self.filter, data.max_length)
            self.tell(f"{spec}\n{part.report.table(part.unit)}")
            parts.append(part)
        if task.texts:
            return Corpora(parts, [spec.weight for spec in specs], data.temperature, task.seed)
        chosen, weights = at_ratios(parts, task.pairs, task.seed)
        return self._changed(
            Corpora(chosen, weights, data.temperature, task.seed), tokenizers, task.seed, task.languages
        )

    def encode(
        self,
        name: str,
        spec: CorpusSpec | TextSpec,
        tokenizers: Tokenizers,
        pair_filter: PairFilter | None = None,
        max_length: int | None = None,
    ) -> Any:
        """A corpus on disk, under data/<name> of the run's folder."""
        folder = self.output / "data" / name
        if isinstance(spec, TextSpec):
            text_filter = pair_filter.of_text() if pair_filter else None
            return encode_text(spec, self.root, tokenizers, folder, text_filter, max_length)
        return encode_corpus(spec, self.root, tokenizers, folder, pair_filter, max_length)

    def _changed(self, corpora: Corpora, tokenizers: Tokenizers, seed: int, languages: dict[str, str]) -> EncodedSet:
        """The pairs, cut anew by BPE-dropout where `data` says so."""
        data = self.recipe.data
        if not data.bpe_dropout:
            return corpora
        tokenizers = tokenizers.between(languages["source"], languages["target"])
        source = BPEDropout(tokenizers.source, data.bpe_dropout)
        target = source if tokenizers.joint else BPEDropout(tokenizers.target, data.bpe_dropout)
        self.tell(f"cutting words for BPE-dropout {data.bpe_dropout:g}")
        return Resegmented(corpora, source, target, data.bpe_dropout_epochs, seed, data.max_length)
