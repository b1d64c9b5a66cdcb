"""Watches the loss: one that is not a number ends the training before it spoils the weights, and names the batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_mlnmt.errors import UserError

if TYPE_CHECKING:
    from hf_mlnmt.training.trainer import TranslationTrainer


class NonFiniteLoss(UserError):
    """The loss, or a weight, became nan or infinite."""


class FiniteGuard:
    """Checks each loss at once on a CPU, where reading it costs nothing; elsewhere at each log, evaluation and save."""

    def __init__(self, trainer: TranslationTrainer) -> None:
        self.trainer = trainer
        self._seen: list[tuple[int, int, Tensor]] = []  # completed steps, batch within the step, loss
        self._last = (-1, 0)

    def watch(self, loss: Tensor) -> None:
        """Note the loss of a batch; raises NonFiniteLoss on a CPU when it is not finite."""
        step = self.trainer.state.global_step
        batch = self._last[1] + 1 if self._last[0] == step else 0
        self._last = step, batch
        if loss.device.type != "cpu":
            self._seen.append((step, batch, loss))
        elif not math.isfinite(loss.item()):
            self._stop(step, batch, f"the loss is {loss.item()}", weights_are_good=self._weights_are_finite())

    def check(self) -> None:
        """Raise NonFiniteLoss if a loss noted since the last check is not finite."""
        if not self._seen:
            return
        finite = torch.isfinite(torch.stack([loss for _, _, loss in self._seen])).tolist()
        seen, self._seen = self._seen, []
        for good, (step, batch, loss) in zip(finite, seen):
            if not good:
                self._stop(step, batch, f"the loss is {loss.item()}", weights_are_good=False)

    def check_weights(self) -> None:
        """Raise NonFiniteLoss if a weight is not finite: such a state must not be saved as a good one."""
        if not self._weights_are_finite():
            self._stop(max(0, self._last[0]), self._last[1], "the weights are not finite after it", False)

    def _weights_are_finite(self) -> bool:
        sums = torch.stack([parameter.detach().sum().float() for parameter in self.trainer.model.parameters()])
        return bool(torch.isfinite(sums).all())

    def _stop(self, step: int, batch: int, what: str, weights_are_good: bool) -> None:
        trainer = self.trainer
        args, kept = trainer.args, "the last checkpoint is good and is kept"
        if weights_are_good and args.world_size == 1 and step and args.save_strategy != "no":
            self._last = (-1, 0)
            trainer._save_checkpoint(trainer.model, None)
            kept = f"the good state before it is kept in checkpoint-{step}"
        group, data = trainer.sampler().members(step), trainer.train_dataset
        sentences = group[batch * args.world_size + args.process_index]
        sentences = [index % getattr(data, "pairs", len(data)) for index in sentences]  # also of pairs turned round
        raise NonFiniteLoss(
            f"step {step + 1}, batch {batch + 1} of {args.gradient_accumulation_steps}: {what}. Sentences of the batch "
            f"(positions in the training set, from 0): {sentences}. Training stopped; {kept}. Look at these sentences; "
            "if nothing is wrong with them, lower the learning rate, lengthen the warm-up or lower the gradient limit."
        )
