"""Development sets: loss, translations and metrics during training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from transformers import PreTrainedModel

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.training.objectives import SHOWN, Objective, Translation, evaluating

# (outputs, references, sources) -> {name of a score: value}
Metric = Callable[[Sequence[str], Sequence[str], Sequence[str] | None], dict[str, float]]


class Alone:
    """Stands in for the Accelerator where one process measures losses on the CPU, after the other processes ended."""

    process_index, num_processes, device = 0, 1, torch.device("cpu")
    autocast = staticmethod(nullcontext)

    def reduce(self, totals: torch.Tensor, how: str) -> torch.Tensor:
        """Returns the totals as they are."""
        return totals


@dataclass
class DevSet:
    """A development set, with the metrics and decoding options that `evaluate` measures a model by.

    Args:
        dataset: examples as in training, with source_lengths.
        references, sources: raw text, one per sentence; sources for metrics that read them.
        decode: token ids of many sentences -> texts. metrics: see `metric`; none: only the loss, no translation.
        batch_tokens: source tokens per batch, padding included.
        max_length: no output is longer than this, nor than twice the source plus 10.
        objective: whose loss is measured; None: translation, without smoothing. Its `items` must be one number.
        languages: {"source": "en", "target": "de"}, of a model of several; told: arguments of generate() that say them.
    """

    dataset: Any
    references: Sequence[str] = ()
    decode: Callable[[list[list[int]]], list[str]] | None = None
    metrics: Sequence[Metric] = ()
    sources: Sequence[str] | None = None
    num_beams: int = 1
    batch_tokens: int = 4096
    max_length: int = 200
    objective: Objective | None = None
    name: str = "dev"
    languages: Mapping[str, str] | None = None
    told: Mapping[str, Any] = field(default_factory=dict)
    translations: list[str] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.metrics and len(self.references) != len(self.dataset):
            raise UserError(f"{len(self.references)} references for {len(self.dataset)} development sentences.")

    def evaluate(self, model: PreTrainedModel, accelerator: Any, **generation: Any) -> dict[str, float]:
        """Returns loss per item (of translation: target token), perplexity and metrics, the same in all processes."""
        asked: Any = model
        if self.languages and hasattr(model, "between"):
            asked = asked.between(self.languages["source"], self.languages["target"])
        with evaluating(model):
            loss = self._loss(asked, accelerator, self.objective or Translation(model.config.pad_token_id))
            outputs = self._translate(asked, accelerator, generation) if self.metrics else []
        scores = {"loss": loss, "perplexity": float(np.exp(min(loss, 700.0)))}
        if self.metrics and self.decode:
            self.translations = self.decode(outputs)
            for metric in self.metrics:
                scores.update(metric(self.translations, self.references, self.sources))
        return scores

    def _batches(
        self, collate: Callable[..., dict[str, torch.Tensor]], accelerator: Any
    ) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
        """Yields this process's share of the sentences in batches of similar lengths, with their indices."""
        lengths = np.asarray(self.dataset.source_lengths)
        order = np.argsort(-lengths, kind="stable")[accelerator.process_index :: accelerator.num_processes]
        while len(order):
            size = max(1, self.batch_tokens // int(lengths[order[0]]))
            indices, order = order[:size].tolist(), order[size:]
            batch = collate([{**self.dataset[i], SHOWN: np.array([0, i])} for i in indices])
            yield indices, {name: tensor.to(accelerator.device) for name, tensor in batch.items()}

    def _loss(self, model: PreTrainedModel, accelerator: Any, objective: Objective) -> float:
        """Measures the loss per item over all sentences, without auxiliary losses where it is of translation."""
        totals = torch.zeros(2, dtype=torch.float64, device=accelerator.device)
        for _, batch in self._batches(objective.collate, accelerator):
            with accelerator.autocast():
                loss, parts = objective.loss(model, batch, num_items_in_batch=1)
            totals[0] += (parts.get("translation", loss) if self.objective is None else loss).double()
            totals[1] += objective.items(batch)
        loss, items = accelerator.reduce(totals, "sum").tolist()
        return loss / max(1.0, items)

    def _translate(self, model: PreTrainedModel, accelerator: Any, generation: dict[str, Any]) -> list[list[int]]:
        """Generates token ids of every sentence, in order, with a copy of the config: generate() must not change it."""
        generate: Any = model.generate
        config = copy.deepcopy(model.generation_config)
        config.update(**{"num_beams": self.num_beams, "max_length": None, "use_cache": True, **self.told, **generation})
        mine: list[tuple[int, list[int]]] = []
        collate = Translation(model.config.pad_token_id).collate
        for indices, batch in self._batches(collate, accelerator):
            config.max_new_tokens = min(self.max_length, 2 * batch["input_ids"].shape[1] + 10)
            source, mask = batch["input_ids"], batch["attention_mask"]
            outputs = generate(source, attention_mask=mask, generation_config=config)
            mine.extend(zip(indices, outputs.tolist()))
        everything = gather_object(mine) if accelerator.num_processes > 1 else mine
        return [tokens for _, tokens in sorted(everything)]


def metric(name: str, lowercase: bool = False, language: str | None = None) -> Metric:
    """Returns a metric by name: bleu, chrf, ter (sacreBLEU's, detokenised) or any other of the `evaluate` library.

    lowercase: compare without case, for a model of lower-cased text. language: of the target.
    """
    from hf_mlnmt.evaluation.scores import METRICS, sacrebleu_metric

    own = {known.lower(): known for known in METRICS}
    if name not in own:
        from hf_mlnmt.evaluation import load_metric

        return load_metric(name)
    # TER is case-insensitive by default.
    scorer = sacrebleu_metric(own[name], language, **({"lowercase": True} if lowercase and name != "ter" else {}))

    def compute(outputs: Sequence[str], references: Sequence[str], sources: Any = None) -> dict[str, float]:
        return {name: scorer.corpus_score(list(outputs), [list(references)]).score}

    return compute
