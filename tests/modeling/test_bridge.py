"""The attention bridge: against loops, with many languages, as a pair, and reduced to the models without it."""

from __future__ import annotations

import pytest
import torch
from helpers.contract import DECODING, FIELDS, TINY, Batch, Member, assert_same, gradients, redraw
from huggingface_hub.errors import StrictDataclassError
from reference import bridge as reference
from reference import rnn as rnn_reference
from reference.transformer import loss as reference_loss
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from hf_mlnmt import config_for
from hf_mlnmt.modeling import RNNForConditionalGeneration, TransformerForConditionalGeneration
from hf_mlnmt.modeling.bridge import AttentionBridge, redundancy

SYSTEMS = ("bridge-rnn", "bridge-transformer")
LANGUAGES = {"source_languages": ["de", "en", "to"], "target_languages": ["de", "fr"]}
SIZES = {"vocab_sizes": {"de": 29, "en": 31, "to": 30, "fr": 26}}
both = pytest.mark.parametrize("system", SYSTEMS)


def build(system: str = "bridge-rnn", **fields):
    return Member(system, "post", {**TINY, **FIELDS[system], **fields}).model()


def many(system: str = "bridge-rnn", **fields):
    return build(system, **LANGUAGES, **fields)


def linear(layer) -> tuple:
    return layer.weight, layer.bias


@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_equal_the_reference(bias):
    model = build(bridge_bias=bias, penalty_weight=0.7).train()
    redraw(model, seed=2, std=None)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    batch = Batch.draw(3, sources=(4, 2, 3), targets=(3, 4, 2))
    batch.source_mask[0, 1] = 0  # a hole
    encoder, decoder = model.get_encoder(), model.get_decoder()
    cells = [tuple(dict(layer.lstm.named_parameters()).values()) for layer in encoder.layers]
    own = {"source_embedding": encoder.embed_tokens.weight, "scale": encoder.encoder.embed_scale}
    own |= {"target_embedding": decoder.embed_tokens.weight, "projection": model.lm_head.weight}
    own |= {"encoder": [(cell[:4], cell[4:]) for cell in cells]}
    own |= {"decoder": [tuple(dict(lstm.named_parameters()).values()) for lstm in decoder.recurrence.lstms]}
    own |= {"attention": decoder.recurrence.attention.k_proj.weight}
    own |= {"combine": decoder.recurrence.attention.out_proj.weight}
    bridge = model.model.bridge
    (first, first_bias), (second, second_bias) = linear(bridge.inner_proj), linear(bridge.head_proj)
    total, rows = torch.zeros((), dtype=torch.float64), []
    for row in range(3):
        real = [bool(m) for m in batch.source_mask[row]]
        states = [h for h in rnn_reference.encode(own, batch.source[row].tolist(), real)[0] if h is not None]
        memory, weights = reference.inner_attention(states, first, second, first_bias, second_bias)
        total = total + 0.7 * reference.penalty(weights)
        mean = sum(memory) / len(memory)
        starts = [(mean, mean)] * model.config.decoder_layers
        found = rnn_reference.decode(own, memory, starts, batch.target[row].tolist(), True)
        rows.append(torch.stack([rnn_reference.product(own["projection"], state) for state in found]))
    expected = reference_loss(torch.stack(rows), batch.labels.tolist()) + total
    (expected / 9).backward()
    expected_gradients = gradients(model)
    out = model(**batch.training, num_items_in_batch=9)
    assert_same(out.logits, torch.stack(rows))
    assert_same(out.loss, expected / 9)
    assert_same(out.losses["penalty"], total / 9)
    out.loss.backward()
    assert_same(gradients(model), expected_gradients)


def test_the_penalty_has_a_floor_where_rows_outnumber_words():
    """k - n at the least (A A^T has rank n), reached where n rows are the words'; 0 where no two rows are alike."""
    assert redundancy(torch.eye(5)[None, :3]).tolist() == [0.0]
    weights = torch.rand(4, 5, 2).softmax(-1)
    assert (redundancy(weights) >= 3 - 1e-6).all()
    zero_rows = torch.cat([torch.eye(2), torch.zeros(3, 2)])[None]
    assert redundancy(zero_rows).item() == pytest.approx(3.0)


