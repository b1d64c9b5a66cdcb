"""docs/opus-mt.md: its ten lines on a small random model of OPUS-MT's architecture, and its recipe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
import yaml
from helpers.tiny_run import run
from helpers.toy_translators import SENTENCES
from transformers import AutoModelForSeq2SeqLM

from hf_mlnmt import import_model
from hf_mlnmt.generation import TranslationPipeline

PAGE = Path(__file__).resolve().parents[2] / "docs" / "opus-mt.md"


def test_the_ten_lines(original, tmp_path, monkeypatch, capsys, forks):
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "Helsinki-NLP"
    here.mkdir()
    (here / "opus-mt-en-de").symlink_to(original("marian"))
    for code in ("en", "de"):
        (tmp_path / f"train.{code}").write_text("\n".join(SENTENCES[:40]))
    code, *others = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert not others
    exec(compile(code, "opus-mt.md", "exec"), {})
    assert capsys.readouterr().out.strip()
    before = AutoModelForSeq2SeqLM.from_pretrained(original("marian")).state_dict()["final_logits_bias"].flatten()
    after = AutoModelForSeq2SeqLM.from_pretrained("published")
    assert not torch.equal(after.lm_head.bias, before), "not trained"
    assert after.generation_config.bad_words_ids == [[after.config.pad_token_id]]
    assert (tmp_path / "published" / "README.md").exists()


def test_the_recipe(original, tmp_path, monkeypatch):
    """Weights, config and tokenizer are the imported model's, so are the tokens that are forbidden; the loss falls."""
    monkeypatch.chdir(tmp_path)
    import_model(original("marian"), tmp_path / "opus-en-de")
    for part, texts in (("train", SENTENCES[:120]), ("dev", SENTENCES[120:130])):
        (tmp_path / f"{part}.en").write_text("".join(text + "\n" for text in texts))
        (tmp_path / f"{part}.de").write_text("".join(text.swapcase() + "\n" for text in texts))
    (recipe,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    content = yaml.safe_load(recipe) | {"optimizer": {"learning_rate": 5e-3}, "evaluation": {"every": 10}}
    content |= {"batch": {"tokens": 200}, "decoding": {"beams": 2, "max_new_tokens": 20}, "label_smoothing": 0.0}
    content |= {"schedule": {"name": "constant", "warmup": 2}, "budget": {"steps": 40}, "checkpoints": {"average": 1}}
    content["data"]["max_length"] = 60
    (tmp_path / "tune.yaml").write_text(yaml.safe_dump(content))
    printed = run(tmp_path / "tune.yaml", tmp_path, tmp_path / "run")
    account = json.loads((tmp_path / "run" / "init_from.json").read_text())
    assert account["loaded"], printed
    assert account["initialised"] == account["dropped"] == {}
    before, after = (TranslationPipeline.from_pretrained(tmp_path / name) for name in ("opus-en-de", "run/average"))
    for name in ("bad_words_ids", "forced_eos_token_id", "decoder_start_token_id"):
        assert getattr(after.model.generation_config, name) == getattr(before.model.generation_config, name), name
    assert after.model.generation_config.num_beams == 2, "the recipe's"
    losses = [mean_loss(one) for one in (before, after)]
    assert losses[1] < 0.7 * losses[0]


def mean_loss(pipeline):
    """Of the training set's first sentences."""
    tokenizer = pipeline.parts.source
    batch = tokenizer(
        SENTENCES[:20], text_target=[x.swapcase() for x in SENTENCES[:20]], return_tensors="pt", padding=True
    )
    batch["labels"] = batch["labels"].masked_fill(batch["labels"] == tokenizer.pad_token_id, -100)
    with torch.no_grad():
        return pipeline.model(**batch).loss.item()
