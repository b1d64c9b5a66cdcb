"""AIF dependency: by hand, against loops, and of a model, where W = 0 in the weights themselves is the other model."""

from __future__ import annotations

import math

import pytest
import torch
from reference import analysis as reference

from hf_mlnmt.analysis.reading import encode_sources, own_translations
from hf_mlnmt.analysis.self_attention import (
    SentenceDependency,
    attention_dependency,
    dependency,
    dependency_rows,
    kl_of_logits,
    kl_of_weights,
)
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.loading import load

TEXTS = ["A dog sees the red house.", "Two women ride.", "A man."]


def test_by_hand():
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.5, 0.25])
    assert kl_of_weights(p, q).item() == pytest.approx(0.5 * math.log(2))
    assert kl_of_logits(q.log(), (q * 3).log()).item() == pytest.approx(0)
    assert kl_of_logits(torch.tensor([0.0, 0.0]), torch.tensor([math.log(3), 0.0])).item() == pytest.approx(
        math.log(2) * -1 - 0.5 * math.log(0.75 * 0.25)
    )
    assert torch.isfinite(kl_of_weights(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])))


def test_padded_target_positions_do_not_count():
    weights = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
    other = torch.tensor([[[[0.5, 0.5], [0.1, 0.9]]]])
    real = torch.tensor([[True, False]])
    assert attention_dependency(weights, other, real).item() == pytest.approx(math.log(2))
    both = attention_dependency(weights, other, torch.tensor([[True, True]])).item()
    assert both == pytest.approx((math.log(2) + 0.5 * math.log(5) + 0.5 * math.log(5 / 9)) / 2)


def test_of_a_model_against_one_whose_weights_are_zero(folders, monkeypatch):
    def cut(model, ids, mask, num_beams):  # random weights end no sentence: without this no target would be padded
        labels = own_translations(model, ids, mask, num_beams)
        return labels.masked_fill(torch.arange(labels.shape[1]) >= mask.sum(1, keepdim=True), -100)

    monkeypatch.setattr("hf_mlnmt.analysis.reading.own_translations", cut)
    parts = load(str(folders("ms-123-aif")))
    without = load(str(folders("ms-123-aif"))).model
    with torch.no_grad():
        for layer in without.model.decoder.layers:
            layer.fusion.weight.zero_()
    sources = encode_sources(parts, TEXTS)
    found = dependency(parts, sources)
    assert parts.model.config._attn_implementation == "sdpa"
    parts.model.set_attn_implementation("eager")
    without.set_attn_implementation("eager")
    for ids, sentence in zip(sources, found, strict=True):
        inputs = {"input_ids": torch.tensor([ids]), "labels": torch.tensor([sentence.target])}
        with torch.no_grad():
            one, other = (model(**inputs, output_attentions=True) for model in (parts.model, without))
        length = len(sentence.target)
        expected = reference.output_dependency(one.logits[0].tolist(), other.logits[0].tolist(), length)
        assert sentence.tokens == pytest.approx(expected, rel=1e-3)
        for layer in range(2):
            for head in range(2):
                pair = (x.cross_attentions[layer][0, head].tolist() for x in (one, other))
                value = reference.head_dependency(*pair, length)
                assert sentence.heads[layer, head].item() == pytest.approx(value, rel=1e-3)
    assert [len(sentence.target) for sentence in found] == [len(ids) for ids in sources]
    outputs, *attention = dependency_rows(found)
    assert outputs["value"] == pytest.approx(sum(sum(s.tokens) / len(s.tokens) for s in found) / 3)
    layers = [row["value"] for row in attention if row["head"] == "mean"]
    assert layers == pytest.approx([sum(s.heads[x].mean().item() for s in found) / 3 for x in (0, 1)])
    assert [row["of"] for row in attention] == ["attention"] * 6
    assert outputs["value"] > 0.01


def test_the_interval_by_hand():
    """Means 1, 2, 3: standard deviation 1, of their mean 1 / sqrt(3); a long sentence counts as a short one."""
    sentences = [SentenceDependency([], tokens, torch.zeros(1, 1)) for tokens in ([1.0], [1.0, 3.0], [3.0, 3.0, 3.0])]
    row = dependency_rows(sentences)[0]
    low, high = row["low"], row["high"]
    assert (low, high) == pytest.approx((2 - 1.96 / math.sqrt(3), 2 + 1.96 / math.sqrt(3)))
    assert row == {"of": "outputs", "layer": "", "head": "", "value": 2.0, "low": low, "high": high}
    assert dependency_rows(sentences[:1])[0]["low"] == ""


def test_other_models_are_refused(folders):
    for system in ("transformer", "ms-1"):
        parts = load(str(folders(system)))
        with pytest.raises(UserError, match="no auxiliary information fusion"):
            dependency(parts, encode_sources(parts, TEXTS))
