"""Loads and names the models of a server, finds their language pairs, and chooses models for requests.

Requests name languages by ISO 639 codes ("de") or by a model's own codes ("deu_Latn"). Scripts and regions that the
models distinguish are named too ("zh-Hans", "zh-Hant"); "zh" then means the first of these. The pairs of a model are
read from the model (language codes, modules of single languages); for a model of one pair from its folder (card,
results.json, Marian's tokenizer, a name like opus-mt-en-de), or given as `en-de=MODEL`. A pair that no model has is
translated through a third language where two models together have the pair.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.languages import Direction, base_language, check_direction, direction_of, language_tag
from hf_mlnmt.common.model_folder import CARD, fetch_small_files
from hf_mlnmt.generation import TranslationMemory, TranslationPipeline, has_modules
from hf_mlnmt.reports.facts import front_matter

logger = logging.getLogger(__name__)

_NAMED = re.compile(r"([A-Za-z]{2,3}(?:_[A-Za-z]+)?)-([A-Za-z]{2,3}(?:_[A-Za-z]+)?)=(.+)", re.DOTALL)
_MARIAN = re.compile(r"opus-mt-(?:tc-\w+-)?([a-z]{2,3})-([a-z]{2,3})$")
_PLACES = {"average", "best", "hub", "model"}  # a model in such a folder gets the parent folder's name
_MOST_ROUTES = 10_000  # number of routes that are cached
_PREFERRED = "en"  # preferred third language `via` of a route through two models


class Leg(NamedTuple):
    """A translation step by one model; source, target: the model's own language codes (None: it needs no code)."""

    name: str
    pipeline: TranslationPipeline
    source: str | None
    target: str | None


class Route(NamedTuple):
    """The models for a translation: one leg, or two through the language `via`.

    target: the code of the target language if it is not the one asked for (zh-Hans for zh).
    """

    legs: tuple[Leg, ...]
    via: str | None = None
    target: str | None = None


@dataclass
class ServedModel:
    """A served model. given: as the user named it; name: for clients. pairs: {(source, target) in the codes of clients:
    (source, target) in the model's own codes}; tags: the same, by language tags with script and region."""

    given: str
    name: str
    pipeline: TranslationPipeline
    tags: dict[Direction, tuple[str | None, str | None]] = field(default_factory=dict)
    pairs: dict[Direction, tuple[str | None, str | None]] = field(default_factory=dict)


