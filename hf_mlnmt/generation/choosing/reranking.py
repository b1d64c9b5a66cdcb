"""Reranking: scores the candidates of a search, beams or samples, by a weighted sum of features.

References: Och 2003, "Minimum Error Rate Training in Statistical Machine Translation" (the weights: evaluation/
tuning.py); Yee et al. 2019, "Simple and Effective Noisy Channel Modeling for Neural Machine Translation"; Wu et al.
2016, "Google's Neural Machine Translation System" (coverage).

(1) score of a candidate y of a source x:  sum over features k of w_k f_k(x, y)

| feature | f |
| --- | --- |
| model | ln P(y|x) of the model that translates |
| score | ln P(y|x) with length normalisation, by which the search ranks |
| length | number of subwords of y, end of sentence included |
| coverage | sum over the subwords of x of ln min(1, sum of all subwords' of y attention to it), at least ln 1e-4 each |
| translation-models | ln P(y|x) of the translation models of a fused model of sequence-level normalization |
| language-models | ln P(y) of its language models; weights of both features: alpha and beta (modeling/fusion.py) |
| translation=MODEL | ln P(y|x) of another model |
| reverse=MODEL | ln P(x|y) of a model of the other direction |
| language-model=MODEL | ln P(y) of a causal language model |
| command=COMMAND | the number that a command writes for a line of x, tab, y (commands.py) |
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import check_direction
from hf_mlnmt.common.made_from import identity_of_model
from hf_mlnmt.data.directions import Direction, is_told
from hf_mlnmt.generation.choosing.commands import LineScorer
from hf_mlnmt.generation.translating.batches import Generated, batches_by_tokens, negative_logs, token_logs_of
from hf_mlnmt.generation.translating.hypotheses import Candidate, Hypothesis
from hf_mlnmt.generation.translating.loading import Parts, load, load_scored
from hf_mlnmt.generation.translating.segments import TextEncoder
from hf_mlnmt.zoo.systems import positions_of

BATCH_TOKENS = 4096


class Reranker:
    """Computes features of candidates, and chooses the best candidates by the features' weighted sum.

    Args:
        content: a reranker's content as `options.checked_reranker` returns it.
        name: the folder of the model that translates, "" where it has none.
        languages: codes of source and target, for models that need them.
    Raises: UserError where a model cannot be loaded, or has other files than the model the weights were made with.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        name: str = "",
        device: str | None = None,
        languages: tuple[str | None, str | None] = (None, None),
    ):
        self.names = list(content["features"])
        self.weights = np.array(list(content["features"].values()), float)
        self.keeps_all = False
        _check_made_from(content.get("made_from") or {}, name)
        source, target = languages
        ways = {"translation": (source, target), "reverse": (target, source), "language-model": (None, target)}
        for kind, _, what in (feature.partition("=") for feature in self.names):
            if kind in ways and what:
                check_direction(what, ways[kind], f"{kind}={what}")
        self.scorers = {name: _scorer(name, device, languages) for name in self.names if "=" in name}

    def keeping_all(self) -> Reranker:
        """Returns a copy whose `choose` keeps all candidates, in their order, with their features, to fit weights."""
        new = copy.copy(self)
        new.keeps_all = True
        return new

    def features(
        self, sources: Sequence[str], candidates: Sequence[Sequence[Any]], own: Mapping[str, Sequence[float]]
    ) -> list[np.ndarray]:
        """Returns the values of all features, an array (candidates, features) for each source.

        Args:
            candidates: those of each source, Hypothesis objects with log probabilities.
            own: {feature that the translating model computes: values for all candidates, one after the other}.
        Raises: UserError for a value that is not a finite number.
        """
        flat = [each for row in candidates for each in row]
        of_flat = [source for source, row in zip(sources, candidates, strict=True) for _ in row]
        texts = [each.text for each in flat]
        columns: list[Sequence[float]] = []
        for name in self.names:
            if name in self.scorers:
                columns.append(self.scorers[name](of_flat, texts))
            elif name in own:
                columns.append(own[name])
            else:
                field = {"model": "log_probability"}.get(name, name)
                columns.append([float(getattr(each, field)) for each in flat])
        values = np.array(columns, float).T.reshape(len(flat), len(self.names))
        if not np.isfinite(values).all():
            name = self.names[int(np.argmin(np.isfinite(values).all(0)))]
            raise UserError(f"rerank: the feature {name} is not a finite number for some candidate.")
        return np.split(values, np.cumsum([len(row) for row in candidates])[:-1])

    def choose(
        self,
        sources: Sequence[str],
        candidates: Sequence[Sequence[Hypothesis]],
        count: int,
        own: Mapping[str, Sequence[float]],
    ) -> list[list[tuple[int, Hypothesis]]]:
        """Returns for each source (index, candidate) of its `count` best candidates, scored by equation 1.

        Of candidates with equal texts the best counts; where fewer than `count` are different, the last is repeated.
        own: as of `features`.
        """
        chosen = list[list[tuple[int, Hypothesis]]]()
        for row, values in zip(candidates, self.features(sources, candidates, own), strict=True):
            new = [Candidate(**vars(each), features=tuple(of)) for each, of in zip(row, values.tolist(), strict=True)]
            if self.keeps_all:
                chosen.append([*enumerate(new)])
                continue
            scores, first = values @ self.weights, dict[str, int]()
            for place in np.argsort(-scores, kind="stable").tolist():
                first.setdefault(new[place].text, place)
            places = ([*first.values()] + [*first.values()][-1:] * count)[:count]
            chosen.append([(place, replace(new[place], score=float(scores[place]))) for place in places])
        return chosen

    @staticmethod
    def of_text(scores: Sequence[float]) -> float:
        """Returns the score of a text: the sum of its sentences' scores."""
        return sum(scores)


