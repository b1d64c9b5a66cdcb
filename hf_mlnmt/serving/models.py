"""The models of a server: loaded, named, and which pairs of languages each of them translates.

A request names languages as ISO 639 does ("de"), and also by a model's own codes ("deu_Latn"). Which pairs a model has
is read off the model (language codes, modules of a bridge); of a model of one pair, off its folder (results.json, the
card, the names that Marian's tokenizer has, a name like opus-mt-en-de), unless it is given as `en-de=MODEL`. A pair
that no model has alone is translated through a third language, where two models together have it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.files import read_json
from hf_mlnmt.generation.languages import has_modules
from hf_mlnmt.generation.pipeline import TranslationPipeline
from hf_mlnmt.model_folder import CARD, RESULTS, fetch_small_files

logger = logging.getLogger(__name__)

Pair = tuple[str, str]
_NAMED = re.compile(r"([A-Za-z]{2,3}(?:_[A-Za-z]+)?)-([A-Za-z]{2,3}(?:_[A-Za-z]+)?)=(.+)", re.DOTALL)
_MARIAN = re.compile(r"opus-mt-(?:tc-\w+-)?([a-z]{2,3})-([a-z]{2,3})$")
_PLACES = {"average", "best", "hub", "model"}  # folders whose own name says nothing
_MOST_ROUTES = 10_000  # kept, of those that were asked for
_PREFERRED = "en"  # to translate through


class Leg(NamedTuple):
    """One translation: a model, and its codes of the languages (None: it has one pair)."""

    name: str
    pipeline: TranslationPipeline
    source: str | None
    target: str | None


class Route(NamedTuple):
    """One leg, or two through the language `via`."""

    legs: tuple[Leg, ...]
    via: str | None = None


@dataclass
class ServedModel:
    """A model under its name; `pairs`: ISO codes of source and target -> the model's own codes."""

    given: str
    name: str
    pipeline: TranslationPipeline
    pairs: dict[Pair, tuple[str | None, str | None]] = field(default_factory=dict)

    def leg(self, pair: Pair) -> Leg:
        """The translation of a pair that it has."""
        return Leg(self.name, self.pipeline, *self.pairs[pair])


class ServedModels:
    """Models that stay loaded. Safe for threads; `reload` puts others in their places while requests go on.

    Args:
        names: folders or Hub names, as they are or as `en-de=MODEL`; of several with one pair the first has it.
        device, dtype, engine: as in TranslationPipeline.from_pretrained.

    Raises: UserError for a model that cannot be loaded, or whose languages nothing says.
    """

    def __init__(
        self, names: Sequence[str], *, device: str | None = None, dtype: str = "auto", engine: str = "torch"
    ) -> None:
        if not names:
            raise UserError("no model to serve: give folders or Hub names of models.")
        self.settings: dict[str, Any] = {"device": device, "dtype": dtype, "engine": engine}
        self.given = list(names)
        self._one_reload = threading.Lock()
        self._routes: dict[Any, Route] = {}
        self.models = self._named([self._load(name) for name in self.given])

    @property
    def names(self) -> list[str]:
        """Of all models, in the order in which they were given."""
        return [model.name for model in self.models]

    def languages(self) -> dict[str, list[str]]:
        """Source -> its targets, pairs through a third language included; in the order of the models."""
        direct: dict[str, dict[str, None]] = {}
        for model in self.models:
            for source, target in model.pairs:
                direct.setdefault(source, {})[target] = None
        reached = {}
        for source, targets in direct.items():
            through = {far: None for near in targets for far in direct.get(near, ()) if far != source}
            reached[source] = list({**targets, **through})
        return reached

    def route(self, source: str | None = None, target: str | None = None, model: str | None = None) -> Route:
        """Who translates a pair of languages. What is None is found where only one language is possible.

        Args:
            source, target: ISO 639 codes, or a model's own.
            model: the name of the one that shall do it.

        Raises: UserError for languages or models that are not served; it says which are.
        """
        asked = source, target, model
        if (route := self._routes.get(asked)) is None:
            route = self._route(*asked)
            if len(self._routes) > _MOST_ROUTES:
                self._routes.clear()
            self._routes[asked] = route
        return route

    def _route(self, source: str | None, target: str | None, model: str | None) -> Route:
        models = self.models
        if model is not None:
            models = [one for one in models if model in (one.name, one.given)]
            if not models:
                raise UserError(
                    f"model {model!r} is not served{suggest(model, self.names)}; known: {_said(self.names)}."
                )
        pairs = [pair for one in models for pair in one.pairs]
        wanted = self._wanted(models, pairs, source, target)
        for one in models:
            if wanted in one.pairs:
                return Route((one.leg(wanted),))
        through = [via for start, via in pairs if start == wanted[0] and (via, wanted[1]) in pairs]
        if not through or model is not None:
            raise UserError(f"{wanted[0]} to {wanted[1]} is not served; known: {_said(map('-'.join, pairs))}.")
        via = _PREFERRED if _PREFERRED in through else through[0]
        first = next(one for one in models if (wanted[0], via) in one.pairs)
        second = next(one for one in models if (via, wanted[1]) in one.pairs)
        return Route((first.leg((wanted[0], via)), second.leg((via, wanted[1]))), via)

    def reload(self) -> list[str]:
        """Read all models again; what is being translated goes on with the old ones.

        Returns: what went wrong. A model that cannot be loaded stays as it is.
        """
        problems = []
        with self._one_reload:
            models = []
            for old in self.models:
                try:
                    models.append(self._load(old.given))
                except Exception as error:  # whatever it is, the old one goes on
                    problems.append(f"{old.given}: not loaded again, the one that was loaded stays ({error})")
                    models.append(old)
            self.models, self._routes = self._named(models), {}
        for problem in problems:
            logger.error("%s", problem)
        return problems

    def _load(self, given: str) -> ServedModel:
        match = _NAMED.fullmatch(given)
        place = match[3] if match else given
        pipeline = TranslationPipeline.from_pretrained(place, **self.settings)
        model = ServedModel(given, given if match or not Path(place).is_dir() else _name_of(Path(place)), pipeline)
        if match:
            model.name = f"{match[1]}-{match[2]}"
        model.pairs = dict(_pairs(place, pipeline, (match[1], match[2]) if match else None))
        return model

    @staticmethod
    def _named(models: list[ServedModel]) -> list[ServedModel]:
        """The models, whose names are made different from one another."""
        taken: set[str] = set()
        for model in models:
            name, number = model.name, 1
            while model.name in taken:
                number += 1
                model.name = f"{name}-{number}"
            taken.add(model.name)
        return models

    @staticmethod
    def _wanted(models: list[ServedModel], pairs: list[Pair], source: str | None, target: str | None) -> Pair:
        """The pair of ISO codes that is asked for."""
        own: list[dict[str, str]] = [{}, {}]  # codes of the models -> ISO, of sources and of targets
        for model in models:
            for pair, codes in model.pairs.items():
                for side, (language, code) in enumerate(zip(pair, codes)):
                    own[side].setdefault(language, language)
                    own[side].setdefault(code or language, language)
        chosen: list[str] = []
        for side, (option, code) in enumerate([("source", source), ("target", target)]):
            if code is None:
                other = chosen[0] if side else own[1].get(target or "", target)
                possible = list(dict.fromkeys(p[side] for p in pairs if other is None or p[1 - side] == other))
                if len(possible) != 1:
                    raise UserError(f"{option}: say which language; known: {_said(own[side].values())}.")
                chosen.append(possible[0])
                continue
            wanted = own[side].get(code) or own[side].get(iso_code(code))
            if wanted is None:
                known = list(dict.fromkeys(own[side].values()))
                raise UserError(f"{option} {code!r} is not served{suggest(code, known)}; known: {_said(known)}.")
            chosen.append(wanted)
        return chosen[0], chosen[1]