class ServedModels:
    """The loaded models of a server. Safe for threads; `reload` replaces models during requests.

    Args:
        names: folders or Hub names, also as `en-de=MODEL`; a pair that several models have is translated by the first.
        device, dtype: as in TranslationPipeline.from_pretrained.
        memory: files of translation memories, as they are or as `en-de=FILE`.

    Raises: UserError for a model that cannot be loaded, or whose languages are unknown.
    """

    def __init__(
        self, names: Sequence[str], *, device: str | None = None, dtype: str = "auto", memory: Sequence[str] = ()
    ) -> None:
        if not names:
            raise UserError("no model to serve: give folders or Hub names of models.")
        self.settings: dict[str, Any] = {"device": device, "dtype": dtype}
        self.given, self.memory = list(names), list(memory)
        self._one_reload = threading.Lock()
        self._routes = lru_cache(_MOST_ROUTES)(self._route)
        self.models = self._remembering(self._named([self._load(name) for name in self.given]))

    @property
    def names(self) -> list[str]:
        """Returns the names of all models, in the order in which they were given."""
        return [model.name for model in self.models]

    def languages(self) -> dict[str, list[str]]:
        """Returns {source: its targets}, in the order of the models; pairs through a third language are included."""
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
        """Returns the model, or two in turn, for a language pair; a language may be None where only one is possible.

        source, target: ISO 639 codes, or a model's own. model: the name of the model to use.
        Raises: UserError for languages or models that are not served, naming those that are.
        """
        return self._routes(source, target, model)

    def _route(self, source: str | None, target: str | None, model: str | None) -> Route:
        models = self.models
        if model is not None:
            models = [served for served in models if model in (served.name, served.given)]
            if not models:
                raise UserError(
                    f"model {model!r} is not served{suggest(model, self.names)}; known: {_said(self.names)}."
                )
        pairs = [pair for served in models for pair in served.pairs]
        possible = self._wanted(models, pairs, source, target)
        wanted = next(filter(pairs.__contains__, possible), possible[0])
        said = None if target is None or language_tag(target) == wanted[1] else wanted[1]
        if wanted in pairs:
            return Route((_leg(models, wanted),), target=said)
        through = [via for start, via in pairs if start == wanted[0] and (via, wanted[1]) in pairs]
        if not through or model is not None:
            raise UserError(f"{wanted[0]} to {wanted[1]} is not served; known: {_said(map('-'.join, pairs))}.")
        via = _PREFERRED if _PREFERRED in through else through[0]
        return Route((_leg(models, (wanted[0], via)), _leg(models, (via, wanted[1]))), via, said)

    def reload(self) -> list[str]:
        """Loads all models again, and returns messages on those that failed: for these the old models stay.

        Translations that have begun are finished by the old models.
        """
        problems = []
        with self._one_reload:
            models = []
            for old in self.models:
                try:
                    models.append(self._load(old.given))
                except Exception as error:  # after any error the old model is kept
                    problems.append(f"{old.given}: not loaded again, the one that was loaded stays ({error})")
                    models.append(old)
            self.models = self._remembering(self._named(models))
            self._routes.cache_clear()
        for problem in problems:
            logger.error("%s", problem)
        return problems

    def _load(self, given: str) -> ServedModel:
        match = _NAMED.fullmatch(given)
        place = match[3] if match else given
        if match:
            check_direction(place, match.groups()[:2], given, "Name the pair that it translates.")
        pipeline = TranslationPipeline.from_pretrained(place, **self.settings)
        model = ServedModel(given, given if match or not Path(place).is_dir() else _name_of(Path(place)), pipeline)
        if match:
            model.name = f"{match[1]}-{match[2]}"
        model.tags = dict(_pairs(place, pipeline, (match[1], match[2]) if match else None))
        return model

    def _remembering(self, models: list[ServedModel]) -> list[ServedModel]:
        """Gives the models of each pair its memory, and returns the models. Raises: UserError for one of no pair."""
        pairs = list(dict.fromkeys(pair for model in models for pair in model.pairs))
        files: dict[Direction, list[str]] = {}
        for given in self.memory:
            match = _NAMED.fullmatch(given)
            pair = (match[1], match[2]) if match else pairs[0]
            if pair not in pairs or (match is None and len(pairs) > 1):
                known = _said(map("-".join, pairs))
                raise UserError(f"--memory {given}: name its pair, as in en-de=FILE; served are {known}.")
            files.setdefault(pair, []).append(match[3] if match else given)
        for pair, names in files.items():
            memory = TranslationMemory(*names, source=pair[0], target=pair[1])
            for model in models:
                if pair in model.pairs:
                    model.pipeline.memory = memory
        return models

    @staticmethod
    def _named(models: list[ServedModel]) -> list[ServedModel]:
        """Makes models' names unique, sets `pairs` by the shortest codes that tell varieties apart, returns models."""
        taken: set[str] = set()
        varieties: dict[str, set[str]] = {}
        for tag in (tag for model in models for pair in model.tags for tag in pair):
            varieties.setdefault(base_language(tag), set()).add(tag)
        short = {tag: base if len(tags) == 1 else tag for base, tags in varieties.items() for tag in tags}
        for model in models:
            name, number = model.name, 1
            while model.name in taken:
                number += 1
                model.name = f"{name}-{number}"
            taken.add(model.name)
            model.pairs = {(short[source], short[target]): own for (source, target), own in model.tags.items()}
        return models

    @staticmethod
    def _wanted(
        models: list[ServedModel], pairs: list[Direction], source: str | None, target: str | None
    ) -> list[Direction]:
        """Returns the pairs of served codes that `source` and `target` can mean, the nearest first."""
        asked, meant = (source, target), list[list[str]]()
        known = [
            dict.fromkeys(
                (pair[side], tags[side], own[side])
                for model in models
                for pair, (tags, own) in zip(model.pairs, model.tags.items())
            )
            for side in (0, 1)
        ]
        for option, code, codes in zip(("source", "target"), asked, known):
            meant.append([] if code is None else _meant(code, codes))
            if code is not None and not meant[-1]:
                served = list(dict.fromkeys(served for served, _, _ in codes))
                raise UserError(f"{option} {code!r} is not served{suggest(code, served)}; known: {_said(served)}.")
        for side, option in enumerate(("source", "target")):
            if asked[side] is None:
                other = meant[1 - side]
                meant[side] = list(dict.fromkeys(p[side] for p in pairs if not other or p[1 - side] in other))
                if len(meant[side]) != 1:
                    raise UserError(
                        f"{option}: say which language; known: {_said(each for each, _, _ in known[side])}."
                    )
        return list(product(*meant))  # type: ignore[arg-type]


