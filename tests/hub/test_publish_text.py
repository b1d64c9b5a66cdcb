"""Publishing what is of one language: a language model, and an encoder as a masked and as a causal one."""

from __future__ import annotations

import json

import pytest
import torch
from helpers import fresh
from helpers.contract import redraw
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, pipeline

from hf_mlnmt import config_for
from hf_mlnmt.data.subwords import train_tokenizer
from hf_mlnmt.data.tokenizer import begin_texts, read_masks, save_tokenizers
from hf_mlnmt.hub.publish import build_folder

TEXTS = ["the dog sleeps here", "a cat sees the bird", "the teacher buys two red cars"]
SIZES = {"d_model": 16, "decoder_layers": 1, "decoder_ffn_dim": 16, "decoder_attention_heads": 2}
ENCODER = {**SIZES, "encoder_layers": 1, "encoder_ffn_dim": 16, "encoder_attention_heads": 2}
# What it is trained for -> system, Auto class, sizes, the Hub's name of the task, the class's name.
KINDS = {
    "lm": ("lm", AutoModelForCausalLM, SIZES, "text-generation", "DecoderOnlyForCausalLM"),
    "encoder-cloze": ("enc-dc", AutoModelForMaskedLM, ENCODER, "fill-mask", "DualContextForMaskedLM"),
    "encoder-lm": ("enc-dc", AutoModelForCausalLM, ENCODER, "text-generation", "DualContextForCausalLM"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_published_and_loads_in_fresh_processes(kind, tmp_path, forks):
    system, auto, sizes, task, class_name = KINDS[kind]
    tokenizer = train_tokenizer(TEXTS * 3, vocab_size=80, byte_fallback=False)
    model = auto.from_config(config_for(system, "tiny", vocab_size=len(tokenizer), **sizes))
    redraw(model.eval())
    folder = tmp_path / "average"
    model.save_pretrained(folder)
    save_tokenizers(folder, tokenizer)
    if task == "text-generation":
        begin_texts(folder)
    if task == "fill-mask":
        read_masks(folder)
    numbers = {"per_subword": 12.5, "per_word": 30.25, "bits_per_byte": 1.5}
    results = {"schema": "hf_mlnmt.results/1", "system": system, "languages": {"source": "en", "target": "en"},
               "perplexity": {"test": numbers}}  # fmt: skip
    (folder / "results.json").write_text(json.dumps(results))
    target = tmp_path / "toy-model"
    build_folder(folder, target, licence="cc-by-4.0")  # which loads it by the package and by remote code
    card = (target / "README.md").read_text()
    assert f"pipeline_tag: {task}" in card
    assert "30.250" in card
    assert f"{auto.__name__}.from_pretrained(name, trust_remote_code=True)" in card
    pointers = json.loads((target / "config.json").read_text())["auto_map"]
    assert pointers[auto.__name__].split(".")[-1] == class_name
    loaded = auto.from_pretrained(target)
    ids = tokenizer("the dog", return_tensors="pt").input_ids
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    made = pipeline(task, model=loaded, tokenizer=AutoTokenizer.from_pretrained(target))
    if task == "fill-mask":
        assert len(made("the <mask> sleeps", top_k=3)) == 3
    else:
        assert made("the dog", max_new_tokens=3)[0]["generated_text"].startswith("the dog")
    # The card's own code, as a reader runs it.
    code = card.split("```python\n")[1].split("```")[0]
    done = fresh.python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
