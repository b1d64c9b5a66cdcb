"""Learning-rate schedules with warm-up, as factors of the peak rate: pure functions of the step, but for the plateau.

| name | after warm-up | source |
| --- | --- | --- |
| cosine | half a cosine wave down to zero at the last step (one cycle) | thesis on joint attention |
| inverse_sqrt | sqrt(warmup / step) | Vaswani et al. 2017 |
| linear | straight down to zero at the last step | |
| newbob | constant; times `factor` when the dev loss has not improved `patience` times | thesis on monolingual data |
| constant | constant | |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hf_mlnmt.errors import UserError, suggest

ScheduleName = Literal["cosine", "inverse_sqrt", "linear", "newbob", "constant"]


@dataclass
class Schedule:
    """The factor of the peak learning rate at each step; steps count from 0.

    Args:
        name: one of the table above.
        warmup: steps in which the factor rises in a straight line to 1 (the first step has 1 / warmup, not 0).
        total: steps of the whole training (cosine and linear end there).
        floor: the factor never falls below this after the warm-up.
        factor, patience, threshold: newbob: a dev loss counts as improved when it is below best * (1 - threshold).
    """

    name: ScheduleName
    warmup: int = 0
    total: int = 0
    floor: float = 0.0
    factor: float = 0.8
    patience: int = 2
    threshold: float = 0.0
    # What newbob has seen so far; saved with the scheduler's state in every checkpoint.
    scale: float = 1.0
    best: float | None = None
    waited: int = 0

    def __post_init__(self) -> None:
        if self.name not in get_args(ScheduleName):
            known = get_args(ScheduleName)
            raise UserError(f"schedule '{self.name}' is unknown{suggest(self.name, known)}; known: {', '.join(known)}.")

    def __call__(self, step: int) -> float:
        """The factor at optimizer step `step`."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        return max(self.floor, self._after_warmup(step))

    def _after_warmup(self, step: int) -> float:
        left = max(0.0, (self.total - step) / max(1, self.total - self.warmup))
        match self.name:
            case "cosine":
                return 0.5 * (1 - math.cos(math.pi * left))
            case "linear":
                return left
            case "inverse_sqrt":
                return math.sqrt(max(1, self.warmup) / max(1, step + 1))
            case _:
                return self.scale

    def observe(self, dev_loss: float) -> None:
        """Tell the plateau schedule a dev loss; the others do not mind."""
        if self.name != "newbob":
            return
        if self.best is None or dev_loss < self.best * (1 - self.threshold):
            self.best, self.waited = dev_loss, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.scale, self.waited = max(self.floor, self.scale * self.factor), 0

    def scheduler(self, optimizer: Optimizer) -> LambdaLR:
        """A torch scheduler of this schedule; its state holds what newbob has seen."""
        return LambdaLR(optimizer, self)
