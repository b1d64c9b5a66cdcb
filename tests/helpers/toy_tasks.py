"""Toy tasks that use different parts of a model: in this process, or as a program by several.

accelerate launch ... tests/helpers/toy_tasks.py FOLDER      trains them; writes weights, what each step changed, draws

| task | reads | trains |
| --- | --- | --- |
| translation | pairs | the model, not the heads |
| tokens | text of one language | the encoder, its embeddings and a head of its own |
| probe | text of one language | its head alone |
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import TrainerCallback

if __name__ == "__main__":  # as a program it finds its neighbours by the folder above
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.training_helpers import VOCABULARY, Pairs, arguments, tiny_model

from hf_mlnmt.data.training_set import TrainingSet
from hf_mlnmt.training import Batches, Objective, Task, Translation, TranslationTrainer
from hf_mlnmt.training.batching import TokenBatchSampler
from hf_mlnmt.training.objectives import IGNORED, SHOWN, Need, batch_of, gathered
from hf_mlnmt.training.tasks import TaskBatchSampler, TaskSchedule, seed_of

THERE = {"files": {"source": "train.en", "target": "train.de"}}
BACK = {"files": {"source": "train.de", "target": "train.en"}}
DEV_BACK = {"files": {"source": "val.de", "target": "val.en"}}
TEXT = {"data": {"path": "train.en", "language": "en"}, "objective": {"name": "tokens", "seed": 4}}
ENCODER = Need("an encoder (get_encoder)", lambda model: callable(getattr(model, "get_encoder", None)))
WIDTH = 16


@dataclass
class TokensSettings:
    """Of the objective `tokens`, for tests that make recipes name it."""

    seed: int = 5


class Text(TrainingSet):
    """Random sentences of one language in memory."""

    def __init__(self, count: int = 40, seed: int = 7) -> None:
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 10, count)
        self.examples = [np.append(rng.integers(5, VOCABULARY, length), 1).astype(np.int32) for length in lengths]
        self.source_lengths = self.target_lengths = np.array([len(ids) for ids in self.examples], np.int32)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"input_ids": self.examples[index]}


class Tokens(Objective):
    """Names every source token by the encoder's state at its place, through a head of its own."""

    needs = (ENCODER,)
    detached = False

    def __init__(self, seed: int = 5, vocabulary: int = VOCABULARY) -> None:
        torch.manual_seed(seed)
        self.head = nn.Linear(WIDTH, vocabulary)
        self.drawn: list[float] = []

    def collate(self, examples: Sequence[Any]) -> dict[str, Tensor]:
        rows = gathered(examples).columns["input_ids"]
        return batch_of(rows, rows, 0)

    def loss(self, model: nn.Module, batch: dict[str, Tensor], num_items_in_batch: Any = None):
        states = model.get_encoder()(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        logits = self.head(states.detach() if self.detached else states)
        total = nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED, reduction="sum"
        )
        self.drawn.append(nn.functional.dropout(torch.ones(64), 0.5, model.training).sum().item())
        return total / (self.items(batch) if num_items_in_batch is None else num_items_in_batch), {}


class Probe(Tokens):
    """The same, but the encoder does not learn from it."""

    detached = True


