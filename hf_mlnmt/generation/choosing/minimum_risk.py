"""Minimum Bayes risk decoding: chooses the candidate of a sentence that is most like all other candidates.

References: Eikema and Aziz 2020, "Is MAP Decoding All You Need?"; Freitag et al. 2023, "Epsilon Sampling Rocks";
Vamvas and Sennrich 2024, "Linear-time Minimum Bayes Risk Decoding with Reference Aggregation"; Deguchi et al. 2024,
"Centroid-Based Efficient Minimum Bayes Risk Decoding" (of cosines one centroid, the mean of the unit vectors, loses
nothing).

(1) risk of c:  - 1/|R| sum over r in R of u(c, r),  where R are all candidates, counted as often as they were drawn

The utility u(c, r) is the quality of c if r were the reference:

| utility | u |
| --- | --- |
| chrf | chrF of order 6 by fastchrf; u(c, R) against one reference with the mean n-gram counts of all R |
| chrf-pairwise | chrF of each pair, as equation 1 has it |
| bleu | sacreBLEU's sentence BLEU of each pair, words separated by white space, n-gram counts smoothed by one |
| embeddings=MODEL | the cosine of sentence embeddings (embedding.py); u(c, R) against the centroid of all R |
| a function | (source, candidates, references) -> numbers (candidates, references) |
| a text with a blank or a slash | a command (commands.py): lines of source, candidate, reference; numbers |

Scores by the metric that chose the translations are too good: evaluate by another metric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.generation.translating.options import UTILITIES

if TYPE_CHECKING:
    from hf_mlnmt.generation.translating.hypotheses import Hypothesis

Utility = Callable[[str, Sequence[str], Sequence[str]], Any]
EMBEDDINGS = "embeddings="


def utility_of(given: Any, device: str | None = None, language: str | None = None) -> Utility:
    """Returns the utility function for a name, a command or a function.

    device, language: of the model of sentence embeddings, and of the candidates.
    Raises: UserError for an unknown name, where fastchrf is not installed, or where a model cannot be loaded.
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
    near = suggest(str(given), UTILITIES)
    raise UserError(
        f"utility: unknown {given!r}{near}; choose {', '.join(UTILITIES)}, {EMBEDDINGS}MODEL, or give a command or a "
        "function."
    )


def _all_in_one(expected: Callable[[list[str], list[str]], Any]) -> Utility:
    """Returns a utility that compares each candidate with all references at once (equal references repeated): numbers
    (candidates, 1)."""

    def utility(source: str, candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        return np.array(expected(list(candidates), list(references)))[:, None]

    utility.all_in_one = True  # type: ignore[attr-defined]
    return utility


def expected_utilities(
    utility: Utility, source: str, candidates: Sequence[str], references: Sequence[str]
) -> np.ndarray:
    """Returns minus the risk of each candidate by equation 1: (candidates,).

    references: all that were drawn; equal references are compared once and weighted by their number.
    Raises: UserError where the utility returns something else than finite numbers of the right shape.
    """
    counts = Counter(references)
    all_in_one = getattr(utility, "all_in_one", False)
    values = np.asarray(utility(source, candidates, references if all_in_one else list(counts)), float)
    # A utility that returns one number for each candidate needs every reference as often as it was drawn.
    if values.shape == (len(candidates), 1) and len(counts) > 1 and not all_in_one:
        values = np.asarray(utility(source, candidates, references), float)
    if values.ndim != 2 or len(values) != len(candidates) or not np.isfinite(values).all():
        raise UserError(
            f"utility: gave numbers of shape {values.shape}, or some that are not finite, for {len(candidates)} "
            "candidates; expected a number for each candidate and reference."
        )
    return values[:, 0] if values.shape[1] == 1 else values @ np.array([*counts.values()], float) / len(references)


def bleu(candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Returns sacreBLEU's sentence BLEU of each pair, 0 to 100: (candidates, references).

    Smoothed as by Lin and Och 2004, "ORANGE": one is added to matches and totals of n-grams of two words or more.
    """
    from sacrebleu import BLEU

    metric = BLEU(smooth_method="add-k", smooth_value=1, tokenize="none", effective_order=True)
    scores = [[metric.sentence_score(text, [right]).score for right in references] for text in candidates]
    return np.array(scores).reshape(len(candidates), len(references))


class MinimumRisk:
    """Ranks candidates by equation 1, the best first; equal candidates are ranked once."""

    names = ()  # the search has no features to compute for this chooser

    def __init__(self, utility: Any = "chrf", device: str | None = None, language: str | None = None) -> None:
        """Arguments: those of `utility_of`."""
        self.utility = utility_of(utility, device, language)

    def __call__(self, source: str, candidates: Sequence[str], count: int) -> list[tuple[int, float]]:
        """Returns (index, expected utility) of the `count` best of the different candidates; where there are fewer, the
        last is repeated."""
        first = {text: place for place, text in reversed(list(enumerate(candidates)))}
        different = sorted(first.values())
        texts = [candidates[place] for place in different]
        values = expected_utilities(self.utility, source, texts, candidates)
        order = np.argsort(-values, kind="stable")[:count].tolist()
        ranked = [(different[i], float(values[i])) for i in order]
        return ranked + ranked[-1:] * (count - len(ranked))

    def choose(
        self, sources: Sequence[str], candidates: Sequence[Sequence[Hypothesis]], count: int, own: Any = None
    ) -> list[list[tuple[int, Hypothesis]]]:
        """Returns for each source (index, candidate) of its `count` best candidates, whose scores are the expected
        utilities."""
        return [
            [
                (place, replace(row[place], score=utility))
                for place, utility in self(source, [each.text for each in row], count)
            ]
            for source, row in zip(sources, candidates, strict=True)
        ]

    @staticmethod
    def of_text(scores: Sequence[float]) -> float:
        """Returns the score of a text: the mean of its sentences' scores."""
        return sum(scores) / max(1, len(scores))

    def best(self, source: str, candidates: Sequence[str]) -> str:
        """Returns the candidate with the least risk."""
        return candidates[self(source, candidates, 1)[0][0]]


def read_candidates(paths: Sequence[str | Path]) -> list[list[str]]:
    """Reads the candidates of each text from files, and joins the lists of all files.

    A file has a line for each text, with tabs between several candidates, or is an n-best list with lines of
    number ||| translation ||| score, numbers from 0.
    Raises: UserError for files with different numbers of texts, and for a line of an n-best list in another form.
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
