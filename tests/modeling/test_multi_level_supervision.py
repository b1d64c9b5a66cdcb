"""Multi-level supervision: equal to a slow reference, made of baselines, each of which can be taken out."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from helpers import contract
from helpers.contract import DECODING, TINY, Batch, assert_lively, assert_same, assert_same_decoding, gradients, redraw
from reference import multi_level_supervision as reference
from transformers import AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt import TransformerConfig, TransformerForConditionalGeneration, search
from hf_mlnmt.modeling import MultiLevelSupervisionConfig
from hf_mlnmt.modeling.layers import DecoderLayer
from hf_mlnmt.modeling.multi_level_supervision import AuxiliaryDecoder, FusionDecoderLayer
from hf_mlnmt.modeling.releases import CACHE

SIZES = {**TINY, "encoder_layers": 3}
BEAMS = {**DECODING, "num_beams": 3}


def config(**fields) -> MultiLevelSupervisionConfig:
    return MultiLevelSupervisionConfig(**{**SIZES, "auxiliary_layers": [1, 2], **fields})


def build(settings, std: float | None = 0.4, seed: int = 0):
    """A float64 model in evaluation mode with large weights and no dropout."""
    settings.dropout = 0.0
    return contract.build(settings, std, seed)


def logits_of(model, batch, **kwargs):
    with torch.no_grad():
        return model(**batch.inputs, **kwargs).logits


@pytest.mark.parametrize("loss_only", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_objective_equals_the_reference(smoothing, loss_only):
    model, batch = build(config(auxiliary_weight=0.7), std=None).train(), Batch.draw()
    captured = {}

    def supervise(outputs, *args):
        captured["states"] = [outputs.last_hidden_state, *outputs.auxiliary_states]
        return type(model).supervise(model, outputs, *args)

    with patch.object(model, "supervise", supervise):
        out = model(**batch.training, smoothing=smoothing, loss_only=loss_only, num_items_in_batch=1)
    states = captured["states"]
    total, parts = reference.objective(states[0], states[1:], model.lm_head.weight, batch.labels, 0.7, smoothing)
    assert list(out.losses) == ["translation", "auxiliary_1", "auxiliary_2"]
    assert_same(list(out.losses.values()), parts, 1e-10)
    assert_same(out.loss, total, 1e-10)
    leaves = [*states, model.lm_head.weight]
    assert_same(torch.autograd.grad(out.loss, leaves, retain_graph=True), torch.autograd.grad(total, leaves), 1e-10)


def test_fusion_equals_the_reference():
    layer = FusionDecoderLayer(config(information_fusion=True, d_model=8), 0).double().eval()
    redraw(layer, 5, None)
    hidden, one, two = (torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    memory = torch.randn(2, 5, 8, dtype=torch.float64)
    actual = layer(hidden, memory, None, None, torch.cat([one, two], -1), names=("auxiliary_states",))
    weights = [block.t() for block in layer.fusion.weight.split(8, dim=1)]
    attended = DecoderLayer.attend_self(layer, hidden, None, None, {})
    expected = reference.fuse(attended, [one, two], weights)
    expected = layer.feed_forward_sublayer(layer.attend_source(expected, memory, None, None, {}), layer.feed_forward)
    assert_same(actual, expected, 1e-12)
    leaves, probe = [hidden, one, two, layer.fusion.weight], torch.randn_like(actual)
    got = torch.autograd.grad((actual * probe).sum(), leaves, retain_graph=True)
    assert_same(got, torch.autograd.grad((expected * probe).sum(), leaves), 1e-12)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_training_is_that_of_separate_baselines(norm):
    """Losses and gradients of (4.1) are the sums of those of one baseline for each decoder."""
    model, batch = build(config(norm_position=norm, auxiliary_weight=0.5)).train(), Batch.draw()
    singles = {"translation": model.drop_auxiliaries()}
    singles |= {f"auxiliary_{layer}": model.auxiliary_translator(layer) for layer in (1, 2)}
    out = model(**batch.training, smoothing=0.1, loss_only=True)
    out.loss.backward()
    got, expected = gradients(model), {}
    for index, (name, single) in enumerate(singles.items()):
        assert type(single) is TransformerForConditionalGeneration
        loss = single(**batch.training, smoothing=0.1, loss_only=True).loss * (1.0 if index == 0 else 0.5)
        assert_same(out.losses[name], loss)
        loss.backward()
        for parameter, gradient in gradients(single).items():
            path = parameter
            if index and "embed_tokens" not in parameter:
                path = parameter.replace("model.decoder.", f"model.auxiliary_decoders.{index - 1}.")
            expected[path] = expected.get(path, 0) + gradient
    assert set(got) == set(expected)
    assert_same(got, expected)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_main_decoder_is_the_baseline(norm):
    model, batch = build(config(norm_position=norm)), Batch.draw()
    baseline = AutoModelForSeq2SeqLM.from_config(TransformerConfig(**{**SIZES, "norm_position": norm})).double().eval()
    missing, unexpected = baseline.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    assert all(name.startswith("model.auxiliary_decoders.") for name in unexpected)
    assert_same(logits_of(model, batch), logits_of(baseline, batch), 0.0)
    expected = baseline.generate(**batch.encoder_inputs, **BEAMS)
    assert_lively(expected)
    assert_same_decoding(model.generate(**batch.encoder_inputs, **BEAMS), expected, 0.0)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_fusion_with_zero_weights_is_plain_supervision(norm):
    plain, fused = build(config(norm_position=norm)), build(config(norm_position=norm, information_fusion=True), seed=1)
    with torch.no_grad():
        missing, unexpected = fused.load_state_dict(plain.state_dict(), strict=False)
        for layer in fused.model.decoder.layers:
            layer.fusion.weight.zero_()
    assert not unexpected
    assert all(name.endswith("fusion.weight") for name in missing)
    batch = Batch.draw()
    assert_same(logits_of(fused, batch), logits_of(plain, batch), 0.0)
    assert_same_decoding(*(model.generate(**batch.encoder_inputs, **BEAMS) for model in (fused, plain)), 0.0)
    plain.train(), fused.train()
    assert_same(fused(**batch.training).losses, plain(**batch.training).losses, 0.0)


@pytest.mark.parametrize("fusion", [False, True])
def test_evaluation_loss_is_the_main_decoders(fusion):
    model, batch = build(config(information_fusion=fusion)), Batch.draw()
    evaluated, trained = model(**batch.training), model.train()(**batch.training)
    assert evaluated.losses is None
    assert_same(evaluated.loss, trained.losses["translation"])
    assert_same(trained.loss, sum(trained.losses.values()))
    assert evaluated.loss < trained.loss


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropping_the_auxiliaries(norm, tmp_path):
    model, batch = build(config(norm_position=norm)), Batch.draw()
    model.generation_config.num_beams = 3
    model.save_pretrained(tmp_path / "full")
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "full").drop_auxiliaries().save_pretrained(tmp_path / "single")
    single = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "single")
    assert type(single) is TransformerForConditionalGeneration
    assert type(single.config) is TransformerConfig
    assert single.config.model_type == "mlnmt-transformer"
    assert not hasattr(single.config, "auxiliary_layers")
    assert single.num_parameters() < model.num_parameters()
    assert single.generation_config.num_beams == 3
    assert_same(logits_of(single, batch), logits_of(model, batch), 0.0)
    assert_same_decoding(*(m.generate(**batch.encoder_inputs, **BEAMS) for m in (single, model)), 0.0)
    single.lm_head.weight.data.zero_()  # a model of its own
    assert logits_of(model, batch).any()


def test_dropping_keeps_everything_else():
    fields = {"decoder_vocab_size": 23, "share_encoder_decoder_embeddings": False, "attention_bias": True}
    model, batch = build(config(**fields, tie_word_embeddings=False)).bfloat16().train(), Batch.draw()
    model.set_attn_implementation("eager")
    single = model.drop_auxiliaries()
    assert single.dtype == torch.bfloat16
    assert single.training
    assert single.config._attn_implementation == "eager"
    assert_same(logits_of(single.eval(), batch), logits_of(model.eval(), batch), 0.0)


@pytest.mark.parametrize("fusion", [False, True])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_each_auxiliary_translates_by_itself(norm, fusion):
    """A baseline with the encoder up to the layer; its outputs are the auxiliary's within the whole model."""
    model, batch = build(config(norm_position=norm, information_fusion=fusion)), Batch.draw()
    model.train()  # no dropout: only so that the auxiliaries run
    with torch.no_grad():
        states = model.model(**batch.inputs).auxiliary_states
    model.eval()
    for layer, hidden in zip((1, 2), states, strict=True):
        single = model.auxiliary_translator(layer)
        assert type(single) is TransformerForConditionalGeneration
        assert single.config.encoder_layers == len(single.model.encoder.layers) == layer
        assert_same(logits_of(single, batch), model.lm_head(hidden).detach())
        assert_lively(single.generate(**batch.encoder_inputs, **BEAMS))
    with pytest.raises(ValueError, match=r"layer=3.*\[1, 2\]"):
        model.auxiliary_translator(3)