class Changed(TrainerCallback):
    """After each step: the parameters that are not what they were before it."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.steps = model, []
        self.before: dict[str, Tensor] = {}

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.before = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        now = dict(self.model.named_parameters())
        self.steps.append(sorted(name for name in now if not torch.equal(now[name], self.before[name])))


def toy_tasks(shares: Sequence[float] = (2, 1, 1)) -> list[Task]:
    """The three of the table."""
    rows = zip([Pairs(), Text(), Text(30, 8)], [Translation(0, 0.1), Tokens(), Probe(6)], shares)
    return [
        Task(data, objective, share, name)
        for (data, objective, share), name in zip(rows, ["translation", "tokens", "probe"])
    ]


def toy_trainer(
    folder: Path, tasks: Sequence[Task], model: Any = None, tokens: int = 60, **settings: Any
) -> TranslationTrainer:
    """AdamW with weight decay over the tasks."""
    model = tiny_model() if model is None else model
    defaults = {"optim": "adamw_torch", "weight_decay": 0.1, "learning_rate": 1e-2, "lr_scheduler_type": "constant"}
    return TranslationTrainer(model, arguments(folder, **{**defaults, **settings}), tasks, Batches(tokens))


def sampler_of(tasks: Sequence[Task], seed: int = 3, tokens: int = 60) -> TaskBatchSampler:
    """The batches that two processes see of the tasks, with SETTINGS."""
    samplers = [
        TokenBatchSampler(
            task.data.source_lengths,
            task.data.target_lengths,
            tokens,
            seed=seed_of(seed, number),
            world_size=2,
            accumulation=SETTINGS["gradient_accumulation_steps"],
        )
        for number, task in enumerate(tasks)
    ]
    return TaskBatchSampler(samplers, TaskSchedule([task.share for task in tasks], seed))


def by_hand(trainer: TranslationTrainer, sampler: Any, steps: int) -> nn.Module:
    """What training gives, in one process and from the definition: the loss of a step is the sum over its tasks of

    (sum of the losses of the task's batches) / (the task's items in the step). `sampler` says which batches there are.
    """
    model, optimizer = trainer.model.train(), trainer.create_optimizer()
    for step in range(steps):
        batches: dict[int, list[dict[str, Tensor]]] = {}
        for place in range(step * sampler.accumulation, (step + 1) * sampler.accumulation):
            number, before = sampler.schedule.at(place)
            epoch, task = before // len(sampler.samplers[number]), trainer.tasks[number]
            for indices in sampler.at(place)[1]:
                examples = [{**task.data[index], SHOWN: np.array([epoch, index])} for index in indices]
                batches.setdefault(number, []).append(task.objective.collate(examples))
        optimizer.zero_grad()
        for number, of_task in batches.items():
            objective = trainer.tasks[number].objective
            items = sum(int((batch["labels"] != IGNORED).sum()) for batch in of_task)
            for batch in of_task:
                own = int((batch["labels"] != IGNORED).sum())
                (objective.loss(model, batch)[0] * own / items).backward()
        optimizer.step()
    return model


def assert_by_hand(weights: dict[str, Tensor], trainer: TranslationTrainer, sampler: Any, steps: int) -> None:
    """Compares trained weights with those of `by_hand`."""
    expected = dict(by_hand(trainer, sampler, steps).named_parameters())
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        # float64; Adam divides by a gradient's size, so that where it is nearly 0 rounding counts
        torch.testing.assert_close(tensor, expected[name].detach(), rtol=1e-6, atol=1e-8, msg=name)


SETTINGS: dict[str, Any] = {"max_steps": 12, "gradient_accumulation_steps": 2, "max_grad_norm": 0.0, "logging_steps": 1}


def save_run(run: Any, folder: Path, name: str = "weights") -> None:
    """The first process's weights and log, for the test that started this program."""
    if run.is_world_process_zero():
        state = {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}
        save_file(state, folder / f"{name}.safetensors")
        (folder / "log.json").write_text(json.dumps(run.state.log_history))


def main(folder: Path) -> None:
    tasks = toy_tasks()
    for task in tasks:
        if task.objective.head is not None:
            task.objective.head.double()
    run = toy_trainer(folder / "run", tasks, tiny_model(dropout=0.0).double(), **SETTINGS)
    run.add_callback(changed := Changed(run.model))
    run.train()
    rank = PartialState().process_index
    drawn = tasks[1].objective.drawn
    (folder / f"rank{rank}.json").write_text(json.dumps({"changed": changed.steps, "drawn": drawn}))
    save_run(run, folder)
    PartialState().destroy_process_group()  # its threads could abort Python as it ends


if __name__ == "__main__":
    main(Path(sys.argv[1]))
