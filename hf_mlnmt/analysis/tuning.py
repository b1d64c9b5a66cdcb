"""Fits the weights of a reranker (generation/choosing/reranking.py) to the best score of a development set.

Reference: Och 2003, "Minimum Error Rate Training in Statistical Machine Translation".

The score of a set is a function of sums of its sentences' counts. For weights w + t d, each candidate's score is a
linear function of t, and the best candidate of a sentence changes where two lines cross: so the score of the whole set
is known for every t, and the best t is found exactly (`best_along`). `search` repeats this along the axes and random
directions until the score no longer rises, starting from the search's own order and from random weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import check_file, write_json
from hf_mlnmt.common.languages import check_files, language_in
from hf_mlnmt.common.made_from import identity_of_model, identity_of_text
from hf_mlnmt.evaluation.outputs import read_references, read_texts
from hf_mlnmt.evaluation.scores import MetricName, Protocol, check_counts, count_metric, score, scores_of_sums
from hf_mlnmt.generation.choosing.reranking import Reranker
from hf_mlnmt.generation.translating.call import TranslationCall
from hf_mlnmt.generation.translating.hypotheses import Candidate
from hf_mlnmt.generation.translating.options import OF_RERANKERS, DecodingOptions, check_feature
from hf_mlnmt.generation.translating.pipeline import TranslationPipeline, progress_bar

RESTARTS = 10
RANDOM_LINES = 2  # random directions for each feature
FEWEST = 100  # fewest sentences of a development set
NEAR = 1e-7  # crossings closer than this in t count as one
GAIN = 1e-6  # gains of the score below this count as none


class Candidates(NamedTuple):
    """Candidates of a development set: arrays, padded to the largest number of candidates that a sentence has.

    values: features (sentences, candidates, features). counts: the metric's (sentences, candidates, numbers). there:
    which candidates exist (sentences, candidates); of others all values and counts are 0.
    """

    values: np.ndarray
    counts: np.ndarray
    there: np.ndarray

    def best(self, weights: np.ndarray) -> np.ndarray:
        """Returns the metric's counts of each sentence's best candidate by these weights; the first of equal ones."""
        chosen = np.where(self.there, self.values @ weights, -np.inf).argmax(1)
        return self.counts[np.arange(len(self.counts)), chosen]

    def score(self, weights: np.ndarray, metric: MetricName) -> float:
        """Returns the metric's score of the best candidates by these weights."""
        return float(scores_of_sums(metric, self.best(weights).sum(0)))