def test_fusion_cannot_be_dropped():
    with pytest.raises(ValueError, match="information_fusion"):
        build(config(information_fusion=True)).drop_auxiliaries()


def test_inference_runs_the_main_decoder_only():
    model, batch = build(config()), Batch.draw()
    with patch.object(AuxiliaryDecoder, "forward", side_effect=AssertionError("an auxiliary decoder ran")):
        decoded = model.generate(**batch.encoder_inputs, **BEAMS)
        assert len(decoded.get(CACHE).self_attention_cache) == model.config.decoder_layers
        model(**batch.training)
        assert model.get_encoder()(**batch.encoder_inputs).features is None
        model.train().generate(**batch.encoder_inputs, **BEAMS)  # as some trainers do
        with pytest.raises(AssertionError, match="auxiliary"):
            model(**batch.training)


def test_main_loss_trains_the_auxiliaries_through_fusion():
    """With gamma = 0 the main decoder's loss alone still reaches every auxiliary decoder; without AIF it does not."""
    batch = Batch.draw()
    for fusion in (True, False):
        model = build(config(information_fusion=fusion, auxiliary_weight=0.0)).train()
        model(**batch.training, loss_only=True).loss.backward()
        found = {name: gradient for name, gradient in gradients(model).items() if "auxiliary_decoders" in name}
        assert found
        assert all(bool(gradient.any()) is fusion for gradient in found.values())


