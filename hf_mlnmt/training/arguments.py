"""Makes from a recipe the trainer's arguments, the learning-rate schedule and the generation_config of Transformers.

Schedules have a warm-up and are factors of the peak rate: pure functions of the step, but for newbob.

| name | after warm-up | source |
| --- | --- | --- |
| cosine | half a cosine wave down to zero at the last step (one cycle) | thesis on joint attention |
| inverse_sqrt | sqrt(warmup / step) | Vaswani et al. 2017 |
| linear | straight down to zero at the last step | |
| newbob | constant; times `factor` when the dev loss has not improved `patience` times | thesis on monolingual data |
| constant | constant | |

`restarts` (Loshchilov and Hutter 2017) makes cosine and linear end in short cycles that begin at a smaller rate. The
mean of the weights at the cycles' ends is better than each of them (Izmailov et al. 2018, "Averaging Weights Leads to
Wider Optima and Better Generalization"): see docs/training.md.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import GenerationConfig, Seq2SeqTrainingArguments, TrainingArguments

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.keys import variable
from hf_mlnmt.common.matmul_backends import prefers_bfloat16
from hf_mlnmt.common.model_folder import token_ids
from hf_mlnmt.memory.matching import BEHIND
from hf_mlnmt.recipe.schema import LearningRate, Recipe, ScheduleName

_REFUSED = ("fsdp", "fsdp_config", "deepspeed", "parallelism_config", "torch_compile", "save_only_model", "push_to_hub")
_LAUNCHED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG")


def check_launcher() -> None:
    """Raises UserError where accelerate launch asks for FSDP, DeepSpeed etc., or for several processes on a CPU."""
    for name in _LAUNCHED:
        if variable(f"ACCELERATE_USE_{name}", bool):
            raise UserError(
                f"accelerate launch asks for {name}, which trainings do not have here: every process holds the whole "
                "model. Launch without it: --processes N, torchrun or accelerate launch --multi_gpu."
            )
    # On a CPU accelerate launch sets MASTER_ADDR, as for several processes, but starts only one, which has no rank.
    launched = variable("ACCELERATE_MIXED_PRECISION") and variable("MASTER_ADDR")
    if launched and not any(name.endswith(("WORLD_SIZE", "PMI_SIZE")) for name in os.environ):
        raise UserError(
            "accelerate launch asks for several processes and has started one, as it does on a CPU. Start them with "
            "--processes N, or with torchrun --nproc_per_node N."
        )


TRACKING = "TENSORBOARD_LOGGING_DIR"
OPTIMIZERS = {"adam": "adamw_torch_fused", "adamw": "adamw_torch_fused", "sgd": "sgd"}


class Arguments(Seq2SeqTrainingArguments):
    """Seq2SeqTrainingArguments whose CPU device is "cpu": with several processes it is "cpu:0", which torch.load
    refuses."""

    @property
    def device(self) -> torch.device:
        device = super().device
        return torch.device("cpu") if device.type == "cpu" else device


def higher_is_better(recipe: Recipe) -> bool:
    """Returns whether a larger value of evaluation.best is a better one."""
    told = recipe.evaluation.higher_is_better
    # `best` is METRIC for the first development set, NAME_METRIC for another
    metric = recipe.evaluation.best.rsplit("_", 1)[-1]
    return metric not in ("loss", "perplexity", "ter") if told is None else told


def computes_bfloat16(on_cpu: bool) -> bool:
    """Returns whether the CPU (`on_cpu`) has instructions for bfloat16 and is faster by them, or the GPU has some."""
    if not on_cpu:
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name)() for name in asked if hasattr(torch.cpu, name)) and prefers_bfloat16()


def precision(arguments: TrainingArguments) -> str:
    """Returns the number format of a training with these arguments: float32, bf16 or fp16."""
    return "bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "float32"


def training_arguments(recipe: Recipe, output: Path) -> Seq2SeqTrainingArguments:
    """Makes the Seq2SeqTrainingArguments of a recipe. UserError for unknown arguments, and what this machine lacks."""
    optimizer, dtype = recipe.optimizer, recipe.precision.dtype
    # Transformers refuses bf16 on a CPU unless use_cpu is set.
    on_cpu = recipe.arguments.get("use_cpu") is True or not torch.accelerator.is_available()
    settings: dict[str, Any] = {
        "output_dir": str(output / "checkpoints"),
        "gradient_accumulation_steps": recipe.batch.accumulate,
        "optim": OPTIMIZERS[optimizer.name],
        "learning_rate": optimizer.learning_rate,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "adam_epsilon": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.clip,
        "use_cpu": on_cpu,
        "bf16": dtype == "bf16" or (dtype == "auto" and computes_bfloat16(on_cpu)),
        "fp16": dtype == "fp16",
        "logging_steps": recipe.logging.every,
        "report_to": _trackers(recipe),
        "disable_tqdm": True,
        "eval_strategy": "steps",
        "eval_steps": recipe.evaluation.every,
        "save_strategy": "steps",
        "save_steps": recipe.evaluation.every,
        "save_total_limit": recipe.checkpoints.keep,
        "metric_for_best_model": recipe.evaluation.best,
        "greater_is_better": higher_is_better(recipe),
        "seed": recipe.seed,
        "use_cache": True,
        "remove_unused_columns": False,
    }
    budget = recipe.budget
    settings |= {"num_train_epochs": budget.epochs} if budget.steps is None else {"max_steps": budget.steps}
    known = {item.name: item.default for item in dataclasses.fields(Seq2SeqTrainingArguments) if item.init}
    if recipe.precision.gradient_checkpointing:
        # Transformers 5.20 renamed gradient_checkpointing to activation_checkpointing.
        settings["activation_checkpointing" if "activation_checkpointing" in known else "gradient_checkpointing"] = True
    for name, value in recipe.arguments.items():
        problem = None
        if name not in known:
            problem = f"Seq2SeqTrainingArguments has no such field{suggest(name, known)}"
        elif value and name in _REFUSED:
            problem = "trainings do not have it here; leave it out"
        elif isinstance(known[name], bool) and not isinstance(value, bool):
            problem = f"expected true or false, not {value!r}"
        if problem:
            raise UserError(f"{recipe.path}: arguments.{name}: {problem}.")
    try:
        arguments = Arguments(**{**settings, **recipe.arguments})
    except (ValueError, TypeError, ImportError) as error:
        raise UserError(f"{recipe.path}: precision or arguments: {error}") from error
    launched = variable("ACCELERATE_MIXED_PRECISION", ("no", "fp16", "bf16", "fp8"), "no")
    if launched not in ("no", computed := precision(arguments)):
        raise UserError(
            f"accelerate launch asks for {launched}, and {recipe.path} says {computed} (precision.dtype). Launch with "
            f"--mixed_precision no, and say what is meant with --set precision.dtype={launched}."
        )
    return arguments


def generation_config(recipe: Recipe, config: Any) -> GenerationConfig:
    """Makes a generation_config of token ids and the recipe's decoding; for a language model, of ids and the length."""
    decoding = recipe.decoding
    settings: dict[str, Any] = {"max_new_tokens": decoding.max_new_tokens}
    if config.is_encoder_decoder:
        settings["num_beams"] = decoding.beams
        if decoding.beams > 1:
            settings["length_penalty"] = decoding.length_penalty
        if decoding.length_normalization != "generate":
            settings["length_normalization"] = decoding.length_normalization
        settings |= {name: getattr(config, name) for name in ("alpha", "beta") if hasattr(config, "members")}
        settings |= {BEHIND: True} if recipe.data.memory else {}
    return GenerationConfig(**token_ids(config), **settings)


