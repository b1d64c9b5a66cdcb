"""The development set: loss, translations and metrics during training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import gather_object

from hf_mlnmt.errors import UserError
from hf_mlnmt.training.objectives import IGNORED, Translation

if TYPE_CHECKING:
    from hf_mlnmt.training.trainer import TranslationTrainer

# (outputs, references, sources) -> named numbers
Metric = Callable[[Sequence[str], Sequence[str], Sequence[str] | None], dict[str, float]]


@dataclass
class DevSet:
    """What is scored during training, and how.

    Args:
        dataset: examples as in training, with source_lengths and target_lengths.
        references: raw text, one per sentence.
        decode: token ids of many sentences -> texts (special tokens skipped, processing undone).
        metrics: functions of (outputs, references, sources), see `metric`; none: only the loss, no translation.
        sources: raw text, for metrics that read it.
        num_beams: 1 is greedy.
        batch_tokens: source tokens per batch, padding included.
        max_length: no output is longer than this, nor than twice the source plus 10.
    """

    dataset: Any
    references: Sequence[str] = ()
    decode: Callable[[list[list[int]]], list[str]] | None = None
    metrics: Sequence[Metric] = ()
    sources: Sequence[str] | None = None
    num_beams: int = 1
    batch_tokens: int = 4096
    max_length: int = 200
    translations: list[str] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.metrics and len(self.references) != len(self.dataset):
            raise UserError(f"{len(self.references)} references for {len(self.dataset)} development sentences.")

    def evaluate(self, trainer: TranslationTrainer, **generation: Any) -> dict[str, float]:
        """loss per target token (no smoothing), perplexity, and the metrics; the same on every process."""
        model = trainer.model
        was_training = model.training
        model.eval()
        with torch.no_grad():
            loss = self._loss(trainer)
            outputs = self._translate(trainer, generation) if self.metrics else []
        model.train(was_training)
        scores = {"loss": loss, "perplexity": float(np.exp(min(loss, 700.0)))}
        if self.metrics and self.decode:
            self.translations = self.decode(outputs)
            for metric in self.metrics:
                scores.update(metric(self.translations, self.references, self.sources))
        return scores

    def _batches(self, trainer: TranslationTrainer) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
        """This process's share of the sentences in batches of similar lengths, with their indices."""
        args = trainer.args
        collate = Translation(trainer.model.config.pad_token_id).collate
        lengths = np.asarray(self.dataset.source_lengths)
        order = np.argsort(-lengths, kind="stable")[args.process_index :: args.world_size]
        while len(order):
            size = max(1, self.batch_tokens // int(lengths[order[0]]))
            indices, order = order[:size].tolist(), order[size:]
            batch = collate([self.dataset[i] for i in indices])
            yield indices, {name: tensor.to(args.device) for name, tensor in batch.items()}

    def _loss(self, trainer: TranslationTrainer) -> float:
        objective = Translation(trainer.model.config.pad_token_id)
        totals = torch.zeros(2, dtype=torch.float64, device=trainer.args.device)
        for _, batch in self._batches(trainer):
            with trainer.compute_loss_context_manager():
                loss, parts = objective.loss(trainer.model, batch, num_items_in_batch=1)
            # Auxiliary losses are no part of the translation's perplexity.
            loss = parts.get("translation", loss)
            totals += torch.stack([loss.double(), (batch["labels"] != IGNORED).sum()])
        total, tokens = trainer.accelerator.reduce(totals, "sum").tolist()
        return total / max(1.0, tokens)

    def _translate(self, trainer: TranslationTrainer, generation: dict[str, Any]) -> list[list[int]]:
        """Token ids of every sentence, in order. Generates with a copy of the config: generate() must not change it."""
        generate: Any = trainer.model.generate
        config = copy.deepcopy(trainer.model.generation_config)
        config.update(**{"num_beams": self.num_beams, "max_length": None, "use_cache": True, **generation})
        mine: list[tuple[int, list[int]]] = []
        for indices, batch in self._batches(trainer):
            config.max_new_tokens = min(self.max_length, 2 * batch["input_ids"].shape[1] + 10)
            source, mask = batch["input_ids"], batch["attention_mask"]
            outputs = generate(source, attention_mask=mask, generation_config=config)
            mine.extend(zip(indices, outputs.tolist()))
        everything = gather_object(mine) if trainer.args.world_size > 1 else mine
        return [tokens for _, tokens in sorted(everything)]


def metric(name: str, lowercase: bool = False) -> Metric:
    """A metric by name: bleu, chrf, ter (sacreBLEU's, detokenised) or any other of the `evaluate` library.

    `lowercase` leaves case out of sacreBLEU's: for a model of lower-cased text, whose every German noun would be wrong.

    Raises: UserError when there is no such metric or it cannot be loaded.
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    own = {"bleu": BLEU, "chrf": CHRF, "ter": TER}
    if name not in own:
        from hf_mlnmt.evaluation import load_metric

        return load_metric(name)
    # TER never looks at case unless told to.
    scorer = own[name](lowercase=True) if lowercase and name != "ter" else own[name]()

    def compute(outputs: Sequence[str], references: Sequence[str], sources: Any = None) -> dict[str, float]:
        return {name: scorer.corpus_score(list(outputs), [list(references)]).score}

    return compute
