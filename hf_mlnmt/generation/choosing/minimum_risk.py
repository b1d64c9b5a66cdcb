"""Minimum Bayes risk: of the candidates of a sentence the one that is most like all others.

References: Eikema and Aziz 2020, "Is MAP Decoding All You Need?"; Freitag et al. 2023, "Epsilon Sampling Rocks";
Vamvas and Sennrich 2024, "Linear-time Minimum Bayes Risk Decoding with Reference Aggregation"; Cheng and Vlachos 2023,
"Faster Minimum Bayes Risk Decoding with Confidence-based Pruning"; Deguchi et al. 2024, "Centroid-Based Efficient
Minimum Bayes Risk Decoding" (of cosines one centroid, the mean of the unit vectors, loses nothing).

(1) risk of c:  - 1/|R| sum over r of u(c, r),  where R are the candidates too, those drawn twice counted twice

A utility u says how good c would be if r were the reference:

| utility | u |
| --- | --- |
| chrf | chrF of order 6, of fastchrf; u(c, R) with the n-gram counts of all R averaged: one reference in place of |R| |
| chrf-pairwise | chrF of each pair, as equation 1 has it |
| bleu | BLEU of each pair with counts of its n-grams smoothed by one, brevity penalty included |
| embeddings=MODEL | the cosine of sentence embeddings (embedding.py); u(c, R) with the centroid of all R |
| a function | (source, candidates, references) -> numbers (candidates, references) |
| a text with a blank or a slash | a command (commands.py): lines of source, candidate, reference; numbers |

What a metric says of translations that were chosen by the same metric is too good: report another one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.memory import GIB, memory_of_machine
from hf_mlnmt.data.lines import read_lines

Utility = Callable[[str, Sequence[str], Sequence[str]], Any]
NAMES = ("chrf", "chrf-pairwise", "bleu")
EMBEDDINGS = "embeddings="
ORDER = 4  # of BLEU's n-grams
FIRST_REFERENCES = 8  # that pruning looks at first; then twice as many, and so on
BYTES_OF_BLEU = 256  # of a pair: about 25 n-grams a candidate that no other has, in two tables of numbers of 4 bytes
RESAMPLED = 200  # times, to say how sure it is that a candidate is not the best


def utility_of(given: Any, device: str | None = None, language: str | None = None) -> Utility:
    """Returns the utility of a name, a command or a function.

    device, language: of a model of sentence embeddings, and of the candidates.
    Raises: UserError for another name, where fastchrf is not installed, or a model cannot be loaded.
    """
    if callable(given):
        return given
    if isinstance(given, str) and given.startswith(EMBEDDINGS):
        from hf_mlnmt.generation.choosing.embedding import Embedder

        embed = Embedder(given.removeprefix(EMBEDDINGS), device, language)
        return _all_in_one(lambda candidates, references: embed(candidates) @ embed(references).mean(0))
    if given == "bleu":
        return lambda source, candidates, references: bleu(candidates, references)
    if given in ("chrf", "chrf-pairwise"):
        try:
            import fastchrf
        except ImportError as error:
            raise UserError(f"utility {given!r} needs fastchrf: pip install 'hf-mlnmt[mbr]'.") from error
        if given == "chrf":
            return _all_in_one(lambda candidates, references: fastchrf.aggregate_chrf([candidates], [references])[0])
        return lambda source, candidates, references: np.array(
            fastchrf.pairwise_chrf([list(candidates)], [list(references)])[0]
        )
    if isinstance(given, str) and (" " in given.strip() or "/" in given):
        from hf_mlnmt.generation.choosing.commands import LineScorer

        scorer = LineScorer(given, "utility")
        return lambda source, candidates, references: np.array(
            scorer([(source, candidate, reference) for candidate in candidates for reference in references])
        ).reshape(len(candidates), len(references))
    near = suggest(str(given), NAMES)
    raise UserError(
        f"utility: unknown {given!r}{near}; choose {', '.join(NAMES)}, {EMBEDDINGS}MODEL, or give a command or a "
        "function."
    )


def _all_in_one(expected: Callable[[list[str], list[str]], Any]) -> Utility:
    """Returns a utility that takes all references, equal ones too, and gives a number for each candidate."""

    def utility(source: str, candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        return np.array(expected(list(candidates), list(references)))[:, None]

    utility.all_in_one = True  # type: ignore[attr-defined]
    return utility


def expected_utilities(
    utility: Utility, source: str, candidates: Sequence[str], references: Sequence[str], prune: float | None = None
) -> np.ndarray:
    """Returns minus the risk of each candidate by equation 1, (candidates,).

    Args:
        references: as many as were drawn; equal ones are compared once and count as often as they are there.
        prune: a candidate goes, and gets minus infinity, as soon as it is this sure (as .9) that others are better.
            Only of use where a comparison is dear.
    Raises: UserError where the utility gives something else than finite numbers of the right shape.
    """
    counts = Counter(references)
    different = list(counts)
    weights = np.array([counts[reference] for reference in different], float)
    if prune is None:
        return _means(_checked(utility, source, candidates, references, different), weights, len(references))
    known = np.zeros((len(candidates), 0))
    there = np.arange(len(candidates))
    means = np.full(len(candidates), -np.inf)
    draws = np.random.default_rng(0)
    size = FIRST_REFERENCES
    while True:
        more = different[known.shape[1] : size]
        known = np.hstack([known, _pairs(utility, source, [candidates[i] for i in there.tolist()], more)])
        of_known = weights[: known.shape[1]]
        if known.shape[1] == len(different):
            means[there] = known @ of_known / of_known.sum()
            return means
        drawn = draws.multinomial(int(of_known.sum()), of_known / of_known.sum(), RESAMPLED)  # (resampled, known)
        resampled = known @ drawn.T  # (candidates, resampled)
        best = int((known @ of_known).argmax())
        wins = (resampled >= resampled[best]).mean(1)
        kept = wins > 1 - prune
        there, known, size = there[kept], known[kept], 2 * size


def _checked(
    utility: Utility, source: str, candidates: Sequence[str], references: Sequence[str], different: Sequence[str]
) -> np.ndarray:
    """Returns numbers (candidates, different references), or (candidates, 1) of a utility that takes all in one."""
    all_in_one = getattr(utility, "all_in_one", False)
    values = np.asarray(utility(source, candidates, references if all_in_one else different), float)
    if values.shape == (len(candidates), 1) and len(different) > 1 and not all_in_one:  # equal references count again
        values = np.asarray(utility(source, candidates, references), float)
    return _finite(values, candidates)


def _pairs(utility: Utility, source: str, candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
    values = np.asarray(utility(source, candidates, references), float)
    if values.shape != (len(candidates), len(references)):
        raise UserError("mbr: prune compares pairs, which this utility does not; leave it out.")
    return _finite(values, candidates)


def _finite(values: np.ndarray, candidates: Sequence[str]) -> np.ndarray:
    if values.ndim != 2 or len(values) != len(candidates) or not np.isfinite(values).all():
        raise UserError(
            f"utility: gave numbers of shape {values.shape}, or some that are not finite, for {len(candidates)} "
            "candidates; expected a number for each candidate and reference."
        )
    return values


def _means(values: np.ndarray, weights: np.ndarray, total: int) -> np.ndarray:
    return values[:, 0] if values.shape[1] == 1 else values @ weights / total


def bleu(candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Returns BLEU of each pair, 0 to 100: (candidates, references); words are what white space separates.

    Lin and Och 2004, "ORANGE": counts of n-grams beyond single words, matched and there, are one more.
    """
    texts = [[text.split() for text in side] for side in (candidates, references)]
    lengths, of_references = (np.array([len(words) for words in side]) for side in texts)
    logs = np.zeros((len(candidates), len(references)))
    for order in range(1, ORDER + 1):
        left, right = ([Counter(zip(*(words[i:] for i in range(order)))) for words in side] for side in texts)
        matched = _matched(left, right)
        there = np.maximum(lengths - order + 1, 0)[:, None]
        one = int(order > 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs += np.log(np.where(there + one > 0, (matched + one) / np.maximum(there + one, 1), 0.0)) / ORDER
    with np.errstate(divide="ignore", over="ignore"):
        brevity = np.minimum(0.0, 1.0 - of_references[None] / np.maximum(lengths, 1)[:, None])
    return 100 * np.exp(logs + brevity)


def _matched(left: Sequence[Counter[Any]], right: Sequence[Counter[Any]]) -> np.ndarray:
    """Counts the n-grams that each of the left shares with each of the right, as often as in the poorer of the two."""
    numbers: dict[Any, int] = {}
    for counts in (*left, *right):
        for gram in counts:
            numbers.setdefault(gram, len(numbers))
    tables = []
    for side in (left, right):
        table = np.zeros((len(side), len(numbers)), np.float32)
        for row, counts in zip(table, side):
            row[[numbers[gram] for gram in counts]] = list(counts.values())
        tables.append(table)
    most = int(max((table.max(initial=0) for table in tables), default=0))
    total = np.zeros((len(left), len(right)), np.float32)
    for threshold in range(1, most + 1):  # the smaller of two counts is the number of thresholds that both reach
        total += (tables[0] >= threshold).astype(np.float32) @ (tables[1] >= threshold).astype(np.float32).T
    return total


class MinimumRisk:
    """The order of candidates by equation 1: the best first, equal ones once."""

    def __init__(
        self, utility: Any = "chrf", prune: float | None = None, device: str | None = None, language: str | None = None
    ):
        """Takes what `utility_of` and `expected_utilities` take."""
        self.utility, self.prune, self.name = utility_of(utility, device, language), prune, utility

    def check_memory(self, candidates: int) -> None:
        """Raises UserError where so many candidates of a sentence, compared pair by pair, take more than half of the
        memory."""
        if self.name == "chrf" or str(self.name).startswith(EMBEDDINGS):
            return  # all references are taken in one
        of_pair = {"bleu": BYTES_OF_BLEU, "chrf-pairwise": 32}.get(self.name, 32 if callable(self.name) else 512)
        needed, there = of_pair * candidates**2, memory_of_machine(True)
        if needed > there / 2:
            raise UserError(
                f"mbr: {candidates:,} candidates, compared pair by pair with utility {self.name!r}, take "
                f"{needed / GIB:,.1f} GiB of {there / GIB:,.1f} that this machine has. Take fewer, or utility='chrf', "
                "which takes all references in one."
            )

    def __call__(self, source: str, candidates: Sequence[str], count: int) -> list[tuple[int, float]]:
        """Returns the places and expected utilities of the `count` best candidates; the last again where fewer are
        different."""
        first = {text: place for place, text in reversed(list(enumerate(candidates)))}
        different = sorted(first.values())
        texts = [candidates[place] for place in different]
        values = expected_utilities(self.utility, source, texts, candidates, self.prune)
        order = np.argsort(-values, kind="stable")[:count].tolist()
        ranked = [(different[i], float(values[i])) for i in order if not math.isinf(values[i])]
        return ranked + ranked[-1:] * (count - len(ranked))

    def best(self, source: str, candidates: Sequence[str]) -> str:
        """Returns the candidate of the least risk."""
        return candidates[self(source, candidates, 1)[0][0]]


def read_candidates(paths: Sequence[str | Path]) -> list[list[str]]:
    """Returns the candidates of each text, from files of a line for each, with tabs between several, or n-best lists.

    An n-best list has lines of number ||| translation ||| score, numbers from 0.
    Raises: UserError for files of different numbers of texts, and a line of a list that is none.
    """
    rows: list[list[str]] = []
    for path in paths:
        of_file: list[list[str]] = []
        for line_number, line in enumerate(read_lines(path, keep_controls=True, form="table"), start=1):
            parts = line.split(" ||| ")
            if line_number == 1:
                listed = len(parts) > 1 and parts[0].isdecimal()
            if not listed:
                of_file.append(line.split("\t"))
                continue
            if len(parts) < 2 or parts[0] not in (str(len(of_file)), str(len(of_file) - 1)):
                expected = f"number, {max(len(of_file) - 1, 0)} or one more, ||| translation ||| score"
                raise UserError(f"{path}, line {line_number}: {line[:60]!r}: expected {expected}.")
            if int(parts[0]) == len(of_file):
                of_file.append([])
            of_file[-1].append(parts[1])
        if rows and len(rows) != len(of_file):
            raise UserError(f"{path}: translations of {len(of_file)} texts, {paths[0]}: of {len(rows)}.")
        rows = [[*before, *new] for before, new in zip(rows or [[]] * len(of_file), of_file, strict=True)]
    return rows


def choose(
    sources: Iterable[str], candidates: Iterable[Sequence[str]], utility: Any = "chrf", prune: float | None = None
) -> list[str]:
    """Returns of each source's candidates, of samples, n-best lists or several systems, the one of the least risk.

    Raises: UserError as `utility_of`; for a source without candidates.
    """
    minimum_risk, chosen = MinimumRisk(utility, prune), []
    for number, (source, texts) in enumerate(zip(sources, candidates, strict=True), start=1):
        if not texts:
            raise UserError(f"candidates of text {number}: there are none; give at least one.")
        chosen.append(minimum_risk.best(source, texts))
    return chosen
