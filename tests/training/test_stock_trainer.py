"""A user's own stock Seq2SeqTrainer with a stock collator trains our models: loss, generation, resume."""

from __future__ import annotations

import pytest
import torch
from helpers.stock import stock
from helpers.training_helpers import tiny_model
from transformers import DataCollatorForSeq2Seq

from hf_mlnmt.modeling.upkeep import logger


def test_the_loss_is_right_under_accumulation(tmp_path, tokenizer):
    """8 sentences as 1 x 8 and as 4 x 2: the same loss, gradient and weights."""
    results = []
    for size, accumulation in ((8, 1), (2, 4)):
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation}
        trainer = stock(tmp_path, tokenizer, max_steps=3, logging_steps=1, learning_rate=1e-2, **settings)
        trainer.train()
        results.append((trainer.state.log_history, trainer.model.state_dict()))
    for left, right in zip(results[0][0][:3], results[1][0][:3]):
        assert left["loss"] == pytest.approx(right["loss"], rel=1e-4)
        assert left["grad_norm"] == pytest.approx(right["grad_norm"], rel=1e-3)
    for name, tensor in results[0][1].items():
        torch.testing.assert_close(tensor, results[1][1][name], rtol=1e-2, atol=1e-4, msg=name)


def test_evaluation_gives_the_loss(tmp_path, tokenizer):
    trainer = stock(tmp_path, tokenizer, per_device_eval_batch_size=6)
    batch = trainer.data_collator([{**example} for example in trainer.eval_dataset])
    with torch.no_grad():
        expected = trainer.model.eval()(**batch).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)
    assert trainer.label_names == ["labels"]


def test_predict_with_generate_and_resume(tmp_path, tokenizer, caplog):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "predict_with_generate": True}
    settings |= {"eval_strategy": "steps", "eval_steps": 2, "generation_max_length": 9}
    whole = stock(tmp_path / "whole", tokenizer, tiny_model(), **settings)
    whole.train()
    assert whole.state.log_history[-2]["eval_width"] >= 9
    again = stock(tmp_path / "again", tokenizer, tiny_model(seed=5), **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    assert "missing keys" not in caplog.text


def test_labels_that_label_smoothing_takes_away(tmp_path, tokenizer):
    """What is missing then is named, and what adds it."""
    trainer = stock(tmp_path, tokenizer, max_steps=1, label_smoothing_factor=0.1)
    trainer.data_collator = DataCollatorForSeq2Seq(tokenizer)
    with pytest.raises(ValueError, match=r"decoder_input_ids are missing.*label_smoothing_factor.*model=model"):
        trainer.train()
    trainer.data_collator = DataCollatorForSeq2Seq(tokenizer, model=trainer.model)
    trainer.train()


def test_padding_that_changes_the_loss_is_said_once(caplog):
    model = tiny_model()
    for labels in ([[-100, 5, 1]], [[5, 1, model.config.pad_token_id]], [[5, 6, 1], [5, 1, -100], [-100] * 3]):
        caplog.clear()
        logger.warning_once.cache_clear()
        for _ in range(2):
            model.prepare_decoder_input_ids_from_labels(torch.tensor(labels))
        assert len(caplog.records) == (len(labels) == 1)
    for mask, warned in (([[0, 1, 1]], 1), ([[1, 1, 0]], 0)):
        caplog.clear()
        ids = torch.tensor([[5, 5, 5]])
        for _ in range(2):
            model.generate(input_ids=ids, attention_mask=torch.tensor(mask), max_new_tokens=2, output_scores=True)
        assert caplog.text.count("padded on the left") == warned