def _meant(code: str, known: Iterable[tuple[str, str, str | None]]) -> list[str]:
    """Returns the served codes that a code can mean, the nearest first: without script or region all varieties of the
    language, else those of the same script. known: (served code, tag, the model's own code) of all languages."""
    import langcodes

    tag, near = language_tag(code), dict[str, int]()
    for served, full, own in known:
        if code in (served, own) or tag == full:
            near[served] = -1
        elif base_language(code) == base_language(full):
            scripts = {langcodes.get(each).maximize().script for each in (tag, full) if "-" in each}
            if "-" not in tag:
                near.setdefault(served, 0)
            elif len(scripts) < 2 or "-" not in full:
                near.setdefault(served, langcodes.tag_distance(tag, full))
    return sorted(near, key=lambda served: (near[served], tag != base_language(tag) and "-" in served))


def _leg(models: list[ServedModel], pair: Direction) -> Leg:
    """Returns the leg that translates a pair by the first model that has it."""
    model = next(model for model in models if pair in model.pairs)
    return Leg(model.name, model.pipeline, *model.pairs[pair])


def _pairs(
    place: str, pipeline: TranslationPipeline, named: Direction | None
) -> Iterator[tuple[Direction, tuple[str | None, str | None]]]:
    """Yields the pairs of a model: (tags of source and target, the model's own codes or None where it needs none)."""
    model, tokenizer, codes = pipeline.model, pipeline.parts.source, pipeline.languages
    if has_modules(model):
        sources, targets = model.config.source_languages, model.config.target_languages
        told = True, True
    elif codes:
        targets, told = codes, (hasattr(tokenizer, "src_lang"), True)
        # Source languages of a model that needs only the target's code: its target languages and those of its card.
        sources = codes if told[0] else list(dict.fromkeys([*codes, *_card_languages(place)]))
    elif pair := named or _pair_of_folder(place):
        yield (_tag(pair[0]), _tag(pair[1])), (None, None)
        return
    else:
        raise UserError(
            f"{place}: nothing says which languages it translates. Name them, as in en-de={place}, or let hf-mlnmt "
            "publish write results.json and a card."
        )
    for source in sources:
        for target in targets:
            pair = _tag(source), _tag(target)
            if pair[0] != pair[1] and (named is None or all(map(_is_named, named, pair))):
                yield pair, (source if told[0] else None, target)


def _pair_of_folder(place: str) -> Direction | None:
    """Returns the language pair of a model of one pair, by its files, its card or its name; None if none tells it."""
    match, card = _MARIAN.search(place.rstrip("/")), _card_languages(place)
    said = direction_of(fetch_small_files(place)) or (card if len(card) == 2 else match.groups() if match else None)
    return (said[0], said[1]) if said else None


def _tag(code: str) -> str:
    """Returns the language tag, with script and region, of a model's code; a code of no language (romance) as it is."""
    tag = language_tag(code)
    return base_language(code) if tag == "und" else tag


def _is_named(named: str, tag: str) -> bool:
    return _tag(named) == tag or named == base_language(tag)


def _card_languages(place: str) -> list[str]:
    """Returns the list `language` of the card's front matter; [] without one."""
    languages = front_matter(fetch_small_files(place) / CARD).get("language")
    return [str(code) for code in languages] if isinstance(languages, list) else []


def _name_of(folder: Path) -> str:
    """Returns the name of a folder's model for clients: the folder's name, or its parent's if it is in _PLACES."""
    folder = folder.resolve()
    return folder.parent.name if folder.name in _PLACES and folder.parent.name else folder.name


def _said(values: Iterable[str], most: int = 20) -> str:
    different = list(dict.fromkeys(values))
    return ", ".join(different[:most]) + (f" and {len(different) - most} more" if len(different) > most else "")
