"""`TranslationTrainer`: Transformers' Seq2SeqTrainer with objectives, batches by tokens, and whole checkpoints.

A module around the model computes the losses of tasks, divided by each task's own items of the step; they are logged by
name. A meter counts time and tokens: what the training cost so far, over all its interruptions.
"""

from __future__ import annotations

import contextlib
import logging
import math
import pickle
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Seq2SeqTrainer, Seq2SeqTrainingArguments, set_seed
from transformers.trainer_callback import ExportableState

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import explained, read_json, write_json
from hf_mlnmt.common.memory import keep_memory
from hf_mlnmt.common.model_folder import first_line
from hf_mlnmt.recipe.schema import Batches, saved_steps
from hf_mlnmt.training import checkpoints, dev
from hf_mlnmt.training.arguments import Schedule
from hf_mlnmt.training.callbacks import SaveEndsOfCycles
from hf_mlnmt.training.captured import CapturedSteps, is_cuda
from hf_mlnmt.training.half_weights import HalfWeights
from hf_mlnmt.training.objectives import Batch, Losses
from hf_mlnmt.training.quantisation_aware import RoundedProducts
from hf_mlnmt.training.tasks import (
    TASK,
    Ahead,
    Task,
    TaskBatchSampler,
    TaskExamples,
    active,
    attach_heads,
    check_needs,
    task_loader,
    task_sampler,
)


def _split(batch: Mapping[str, Any]) -> tuple[str, Batch]:
    """Returns the name of a batch's task, and its tensors."""
    return batch[TASK], {name: value for name, value in batch.items() if name != TASK}


class TaskLosses(nn.Module):
    """A module around the model: its forward computes the loss of a task's batch by the task's objective.

    Wrappers such as DistributedDataParallel wrap it, to see the call of every part of the model by an objective.
    """

    def __init__(self, model: nn.Module, tasks: Sequence[Task], rounded: RoundedProducts | None = None) -> None:
        super().__init__()
        self.model = model
        self.objectives = {task.name: task.objective for task in tasks}
        self.computing = HalfWeights(model).cast if rounded is None else rounded.computing
        self.listed: list[nn.Parameter] = []  # filled at the first step: wrappers may replace parameters before it

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yields the parameters, from a list once that is filled, since Trainer asks for them twice a step."""
        return iter(self.listed) if recurse and self.listed else super().parameters(recurse)

    def forward(self, task: str, batch: Batch, num_items_in_batch: Tensor | int | None = None) -> Losses:
        """Returns the loss of a task's batch and its named parts, see `Objective.loss`."""
        with self.computing():
            return self.objectives[task].loss(self.model, batch, num_items_in_batch)


class NamedLosses:
    """Sums of the losses between two logs, under the names they are logged with; means are over steps with the task.

    With one task the names are loss_<part>, with several loss_<task> and loss_<task>_<part>.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.several = len(tasks) > 1
        self._sums: dict[str, Tensor] = {}
        self._steps: dict[str, set[int]] = {}

    def add(self, task: str, step: int, loss: Tensor, parts: Mapping[str, Tensor]) -> None:
        """Adds the loss of one batch and its parts."""
        named = {f"loss_{task}_{part}" if self.several else f"loss_{part}": value for part, value in parts.items()}
        if self.several:
            named[f"loss_{task}"] = loss
        for name, value in named.items():
            self._sums[name] = self._sums.get(name, 0) + value.detach()
            self._steps.setdefault(name, set()).add(step)

    def take(self, total: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Returns the means per step since the last call. `total` adds up over the processes."""
        sums, steps = self._sums, self._steps
        self._sums, self._steps = {}, {}
        return {name: total(sums[name]).item() / len(steps[name]) for name in sorted(sums)}


