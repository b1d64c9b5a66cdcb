"""The objective of a student: cross-entropy, its teachers' distributions of words and guided alignment in one loss.

References: Kim and Rush 2016, "Sequence-Level Knowledge Distillation", equations 1 to 4 (on a teacher's translations
the cross-entropy is their sequence-level one); Chen et al. 2016, "Guided Alignment Training for Topic-Aware Neural
Machine Translation"; Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models", equation 3.

(1) loss = (1 - words) L + words W + alignment A     L: the label-smoothed cross-entropy, as of Translation
(2) W = - sum over target positions t and the vocabulary v of  p_T(v | y_<t, x) log p(v | y_<t, x)
(3) A = - sum over target positions t and source positions s of  G_ts log a_ts

Each sum is divided by the target tokens of the step. p_T: a teacher's distribution, of several the normalised geometric
mean (modeling/fusion.py, 4.2); it needs the student's vocabulary. a: the first head of the last decoder layer, which
Marian and its engines read alignments off; G: uniform over the source subwords that a target subword is linked to by
the first teacher's attention, whatever its subwords (generation/translating/alignments.py), 0 for one without.
Departs: Garg et al. choose the head; G there comes from the averaged attention of the last layer but one, or from an
aligner. A sentence's links are made when it is first seen, and kept in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import check_direction
from hf_mlnmt.generation.translating.alignments import Aligner
from hf_mlnmt.generation.translating.fusing import Member, check_same_vocabulary, fuse
from hf_mlnmt.generation.translating.loading import load
from hf_mlnmt.modeling.attention import CrossAttention
from hf_mlnmt.modeling.loss import divisor
from hf_mlnmt.modeling.matrices import in_own_precision
from hf_mlnmt.training.init_from import local_folder
from hf_mlnmt.training.objectives import (
    ENCODER_DECODER,
    IGNORED,
    SHOWN,
    Batch,
    Example,
    Ingredients,
    Losses,
    Need,
    Translation,
    computes_own_loss,
    unwrap,
)

KEPT = 2_000_000  # most sentences whose links are kept in memory: 600 MB for captions
SENTENCE = "sentence"  # key of a batch: each sentence's number in the training set, -1 where it is not known


@dataclass
class Distillation(Translation):
    """The objective of equation (1) above: cross-entropy, the teachers' distributions of words, guided alignment.

    words, alignment: the weights of (2) and (3). model: the teacher, or several fused. aligner: of the first teacher.
    """

    as_graph: ClassVar[bool] = False
    needs: ClassVar[Sequence[Need]] = (ENCODER_DECODER, Need("a model of this package", computes_own_loss))

    words: float = 0.0
    alignment: float = 0.0
    model: Any = None
    aligner: Any = None
    tokenizers: Any = None
    links: dict[int, Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, settings: Any, given: Ingredients) -> Self:
        """Makes the objective and loads its teachers. UserError for teachers or an attention that do not fit."""
        objective = super().of(settings, given)
        names = [settings.teacher] if isinstance(settings.teacher, str) else list(settings.teacher)
        folders = [str(local_folder(name, given.root, "teacher")) for name in names]
        for folder in folders:
            check_direction(folder, [given.languages.get(side) for side in ("source", "target")], f"teacher: {folder}")
        objective.words, objective.alignment = settings.words, settings.alignment
        objective.tokenizers = given.tokenizers
        if settings.words:
            # the checks before a training call this within the meta device, where no teacher can be loaded
            with torch.device("cpu"):
                objective.model = _teacher(folders, Member("the student", given.model, given.tokenizers))
        if settings.alignment:
            if type(_attention(given.model)) is not CrossAttention:
                raise UserError(
                    f"alignment is {settings.alignment:g}: {type(given.model).__name__} has another attention over the "
                    "source in its last decoder layer than the baseline, whose first head is taught. Set it to 0."
                )
            with torch.device("cpu"):
                objective.aligner = Aligner.of(folders[0], given.languages.get("target"))
            generation: Any = given.model.generation_config
            generation.alignment_head = [given.model.config.decoder_layers, 1]
        return objective

    def collate(self, examples: Sequence[Example]) -> Batch:
        batch = super().collate(examples)
        numbers = [int(example[SHOWN][1]) if SHOWN in example else -1 for example in examples]
        return {**batch, SENTENCE: torch.tensor(numbers)}

    def loss(self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None) -> Losses:
        """Returns the loss of equation (1) and its parts: translation, words, alignment. UserError for alignment with
        gradient checkpointing."""
        batch = dict(batch)
        numbers, labels = batch.pop(SENTENCE), batch["labels"]
        items, seen = divisor(labels, num_items_in_batch), dict[str, Tensor]()
        attention: Any = _attention(model) if self.alignment else None
        layers = {"query": attention.q_proj, "key": attention.kv_proj} if self.alignment else {}
        hooks = [layer.register_forward_hook(partial(_keep, seen, name)) for name, layer in layers.items()]
        try:
            how = {"smoothing": self.label_smoothing, "loss_only": not self.words, **self.languages}
            output = model(**batch, **how, num_items_in_batch=items)
        finally:
            for hook in hooks:
                hook.remove()
        parts = {"translation": (1 - self.words) * output.loss}
        if self.words:
            parts["words"] = self.words * self.of_words(batch, output.logits) / items
        if self.alignment:
            if torch.is_grad_enabled() and not (seen and seen["query"].requires_grad):
                raise UserError(
                    "distillation: alignment does not go with gradient checkpointing. Leave it out, or set alignment "
                    "to 0."
                )
            logs = attention_logs(seen["query"], seen["key"], attention.heads, batch["attention_mask"])
            parts["alignment"] = self.alignment * alignment_loss(logs, self.guide(batch, numbers)) / items
        return torch.stack(list(parts.values())).sum(), parts

    def of_words(self, batch: Batch, logits: Tensor) -> Tensor:
        """Returns W of equation (2), its sum over a batch; logits: the student's, (batch, target, vocabulary)."""
        labels, real = batch["labels"], batch["labels"] != IGNORED
        teacher = self.model.to(labels.device)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            inputs["decoder_input_ids"] = teacher.prepare_decoder_input_ids_from_labels(labels)
            wanted = teacher(**inputs, use_cache=False).logits[real].float().softmax(-1)
        logs = logits[real].to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        return -(wanted * logs).sum()

    def guide(self, batch: Batch, numbers: Tensor) -> Tensor:
        """Returns G of equation (3), (batch, target, source), float32, rows summing to 1 or 0; aligns sentences without
        links first. numbers: of the sentences in the training set."""
        ids, labels, mask = (batch[name].cpu() for name in ("input_ids", "labels", "attention_mask"))
        real = ((ids, mask.bool()), (labels, labels != IGNORED))
        pairs = [[row[here].tolist() for row, here in zip(*side)] for side in real]
        known = [self.links.get(number) for number in numbers.tolist()]
        new = [place for place, links in enumerate(known) if links is None and pairs[1][place]]
        if new:
            self.aligner.to(numbers.device)
            made = self.aligner.of_subwords(self.tokenizers, *([side[place] for place in new] for side in pairs))
            for place, links in zip(new, made, strict=True):
                known[place] = links
                if (number := int(numbers[place])) >= 0 and len(self.links) < KEPT:
                    self.links[number] = links
        found = torch.zeros(*labels.shape, mask.shape[1])
        for place, links in enumerate(known):
            if links is not None and pairs[1][place]:
                found[place, : links.shape[0], : links.shape[1]] = links.float()
        return (found / found.sum(-1, keepdim=True).clamp(min=1)).to(numbers.device)