def best_along(
    candidates: Candidates, weights: np.ndarray, direction: np.ndarray, metric: MetricName
) -> tuple[float, float]:
    """Returns the t for which weights + t x direction have the best score, and that score."""
    values, counts, there = candidates
    offsets = np.where(there, values @ weights, -np.inf)  # (sentences, candidates)
    slopes = np.where(there, values @ direction, np.inf)
    rows = np.arange(len(counts))
    # At t = -infinity the candidate of smallest slope is best; of equal slopes, the one of largest offset.
    smallest = slopes == slopes.min(1, keepdims=True)
    now = np.where(smallest, offsets, -np.inf).argmax(1)
    slopes = np.where(there, slopes, -np.inf)
    sums = counts[rows, now].sum(0)
    times: list[np.ndarray] = []
    changes: list[np.ndarray] = []
    while True:
        rising = slopes - slopes[rows, now][:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = np.where(rising > 0, (offsets[rows, now][:, None] - offsets) / rising, np.inf)
        first = crossing.min(1)
        if not (moving := np.isfinite(first)).any():
            break
        # Of several candidates whose lines cross at the same t, the steepest is best for larger t.
        after = np.where(crossing <= first[:, None], slopes, -np.inf).argmax(1)
        times.append(first[moving])
        changes.append((counts[rows, after].astype(float) - counts[rows, now])[moving])
        now = np.where(moving, after, now)
    if not times:
        return 0.0, float(scores_of_sums(metric, sums))
    order = np.argsort(every := np.concatenate(times), kind="stable")
    every = every[order]
    totals = np.vstack([sums, sums + np.cumsum(np.concatenate(changes)[order], 0)])
    middles = np.concatenate([[every[0] - 1], (every[1:] + every[:-1]) / 2, [every[-1] + 1]])
    wide = np.concatenate([[True], np.diff(every) > NEAR, [True]])
    found = np.where(wide, scores_of_sums(metric, np.round(totals)), -np.inf)
    best = np.flatnonzero(found >= found.max() - GAIN)
    chosen = best[np.abs(middles[best]).argmin()]
    return float(middles[chosen]), float(found[chosen])


def search(candidates: Candidates, start: np.ndarray, metric: MetricName, seed: int) -> np.ndarray:
    """Returns the weights (features,) with the best score found, from `start` and random restarts with `seed`."""
    draw, size = np.random.default_rng(seed), len(start)
    spread = candidates.values[candidates.there].std(0)
    scales = np.where(spread > 0, spread, 1.0)
    scaled = candidates._replace(values=candidates.values / scales)
    best, of_best = start * scales, -np.inf
    for restart in range(RESTARTS + 1):
        weights = draw.standard_normal(size) if restart else start * scales
        reached, before = scaled.score(weights, metric), -np.inf
        while reached > before + GAIN:
            before = reached
            lines = np.vstack([np.eye(size), draw.standard_normal((RANDOM_LINES * size, size))])
            for direction in draw.permutation(lines):
                step, value = best_along(scaled, weights, direction, metric)
                if value > reached + GAIN:
                    weights, reached = weights + step * direction, value
        if reached > of_best + GAIN:
            best, of_best = weights, reached
    found = best / scales
    return found / max(np.abs(found).max(), 1e-30)


def make_reranker(
    model: str,
    source: Path,
    reference: Path,
    output: Path,
    features: Sequence[str],
    decoding: DecodingOptions,
    *,
    metric: MetricName = "BLEU",
    samples: int = 64,
    seed: int = 1,
    device: str | None = None,
    shown: bool = True,
) -> dict[str, Any]:
    """Fits weights to a development set, writes them into the file for the option `rerank`, and returns its content.

    Args:
        features: names as in reranking.py; decoding: of the search whose beams or samples are the candidates.
    Raises: UserError for unknown features, files of different lengths, fewer than 100 sentences, or a single candidate.
    """
    check_file(output)
    for name in features:
        check_feature(name, "--feature")
    check_files(model, [source], [reference], decoding.told)
    texts, (references,) = read_texts(source), read_references([reference])
    check_counts(texts, [references], [str(source), str(reference)])
    if len(texts) < FEWEST:
        raise UserError(f"{source}: {len(texts)} sentences are too few to fit weights to: give {FEWEST} or more.")
    pipeline = TranslationPipeline.from_pretrained(model, device=device)
    if not decoding.do_sample:
        decoding = replace(decoding, num_beams=decoding.beams(pipeline.model))
        if decoding.num_beams == 1:
            raise UserError("one beam is one candidate, with nothing to choose: say --beams, 8 or more, or --sample.")
    start = "score" if "score" in features else features[0]
    content: dict[str, Any] = {
        "features": {name: float(name == start) for name in features},
        "samples": samples,
        "decoding": {name: value for name, value in decoding.given.items() if name in OF_RERANKERS},
    }
    rows = _candidates(pipeline, texts, replace(decoding, rerank=content), shown)
    real = [i for i, row in enumerate(rows) if isinstance(row[0], Candidate)]  # blank lines have no candidates
    found = candidates_of([rows[i] for i in real], [references[i] for i in real], metric, language_in(reference))
    weights = np.array(list(content["features"].values()))
    best = search(found, weights, metric, seed)
    halves = [Candidates(*(array[part::2] for array in found)) for part in (0, 1)]
    held_out = sum(other.best(search(own, weights, metric, seed)).sum(0) for own, other in (halves, halves[::-1]))
    how: Any = {"language": language_in(reference), "metrics": [metric], "bootstrap": 0}
    first = score([rows[i][0].text for i in real], [references[i] for i in real], **how)
    content["features"] = {name: float(f"{weight:.6g}") for name, weight in zip(features, best.tolist())}
    others = {name: name.partition("=")[2] for name in features if "=" in name and not name.startswith("command=")}
    content["made_from"] = {
        "model": identity_of_model(model),
        "models": {name: identity_of_model(folder) for name, folder in others.items()},
        "source": identity_of_text(source, texts),
        "reference": identity_of_text(reference, references),
        "metric": first.metrics[metric].signature,
        "search_alone": round(first[metric], 4),
        "reranked": round(found.score(np.array(list(content["features"].values())), metric), 4),
        "reranked_by_weights_of_the_other_half": round(float(scores_of_sums(metric, held_out)), 4),
        "seed": seed,
    }
    write_json(output, content)
    return content


def candidates_of(
    rows: Sequence[Sequence[Any]], references: Sequence[str], metric: MetricName, language: str | None
) -> Candidates:
    """Makes `Candidates` of each sentence's row of candidates, and counts the metric's numbers by the references."""
    how, most = Protocol("cased", language), max(map(len, rows))
    flat = [each for row in rows for each in row]
    given = how.prepare([reference for reference, row in zip(references, rows, strict=True) for _ in row])
    counted = count_metric(how, metric, how.prepare([each.text for each in flat]), [given])
    there = np.arange(most) < np.array([[len(row)] for row in rows])
    values, counts = np.zeros((*there.shape, len(flat[0].features))), np.zeros((*there.shape, counted.shape[1]))
    values[there], counts[there] = [each.features for each in flat], counted
    return Candidates(values, counts, there)


def _candidates(
    pipeline: TranslationPipeline, texts: Sequence[str], decoding: DecodingOptions, shown: bool
) -> list[list[Any]]:
    """Searches, and returns all candidates of each text with their features, in the search's order."""
    call = TranslationCall(pipeline, decoding)
    assert isinstance(call.chooser, Reranker)
    call.chooser = call.chooser.keeping_all()
    call.count = call.searched
    with progress_bar(len(texts), shown) as update:
        ((_, _, rows),) = call.translate_groups([texts], update)
    return rows
