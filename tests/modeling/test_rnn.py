"""The attentive LSTM against tests/reference/rnn.py: values and gradients; its sizes, first weights and state."""

from __future__ import annotations

import functools

import pytest
import torch
from helpers.ahead import run_ahead
from helpers.contract import SEPARATE, TINY, Batch, assert_same, check_training, redraw
from huggingface_hub.errors import StrictDataclassError
from reference import rnn as reference
from reference.transformer import loss as reference_loss
from torch.nn.functional import pad

from hf_mlnmt import config_for
from hf_mlnmt.modeling import LSTM, Packing, RNNForConditionalGeneration
from hf_mlnmt.modeling.rnn_layers import LoopProduct

VARIANTS = {
    "feeding": {},
    "no feeding": {"input_feeding": False},
    "separate, three layers": {"encoder_layers": 3, "decoder_layers": 3, **SEPARATE},
    "one layer, unscaled": {"encoder_layers": 1, "decoder_layers": 1, "scale_embedding": False},
}


def build(**fields) -> RNNForConditionalGeneration:
    model = RNNForConditionalGeneration(config_for("rnn", "tiny", **{**TINY, **fields})).eval().double()
    redraw(model, seed=2, std=None)
    return model


def cell_of(lstm, end: str = "") -> tuple:
    return tuple(getattr(lstm, f"{name}_l0{end}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))


def parameters_of(model) -> dict:
    """The model's own parameters under the reference's names."""
    encoder, decoder = model.get_encoder(), model.get_decoder()
    return {
        "source_embedding": encoder.embed_tokens.weight,
        "target_embedding": decoder.embed_tokens.weight,
        "projection": model.lm_head.weight,
        "scale": encoder.embed_scale,
        "encoder": [(cell_of(layer.lstm), cell_of(layer.lstm, "_reverse")) for layer in encoder.layers],
        "decoder": [cell_of(lstm) for lstm in decoder.recurrence.lstms],
        "attention": decoder.recurrence.attention.k_proj.weight,
        "combine": decoder.recurrence.attention.out_proj.weight,
    }


def test_the_embeddings_are_dropped_once():
    """They have a dropout of their own: the first layer reads them as they are."""
    layers = build(encoder_layers=3, decoder_layers=3, dropout=0.3).get_encoder().layers
    assert [layer.dropout.p for layer in layers] == [0.0, 0.3, 0.3]


@pytest.mark.parametrize("variant", VARIANTS)
def test_values_and_gradients_equal_the_reference(variant):
    model = build(**VARIANTS[variant])
    batch = Batch.draw(3, sources=(4, 2, 3), targets=(3, 4, 2))
    batch.source_mask[0, 1] = 0  # a hole, beside padding on the right
    source, mask, target = (x.tolist() for x in (batch.source, batch.source_mask, batch.target))
    scores = reference.logits(parameters_of(model), source, mask, target, model.config.input_feeding)
    check_training(model, batch, scores, reference_loss(scores, batch.labels.tolist(), smoothing=0.1))


class Doubling(torch.nn.Module):
    """In the place of a dropout: where it stands can be seen."""

    def forward(self, states):
        return 2 * states


@pytest.mark.parametrize("variant", VARIANTS)
def test_where_dropout_stands(variant):
    """On what an upper layer reads and on the attentional state, also where it is fed back; h itself is not dropped."""
    model, batch = build(**VARIANTS[variant]), Batch.draw(3, sources=(4, 2, 3), targets=(3, 4, 2))
    for layer in [*model.get_encoder().layers[1:], model.get_decoder().recurrence]:
        layer.dropout = Doubling()
    inputs = batch.source.tolist(), batch.source_mask.tolist(), batch.target.tolist()
    expected = reference.logits(parameters_of(model), *inputs, model.config.input_feeding, drop=lambda x: 2 * x)
    assert_same(model(**batch.inputs).logits, expected)


def test_padding_on_either_side_touches_no_state():
    """The encoder's states, and the ends of both directions, are those of the sentence alone."""
    encoder, batch = build().get_encoder(), Batch.draw(3, sources=(4, 4), targets=(2, 2))
    alone = encoder(batch.source)
    for left, right in ((0, 3), (3, 0), (2, 2)):
        around = {"pad": (left, right)}
        padded = encoder(pad(batch.source, around["pad"], value=9), pad(batch.source_mask, around["pad"]))
        assert_same(padded.last_hidden_state[:, left : left + 4], alone.last_hidden_state)
        assert_same(padded.features, alone.features)
        assert not padded.last_hidden_state[:, :left].any()


@pytest.mark.parametrize("feeding", [True, False])
def test_a_chunk_of_padding_alone_leaves_the_state(feeding):
    """The decoder's state behind a chunk that is padding for one sentence is that before it, in both ways to run."""
    model, batch = build(input_feeding=feeding), Batch.draw()
    decoder, encoded = model.get_decoder(), model.get_encoder()(**batch.encoder_inputs)
    start = decoder.begin(encoded.last_hidden_state, encoded.features)
    keys, values = decoder.recurrence.attention.project_source(encoded.last_hidden_state)
    embeds, real = decoder.embed_tokens(batch.target), batch.target_mask.bool()
    real[1] = False
    for record in (False, True):
        ends = decoder.recurrence(embeds, start, keys, values, None, real, record)[2]
        assert_same(ends[1, -1], start[1])
        assert not torch.allclose(ends[0, -1], start[0])


def test_both_ways_to_run_agree():
    """Without input feeding every layer runs in one call; while a cache records, position by position."""
    model, batch = build(input_feeding=False), Batch.draw()
    decoder, encoded = model.get_decoder(), model.get_encoder()(**batch.encoder_inputs)
    start = decoder.begin(encoded.last_hidden_state, encoded.features)
    keys, values = decoder.recurrence.attention.project_source(encoded.last_hidden_state)
    embeds, found = decoder.embed_tokens(batch.target), []
    for record in (False, True):
        attentional, weights, ends, *layers = decoder.recurrence(embeds, start, keys, values, None, None, record)
        found.append((attentional, weights, ends[:, -1], layers))
    assert_same(found[0], found[1])


def test_paper_size():
    """Section 3.1.1: embeddings and states of 512, two layers a side, 256 units a direction in the encoder."""
    config = config_for("rnn", "base", vocab_size=100, encoder_layers=2, decoder_layers=2)
    model = RNNForConditionalGeneration(config)
    direction = 4 * 256 * (512 + 256 + 2)
    decoder = 4 * 512 * (2 * 512 + 512 + 2) + 4 * 512 * (512 + 512 + 2)
    attention = 512 * 512 + 512 * 1024
    assert model.num_parameters() == 100 * 512 + 2 * 2 * direction + decoder + attention
    assert model.get_encoder().layers[0].lstm.hidden_size == 256


def test_first_weights():
    torch.manual_seed(0)
    lstm = RNNForConditionalGeneration(config_for("rnn", "tiny", vocab_size=50)).get_encoder().layers[1].lstm
    assert isinstance(lstm, LSTM)
    for end in ("", "_reverse"):
        forget = getattr(lstm, f"bias_ih_l0{end}").view(4, 64)
        assert forget.sum(1).tolist() == [0, 64, 0, 0]
        assert not getattr(lstm, f"bias_hh_l0{end}").any()
        bound = (6 / (64 + 128)) ** 0.5
        assert 0.98 * bound < getattr(lstm, f"weight_ih_l0{end}").abs().max() <= bound


def test_refused_configurations():
    with pytest.raises(StrictDataclassError, match="decoder_layers=1 differs from encoder_layers=2"):
        config_for("rnn", "tiny", decoder_layers=1)
    with pytest.raises(ValueError, match="begins with what the encoder says"):
        build().get_decoder()(torch.ones(1, 1).long())


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize(
    "sides", [[[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], [[0, 0, 1, 1, 1], [1, 0, 1, 1, 0], [0, 1, 0, 0, 1]]]
)
def test_padding_anywhere_does_not_exist(sides, start, ahead, monkeypatch):
    """Padding on the sides and holes: as PyTorch's layer reads each sentence alone, gradients too."""
    torch.manual_seed(0)
    lstm = LSTM(6, 8, bidirectional=not start).double().eval()
    real = torch.tensor([*sides, [1, 1, 1, 1, 1]]).bool()
    count = len(real)
    states = torch.randn(count, 5, 6, dtype=torch.float64, requires_grad=True)
    before = torch.randn(2, count, 8, dtype=torch.float64).unbind() if start else None
    places, ends = torch.zeros(count, 5, 8, dtype=torch.float64), []
    for row, here in enumerate(real):
        first = None if before is None else tuple(x[row : row + 1] for x in before)
        outputs, *after = lstm(states[row : row + 1, here], None, first)
        places = places.index_put((torch.tensor(row), here.nonzero()[:, 0]), outputs[0])
        ends.append(after)
    expected = (places, *(torch.cat(x) for x in zip(*ends)))
    if ahead:
        run_ahead(monkeypatch)
    found = lstm(states, Packing(real), before)
    both = []
    for outputs in (found, expected):
        both.append(torch.autograd.grad(sum((x * x).sum() for x in outputs), [states, *lstm.parameters()]))
    assert_same(found, expected)
    assert_same(both[0], both[1])


def test_a_product_has_the_gradients_of_its_equations():
    generator = torch.Generator().manual_seed(0)
    draw = functools.partial(torch.randn, dtype=torch.float64, generator=generator, requires_grad=True)

    def three_positions(matrix, bias, first):
        product = LoopProduct(matrix, bias)
        second = product(first)
        return second, product(second.tanh()), product(first * second)

    given = draw(3, 3), draw(3), draw(2, 1, 3)
    assert torch.autograd.gradcheck(three_positions, given)
    half = LoopProduct(given[0], given[1], torch.bfloat16)
    outputs = half(given[2])
    (gradient,) = torch.autograd.grad(outputs.sum(), given[0])
    assert outputs.dtype == gradient.dtype == torch.float64
    assert torch.allclose(outputs, given[2] @ given[0].t() + given[1], atol=0.1)
    frozen = LoopProduct(given[0].detach())
    assert frozen.end is None
    frozen(given[2]).sum().backward()
