"""Objectives: which batch to build and which sum of losses over it. They know no Trainer and no device, and compose.

| objective | batch | loss |
| --- | --- | --- |
| Translation | source, target | label-smoothed cross-entropy of the target, plus whatever the model adds by itself |
| four on text of one language | | text_objectives.py |

One that is made of others collates their batches, adds up their losses, and has their needs and heads; its `items` may
be a tensor with a number for each of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

SHOWN = "shown"  # of an example: (epoch, number of the example), for what is drawn anew each time that it is shown
IGNORED = -100  # label of a position that counts nothing, as everywhere in Transformers

Example = Mapping[str, np.ndarray]
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Need:
    """Something that an objective asks of a model: in words that go on "the objective needs ...", and as a question."""

    what: str
    met: Callable[[nn.Module], bool]


def _is_encoder_decoder(model: nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


ENCODER_DECODER = Need("an encoder and a decoder (config.is_encoder_decoder)", _is_encoder_decoder)


class Objective(ABC):
    """What the trainer asks of an objective.

    translates: whether a model that is trained so translates, so that a development set of it can be scored.
    needs: what a model must have; asked before training.
    whole_model: the Auto class of the model that this objective trains when it has no other task beside it: the part
        that it needs, with its head. None: of the whole translation model, or the language model.
    head: a module that the objective trains beside the model and that the finished model is without; None for none.
        It is made before the trainer, which puts it where the model is.
    """

    translates: ClassVar[bool] = False
    whole_model: ClassVar[str | None] = None
    needs: ClassVar[Sequence[Need]] = ()
    head: nn.Module | None = None

    @abstractmethod
    def collate(self, examples: Sequence[Example]) -> Batch:
        """Pad examples to one batch of (sentences, longest) tensors. Must not draw from torch's random state.

        What is to be drawn follows from `example[SHOWN]`, which every example has beside what its set holds.
        """

    def items(self, batch: Batch) -> Tensor:
        """What the sum of a batch's losses is divided by, once added up over the step: the target tokens."""
        return (batch["labels"] != IGNORED).sum()

    def measured(self) -> Objective:
        """The objective whose loss on a development set is reported."""
        return self

    def measured_parts(self) -> tuple[Objective, int] | None:
        """An objective whose parts of the loss are measured on so many first sentences of a translated development set,
        beside the translation's loss; None for none."""
        return None

    @abstractmethod
    def loss(
        self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise and its named parts (for logging; empty when there is only one).

        It may call the model or any part of it. `num_items_in_batch` is what `items` counts in this task's batches of
        the whole optimizer step, over accumulation and processes: the loss is a sum over the batch divided by it.
        None: those of this batch.
        """


@dataclass
class Translation(Objective):
    """Cross-entropy of the target given the source.

    Inputs: examples {"input_ids": (source,), "labels": (target,)}, both ending with </s>, integers.
    A model whose class says `computes_own_loss` does so in its forward (and may add auxiliary ones); for any other
    encoder-decoder of Transformers the loss is computed here from its logits, with the same formula:
        (1 - eps) * -log p(y) + eps * mean over the vocabulary of -log p       (Szegedy et al. 2016, section 7)

    Args:
        pad_token_id: what fills the source; labels are filled with -100.
        label_smoothing: eps above; 0 is plain cross-entropy.
        pad_to_multiple_of: round lengths up (fewer shapes for torch.compile and tensor cores).
        languages: what a model of several languages is told: {"source_language": "de", "target_language": "en"}.
    """

    translates: ClassVar[bool] = True
    needs: ClassVar[Sequence[Need]] = (ENCODER_DECODER,)

    pad_token_id: int
    label_smoothing: float = 0.0
    pad_to_multiple_of: int = 1
    languages: Mapping[str, str] = field(default_factory=dict)

    def collate(self, examples: Sequence[Example]) -> Batch:
        """input_ids, attention_mask (sentences, longest source) and labels (sentences, longest target), int64."""
        multiple = self.pad_to_multiple_of
        source, lengths = pad([example["input_ids"] for example in examples], self.pad_token_id, multiple)
        labels, _ = pad([example["labels"] for example in examples], IGNORED, multiple)
        mask = (np.arange(source.shape[1]) < lengths[:, None]).astype(np.int64)
        arrays = {"input_ids": source, "attention_mask": mask, "labels": labels}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def loss(
        self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Smoothed cross-entropy summed over target tokens, divided by `num_items_in_batch`."""
        if computes_own_loss(model):
            settings = {"smoothing": self.label_smoothing, "loss_only": True, **self.languages}
            output = model(**batch, **settings, num_items_in_batch=num_items_in_batch)
            return output.loss, output.losses or {}
        labels = batch["labels"]
        logits = model(**_with_decoder_inputs(model, batch), use_cache=False).logits
        total = smoothed_cross_entropy(logits, labels, self.label_smoothing)
        return total / (self.items(batch) if num_items_in_batch is None else num_items_in_batch), {}


def pad(rows: Sequence[np.ndarray], value: int, multiple: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rows of different lengths as one int64 array (rows, longest), filled with `value`; and the lengths (rows,)."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    longest = -(-int(lengths.max()) // multiple) * multiple
    padded = np.full((len(rows), longest), value, np.int64)
    for row, length, target in zip(rows, lengths, padded):
        target[:length] = row
    return padded, lengths


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Sum over real positions of (1 - eps) nll + eps * mean over V of -log p. logits (..., V), labels (...)."""
    real = labels != IGNORED
    logits, labels = logits[real].float(), labels[real]
    target = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    loss = logits.logsumexp(-1) - (1 - smoothing) * target
    if smoothing:
        loss = loss - smoothing * logits.mean(-1)
    return loss.sum()


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside wrappers for several processes, for torch.compile and for adapters (peft.PeftModel)."""
    while True:
        inner = getattr(model, "_orig_mod", None) or (
            model.module if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel) else None
        )
        if inner is None and hasattr(model, "get_base_model"):
            inner = model.get_base_model()  # type: ignore[operator]
        if inner is None:
            return model
        model = inner


def computes_own_loss(model: nn.Module) -> bool:
    """Whether the model's class declares that its forward computes the loss, as ours do (modeling/transformer.py)."""
    return getattr(unwrap(model), "computes_own_loss", False)


def _with_decoder_inputs(model: nn.Module, batch: Batch) -> dict[str, Any]:
    """Labels replaced by decoder inputs where the model can shift them: it then computes no loss of its own."""
    shift = getattr(unwrap(model), "prepare_decoder_input_ids_from_labels", None)
    if shift is None:
        return batch
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return {**inputs, "decoder_input_ids": shift(batch["labels"])}