def _check_made_from(made_from: Mapping[str, Any], name: str) -> None:
    """Raises UserError where a model's files differ from those recorded when the weights were made."""
    then = {feature.partition("=")[2]: known for feature, known in made_from.get("models", {}).items()}
    if name and made_from.get("model"):
        then[name] = made_from["model"]
    for model, known in then.items():
        if identity_of_model(model)["files"] != known["files"]:
            raise UserError(
                f"rerank: its weights were made with another model than {model} is now (then: {known['name']}). Give "
                "that, or make the weights anew: hf-mlnmt model reranker."
            )


Scorer = Callable[[Sequence[str], Sequence[str]], list[float]]
"""Function of the sources and the texts that returns a score for each text."""


def _scorer(name: str, device: str | None, languages: tuple[str | None, str | None]) -> Scorer:
    kind, _, what = name.partition("=")
    if kind == "command":
        run = LineScorer(what, name)
        return lambda sources, texts: run([*zip(sources, texts)])
    if kind == "language-model":
        return _language_model(name, what, device)
    return _translation_model(name, what, device, languages, kind == "reverse")


def _language_model(name: str, folder: str, device: str | None) -> Scorer:
    model, tokenizers = load_scored(folder, device)
    if model.config.is_encoder_decoder or getattr(model, "logits_are_scores", False):
        raise UserError(f"{name}: is no language model; a translation model is translation=... or reverse=....")

    def score(sources: Sequence[str], texts: Sequence[str]) -> list[float]:
        ids = [encoded.tolist() for encoded in tokenizers.encode_target(texts)]
        _check_lengths(name, model.config, ids)
        found = [0.0] * len(ids)
        for batch in batches_by_tokens([len(each) for each in ids], BATCH_TOKENS):
            if ids[batch[0]]:  # an empty text has score 0 where the tokenizer adds no end token
                chosen = [i for i in batch if ids[i]]
                for i, value in zip(chosen, negative_logs(model, [ids[i] for i in chosen]).tolist(), strict=True):
                    found[i] = -value
        return found

    return score


def _translation_model(
    name: str, folder: str, device: str | None, languages: tuple[str | None, str | None], reverse: bool
) -> Scorer:
    _, given = given_translations(load(folder, device, fast=True), folder, languages[::-1] if reverse else languages)

    def score(sources: Sequence[str], texts: Sequence[str]) -> list[float]:
        inputs, outputs = (texts, sources) if reverse else (sources, texts)
        return [total for _, _, total in given(inputs, outputs, name)]

    return score


Given = tuple[list[int], list[float], float]
"""Token ids of a given translation, end of sentence included, ln P of each token, and the sum of these."""


def given_translations(
    parts: Parts, folder: str, pair: tuple[str | None, str | None], prefix: str | None = None
) -> tuple[Direction, Callable[[Sequence[str], Sequence[str], str], list[Given]]]:
    """Returns a model's Direction between two languages, and a function that scores given translations.

    The function is called with sources, translations and a name for messages, and returns a `Given` for each.
    """
    parts, way = parts.between(*(pair if is_told(parts.model, parts.source) else (None, None)), folder)
    encoder = TextEncoder(parts.tokenizers, way, prefix)
    forced = way.generate.get("forced_bos_token_id", parts.model.generation_config.forced_bos_token_id)
    first = [] if forced is None else [forced]
    ends = parts.model.generation_config.eos_token_id
    end = ends[0] if isinstance(ends, list) else ends
    others = {*parts.target.all_special_ids, *first} - {parts.target.unk_token_id}

    def score(inputs: Sequence[str], outputs: Sequence[str], name: str) -> list[Given]:
        read = encoder(list(inputs))
        encoded = parts.tokenizers.encode_target(list(outputs))
        rows = [Generated([*first, *(i for i in ids.tolist() if i not in others), end], 0.0) for ids in encoded]
        _check_lengths(name, parts.model.config, [*read, *(row.ids for row in rows)])
        found: list[Any] = [None] * len(rows)
        for batch in batches_by_tokens([max(len(a), len(b.ids)) for a, b in zip(read, rows)], BATCH_TOKENS):
            chosen = [read[i] for i in batch], [rows[i] for i in batch]
            logs = token_logs_of(parts, *chosen, way.generate, len(first))
            for i, own, total in zip(batch, logs.tolist(), logs.sum(1).tolist(), strict=True):
                ids = rows[i].ids
                found[i] = ids[len(first) :], own[len(first) : len(ids)], total
        return found

    return way, score


def _check_lengths(name: str, config: Any, sequences: Sequence[Sequence[int]]) -> None:
    longest = max(map(len, sequences), default=0)
    if longest > (positions_of(config) or math.inf):
        raise UserError(f"{name}: a text of {longest} subwords is longer than it reads, {positions_of(config)}.")


def coverage_of(weights: Any) -> float:
    """Returns the feature "coverage" of attention weights (target, source): the sum over source subwords of
    ln min(1, sum of the attention to it), at least ln 1e-4 each."""
    return float(weights.sum(0).clamp(min=1e-4, max=1.0).log().sum())
