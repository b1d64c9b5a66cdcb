"""Training a fused model (modeling/fusion.py): its translation models move, its language models are frozen.

Reference: thesis on monolingual data, section 4.1, equations (4.1), (4.5), (4.6), (4.14).

| objective | loss of a sentence |
| --- | --- |
| FusionSymbol | - sum_i log q(e_i) / sum_v q(v) |
| FusionNBest | log Z - s(e), Z the sum of q over an n-best list |
| FusionTrellis | log Z - s(e), Z the sum of q over a beam search with recombination |

s(e) = log q(e) = alpha sum log p_TM + beta sum log p_LM, not divided by the length. Both parts of (4.14) are logged:
log_q and log_z; the thesis finds that the loss falls through log_z alone. Start from a converged translation model.
Departs: the lists are found by a model in evaluation mode, and scored in training mode, with dropout, as every target.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from hf_mlnmt.search.fusion import FusedDecoder
from hf_mlnmt.search.source import Source
from hf_mlnmt.search.trellis import build_trellis
from hf_mlnmt.training.fusion_lists import n_best_sums, trellis_sums, with_references
from hf_mlnmt.training.objectives import IGNORED, Batch, Example, Need, Objective, Translation, unwrap

FUSED = Need("a fused model (hf-mlnmt fuse)", lambda model: hasattr(model, "factors"))
SEQUENCE = Need(
    'sequence-level normalization (normalization="sequence" of the fused model)',
    lambda model: getattr(getattr(model, "config", None), "normalization", None) == "sequence",
)


@dataclass
class FusionSymbol(Translation):
    """(4.1): cross-entropy of the renormalised product, whatever the model's `normalization` is for its search."""

    needs = (*Translation.needs, FUSED)

    def __post_init__(self) -> None:
        if self.label_smoothing:
            raise ValueError("label smoothing is not defined for a fused model")


