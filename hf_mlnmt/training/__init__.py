"""Training: trainer, objectives, batches, schedules; `run_recipe` trains, averages and scores as a recipe says."""

from hf_mlnmt.recipe.reading import Recipe, read_recipe
from hf_mlnmt.recipe.schema import Batches
from hf_mlnmt.training.arguments import Schedule, computes_bfloat16
from hf_mlnmt.training.batching import TokenBatchSampler, batch_statistics
from hf_mlnmt.training.checkpoints import average_checkpoints
from hf_mlnmt.training.dev import DevSet
from hf_mlnmt.training.objectives import Objective, Translation
from hf_mlnmt.training.pair import TwoFiles, train_pair
from hf_mlnmt.training.run import run_recipe
from hf_mlnmt.training.tasks import Task
from hf_mlnmt.training.trainer import NonFiniteLoss, TranslationTrainer

__all__ = [
    "Batches",
    "DevSet",
    "NonFiniteLoss",
    "Objective",
    "Recipe",
    "Schedule",
    "Task",
    "TokenBatchSampler",
    "Translation",
    "TranslationTrainer",
    "TwoFiles",
    "average_checkpoints",
    "batch_statistics",
    "computes_bfloat16",
    "read_recipe",
    "run_recipe",
    "train_pair",
]
