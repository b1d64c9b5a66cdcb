"""Going on from a checkpoint: whether the recipe and the processes of now allow it, and whether it is the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hf_mlnmt.errors import UserError
from hf_mlnmt.recipe.schema import Recipe, saved_steps
from hf_mlnmt.training import checkpoints
from hf_mlnmt.training.callbacks import EarlyStopping
from hf_mlnmt.training.finishing import read_state

if TYPE_CHECKING:
    from hf_mlnmt.training.trainer import TranslationTrainer


def is_done(checkpoint: Path, trainer: TranslationTrainer, early: EarlyStopping | None) -> bool:
    """Whether a training that has come to this checkpoint is at its end."""
    state = read_state(checkpoint)
    stopped = early is not None and early.should_stop(state["log_history"])
    return stopped or state["global_step"] >= trainer.steps()[0]


def check(checkpoint: Path, trainer: TranslationTrainer, recipe: Recipe, early: EarlyStopping | None) -> None:
    """Refuse to go on from a checkpoint that this training could not have made, or could not end with.

    Raises: UserError for another number of processes, a budget that is spent, or too few checkpoints to average.
    """
    before = read_state(checkpoint)["meter"].get("processes", 1)
    if before != trainer.args.world_size:
        raise UserError(
            f"{checkpoint}: made by {before} process(es), now there are {trainer.args.world_size}. Steps would "
            f"mean other batches: start with {before} again, or choose another --output."
        )
    done, steps = checkpoints.step_of(checkpoint), trainer.steps()[0]
    if done > steps:
        raise UserError(
            f"{checkpoint}: {done:,} steps are done, and the budget is now {steps:,}: a training cannot be shortened. "
            "Raise the budget, or choose another --output."
        )
    if is_done(checkpoint, trainer, early):
        kept, wanted = kept_steps(checkpoint.parent, trainer, recipe), recipe.checkpoints.average
        if len(kept) < min(wanted, len([step for step in saved_steps(recipe, steps) if step <= done])):
            raise UserError(
                f"{checkpoint.parent}: checkpoints.average is {wanted}, but this run has kept {len(kept)}: "
                f"{', '.join(map(str, kept))}. Lower it; checkpoints.keep says beforehand how many are kept."
            )


def kept_steps(saved: Path, trainer: TranslationTrainer, recipe: Recipe) -> list[int]:
    """Steps of the checkpoints in `saved` that count for the average."""
    trainer.state.max_steps, trainer.state.save_steps = trainer.steps()[0], recipe.evaluation.every
    return trainer.scheduled([checkpoints.step_of(path) for path in checkpoints.checkpoints(saved)])