class FusionSequence(Objective):
    """What both approximations of (4.5) share."""

    translates: ClassVar[bool] = True
    needs = (FUSED, SEQUENCE)
    pad_token_id: int
    dev_sentences: int

    def collate(self, examples: Sequence[Example]) -> Batch:
        """As `Translation`."""
        return Translation(self.pad_token_id).collate(examples)

    def loss(
        self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """log Z - s summed over sentences, divided by `num_items_in_batch` target tokens; parts log_q and log_z."""
        log_z, reference = self.sums(unwrap(model), batch)
        items = self.items(batch) if num_items_in_batch is None else num_items_in_batch
        parts = {"log_q": reference.sum() / items, "log_z": log_z.sum() / items}
        return parts["log_z"] - parts["log_q"], parts

    def measured_parts(self) -> tuple[Objective, int] | None:
        """Itself, on the first `dev_sentences`."""
        return (self, self.dev_sentences) if self.dev_sentences else None

    @abstractmethod
    def sums(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """log Z and s of the reference: (sentences,) each, with gradients."""


@dataclass
class FusionNBest(FusionSequence):
    """(4.5) with Z over an n-best list of a beam search, made anew for every batch.

    The reference is always in the list: in the place of the worst, unless it was found.

    Args:
        n: hypotheses, and beams.
        found_by: "q", the fused model; "translation", its translation models alone (thesis, section 4.4.2).
        length_penalty: of that beam search; 0: the list has the n largest q that were found.
        max_length: no hypothesis has more tokens; None: 10 more than twice the longest reference of the batch.
        reuse: make the list of a sentence anew after so many uses. Above 1 a resumed training is not exactly the same.
        dev_sentences: log Z and log q are measured on so many first sentences of the development set too.
    """

    pad_token_id: int
    n: int = 12
    found_by: Literal["q", "translation"] = "q"
    length_penalty: float = 0.0
    max_length: int | None = None
    reuse: int = 1
    dev_sentences: int = 200
    kept: dict[bytes, tuple[Tensor, int]] = field(default_factory=dict, repr=False)

    def measured_parts(self) -> tuple[Objective, int] | None:
        """The same with lists that are always new."""
        return (replace(self, reuse=1, kept={}), self.dev_sentences) if self.dev_sentences else None

    def sums(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `FusionSequence`."""
        source, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
        rows, counted, place = with_references(self.lists(model, batch), labels, ends_of(model))
        encoded = model.get_encoder()(source, mask)
        found = n_best_sums(model, encoded, mask, rows, counted)
        return found[:, 0], found[:, 1:].gather(1, place.unsqueeze(1))[:, 0]

    def lists(self, model: Any, batch: Batch) -> Tensor:
        """The hypotheses of every sentence (sentences, n, longest), those that are kept from earlier steps too."""
        if self.reuse == 1:
            return self.search(model, batch)
        keys = [_key(*row) for row in zip(batch["input_ids"], batch["labels"])]
        missing = [i for i, key in enumerate(keys) if self.kept.get(key, (None, self.reuse))[1] >= self.reuse]
        if missing:
            found = self.search(model, {name: one[missing] for name, one in batch.items()})
            self.kept |= {keys[i]: (row.cpu(), 0) for i, row in zip(missing, found)}
        rows = []
        for key in keys:
            row, uses = self.kept[key]
            self.kept[key] = row, uses + 1
            rows.append(row.T)  # (longest, n): lengths differ
        fill = model.config.pad_token_id or 0
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)
        return padded.transpose(1, 2).to(batch["input_ids"].device)

    def search(self, model: Any, batch: Batch) -> Tensor:
        """The hypotheses of every sentence (sentences, n, longest), best first, without start token."""
        options: dict[str, Any] = {"num_beams": self.n, "num_return_sequences": self.n, "do_sample": False}
        options |= {"length_penalty": self.length_penalty, "max_new_tokens": limit(self.max_length, batch["labels"])}
        if self.found_by == "translation":
            options["beta"] = 0.0
        with evaluating(model):
            found = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], **options)
        found = getattr(found, "sequences", found)[:, 1:]
        return found.view(len(batch["labels"]), self.n, -1)


@dataclass
class FusionTrellis(FusionSequence):
    """(4.5) with Z over the trellis of a beam search with recombination, made anew for every batch.

    The reference's q is added where its path was pruned.

    Args:
        beams: of the search. k: beams that share so many last tokens are joined.
        max_length: no path has more tokens; None: 10 more than twice the longest reference of the batch.
        tolerance: a sentence's search ends when its open beams have less than this part of Z; 0: at `max_length`.
        dev_sentences: log Z and log q are measured on so many first sentences of the development set too.
    """

    pad_token_id: int
    beams: int = 12
    k: int = 1
    max_length: int | None = None
    tolerance: float = 1e-6
    dev_sentences: int = 200

    def sums(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `FusionSequence`."""
        source, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
        with evaluating(model):
            outputs = Source.take(model.get_encoder()(source, mask), mask, 1)
            prompt = source.new_full((len(source), 1), model.config.decoder_start_token_id)
            longest, ends = limit(self.max_length, labels), ends_of(model)
            decoder = FusedDecoder(model, {})
            trellises = build_trellis(decoder, outputs, prompt, ends, self.beams, self.k, longest, self.tolerance)
        references = [row[row != IGNORED].tolist() for row in labels]
        return trellis_sums(model, model.get_encoder()(source, mask), mask, trellises, references)


def limit(max_length: int | None, labels: Tensor) -> int:
    """The longest hypothesis, in tokens."""
    return 2 * labels.shape[1] + 10 if max_length is None else max_length


def ends_of(model: Any) -> list[int]:
    """The tokens that end a translation."""
    ends = model.generation_config.eos_token_id
    ends = model.config.eos_token_id if ends is None else ends
    return list(ends) if isinstance(ends, list | tuple) else [ends]


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout and without gradients."""
    before = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(before)


def _key(source: Tensor, labels: Tensor) -> bytes:
    """The same for the same sentence pair, whatever the padding."""
    return repr((source.tolist(), labels[labels != IGNORED].tolist())).encode()
