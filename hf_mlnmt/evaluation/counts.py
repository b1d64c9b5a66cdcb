"""Counts of sentences: what scores are sums of, the scores of such sums, and resamples of a test set.

BLEU, chrF and TER of a test set are functions of sums over sentences: of matched and possible n-grams and lengths, of
edits. The numbers of each sentence are sacreBLEU's own "sufficient statistics".

| metric | numbers of a sentence |
| --- | --- |
| BLEU | output tokens, reference tokens, matched 1- to 4-grams, 1- to 4-grams of the output |
| chrF | for each of 1 to 6 characters: n-grams of the output, of the reference, matched |
| TER | edits, reference tokens (the mean over references) |

Text is read and samples are drawn in blocks: the memory does not grow with the product of sentences and samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from hf_mlnmt.evaluation.scores import MetricName, Protocol

Counts = dict["MetricName", np.ndarray]
"""For each metric an array (sentences, numbers)."""
NUMBERS = {"BLEU": 10, "chrF": 18, "TER": 2}
CHUNK = 2000  # sentences that are counted at once
_BLOCK = 2**22  # numbers of a block of samples


def count_metric(
    how: Protocol,
    metric: MetricName,
    outputs: Sequence[str],
    references: Sequence[Sequence[str | None]],
    processes: int = 1,
    advance: Callable[[int], Any] = lambda sentences: None,
) -> np.ndarray:
    """Counts the numbers (sentences, numbers) of text that the protocol has prepared.

    processes: that share the sentences where there are many; for TER alone, which takes hundreds of times as long as
        the others. advance: hears of sentences that are done.
    """
    starts = range(0, len(outputs), CHUNK)
    parts = [(how, metric, outputs[i : i + CHUNK], [lines[i : i + CHUNK] for lines in references], i) for i in starts]
    counts = []
    with ExitStack() as stack:
        run: Any = map
        if metric == "TER" and min(processes, len(parts)) > 1:
            pool = ProcessPoolExecutor(min(processes, len(parts)), get_context("spawn"))
            run = stack.enter_context(pool).map
        for part in run(_count, parts):
            counts.append(part)
            advance(len(part))
    return np.concatenate(counts)


def _count(part: tuple[Protocol, MetricName, Sequence[str], Sequence[Sequence[str | None]], int]) -> np.ndarray:
    how, name, outputs, references, start = part
    metric: Any = how.metric(name)
    metric._force |= start > 0  # sacreBLEU's warning of tokenised text is said once
    return np.array(metric._extract_corpus_statistics(outputs, references), np.float64 if name == "TER" else np.int64)


def scores_of_sums(metric: MetricName, sums: np.ndarray) -> np.ndarray:
    """Scores sums over sentences (..., numbers) as sacreBLEU does, for many at a time: (...,), 0 to 100 and more.

    Sums in which a metric must smooth (no match of some n, nothing to match) are given to sacreBLEU one by one.
    """
    rows = sums.reshape(-1, sums.shape[-1]).astype(np.float64)
    plain = (rows > 0).all(1) if metric != "TER" else rows[:, 1] > 0
    scores = np.empty(len(rows))
    scores[plain] = _FORMULAS[metric](rows[plain])
    if not plain.all():
        from sacrebleu import metrics

        smoothing = getattr(metrics, metric.upper())()
        scores[~plain] = [smoothing._compute_score_from_stats(row.tolist()).score for row in rows[~plain]]
    return scores.reshape(sums.shape[:-1])


def _bleu(rows: np.ndarray) -> np.ndarray:
    lengths, references, matched, possible = rows[:, 0], rows[:, 1], rows[:, 2:6], rows[:, 6:10]
    brevity = np.exp(np.minimum(0, 1 - references / lengths))
    return 100 * brevity * np.exp(np.log(matched / possible).mean(1))  # type: ignore[no-any-return]


def _chrf(rows: np.ndarray, beta: float = 2) -> np.ndarray:
    outputs, references, matched = rows[:, 0::3], rows[:, 1::3], rows[:, 2::3]
    precision, recall = (matched / outputs).mean(1), (matched / references).mean(1)
    return 100 * (1 + beta**2) * precision * recall / (beta**2 * precision + recall)  # type: ignore[no-any-return]


def _ter(rows: np.ndarray) -> np.ndarray:
    return 100 * rows[:, 0] / rows[:, 1]  # type: ignore[no-any-return]


_FORMULAS = {"BLEU": _bleu, "chrF": _chrf, "TER": _ter}


def resamples(sentences: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Draws samples as sacreBLEU does with the seed: in blocks (samples, sentences) how often each sentence is in."""
    draw, rows = np.random.default_rng(seed), max(1, _BLOCK // sentences)
    for start in range(0, samples, rows):
        drawn = draw.choice(sentences, size=(min(rows, samples - start), sentences), replace=True)
        yield np.stack([np.bincount(row, minlength=sentences) for row in drawn])


def coins(draw: np.random.Generator, trials: int, sentences: int) -> Iterator[np.ndarray]:
    """Draws a coin for each sentence of each trial: blocks (trials, sentences) of bool, together those of one draw."""
    rows = 32 * max(1, _BLOCK // (32 * sentences))  # 32 coins are one number of the generator
    for start in range(0, trials, rows):
        yield draw.integers(2, size=(min(rows, trials - start), sentences), dtype=bool)


def products(times: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """times (samples, sentences) @ counts (sentences, numbers), exact in float64."""
    return times.astype(np.float64) @ counts.astype(np.float64)  # type: ignore[no-any-return]


def interval(metric: MetricName, counts: np.ndarray, samples: int, seed: int) -> tuple[float, float]:
    """Returns sacreBLEU's 95 % interval: the samples' mean, to each side half the distance of their outer fortieths."""
    drawn = resamples(len(counts), samples, seed)
    scores = np.sort(np.concatenate([scores_of_sums(metric, products(times, counts)) for times in drawn]))
    outer = samples // 40
    mean, half = float(scores.mean()), float(scores[-1 - outer] - scores[outer]) / 2
    return mean - half, mean + half
