"""The baseline against tests/reference/transformer.py: values and gradients; its sizes, config and first weights."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.contract import SEPARATE, TINY, Batch, assert_same, check_training, redraw
from helpers.reference_parameters import parameters_of
from huggingface_hub.errors import StrictDataclassError
from reference import transformer as reference

from hf_mlnmt import TransformerConfig, TransformerForConditionalGeneration, UserError, config_for
from hf_mlnmt.modeling.fused import kernels_without_plans
from hf_mlnmt.modeling.layers import Sublayer

VARIANTS = {
    "post": {},
    "pre": {"norm_position": "pre"},
    "post, separate": SEPARATE,
    "pre, untied": {"norm_position": "pre", "tie_word_embeddings": False, **SEPARATE},
    "biased": {"attention_bias": True},
    "one layer": {"encoder_layers": 1, "decoder_layers": 1},
    "four heads": {"encoder_attention_heads": 4, "decoder_attention_heads": 4},
}


POSITIONS = torch.stack([reference.position(t, TINY["d_model"]) for t in range(64)])


def build(fields) -> TransformerForConditionalGeneration:
    model = TransformerForConditionalGeneration(config_for("transformer", "tiny", **{**TINY, **fields})).eval().double()
    redraw(model, seed=2, std=None)
    return model


def test_the_loss_is_of_all_positions_also_where_few_logits_are_kept():
    model, batch = build({}), Batch.draw(3, sources=(4, 2, 3), targets=(3, 4, 2))
    out = model(**batch.training, logits_to_keep=1)
    assert out.logits.shape[1] == 1
    assert_same(out.loss, model(**batch.training).loss)


def test_a_cache_is_returned_unless_there_are_labels():
    model, batch = build({}), Batch.draw()
    assert model(**batch.training).past_key_values is None
    assert model(**batch.training, use_cache=True).past_key_values is not None
    assert model(**batch.inputs).past_key_values is not None


@pytest.mark.parametrize("variant", VARIANTS)
def test_values_and_gradients_equal_the_reference(variant):
    model = build(VARIANTS[variant])
    batch = Batch.draw(3, sources=(4, 2), targets=(2, 3))
    batch.source_mask[0, 1] = 0  # a hole, as the pseudo-tasks make them
    heads, pre = model.config.encoder_attention_heads, model.config.norm_position == "pre"
    scores = reference.logits(
        parameters_of(model), batch.source.tolist(), batch.source_mask.tolist(), batch.target.tolist(), heads, pre
    )
    check_training(model, batch, scores, reference.loss(scores, batch.labels.tolist(), smoothing=0.1))


def test_every_state_of_the_encoder_equals_the_reference():
    model = build({"norm_position": "pre"})
    batch = Batch.draw(4, sources=(5, 3), targets=(2, 2))
    states = model.get_encoder()(**batch.encoder_inputs, output_hidden_states=True).hidden_states
    for row in range(2):
        real = batch.source_mask[row].bool()
        expected = reference.encode(parameters_of(model), batch.source[row].tolist(), real.tolist(), 2, True)
        for layer, state in enumerate(states):
            assert_same(state[row][real], torch.stack(expected[layer])[real])


def test_positions_are_as_exact_as_the_model(tmp_path):
    """float64 has its own digits, however the model came to it; float32 has the nearest numbers, also after bfloat16.

    The rates are rounded to 2^-53, which at angles up to 64 makes 64 times as much.
    """
    bounds = {torch.float64: 2.0**-46, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}

    def check(model, dtype):
        for stack in (model.get_encoder(), model.get_decoder()):
            assert stack.positions.table.dtype == dtype
            assert_same(stack.positions.table.double(), POSITIONS, bounds[dtype])

    model = TransformerForConditionalGeneration(TransformerConfig(**TINY))
    check(model, torch.float32)
    model.save_pretrained(tmp_path)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        check(model.to(dtype), dtype)
        check(TransformerForConditionalGeneration.from_pretrained(tmp_path, dtype=dtype), dtype)


def counted(shape: str, **fields) -> float:
    with torch.device("meta"):
        return TransformerForConditionalGeneration(config_for("transformer", shape, **fields)).num_parameters() / 1e6


def by_hand(layers: int, d: int, d_ff: int, vocabulary: int, bias: bool = False) -> int:
    """One embedding, four d x d projections an attention, two norms an encoder layer and three a decoder layer."""
    attention = 4 * d * d + (4 * d if bias else 0)
    feed_forward = 2 * d * d_ff + d + d_ff
    return vocabulary * d + layers * (3 * attention + 2 * feed_forward + 5 * 2 * d)


def test_parameter_counts():
    """Thesis on joint attention, tables 3.2, 4.6a: base 61.2 M, about 33k joint entries; small 12.8 M, about 21k.

    33,400 and 21,400 entries give these figures, and so does every vocabulary within 100 and 200 entries of them.
    """
    assert counted("base", vocab_size=33400) == pytest.approx(61.2, abs=0.05)
    assert counted("base", vocab_size=33400) * 1e6 == by_hand(6, 512, 2048, 33400)
    assert counted("small", vocab_size=21400) == pytest.approx(12.8, abs=0.05)
    assert counted("small", vocab_size=21400) * 1e6 == by_hand(4, 256, 1024, 21400)
    assert counted("tiny", vocab_size=8000) * 1e6 == by_hand(4, 128, 256, 8000)


def test_parameter_counts_of_the_options():
    tied = counted("small", vocab_size=9000)
    assert counted("small", vocab_size=9000, attention_bias=True) * 1e6 == by_hand(4, 256, 1024, 9000, bias=True)
    assert counted("small", vocab_size=9000, norm_position="pre") - tied == pytest.approx(4 * 256 / 1e6)
    separate = {"vocab_size": 9000, "decoder_vocab_size": 7000, "share_encoder_decoder_embeddings": False}
    assert counted("small", **separate) - tied == pytest.approx(7000 * 256 / 1e6)
    untied = counted("small", **separate, tie_word_embeddings=False)
    assert untied - tied == pytest.approx(14000 * 256 / 1e6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 18, "encoder_attention_heads": 4}, "encoder_attention_heads=4"),
        ({"d_model": 18, "decoder_attention_heads": 4}, "decoder_attention_heads=4"),
        ({"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 3}, "d_model=15"),
        ({"decoder_attention_heads": 0}, "decoder_attention_heads=0"),
        ({"encoder_layers": 0}, "encoder_layers=0"),
        ({"decoder_layers": -1}, "decoder_layers=-1"),
        ({"encoder_ffn_dim": 0}, "encoder_ffn_dim=0"),
        ({"decoder_ffn_dim": -1}, "decoder_ffn_dim=-1"),
        ({"init_std": float("nan")}, "init_std=nan: must be a finite number above 0"),
        ({"init_std": 0.0}, "init_std=0.0"),
        ({"layer_norm_eps": -1.0}, "layer_norm_eps=-1.0"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"max_position_embeddings": 0}, "max_position_embeddings=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout=-0.1"),
        ({"activation_dropout": 2}, "activation_dropout=2"),
        ({"decoder_vocab_size": 20}, "share_encoder_decoder_embeddings=False"),
        ({"activation_function": "nope"}, "activation_function='nope': must be one of .*relu"),
        ({"norm_position": "middle"}, "norm_position"),
        ({"d_model": "16"}, "d_model"),
        ({"encoder_layers": 2.0}, "encoder_layers"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_config_is_refused(fields, message):
    with pytest.raises((StrictDataclassError, ValueError), match=message):
        TransformerConfig(**{**TINY, **fields})


def test_unknown_names_are_user_errors():
    with pytest.raises(UserError, match="did you mean 'transformer'"):
        config_for("transfomer")
    with pytest.raises(UserError, match="did you mean 'tiny'"):
        config_for("transformer", "tinny")
    with pytest.raises(UserError, match="did you mean 'encoder_layers'"):
        config_for("transformer", "tiny", encoder_layer=3)


def test_decoder_vocabulary_defaults_to_the_sources():
    assert TransformerConfig(vocab_size=77).decoder_vocab_size == 77
    assert TransformerConfig(vocab_size=77).get_text_config(decoder=True).vocab_size == 77
    two = TransformerConfig(vocab_size=77, decoder_vocab_size=55, share_encoder_decoder_embeddings=False)
    assert two.get_text_config(decoder=True).vocab_size == 55


def test_first_weights():
    """Xavier-uniform matrices, embeddings N(0, 1/d), norms one and zero; with init_std everything N(0, std^2)."""
    torch.manual_seed(0)
    model = TransformerForConditionalGeneration(config_for("transformer", "tiny", vocab_size=2000, attention_bias=True))
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            bound = math.sqrt(6 / sum(module.weight.shape))
            assert float(module.weight.detach().abs().max()) == pytest.approx(bound, rel=0.01), name
            assert float(module.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.05), name
            assert not module.bias.any(), name
        if isinstance(module, torch.nn.Embedding):
            assert float(module.weight.detach().std()) == pytest.approx(128**-0.5, rel=0.05)
        if isinstance(module, torch.nn.LayerNorm):
            assert (module.weight == 1).all()
            assert not module.bias.any()
    small = TransformerForConditionalGeneration(config_for("transformer", "tiny", vocab_size=2000, init_std=0.02))
    for name, parameter in small.named_parameters():
        if parameter.dim() > 1:
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.05), name


def test_attention_on_a_gpu_is_by_kernels_that_plan_no_shape():
    """Which are asked for is known without a GPU; a CPU is left alone."""
    allowed = torch.backends.cuda.cudnn_sdp_enabled()
    with kernels_without_plans(torch.device("cuda")):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == allowed
    with kernels_without_plans(torch.device("cpu")):
        assert torch.backends.cuda.cudnn_sdp_enabled() == allowed


def test_a_sublayer_drops_what_it_computes_and_no_residual():
    """Equation 3 of layers.py: x + dropout(f(LN(x)))."""
    sublayer = Sublayer(config_for("transformer", "tiny", norm_position="pre", dropout=0.5)).train()
    states = torch.randn(50, 128)
    added = sublayer(states, lambda x: torch.ones_like(x)) - states
    assert set(added.round().unique().tolist()) == {0.0, 2.0}
