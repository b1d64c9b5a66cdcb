"""The command export: what it prints, and what it refuses before it works."""

from __future__ import annotations

import importlib.metadata
import json
import shutil

import pytest
from helpers.export_toys import joint_tokenizer, run_page, toy_model, write_folder
from helpers.fused_folders import write_fused
from helpers.verbs import of_verbs

from hf_mlnmt.cli.export import export
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.export.check import Sentences, check_scores, compare_searches, generate, log_probabilities

run, refused = of_verbs(export)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizers = joint_tokenizer()
    return write_folder(
        tmp_path_factory.mktemp("export") / "model", tokenizers, toy_model(tokenizers, encoder_layers=1)
    )


def test_it_prints_what_it_compared_and_replaces_its_own(folder, tmp_path, monkeypatch, capsys):
    """What it writes is what docs/export.md reads."""
    pytest.importorskip("ctranslate2", reason="pip install 'hf-mlnmt[export]'")
    for _ in range(2):
        output = run(folder, "--format", "ctranslate2", "--dtype", "int8", "--output", tmp_path / "exported")
    assert "of the texts and" in output
    assert "largest difference of log probabilities" in output
    assert output.strip().endswith(str(tmp_path / "exported"))
    monkeypatch.chdir(tmp_path)
    run_page("ctranslate2", capsys)


def test_refused_before_it_works(folder, tmp_path, monkeypatch):
    out = tmp_path / "out"
    assert "did you mean 'ctranslate2'" in refused(folder, "--format", "ctranslate", "-o", out)
    assert "did you mean 'int8'" in refused(folder, "--format", "ctranslate2", "--dtype", "int", "-o", out)
    assert "onnx is exported in float32" in refused(folder, "--format", "onnx", "--dtype", "int8", "-o", out)
    assert "no config.json" in refused(tmp_path, "--format", "onnx", "-o", out)
    (tmp_path / "file").write_text("x")
    assert "is a file" in refused(folder, "--format", "onnx", "-o", tmp_path / "file")
    assert "no earlier export" in refused(folder, "--format", "onnx", "-o", folder)
    assert (folder / "model.safetensors").is_file()
    assert not out.exists()

    def missing(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert "pip install 'hf-mlnmt[export]'" in refused(folder, "--format", "ctranslate2", "-o", out)


def test_scores_that_differ_are_refused():
    """Though the searches may find the same; of rounded weights the difference is only told."""
    tokenizers = joint_tokenizer()
    model = toy_model(tokenizers)
    sentences = Sentences.of(model, tokenizers)
    found = log_probabilities(model, sentences.sources, sentences.targets)
    assert check_scores(found, model, sentences, strict=True) == 0
    found[1][0] += 0.01
    assert check_scores(found, model, sentences, strict=False) == pytest.approx(0.01, abs=1e-5)
    with pytest.raises(UserError, match=r"log probabilities differ by 0\.01"):
        check_scores(found, model, sentences, strict=True)


def test_agreement_is_that_of_texts():
    """A random source's likeliest translations are nearly equal: which one rounding picks says nothing."""
    tokenizers = joint_tokenizer()
    model = toy_model(tokenizers)
    sentences = Sentences.of(model, tokenizers)
    outputs = generate(model, sentences.sources, 1)
    others = [ids if row < sentences.texts else ids[::-1] for row, ids in enumerate(outputs)]
    found = compare_searches(model, sentences, {1: others}, strict=False)
    assert others != outputs
    assert found == {"greedy": {"same_sentences": 1.0, "same_tokens": 1.0}}
    with pytest.raises(UserError, match="greedy search gives"):
        compare_searches(model, sentences, {1: others}, strict=True)


def test_a_model_of_another_kind_is_sent_elsewhere(tmp_path):
    from transformers import MarianConfig, MarianMTModel

    tokenizers = joint_tokenizer()
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = MarianConfig(vocab_size=len(tokenizers.source), pad_token_id=0, decoder_start_token_id=0, **sizes, **heads)
    folder = write_folder(tmp_path / "marian", tokenizers, MarianMTModel(config))
    assert "MarianMTModel is no model of this package" in refused(folder, "--format", "onnx", "-o", tmp_path / "out")


def test_configs_that_no_engine_can_have(folder, tmp_path):
    """And a config of tokens that there are not, though generation_config.json beside it is right."""
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    config = json.loads((broken / "config.json").read_text())
    for fields, message in (
        ({"eos_token_id": 4444}, "config.json: eos_token_id: 4444 is no number of a token"),
        ({"eos_token_id": None}, "config.json: eos_token_id: no token ends a sentence"),
        ({"pad_token_id": -1}, "config.json: pad_token_id: -1 is no number of a token"),
        ({"architectures": 3}, "architectures: expected a list"),
    ):
        (broken / "config.json").write_text(json.dumps({**config, **fields}))
        for to in ("ctranslate2", "marian", "onnx"):
            assert message in refused(broken, "--format", to, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["ctranslate2", "firefox", "marian", "onnx"])
def test_fused_models_are_refused_by_name(to, tmp_path):
    said = refused(write_fused(tmp_path / "fused"), "--format", to, "-o", tmp_path / "x")
    assert "FusionForConditionalGeneration cannot be exported to" in said
    assert not (tmp_path / "x").exists()
