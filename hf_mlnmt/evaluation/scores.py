"""score(): sacreBLEU's BLEU, chrF and TER of one system on one test set, with signatures and confidence intervals."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.protocols import METRICS, MetricName, Protocol, ProtocolName, choose_protocols, metric_named

DEFAULT_SEED = 12345
"""sacreBLEU's own, so that our intervals and p-values are those of its command line."""
DEFAULT_BOOTSTRAP = 1000

Lines = Sequence[str]
References = Sequence[str] | Sequence[Sequence[str | None]]
"""One reference (a list of lines), or several: one list of lines for each, None where a sentence has fewer."""


@dataclass(frozen=True)
class MetricScore:
    """One number. `ci` is sacreBLEU's 95 % bootstrap interval (low, high) around the mean of the resamples."""

    score: float
    signature: str
    ci: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """{score, signature, ci}, numbers rounded to 4 decimals: the entry of a results file."""
        ci = None if self.ci is None else [round(bound, 4) for bound in self.ci]
        return {"score": round(self.score, 4), "signature": self.signature, "ci": ci}


@dataclass(frozen=True)
class Scores:
    """All scores of one system on one test set under one protocol.

    `length_ratio`: output tokens / reference tokens, in the protocol's tokens; `empty_outputs`: those without a word.
    """

    protocol: ProtocolName
    metrics: Mapping[MetricName, MetricScore]
    sentences: int
    references: int
    empty_outputs: int
    empty_references: int
    length_ratio: float

    def __getitem__(self, metric: MetricName) -> float:
        return self.metrics[metric].score

    def to_dict(self) -> dict[str, Any]:
        """{metric: {score, signature, ci}}."""
        return {name: value.to_dict() for name, value in self.metrics.items()}

    def outputs_to_dict(self) -> dict[str, Any]:
        """What was counted beside the scores."""
        counts = {key: getattr(self, key) for key in ("sentences", "references", "empty_outputs", "empty_references")}
        return {**counts, "length_ratio": round(self.length_ratio, 4)}


def score(
    hypotheses: Lines,
    references: References,
    *,
    protocol: ProtocolName = "cased",
    language: str | None = None,
    metrics: Sequence[str] = METRICS,
    bootstrap: int = DEFAULT_BOOTSTRAP,
    seed: int = DEFAULT_SEED,
) -> Scores:
    """Score raw, detokenised outputs against raw references.

    hypotheses: one string a sentence. references: a list of strings, or a list of such lists (several references).
    language: two-letter code of the target language, needed by protocol 'classic' only.
    bootstrap: resamples for the confidence intervals; 0 leaves them out (for scores during training).
    Raises UserError on different numbers of lines, on no lines at all, and on unknown names.
    Source: Papineni et al. 2002 (BLEU), Popović 2015 (chrF), Snover et al. 2006 (TER), all as in sacreBLEU (Post 2018).
    """
    check_counts(hypotheses, reference_sets := reference_lists(references))
    how = Protocol(protocol, language)
    prepared, prepared_references = how.prepare(hypotheses), [how.prepare(lines) for lines in reference_sets]
    results: dict[MetricName, MetricScore] = {}
    ratio: float | None = None
    for name in map(metric_named, metrics):
        metric = how.metric(name, prepared_references)
        with sacrebleu_seed(seed):
            result, has_interval = _corpus_score(metric, prepared, bootstrap)
        # sacreBLEU rounds mean and interval in every public form of them; its numbers are wanted whole.
        ci = (float(result._mean - result._ci), float(result._mean + result._ci)) if has_interval else None
        results[name] = MetricScore(float(result.score), how.sign(metric.get_signature()), ci)
        ratio = getattr(result, "ratio", ratio)
    return Scores(
        protocol=protocol,
        metrics=results,
        sentences=len(hypotheses),
        references=len(reference_sets),
        empty_outputs=sum(not line.strip() for line in hypotheses),
        empty_references=sum(line is not None and not line.strip() for lines in reference_sets for line in lines),
        length_ratio=_length_ratio(how, prepared, prepared_references) if ratio is None else ratio,
    )


def _corpus_score(metric: Any, prepared: Sequence[str], bootstrap: int) -> tuple[Any, bool]:
    """sacreBLEU's score, and whether it has an interval.

    sacreBLEU 2.6 cannot add up the resamples of chrF when some have not one right character: then there is none.
    """
    try:
        return metric.corpus_score(prepared, None, n_bootstrap=bootstrap), bootstrap > 1
    except TypeError:
        if not bootstrap:
            raise
        return metric.corpus_score(prepared, None, n_bootstrap=0), False


def score_protocols(
    hypotheses: Lines,
    references: References,
    *,
    protocols: Sequence[ProtocolName] | None = None,
    language: str | None = None,
    **options: Any,
) -> dict[ProtocolName, Scores]:
    """score() under several protocols: unless told, both, or 'cased' alone without a two-letter language."""
    names = [how.name for how in choose_protocols(protocols, language)]
    return {name: score(hypotheses, references, protocol=name, language=language, **options) for name in names}


def _length_ratio(how: Protocol, prepared: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    return float(how.metric("BLEU", references).corpus_score(prepared, None).ratio)


def reference_lists(references: References) -> list[Sequence[str | None]]:
    """One list of lines per reference, whichever of the two forms was given."""
    if isinstance(references, str) or not len(references):
        raise UserError(
            "references: expected a list of lines, or a list of such lists; got "
            + ("one string." if isinstance(references, str) else "nothing.")
        )
    return [references] if isinstance(references[0], str) else list(references)  # type: ignore[list-item]


def check_counts(hypotheses: Lines, references: Sequence[Sequence[str | None]], names: Sequence[str] = ()) -> None:
    """UserError unless all sides have equally many lines, at least one. `names`: outputs', then each reference's."""
    if isinstance(hypotheses, str):
        raise UserError("hypotheses: expected a list of lines; got one string.")
    names = names or ["the output", *(f"reference {i}" for i in range(1, len(references) + 1))]
    counts = [len(hypotheses), *(len(lines) for lines in references)]
    if min(counts) == max(counts) > 0:
        return
    listed = ", ".join(f"{name}: {count}" for name, count in zip(names, counts, strict=True))
    if not max(counts):
        raise UserError(f"No lines to score ({listed}).")
    hint = "every output needs its reference on the same line; look for lost or added lines"
    if len(references) == len(hypotheses):
        hint = "give one list of lines per reference, not one list of references per sentence: list(zip(*references))"
    raise UserError(f"Different numbers of lines ({listed}): {hint}.")


@contextmanager
def sacrebleu_seed(seed: int) -> Iterator[None]:
    """sacreBLEU takes its seed from the environment and from nowhere else: set it, and put back what was there."""
    if seed < 1:
        # its paired tests take 0 for "no seed" (significance.py: `self._seed if self._seed else None`)
        raise UserError(f"seed {seed}: expected a positive number.")
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