class Meter:
    """A count of seconds (wall and processor time) and target tokens, evaluation and saving left out.

    `seconds` and `cpu_seconds` are of this process; `tokens` are real target tokens of all processes.
    """

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0
        self.tokens = 0
        self._pending: list[Any] = []  # counts that may still be on the device; read when asked, not at every step
        self._since: tuple[float, float] | None = None
        self._last = (0.0, 0, 0)

    def __enter__(self) -> Meter:
        self._since = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self._read()
        self._since = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Runs a block whose time and tokens do not count."""
        running = self._since is not None
        if running:
            self.__exit__()
        try:
            yield
        finally:
            if running:
                self.__enter__()

    def add(self, tokens: Any) -> None:
        """Counts target tokens: an int or a scalar tensor."""
        self._pending.append(tokens)

    def interval(self, step: int) -> dict[str, float]:
        """Returns the steps and the target tokens per second since the last call."""
        self._read()
        seconds, tokens, steps = (now - then for now, then in zip(self._now(step), self._last))
        self._last = self._now(step)
        if seconds <= 0:
            return {}
        return {"steps_per_second": steps / seconds, "target_tokens_per_second": tokens / seconds}

    def save(self, folder: Path, **more: Any) -> None:
        """Writes the totals, and the values in `more`, into a checkpoint folder."""
        self._read()
        totals = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "tokens": self.tokens}
        write_json(folder / checkpoints.METER, {**totals, **more})

    def load(self, folder: Path, step: int) -> None:
        """Reads the totals of a checkpoint of step `step`, and continues with these; without totals, from zero."""
        if totals := read_json(folder / checkpoints.METER):
            self.seconds, self.cpu_seconds, self.tokens = (
                totals[name] for name in ("seconds", "cpu_seconds", "tokens")
            )
        self._last = self._now(step)

    def _now(self, step: int) -> tuple[float, int, int]:
        return self.seconds, self.tokens, step

    def _read(self) -> None:
        self.tokens += sum(int(tokens) for tokens in self._pending)
        self._pending.clear()
        if self._since is not None:
            now = time.perf_counter(), time.process_time()
            self.seconds += now[0] - self._since[0]
            self.cpu_seconds += now[1] - self._since[1]
            self._since = now


class NonFiniteLoss(UserError):
    """The loss, or a weight, became nan or infinite."""


class FiniteGuard:
    """A check of each loss: at once on a CPU, where that costs nothing; elsewhere at each log, evaluation and save."""

    def __init__(self, trainer: TranslationTrainer) -> None:
        self.trainer = trainer
        self._seen: list[tuple[int, int, Tensor]] = []  # of each batch: its step, its number in the step, its loss
        self._last = (-1, 0)

    def watch(self, step: int, loss: Tensor) -> None:
        """Records the loss of one more batch of step `step`; on a CPU raises NonFiniteLoss if it is nan or infinite."""
        batch = self._last[1] + 1 if self._last[0] == step else 0
        self._last = step, batch
        self._seen.append((step, batch, loss))
        if loss.device.type == "cpu":
            self.check()

    def check(self) -> None:
        """Raises NonFiniteLoss if a loss recorded since the last check is nan or infinite."""
        seen, self._seen = self._seen, []
        finite = torch.isfinite(torch.stack([loss for _, _, loss in seen])).tolist() if seen else []
        for good, (step, batch, loss) in zip(finite, seen):
            if not good:
                self._stop(step, batch, f"the loss is {loss.item()}")

    def check_weights(self) -> None:
        """Raises NonFiniteLoss if a weight is not finite: such a state must not be saved as a good one."""
        sums = torch.stack([parameter.detach().sum().float() for parameter in self.trainer.model.parameters()])
        if not torch.isfinite(sums).all():
            self._stop(max(0, self._last[0]), self._last[1], "the weights are not finite after it")

    def _stop(self, step: int, batch: int, what: str) -> None:
        trainer, args = self.trainer, self.trainer.args
        number, indices = trainer.sampler().members(step)[batch * args.world_size + args.process_index]
        task = trainer.tasks[number]
        # a changed variant of a sentence is shown as the sentence
        sentences = [index % task.data.distinct for index in indices]
        which = f" of task '{task.name}'" if len(trainer.tasks) > 1 else ""
        raise NonFiniteLoss(
            f"step {step + 1}, batch {batch + 1} of {args.gradient_accumulation_steps}: {what}. Sentences of the batch "
            f"(positions in the training set{which}, from 0): {sentences}. Training stopped; the last checkpoint is "
            "good and is kept. Look at these sentences; if nothing is wrong with them, lower the learning rate, "
            "lengthen the warm-up or lower the gradient limit."
        )


logger = logging.getLogger(__name__)


class TranslationTrainer(Seq2SeqTrainer):
    """A trainer of one task, or of several in turn (see tasks.py), on batches of a number of tokens.

    Differs from Seq2SeqTrainer in this: the loss is the objective's, a sum over target tokens divided by the target
    tokens that its task has in the whole optimizer step (accumulated batches and all processes); losses of several
    tasks in a step are added up; a parameter that no task of a step uses is not updated; batches hold a number of
    tokens; `evaluate` translates and scores `DevSet`s; checkpoints are written aside, checked by checksums, and kept by
    step (the last `save_total_limit` scheduled ones, the best, the newest); a loss that is not a number stops training.

    Args:
        model, args: as in Trainer. With several tasks and processes args.ddp_find_unused_parameters is on, unless set.
        tasks: what to train: a `Task`, or several. UserError where they or the model do not go together.
        batches: their size, as in a recipe; how many are in a step, args.gradient_accumulation_steps says.
        schedule: learning-rate schedule; None takes args.lr_scheduler_type.
        dev_sets: what `evaluate` measures, translates and scores, the most important first.
        save_extras: called with the folder of each saved model (to put tokenizers beside it).
    """

    model: PreTrainedModel
    train_dataset: Any
    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        model: PreTrainedModel,
        args: Seq2SeqTrainingArguments,
        tasks: Task | Sequence[Task],
        batches: Batches | None = None,
        schedule: Schedule | None = None,
        dev_sets: dev.DevSet | Sequence[dev.DevSet] = (),
        save_extras: Callable[[Path], None] | None = None,
        **kwargs: Any,
    ) -> None:
        if args.label_smoothing_factor:
            raise UserError(
                f"label_smoothing_factor={args.label_smoothing_factor}: with it Trainer drops the losses that forward "
                "adds (auxiliary decoders, penalties) without a word. Leave it 0, and give it to the objective: "
                f"Translation(..., label_smoothing={args.label_smoothing_factor})."
            )
        if args.n_gpu > 1:
            # Trainer would cut every batch over the GPUs with DataParallel; several processes are faster and exact.
            logger.warning("using 1 of %d GPUs; to use all: accelerate launch -m hf_mlnmt train ...", args.n_gpu)
            args._n_gpu = 1
        # Trainer's filter would read every loss from the GPU, and hide nan from the guard
        args.logging_nan_inf_filter = False
        self.tasks, self.batches = active(tasks), batches or Batches()
        self.schedule, self.save_extras = schedule, save_extras
        self.dev_sets = list(dev_sets) if isinstance(dev_sets, Sequence) else [dev_sets]
        for task in self.tasks:
            check_needs(task.name, task.objective, model)
        attach_heads(model, self.tasks)
        if args.ddp_find_unused_parameters is None:
            args.ddp_find_unused_parameters = len(self.tasks) > 1
        if args.eval_strategy != "no" and self.dev_sets:
            kwargs.setdefault("eval_dataset", self.dev_sets[0].dataset)
        use_cache = getattr(model.config, "use_cache", None)
        examples, collate = TaskExamples(self.tasks), self.tasks[0].objective.collate
        super().__init__(model=model, args=args, train_dataset=examples, data_collator=collate, **kwargs)
        if use_cache is not None:
            self.model.config.use_cache = use_cache
        if schedule is not None and schedule.restarts:
            self.add_callback(SaveEndsOfCycles(schedule))
        # An objective divides by its task's items of the whole step, whatever the model's forward accepts.
        self.model_accepts_loss_kwargs = True
        self.loss_is_scaled_for_ga = True
        self.meter = Meter()
        self.guard = FiniteGuard(self)
        self.losses = NamedLosses(self.tasks)
        self._latest: Losses  # loss and parts of the last batch
        self._captured: CapturedSteps | None = None
        self._objectives = {task.name: task.objective for task in self.tasks}
        self._ahead: Ahead | None = None
        self._parameters = sum(parameter.numel() for parameter in self.model.parameters())
        # what the checkpoint that a training continues from says of its place in the data
        self._began: dict[str, Any] | None = None
        self._sampler: TaskBatchSampler | None = None  # made once, since making takes seconds for millions of sentences
        self.rounded: RoundedProducts | None = None  # rounds weights and inputs as int8 engines do; None: no rounding

    # Data

    def sampler(self) -> TaskBatchSampler:
        """Returns the sampler of this process's batches."""
        if self._sampler is None:
            began = self._began or {"group": None}
            self._sampler = task_sampler(self.tasks, self.batches, self.args, began["group"])
            if self._began:
                self._sampler.begin_at(*(began[name] for name in ("step", "places", "batches")))
        return self._sampler

    def go_on_in_data(self, checkpoint: Path) -> None:
        """Continues in the data after a checkpoint, also with another number of processes or of batches in a step."""
        meter, step = read_json(checkpoint / checkpoints.METER), checkpoints.step_of(checkpoint)
        self._began, self._sampler = {**meter, "step": step}, None
        if self.args.max_steps <= 0 and meter["group"] != self._group():
            (sampler, *_), (seen, *_) = self.sampler().samplers, meter["batches"]
            left = self.args.num_train_epochs - seen / sampler.total
            self.args.max_steps = step + math.ceil(left * self.steps()[1])

    def _group(self) -> int:
        """Returns the number of batches in a step over all processes."""
        return self.args.world_size * self.args.gradient_accumulation_steps

    def get_train_dataloader(self) -> DataLoader:
        """Makes the loader, not prepared by Accelerate: the sampler already gives each process its own batches."""
        return task_loader(self.tasks, self.sampler(), self.args)

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: Any) -> Any:
        """Returns a step's batches and their counts of items; on a GPU a thread makes the next batches meanwhile."""
        if is_cuda(self.args.device) and not self.args.dataloader_num_workers:
            if self._ahead is None or self._ahead.iterator is not epoch_iterator:
                self._read_ahead(epoch_iterator)
            epoch_iterator = self._ahead  # type: ignore[assignment]
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _read_ahead(self, batches: Iterator | None) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = None if batches is None else Ahead(batches, self.args.device)

    def steps(self) -> tuple[int, int]:
        """Returns the numbers of steps in the whole training and in an epoch."""
        epoch = len(self.sampler()) // self.args.gradient_accumulation_steps
        return self.args.max_steps if self.args.max_steps > 0 else math.ceil(self.args.num_train_epochs * epoch), epoch

    # Loss

    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Returns a task's loss, times the processes if gradients are averaged. num_items_in_batch: task -> items."""
        if return_outputs:
            return super().compute_loss(model, inputs, True, num_items_in_batch)
        task, batch = _split(inputs)
        loss, parts = model(task, batch, num_items_in_batch[task])
        self._latest = loss.detach(), {name: part.detach() for name, part in parts.items()}
        return self._of_all(loss)

    @property
    def _averages(self) -> bool:
        """Returns whether gradients are averaged over several processes."""
        return self.args.average_tokens_across_devices and self.args.world_size > 1

    def _of_all(self, loss: Tensor) -> Tensor:
        return loss * self.accelerator.num_processes if self._averages else loss

    def training_step(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        """Runs forward and backward, as a CUDA graph if steps are captured; records the loss, checks it is finite."""
        task: Any = inputs[TASK]
        run: Callable[..., Losses] = partial(self._run, model)
        if isinstance(model, TaskLosses) and not model.listed:
            model.listed = list(model.parameters())
        if self._captured is None and self.captures():
            several = self.args.gradient_accumulation_steps > 1
            self._captured = CapturedSteps(run, self.model.parameters(), several)
        if self._captured is not None and self._objectives[task].as_graph:
            run = self._captured
        loss, parts = run(inputs, num_items_in_batch[task])
        self.losses.add(task, self.state.global_step, loss, parts)
        loss = self._of_all(loss)
        self.guard.watch(self.state.global_step, loss)
        return loss

    def _run(self, model: nn.Module, inputs: dict[str, Any], items: Tensor) -> Losses:
        counts: Any = {inputs[TASK]: items}
        super().training_step(model, inputs, counts)
        return self._latest

    def captures(self) -> bool:
        """Returns whether steps are captured: batches of few shapes, on one card, in float32 or bfloat16."""
        args, model = self.args, self.model
        others = args.world_size > 1 or args.fp16 or args.torch_compile or args.torch_empty_cache_steps
        if not self.batches.buckets or others or not is_cuda(args.device):
            return False
        # the CPU draws which layers are dropped, and a graph would repeat one draw
        dropped = ("encoder_layerdrop", "decoder_layerdrop", "layerdrop")
        checkpointing = getattr(model, "is_gradient_checkpointing", False)
        return not checkpointing and not any(getattr(model.config, name, 0) for name in dropped)

    def _prepare_input(self, data: Any) -> Any:
        """Moves a tensor to the device without waiting for what the device does."""
        return data.to(self.args.device, non_blocking=True) if torch.is_tensor(data) else super()._prepare_input(data)

    def _get_num_items_in_batch(self, batch_samples: list, device: Any) -> Any:
        """Returns task -> items in the step's batches, of all processes if losses are averaged; counts tokens."""
        counts: dict[str, Tensor] = {}
        for name, batch in map(_split, batch_samples):
            items = self._objectives[name].items(batch)
            counts[name] = counts[name] + items if name in counts else items
        own, counts = counts, {name: items.to(device, non_blocking=True) for name, items in counts.items()}
        if self._averages:
            own = counts = {name: self.accelerator.reduce(items, "sum") for name, items in counts.items()}
        for items in own.values():
            self.meter.add(items.sum())
        return counts

    def floating_point_ops(self, inputs: Batch) -> int:
        """Returns 6 x parameters x source tokens; Trainer's method counts the parameters anew at every step."""
        return 6 * self._parameters * inputs["input_ids"].numel() if "input_ids" in inputs else 0

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Wraps the model into TaskLosses, and that for several processes and mixed precision, if it is trained."""
        if not training:
            return super()._wrap_model(model, training, dataloader)
        if isinstance(self.accelerator.unwrap_model(model, keep_torch_compile=False), TaskLosses):
            return model
        # Evaluation calls the model without TaskLosses, in the same precision: prepares it by itself too.
        self.accelerator.prepare_model(self.model, evaluation_mode=True)
        losses = TaskLosses(self.model, self.tasks, self.rounded)
        return self.accelerator.prepare_model(losses)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Makes the recipe's schedule instead of that of lr_scheduler_type."""
        if self.schedule is None:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            self.schedule.total = self.schedule.total or num_training_steps
            self.lr_scheduler = self.schedule.scheduler(optimizer or self.optimizer)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # Training

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trains as Trainer does; each process draws its own dropout; a checkpoint of another model is refused."""
        set_seed(self.args.seed + self.args.process_index)
        if self.args.device.type == "cpu":
            keep_memory()
        if isinstance(resume_from_checkpoint, str | Path):
            checkpoints.check_same_model(Path(resume_from_checkpoint), self.model.config)
            self.meter.load(Path(resume_from_checkpoint), checkpoints.step_of(resume_from_checkpoint))
        try:
            with self.meter:
                return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self._captured = None
            self._read_ahead(None)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs; adds the speed and the named parts of the loss."""
        if "loss" in logs:
            self.guard.check()
            logs.update(self.meter.interval(self.state.global_step))
            logs.update(self.losses.take(lambda loss: self.accelerator.reduce(loss, "sum")))
        super().log(logs, start_time)

    # Evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval", **gen: Any
    ) -> dict[str, float]:
        """Measures loss per target token or other item (not smoothed), perplexity and metrics on `dev_sets`.

        The numbers of the first set are eval_loss, eval_bleu and so on, those of others eval_<name>_loss, means over
        several translated sets eval_mean_loss. Without `dev_sets` runs Seq2SeqTrainer's evaluation.
        """
        self.guard.check()
        with self.meter.paused():
            if not self.dev_sets:
                return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **gen)
            metrics: dict[str, float] = {}
            several: dict[str, list[float]] = {}  # scores of each translated development set
            for number, dev_set in enumerate(self.dev_sets):
                prefix = f"{metric_key_prefix}_{dev_set.name}" if number else metric_key_prefix
                scores = dev_set.evaluate(self.model, self.accelerator, **gen)
                metrics |= {f"{prefix}_{name}": value for name, value in scores.items()}
                for name in set(scores) - {"perplexity"} if dev_set.objective is None else ():
                    several.setdefault(name, []).append(scores[name])
            means = {name: sum(values) / len(values) for name, values in several.items() if len(values) > 1}
            metrics |= {f"{metric_key_prefix}_mean_{name}": value for name, value in sorted(means.items())}
        if self.schedule is not None and self.is_in_train:
            self.schedule.observe(metrics[f"{metric_key_prefix}_loss"])
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    # Checkpoints

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        folder = Path(output_dir or str(self.args.output_dir))
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle; the recipe has the same content
        if self.save_extras is not None and self.args.should_save:
            self.save_extras(folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.guard.check()
        self.guard.check_weights()
        run = Path(self._get_output_dir(trial=trial))
        checkpoint = run / f"checkpoint-{self.state.global_step}"
        staging = checkpoint.with_name(f".{checkpoint.name}.part")
        with self.meter.paused(), explained(staging):
            try:
                if self.args.should_save:
                    shutil.rmtree(staging, ignore_errors=True)
                    staging.mkdir(parents=True)
                self.accelerator.wait_for_everyone()
                self.store_flos()
                self.save_model(str(staging), _internal_call=True)
                self._save_optimizer_and_scheduler(str(staging))
                self._save_scaler(str(staging))
                self._save_rng_state(str(staging))
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    self._save_state(staging)
                    checkpoints.finish(staging, checkpoint)
                    self._rotate(run)
                self.accelerator.wait_for_everyone()
            finally:
                shutil.rmtree(staging, ignore_errors=True)  # after an error, as of a full disk: frees the space

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Loads the states of optimizer and scheduler. Raises: UserError for a state of another model's optimizer."""
        why: str | None
        total = self.schedule.total if self.schedule else 0
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except (ValueError, KeyError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            why = first_line(error)
        else:
            state = self.optimizer.state if checkpoint and self.optimizer else {}
            moments = ((weight, each) for weight, of in state.items() for each in of.values() if torch.is_tensor(each))
            # Moments have the shape of their weight; an optimizer's counter of steps is a scalar.
            unfit = any(each.dim() > 0 and each.shape != weight.shape for weight, each in moments)
            why = "its tensors have other shapes than the weights" if unfit else None
        if self.schedule:
            # keeps this training's number of steps: the checkpoint's may be of steps of another size
            self.schedule.total = total
        if why:
            raise UserError(
                f"{checkpoint}: its optimizer.pt or scheduler.pt does not fit this training ({why}). Put back the "
                "files of this run, or delete the checkpoint: the run goes on from the one before it."
            )

    def _save_state(self, folder: Path) -> None:
        saved: Any = self.state.stateful_callbacks
        best = folder.parent / f"checkpoint-{self.state.best_global_step}"
        self.state.best_model_checkpoint = str(best) if self.state.best_global_step else None
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                saved[type(callback).__name__] = callback.state()
        self.state.save_to_json(str(folder / checkpoints.STATE))
        more = {"group": self._began["group"] if self._began else self._group(), "processes": self.args.world_size}
        more |= self.sampler().reached(self.state.global_step)
        self.meter.save(folder, **more)

    def _rotate(self, run: Path) -> None:
        if self.args.save_total_limit is None:
            return
        steps = [checkpoints.step_of(path) for path in checkpoints.checkpoints(run)]
        counted = set(saved_steps(self.schedule, int(self.state.save_steps) or 1, self.state.max_steps))
        keep = set([step for step in steps if step in counted][-self.args.save_total_limit :])
        checkpoints.rotate(run, keep | {max(steps), self.state.best_global_step or max(steps)})
