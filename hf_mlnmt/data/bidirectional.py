"""Bidirectional training: for its first epochs the model translates either way, then only the way it is made for.

Reference: Ding, Wu and Tao 2021, "Improving Neural Machine Translation by Bidirectional Training", EMNLP.

Departs: the paper adds the reversed corpus to its own for the first third of the steps. Here of each pair an early
epoch shows one direction, the next epoch the other, so an epoch is as long as ever; how many epochs is the recipe's
choice, and one learning-rate schedule spans them all.
"""

from __future__ import annotations

import numpy as np

from hf_mlnmt.data.corpora import Corpora
from hf_mlnmt.data.training_set import TrainingSet


class BothDirections(TrainingSet):
    """The pairs of `corpora`, then the same pairs turned round, with what training asks of a data set.

    Item i + distinct is item i with source and target exchanged. `choose` (epoch -> indices) turns half of an epoch's
    pairs round, by fair draws, as long as epoch < `epochs`, and the others in the epoch after; later epochs are those
    of `corpora`.

    Args:
        corpora: encoded with one vocabulary for both sides; its pairs end with </s> on both.
        epochs: how many epochs show both directions.
        seed: of the choice.
    """

    def __init__(self, corpora: Corpora, epochs: int, seed: int = 1) -> None:
        self.corpora, self.epochs, self.seed = corpora, epochs, seed
        self.parts = corpora.parts
        self.source_lengths = np.concatenate([corpora.source_lengths, corpora.target_lengths])
        self.target_lengths = np.concatenate([corpora.target_lengths, corpora.source_lengths])

    def __len__(self) -> int:
        return 2 * self.distinct

    @property
    def distinct(self) -> int:
        """The number of pairs, each of which is there in both directions."""
        return len(self.corpora)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if index < self.distinct:
            return self.corpora[index]
        pair = self.corpora[index - self.distinct]
        return {"input_ids": pair["labels"], "labels": pair["input_ids"]}

    def choose(self, epoch: int) -> np.ndarray:
        """Indices that make up an epoch: int64, as many as `corpora` has in it."""
        drawn = self.corpora.choose(epoch)
        chosen = np.arange(self.distinct) if drawn is None else drawn
        if epoch >= self.epochs:
            return chosen
        turned = np.random.default_rng([self.seed, epoch // 2, 2]).random(self.distinct) < 0.5
        return chosen + self.distinct * (turned[chosen] ^ (epoch % 2 == 1))

    def describe(self) -> str:
        """The pairs, and how long they are turned round."""
        return f"{self.corpora.describe()}, the first {self.epochs} epoch(s) in both directions"
