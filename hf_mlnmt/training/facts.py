"""The facts of a training that its results files record: data, cost, speed, recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_mlnmt.recipe.schema import Recipe
from hf_mlnmt.training.arguments import precision
from hf_mlnmt.training.tasks import lasting_parameters

if TYPE_CHECKING:
    from hf_mlnmt.training.trainer import TranslationTrainer


def facts_of(
    recipe: Recipe, state: dict[str, Any], trainer: TranslationTrainer, train: list[dict[str, Any]], command: str
) -> dict[str, Any]:
    """The fields of `Results` that say how a model was trained, and further ones for the file.

    Args:
        state: of the last checkpoint, see finishing.read_state.
        train: what was read of each training corpus, see Preparation.reports.
    """
    meter, steps, content = state["meter"], state["global_step"], recipe.to_dict()
    seconds = max(meter["seconds"], 1e-9)
    return {
        "data": {"name": recipe.data.name, "licence": recipe.data.licence, "train": train},
        "seed": recipe.seed,
        "budget": {
            "steps": steps,
            "epochs": round(state["epoch"], 3),
            "seconds": round(meter["seconds"], 1),
            # The meter is the main process's; the others do as much.
            "cpu_minutes": round(meter["cpu_seconds"] * trainer.args.world_size / 60, 2),
            "target_tokens": meter["tokens"],
            "processes": trainer.args.world_size,
            "device": str(trainer.args.device),
            "precision": precision(trainer.args),
        },
        "command": command,
        "parameters": lasting_parameters(trainer.model),
        "steps_per_second": round(steps / seconds, 3),
        "target_tokens_per_second": round(meter["tokens"] / seconds, 1),
        "decoding": content["decoding"],
        "languages": content["languages"],
        "dev": [entry for entry in state["log_history"] if "eval_loss" in entry],
        "recipe": content,
    }