def test_padding_has_no_weight():
    bridge = AttentionBridge(8, 6, 3)
    states, mask = torch.randn(2, 5, 8), torch.tensor([[1, 0, 1, 1, 0], [0, 0, 1, 0, 0]])
    memory, weights = bridge(states, mask)
    assert not weights[:, :, mask.bool().logical_not()[0]][0].any()
    assert_same(weights.sum(-1), torch.ones(2, 3), 1e-6)
    assert_same(memory[1], states[1, 2].expand(3, -1), 1e-6)
    alone, _ = bridge(states[:1, [0, 2, 3]])
    assert_same(memory[:1], alone, 1e-6)


class Nothing(nn.Module):
    """A bridge that passes H on: A = I."""

    def forward(self, states, mask=None):
        return states, torch.eye(states.shape[1]).to(states).expand(len(states), -1, -1)


@both
def test_without_its_bridge_it_is_the_plain_model(system):
    """One pair, A = I: the rnn begun with the mean of H, or the baseline; and lambda 0 is cross-entropy."""
    kind = RNNForConditionalGeneration if system == "bridge-rnn" else TransformerForConditionalGeneration
    fields = {**TINY, "share_encoder_decoder_embeddings": False}
    model, plain = build(system), kind(config_for(system.removeprefix("bridge-"), "tiny", **fields)).eval().double()
    weights = {name: value for name, value in model.state_dict().items() if ".bridge." not in name}
    for ours, theirs in (("encoders.of_en", "encoder"), ("decoders.of_de", "decoder"), ("lm_heads.of_de", "lm_head")):
        weights = {name.replace(ours, theirs): value for name, value in weights.items()}
    plain.load_state_dict(weights)
    model.model.bridge = Nothing()
    batch = Batch.draw(1, sources=(5, 5), targets=(4, 3))
    encoded = plain.get_encoder()(batch.source).last_hidden_state
    states = plain.model.decoder(batch.target, encoder_hidden_states=encoded)
    assert_same(model(**batch.inputs).logits, plain.lm_head(states.last_hidden_state))
    model.train()
    model.config.dropout = 0.0
    assert model(**batch.training).losses["penalty"] == 0
    model.config.penalty_weight = 0.0
    assert model(**batch.training).losses is None


@both
def test_any_pair_of_languages(system):
    """Also pairs that were never trained together: what the pair's own model says, with one search or the other."""
    model, batch = many(system, **SIZES), Batch.draw()
    outputs = set()
    for source in model.config.source_languages:
        for target in model.config.target_languages:
            names = {"source_language": source, "target_language": target}
            pair = model.pair(source, target)
            logits = model(**batch.inputs, **names).logits
            assert logits.shape[-1] == SIZES["vocab_sizes"][target]
            assert_same(pair(**batch.inputs).logits, logits)
            found = model.generate(**batch.encoder_inputs, **names, num_beams=3, max_new_tokens=6)
            settings = {**DECODING, "min_new_tokens": 0, "no_repeat_ngram_size": 0, "max_new_tokens": 6}
            slow = pair.generate(**batch.encoder_inputs, **settings, num_beams=3).sequences
            assert found.tolist() == slow.tolist()
            outputs.add(str(logits))
    assert len(outputs) == 6


def test_names_are_asked_for_and_listed():
    model, batch = many(), Batch.draw()
    with pytest.raises(ValueError, match="source_language is missing: this model's source languages are de, en, to"):
        model(**batch.training, target_language="fr")
    with pytest.raises(ValueError, match="target_language='en' is unknown: this model's target languages are de, fr"):
        model.generate(**batch.encoder_inputs, source_language="de", target_language="en")
    with pytest.raises(ValueError, match="'xx' is unknown"):
        model.pair("xx", "de")
    with pytest.raises(ValueError, match="source_language is missing"):
        model.get_encoder()
    one = build(target_languages=["de"], source_languages=["de", "en"])
    assert one(**batch.training, source_language="en").loss > 0, "a side that has one language needs no name"


