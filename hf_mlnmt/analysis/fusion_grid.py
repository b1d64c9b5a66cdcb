"""Grid search for the scales of a fused model: its scores on a development set for every alpha and beta of a grid.

Reference: thesis on monolingual data, section 4.4.2: tables 4.8 and 4.9 (alpha by beta), 4.10 (gamma = beta / alpha).
With sequence-level normalization (4.4) a search depends on gamma alone, so the grid's alpha is 1 by default.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import score
from hf_mlnmt.evaluation.figures import Panel, Study, heat_maps
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating.pipeline import progress_bar

# The thesis's values of alpha, beta and gamma; where beta or gamma is 0 the language models have no effect.
ALPHAS = (1e-3, 1e-2, 1e-1, 0.5, 1.0, 5.0, 10.0)
BETAS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 0.5, 1.0, 5.0, 10.0)
GAMMAS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 0.5, 1.0, 10.0)
METRICS = ("BLEU", "chrF", "TER")

Point = tuple[float, float]
"""alpha and beta."""


def grid_points(
    pipeline: TranslationPipeline, alphas: Sequence[float] | None = None, betas: Sequence[float] | None = None
) -> list[Point]:
    """Returns all pairs (alpha, beta) of the given values in ascending order, without (0, 0).

    alphas, betas: None: the thesis's values; with sequence-level normalization alpha = 1, and beta has those of gamma.
    Raises: UserError for a model that is not fused, no pair but (0, 0), and values that the model refuses.
    """
    if not hasattr(pipeline.model, "factors"):
        raise UserError(f"{pipeline.name}: is no fused model; make one with hf-mlnmt model fuse.")
    sequence = pipeline.model.config.normalization == "sequence"
    alphas, betas = alphas or ((1.0,) if sequence else ALPHAS), betas or (GAMMAS if sequence else BETAS)
    points = [(alpha, beta) for alpha, beta in product(sorted(alphas), sorted(betas)) if alpha or beta]
    if not points:
        raise UserError("grid: every alpha and beta is 0, which leaves nothing of the model. Give one above 0.")
    for alpha, beta in points:
        try:
            pipeline.model.factors(alpha, beta)
        except ValueError as error:
            raise UserError(f"grid: {error}.") from error
    return points


def grid_study(
    pipeline: TranslationPipeline,
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    points: Sequence[Point],
    progress: bool = True,
    **options: Any,
) -> Study:
    """Translates and scores with every (alpha, beta) of `points`; returns rows of scores, and a table and a heat map of
    BLEU with a row for each alpha and a column for each beta.

    For one alpha the table has all scores, a row for each beta. options: of the pipeline's decoding.
    """
    study = Study("grid")
    with progress_bar(len(points), progress) as update:
        for alpha, beta in points:
            study.rows.append(_score(pipeline, sources, references, alpha, beta, options))
            update(1)
    alphas, betas = (list(dict.fromkeys(values)) for values in zip(*points))
    of = {(row["alpha"], row["beta"]): row["BLEU"] for row in study.rows}
    values = [[of.get((alpha, beta)) for beta in betas] for alpha in alphas]
    panel = Panel("", values, [f"{alpha:g}" for alpha in alphas], [f"{beta:g}" for beta in betas])
    study.figures["grid"] = heat_maps([panel], "alpha", "beta", "BLEU")
    named = [f"beta {beta:g}" for beta in betas]
    study.summary = [{"alpha": alpha, **dict(zip(named, line))} for alpha, line in zip(alphas, values)]
    if len(alphas) == 1:
        study.summary = [{name: row[name] for name in ("beta", *METRICS, "length_ratio")} for row in study.rows]
    return study


def _score(
    pipeline: TranslationPipeline, sources: Sequence[str], references: Any, alpha: float, beta: float, options: Any
) -> dict[str, Any]:
    started = time.perf_counter()
    lines = pipeline(sources, alpha=alpha, beta=beta, **options)
    scores = score(lines, references, metrics=METRICS, bootstrap=0)
    return {
        "alpha": alpha,
        "beta": beta,
        "gamma": float(f"{beta / alpha:.12g}") if alpha else None,  # 0.001 / 0.01 and 0.01 / 0.1 become equal
        **{name: round(metric.score, 4) for name, metric in scores.metrics.items()},
        "length_ratio": round(scores.length_ratio, 4),
        "seconds": round(time.perf_counter() - started, 2),
        **{f"{name}_signature": metric.signature for name, metric in scores.metrics.items()},
    }


def best(study: Study) -> dict[str, Any]:
    """Returns the row with the highest BLEU; of equal ones that with the largest beta."""
    return max(study.rows, key=lambda row: (row["BLEU"], row["beta"]))
