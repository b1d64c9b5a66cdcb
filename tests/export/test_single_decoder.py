"""`hf-mlnmt model drop-auxiliaries`: plain model folders that translate as the decoder they came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.model_folders import SENTENCES, write_model
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from typer.testing import CliRunner

from hf_mlnmt import TransformerForConditionalGeneration, config_for
from hf_mlnmt.cli import app
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import direction_of
from hf_mlnmt.data.tokenizer import save_tokenizers, train_tokenizer

SIZES = {"d_model": 16, "encoder_layers": 3, "decoder_layers": 1, "max_position_embeddings": 64}
SIZES |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
SIZES |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 16)


def write_supervised(folder: Path, system: str) -> Path:
    """A model folder as training leaves it, with text processing and a search of its own."""
    tokenizer = train_tokenizer(SENTENCES, vocab_size=300)
    torch.manual_seed(1)
    model = AutoModelForSeq2SeqLM.from_config(config_for(system, "tiny", vocab_size=len(tokenizer), **SIZES))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    model.generation_config.num_beams, model.generation_config.max_new_tokens = 2, 9
    model.save_pretrained(folder)
    save_tokenizers(folder, tokenizer)
    (folder / "results.json").write_text('{"languages": {"source": "en", "target": "de"}}')
    (folder / "text_processing.json").write_text('{"source": {"lowercase": true}}')
    return folder


@pytest.fixture(scope="module")
def supervised(tmp_path_factory) -> Path:
    return write_supervised(tmp_path_factory.mktemp("models") / "ms-12", "ms-12")


def call(*arguments: object, ok: bool = True):
    result = CliRunner().invoke(app, ["model", "drop-auxiliaries", *map(str, arguments)])
    if ok:
        assert result.exit_code == 0, (result.output, result.exception)
    return result


def outputs(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(SENTENCES[:4], return_tensors="pt", padding=True)
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        logits = model(**batch, decoder_input_ids=batch["input_ids"][:, :5]).logits
    return logits, model.generate(**batch)


def test_the_main_decoder_translates_the_same(supervised, tmp_path):
    call(supervised, "--output", tmp_path / "plain")
    for found, expected in zip(outputs(tmp_path / "plain"), outputs(supervised), strict=True):
        assert torch.equal(found, expected)
    assert direction_of(tmp_path / "plain") == ("en", "de")
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["model_type"] == "mlnmt-transformer"
    assert config["architectures"] == ["TransformerForConditionalGeneration"]
    for name in ("tokenizer.json", "tokenizer_config.json", "text_processing.json", "generation_config.json"):
        found, expected = ((folder / name).read_text() for folder in (tmp_path / "plain", supervised))
        assert json.loads(found) == json.loads(expected), name
    assert (tmp_path / "plain" / "model.safetensors").stat().st_size < (supervised / "model.safetensors").stat().st_size
    assert not [path for path in tmp_path.iterdir() if path.name != "plain"]


@pytest.mark.parametrize("system", ["ms-12", "ms-12-aif"])
def test_an_auxiliary_is_a_model_by_itself(system, tmp_path):
    folder = write_supervised(tmp_path / system, system)
    call(folder, "--auxiliary", 2, "--output", tmp_path / "auxiliary")
    single = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "auxiliary")
    assert type(single) is TransformerForConditionalGeneration
    assert single.config.encoder_layers == 2
    whole = AutoModelForSeq2SeqLM.from_pretrained(folder)
    found = single.model.decoder.layers[0].feed_forward.fc1.weight
    assert torch.equal(found, whole.model.auxiliary_decoders[1].layers[0].feed_forward.fc1.weight)
    assert not torch.equal(found, whole.model.decoder.layers[0].feed_forward.fc1.weight)
    logits, generated = outputs(tmp_path / "auxiliary")
    assert torch.isfinite(logits).all()
    assert generated.shape[0] == 4


def test_mistakes_are_named(supervised, tmp_path):
    fused, plain = write_supervised(tmp_path / "fused", "ms-1-aif"), write_model(tmp_path / "plain")
    out = tmp_path / "out"
    for arguments, message in [
        ((fused, "-o", out), r"information_fusion.*cannot be dropped.*--auxiliary"),
        ((plain, "-o", out), "TransformerForConditionalGeneration has no auxiliary decoders"),
        ((supervised, "--auxiliary", 3, "-o", out), r"layer=3: there are auxiliary decoders on \[1, 2\]"),
        ((tmp_path / "nothing", "-o", out), "nothing: no such folder"),
        ((supervised, "-o", supervised), "is there already"),
        ((supervised, "-o", supervised, "--force"), "is or holds an input"),
    ]:
        with pytest.raises(UserError, match=message):
            raise call(*arguments, ok=False).exception
    assert not out.exists()
    assert (supervised / "model.safetensors").is_file()
