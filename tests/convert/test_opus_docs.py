"""docs/opus-mt.md: its ten lines on a small random model of OPUS-MT's architecture; the same steps with NLLB's."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from helpers.toy_translators import SENTENCES
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_mlnmt import import_model
from hf_mlnmt.generation import TranslationPipeline

PAGE = Path(__file__).resolve().parents[2] / "docs" / "opus-mt.md"


def test_the_ten_lines(original, tmp_path, monkeypatch, capsys):
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


def test_fine_tuning_nllb(original, tmp_path):
    """Labels begin with the language's code, which the pipeline forces later."""
    model, tokenizers, *_ = import_model(original("nllb"))
    tokenizers.source.src_lang, tokenizers.source.tgt_lang = "eng_Latn", "deu_Latn"
    pairs = zip(tokenizers.encode_source(SENTENCES[:4]), tokenizers.encode_target(SENTENCES[4:8]), strict=True)
    pairs = [{"input_ids": source.tolist(), "labels": target.tolist()} for source, target in pairs]
    codes = [tokenizers.source.convert_tokens_to_ids(code) for code in ("eng_Latn", "deu_Latn")]
    assert [pairs[0]["input_ids"][0], pairs[0]["labels"][0]] == codes
    settings = {"learning_rate": 1e-2, "max_steps": 40, "save_strategy": "no", "use_cpu": True, "report_to": "none"}
    arguments = Seq2SeqTrainingArguments(str(tmp_path / "run"), disable_tqdm=True, logging_steps=1, **settings)
    trainer = Seq2SeqTrainer(model, arguments, DataCollatorForSeq2Seq(tokenizers.source, model), pairs)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.5 * losses[0]
    model.save_pretrained(tmp_path / "tuned")
    tokenizers.save(tmp_path / "tuned")
    pipeline = TranslationPipeline.from_pretrained(tmp_path / "tuned", device="cpu")
    found = pipeline(SENTENCES[:2], source_language="eng_Latn", target_language="deu_Latn")
    assert all(text and "Latn" not in text for text in found)
