"""Mixed precision as it is on a GPU, on a CPU: weights cast once a step, and what a training makes of it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from helpers import card
from helpers.contract import assert_same, gradients
from helpers.training_helpers import VOCABULARY, tiny_model
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_mlnmt.training import half_weights
from hf_mlnmt.training.half_weights import HalfWeights


def step(model, batch, mixed=True):
    """Forward and backward, as the trainer's."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed), HalfWeights(model).cast():
        loss = model(**batch, smoothing=0.1, loss_only=True).loss
    loss.backward()
    return loss.item()


def draw_batch(generator):
    """Sentences that are to be copied."""
    words = torch.randint(4, VOCABULARY, (8, 6), generator=generator)
    real = torch.arange(6) < torch.randint(2, 7, (8, 1), generator=generator)
    return {"input_ids": words, "attention_mask": real.long(), "labels": torch.where(real, words, -100)}


def test_losses_of_80_steps_are_those_of_float32(monkeypatch):
    losses = {}
    for mixed in (False, True):
        if mixed:
            card.on_card(monkeypatch)
        model, generator = tiny_model(dropout=0.0).train(), torch.Generator().manual_seed(3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        for _ in range(80):
            losses.setdefault(mixed, []).append(step(model, draw_batch(generator), mixed))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    exact, found = (torch.tensor(losses[mixed]).view(4, 20).mean(1) for mixed in (False, True))
    assert (found / exact - 1).abs().max() < 0.03


def test_what_is_cast_and_what_gets_a_gradient(monkeypatch):
    """Tied weights stay tied, frozen ones get no gradient, and what no loss used has none."""
    card.on_card(monkeypatch)
    model = tiny_model().train()
    model.unused = nn.Linear(3, 3)
    frozen = model.model.encoder.layers[0].feed_forward.fc1.weight.requires_grad_(False)
    norm = model.model.encoder.layers[0].feed_forward_sublayer.layer_norm.weight
    batch, weights = draw_batch(torch.Generator()), HalfWeights(model)
    with torch.autocast("cpu", dtype=torch.bfloat16), weights.cast():
        assert model.lm_head.weight is model.model.encoder.embed_tokens.weight
        assert (
            model.lm_head.weight.dtype == model.model.encoder.layers[0].feed_forward.fc1.weight.dtype == torch.bfloat16
        )
        assert not model.model.encoder.layers[0].feed_forward.fc1.weight.requires_grad
        assert model.model.encoder.layers[0].feed_forward_sublayer.layer_norm.weight is norm
        model(**batch, loss_only=True).loss.backward()
    assert model.model.encoder.layers[0].feed_forward.fc1.weight is frozen
    assert frozen.grad is None
    assert model.unused.weight.grad is None
    assert model.lm_head.weight.grad.dtype == norm.grad.dtype == torch.float32


def test_where_nothing_is_cast(monkeypatch):
    """On a CPU, in evaluation, without autocast; after an error everything is in its place."""
    model = tiny_model().train()
    kept, weights = model.lm_head.weight, HalfWeights(model)
    with torch.autocast("cpu", dtype=torch.bfloat16), weights.cast():
        assert model.lm_head.weight is kept
    card.on_card(monkeypatch)
    with weights.cast():
        assert model.lm_head.weight is kept
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), weights.cast():
        assert model.lm_head.weight is kept
    with pytest.raises(KeyError), torch.autocast("cpu", dtype=torch.bfloat16), weights.cast():
        assert model.lm_head.weight is not kept
        raise KeyError
    assert model.lm_head.weight is kept


@pytest.mark.parametrize("reentrant", [True, False])
def test_layers_that_are_computed_twice(reentrant, monkeypatch):
    """Gradient checkpointing runs a layer again when the block is over; with the dropout it had."""
    card.on_card(monkeypatch)
    monkeypatch.setattr(half_weights, "one_draw", nullcontext)  # or the step to compare with would draw otherwise
    found = []
    for again in (False, True):
        model = tiny_model(dropout=0.3).train()
        if again:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(2)
        found.append([step(model, draw_batch(torch.Generator())), gradients(model)])
    assert_same(*found, 1e-2)


def test_adapters(monkeypatch):
    """LoRA's matrices learn, those they are added to do not; those that are left alone are fused as ever."""
    card.on_card(monkeypatch)
    options = {"target_modules": ["qkv_proj", "fc1"], "r": 2, "lora_dropout": 0.1}
    model = get_peft_model(tiny_model(), LoraConfig(**options)).train()
    step(model, draw_batch(torch.Generator()))
    learned = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert learned == {name for name, weight in model.named_parameters() if "lora" in name}


def test_launches_of_a_step(monkeypatch):
    """Of the baseline in its depth, with the update; each kernel counts as one."""
    launches = card.Launches()
    card.on_card(monkeypatch, launches.kernels())
    model = tiny_model(encoder_layers=6, decoder_layers=6).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = draw_batch(torch.Generator())
    for counted in (nullcontext(), launches):  # the first step allots what the optimizer remembers
        with counted:
            step(model, batch)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
        optimizer.zero_grad()
        launches.number = launches.number if counted is launches else 0
    assert launches.number <= 460
    assert launches.draws <= 3  # of one for all sublayers, and the embeddings' own


def test_a_layer_around_a_recurrent_module_stays_as_it_is_even_if_the_module_is_another_layers_too():
    class Layer(GradientCheckpointingLayer):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.linear = inner, nn.Linear(2, 2)

    shared = nn.GRUCell(2, 2)
    model = nn.ModuleList([Layer(shared), Layer(shared), Layer(nn.Linear(2, 2)), nn.Linear(2, 2)])
    cast = {id(held[name]) for held, name in HalfWeights(model).places if held[name] is not None}
    assert cast == {id(weight) for layer in (model[2], model[3]) for weight in layer.parameters()}
