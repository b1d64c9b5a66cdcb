"""The sentences of an analysis: the same sample for every system that is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_mlnmt.analysis.reading import encode_sources, encode_targets, sample_indices, usable_indices
from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.scores import check_counts
from hf_mlnmt.generation.loading import Parts


@dataclass(frozen=True)
class Sample:
    """Sentences, their translations if they were given, their lines in the file (from 1), and how many were unfit."""

    sources: list[str]
    targets: list[str] | None
    lines: list[int]
    left_out: int
    languages: tuple[str | None, str | None] = (None, None)

    def source_ids(self, parts: Parts) -> list[list[int]]:
        """Token ids of the sources, as this system reads them."""
        return encode_sources(parts, self.sources, *self.languages)

    def target_ids(self, parts: Parts) -> list[list[int]] | None:
        """Token ids of the translations; None: the system's own are to be read."""
        return None if self.targets is None else encode_targets(parts, self.targets)

    def settings(self) -> dict[str, Any]:
        """What the results file says of the sample."""
        own = "own, greedy" if self.targets is None else "given"
        return {"sentences": len(self.sources), "left_out": self.left_out, "translations": own, "lines": self.lines}


def draw_sample(
    systems: Mapping[str, Parts],
    sources: Sequence[str],
    targets: Sequence[str] | None = None,
    size: int | None = 1000,
    seed: int = 1,
    languages: tuple[str | None, str | None] = (None, None),
) -> Sample:
    """`size` of the sentences that every system can take (None: all): not empty, and not too long.

    Raises: UserError for different numbers of lines, or when no sentence is left.
    """
    if targets is not None:
        check_counts(targets, [sources], ["the translations", "the source"])
    fit = set(range(len(sources)))
    for parts in systems.values():
        fit &= set(usable_indices(parts, sources, *languages))
        if targets is not None:
            real = [bool(text.strip()) for text in targets]
            filled = [text if ok else "x" for text, ok in zip(targets, real, strict=True)]
            limit = getattr(parts.model.config, "max_position_embeddings", None) or float("inf")
            fit &= {i for i, ids in enumerate(encode_targets(parts, filled)) if real[i] and len(ids) <= limit}
    if not fit:
        raise UserError("no sentence can be used: all are empty, or longer than the model takes.")
    kept = sorted(fit)
    chosen = [kept[i] for i in sample_indices(len(kept), size, seed)]
    return Sample(
        [sources[i] for i in chosen],
        None if targets is None else [targets[i] for i in chosen],
        [i + 1 for i in chosen],
        len(sources) - len(fit),
        languages,
    )
