"""The translation objective against loops, on our models and on others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.training_helpers import Pairs, tiny_marian, tiny_model

from hf_mlnmt.training.objectives import IGNORED, Translation, computes_own_loss


def slow_loss(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> float:
    """Position by position in float64, from the definition."""
    total = 0.0
    for row, targets in zip(logits.double(), labels):
        for scores, target in zip(row, targets):
            if target == IGNORED:
                continue
            log_p = torch.log_softmax(scores, -1)
            total -= (1 - smoothing) * log_p[target].item() + smoothing * log_p.mean().item()
    return total


def test_collate_pads_by_hand():
    examples = [
        {"input_ids": np.array([7, 8, 1], np.int32), "labels": np.array([9, 1], np.int32)},
        {"input_ids": np.array([5, 1], np.int32), "labels": np.array([6, 7, 8, 1], np.int32)},
    ]
    batch = Translation(pad_token_id=0).collate(examples)
    assert batch["input_ids"].tolist() == [[7, 8, 1], [5, 1, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[9, 1, -100, -100], [6, 7, 8, 1]]
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


@pytest.mark.parametrize("make", [tiny_model, tiny_marian])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_is_the_definition(make, smoothing):
    model = make().eval()
    assert computes_own_loss(model) == (make is tiny_model)
    objective = Translation(0, smoothing)
    batch = objective.collate(Pairs(9).examples)
    tokens = int((batch["labels"] != IGNORED).sum())
    expected = slow_loss(model(**batch).logits.detach(), batch["labels"], smoothing)
    loss, parts = objective.loss(model, batch)
    assert loss.item() == pytest.approx(expected / tokens, rel=1e-5)
    assert objective.loss(model, batch, num_items_in_batch=tokens * 3)[0].item() == pytest.approx(
        expected / tokens / 3, rel=1e-5
    )
    assert parts == {}


def test_our_models_and_others_get_the_same_gradient_for_the_same_weights():
    model = tiny_model(dropout=0.0)
    batch = Translation(0, 0.1).collate(Pairs(9).examples)
    fast, _ = Translation(0, 0.1).loss(model, batch)
    gradients = torch.autograd.grad(fast, list(model.parameters()))

    class Other(torch.nn.Module):  # the same model, its forward without the extra arguments
        def forward(self, **inputs):
            return model(**inputs)

    slow, _ = Translation(0, 0.1).loss(Other(), batch)
    for left, right in zip(gradients, torch.autograd.grad(slow, list(model.parameters()))):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)
