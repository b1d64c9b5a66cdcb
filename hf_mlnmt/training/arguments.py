"""Arguments of Transformers from a recipe: the trainer's, the schedule, the generation_config.

`precision.compile: true` works on the layers (`trainer.compiled_layers`) where there is a compiler; `auto` does not: it
costs more time than it saves on a CPU (docs/training.md), and on an accelerator nothing was measured.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, Seq2SeqTrainingArguments, TrainingArguments

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.keys import variable
from hf_mlnmt.common.model_folder import token_ids
from hf_mlnmt.recipe.schema import Recipe


def is_compiled(recipe: Recipe, on_cpu: bool) -> bool:
    """Returns whether this recipe's training compiles layers on this machine."""
    return recipe.precision.compile is True and not lacks_compiler(on_cpu)


def lacks_compiler(on_cpu: bool) -> bool:
    """Returns whether torch.compile, which writes C++ for a CPU, finds no $CXX, g++ or clang++."""
    return on_cpu and not any(map(shutil.which, [*variable("CXX", list, [])[:1], "g++", "clang++"]))


def remark(recipe: Recipe, on_cpu: bool) -> str | None:
    """Returns a line for the user of a training that is not compiled though that was asked for, or None."""
    if recipe.precision.compile is True and lacks_compiler(on_cpu):
        return "precision.compile: no C++ compiler here (g++, clang++ or $CXX), so torch.compile stays off"
    return None


_SHARDING = ("fsdp", "fsdp_config", "deepspeed", "parallelism_config")
_SHARDED = {"DEEPSPEED": "DeepSpeed", "MEGATRON_LM": "Megatron-LM", "PARALLELISM_CONFIG": "parallelism"}
# What accelerate launch says of FSDP, and what is said in its place: Trainer's own way saves files of its own kind.
_FSDP, _DIVIDED = "ACCELERATE_USE_FSDP", "HF_MLNMT_SHARDED"


def is_sharded() -> bool:
    """Returns whether the launcher has asked for FSDP2."""
    return variable(_DIVIDED, bool, False)


def check_launcher() -> None:
    """Takes over FSDP2 and refuses what else a launcher asks for and a training does not do. Raises: UserError."""
    if variable(_FSDP, bool):
        if variable("FSDP_VERSION", int) != 2 or variable("FSDP_OFFLOAD_PARAMS", bool):
            raise UserError(
                "accelerate launch asks for FSDP 1, or for weights offloaded to the CPU: in its configuration say "
                "fsdp_version: 2 and fsdp_offload_params: false."
            )
        os.environ |= {_FSDP: "false", _DIVIDED: "true"}
    for name, what in _SHARDED.items():
        if variable(f"ACCELERATE_USE_{name}", bool):
            raise UserError(
                f"accelerate launch asks for {what}, which trainings do not have here. Launch without it: --processes "
                "N, torchrun, accelerate launch --multi_gpu, or with FSDP2 for a model that does not fit one card."
            )
    # accelerate says where several processes meet, but starts one on a CPU, which has no rank.
    launched = variable("ACCELERATE_MIXED_PRECISION") and variable("MASTER_ADDR")
    if launched and not any(name.endswith(("WORLD_SIZE", "PMI_SIZE")) for name in os.environ):
        raise UserError(
            "accelerate launch asks for several processes and has started one, as it does on a CPU. Start them with "
            "--processes N, or with torchrun --nproc_per_node N."
        )


TRACKING = "TENSORBOARD_LOGGING_DIR"
OPTIMIZERS = {"adam": "adamw_torch_fused", "adamw": "adamw_torch_fused", "sgd": "sgd"}


class Arguments(Seq2SeqTrainingArguments):
    """Transformers' arguments, on a device that torch.load knows: theirs is "cpu:0" of several processes on a CPU."""

    @property
    def device(self) -> torch.device:
        device = super().device
        return torch.device("cpu") if device.type == "cpu" else device


def higher_is_better(recipe: Recipe) -> bool:
    """Returns whether a larger value of evaluation.best is a better one."""
    told = recipe.evaluation.higher_is_better
    metric = recipe.evaluation.best.rsplit("_", 1)[-1]  # before it, the name of a development set
    return metric not in ("loss", "perplexity", "ter") if told is None else told


def computes_bfloat16(on_cpu: bool) -> bool:
    """Returns whether the CPU, or else the accelerator, has instructions for bfloat16; others are slow at it."""
    if not on_cpu:
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name)() for name in asked if hasattr(torch.cpu, name))


def precision(arguments: TrainingArguments) -> str:
    """Returns what a training with these arguments computes in: float32, bf16 or fp16."""
    return "bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "float32"


def training_arguments(recipe: Recipe, output: Path) -> Seq2SeqTrainingArguments:
    """Makes the Seq2SeqTrainingArguments of a recipe. UserError for what is unknown, or this machine cannot do."""
    optimizer, dtype = recipe.optimizer, recipe.precision.dtype
    # Without use_cpu bf16 is refused on a CPU.
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
        # renamed in Transformers 5.20
        settings["activation_checkpointing" if "activation_checkpointing" in known else "gradient_checkpointing"] = True
    for name, value in recipe.arguments.items():
        problem = None
        if name not in known:
            problem = f"Seq2SeqTrainingArguments has no such field{suggest(name, known)}"
        elif value and name in _SHARDING:
            problem = "for FSDP2 use accelerate launch with a configuration (docs/scale.md); leave it out"
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
    """Makes a generation_config of token ids and the recipe's decoding, for a language model of the length alone."""
    decoding = recipe.decoding
    settings: dict[str, Any] = {"max_new_tokens": decoding.max_new_tokens}
    if config.is_encoder_decoder:
        settings["num_beams"] = decoding.beams
        if decoding.beams > 1:
            settings["length_penalty"] = decoding.length_penalty
        if decoding.length_normalization != "generate":
            settings["length_normalization"] = decoding.length_normalization
        settings |= {name: getattr(config, name) for name in ("alpha", "beta") if hasattr(config, "members")}
    return GenerationConfig(**token_ids(config), **settings)


@contextmanager
def tracking_in(output: Path) -> Iterator[None]:
    """Sends TensorBoard's files to output/tracking while a block runs, unless the environment says where."""
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
            tracker()  # which looks for its package
    except (ValueError, RuntimeError, ImportError) as error:
        raise UserError(f"{recipe.path}: logging.trackers: {error}") from error
    return recipe.logging.trackers
