"""Products in int8 in training: the rule and its gradients against loops, what is rounded, what it cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.export_toys import joint_tokenizer, toy_model
from helpers.model_folders import SENTENCES

from hf_mlnmt import UserError
from hf_mlnmt.generation.translating.loading import Parts
from hf_mlnmt.recipe.reading import recipe_of
from hf_mlnmt.training.objectives import Translation
from hf_mlnmt.training.quantisation_aware import RoundedProducts, calibrate, rounded_weight

pytestmark = pytest.mark.usefixtures("one_thread")
EMBEDDINGS = ("model.encoder.embed_tokens", "model.decoder.embed_tokens")
NARROW = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_layers": 1, "dropout": 0.0}


def test_a_layer_computes_and_learns_as_the_rule_says():
    """The unit's input of the first decoder layer: Marian has a multiplier for each of a layer's matrices."""
    model = toy_model(joint_tokenizer(), "ssru", **NARROW).double()
    layer, alpha = model.model.decoder.layers[0].source_attn.kv_proj, 40.0
    rounded = RoundedProducts(model, dict.fromkeys([name for name, _ in model.named_modules()], alpha))
    states = (3 * torch.randn(3, 16, dtype=torch.float64)).requires_grad_()
    by_output = torch.randn(3, 32, dtype=torch.float64)
    weight = layer.weight.detach().clone()
    with rounded.computing():
        output = layer(states)
        output.backward(by_output)
    assert torch.equal(layer.weight, weight)
    expected, by_states, by_weight = np.zeros((3, 32)), np.zeros((3, 16)), np.zeros((32, 16))
    for row, out in np.ndindex(3, 32):
        matrix = weight[:16] if out < 16 else weight[16:]
        multiplier = 127 / matrix.abs().max().item()
        for i in range(16):
            step = round(states[row, i].item() * alpha)
            x, w = max(-127, min(127, step)) / alpha, round(weight[out, i].item() * multiplier) / multiplier
            expected[row, out] += x * w
            by_states[row, i] += by_output[row, out].item() * w * (abs(step) <= 127)
            by_weight[out, i] += by_output[row, out].item() * x
        expected[row, out] += layer.bias[out].item()
    assert (states.detach().abs() * alpha > 128).any()
    np.testing.assert_allclose(output.detach(), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(states.grad, by_states, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(layer.weight.grad, by_weight, rtol=1e-9, atol=1e-12)


def test_every_product_and_embedding_is_rounded_and_nothing_stays_so():
    """And the zeros that the decoder begins with stay zeros."""
    tokenizers = joint_tokenizer()
    model = toy_model(tokenizers, "ssru", **NARROW).train()
    start = model.config.decoder_start_token_id
    with torch.no_grad():
        model.lm_head.weight[start] = 0
    parts, texts = Parts(model, tokenizers), [*SENTENCES[:4], " ".join(SENTENCES[:9])]  # the last has too many subwords
    alphas = calibrate(parts, texts)
    dropouts = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    for dropout in dropouts:
        dropout.p = 0.5
    assert calibrate(parts, texts) == pytest.approx(alphas, rel=1e-3)
    for dropout in dropouts:
        dropout.p = 0.0
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    layers = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    assert alphas.keys() == layers
    objective = Translation(model.config.pad_token_id, 0.1)
    batch = objective.collate([{"input_ids": x, "labels": x} for x in tokenizers.encode_source(SENTENCES[:3])])
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    matrices = {name: model.get_submodule(name).weight.clone() for name in [*layers, *EMBEDDINGS]}
    plain = objective.loss(model, batch)[0]
    with RoundedProducts(model, alphas).computing(), torch.no_grad():
        rounded = objective.loss(model, batch)[0]
        for name, plain_weight in matrices.items():
            steps = (model.get_submodule(name).weight - plain_weight).abs().max() / plain_weight.abs().max()
            assert 0 < steps < 1 / 253, name
    for name in layers:  # an alpha so small that the inputs of this product are rounded away
        with RoundedProducts(model, {**alphas, name: 1e-6}).computing(), torch.no_grad():
            assert abs(objective.loss(model, batch)[0] - rounded) > 1e-4, name
    with RoundedProducts(model, alphas).computing():
        loss = objective.loss(model, batch)[0]
        loss.backward()
    assert 1e-6 < abs(loss - plain) < 0.3
    assert not model.lm_head.weight.grad[start].any()
    assert all(weight.grad is not None and torch.equal(weight, before[n]) for n, weight in model.named_parameters())
    assert torch.equal(objective.loss(model, batch)[0], plain)
    with torch.no_grad():  # what is never but 0 is divided by nothing
        model.model.encoder.layers[0].feed_forward.fc1.weight.zero_()
        model.model.encoder.layers[0].feed_forward.fc1.bias.fill_(-1.0)
    assert calibrate(parts, texts[:1])["model.encoder.layers.0.feed_forward.fc2"] == 127
    assert not rounded_weight(torch.zeros(4, 3), 2).any()


def test_what_cannot_be_rounded():
    with pytest.raises(UserError, match="students of system ssru"):
        RoundedProducts(toy_model(joint_tokenizer()), {})
    files = {"files": {"source": "a.en", "target": "a.de"}}
    content = {"languages": {"source": "en", "target": "de"}, "data": {"train": files, "dev": files}}
    content |= {"budget": {"steps": 10}, "precision": {"int8": True, "dtype": "auto"}}
    with pytest.raises(UserError, match=r"precision\.int8: rounds in float32"):
        recipe_of(content, Path("x.yaml"))
