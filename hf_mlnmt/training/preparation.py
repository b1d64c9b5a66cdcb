"""What a training needs before its first step: tokenizers, encoded corpora, the model. Made once, then reused."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel, set_seed

from hf_mlnmt.data.bidirectional import BothDirections
from hf_mlnmt.data.bpe_dropout import BPEDropout
from hf_mlnmt.data.corpora import Corpora
from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.encoded import EncodedPairs
from hf_mlnmt.data.filters import FilterReport, PairFilter
from hf_mlnmt.data.prepare import encode_corpus, filtered_pairs
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.resegmented import Resegmented
from hf_mlnmt.data.tokenizer import Tokenizers, load_tokenizers, save_tokenizers, train_tokenizer
from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.files import atomic_folder
from hf_mlnmt.training import dev
from hf_mlnmt.training.finishing import generation_config
from hf_mlnmt.training.reading import build
from hf_mlnmt.training.recipe import Recipe
from hf_mlnmt.zoo.records import records_root
from hf_mlnmt.zoo.systems import config_for

Tell = Callable[[str], None]


@dataclass
class RawPairs:
    """A development or test set as raw text: what is translated and what it is compared with."""

    name: str
    sources: list[str]
    references: list[str]
    target_language: str | None = None  # only of multilingual models


class Preparation:
    """The parts of a run, made from a recipe and kept in the run's folder `output`."""

    def __init__(self, recipe: Recipe, data: Path, output: Path, tell: Tell) -> None:
        self.recipe, self.root, self.output, self.tell = recipe, data, output, tell
        many = recipe.data.train if isinstance(recipe.data.train, list) else [recipe.data.train]
        self.train_specs = [self._spec(spec, "data.train") for spec in many]
        self.dev_spec = self._spec(recipe.data.dev, "data.dev")
        self.test_specs = {name: self._spec(spec, f"data.test.{name}") for name, spec in recipe.data.test.items()}
        self.filter = build(PairFilter, recipe.data.filters, str(recipe.path), ("data", "filters"))

    def _spec(self, fields: dict[str, Any], at: str) -> CorpusSpec:
        spec = build(CorpusSpec, fields, str(self.recipe.path), tuple(at.split(".")))
        # A corpus that names no languages is of the recipe's.
        return dataclasses.replace(spec, languages=spec.languages or dataclasses.asdict(self.recipe.languages))

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

        def texts(side: str) -> Iterator[str]:
            column = ("source", "target").index(side)
            for spec in self.train_specs:
                report = FilterReport()
                for pair in filtered_pairs(spec, self.root, self.filter, report):
                    yield processing[side].apply(pair[column])
                if not report.kept:
                    raise UserError(f"{spec}: no pair is left. Relax data.filters.\n{report.table()}")

        def train(lines: Iterator[str]) -> Any:
            codes = settings.languages
            return train_tokenizer(lines, settings.kind, settings.vocab_size, codes, settings.byte_fallback)

        if settings.joint:
            return train(itertools.chain(texts("source"), texts("target"))), None, processing
        return train(texts("source")), train(texts("target")), processing

    # Data

    def training_data(self, tokenizers: Tokenizers) -> Corpora | BothDirections | Resegmented:
        """The filtered and encoded training corpora, with a report of what was dropped; ready for their epochs."""
        corpora = self._directions(tokenizers)
        data, seed = self.recipe.data, self.recipe.seed
        if not data.bpe_dropout:
            return corpora
        source = BPEDropout(tokenizers.source, data.bpe_dropout)
        target = source if tokenizers.joint else BPEDropout(tokenizers.target, data.bpe_dropout)
        self.tell(f"cutting words for BPE-dropout {data.bpe_dropout:g}")
        return Resegmented(corpora, source, target, data.bpe_dropout_epochs, seed, data.max_length)

    def _directions(self, tokenizers: Tokenizers) -> Corpora | BothDirections:
        data, parts = self.recipe.data, []
        for number, spec in enumerate(self.train_specs):
            part = self._encode(f"train{number}", spec, tokenizers, self.filter, data.max_length)
            self.tell(f"{spec}\n{part.report.table()}")
            parts.append(part)
        weights = [spec.weight for spec in self.train_specs]
        corpora = Corpora(parts, weights, data.temperature, self.recipe.seed)
        if not data.bidirectional_epochs:
            return corpora
        if not tokenizers.joint:
            raise UserError(
                f"{self.recipe.path}: data.bidirectional_epochs needs one vocabulary for both sides: set "
                "tokenizer.joint to true (or take a joint tokenizer.path)."
            )
        return BothDirections(corpora, data.bidirectional_epochs, self.recipe.seed)

    def dev_set(self, tokenizers: Tokenizers) -> dev.DevSet:
        """The development set, whole, with the recipe's metrics."""
        settings = self.recipe.evaluation
        lowercase = tokenizers.processing["target"].lowercase
        metrics = [dev.metric(name, lowercase) for name in settings.metrics]
        raw = self.raw("dev", self.dev_spec)
        encoded = self._encode("dev", self.dev_spec, tokenizers)
        return dev.DevSet(
            encoded,
            raw.references,
            tokenizers.decode_target,
            metrics,
            sources=raw.sources,
            num_beams=settings.beams,
            max_length=self.recipe.decoding.max_new_tokens,
        )

    def raw(self, name: str, spec: CorpusSpec) -> RawPairs:
        """A development or test set as it is."""
        pairs = list(read_pairs(spec, self.root))
        if not pairs:
            raise UserError(f"{spec}: no sentence pairs; data.{name} needs some.")
        language = spec.languages["target"] if self.recipe.tokenizer.languages and spec.languages else None
        return RawPairs(name, [pair[0] for pair in pairs], [pair[1] for pair in pairs], language)

    def test_sets(self) -> list[RawPairs]:
        """All test sets."""
        return [self.raw(name, spec) for name, spec in self.test_specs.items()]

    def _encode(
        self,
        name: str,
        spec: CorpusSpec,
        tokenizers: Tokenizers,
        pair_filter: PairFilter | None = None,
        max_length: int | None = None,
    ) -> EncodedPairs:
        return encode_corpus(spec, self.root, tokenizers, self.output / "data" / name, pair_filter, max_length)

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

    def _config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        settings = self.recipe.model
        source, target = len(tokenizers.source), len(tokenizers.target)
        ids = {name: getattr(tokenizers.target, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
        fixed: dict[str, Any] = {"vocab_size": source, **ids, "decoder_start_token_id": ids["bos_token_id"]}
        fixed |= {"decoder_vocab_size": target}
        if not tokenizers.joint:
            fixed["share_encoder_decoder_embeddings"] = False
        if settings.system is not None:
            return config_for(settings.system, settings.shape, **{**settings.settings, **fixed})
        path = self._record()
        config = AutoConfig.from_pretrained(str(path))
        known = {item.name for item in dataclasses.fields(config)}
        for name in settings.settings:
            if name not in known:
                raise UserError(
                    f"{self.recipe.path}: model.settings.{name}: {type(config).__name__} has no such "
                    f"field{suggest(name, known)}."
                )
        if config.vocab_size != source:
            self.tell(
                f"the tokenizer has {source} entries, {path.name} says {config.vocab_size}: the tokenizer's count"
            )
        return AutoConfig.from_pretrained(str(path), **{**settings.settings, **fixed})

    def _record(self) -> Path:
        """modeling/<record>.json: beside the recipe's folder, or one of the project's own."""
        recipe = self.recipe
        name = f"{recipe.model.record or recipe.stem}.json"
        beside = (recipe.path.parent.parent if recipe.path else Path()) / "modeling" / name
        for path in (beside, records_root() / "modeling" / name):
            if path.is_file():
                return path
        raise UserError(
            f"{recipe.path}: model: there is no {beside}. Name a record that exists (model.record), or give "
            "model.system and model.shape."
        )
