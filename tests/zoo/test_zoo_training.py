"""The contract of every model, part three: the loss is the one written here by hand, however it is computed."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest
import torch
from helpers.ahead import ReadsNothing, run_ahead, step_without_values
from helpers.card import Launches, on_card
from helpers.contract import IDLE, KINDS, RECURRENT, Member, assert_same, gradients, members, of_each_kind, redraw
from torch._dynamo import reset as forget_compiled
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_mlnmt.modeling.layers import Sublayer
from hf_mlnmt.training.half_weights import HalfWeights

SYSTEMS = list({member.system: member for member in members()}.values())
OF_EACH_KIND = pytest.mark.parametrize("system", [one for one in SYSTEMS if one.system in KINDS], ids=str)


def by_hand(logits, labels, smoothing=0.0):
    """Position by position: (1 - eps) times -log p(y) plus eps times the mean of -log p over the vocabulary."""
    total = torch.zeros((), dtype=logits.dtype)
    for row in range(labels.shape[0]):
        for position in range(labels.shape[1]):
            label = int(labels[row, position])
            if label != -100:
                scores = logits[row, position] - torch.log(torch.exp(logits[row, position]).sum())
                total = total - (1 - smoothing) * scores[label] - smoothing * scores.mean()
    return total


def main_loss(out):
    """The part of the loss that is the translation's (later families add others)."""
    return out.losses["translation"] if out.losses else out.loss


def test_loss_by_hand(model, batch):
    for smoothing, items in ((0.0, None), (0.1, 7), (0.1, torch.tensor(31))):
        out = model(**batch.training, smoothing=smoothing, num_items_in_batch=items)
        expected = by_hand(out.logits, batch.labels, smoothing) / (18 if items is None else int(items))
        assert_same(main_loss(out), expected)
        if out.losses:
            assert_same(sum(out.losses.values()), out.loss)


@OF_EACH_KIND
def test_labels_are_shifted_by_one(system, batch):
    model = system.model()
    shifted = model.prepare_decoder_input_ids_from_labels(batch.labels)
    assert shifted.tolist() == batch.target.tolist()
    out = model(**batch.training)
    assert_same(out.logits, model(**batch.inputs).logits)
    assert_same(model(**batch.training, decoder_input_ids=batch.target).loss, out.loss)


def test_loss_only_equals_full(model, batch):
    """With label smoothing: test_loss.py compares the two losses without it."""
    full = model(**batch.training, smoothing=0.1)
    full.loss.backward()
    expected = gradients(model)
    lean = model(**batch.training, smoothing=0.1, loss_only=True)
    lean.loss.backward()
    assert lean.logits is None
    assert_same(lean.loss, full.loss)
    assert_same(gradients(model), expected)


@OF_EACH_KIND
def test_a_step_needs_no_values(system, batch):
    """Of a system of each family; of all of them the next test has the operations."""
    step_without_values(system.model(), with_optimizer=system.system == "transformer", **batch.training)


def test_on_a_device_that_is_not_asked_loss_and_gradients_are_the_same(model, batch, monkeypatch):
    """Whether anything is padding, and where, in either mode, which are the same here; and nothing is read from it."""
    given = {**batch.training, "decoder_input_ids": batch.target}  # labels on a CPU are looked at, to warn of padding
    for mask in (batch.source_mask.flip(1), torch.ones_like(batch.source_mask)):
        training = {**given, "attention_mask": mask, "smoothing": 0.1, "loss_only": True}
        losses, found = [], []
        for ahead in (False, True):
            if ahead:
                run_ahead(monkeypatch)
            with ReadsNothing() if ahead else nullcontext():
                losses.append(model(**training).loss)
                losses[-1].backward()
            found.append(gradients(model))
        monkeypatch.undo()
        assert_same(losses[1], losses[0])
        assert_same(found[1], found[0])


