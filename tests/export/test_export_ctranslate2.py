"""CTranslate2: the baseline in its variants gives generate()'s outputs; the others, and wrong weights, are refused."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.export_toys import joint_tokenizer, toy_model, two_tokenizers, write_folder
from helpers.foreign_translators import sentencepiece_model
from helpers.originals import MAKERS, save

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.tokenizer import load_tokenizers
from hf_mlnmt.export import export
from hf_mlnmt.export.check import Sentences, generate
from hf_mlnmt.export.ctranslate2 import ACTIVATIONS, write
from hf_mlnmt.export.exporting import check_ctranslate2 as check
from hf_mlnmt.export.exporting import exportable_to_ctranslate2 as exportable
from hf_mlnmt.generation.translating.loading import load

ctranslate2 = pytest.importorskip("ctranslate2", reason="pip install 'hf-mlnmt[export]'")

HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 8, "decoder_layers": 2}
VARIANTS = {
    "post": (two_tokenizers, {}),
    "pre, biases, gelu, one vocabulary": (
        joint_tokenizer,
        {"norm_position": "pre", "attention_bias": True, "activation_function": "gelu"},
    ),
    "untied, unscaled, tanh-gelu, heads differ": (
        joint_tokenizer,
        {"tie_word_embeddings": False, "scale_embedding": False, "activation_function": "gelu_new", **HEADS},
    ),
}


@pytest.mark.parametrize(("make", "fields"), VARIANTS.values(), ids=VARIANTS)
def test_outputs_are_generates(make, fields, tmp_path):
    tokenizers = make()
    model = toy_model(tokenizers, **fields)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    write(model, tokenizers, tmp_path, "float32")
    found = check(tmp_path, model, tokenizers, "float32")
    assert found["largest_difference_of_log_probabilities"] < 1e-4
    assert found["greedy"] == found["beam 4"] == {"same_sentences": 1.0, "same_tokens": 1.0}
    outputs = generate(model, Sentences.of(model, tokenizers).sources, beams=4)
    assert len(set(map(tuple, outputs))) > 2, "the outputs say too little"
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_pytorch_keeps_its_threads(tmp_path):
    """The two share the number."""
    tokenizers = joint_tokenizer()
    model = toy_model(tokenizers)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)  # not what CTranslate2 would choose
    try:
        write(model, tokenizers, tmp_path, "float32")
        check(tmp_path, model, tokenizers, "float32")
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)


def test_rounded_weights_are_reported(tmp_path):
    tokenizers = joint_tokenizer()
    folder = write_folder(tmp_path / "model", tokenizers, toy_model(tokenizers, d_model=128))
    export(folder, tmp_path / "full", "ctranslate2")
    for dtype, share in (("int8", 0.4), ("float16", 0.6)):
        found = export(folder, tmp_path / dtype, "ctranslate2", dtype=dtype).record["compared_with_generate"]
        assert 1e-5 < found["largest_difference_of_log_probabilities"] < 1
        assert found["greedy"]["same_tokens"] > 0.3
        rounded, full = ((tmp_path / name / "model.bin").stat().st_size for name in (dtype, "full"))
        assert rounded < share * full


def test_the_folder_is_complete_and_translates_as_the_docs_say(tmp_path):
    tokenizers = two_tokenizers()
    model = toy_model(tokenizers)
    folder = write_folder(tmp_path / "model", tokenizers, model)
    exported = export(folder, tmp_path / "out", "ctranslate2")
    record = json.loads((exported.folder / "export.json").read_text())
    assert record == exported.record
    assert (record["format"], record["dtype"], record["model_type"]) == ("ctranslate2", "float32", "mlnmt-transformer")
    assert record["versions"]["ctranslate2"] == ctranslate2.__version__
    assert str(tmp_path) not in (exported.folder / "export.json").read_text()
    loaded = load_tokenizers(exported.folder)
    translator = ctranslate2.Translator(str(exported.folder))
    texts = ["The old man sees a dog.", "A child plays."]
    pieces = [loaded.source.convert_ids_to_tokens(ids) for ids in loaded.encode_source(texts)]
    results = translator.translate_batch(pieces, beam_size=4, max_decoding_length=32, min_decoding_length=0)
    ids = [loaded.target.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    expected = generate(model, [x.tolist() for x in tokenizers.encode_source(texts)], beams=4)
    assert loaded.decode_target(ids) == tokenizers.decode_target(expected)


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if not kind.startswith("mbart")])
def test_imported_models(kind, tmp_path):
    """With vocabularies of each side, and languages that the tokenizer's own leaves out."""
    spm, pieces = sentencepiece_model(tmp_path)
    parts = load(save(tmp_path / "model", *MAKERS[kind](tmp_path, spm, pieces)), "cpu", fast=True)
    settings = parts.model.generation_config  # what an exported model knows nothing of
    settings.bad_words_ids = settings.forced_eos_token_id = settings.forced_bos_token_id = None
    (tmp_path / "out").mkdir()
    write(parts.model, parts.tokenizers, tmp_path / "out", "float32")
    found = check(tmp_path / "out", parts.model, parts.tokenizers, "float32")
    assert found["greedy"] == found["beam 4"] == {"same_sentences": 1.0, "same_tokens": 1.0}


def test_rows_without_a_token_are_kept(tmp_path):
    tokenizers = joint_tokenizer()
    model = toy_model(tokenizers)
    model.resize_token_embeddings(len(tokenizers.source) + 5)
    write(model, tokenizers, tmp_path, "float32")
    assert check(tmp_path, model, tokenizers, "float32")["greedy"]["same_tokens"] == 1.0


def test_multi_level_supervision_goes_as_its_main_decoder(tmp_path):
    tokenizers = joint_tokenizer()
    folder = write_folder(tmp_path / "model", tokenizers, toy_model(tokenizers, "ms-1"))
    assert export(folder, tmp_path / "out", "ctranslate2").record["model_type"] == "mlnmt-transformer"


@pytest.mark.parametrize(
    ("system", "lacks"),
    [
        ("transparent", "its own weighted sum of the encoder layers"),
        ("m-00", "attends to all encoder layers"),
        ("ms-1-aif", "read by the main decoder"),
        ("fertility", "how much of each word it has used up"),
        ("dec-dc", "target prefix and to its local context"),
        ("ms-1+enc-dc", "to its local context"),
        ("s-agg+enc-dc", "over a dual-context encoder"),
    ],
)
def test_other_systems_are_refused_with_the_reason_and_the_way_out(system, lacks, tmp_path):
    with pytest.raises(UserError, match="cannot be exported to CTranslate2") as error:
        exportable(toy_model(joint_tokenizer(), system))
    assert lacks in str(error.value)
    assert "generate()" in str(error.value)
    assert "onnx" in str(error.value)


def test_what_ctranslate2_cannot_say_is_refused():
    tokenizers = joint_tokenizer()
    with pytest.raises(UserError, match="activation_function=mish"):
        exportable(toy_model(tokenizers, activation_function="mish"))
    with pytest.raises(UserError, match="eos_token_id"):
        exportable(toy_model(tokenizers, eos_token_id=[1, 2]))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_an_export_that_differs_is_not_kept(dtype, tmp_path, monkeypatch):
    tokenizers = joint_tokenizer()
    folder = write_folder(tmp_path / "model", tokenizers, toy_model(tokenizers))
    monkeypatch.setitem(ACTIVATIONS, "relu", "SWISH")
    with pytest.raises(UserError, match="Nothing was exported"):
        export(folder, tmp_path / "out", "ctranslate2", dtype=dtype)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
