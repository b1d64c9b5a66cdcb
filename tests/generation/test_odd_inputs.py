"""What people also give a pipeline: no text, numbers of numpy, invisible characters, adapters, a model that samples."""

import json
import logging
import shutil

import numpy as np
import pytest
import torch
from helpers.toy_translators import SENTENCES, our_model
from peft import LoraConfig, PrefixTuningConfig, get_peft_model
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_mlnmt import UserError
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.generation import TranslationPipeline

TEXTS = SENTENCES[:5]


@pytest.mark.parametrize("odd", [None, float("nan"), np.int64(3), {"text": "A man."}, ["A man."], b"A man."])
def test_what_is_no_text_is_refused_with_its_place(pipeline, odd):
    kind = type(odd).__name__
    for given in (["A man.", odd], (text for text in ["A man.", odd])):
        with pytest.raises(UserError, match=rf"line 2: .* is no text but of type {kind}: give a string"):
            pipeline(given)
    with pytest.raises(UserError, match=r"line 1: .* is no text"):
        list(pipeline.stream([odd]))
    if not isinstance(odd, list):
        for call in (pipeline, pipeline.stream):
            with pytest.raises(UserError, match=f"texts: give a string or several, not an object of type {kind}"):
                call(odd)


@pytest.mark.parametrize("invisible", ["\u200b", "\ufeff", " \u200b\ufeff\u2060\t"])
def test_a_line_that_shows_nothing_is_empty(pipeline, invisible):
    translation = pipeline("A man.")
    *lines, around = pipeline([invisible, "A man.", f"A man.\n{invisible}\nA man."])
    assert (lines, around.split()) == (["", translation], [translation, translation])
    assert pipeline([invisible], num_beams=2, num_return_sequences=2)[0][0].text == ""


def test_invisible_characters_are_not_translated(pipeline):
    odd = [f"\ufeff{text[:2]}\u00ad{text[2:5]}\u200b{text[5:]}\u200e" for text in SENTENCES[:5]]
    options = {"num_return_sequences": 1, "alignments": True, "target_prefix": "\u200b"}
    assert pipeline(odd, **options) == pipeline(SENTENCES[:5], **options)
    assert pipeline("One.\u200b Two.\ufeff", split="sentences") == pipeline("One. Two.", split="sentences")


def test_a_model_that_samples_is_said_not_to(ours, caplog):
    translate = TranslationPipeline.from_pretrained(ours, device="cpu")
    expected = translate(TEXTS)
    assert "do_sample" not in caplog.text
    translate.model.generation_config.do_sample = True
    with caplog.at_level(logging.WARNING):
        assert translate(TEXTS) == expected
    assert "generation_config.json says do_sample, which is not done unless" in caplog.text
    caplog.clear()
    translate(TEXTS, do_sample=True)
    assert "says do_sample" not in caplog.text


PEFT = {
    "lora": LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["fc1", "out_proj"], init_lora_weights=False),
    "prefix": PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3),
}


@pytest.mark.parametrize("kind", PEFT)
def test_a_folder_with_an_adapter_alone(ours, kind, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(ours)
    torch.manual_seed(0)
    adapted = get_peft_model(model, PEFT[kind]).eval()
    if kind == "prefix":
        torch.nn.init.normal_(adapted.prompt_encoder["default"].embedding.weight, std=3.0)
    adapted.save_pretrained(tmp_path)
    plain = TranslationPipeline.from_pretrained(ours, device="cpu")
    expected = []
    for text in TEXTS:
        ids = plain.parts.source(text, return_tensors="pt")
        output = adapted.generate(**{name: ids[name] for name in ("input_ids", "attention_mask")}, num_beams=2)
        expected.append(plain.parts.target.decode(output[0], skip_special_tokens=True).strip())
    translate = TranslationPipeline.from_pretrained(tmp_path, device="cpu")
    assert translate(TEXTS, num_beams=2) == expected != plain(TEXTS, num_beams=2)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ours / name, tmp_path)
    assert TranslationPipeline.from_pretrained(tmp_path, device="cpu")(TEXTS, num_beams=2) == expected
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"adapter_model\.safetensors: no such file"):
        TranslationPipeline.from_pretrained(tmp_path, device="cpu")


