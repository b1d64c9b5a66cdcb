"""How much the main decoder of a model with AIF depends on its auxiliaries: its outputs and its attention without them.

Reference: Ampomah, thesis on joint attention, section 4.5.5, equations 4.4 to 4.7, figures 4.7 and 4.8.

(4.4) D_t = KL(P_m(y_t) || P_ind(y_t))               (4.5) D_Y = mean of D_t over the target positions
(4.6) D_h^l = KL(A_m^h || A_ind^h), A (target, source) the weights over the source       (4.7) D^l = mean over the heads

P_m, A_m are the model's; P_ind, A_ind those of the same model with all W of AIF zero (`auxiliary_mask` of zeros), fed
the main decoder's own greedy translation, </s> included.

Departs: (4.6) is a divergence of matrices; here the KL of each target position, and their mean (`summed`: the sum).
Weights of A_ind that are zero in floating point count as the smallest positive number, so that the divergence stays
finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import stdev
from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.analysis.reading import eager_attention, forced_passes
from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.loading import Parts


def kl_of_logits(logits: Tensor, other: Tensor) -> Tensor:
    """KL(softmax(logits) || softmax(other)) over the last dimension: (..., n), (..., n) -> (...), nats, float64."""
    log_p, log_q = logits.double().log_softmax(-1), other.double().log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def kl_of_weights(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) over the last dimension, of weights that may be zero: (..., n), (..., n) -> (...), nats, float64."""
    p, q = p.double(), q.double().clamp_min(torch.finfo(torch.float64).tiny)
    return (torch.xlogy(p, p) - p * q.log()).sum(-1)


def attention_dependency(weights: Tensor, other: Tensor, target_real: Tensor, summed: bool = False) -> Tensor:
    """(4.6) for each sentence and head: weights (batch, heads, target, source) -> (batch, heads), float64."""
    values = kl_of_weights(weights, other).masked_fill(~target_real[:, None], 0.0).sum(-1)
    return values if summed else values / target_real.sum(-1)[:, None]


@dataclass(frozen=True)
class SentenceDependency:
    """One sentence: its own translation's token ids, D_t of each, and D_h^l (layers, heads)."""

    target: list[int]
    tokens: list[float]
    heads: Tensor

    @property
    def mean(self) -> float:
        """Equation 4.5: the mean over the target tokens of a sentence."""
        return sum(self.tokens) / len(self.tokens)


@dataclass(frozen=True)
class Dependency:
    """A sample's sentences, in the order in which they were given."""

    sentences: list[SentenceDependency]

    @property
    def outputs(self) -> float:
        """The mean of (4.5) over the sentences."""
        return sum(sentence.mean for sentence in self.sentences) / len(self.sentences)

    @property
    def interval(self) -> tuple[float, float] | None:
        """What other sentences would give: 95 %, by the normal distribution; None of one sentence."""
        if len(self.sentences) < 2:
            return None
        error = stdev(sentence.mean for sentence in self.sentences) / sqrt(len(self.sentences))
        return self.outputs - 1.96 * error, self.outputs + 1.96 * error

    @property
    def heads(self) -> Tensor:
        """(4.6), (layers, heads): the mean over the sentences."""
        return torch.stack([sentence.heads for sentence in self.sentences]).mean(0)

    @property
    def layers(self) -> list[float]:
        """(4.7)"""
        return self.heads.mean(-1).tolist()

    def rows(self) -> list[dict[str, Any]]:
        """The outputs' dependency, then each layer's and each head's."""
        low, high = self.interval or ("", "")
        rows: list[dict[str, Any]] = [
            {"of": "outputs", "layer": "", "head": "", "value": self.outputs, "low": low, "high": high}
        ]
        for number, (mean, heads) in enumerate(zip(self.layers, self.heads.tolist(), strict=True), start=1):
            rows.append({"of": "attention", "layer": number, "head": "mean", "value": mean})
            rows += [{"of": "attention", "layer": number, "head": h, "value": v} for h, v in enumerate(heads, start=1)]
        return rows


def dependency(
    parts: Parts, sources: Sequence[Sequence[int]], summed: bool = False, batch_tokens: int = 4096
) -> Dependency:
    """Measure a model with AIF on token ids of source sentences.

    Raises: UserError for a model whose main decoder reads no auxiliaries.
    """
    model = parts.model
    if not getattr(model.config, "information_fusion", False):
        raise UserError(
            f"{type(model).__name__} here has no auxiliary information fusion: its decoder reads no auxiliaries "
            "(ms-<layers>-aif)."
        )
    none = [0.0] * len(model.config.auxiliary_layers)
    found: dict[int, SentenceDependency] = {}
    with eager_attention(model):
        for one in forced_passes(parts, sources, None, batch_tokens, output_attentions=True):
            assert one.labels is not None
            assert one.target_real is not None
            with torch.no_grad():
                other = model(
                    input_ids=one.source,
                    attention_mask=one.source_real.long(),
                    decoder_input_ids=model.prepare_decoder_input_ids_from_labels(one.labels),
                    use_cache=False,
                    output_attentions=True,
                    auxiliary_mask=none,
                )
            tokens = kl_of_logits(one.output.logits, other.logits)
            pairs = zip(one.output.cross_attentions, other.cross_attentions, strict=True)
            heads = torch.stack([attention_dependency(a, b, one.target_real, summed) for a, b in pairs], dim=1).cpu()
            for row, index in enumerate(one.indices):
                length = int(one.target_real[row].sum())
                target = one.labels[row, :length].tolist()
                found[index] = SentenceDependency(target, tokens[row, :length].tolist(), heads[row])
    return Dependency([found[index] for index in range(len(sources))])
