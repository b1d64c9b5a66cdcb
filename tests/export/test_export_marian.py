"""MarianMTModel: the way back of an import is the original bit for bit, and our own post-norm models work."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.contract import assert_same
from helpers.export_toys import joint_tokenizer, toy_model, two_tokenizers, write_folder
from helpers.foreign_translators import sentencepiece_model
from helpers.originals import MAKERS, save
from transformers import AutoTokenizer, MarianMTModel

from hf_mlnmt import UserError, import_model
from hf_mlnmt.data.tokenizer import load_tokenizers
from hf_mlnmt.export import export
from hf_mlnmt.export.marian import exportable


@pytest.mark.parametrize("name", [name for name in MAKERS if name.startswith("marian")])
def test_there_and_back_again(name, tmp_path):
    system = MAKERS[name](tmp_path, *sentencepiece_model(tmp_path))
    original = save(tmp_path / "original", *system)
    exported = export(import_model(original, tmp_path / "ours").folder, tmp_path / "back", "marian")
    before, after = (MarianMTModel.from_pretrained(folder).state_dict() for folder in (original, exported.folder))
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert torch.equal(tensor, after[key]), key
    texts = ["A man sees the dog.", "Two houses."]
    ids = [AutoTokenizer.from_pretrained(folder)(texts)["input_ids"] for folder in (original, exported.folder)]
    assert ids[0] == ids[1]


VARIANTS = {
    "plain, one vocabulary": (joint_tokenizer, {}),
    "biases, gelu": (two_tokenizers, {"attention_bias": True, "activation_function": "gelu", "output_bias": True}),
    "untied, unscaled": (two_tokenizers, {"tie_word_embeddings": False, "scale_embedding": False}),
    "untied, one vocabulary": (joint_tokenizer, {"tie_word_embeddings": False}),
}


@pytest.mark.parametrize(("make", "fields"), VARIANTS.values(), ids=VARIANTS)
def test_our_own_models(make, fields, tmp_path):
    """Their sines and cosines alternate, Marian's do not."""
    tokenizers = make()
    model = toy_model(tokenizers, **fields)
    folder = write_folder(tmp_path / "ours", tokenizers, model)
    exported = export(folder, tmp_path / "out", "marian")
    found = exported.record["compared_with_generate"]
    assert found["largest_difference_of_log_probabilities"] < 1e-4
    assert found["greedy"] == found["beam 4"] == {"same_sentences": 1.0, "same_tokens": 1.0}
    marian = MarianMTModel.from_pretrained(exported.folder).double()
    batch = {"input_ids": torch.tensor([[9, 8, 7, 1]]), "decoder_input_ids": torch.tensor([[3, 50, 60, 70]])}
    model.double()
    with torch.no_grad():
        for stack in (model.get_encoder(), model.get_decoder()):  # Marian's table has float32's numbers in every model
            stack.positions.table.copy_(stack.positions.table.float())
        assert_same(marian(**batch).logits, model(**batch).logits, 1e-9)
    assert load_tokenizers(exported.folder).joint == tokenizers.joint
    assert json.loads((exported.folder / "config.json").read_text())["model_type"] == "marian"


@pytest.mark.parametrize(
    "fields",
    [
        {"norm_position": "pre"},
        {"normalize_embedding": True},
        {"position_offset": 2},
        {"position_embedding": "tensor2tensor"},
        {"layer_norm_eps": 1e-6},
    ],
)
def test_what_marian_lacks(fields):
    with pytest.raises(UserError, match=f"{next(iter(fields))}="):
        exportable(toy_model(joint_tokenizer(), **fields))


def test_other_systems_and_types_are_refused(tmp_path):
    with pytest.raises(UserError, match="baseline's layers alone"):
        exportable(toy_model(joint_tokenizer(), "s-agg"))
    with pytest.raises(UserError, match="--dtype int8: marian is exported in float32"):
        export(tmp_path, tmp_path / "out", "marian", dtype="int8")
