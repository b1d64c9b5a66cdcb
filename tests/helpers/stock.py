"""Transformers' own Seq2SeqTrainer on the tiny model."""

from __future__ import annotations

from helpers.training_helpers import Pairs, arguments, tiny_model
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer


def examples(count: int = 24) -> list[dict[str, list[int]]]:
    return [{name: ids.tolist() for name, ids in example.items()} for example in Pairs(count).examples]


def stock(folder, tokenizer, model=None, **settings) -> Seq2SeqTrainer:
    model = model if model is not None else tiny_model(dropout=0.0)
    return Seq2SeqTrainer(
        model=model,
        args=arguments(folder, **settings),
        train_dataset=examples(),
        eval_dataset=examples(6),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=(lambda output: {"width": output.predictions.shape[1]})
        if settings.get("predict_with_generate")
        else None,
    )
