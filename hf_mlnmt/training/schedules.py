"""Learning-rate schedules with warm-up, as factors of the peak rate: pure functions of the step, but for the plateau.

| name | after warm-up | source |
| --- | --- | --- |
| cosine | half a cosine wave down to zero at the last step (one cycle) | thesis on joint attention |
| inverse_sqrt | sqrt(warmup / step) | Vaswani et al. 2017 |
| linear | straight down to zero at the last step | |
| newbob | constant; times `factor` when the dev loss has not improved `patience` times | thesis on monolingual data |
| constant | constant | |

`restarts` (Loshchilov and Hutter 2017) lets cosine and linear end in short cycles of a smaller rate. The mean of the
weights at the cycles' ends is better than each of them (Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima
and Better Generalization"): see docs/training.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, get_args

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.recipe.schema import LearningRate, ScheduleName


@dataclass
class Schedule(LearningRate):
    """The factor of the peak learning rate at each step, by the keys of a recipe's `schedule`; steps count from 0.

    Args:
        warmup: steps in which the factor rises in a straight line to 1 (the first step has 1 / warmup, not 0).
        total: steps of the whole training (cosine and linear end there).
        restarts: cosine and linear: the last restarts * restart_steps steps are so many cycles from `restart_factor`
            to zero; the cycle before them ends where they begin.
        scale, best, waited: what newbob has seen so far: all that a training takes back from a checkpoint.
    """

    warmup: int = 0
    total: int = 0
    scale: float = 1.0
    best: float | None = None
    waited: int = 0

    def __post_init__(self) -> None:
        if self.name not in get_args(ScheduleName):
            known = get_args(ScheduleName)
            raise UserError(f"schedule '{self.name}' is unknown{suggest(self.name, known)}; known: {', '.join(known)}.")
        self.check_restarts()

    def __call__(self, step: int) -> float:
        """Returns the factor at optimizer step `step`."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        return max(self.floor, self._after_warmup(step))

    def _after_warmup(self, step: int) -> float:
        begin, end, peak = self._cycle(step)
        left = max(0.0, (end - step) / max(1, end - begin))
        match self.name:
            case "cosine":
                return peak * 0.5 * (1 - math.cos(math.pi * left))
            case "linear":
                return peak * left
            case "inverse_sqrt":
                return math.sqrt(max(1, self.warmup) / max(1, step + 1))
            case _:
                return self.scale

    def _cycle(self, step: int) -> tuple[int, int, float]:
        """Returns the cycle of a step: its first step, the step after its last, and the factor it begins with."""
        first = self.total - self.restarts * self.restart_steps
        if not self.restarts or step < first:
            return self.warmup, first, 1.0
        number = min((step - first) // self.restart_steps, self.restarts - 1)
        begin = first + number * self.restart_steps
        return begin, begin + self.restart_steps, self.restart_factor

    def observe(self, dev_loss: float) -> None:
        """Tells the schedule a dev loss: newbob waits for better ones, the others make no use of it."""
        if self.name != "newbob":
            return
        if self.best is None or dev_loss < self.best * (1 - self.threshold):
            self.best, self.waited = dev_loss, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.scale, self.waited = max(self.floor, self.scale * self.factor), 0

    def scheduler(self, optimizer: Optimizer) -> LambdaLR:
        """Returns a torch scheduler of this schedule; its state holds what newbob has seen."""
        return _Scheduler(optimizer, self)


class _Scheduler(LambdaLR):
    """Takes from a saved state the step and what newbob has seen, but no setting: a run may have other cycles now."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        seen = [{name: schedule[name] for name in ("scale", "best", "waited")} for schedule in state_dict["lr_lambdas"]]
        super().load_state_dict({**state_dict, "lr_lambdas": seen})
        for group, peak, schedule in zip(self.optimizer.param_groups, self.base_lrs, self.lr_lambdas, strict=True):
            group["lr"] = peak * schedule(self.last_epoch)
