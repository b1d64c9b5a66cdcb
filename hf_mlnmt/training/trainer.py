"""`TranslationTrainer`: Transformers' Seq2SeqTrainer with objectives, token-budget batches and whole checkpoints."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Seq2SeqTrainer, Seq2SeqTrainingArguments, set_seed
from transformers.trainer_callback import ExportableState

from hf_mlnmt.errors import UserError
from hf_mlnmt.memory import keep_memory
from hf_mlnmt.training import checkpoints, dev
from hf_mlnmt.training.batching import Side, TokenBatchSampler
from hf_mlnmt.training.callbacks import SaveEndsOfCycles
from hf_mlnmt.training.guard import FiniteGuard
from hf_mlnmt.training.meter import Meter
from hf_mlnmt.training.objectives import Batch, Objective
from hf_mlnmt.training.schedules import Schedule

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batches:
    """How sentences are put into batches; see `TokenBatchSampler`."""

    tokens: int = 1024
    side: Side = "target"
    max_sentences: int | None = None
    choose: Callable[[int], np.ndarray] | None = field(default=None, repr=False)


class EpochLoader(DataLoader):
    """A DataLoader whose batch sampler, already split over the processes, hears which epoch begins."""

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer at the start of each epoch."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


class TranslationTrainer(Seq2SeqTrainer):
    """Trains by an `Objective` on batches of a token budget.

    Differs from Seq2SeqTrainer in this: the loss is the objective's, a sum over target tokens divided by the target
    tokens of the whole optimizer step (accumulated batches and all processes); batches hold a number of tokens, not of
    sentences; `evaluate` translates and scores a `DevSet` without touching the model's generation_config, and
    config.use_cache stays as it was; checkpoints are written aside, checked by checksums, and kept by step (the last
    `save_total_limit` scheduled ones, the best one and the newest); a loss that is not a number stops the training.

    Args:
        model, args, train_dataset: as in Trainer. `train_dataset` also has int arrays source_lengths, target_lengths;
            where it shows a pair more than once, items i and i + `pairs` are the same one.
        objective: what to minimise.
        batches: the token budget.
        schedule: learning-rate schedule; None takes args.lr_scheduler_type.
        dev_set: what `evaluate` translates and scores; None leaves evaluation to Seq2SeqTrainer.
        save_extras: called with the folder of each saved model (to put tokenizers beside it).
    """

    model: PreTrainedModel
    objective: Objective
    dev_set: dev.DevSet | None
    train_dataset: Any
    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        model: PreTrainedModel,
        args: Seq2SeqTrainingArguments,
        train_dataset: Any,
        objective: Objective,
        batches: Batches = Batches(),
        schedule: Schedule | None = None,
        dev_set: dev.DevSet | None = None,
        save_extras: Callable[[Path], None] | None = None,
        **kwargs: Any,
    ) -> None:
        if args.label_smoothing_factor:
            raise UserError(
                f"label_smoothing_factor={args.label_smoothing_factor}: Trainer's own label smoothing takes the labels "
                "away from the model and computes the loss from its logits, so that losses computed in forward "
                "(auxiliary decoders, penalties) vanish without a word. Leave it 0 and give the objective its "
                f"label_smoothing instead: Translation(..., label_smoothing={args.label_smoothing_factor})."
            )
        if args.n_gpu > 1:
            # Trainer would cut every batch over the GPUs with DataParallel; several processes are faster and exact.
            logger.warning("using 1 of %d GPUs; to use all: accelerate launch -m hf_mlnmt train ...", args.n_gpu)
            args._n_gpu = 1
        use_cache = getattr(model.config, "use_cache", None)
        if args.eval_strategy != "no" and dev_set is not None:
            kwargs.setdefault("eval_dataset", dev_set.dataset)
        super().__init__(model=model, args=args, train_dataset=train_dataset, data_collator=objective.collate, **kwargs)
        if use_cache is not None:
            self.model.config.use_cache = use_cache
        self.objective, self.batches, self.schedule, self.dev_set = objective, batches, schedule, dev_set
        self.save_extras = save_extras
        if schedule is not None and schedule.restarts:
            self.add_callback(SaveEndsOfCycles(schedule))
        # The objective divides by the target tokens of the whole step, whatever the model's forward accepts.
        self.model_accepts_loss_kwargs = True
        self.loss_is_scaled_for_ga = True
        self.meter = Meter()
        self.guard = FiniteGuard(self)
        self._parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self._parts: dict[str, Tensor] = {}

    # Data

    def sampler(self) -> TokenBatchSampler:
        """The batches of this process."""
        data, batches = self.train_dataset, self.batches
        return TokenBatchSampler(
            data.source_lengths,
            data.target_lengths,
            batches.tokens,
            batches.side,
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
            world_size=self.args.world_size,
            rank=self.args.process_index,
            accumulation=self.args.gradient_accumulation_steps,
            max_sentences=batches.max_sentences,
            choose=batches.choose,
        )

    def get_train_dataloader(self) -> DataLoader:
        """Not prepared by Accelerate: the sampler already gives each process its own batches."""
        workers = self.args.dataloader_num_workers
        return EpochLoader(
            self.train_dataset,
            batch_sampler=self.sampler(),
            collate_fn=self.data_collator,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type == "cuda",
        )

    def steps(self) -> tuple[int, int]:
        """Steps of the whole training, and of an epoch."""
        epoch = len(self.sampler()) // self.args.gradient_accumulation_steps
        return self.args.max_steps if self.args.max_steps > 0 else math.ceil(self.args.num_train_epochs * epoch), epoch

    # Loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The objective's loss. Gradients are averaged over processes, so each one's part is multiplied back."""
        if return_outputs:
            return super().compute_loss(model, inputs, True, num_items_in_batch)
        loss, parts = self.objective.loss(model, inputs, num_items_in_batch)
        for name, value in parts.items():
            self._parts[name] = self._parts.get(name, 0) + value.detach()
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes
        return loss

    def training_step(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward; the loss is watched."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.guard.watch(loss)
        return loss

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Counts the target tokens on the way."""
        samples, items = super().get_batch_samples(*args, **kwargs)
        if items is not None:
            self.meter.add(items)
        return samples, items

    def floating_point_ops(self, inputs: Batch) -> int:
        """6 x parameters x source tokens; the stock one counts the parameters anew at every step."""
        return 6 * self._parameters * inputs["input_ids"].numel()

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The recipe's schedule instead of lr_scheduler_type."""
        if self.schedule is None:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            self.schedule.total = self.schedule.total or num_training_steps
            self.lr_scheduler = self.schedule.scheduler(optimizer or self.optimizer)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # Training

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As Trainer's; each process draws its own dropout; a checkpoint of another model is refused."""
        set_seed(self.args.seed + self.args.process_index)
        if self.args.device.type == "cpu":
            keep_memory()
        if isinstance(resume_from_checkpoint, str | Path):
            checkpoints.check_same_model(Path(resume_from_checkpoint), self.model.config)
            self.meter.load(Path(resume_from_checkpoint), checkpoints.step_of(resume_from_checkpoint))
        with self.meter:
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds speed and the named parts of the loss."""
        if "loss" in logs:
            self.guard.check()
            steps, speed = self.meter.interval(self.state.global_step)
            logs.update(speed)
            for name in sorted(self._parts):
                mean = self.accelerator.reduce(self._parts.pop(name), "mean").item()
                logs[f"loss_{name}"] = mean * self.accelerator.num_processes / max(1, steps)
        super().log(logs, start_time)

    # Evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval", **gen: Any
    ) -> dict[str, float]:
        """Loss per target token (not smoothed), perplexity and the metrics of `dev_set` on its translations.

        Without a `dev_set`, or with `eval_dataset`, it is Seq2SeqTrainer's, but for what that does to the
        generation_config.
        """
        self.guard.check()
        with self.meter.paused(), kept_generation_config(self.model):
            if self.dev_set is None or eval_dataset is not None:
                return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **gen)
            scores = self.dev_set.evaluate(self, **gen)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        if self.schedule is not None and self.is_in_train:
            self.schedule.observe(scores["loss"])
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    # Checkpoints

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        folder = Path(output_dir or str(self.args.output_dir))
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle; the recipe says the same in words
        if self.save_extras is not None and self.args.should_save:
            self.save_extras(folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.guard.check()
        self.guard.check_weights()
        run = Path(self._get_output_dir(trial=trial))
        checkpoint = run / f"checkpoint-{self.state.global_step}"
        staging = checkpoints.staging_folder(checkpoint)
        with self.meter.paused(), checkpoints.explain_full_disk(staging):
            if self.args.should_save:
                shutil.rmtree(staging, ignore_errors=True)
                staging.mkdir(parents=True)
            self.accelerator.wait_for_everyone()
            self.store_flos()
            self.save_model(str(staging), _internal_call=True)
            if not self.args.save_only_model:
                self._save_optimizer_and_scheduler(str(staging))
                self._save_scaler(str(staging))
                self._save_rng_state(str(staging))
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self._save_state(staging)
                checkpoints.finish(staging, checkpoint)
                self._rotate(run)
            self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))

    def _save_state(self, folder: Path) -> None:
        saved: Any = self.state.stateful_callbacks
        best = folder.parent / f"checkpoint-{self.state.best_global_step}"
        self.state.best_model_checkpoint = str(best) if self.state.best_global_step else None
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                saved[type(callback).__name__] = callback.state()
        self.state.save_to_json(os.path.join(folder, "trainer_state.json"))
        self.meter.save(folder, self.args.world_size)

    def _rotate(self, run: Path) -> None:
        if self.args.save_total_limit is None:
            return
        steps = [checkpoints.step_of(path) for path in checkpoints.checkpoints(run)]
        keep = set(self.scheduled(steps)[-self.args.save_total_limit :])
        checkpoints.rotate(run, keep | {max(steps), self.state.best_global_step or max(steps)})

    def scheduled(self, steps: Sequence[int]) -> list[int]:
        """Those of `steps` whose checkpoints are kept and averaged, however often a run was interrupted.

        The ends of the schedule's cycles or, without restarts, multiples of save_steps and the last step.
        """
        ends = self.schedule.ends(self.state.max_steps) if self.schedule is not None else []
        if ends:
            return sorted(set(steps) & set(ends))
        every = self.state.save_steps or 1
        return sorted(step for step in steps if step % every == 0 or step == self.state.max_steps)


@contextlib.contextmanager
def kept_generation_config(model: nn.Module) -> Iterator[None]:
    """Put the model's generation_config back as it was: Seq2SeqTrainer writes every default into it (max_length=20)."""
    before = copy.deepcopy(getattr(model, "generation_config", None))
    try:
        yield
    finally:
        if before is not None:
            model.generation_config = before