def test_nothing_to_predict(member, model, batch):
    """A batch without a target token, in a step with none at all: a loss of 0, and no gradient but 0."""
    ways = [(True, None), (False, torch.tensor(0))]
    if member.system == "transformer":
        ways = list(itertools.product([True, False], [None, 0, torch.tensor(0)]))
    model.train()
    training = {**batch.training, "labels": torch.full_like(batch.labels, -100), "smoothing": 0.1}
    for loss_only, items in ways:
        out = model(**training, loss_only=loss_only, num_items_in_batch=items)
        out.loss.backward()
        assert out.loss == 0
        assert not any(part != 0 for part in (out.losses or {}).values())
        assert not any(gradient.count_nonzero() for gradient in gradients(model).values())


def test_every_parameter_gets_a_gradient(member, model, batch):
    model.train()(**batch.training).loss.backward()
    idle = IDLE.get(member.system, {})
    for name, parameter in model.named_parameters():
        if not any(name.endswith(end) for end in idle):
            assert parameter.requires_grad, name
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 1e-7, name
    assert not [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]


@OF_EACH_KIND
def test_accumulation_equals_one_batch(system, batch):
    model = system.model()
    model(**batch.training, num_items_in_batch=18).loss.backward()
    expected = gradients(model)
    for rows in ([0, 1, 2], [3]):
        model(**batch.rows(rows).training, num_items_in_batch=18).loss.backward()
    assert_same(gradients(model), expected)


def test_padding_changes_no_gradient(model, batch):
    model(**batch.training).loss.backward()
    expected = gradients(model)
    model(
        input_ids=torch.cat([batch.source, torch.full((4, 3), 9)], 1),
        attention_mask=torch.cat([batch.source_mask, torch.zeros(4, 3, dtype=torch.long)], 1),
        labels=torch.cat([batch.labels, torch.full((4, 2), -100)], 1),
    ).loss.backward()
    assert_same(gradients(model), expected)


def test_gradient_checkpointing(member, batch):
    # float32, where the package has a dropout of its own, whose draws must repeat too
    rates = dict.fromkeys(["dropout", "attention_dropout", "activation_dropout"], 0.2)
    model = member.model(dtype=torch.float32, **rates).train()
    losses, found = [], []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            assert model.is_gradient_checkpointing
        torch.manual_seed(11)  # the same dropout
        loss = model(**batch.training, loss_only=True).loss
        loss.backward()
        losses.append(loss)
        found.append(gradients(model))
    assert_same(losses[1], losses[0], 1e-4)
    assert_same(found[1], found[0], 1e-4)


RATES = ["dropout", "attention_dropout", "activation_dropout"]


@pytest.mark.parametrize(
    ("system", "rate"),
    [(member, rate) for member in SYSTEMS for rate in (RATES if member.system in KINDS else RATES[:1])],
    ids=str,
)
def test_dropout_is_only_for_training(system, batch, rate):
    if rate == "activation_dropout" and system.system in RECURRENT:
        pytest.skip("there is no feed-forward layer")
    model, called = system.model(**{**dict.fromkeys(RATES, 0.0), rate: 0.3}), set()
    with torch.no_grad():
        evaluated, again = (model(**batch.training).loss for _ in range(2))
        model.train()
        dropping = {part for part in model.modules() if isinstance(part, torch.nn.Dropout) and part.p}
        for part in dropping:
            part.register_forward_hook(lambda part, *given: called.add(part))
        trained = [model(**batch.training).loss for _ in range(2)]
    assert_same(again, evaluated)
    assert abs(trained[0] - trained[1]) > 1e-6
    assert abs(trained[0] - evaluated) > 1e-6
    assert called == dropping
    residual = [part.dropout.p for part in model.modules() if isinstance(part, Sublayer)]
    assert set(residual) <= {0.3 if rate == "dropout" else 0.0}, "a sublayer without a dropout"


