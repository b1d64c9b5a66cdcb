"""generate() of every class that has it: neither a cache, nor whose loop it is, nor published code changes a token.

An architecture of the zoo is here by itself, with its encoder under a projection; what is made of other models is
named in `made_of_others`. On the oldest and on the newest Transformers this is the first thing to try.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import fresh, generating
from helpers.causal_contract import TextBatch
from helpers.contract import FIELDS, TINY, Batch, assert_same, redraw
from helpers.fused import fused, our_language_model, translator
from helpers.once import asked_for, made_once
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

import hf_mlnmt.modeling
from hf_mlnmt.hub.publish import _write_model
from hf_mlnmt.modeling.caches import StaticRecurrentCacheLayer
from hf_mlnmt.modeling.dual_context import StaticConvolutionCacheLayer
from hf_mlnmt.modeling.releases import CACHE, takes_cache
from hf_mlnmt.modeling.rnn import StaticLSTMCacheLayer
from hf_mlnmt.zoo import find_system
from hf_mlnmt.zoo.systems import SYSTEMS, architectures


def _modules() -> list[Any]:
    names = [module.name for module in pkgutil.iter_modules(hf_mlnmt.modeling.__path__) if "triton" not in module.name]
    return [importlib.import_module(f"hf_mlnmt.modeling.{name}") for name in names]


MODELS = {
    cls
    for module in _modules()
    for cls in vars(module).values()
    if inspect.isclass(cls) and issubclass(cls, PreTrainedModel) and cls.__module__ == module.__name__
}
# Class -> the Auto class that loads it.
HEADS = {head: auto_class for one in architectures() for auto_class, head in one.heads.items()}
GENERATING = {head for head in HEADS if head.can_generate()}


def made_of_others() -> dict[str, Any]:
    """Class name -> a model."""
    members = translator("enc-dc"), our_language_model()
    return {"FusionForConditionalGeneration": fused(members[0], lms=[members[1]], normalization="symbol", beta=0.5)}


def model_of(cls: Any) -> Any:
    """A model of that class in float64 with large weights, of the first system that has it."""
    if found := made_of_others().get(cls.__name__):
        return found
    names = [*SYSTEMS, *(f"{name}+enc-dc" for name, one in SYSTEMS.items() if one.architecture.over_dual_context)]
    system = next(name for name in names if cls in find_system(name).architecture.heads.values())
    known = hf_mlnmt.config_for(system, "tiny").to_dict()
    sizes = {**TINY, **FIELDS.get(system, {})}
    config = hf_mlnmt.config_for(system, "tiny", **{name: value for name, value in sizes.items() if name in known})
    model = cls(config).eval().double()
    redraw(model)
    return model


def batches_for(auto_class: str) -> dict[str, dict[str, Any]]:
    """Inputs of a forward, and those of generate(): of unequal lengths with padding, and all of one length."""
    if auto_class == "AutoModelForSeq2SeqLM":
        batch, even = Batch.draw(), Batch.draw(sources=(5, 5, 5))
        return {"forced": batch.inputs, "padded": batch.encoder_inputs, "not padded": {"input_ids": even.source}}
    text = TextBatch.draw()
    prompts = TextBatch(text.tokens[:, :4].where(text.tokens[:, :4] > 1, 9), TextBatch.draw(0, (4, 2, 3, 4)).mask)
    return {"forced": text.inputs, "padded": prompts.padded_left().inputs, "not padded": {"input_ids": prompts.tokens}}


@pytest.fixture(scope="session")
def by_published_code(request, tmp_path_factory) -> dict[str, Any]:
    """Class name -> what its published folder gives, with its config, in a process that cannot import hf_mlnmt."""
    classes = asked_for(request, "cls")
    root = made_once(tmp_path_factory, "published-classes", lambda root: _publish(root, classes))
    return {cls.__name__: json.loads((root / cls.__name__ / "result.json").read_text()) for cls in classes}


def _publish(root: Path, classes: list[Any]) -> None:
    for cls in classes:
        _write_model(model_of(cls), root / cls.__name__)
    torch.save({auto_class: batches_for(auto_class) for auto_class in HEADS.values()}, root / "inputs.pt")
    folders = [f"{root / cls.__name__}:{auto_class}" for cls, auto_class in HEADS.items() if cls in classes]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HOME": str(root / "home")}
    done = fresh.python("-I", generating.__file__, str(root / "inputs.pt"), *folders, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "deprecated" not in done.stderr, done.stderr[-3000:]


# With `make test`: translation models, whose caches are their families' own, and all that is made of the baseline.
EACH = [
    cls
    if cls.can_generate() or cls.__name__.startswith("Transformer")
    else pytest.param(cls, marks=pytest.mark.versions)
    for cls in HEADS
]


@pytest.mark.parametrize("cls", EACH, ids=lambda cls: cls.__name__)
def test_every_way_gives_the_same(cls, by_published_code):
    model, batches = model_of(cls), batches_for(HEADS[cls])
    published = by_published_code[cls.__name__]
    assert published["module"].startswith("transformers_modules.")
    forced = batches.pop("forced")
    assert_same(torch.tensor(published["logits"], dtype=torch.float64), model(**forced).logits, 1e-6)
    assert bool(published["sequences"]) == model.can_generate()
    for asked, ways in generating.sequences(model, batches).items():
        expected = ways["without a cache"]
        assert len({tuple(row) for row in expected}) > 1, "the sentences should differ"
        assert ways == dict.fromkeys(ways, expected), asked
        assert published["sequences"][asked] == ways, asked


WITH_CACHE = [cls for cls in HEADS if "cache" in inspect.signature(cls.forward).parameters]


@pytest.mark.parametrize("cls", WITH_CACHE, ids=lambda cls: cls.__name__)
def test_going_on_from_a_cache(cls):
    """Three tokens, and two more behind them, are five."""
    model, inputs = model_of(cls), batches_for(HEADS[cls])["not padded"]
    settings = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    whole = model.generate(**inputs, **settings, min_new_tokens=5, max_new_tokens=5)
    first = model.generate(**inputs, **settings, min_new_tokens=3, max_new_tokens=3)
    mask = torch.ones_like(first.sequences)
    prefix = {"input_ids": first.sequences, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        prefix = {**inputs, "decoder_input_ids": first.sequences, "decoder_attention_mask": mask}
    again = model.generate(**prefix, **settings, min_new_tokens=2, max_new_tokens=2, **{CACHE: first.get(CACHE)})
    assert again.sequences.tolist() == whole.sequences.tolist()
    assert_same(torch.stack(again.logits), torch.stack(whole.logits[3:]), 1e-5)


def test_generating_in_the_middle_of_a_training_with_gradient_checkpointing():
    """Without gradients nothing is checkpointed, and the cache is kept; with them a filled one is refused."""
    model, batch = translator(dropout=0.0), Batch.draw()
    expected = model.generate(**batch.encoder_inputs, max_new_tokens=8, output_scores=True)
    model.gradient_checkpointing_enable()
    model.train()
    assert model.generate(**batch.encoder_inputs, max_new_tokens=8, output_scores=True).tolist() == expected.tolist()
    with torch.no_grad():
        cache = model.eval()(**batch.inputs, use_cache=True).get(CACHE)
    with pytest.raises(ValueError, match="filled cache"):
        model.train()(**batch.inputs, **{CACHE: cache})


def test_a_state_of_fixed_size_cannot_be_taken_back():
    """Keys and values can, since 5.24: a layer that has a state beside them says that it cannot."""
    layers = StaticConvolutionCacheLayer, StaticRecurrentCacheLayer, StaticLSTMCacheLayer
    assert not any(layer.is_croppable for layer in layers)


def test_every_class_that_generates_is_here():
    bases = {base for cls in GENERATING for base in cls.__mro__[1:]}
    assert {cls for cls in MODELS if cls.can_generate()} - bases == set(GENERATING) - bases


def test_every_forward_with_a_cache_takes_both_names():
    with_cache = {cls for cls in MODELS if "cache" in inspect.signature(cls.forward).parameters}
    assert len(with_cache) > len(GENERATING)
    assert not [cls for cls in with_cache if cls.forward.__code__ is not takes_cache(cls.forward).__code__]
    assert not [cls for cls in MODELS if "past_key_values" in inspect.signature(cls.forward).parameters]


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_either_name_of_the_cache(name):
    model, batch = translator(), Batch.draw()
    cache = model(**batch.inputs, use_cache=True).get(CACHE)
    following = {"decoder_input_ids": batch.target[:, :1], "encoder_outputs": model.get_encoder()(batch.source)}
    again = model(**following, use_cache=True, **{name: cache})
    assert again.get(CACHE) is cache
    assert cache.get_seq_length() == batch.target.shape[1] + 1


def test_of_both_names_the_cache_counts_unless_it_is_empty():
    model, batch = translator(), Batch.draw()
    cache, other = (model(**batch.inputs, use_cache=True).get(CACHE) for _ in range(2))
    following = {"decoder_input_ids": batch.target[:, :1], "encoder_outputs": model.get_encoder()(batch.source)}
    assert model(**following, cache=cache, past_key_values=other).get(CACHE) is cache
    empty = EncoderDecoderCache(DynamicCache(), DynamicCache())
    assert model(**following, cache=empty, past_key_values=other).get(CACHE) is other
