"""Sentence embeddings of a translation model, for retrieval of translations and similarity of sentences.

Reference: the paper on the attention bridge, sections 1 and 2: the k rows of M as a sentence's representation.
`model.embed` (modeling/transformer.py, bridge.py) computes embeddings; this file compares those of texts and languages.

Retrieval: for every sentence of one language the nearest one of another, by cosine; accuracy@1 is the share for which
that is its translation, the same line of the other file.

Similarity: correlation of the cosines of pairs of sentences with human scores, for any file of scored pairs; the
paper's are "non-trainable similarity tasks". Intervals: Fisher's z, with variance 1 / (n - 3) for Pearson's
correlation, and (1 + r^2 / 2) / (n - 3) for Spearman's (Bonett and Wright 2000).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from hf_mlnmt.analysis.reading import Systems
from hf_mlnmt.common.errors import UserError, naming
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.words import is_visible
from hf_mlnmt.evaluation import figures
from hf_mlnmt.evaluation.figures import Study
from hf_mlnmt.generation.choosing.embedding import default_pooling, embed_texts, normalised
from hf_mlnmt.generation.translating.loading import Parts
from hf_mlnmt.generation.translating.pipeline import progress_bar


def embed_file(parts: Parts, file: Path, language: str | None, pooling: str | None, target: str | None) -> np.ndarray:
    """Embeds a file's lines by `embed_texts`, with a progress bar on standard error if that is a terminal.

    pooling: "flat", "mean" or a row's number in digits; None: flat with a bridge, else mean. Raises: UserError if
    every line is blank.
    """
    chosen, texts = pooling or default_pooling(parts.model), list(read_lines(file))
    if not any(map(is_visible, texts)):
        raise UserError(f"{file}: every line is blank: there is no text to embed.")
    row = int(chosen) if chosen.isdigit() else chosen
    with progress_bar(len(texts)) as update:
        return embed_texts(parts, texts, language, row, progress=update, target_language=target)


def retrieval(embeddings: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns {"from-to": accuracy@1} for embeddings (sentences, width) of the same sentences in several languages.
    Raises: UserError for different numbers of sentences."""
    counts = {language: len(vectors) for language, vectors in embeddings.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{language} {count}" for language, count in counts.items())
        raise UserError(f"the files have different numbers of lines ({said}): line i must say the same in all of them.")
    unit = {language: normalised(vectors) for language, vectors in embeddings.items()}
    return {
        f"{source}-{target}": float(((unit[source] @ unit[target].T).argmax(1) == np.arange(counts[source])).mean())
        for source, target in permutations(unit, 2)
    }


def retrieval_rows(accuracies: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Returns a row for each pair of languages, then one for their mean, with each model's accuracy in percent.

    accuracies: model -> result of `retrieval`.
    """
    means = {name: {**of, "mean": sum(of.values()) / len(of)} for name, of in accuracies.items()}
    pairs = next(iter(means.values()))
    return [{"from-to": pair, **{name: round(100 * of[pair], 1) for name, of in means.items()}} for pair in pairs]


Pair = tuple[str, str, float]


def read_pairs(path: str | Path) -> list[Pair]:
    """Returns (sentence, sentence, score) of each line of a file, with tabs between them. Raises: UserError for a line
    of another form, an empty sentence, fewer than four lines, or scores that are all equal."""
    pairs = []
    for number, line in enumerate(read_lines(path, form="table"), 1):
        fields = [field.strip() for field in line.split("\t")]
        try:
            first, second, score = fields
            value = float(score)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not all(fields[:2]):
            raise UserError(f"{path}, line {number}: expected two sentences and a score, with tabs between them.")
        pairs.append((first, second, value))
    if len(pairs) < 4 or len({score for *_, score in pairs}) < 2:
        raise UserError(f"{path}: a correlation needs four pairs, and scores that differ.")
    return pairs


def correlations(first: np.ndarray, second: np.ndarray) -> dict[str, tuple[float, float, float]]:
    """Returns {"Pearson", "Spearman": (correlation, low, high)} of two arrays (n,), with 95 % intervals; nan where an
    array is constant. Raises: UserError without SciPy.
    """
    try:
        from scipy.stats import rankdata
    except ImportError as error:
        raise UserError("correlations need SciPy: pip install 'hf-mlnmt[analysis]'") from error
    found = {}
    for name, (a, b) in {"Pearson": (first, second), "Spearman": (rankdata(first), rankdata(second))}.items():
        with np.errstate(invalid="ignore"):
            r = low = high = float(np.corrcoef(a, b)[0, 1])
        if abs(r) < 1 - 1e-12:
            width = 1.959964 * math.sqrt((1 + r * r / 2 if name == "Spearman" else 1) / (len(first) - 3))
            low, high = math.tanh(math.atanh(r) - width), math.tanh(math.atanh(r) + width)
        found[name] = (r, low, high)
    return found


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Computes the cosine of each pair of rows of two arrays (n, width): (n,); 0 for an embedding of zeros."""
    return (normalised(first.astype(float)) * normalised(second.astype(float))).sum(1)


def similarity_study(
    systems: Systems, files: Mapping[str, Sequence[Pair]], language: str | None = None, pooling: str | int | None = None
) -> Study:
    """Correlates cosines of sentence pairs by each system with each file's scores; makes rows and a figure of these."""
    study = Study("similarity")
    panels: dict[str, dict[str, list[figures.Interval]]] = {}
    for file, pairs in files.items():
        scores = np.array([score for *_, score in pairs])
        for name, parts in systems.items():
            how = default_pooling(parts.model) if pooling is None else pooling
            with naming(name):
                vectors = embed_texts(parts, [text for a, b, _ in pairs for text in (a, b)], language, how)
            for kind, (r, low, high) in correlations(cosines(vectors[::2], vectors[1::2]), scores).items():
                row = {"system": name, "file": file, "pooling": how, "pairs": len(pairs), "correlation": kind}
                study.rows.append({**row, "value": r, "low": low, "high": high})
                panels.setdefault(kind, {}).setdefault(name, []).append((r, low, high))
    for row in study.rows:
        about = {key: row[key] for key in ("system", "file", "correlation")}
        numbers = {"value": f"{row['value']:.3f}", "95 %": f"{row['low']:.3f} to {row['high']:.3f}"}
        study.summary.append({**about, **numbers})
    study.note = "Bars: 95 % intervals over the pairs."
    study.figures["similarity"] = figures.points(panels, [Path(file).name for file in files], "", "correlation")
    return study
