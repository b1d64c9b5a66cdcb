"""Grid search for the scales of a fused model: its scores on a development set for every alpha and beta of a grid.

Reference: thesis on monolingual data, section 4.4.2: tables 4.8 and 4.9 (alpha by beta), 4.10 (gamma = beta / alpha).
With sequence-level normalization (4.4) a search depends on gamma alone, so the grid's alpha is 1 by default.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import Form, read_json, size_and_crc
from hf_mlnmt.common.made_from import differences, sha256_of_lines
from hf_mlnmt.evaluation import score
from hf_mlnmt.evaluation.figures import Panel, heat_maps, save, write_rows
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating.pipeline import progress_bar

# The thesis's values; with beta or gamma 0 only the translation models are used.
ALPHAS = (1e-3, 1e-2, 1e-1, 0.5, 1.0, 5.0, 10.0)
BETAS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 0.5, 1.0, 5.0, 10.0)
GAMMAS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 0.5, 1.0, 10.0)
STEM, METRICS = "grid", ("BLEU", "chrF", "TER")

Row = dict[str, Any]
_ROW: Form = {"gamma": (None, float), **dict.fromkeys(("alpha", "beta", *METRICS, "length_ratio", "seconds"), float)}


@dataclass
class Grid:
    """A grid of scales with the scores of its points; `run` scores the points that are missing.

    Args:
        alphas, betas: None: the thesis's values; with sequence-level normalization alpha = 1 and those of gamma.
        options: of the pipeline's decoding: num_beams and so on.
    """

    pipeline: TranslationPipeline
    sources: Sequence[str]
    references: Sequence[Sequence[str]]
    folder: Path
    alphas: Sequence[float] | None = None
    betas: Sequence[float] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = self.pipeline.model
        if not hasattr(model, "factors"):
            raise UserError(f"{self.pipeline.name}: is no fused model; make one with hf-mlnmt model fuse.")
        self.normalization = model.config.normalization
        sequence = self.normalization == "sequence"
        self.alphas = sorted(self.alphas or ((1.0,) if sequence else ALPHAS))
        self.betas = sorted(self.betas or (GAMMAS if sequence else BETAS))
        if not self.points:
            raise UserError("grid: every alpha and beta is 0, which leaves nothing of the model. Give one above 0.")
        for alpha, beta in self.points:
            try:
                model.factors(alpha, beta)
            except ValueError as error:
                raise UserError(f"grid: {error}.") from error
        self.rows = self._kept()

    @property
    def points(self) -> list[tuple[float, float]]:
        """Returns the grid's points (alpha, beta), without the one where both are 0."""
        return [(alpha, beta) for alpha, beta in product(self.alphas or (), self.betas or ()) if alpha or beta]

    def settings(self) -> Row:
        """Returns all that the scores depend on beside alpha and beta."""
        model = Path(self.pipeline.name)
        weights = sorted(model.glob("*.safetensors")) if model.is_dir() else []
        kept, left_out = self.pipeline.model.generation_config.to_diff_dict(), ("alpha", "beta", "transformers_version")
        return {
            "model": self.pipeline.name,
            "weights": [size_and_crc(path) for path in weights],
            "normalization": self.normalization,
            "decoding": self.options,
            "generation_config": {name: value for name, value in kept.items() if name not in left_out},
            "sentences": len(self.sources),
            "sources": sha256_of_lines(self.sources),
            "references": [sha256_of_lines(lines) for lines in self.references],
        }

    def _kept(self) -> list[Row]:
        """Reads the rows of an earlier run of this grid. Raises: UserError if its settings were others."""
        path = self.folder / f"{STEM}.json"
        if not path.is_file():
            return []
        content = read_json(path, {"rows": [_ROW], "settings": dict})
        rows, then = content["rows"], content["settings"]
        now = json.loads(json.dumps(self.settings()))
        if different := [name for name in differences(then, now, whole=["*"]) if name in now]:
            raise UserError(
                f"{path}: is the grid of something else: {', '.join(different)} differ. Choose another --output, or "
                "remove that file."
            )
        return rows

    def run(self, progress: bool = True) -> list[Row]:
        """Scores every point without a row, and writes all rows after each; returns the rows of this grid's points."""
        self.folder.mkdir(parents=True, exist_ok=True)
        points = self.missing()
        with progress_bar(len(points), progress) as update:
            for alpha, beta in points:
                self.rows.append(self._score(alpha, beta))
                self.rows.sort(key=lambda row: (row["alpha"], row["beta"]))
                write_rows(self.folder, STEM, "scales of a fused model", self.rows, self.settings())
                update(1)
        return [row for row in self.rows if (row["alpha"], row["beta"]) in self.points]

    def missing(self) -> list[tuple[float, float]]:
        """Returns the points without a row."""
        there = {(row["alpha"], row["beta"]) for row in self.rows}
        return [point for point in self.points if point not in there]

    def _score(self, alpha: float, beta: float) -> Row:
        started = time.perf_counter()
        lines = self.pipeline(self.sources, alpha=alpha, beta=beta, **self.options)
        scores = score(lines, self.references, metrics=METRICS, bootstrap=0)
        return {
            "alpha": alpha,
            "beta": beta,
            "gamma": float(f"{beta / alpha:.12g}") if alpha else None,  # rounded: 0.001 / 0.01 == 0.01 / 0.1
            **{name: round(metric.score, 4) for name, metric in scores.metrics.items()},
            "length_ratio": round(scores.length_ratio, 4),
            "seconds": round(time.perf_counter() - started, 2),
            **{f"{name}_signature": metric.signature for name, metric in scores.metrics.items()},
        }


def best(rows: Iterable[Row]) -> Row:
    """Returns the row with the highest BLEU; of equal ones that with the largest beta."""
    return max(rows, key=lambda row: (row["BLEU"], row["beta"]))


def summary(rows: Sequence[Row]) -> list[Row]:
    """Returns a table of BLEU, a row for each alpha, a column for each beta; for one alpha a row of scores per beta."""
    alphas, betas, values = _bleu(rows)
    if len(alphas) == 1:
        return [{name: row[name] for name in ("beta", *METRICS, "length_ratio")} for row in rows]
    named = [f"beta {beta:g}" for beta in betas]
    return [{"alpha": alpha, **dict(zip(named, line, strict=True))} for alpha, line in zip(alphas, values, strict=True)]


def draw(rows: Sequence[Row], folder: str | Path) -> list[Path]:
    """Draws a heat map of BLEU, alphas by betas, and writes grid.png and grid.svg into the folder."""
    alphas, betas, values = _bleu(rows)
    panel = Panel("", values, [f"{alpha:g}" for alpha in alphas], [f"{beta:g}" for beta in betas])
    return save(heat_maps([panel], "alpha", "beta", "BLEU"), folder, STEM)


def _bleu(rows: Sequence[Row]) -> tuple[list[float], list[float], list[list[float | None]]]:
    """Returns the sorted alphas and betas, and BLEU (alphas, betas), None for points without a row."""
    alphas, betas = (sorted({row[name] for row in rows}) for name in ("alpha", "beta"))
    of = {(row["alpha"], row["beta"]): row["BLEU"] for row in rows}
    return alphas, betas, [[of.get((alpha, beta)) for beta in betas] for alpha in alphas]
