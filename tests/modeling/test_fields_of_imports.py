"""Fields for imported models: positions, offset, norm of the embeddings, output bias, epsilon of the norms."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.contract import assert_same
from helpers.searching import assert_equal_loops, compiled_step, sources, toy

from hf_mlnmt import TransformerConfig, TransformerForConditionalGeneration
from hf_mlnmt.modeling.stack import SinusoidalPositions
from hf_mlnmt.search.cpu.step import CompiledStep

FIELDS = {
    "halves": {"position_embedding": "halves"},
    "tensor2tensor from 2": {"position_embedding": "tensor2tensor", "position_offset": 2},
    "learned": {"position_embedding": "learned"},
    "norm of the embeddings": {"normalize_embedding": True},
    "output bias": {"output_bias": True},
    "epsilon": {"layer_norm_eps": 0.5},
    "all, pre, swish": {
        "position_embedding": "learned",
        "normalize_embedding": True,
        "output_bias": True,
        "layer_norm_eps": 0.5,
        "norm_position": "pre",
        "attention_bias": True,
        "activation_function": "swish",
    },
}


def formula(kind: str, t: int, d: int) -> list[float]:
    """The table of stack.py, one number after the other."""
    steps = d / 2 - 1 if kind == "tensor2tensor" else d / 2
    angles = [t * 10000 ** (-i / steps) for i in range(d // 2)]
    if kind == "interleaved":
        return [f(angle) for angle in angles for f in (math.sin, math.cos)]
    return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("kind", ["interleaved", "halves", "tensor2tensor"])
def test_sines_and_cosines(kind, offset):
    table = SinusoidalPositions(9, 10, kind, offset).table
    expected = [formula(kind, t + offset, 10) for t in range(9)]
    assert_same(table.double(), torch.tensor(expected, dtype=torch.float64), 1e-6)


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_each_field_changes_the_outputs_and_survives_saving(fields, tmp_path):
    model, batch = varied(fields), sources([5, 3])
    batch["decoder_input_ids"] = torch.tensor([[3, 9, 20], [3, 77, 5]])
    logits = model(**batch).logits
    plain = toy()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if name in plain.state_dict()})
    assert (plain(**batch).logits - logits).abs().max() > 1e-3
    model.save_pretrained(tmp_path)
    loaded = TransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert_same(loaded(**batch).logits, logits)


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_the_compiled_step_computes_the_field(fields, monkeypatch):
    model, steps = varied(fields), []
    run = CompiledStep.__call__
    monkeypatch.setattr(CompiledStep, "__call__", lambda *a: (steps.append(1), run(*a))[1])
    assert_equal_loops(model, monkeypatch, **sources([5, 9, 3]), num_beams=4, max_new_tokens=8)
    assert steps, "the step was not compiled"


def varied(fields):
    """A toy whose norms, biases and learned tables are all different from their first values."""
    model = toy(**fields).eval()
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or name.endswith("table"):
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def test_a_decoder_start_outside_the_learned_table_is_refused():
    model = toy(position_embedding="learned", max_position_embeddings=4)
    with pytest.raises(ValueError, match="max_position_embeddings=4"):
        model(**sources([5]), decoder_input_ids=torch.tensor([[3]]))


def test_resizing_keeps_the_bias():
    model = varied({"output_bias": True})
    before = model.lm_head.bias.detach().clone()
    model.resize_token_embeddings(len(before) + 7)
    assert model.lm_head.bias.shape == (len(before) + 7,)
    assert torch.equal(model.lm_head.bias[: len(before)], before)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position_offset": -1}, "position_offset=-1"),
        ({"position_offset": 2, "position_embedding": "learned"}, "position_offset=2"),
        ({"position_embedding": "relative"}, "position_embedding"),
    ],
)
def test_bad_fields(fields, message):
    with pytest.raises(Exception, match=message):
        TransformerConfig(**fields)


def test_weights_that_lie_transposed_in_memory(monkeypatch):
    """As another toolkit's matrices do: what search.c reads must be a copy that is still there."""
    model = toy(d_model=64, encoder_ffn_dim=128, decoder_ffn_dim=128, decoder_layers=3)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = module.weight.data.t().contiguous().t()
    assert_equal_loops(model, monkeypatch, **sources([5, 9, 3]), num_beams=3)


def test_another_norm_of_the_embeddings_is_called_as_a_module(monkeypatch):
    model = varied({"normalize_embedding": True})
    model.model.decoder.embedding_norm = torch.nn.RMSNorm(model.config.d_model).double()
    assert compiled_step(model) is None
    assert_equal_loops(model, monkeypatch, **sources([5, 9]), num_beams=3)
