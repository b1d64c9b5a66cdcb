"""Few shapes of batches: how many there are and how much they pad, nothing lost, losses as without the filling."""

from __future__ import annotations

import functools
import itertools
import re
import threading
from collections import Counter
from contextlib import nullcontext
from typing import ClassVar

import numpy as np
import pytest
import torch
from helpers.fused import fused, language_model, translator
from helpers.toy_tasks import Probe, Text, Tokens, toy_tasks
from helpers.training_helpers import VOCABULARY, Pairs, arguments, tiny_model

from hf_mlnmt.recipe.schema import DistortionSettings
from hf_mlnmt.training import Batches, Task, Translation, TranslationTrainer, captured
from hf_mlnmt.training import trainer as trainer_module
from hf_mlnmt.training.batching import TokenBatchSampler, batch_statistics
from hf_mlnmt.training.distillation import Distillation
from hf_mlnmt.training.fusion_objectives import FusionNBest, FusionSymbol, FusionTrellis
from hf_mlnmt.training.objectives import (
    IGNORED,
    SHOWN,
    DecoderLanguageModel,
    Distortion,
    EncoderCloze,
    EncoderLanguageModel,
    PseudoEncoder,
    TextObjective,
)
from hf_mlnmt.training.preparation import CLASSES
from hf_mlnmt.training.tasks import TaskBatchSampler, TaskSchedule, collate_in, task_sampler


def captions(count: int = 29_000) -> tuple[np.ndarray, np.ndarray]:
    """Lengths as Multi30k's."""
    rng = np.random.default_rng(0)
    source = np.clip(rng.gamma(12, 1.2, count), 3, 60).astype(int)
    return source, np.clip(source + rng.normal(0, 2.2, count), 3, 70).astype(int)


def news(count: int = 100_000) -> tuple[np.ndarray, np.ndarray]:
    """Lengths as WMT's: log-normal of mean 27, the ratio of the sides log-normal of deviation 0.2."""
    rng = np.random.default_rng(0)
    source = np.clip(np.rint(rng.lognormal(np.log(27) - 0.18, 0.6, count)), 2, 250).astype(int)
    return source, np.clip(np.rint(source * rng.lognormal(0, 0.2, count)), 2, 250).astype(int)


def shapes_of(sampler, steps):
    """The shapes of the first steps' batches, each with its task."""
    batches = itertools.chain.from_iterable(map(sampler.members, range(steps)))
    return [(task, sampler.samplers[task].shape(batch)) for task, batch in batches]


@pytest.mark.parametrize(
    ("lengths", "tokens", "shapes", "padding"), [(captions, 4096, 64, 0.05), (news, 4096, 64, 0.08)]
)
def test_a_thousand_steps_meet_few_shapes_with_little_padding(lengths, tokens, shapes, padding):
    """Of news 64 shapes pad 7 to 8 %; captions' epoch has a hundred batches."""
    source, target = lengths()
    sampler = TokenBatchSampler(source, target, tokens, buckets=shapes)
    met = {*shapes_of(TaskBatchSampler([sampler], TaskSchedule([1], 1)), 1000)}
    assert len(met) <= shapes
    assert all(rows * length <= tokens for _, (rows, _, length) in met)
    figures = batch_statistics(sampler)
    assert figures.source_padding < padding
    assert figures.target_padding < padding
    assert figures.sentences == len(source)


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (2000, {}),
        (2000, {"world_size": 2, "accumulation": 3}),
        (40, {"world_size": 2, "accumulation": 3}),
        (2000, {"side": "both", "max_sentences": 7}),
        (2000, {"side": "source"}),
        (7, {}),
    ],
)
def test_each_pair_once_an_epoch_in_equally_many_batches(count, options):
    source, target = captions(count)
    ranks = range(options.get("world_size", 1))
    samplers = [TokenBatchSampler(source, target, 300, buckets=16, rank=rank, **options) for rank in ranks]
    for epoch in (0, 1, 5):
        seen = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
            batches = list(sampler)
            assert len(batches) == len(samplers[0]) == len(sampler)
            assert len(batches) % options.get("accumulation", 1) == 0
            seen += [index for batch in batches for index in batch]
        assert sorted(seen) == list(range(count))
    batches = samplers[0].batches(1)
    assert len({samplers[0].shape(batch) for batch in batches}) <= 16
    for batch in batches:
        rows, longest_source, longest_target = samplers[0].shape(batch)
        assert len(batch) <= rows <= options.get("max_sentences", 300)
        assert source[batch].max() <= longest_source
        assert target[batch].max() <= longest_target
    if count > 1000:
        assert [set(batch) for batch in batches] != [set(batch) for batch in samplers[0].batches(0)]