def test_a_model_and_a_tokenizer_in_memory(ours, pipeline, tmp_path):
    """As Transformers' pipelines: in this order or by name; adapters and tokenizers of two sides too."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(ours), AutoTokenizer.from_pretrained(ours)
    expected = pipeline(TEXTS, num_beams=2)
    for translate in (TranslationPipeline(model, tokenizer), TranslationPipeline(model=model, tokenizer=tokenizer)):
        assert translate(TEXTS, num_beams=2) == expected
    both = Tokenizers(tokenizer, tokenizer, {"source": TextProcessing("en", lowercase=True)})
    both.save(tmp_path)
    translate = TranslationPipeline(model, AutoTokenizer.from_pretrained(tmp_path))
    assert translate([text.upper() for text in TEXTS]) == pipeline([text.lower() for text in TEXTS])
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["qkv_proj"], init_lora_weights=False))
    changed = TranslationPipeline(adapted.train(), tokenizer)
    assert changed(TEXTS) == changed(TEXTS)  # without dropout
    with pytest.raises(
        UserError, match=r"TranslationPipeline: give a tokenizer beside the model, or .*from_pretrained"
    ):
        TranslationPipeline(str(ours))
    with pytest.raises(UserError, match="the model: the source tokenizer"):
        TranslationPipeline(our_model(5), tokenizer)


def test_a_device_map(ours, tmp_path):
    expected = TranslationPipeline.from_pretrained(ours, device="cpu")(TEXTS)
    translate = TranslationPipeline.from_pretrained(ours, device_map="auto")
    if translate.model.device.type == "cpu":
        assert translate(TEXTS) == expected
    small = {"device_map": "auto", "max_memory": {"cpu": 20_000}, "offload_folder": str(tmp_path)}
    with pytest.raises(UserError, match=r"device_map='auto' leaves weights on the disk .* does not fit"):
        TranslationPipeline.from_pretrained(ours, **small)
    with pytest.raises(UserError, match="device 'cpu' and device_map: both say where"):
        TranslationPipeline.from_pretrained(ours, device="cpu", device_map="auto")


SEARCH, TOKENIZER = "generation_config.json", "tokenizer_config.json"
ODD_FILES = [  # (file, its content or None: no file, message)
    ("tokenizer.json", None, r"cannot be loaded \(tokenizer.json is missing"),
    *((SEARCH, content, f"{SEARCH}: (expected a JSON object|not valid JSON)") for content in ("[1]", "null", "{", "")),
]
ODD_KEYS = [
    ("num_beams", -2, "num_beams: -2 is not a whole number of at least 1"),
    ("num_beams", "4", "num_beams: '4' is not a whole number of at least 1"),
    ("length_penalty", "one", "length_penalty: 'one' is not a number"),
    ("length_penalty", -1000, "length_penalty: -1000 is not a number from -10 to 10"),
    ("length_normalization", "gnm", "length_normalization: unknown value 'gnm'"),
    ("early_stopping", "soon", "early_stopping: 'soon'"),
    ("max_new_tokens", "many", "max_new_tokens: 'many' is not a whole number"),
    ("do_sample", "yes", 'do_sample: expected true or false, not "yes"'),
    ("temperature", 0, "temperature: must be at least 1e-30"),
    ("top_p", 7, "top_p: must be at most 1"),
    ("top_k", -3, "top_k: must be at least 0"),
    ("top_k", 2.5, "top_k: 2.5 is not a whole number"),
    ("repetition_penalty", 0, "repetition_penalty: must be at least 0.01"),
    ("no_repeat_ngram_size", -2, "no_repeat_ngram_size: must be at least 0"),
    ("epsilon_cutoff", True, "epsilon_cutoff: True is not a number"),
    ("max_length", 0, "max_length: 0 is not a whole number from 2 to 1,000,000"),
    ("eos_token_id", [], "eos_token_id: 'none' is no number of a token"),
    ("eos_token_id", True, "eos_token_id: expected a list, not true"),
    ("bos_token_id", "<s>", 'bos_token_id: expected a whole number, not "<s>"'),
    ("decoder_start_token_id", [3], r"decoder_start_token_id: expected a whole number, not .3."),
    ("use_cache", 3, "use_cache: expected true or false, not 3"),
    ("max_time", "long", 'max_time: expected a number, not "long"'),
    ("max_length", 10**12, "max_length: 1000000000000 is not a whole number from 2"),
    ("guidance_scale", 5, "guidance_scale: must be at most 1"),
    ("length_ratio", "long", "length_ratio: 'long' is not a number"),
    ("length_ratio", 0, "length_ratio: must be at least 0.01"),
    ("eos_token_id", 4444, "eos_token_id: 4444 is no number of a token, from 0 to"),
    ("eos_token_id", [1, 4444], "eos_token_id: 4444 is no number of a token"),
    ("decoder_start_token_id", -1, "decoder_start_token_id: -1 is no number of a token"),
    ("forced_eos_token_id", 4444, "forced_eos_token_id: 4444 is no number of a token"),
    ("bad_words_ids", [[1], [4444]], r"bad_words_ids: \[4444\] are no numbers of tokens"),
]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [*ODD_FILES, *((SEARCH, {key: odd}, f"{SEARCH}.*: {message}") for key, odd, message in ODD_KEYS)],
)
def test_files_that_no_search_can_follow_are_refused(ours, tmp_path, name, content, message):
    with pytest.raises(UserError, match=message):
        TranslationPipeline.from_pretrained(changed(ours, tmp_path / "model", name, content))


def changed(original, folder, name, content):
    """A copy of a model's folder with another file: a text, keys that are replaced, or None for no file."""
    file = shutil.copytree(original, folder) / name
    if isinstance(content, dict):
        content = json.dumps({**json.loads(file.read_text()), **content})
    file.unlink() if content is None else file.write_text(content)
    return folder


def test_no_longest_input_is_no_limit(ours, tmp_path):
    expected = TranslationPipeline.from_pretrained(ours, device="cpu")(TEXTS)
    folder = changed(ours, tmp_path / "model", TOKENIZER, {"model_max_length": None})
    assert TranslationPipeline.from_pretrained(folder, device="cpu")(TEXTS) == expected
