"""Attention distance and entropy: by hand, against loops, and of real models' own weights, with padding that counts."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from reference import analysis as reference

from hf_mlnmt.analysis.reading import (
    attending,
    draw_sample,
    encode_sources,
    encoder_passes,
    forced_passes,
    own_translations,
    usable_indices,
)
from hf_mlnmt.analysis.self_attention import distance_sums, entropy_sums, head_rows, head_table
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.loading import load

TEXTS = ["A dog sees the red house.", "Two women ride.", "A man."]

# Two sentences of one head: three positions, and two with one of padding, which takes weight on purpose.
WEIGHTS = torch.tensor(
    [
        [[[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]],
        [[[0.25, 0.25, 0.5], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]],
    ]
)
REAL = torch.tensor([[True, True, True], [True, True, False]])
H = 0.5 * math.log(2)  # -0.5 log 0.5, and -0.25 log 0.25 too


@pytest.mark.parametrize(
    ("positions", "above", "below", "entropies"),
    [
        # rows of j <= i: .5 | .5 .25 | .25 .25 .5 ; .25 | .5 .5
        ("printed", 0.5 + (0.5 + 0.25) + 0.5, 0.5 + 0.75 + 1 + 0.25 + 1, H + 2 * H + 3 * H + H + 2 * H),
        # all real: rows .5 .25 .25 | .5 .25 .25 | .25 .25 .5 ; .25 .25 | .5 .5
        ("all", 0.75 + 0.75 + 0.75 + 0.25 + 0.5, 4.5, 9 * H + 2 * H + 2 * H),
    ],
)
def test_by_hand(positions, above, below, entropies):
    assert [x.item() for x in distance_sums(WEIGHTS, REAL, positions)] == pytest.approx([above, below])
    total, count = entropy_sums(WEIGHTS, REAL, positions)
    assert (total.item(), count.item()) == (pytest.approx(entropies), 5)


@pytest.mark.parametrize("positions", ["printed", "all"])
def test_against_loops(positions):
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(3, 2, 4, 6, 6, generator=generator, dtype=torch.float64).mul(3).softmax(-1)
    lengths = [6, 3, 1]
    real = torch.arange(6) < torch.tensor(lengths)[:, None]
    for sums, slow in ((distance_sums, reference.distance), (entropy_sums, reference.entropy)):
        above, below = sums(weights, real, positions)
        for unit in range(2):
            for head in range(4):
                sentences = [(weights[b, unit, head].tolist(), lengths[b]) for b in range(3)]
                expected = slow(sentences, positions == "printed", False)
                assert (above / below)[unit, head].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("system", ["transformer", "full-dc", "ms-1-aif"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_of_models_in_batches_and_one_by_one(folders, monkeypatch, system, side):
    parts = load(str(folders(system)))
    sources = encode_sources(parts, TEXTS)
    targets = [ids[:length] for ids, length in zip(sources, (3, 5, 2))]
    found = head_table(parts, sources, "distance", side, "all", targets)
    monkeypatch.setattr("hf_mlnmt.analysis.reading.BATCH_TOKENS", 1)
    again = head_table(parts, sources, "distance", side, "all", targets)
    assert [row["value"] for row in head_rows(again)] == pytest.approx(
        [row["value"] for row in head_rows(found)], rel=1e-5
    )
    assert parts.model.config._attn_implementation == "sdpa"
    units = ["local", "global"] if system == "full-dc" else [""]
    assert [list(layer) for layer in found] == [units] * 2
    sentences = []
    for ids, target in zip(sources, targets):
        (one,) = forced_passes(attending(parts), [ids], [target], output_attentions=True)
        sentences.append(getattr(one.output, f"{side}_attentions"))
    for number, layer in enumerate(found):
        for index, unit in enumerate(units):
            for head in range(2):
                weights = [layers[number][0] for layers in sentences]
                weights = [w[index, head] if len(units) == 2 else w[head] for w in weights]
                expected = reference.distance([(w.tolist(), len(w)) for w in weights], False, False)
                assert layer[unit][head].item() == pytest.approx(expected, rel=1e-5)


def test_the_decoder_reads_its_own_greedy_translation(folders):
    parts = load(str(folders("transformer")))
    sources = encode_sources(parts, TEXTS)
    passes = list(forced_passes(parts, sources, output_attentions=False))
    for one in passes:
        shorter = one.source_real.sum(1) < one.source.shape[1]
        assert shorter.any()  # padding is there to be wrong about
        for row, index in enumerate(one.indices):
            expected = parts.model.generate(
                input_ids=torch.tensor([sources[index]]),
                num_beams=1,
                do_sample=False,
                max_new_tokens=len(one.labels[0]),
            )[0, 1:]
            assert one.labels[row, one.target_real[row]].tolist() == expected.tolist()


def test_labels_end_with_the_end_of_the_sentence():
    rows = torch.tensor([[3, 5, 6, 1, 0, 0], [3, 7, 8, 9, 4, 1], [3, 7, 8, 9, 4, 2]])
    model = SimpleNamespace(
        config=SimpleNamespace(max_position_embeddings=64),
        generation_config=SimpleNamespace(eos_token_id=1),
        generate=lambda **arguments: rows,
    )
    found = own_translations(model, rows, torch.ones_like(rows))
    assert found.tolist() == [[5, 6, 1, -100, -100], [7, 8, 9, 4, 1], [7, 8, 9, 4, 2]]


def test_means_and_rows():
    layers = [{"": torch.tensor([1.0, 3.0])}, {"local": torch.tensor([4.0]), "global": torch.tensor([5.0])}]
    assert [tuple(row.values()) for row in head_rows(layers)] == [
        (1, "", 1, 1.0),
        (1, "", 2, 3.0),
        (2, "local", 1, 4.0),
        (2, "global", 1, 5.0),
        (1, "", "mean", 2.0),
        (2, "local", "mean", 4.0),
        (2, "global", "mean", 5.0),
    ]


def test_samples(folders):
    systems = {"": load(str(folders("transformer")))}
    sources = [" " if i % 10 == 0 else f"A man {i}." for i in range(200)]
    drawn, again, other = (draw_sample(systems, sources, size=20, seed=seed) for seed in (1, 1, 2))
    assert drawn == again != other
    assert (len(set(drawn.lines)), drawn.left_out, drawn.lines) == (20, 20, sorted(drawn.lines))
    assert drawn.sources == [sources[line - 1] for line in drawn.lines]
    assert (
        len(draw_sample(systems, sources, size=999).lines) == len(draw_sample(systems, sources, size=None).lines) == 180
    )


def test_refusals(folders):
    parts = load(str(folders("transformer")))
    with pytest.raises(UserError, match="sentence 2 is empty"):
        encode_sources(parts, ["A dog.", " "])
    with pytest.raises(UserError, match=r"sentence 1 has .* subwords, the model takes 64"):
        encode_sources(parts, ["A dog. " * 40])
    assert usable_indices(parts, ["A dog.", " ", "A dog. " * 40, "A man."]) == [0, 3]
    with pytest.raises(UserError, match="no sentences"):
        list(encoder_passes(parts, []))