def test_a_mixture_keeps_count_and_shapes():
    source, target = captions(4000)

    def choose(epoch: int) -> np.ndarray:
        return np.random.default_rng([1, epoch]).integers(0, 4000, 3000)

    sampler = TokenBatchSampler(source, target, 300, buckets=16, choose=choose)
    met = set()
    for epoch in range(6):
        batches = sampler.batches(epoch)
        assert len(batches) == len(sampler)
        assert sorted(np.concatenate(batches)) == sorted(choose(epoch))
        met |= {sampler.shape(batch) for batch in batches}
    assert len(met) <= 16


def test_one_shape_holds_all():
    assert TokenBatchSampler([3, 9], [3, 2], 18, buckets=1).shape([0]) == (2, 9, 3)


@functools.cache
def every_objective():
    """Name -> each objective that a recipe can name, with a model for it; without dropout, in float64."""
    translator_of = {"vocabulary": VOCABULARY, "dropout": 0.0}
    ending = language_model(VOCABULARY)
    ending.transformer.ln_f.bias.data = 3 * ending.lm_head.weight.data[1]  # the search finds translations that end
    product = fused(translator(**translator_of), lms=[ending], alpha=0.8, beta=0.5)
    aided = translator("ms-123", **translator_of)  # it adds losses of its own
    distortion = Distortion(DistortionSettings(), 4, np.arange(5), VOCABULARY)
    torch.manual_seed(0)
    rows = {
        "translation": (Translation(0, 0.1), aided),
        "encoder-lm": (EncoderLanguageModel(0, 3, head=torch.nn.Linear(16, VOCABULARY)), tiny_model(dropout=0.0)),
        "encoder-cloze": (EncoderCloze(0, 3, 0.1, distortion, tie=True), tiny_model(dropout=0.0)),
        "decoder-lm": (DecoderLanguageModel(0, 3), tiny_model(dropout=0.0)),
        "pseudo-encoder": (PseudoEncoder(0, 3, 0.1, distortion), aided),
        "distillation": (Distillation(0, 0.1, words=0.5, model=translator(**translator_of).eval()), aided),
        "fusion-symbol": (FusionSymbol(0), product),
        "fusion-n-best": (FusionNBest(0, n=3), product),
        "fusion-trellis": (FusionTrellis(0, beams=3), product),
    }
    assert rows.keys() == CLASSES.keys()
    return rows | {task.name: (task.objective, tiny_model(dropout=0.0)) for task in toy_tasks()[1:]}


@pytest.mark.parametrize("name", [*CLASSES, *(task.name for task in toy_tasks()[1:])])
def test_the_loss_is_that_of_the_batch_as_it_was(name):
    """In float64, so that a filled row that counted could not hide in the rounding."""
    objective, model = every_objective()[name]
    data = Text() if isinstance(objective, TextObjective | Tokens) else Pairs()
    sampler = TokenBatchSampler(data.source_lengths, data.target_lengths, 60, buckets=1)
    modules = [module.double().train() for module in (model, objective.head) if module is not None]
    weights = [weight for module in modules for weight in module.parameters() if weight.requires_grad]
    for indices in (batch[1:] for batch in sampler.batches(0)[:3]):
        examples = [{**data[index], SHOWN: np.array([0, index])} for index in indices.tolist()]
        plain = objective.collate(examples)
        filled = collate_in(sampler.buckets, objective.collate, examples)
        rows, source, target = sampler.shape(indices)
        assert filled["input_ids"].shape == (rows, source)
        assert filled["labels"].shape == (rows, target)
        assert (filled["labels"] != IGNORED).sum() == (plain["labels"] != IGNORED).sum()
        assert rows > len(indices)
        ours, expected = [
            (loss := objective.loss(model, batch)[0], torch.autograd.grad(loss, weights, materialize_grads=True))
            for batch in (filled, plain)
        ]
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)


def test_the_shapes_are_of_all_tasks_together(tmp_path):
    tasks = [Task(Pairs(600, seed), Translation(0), name=f"task{seed}") for seed in range(3)]
    sampler = task_sampler(tasks, Batches(60, buckets=6), arguments(tmp_path))
    met = {*shapes_of(sampler, 3 * len(sampler))}
    assert {task for task, _ in met} == {0, 1, 2}
    assert len(met) <= 6


def trained(folder, resume=None, **settings):
    """A trainer after 9 steps of several epochs, and the shapes of the batches that it was given."""
    task, shapes = Task(Pairs(), Translation(0, 0.1)), []
    trainer = TranslationTrainer(
        tiny_model(), arguments(folder, max_steps=9, save_steps=5, **settings), task, Batches(60, buckets=6)
    )
    compute = trainer.compute_loss

    def watched(model, inputs, *args, **more):
        shapes.append((*inputs["input_ids"].shape, inputs["labels"].shape[1]))
        return compute(model, inputs, *args, **more)

    trainer.compute_loss = watched
    trainer.train(resume)
    return trainer, shapes


