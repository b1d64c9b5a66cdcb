"""Divergence of the two units of the dual contextual module: by hand, against loops, of models."""

from __future__ import annotations

import math

import pytest
import torch
from reference import analysis as reference

from hf_mlnmt.analysis.reading import encode_sources
from hf_mlnmt.analysis.self_attention import collect_divergences, divergence, jensen_shannon, unit_divergence
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.loading import load

TEXTS = ["A dog sees the red house.", "Two women ride.", "A man."]


def test_by_hand():
    apart = jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    assert apart.item() == pytest.approx(math.log(2))
    # m = (.75, .25): (log 4/3)/2 + (.5 log 2/3 + .5 log 2)/2
    half = jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))
    assert half.item() == pytest.approx(0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3) + 0.25 * math.log(2))


def test_a_maximum_is_renormalised_and_the_padded_row_does_not_count():
    # Heads of the first unit look at 0 and at 1: the maximum is (1, 1), a half each; the second unit looks at 0.
    local = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]]])
    whole = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]]])
    expected = 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3) + 0.25 * math.log(2)
    assert unit_divergence(whole, local)[0, 0].item() == pytest.approx(expected)
    layer = torch.stack([local, whole], dim=1)
    real = torch.tensor([[True, False]])  # the second row would give log 2
    assert collect_divergences([([layer], real)]) == {1: pytest.approx(expected)}


def test_against_loops():
    generator = torch.Generator().manual_seed(1)
    lengths = [5, 2]
    real = torch.arange(5) < torch.tensor(lengths)[:, None]
    scores = torch.randn(2, 2, 3, 5, 5, generator=generator, dtype=torch.float64) * 2
    weights = scores.masked_fill(~real[:, None, None, None], -torch.inf).softmax(-1)
    plain = weights[:, 0]  # a layer outside of the module's range
    found = collect_divergences([([plain, weights], real)])
    sentences = [(weights[b, 0].tolist(), weights[b, 1].tolist(), lengths[b]) for b in range(2)]
    assert found == {2: pytest.approx(reference.divergence(sentences, False), rel=1e-12)}


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_of_a_model_padding_changes_nothing(folders, side):
    parts = load(str(folders("full-dc")))
    sources = encode_sources(parts, TEXTS)
    targets = [ids[:length] for ids, length in zip(sources, (3, 5, 2))]
    together = divergence(parts, sources, side, targets=targets)
    single = [divergence(parts, [ids], side, targets=[target]) for ids, target in zip(sources, targets)]
    counts = [len(ids) for ids in (sources if side == "encoder" else targets)]
    for layer in (1, 2):
        mean = sum(alone[layer] * count for alone, count in zip(single, counts)) / sum(counts)
        assert 1e-3 < together[layer] == pytest.approx(mean, rel=1e-4)
        assert together[layer] < math.log(2)


def test_refusals(folders):
    parts = load(str(folders("enc-dc")))
    with pytest.raises(UserError, match="no dual contextual module in its decoder"):
        divergence(parts, encode_sources(parts, TEXTS), "decoder")
    plain = load(str(folders("transformer")))
    with pytest.raises(UserError, match="no dual contextual module in its encoder"):
        divergence(plain, encode_sources(plain, TEXTS))
