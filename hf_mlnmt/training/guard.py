"""Watches the loss: one that is not a number ends the training before it spoils the weights, and names the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from hf_mlnmt.errors import UserError


class NonFiniteLoss(UserError):
    """The loss, or a weight, became nan or infinite."""


class FiniteGuard:
    """Checks each loss at once on a CPU, where reading it costs nothing; elsewhere at each log, evaluation and save.

    Args:
        weights: gives the model's parameters.
        show: (step, batch within the step) -> which batch that was, and its sentences, in words.
        save: writes a checkpoint of `step` completed steps and returns its name; None where that cannot be.
    """

    def __init__(
        self,
        weights: Callable[[], Iterable[Tensor]],
        show: Callable[[int, int], tuple[str, str]],
        save: Callable[[int], str | None],
    ) -> None:
        self.weights, self.show, self.save = weights, show, save
        self._seen: list[tuple[int, int, Tensor]] = []  # completed steps, batch within the step, loss
        self._last = (-1, 0)

    def watch(self, step: int, loss: Tensor) -> None:
        """Note the loss of the next batch after `step` completed steps; raises NonFiniteLoss on a CPU if not finite."""
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
        sums = torch.stack([parameter.detach().sum().float() for parameter in self.weights()])
        return bool(torch.isfinite(sums).all())

    def _stop(self, step: int, batch: int, what: str, weights_are_good: bool) -> None:
        kept = "the last checkpoint is good and is kept"
        if weights_are_good and step:
            self._last = (-1, 0)
            if checkpoint := self.save(step):
                kept = f"the good state before it is kept in {checkpoint}"
        place, sentences = self.show(step, batch)
        raise NonFiniteLoss(
            f"{place}: {what}. Sentences of the batch {sentences}. Training stopped; {kept}. Look at these sentences; "
            "if nothing is wrong with them, lower the learning rate, lengthen the warm-up or lower the gradient limit."
        )