def test_training_meets_them_and_goes_on_in_the_middle_of_an_epoch(tmp_path):
    whole, shapes = trained(tmp_path, save_strategy="steps")
    assert len(shapes) == 9
    assert set(shapes) <= {shape for _, shape in shapes_of(whole.sampler(), 9)}
    assert len(set(shapes)) <= 6
    assert 5 % len(whole.sampler()), "the checkpoint is not at the end of an epoch"
    again, rest = trained(tmp_path, str(tmp_path / "checkpoint-5"), save_strategy="no")
    assert rest == shapes[5:]
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name


class Graph:
    """What a CUDA graph does, on a CPU: a capture launches nothing, a replay does what was captured."""

    made: ClassVar[list[Graph]] = []

    def __init__(self, body):
        self.replay = body
        self.made.append(self)

    def pool(self):
        return "pool"


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that a training makes; a CPU takes part."""
    Graph.made.clear()
    monkeypatch.setattr(trainer_module, "is_cuda", lambda device: True)
    monkeypatch.setattr(captured, "record", lambda body, pool: Graph(body))
    monkeypatch.setattr(captured, "reads_of_values", lambda: nullcontext([]))
    return Graph.made


def weights_and_losses(folder, model=None, tasks=None, shapes=6, steps=18, resume=None, **settings):
    torch.manual_seed(0)
    tasks = tasks or Task(Pairs(), Translation(0, 0.1))
    settings = {"max_steps": steps, "logging_steps": 1, **settings}
    trainer = TranslationTrainer(
        model or tiny_model(), arguments(folder, **settings), tasks, Batches(60, buckets=shapes)
    )
    trainer.train(resume)
    losses = [{name: value for name, value in log.items() if "loss" in name} for log in trainer.state.log_history]
    return trainer, losses, trainer.model.state_dict()


@pytest.mark.parametrize(
    ("several", "settings"), [(False, {"bf16": True}), (True, {}), (True, {"gradient_accumulation_steps": 3})]
)
def test_captured_steps_are_the_steps(several, settings, graphs, tmp_path, monkeypatch):
    """With dropout, several tasks of which some reach a part of the weights, and batches that are accumulated."""

    def tasks():
        return toy_tasks() if several else None

    monkeypatch.setattr(Probe, "as_graph", True)
    trainer, losses, weights = weights_and_losses(tmp_path / "graphs", tasks=tasks(), **settings)
    seen = Counter((task, shape) for task, shape in shapes_of(trainer.sampler(), 18))
    assert len(graphs) == sum(times > 1 for (task, _), times in seen.items() if task != 1) > 2
    assert trainer._captured is None, "its memory is given back"
    monkeypatch.setattr(trainer_module, "is_cuda", lambda device: False)
    _, expected, others = weights_and_losses(tmp_path / "calls", tasks=tasks(), **settings)
    assert losses == expected
    for name, weight in others.items():
        assert torch.equal(weight, weights[name]), name


@pytest.mark.parametrize(
    ("error", "replayed", "message"),
    [
        (torch.OutOfMemoryError("no room"), True, "the card has no memory left for another shape"),
        (RuntimeError("not permitted\nwhile capturing"), False, "not permitted"),
        (None, False, r"batches of translation go call by call.*\(loss.py:7\)"),
    ],
)
def test_what_cannot_be_captured_goes_call_by_call(error, replayed, message, graphs, tmp_path, monkeypatch, caplog):
    """The second capture fails, or the first batches read a value; it is said once, and nothing is lost."""

    def record(body, pool):
        assert pool == ("pool" if graphs else None)
        if graphs:  # in the middle, with gradients of its own
            for parameter in body.__self__.steps.parameters:
                parameter.grad = torch.ones_like(parameter)
            raise error
        return Graph(body)

    if error is None:
        monkeypatch.setattr(captured, "reads_of_values", lambda: nullcontext(["loss.py:7"]))
    monkeypatch.setattr(captured, "record", record)
    run, counts = captured.CapturedStep.__call__, Counter()
    monkeypatch.setattr(captured.CapturedStep, "__call__", lambda *args: (counts.update(["replay"]), run(*args))[1])
    settings = {"gradient_accumulation_steps": 2, "steps": 12}
    _, losses, weights = weights_and_losses(tmp_path / "graphs", **settings)
    assert len(graphs) == (error is not None)
    assert (counts["replay"] > 1) == replayed
    said = [record.getMessage() for record in caplog.records if "call by call" in record.getMessage()]
    assert len(said) == 1
    assert re.search(message, said[0])
    monkeypatch.setattr(trainer_module, "is_cuda", lambda device: False)
    _, expected, others = weights_and_losses(tmp_path / "calls", **settings)
    assert losses == expected
    for name, weight in others.items():
        assert torch.equal(weight, weights[name]), name


def test_a_training_that_is_stopped_makes_no_batches_any_more(graphs, tmp_path):
    def stop(step, loss):
        if step == 4:
            raise KeyboardInterrupt

    trainer = TranslationTrainer(
        tiny_model(), arguments(tmp_path), Task(Pairs(), Translation(0, 0.1)), Batches(60, buckets=6)
    )
    trainer.guard.watch = stop
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.state.global_step == 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]
    assert trainer._captured is None