@contextmanager
def tracking_in(output: Path) -> Iterator[None]:
    """Sends TensorBoard's files to output/tracking while a block runs, unless TENSORBOARD_LOGGING_DIR is set."""
    if variable(TRACKING):
        yield
        return
    os.environ[TRACKING] = str(output / "tracking")
    try:
        yield
    finally:
        os.environ.pop(TRACKING, None)


def _trackers(recipe: Recipe) -> list[str] | str:
    from transformers.integrations import get_reporting_integration_callbacks

    if not recipe.logging.trackers:
        return "none"
    try:
        for tracker in get_reporting_integration_callbacks(recipe.logging.trackers):
            tracker()  # raises where the tracker's package is missing
    except (ValueError, RuntimeError, ImportError) as error:
        raise UserError(f"{recipe.path}: logging.trackers: {error}") from error
    return recipe.logging.trackers


@dataclass
class Schedule(LearningRate):
    """The factor of the peak learning rate at each step, by the keys of a recipe's `schedule`; steps count from 0.

    warmup: steps in which the factor rises to 1 (the first step has 1 / warmup, not 0). total: steps of the training.
    restarts: the last restarts * restart_steps steps are `restarts` cycles, each from `restart_factor` down to zero.
    scale, best, waited: newbob's factor, best dev loss and evaluations since it: its state in checkpoints.
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
        super().__post_init__()

    def __call__(self, step: int) -> float:
        """Returns the factor of the peak rate at optimizer step `step`."""
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
        """Lowers newbob's factor at the `patience`-th dev loss not better than the best by `threshold`; other schedules
        ignore the loss."""
        if self.name != "newbob":
            return
        if self.best is None or dev_loss < self.best * (1 - self.threshold):
            self.best, self.waited = dev_loss, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.scale, self.waited = max(self.floor, self.scale * self.factor), 0

    def scheduler(self, optimizer: Optimizer) -> LambdaLR:
        """Returns a LambdaLR that multiplies the peak rate by this schedule; its state_dict holds newbob's state."""
        return LambdaLR(optimizer, self)