def attention_logs(query: Tensor, key: Tensor, heads: int, mask: Tensor) -> Tensor:
    """Returns the logarithms of the first head's attention weights, a of (3): query (batch, target, d), key (batch,
    source, d or more), mask (batch, source) -> (batch, target, source), float32 or wider."""
    size = query.shape[-1] // heads
    exact = torch.promote_types(query.dtype, torch.float32)
    with in_own_precision(query):
        scores = query[..., :size].to(exact) @ key[..., :size].to(exact).mT * size**-0.5
    return scores.masked_fill(mask[:, None] == 0, torch.finfo(exact).min).log_softmax(-1)


def alignment_loss(logs: Tensor, guide: Tensor) -> Tensor:
    """Returns A of equation (3), the alignment loss of a batch, from log a and G, both (batch, target, source)."""
    return -(guide * torch.where(guide > 0, logs, 0.0)).sum()


def _keep(seen: dict[str, Tensor], name: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
    seen[name] = output


def _attention(model: nn.Module) -> Any:
    """Returns the attention over the source of the last decoder layer; None of a decoder without such layers."""
    layers = getattr(unwrap(model).get_decoder(), "layers", None)
    return getattr(layers[-1], "source_attn", None) if layers else None


def _teacher(folders: Sequence[str], student: Member) -> Any:
    """Returns the teacher model of (2), several of them fused. UserError for a vocabulary not the student's."""
    parts = [load(folder, device="cpu", fast=True) for folder in folders]
    for folder, each in zip(folders, parts):
        check_same_vocabulary(student, Member(folder, each.model, each.tokenizers))
    if len(parts) == 1:
        return parts[0].model.requires_grad_(False)
    return fuse([each.model for each in parts], normalization="symbol").requires_grad_(False)
