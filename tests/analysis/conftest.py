"""Small models of any system with large random weights, with a tokenizer of a few sentences."""

from __future__ import annotations

import pytest
from helpers.contract import FIELDS, TINY, redraw
from transformers import AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt.data.tokenizer import save_tokenizers, train_tokenizer

LINES = ["A man rides a red bicycle.", "The dog sees a woman on the street.", "Two children play in the house."]


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """system -> a saved model with its tokenizer, made when first asked for."""
    made, tokenizer = {}, train_tokenizer(LINES * 20, vocab_size=150, byte_fallback=False)

    def folder(system: str):
        if system not in made:
            fields = {**TINY, **FIELDS.get(system, {}), "vocab_size": len(tokenizer)}
            model = AutoModelForSeq2SeqLM.from_config(hf_mlnmt.config_for(system, "tiny", **fields))
            redraw(model)
            made[system] = tmp_path_factory.mktemp(system)
            model.save_pretrained(made[system])
            save_tokenizers(made[system], tokenizer)
        return made[system]

    return folder