def test_auxiliary_mask():
    model, batch = build(config(information_fusion=True)), Batch.draw()
    whole = logits_of(model, batch)
    assert_same(logits_of(model, batch, auxiliary_mask=[1, 1]), whole, 0.0)
    masked = {}
    for index in (0, 1):  # the same as zeros in place of W^i
        mask = [float(i != index) for i in range(2)]
        masked[index] = logits_of(model, batch, auxiliary_mask=mask)
        decoded = model.generate(**batch.encoder_inputs, **BEAMS, auxiliary_mask=mask)
        cut = build(config(information_fusion=True))
        for layer in cut.model.decoder.layers:
            layer.fusion.weight.data[:, index * 16 : (index + 1) * 16] = 0
        assert_same(masked[index], logits_of(cut, batch), 0.0)
        assert_same_decoding(decoded, cut.generate(**batch.encoder_inputs, **BEAMS), 0.0)
        assert not torch.allclose(masked[index], whole)
    none = logits_of(model, batch, auxiliary_mask=[0, 0])
    main = AutoModelForSeq2SeqLM.from_config(TransformerConfig(**SIZES)).double().eval()
    main.load_state_dict(model.state_dict(), strict=False)
    assert_same(none, logits_of(main, batch), 0.0)
    with pytest.raises(ValueError, match=r"auxiliary_mask has 1 entries: expected 2"):
        logits_of(model, batch, auxiliary_mask=[1])
    with pytest.raises(ValueError, match="no information_fusion"):
        logits_of(build(config()), batch, auxiliary_mask=[1, 1])


def test_shared_weights():
    """One target embedding and one output projection, whatever the number of decoders."""
    model = build(config(information_fusion=True))
    names = [name for name in model.state_dict() if "embed_tokens" in name or "lm_head" in name]
    assert names == ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"]
    assert len({model.state_dict()[name].data_ptr() for name in names}) == 1
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight[7] += 1.0
        batch = Batch.draw()
        batch.target[:, 1] = 7
        before = model.model(**batch.inputs).auxiliary_states
        model.model.decoder.embed_tokens.weight[7] += 1.0
        after = model.model(**batch.inputs).auxiliary_states
    assert all(not torch.allclose(a[:, 1], b[:, 1]) for a, b in zip(before, after, strict=True))


