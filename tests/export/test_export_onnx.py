"""ONNX: both graphs give our log probabilities and generate()'s greedy outputs, for a system of every family."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch
from helpers.contract import of_each_kind
from helpers.export_toys import joint_tokenizer, run_page, toy_model, two_tokenizers, write_folder

from hf_mlnmt import TransformerConfig, config_for
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.export import export
from hf_mlnmt.export import onnx as export_onnx
from hf_mlnmt.export.check import ends_of, generate, until_end
from hf_mlnmt.generation.translating.batches import pad
from hf_mlnmt.zoo.systems import SYSTEMS, list_systems

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="pip install 'hf-mlnmt[export]'")

transformers_js = pytest.importorskip("hf_mlnmt.export.transformers_js")

# A family's systems are traced alike: the last of each stands for it, and the fusion of auxiliary decoders for itself.
TRACED = list_systems("translation")
FAMILIES = sorted({SYSTEMS[name].architecture: name for name in TRACED}.values())
SEPARATE = {"share_encoder_decoder_embeddings": False}
# One encoder layer where one shows everything: each takes a second to trace.
OVERRIDES = {
    "transparent": {"encoder_layers": 1},
    "full-dc": {"encoder_layers": 1},
    "ms-123-aif": {"auxiliary_layers": [1]},
    "rnn": {"encoder_layers": 1},
    "bridge-rnn": {"encoder_layers": 1, **SEPARATE},
    "bridge-transformer": {"encoder_layers": 1, **SEPARATE},
}


# Those with code of their own for a graph, and a decoder with a state; the others are traced as the baseline is.
@pytest.mark.parametrize("system", of_each_kind(FAMILIES, ("transformer", "full-dc", "rnn")))
def test_outputs_are_generates(system, tmp_path, capsys, monkeypatch):
    tokenizers = two_tokenizers() if system == "transformer" else joint_tokenizer()
    model = toy_model(tokenizers, system, **OVERRIDES.get(system, {}))
    before = model.config._attn_implementation
    exported = export(write_folder(tmp_path / "model", tokenizers, model), tmp_path / "out", "onnx")
    found = exported.record["compared_with_generate"]
    assert found["largest_difference_of_log_probabilities"] < 1e-4
    assert found["greedy"] == {"same_sentences": 1.0, "same_tokens": 1.0}
    assert model.config._attn_implementation == before
    if system in ("transformer", "rnn"):
        check_sizes(model, exported.folder)
    check_for_transformers_js(exported.folder, model, tokenizers, tmp_path)
    if system == "transformer":
        check_folder(exported.folder, tmp_path)
        monkeypatch.chdir(exported.folder.rename(tmp_path / "exported-onnx").parent)
        run_page("onnx_graphs", capsys)
        with torch.no_grad():  # graphs of another model than the one that they are compared with
            model.model.decoder.layers[0].source_attn.kv_proj.weight[-1] += 0.5
        with pytest.raises(UserError, match="Nothing was exported"):
            export_onnx.check(tmp_path / "exported-onnx", model, tokenizers)


def test_a_recurrent_decoder_without_input_feeding(tmp_path, caplog, monkeypatch):
    """It too begins with the encoder's states, which are read both ways whatever the padding is."""
    model = toy_model(joint_tokenizer(), "rnn", decoder_layers=2, input_feeding=False)
    monkeypatch.setattr(logging.getLogger("torch"), "handlers", [caplog.handler])  # PyTorch hands nothing on
    export_onnx.write(model, tmp_path)
    assert "torchvision" not in caplog.text
    check_sizes(model, tmp_path)


def check_sizes(model, folder):
    """Batches and lengths that were not traced: one token, and the longest."""
    from hf_mlnmt.export.onnx_graphs import OnnxGraphs

    graphs, positions = OnnxGraphs(folder), model.config.max_position_embeddings
    for sources in ([[1]], [[*[7] * (positions - 1), 1], [5, 1]]):
        ids, mask = (tensor.numpy() for tensor in pad(sources, 0))
        rows = graphs.greedy(ids, mask, model.config.decoder_start_token_id, ends_of(model), 32).tolist()
        assert [until_end(row, ends_of(model)) for row in rows] == generate(model, sources, beams=1)
    state, target = graphs.start(ids, mask), torch.full((2, positions), 4)
    with torch.no_grad():
        expected = model(*map(torch.from_numpy, (ids, mask)), target).logits
    found = [torch.from_numpy(graphs.step(tokens.numpy(), state)) for tokens in target.unbind(1)]
    torch.testing.assert_close(torch.stack(found, 1), expected, atol=1e-4, rtol=0)