def test_bfloat16_training_is_close_to_float32(member, batch, monkeypatch):
    attention, seen = torch.nn.functional.scaled_dot_product_attention, []

    def spy(query, key, value, **kwargs):
        seen.extend([query.dtype, key.dtype, value.dtype, torch.is_autocast_enabled("cpu")])
        return attention(query, key, value, **kwargs)

    # A unit at relu's edge, which rounding may switch on or off, would decide the test; gelu has no edge.
    model = member.model(dtype=torch.float32, activation_function="gelu")
    redraw(model, std=None)  # larger weights than these amplify the rounding, through saturated attention
    model(**batch.training, loss_only=True).loss.backward()
    exact = gradients(model)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**batch.training, loss_only=True).loss
    assert loss.dtype == torch.float32
    assert member.system in RECURRENT or set(seen) == {
        torch.float32,
        False,
    }  # bfloat16 attention is slow backwards on a CPU
    loss.backward()
    idle = tuple(IDLE.get(member.system, ()))
    for name, gradient in gradients(model).items():
        if idle and name.endswith(idle):
            continue
        cosine = torch.cosine_similarity(gradient.flatten(), exact[name].flatten(), dim=0)
        assert cosine > 0.9, f"{name}: {cosine}"


# Where the state of a recurrence, and what is multiplied by it, are in float32 on purpose.
EXACT = {*RECURRENT, "previous-context-full", "key-value-head", "key-value-full"}


@OF_EACH_KIND
def test_mixed_precision_of_a_gpu_is_close_to_float32(system, batch, monkeypatch):
    """Weights are cast once, states hardly ever, and gradients are of float32 weights and in float32."""
    rates = dict.fromkeys(["dropout", "attention_dropout", "activation_dropout"], 0.0)
    model = system.model(dtype=torch.float32, activation_function="gelu", **rates).train()
    redraw(model, std=None)
    model(**batch.training, loss_only=True).loss.backward()
    exact, weights = gradients(model), dict(model.named_parameters())
    launches = Launches()
    on_card(monkeypatch, launches.kernels())
    with launches:
        with torch.autocast("cpu", dtype=torch.bfloat16), HalfWeights(model).cast():
            loss = model(**batch.training, loss_only=True).loss
        loss.backward()
    assert loss.dtype == torch.float32
    assert {name: id(weight) for name, weight in model.named_parameters()} == {n: id(w) for n, w in weights.items()}
    assert len(launches.together) == 2  # all weights, and all gradients
    layers = sum(isinstance(module, GradientCheckpointingLayer) for module in model.modules())
    assert system.system in EXACT or len(launches.casts) <= 4 * layers + 8  # two and their gradients'
    idle = tuple(IDLE.get(system.system, ()))
    for name, gradient in gradients(model).items():
        assert gradient.dtype == torch.float32
        if not (idle and name.endswith(idle)):
            cosine = torch.cosine_similarity(gradient.flatten(), exact[name].flatten(), dim=0)
            assert cosine > 0.95, f"{name}: {cosine}"


@OF_EACH_KIND
def test_autocast(system, batch):
    """A search, and training with every kind of dropout."""
    rates = dict.fromkeys(["dropout", "attention_dropout", "activation_dropout"], 0.1)
    model = system.model(dtype=torch.float32, **rates)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model.generate(**batch.encoder_inputs, do_sample=False, max_new_tokens=2, num_beams=3)
        assert len(found) == 4
        loss = model.train()(**batch.training, loss_only=True).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())


def kinds() -> list[Member]:
    """One system of each config class; the others' layers are compiled in test_compiling.py, their steps in search/."""
    first = {member.system: member for member in reversed(members())}
    systems = (first[one.system] for one in SYSTEMS if one.system not in RECURRENT)  # nn.LSTM: not traced whole
    return list({type(member.config()): member for member in systems}.values())


@pytest.mark.parametrize("system", of_each_kind(kinds(), ("transformer", "full-dc")))
def test_compiled_equals_eager(system, batch):
    """One graph for forward and backward, as torch.compile traces it; what its back end makes of it is PyTorch's."""
    # One layer of each side is traced as two are, in half of the time.
    layers = {"decoder_layers": 1, **({"encoder_layers": 1} if system.system in ("transformer", "full-dc") else {})}
    model = system.model(dtype=torch.float32, **layers)
    training = {**batch.training, "loss_only": True, "smoothing": 0.1, "use_cache": False}
    loss = model(**training).loss
    loss.backward()
    expected = gradients(model)
    forget_compiled()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    actual = compiled(**training).loss
    actual.backward()
    forget_compiled()
    assert_same(actual, loss, 1e-4)
    assert_same(gradients(model), expected, 1e-4)