def test_encoder_outputs_without_features_are_refused():
    model, batch = build(config()), Batch.draw()
    encoded = model.get_encoder()(**batch.encoder_inputs)
    with pytest.raises(ValueError, match="encoder_outputs has no features"):
        model.train()(encoder_outputs=encoded, attention_mask=batch.source_mask, labels=batch.labels)


# [T1] tables 4.6 (small shape) and 5.2 (base shape), millions.
@pytest.mark.parametrize(
    ("system", "shape", "published"),
    [
        ("transformer", "small", 12.8),
        ("ms-1", "small", 17.0),
        ("ms-1-aif", "small", 17.3),
        ("ms-12", "small", 21.2),
        ("ms-13-aif", "small", 21.7),
        ("ms-123", "small", 25.4),
        ("ms-123-aif", "small", 26.2),
        ("transformer", "base", 61.2),
        ("ms-4", "base", 86.5),
        ("ms-1-aif", "base", 88.0),
    ],
)
def test_parameters_at_the_published_shapes(system, shape, published):
    """The vocabularies are "about 21k" and "about 33k"; the base counts fit with biases in the projections."""
    fields = {"small": {"vocab_size": 21200}, "base": {"vocab_size": 33413, "attention_bias": True}}[shape]
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(hf_mlnmt.config_for(system, shape, **fields))
    assert round(model.num_parameters() / 1e6, 1) == published


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"auxiliary_layers": []}, r"auxiliary_layers=\[\].*1 to encoder_layers - 1 = 2"),
        ({"auxiliary_layers": [], "information_fusion": True}, "also for information_fusion"),
        ({"auxiliary_layers": [3]}, r"auxiliary_layers=\[3\].*1 to encoder_layers - 1 = 2"),
        ({"auxiliary_layers": [0, 1]}, r"auxiliary_layers=\[0, 1\]"),
        ({"auxiliary_layers": [1, 1]}, r"auxiliary_layers=\[1, 1\]"),
        ({"auxiliary_layers": [2, 1]}, "ascending"),
        ({"auxiliary_layers": ["1"]}, "auxiliary_layers"),
        ({"auxiliary_layers": [1], "encoder_layers": 1}, "encoder_layers - 1 = 0"),
        ({"auxiliary_weight": -1.0}, "auxiliary_weight=-1.0: must be 0 or a positive number"),
        ({"auxiliary_weight": float("nan")}, "auxiliary_weight=nan"),
    ],
)
def test_bad_configurations_are_refused(fields, message):
    with pytest.raises(Exception, match=message):
        config(**fields)


@torch.no_grad()
def test_search_with_what_the_encoder_gives_in_training(monkeypatch):
    """Its features are what the auxiliaries read; the main decoder reads the last state, also in the compiled step."""
    model = build(config())
    ids = torch.randint(4, 29, (3, 6), generator=torch.manual_seed(1))
    found = []
    for why_not in (search.why_not, lambda *a: "a test"):
        monkeypatch.setattr(search, "why_not", why_not)
        outputs = model.get_encoder().train()(ids)
        assert outputs.features.dim() == 4
        found.append(model.eval().generate(ids, encoder_outputs=outputs, num_beams=3, max_new_tokens=8).tolist())
    found.append(model.generate(ids, num_beams=3, max_new_tokens=8).tolist())
    assert found[0] == found[1] == found[2]


def test_auxiliary_decoders_go_on_from_the_cache_that_forward_returned():
    model, batch = build(config(information_fusion=True)), Batch.draw(targets=(4, 4, 4, 4))
    inputs = dict(batch.inputs)
    target = inputs.pop("decoder_input_ids")
    with torch.no_grad():
        whole = model(**inputs, decoder_input_ids=target).logits
        first = model(**inputs, decoder_input_ids=target[:, :2])
        rest = model(**inputs, decoder_input_ids=target[:, 2:], past_key_values=first.past_key_values).logits
    assert_same(rest, whole[:, 2:])