@both
def test_a_batch_can_name_its_languages(system):
    """By codes before its sources, which no encoder sees; names count before them."""
    codes = {"de": 20, "en": 21, "to": 22, "fr": 23}
    model, batch, plain = many(system, language_codes=codes), Batch.draw(), many(system)
    plain.load_state_dict(model.state_dict())
    batch.source[batch.source >= 20] = 19

    def coded(*languages):
        front = torch.tensor([[codes[language] for language in languages]]).expand(len(batch.source), -1)
        mask = torch.cat([torch.ones_like(front), batch.source_mask], 1)
        return {"input_ids": torch.cat([front, batch.source], 1), "attention_mask": mask}

    names = {"source_language": "en", "target_language": "fr"}
    expected = plain(**batch.inputs, **names).logits
    target = {name: value for name, value in batch.inputs.items() if name.startswith("decoder")}
    assert_same(model(**coded("en", "fr"), **target).logits, expected)
    assert_same(model(**coded("fr"), **target, source_language="en").logits, expected)
    assert_same(model(**coded("to", "de"), **target, **names).logits, expected)
    assert_same(model(**batch.inputs, **names).logits, expected)
    written = plain.generate(**batch.encoder_inputs, **names, num_beams=2, max_new_tokens=5).tolist()
    assert model.generate(**coded("en", "fr"), num_beams=2, max_new_tokens=5).tolist() == written
    assert_same(model.embed(**coded("en", "fr")), plain.embed(**batch.encoder_inputs, source_language="en"))
    with pytest.raises(ValueError, match="'en' is unknown: this model's target languages are de, fr"):
        model.generate(**coded("de", "en"))
    mixed = coded("en", "fr")
    mixed["input_ids"][1, 1] = codes["de"]
    with pytest.raises(ValueError, match=r"different languages \(en to de; en to fr\): a batch is of one pair"):
        model.generate(**mixed)
    with pytest.raises(ValueError, match="source_language is missing"):
        model(**coded("fr"), **target)


@both
def test_only_what_a_batch_uses_gets_a_gradient(system):
    model, batch = many(system), Batch.draw()
    model.train()(**batch.training, source_language="to", target_language="fr").loss.backward()
    used = ("model.encoders.of_to.", "model.decoders.of_fr.", "lm_heads.of_fr.", "model.bridge.")
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == name.startswith(used), name


@both
def test_a_pair_is_a_model_of_its_own(system, tmp_path):
    """It shares the weights, and saves what it has; loaded, it needs no names."""
    model, batch = many(system, **SIZES), Batch.draw()
    pair = model.pair("en", "fr")
    assert pair.config.source_languages + pair.config.target_languages == ["en", "fr"]
    assert (pair.config.vocab_size, pair.config.decoder_vocab_size) == (31, 26)
    assert {id(p) for p in pair.parameters()} < {id(p) for p in model.parameters()}
    pair.save_pretrained(tmp_path)
    loaded, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert_same(loaded.eval()(**batch.inputs).logits, pair(**batch.inputs).logits)
    assert loaded.lm_head.weight is loaded.get_decoder().embed_tokens.weight
    assert len(model.config.source_languages) == 3, "the whole model is as it was"
    assert pair.training is False
    pair.generation_config.num_beams = 7
    assert model.generation_config.num_beams != 7


@both
def test_loading_some_languages(system, tmp_path):
    model, batch = many(system, **SIZES), Batch.draw()
    model.save_pretrained(tmp_path)
    whole, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert whole.state_dict().keys() == model.state_dict().keys()
    some, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, languages=["to", "fr"], output_loading_info=True)
    assert not any(info.values())
    assert (some.config.source_languages, some.config.target_languages) == (["to"], ["fr"])
    assert some.num_parameters() == model.pair("to", "fr").num_parameters() < model.num_parameters() / 2
    expected = model(**batch.inputs, source_language="to", target_language="fr").logits
    assert_same(some.eval()(**batch.inputs).logits, expected)
    encoders = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, languages=["en", "to"])
    assert not any(".decoders." in name for name in encoders.state_dict())
    with pytest.raises(ValueError, match=r"languages=\['xx'\]: not in this model, which has de, en, to, fr"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, languages=["de", "xx"])
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "decoders.of_fr" not in name}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has no weights of model.decoders.of_fr, which"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


