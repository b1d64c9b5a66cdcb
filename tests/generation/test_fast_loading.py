"""A pipeline takes what the baseline can compute as the baseline, says so, and leaves alone what cannot be imported."""

from __future__ import annotations

import json
import logging

from helpers.toy_translators import SENTENCES

from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating.loading import load


def test_it_is_said_in_one_line(foreign, caplog):
    with caplog.at_level(logging.WARNING):
        TranslationPipeline.from_pretrained(str(foreign["marian"]), "cpu")
    (line,) = [record.getMessage() for record in caplog.records]
    assert "imported as this package's baseline" in line
    assert "fast=False" in line
    # What studies, publishes or converts a model gets the model that it names.
    assert load(str(foreign["marian"]), "cpu").model.config.model_type == "marian"


def test_what_cannot_be_imported_stays_as_it_is(foreign, tmp_path, caplog):
    """A mixture of settings that the baseline refuses: a second end of sentence."""
    folder = tmp_path / "two-ends"
    folder.mkdir()
    for file in foreign["marian"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for name in ("config.json", "generation_config.json"):
        fields = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**fields, "eos_token_id": [0, 5]}))
    with caplog.at_level(logging.WARNING):
        pipeline = TranslationPipeline.from_pretrained(folder, "cpu")
    assert pipeline.model.config.model_type == "marian"
    assert "left as it is, because it cannot be imported" in caplog.text
    assert "eos_token_id=[0, 5]" in caplog.text
    assert any(pipeline(SENTENCES[:4]))


def test_the_type_of_the_weights_is_kept_or_chosen(foreign):
    for dtype in ("auto", "bfloat16"):
        model = TranslationPipeline.from_pretrained(foreign["nllb"], "cpu", dtype).model
        assert str(model.dtype).endswith("float32" if dtype == "auto" else dtype)