def check_folder(folder, root):
    names = {path.name for path in folder.iterdir()}
    assert {"encoder.onnx", "decoder.onnx", "config.json", "generation_config.json", "export.json"} < names
    assert {"tokenizer.json", "target_tokenizer", "text_processing.json"} < names
    assert json.loads((folder / "export.json").read_text())["format"] == "onnx"
    for path in folder.glob("*.*"):
        assert str(root).encode() not in path.read_bytes()
        assert b"site-packages" not in path.read_bytes(), path.name
        assert b"hf_mlnmt/modeling" not in path.read_bytes(), path.name


def check_for_transformers_js(traced, model, tokenizers, root):
    """One graph of both, driven as transformers.js does: what generate() gives, one table, an end that stays one."""
    import onnx

    out = root / "js"
    out.mkdir()
    found = transformers_js.pack(traced, model, tokenizers, out, ("float32", "int8"))
    assert found["largest_difference_of_log_probabilities, float32"] < 1e-4
    assert found["greedy, float32"] == {"same_sentences": 1.0, "same_tokens": 1.0}
    assert found["largest_difference_of_log_probabilities, int8"] > 0
    sizes = {path.name: path.stat().st_size for path in (out / "onnx").iterdir()}
    assert set(sizes) == {
        f"{name}{end}.onnx" for name in ("encoder_model", "decoder_model_merged") for end in ("", "_quantized")
    }
    for dtype, ending in transformers_js.ENDINGS.items():
        graph = onnx.load(out / "onnx" / f"decoder_model_merged{ending}.onnx").graph
        shapes = [tuple(tensor.dims) for tensor in graph.initializer]
        table, kind = (model.config.decoder_vocab_size, model.config.d_model), 2 if dtype == "int8" else 1
        if model.config.tie_word_embeddings and tokenizers.joint:
            assert shapes.count(table) == 1
            assert [t.data_type for t in graph.initializer if tuple(t.dims) == table] == [kind]
    driver, end = transformers_js.Driver(out, "float32"), model.config.eos_token_id
    ids, mask = (tensor.numpy() for tensor in pad([[7, 1], [9, 8, 1]], 0))
    state = driver.start(ids, mask)
    driver.step(np.array([model.config.decoder_start_token_id] * 2), state)
    assert driver.step(np.array([end, 5]), state).argmax(-1)[0] == end
    if any(name.endswith("decoder.key") and value.shape[2:3] == (2,) for name, value in state.items()):
        for _ in range(model.config.max_position_embeddings - 3):
            driver.step(np.array([5, 5]), state)
        assert driver.step(np.array([5, 5]), state).argmax(-1).tolist() == [end, end]
    assert json.loads((out / "config.json").read_text())["model_type"] == "marian"


def test_what_transformers_js_cannot_do_is_refused():
    tokenizers = two_tokenizers()
    with pytest.raises(UserError, match="tokenizers of their own"):
        transformers_js.check_exportable(toy_model(tokenizers), tokenizers)
    tokenizers = joint_tokenizer()
    tokenizers.processing["source"] = TextProcessing("en", moses=True)
    with pytest.raises(UserError, match="Moses"):
        transformers_js.check_exportable(toy_model(tokenizers), tokenizers)


def test_every_config_class_is_tried():
    classes = {SYSTEMS[name].architecture.config_class for name in TRACED}
    assert {type(config_for(name)) for name in FAMILIES} == classes
    assert TransformerConfig in {type(config_for(name)) for name in FAMILIES}


def test_a_model_that_cannot_be_traced_is_refused_with_the_reason(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("no such operator\nand a long story")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(UserError, match=r"cannot be exported to ONNX: no such operator$"):
        export_onnx.write(toy_model(joint_tokenizer()), tmp_path)
    assert not list(tmp_path.iterdir())