@both
def test_attention_is_chosen_for_all_modules(system):
    """Encoders and decoders have the model's own config: what is changed there reaches them all."""
    model = many(system, **SIZES)
    model.set_attn_implementation("eager")
    configs = {id(m.config) for m in model.modules() if hasattr(m, "config")}
    assert configs == {id(model.config)}
    assert model.pair("en", "fr").config._attn_implementation == "eager"


def test_sizes():
    """Section 3.1: k = 10, d_w = 1024, d_h = 512; each language adds its modules, the bridge is there once."""
    fields = {"vocab_size": 50, "encoder_layers": 2, "decoder_layers": 2}
    pair = sum(p.numel() for p in build_base(**fields).parameters())
    plain = config_for("rnn", "base", **fields, share_encoder_decoder_embeddings=False)
    bridge = 512 * 1024 + 1024 * 10
    assert pair == sum(p.numel() for p in RNNForConditionalGeneration(plain).parameters()) + bridge
    four = build_base(**fields, source_languages=[*"abcd"], target_languages=[*"abcd"])
    assert sum(p.numel() for p in four.parameters()) == 4 * (pair - bridge) + bridge


def build_base(**fields):
    return AutoModelForSeq2SeqLM.from_config(config_for("bridge-rnn", "base", **fields))


def test_refused_configurations():
    for fields, message in (
        ({"source_languages": ["de", "de"]}, "a language is there twice"),
        ({"source_languages": ["d.e"]}, "is no language code"),
        ({"source_languages": []}, "give at least one"),
        ({"vocab_sizes": {"en": 20}}, "vocab_sizes has no de"),
        ({"source_languages": ["a", "b"], "decoder_vocab_size": 7}, "one joint vocabulary, or each its own"),
        ({"bridge_heads": 0}, "bridge_heads=0"),
        ({"penalty_weight": -1}, "penalty_weight=-1"),
        ({"share_encoder_decoder_embeddings": True}, "only the bridge is shared"),
    ):
        with pytest.raises(StrictDataclassError, match=message):
            config_for("bridge-rnn", "tiny", **fields)
    assert config_for("bridge-rnn", "tiny", encoder_layers=3).decoder_layers == 2


def test_a_new_language_brings_its_own_vocabulary_where_each_has_one():
    model = build("bridge-rnn", **SIZES)
    before = model.config.vocab_size, model.config.decoder_vocab_size
    model.add_language("cs", vocab_size=27)
    assert model.config.vocab_sizes == {**SIZES["vocab_sizes"], "cs": 27}
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == before
    sizes = [model.model.encoders["of_cs"], model.model.decoders["of_cs"], model.lm_heads["of_cs"]]
    assert [next(one.parameters()).shape[0] for one in sizes] == [27, 27, 27]
    with pytest.raises(ValueError, match="a vocabulary each: give that of this one"):
        model.add_language("sk")
    with pytest.raises(ValueError, match="en has 31 entries already"):
        model.add_language("en", vocab_size=32)
    with pytest.raises(ValueError, match="one joint vocabulary: leave it out"):
        build("bridge-rnn").add_language("cs", vocab_size=27)


@both
@pytest.mark.parametrize("num_beams", [1, 2])
def test_a_search_hands_on_what_the_encoder_recorded(system, num_beams):
    model, ids = build(system), torch.tensor([[5, 6, 7, 1], [9, 8, 1, 0]])
    recording = {"output_attentions": system == "bridge-transformer", "output_hidden_states": True}
    if recording["output_attentions"]:
        model.set_attn_implementation("eager")
    options = {"return_dict_in_generate": True, "num_beams": num_beams, "max_new_tokens": 3, **recording}
    outputs = model.generate(ids, attention_mask=ids.ne(0), **options)
    expected = model.get_encoder()(ids, ids.ne(0), **recording)
    for name in ("hidden_states", *(["attentions"] if recording["output_attentions"] else [])):
        states = getattr(outputs, f"encoder_{name}")
        assert states
        torch.testing.assert_close(tuple(states), tuple(getattr(expected, name)), atol=1e-12, rtol=0)