def iso_code(code: str) -> str:
    """ "deu_Latn", "deu", "de_DE" -> "de": the ISO 639 code of the language, two letters where there are two."""
    from langcodes import standardize_tag
    from langcodes.tag_parser import LanguageTagError

    try:
        return standardize_tag(code).split("-")[0]
    except LanguageTagError:
        return code


def _pairs(
    place: str, pipeline: TranslationPipeline, named: Pair | None
) -> Iterator[tuple[Pair, tuple[str | None, str | None]]]:
    """The pairs of a model, with its own codes."""
    model, tokenizer, codes = pipeline.model, pipeline.parts.source, pipeline.languages
    if has_modules(model):
        sources, targets = model.config.source_languages, model.config.target_languages
        told = True, True
    elif codes:
        targets, told = codes, (hasattr(tokenizer, "src_lang"), True)
        # A model that is told its target alone reads every language of its card, and those that it writes.
        sources = codes if told[0] else list(dict.fromkeys([*codes, *_card_languages(place)]))
    elif pair := named or _pair_of_folder(place, tokenizer):
        yield pair, (None, None)
        return
    else:
        raise UserError(
            f"{place}: nothing says which languages it translates. Name them, as in en-de={place}, or let hf-mlnmt "
            "publish write results.json and a card."
        )
    for source in sources:
        for target in targets:
            pair = iso_code(source), iso_code(target)
            if pair[0] != pair[1] and named in (None, pair):
                yield pair, (source if told[0] else None, target)


def _pair_of_folder(place: str, tokenizer: Any) -> Pair | None:
    """The pair that a model of one pair has, as its files say."""
    folder = fetch_small_files(place)
    content = read_json(folder / RESULTS) if (folder / RESULTS).is_file() else {}
    said = content.get("languages")
    if isinstance(said, dict) and all(isinstance(said.get(side), str) for side in ("source", "target")):
        return said["source"], said["target"]
    marian = getattr(tokenizer, "source_lang", None), getattr(tokenizer, "target_lang", None)
    if all(isinstance(code, str) and code for code in marian):
        return iso_code(str(marian[0])), iso_code(str(marian[1]))
    languages = _card_languages(place)
    if len(languages) == 2:
        return languages[0], languages[1]
    match = _MARIAN.search(place.rstrip("/"))
    return (iso_code(match[1]), iso_code(match[2])) if match else None


def _card_languages(place: str) -> list[str]:
    """What the card's front matter says under `language`."""
    card = fetch_small_files(place) / CARD
    if not card.is_file():
        return []
    from huggingface_hub import ModelCard

    try:
        languages = ModelCard.load(card).data.language
    except Exception:  # a card is written by hand, too: what cannot be read says nothing
        return []
    return [str(one) for one in languages] if isinstance(languages, list) else []


def _name_of(folder: Path) -> str:
    """What clients call the model of a folder: its name, or that of the one around it."""
    folder = folder.resolve()
    return folder.parent.name if folder.name in _PLACES and folder.parent.name else folder.name


def _said(values: Any, most: int = 20) -> str:
    different = list(dict.fromkeys(values))
    return ", ".join(different[:most]) + (f" and {len(different) - most} more" if len(different) > most else "")
