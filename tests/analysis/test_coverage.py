"""Coverage pictures: sums of the model's own attention, for models with and without recurrence, and clear refusals."""

from __future__ import annotations

import pytest
import torch
from helpers.contract import TINY
from transformers import AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt.analysis.reading import Sample, between
from hf_mlnmt.analysis.source_attention import sentence_study
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.tokenizer import save_tokenizers, train_tokenizer
from hf_mlnmt.generation.translating.loading import load

pytest.importorskip("matplotlib")
SENTENCE, TRANSLATION = "A dog sees the red house.", "The dog plays."
LINES = ["A man rides a red bicycle.", "The dog sees a woman on the street.", "Two children play in the house."]


def study_of(parts, text=SENTENCE, translation=TRANSLATION, languages=(None, None), **options):
    sample = Sample([text], None if translation is None else [translation], [1], 0, languages)
    return sentence_study({"m": parts}, sample, **{"summed": True, **options})


@pytest.mark.parametrize("head", [None, 2])
@pytest.mark.parametrize(
    ("system", "over"), [("transformer", []), ("fertility", []), ("m-10", [1, 2]), ("key-value-full", [])]
)
def test_sums_are_of_the_models_own_attention(folders, system, over, head):
    """Of several encoder layers that are attended to each has its sums."""
    parts = load(str(folders(system)))
    study = study_of(parts, head=head)
    assert parts.model.config._attn_implementation == "sdpa"
    parts.model.set_attn_implementation("eager")
    inputs = parts.source(SENTENCE, return_tensors="pt")
    labels = parts.target(text_target=TRANSLATION, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        weights = parts.model(**inputs, labels=labels, output_attentions=True).cross_attentions
    rows = iter([row["coverage"] for row in study.rows if "coverage" in row])
    for layer in weights:
        for heads in layer[0] if layer.dim() == 5 else layer:
            expected = (heads.mean(0) if head is None else heads[head - 1]).cumsum(0)
            found = torch.tensor([next(rows) for _ in expected.flatten()]).view_as(expected)
            torch.testing.assert_close(found, expected)
            if system != "key-value-full":  # whose weights need not sum to 1
                torch.testing.assert_close(expected[-1].sum(), torch.tensor(float(len(expected))))
    assert next(rows, None) is None
    maps = study_of(parts, head=head, summed=False).rows
    assert maps[-1]["weight"] == pytest.approx(float(expected[-1, -1] - expected[-2, -1]), abs=1e-6)
    assert sorted({row["encoder_layer"] for row in study.rows if "encoder_layer" in row}) == over
    assert study.summary[0]["panels"] == TINY["decoder_layers"] * max(1, len(over))
    fertilities = [row["fertility"] for row in study.rows if "fertility" in row]
    assert len(fertilities) == (expected.shape[1] if system == "fertility" else 0)
    assert all(0 < phi < 2 for phi in fertilities)
    assert list(study.figures) == ["coverage.m", "fertilities.m"][: 1 + bool(fertilities)]


def test_the_own_translation_ends_where_generate_ends(folders):
    study = study_of(load(str(folders("fertility"))), translation=None, num_beams=2)
    assert max(row["row"] for row in study.rows if "row" in row) + 1 == len(study.summary[0]["translation"].split(" "))


def test_refusals(folders):
    parts = load(str(folders("fertility")))
    for options, said in (({"layer": 3}, "layer 3: this model has 1 to 2"), ({"text": "  "}, "sentence 1 is empty")):
        with pytest.raises(UserError, match=said):
            study_of(parts, **options)
    (model,) = between({"m": load(str(folders("bridge-transformer")))}, None, None).values()
    with pytest.raises(UserError, match=r"m: .*does not attend to source positions"):
        study_of(model)


@pytest.mark.parametrize("translation", [None, "A man."])
def test_the_source_has_the_token_that_says_the_target(tmp_path, translation):
    """A model of several targets is told one before the source, of a search and of a given translation alike."""
    tokenizer = train_tokenizer(LINES * 20, vocab_size=150, languages=["de", "fr"], byte_fallback=False)
    config = hf_mlnmt.config_for("transformer", "tiny", **{**TINY, "vocab_size": len(tokenizer)})
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path)
    save_tokenizers(tmp_path, tokenizer)
    study = study_of(load(str(tmp_path)), translation=translation, languages=(None, "fr"), num_beams=2)
    assert study.rows[0]["source"] == "<2fr>"
