"""A model folder is found, checked, loaded with just the weights that its config asks for, and copied; bad ones not."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from contextlib import nullcontext, suppress
from pathlib import Path

import huggingface_hub
import pytest
import torch
from helpers.model_folders import small_model, write_model
from helpers.once import made_once
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel
from transformers.utils import logging as transformers_logging

from hf_mlnmt import UserError
from hf_mlnmt.common.model_folder import (
    CONFIG,
    WEIGHTS,
    WEIGHTS_INDEX,
    check_model_folder,
    copy_all_but_weights,
    copy_text_files,
    fetch_small_files,
    is_path,
    load_model,
)
from hf_mlnmt.data.tokenizer import load_tokenizers
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating.fusing import fuse_folders
from hf_mlnmt.hub import build_folder
from hf_mlnmt.reports.description import describe, render
from hf_mlnmt.training import checkpoints
from hf_mlnmt.training.checkpoints import average_checkpoints
from hf_mlnmt.training.init_from import check_sources

modeling_logger = transformers_logging.get_logger("transformers.modeling_utils")


class Noting(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, texts: list[str]):
        super().__init__()
        self.texts = texts

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    return made_once(tmp_path_factory, "written", write_model)


@pytest.fixture
def folder(written, tmp_path):
    return Path(shutil.copytree(written, tmp_path / "runs" / "demo" / "average"))


def change_config(folder, **fields):
    path = folder / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def change_weights(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


# Loading


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"encoder_layers": 3}, r"are missing \(model\.encoder\.layers\.1\.\S+ and \d+ more\)"),
        ({"decoder_layers": 0}, "decoder_layers=0"),
        (
            {"encoder_ffn_dim": 24},
            r"have another shape \(model\.encoder\.layers\.0\.feed_forward\.fc1\.bias and 2 more",
        ),
        ({"d_model": "wide"}, "d_model"),
        ({"norm_position": "pre"}, r"4 are missing \(model\.decoder\.layer_norm\.bias and 3 more\)"),
    ],
)
def test_a_config_that_disagrees_with_the_weights_is_refused(folder, fields, found):
    change_config(folder, **fields)
    with pytest.raises(UserError, match=found) as error:
        load_model(folder)
    assert str(folder) in str(error.value)
    with pytest.raises(UserError, match=found):  # what `hf-mlnmt translate` does
        TranslationPipeline.from_pretrained(str(folder))


@pytest.mark.parametrize(("strict", "told"), [(True, False), (False, True)])
def test_transformers_own_table_is_not_shown_beside_our_message(folder, monkeypatch, strict, told):
    change_config(folder, encoder_layers=3)
    reports: list[str] = []
    monkeypatch.setattr(modeling_logger, "handlers", [Noting(reports)])
    monkeypatch.setattr(transformers_logging, "_tqdm_active", True)
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_warning()
    with nullcontext() if not strict else pytest.raises(UserError):
        load_model(folder, strict=strict)
    assert any("LOAD REPORT" in text for text in reports) == told
    assert transformers_logging.is_progress_bar_enabled()
    assert transformers_logging.get_verbosity() == transformers_logging.WARNING
    transformers_logging.set_verbosity(before)


def test_weights_that_the_model_lacks_are_refused_unless_asked_for(folder):
    change_weights(folder, lambda tensors: tensors.update({"model.encoder.layers.1.bias": torch.ones(2)}))
    with pytest.raises(UserError, match=r"1 are unknown to the model \(model\.encoder\.layers\.1\.bias\)"):
        load_model(folder)
    assert load_model(folder, strict=False).config.encoder_layers == 1


def test_old_files_of_transformers_own_models_may_hold_more(tmp_path):
    sizes = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    MarianMTModel(MarianConfig(vocab_size=9, d_model=4, pad_token_id=0, **sizes)).save_pretrained(tmp_path)
    change_weights(tmp_path, lambda tensors: tensors.update({"model.old_buffer": torch.ones(2)}))
    assert load_model(tmp_path).config.model_type == "marian"
    change_weights(tmp_path, lambda tensors: tensors.pop("model.encoder.layers.0.fc1.bias"))
    with pytest.raises(UserError, match=r"1 are missing \(model\.encoder\.layers\.0\.fc1\.bias\)"):
        load_model(tmp_path)


READERS = {
    "load": load_model,
    "translate": TranslationPipeline.from_pretrained,
    "average": lambda folder: checkpoints.write_model(folder.parent / "out", folder, [folder, folder]),
    "init_from": lambda folder: check_sources({"all": str(folder)}, folder),
    "fuse": lambda folder: fuse_folders([folder], folder.parent / "out", print),
    "publish": lambda folder: build_folder(folder, folder.parent / "out"),
}


BROKEN = [(float("nan"), read) for read in READERS.values()]
BROKEN += [(value, READERS[name]) for value in (-float("inf"), 1e30, "int32") for name in ("load", "average")]


@pytest.mark.parametrize(("value", "read"), BROKEN)
def test_weights_that_are_none_are_refused_by_all_that_load(folder, value, read):
    name = "model.encoder.layers.0.feed_forward.fc1.weight"

    def change(tensors):
        if value == "int32":
            tensors[name] = (tensors[name] * 100).int()
        else:
            tensors[name][1, 2] = value

    change_weights(folder, change)
    found = rf"are of whole numbers \({name}\)" if value == "int32" else rf"not finite numbers .{name}."
    with pytest.raises(UserError, match=rf"{WEIGHTS}: .*{found}"):
        read(folder)


def test_weights_of_a_checkpoint_that_are_none_are_not_gone_on_with(folder):
    checkpoint = folder.parent / "checkpoint-1"
    change_weights(folder, lambda tensors: tensors.update({"lm_head.weight": torch.ones(2, dtype=torch.int32)}))
    checkpoints.finish(folder, checkpoint)
    assert re.search(r"of whole numbers \(lm_head\.weight\)", checkpoints.what_is_wrong(checkpoint))


def test_old_counters_and_quantised_weights_are_of_whole_numbers(folder):
    def change(tensors):
        tensors["encoder.position_ids"] = torch.ones(2, dtype=torch.int64)

    change_weights(folder, change)
    assert "encoder.position_ids" in average_checkpoints([folder])
    change_weights(folder, lambda tensors: tensors.update(rounded=torch.ones(2, dtype=torch.int8)))
    with pytest.raises(UserError, match="rounded"):
        average_checkpoints([folder])
    change_config(folder, quantization_config={"quant_method": "x"})
    assert "rounded" in average_checkpoints([folder])


def test_other_heads_and_other_models(folder, tmp_path):
    assert type(load_model(folder, AutoModel)).__name__ == "TransformerModel"
    expected = AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in load_model(folder).state_dict().items())
    (tmp_path / "gpt").mkdir()
    shutil.copyfile(folder / WEIGHTS, tmp_path / "gpt" / WEIGHTS)
    (tmp_path / "gpt" / CONFIG).write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match=r"not an encoder-decoder \(translation\) model"):
        load_model(tmp_path / "gpt")


def test_pickles_and_broken_files_are_refused(folder, tmp_path):
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])
    with pytest.raises(UserError, match="broken or half-written"):
        load_model(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(UserError, match="no weights at all"):
        load_model(folder)
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match=r"only pytorch_model\.bin, a pickle, which is never loaded here"):
        load_model(folder)
    with pytest.raises(UserError, match=r"run's folder; give \S+demo/average"):
        check_model_folder(folder.parent)
    with pytest.raises(UserError, match="a file, not a model folder"):
        load_model(folder / CONFIG)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "[" * 100_000,
        "{}",
        '{"metadata": {}, "weight_map": []}',
        '{"metadata": {}, "weight_map": {"a": 1}}',
        '{"metadata": {}, "weight_map": {"a": "../x.safetensors"}}',
        '{"metadata": {}, "weight_map": {"a": "gone.safetensors"}}',
    ],
    ids=["empty", "list", "deep", "no map", "map of another type", "no text", "elsewhere", "gone"],
)
def test_an_index_of_weights_that_is_none_is_refused(folder, content):
    model = load_model(folder)
    shutil.move(folder / WEIGHTS, folder.parent / "x.safetensors")
    model.save_pretrained(folder, max_shard_size="2KB")
    (folder / WEIGHTS_INDEX).write_text(content)
    for read in (load_model, lambda folder: average_checkpoints([folder])):
        with pytest.raises(UserError, match=rf"{WEIGHTS_INDEX}: .* Copy"):
            read(folder)


def test_weights_in_one_file_go_before_an_index_that_was_left(folder, tmp_path):
    """Transformers reads them so."""
    shutil.copytree(folder, tmp_path / "zeros")
    change_weights(tmp_path / "zeros", lambda tensors: tensors.update({name: one * 0 for name, one in tensors.items()}))
    load_model(tmp_path / "zeros").save_pretrained(tmp_path / "parts", max_shard_size="2KB")
    for path in (tmp_path / "parts").glob("model*safetensors*"):
        shutil.copy(path, folder)
    assert all(one.abs().sum() for one in average_checkpoints([folder]).values() if one.dim() == 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "expected a JSON object, not \\[\\]"),
        (b"", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        ({"model_type": ["mlnmt-transformer"]}, r'model_type: expected a text, not \["mlnmt-transformer"\]'),
        ({"architectures": 3}, "architectures: expected a list, not 3"),
        ({"encoder_layers": "two"}, "'encoder_layers' expected int, got str"),
        ({"dropout": float("nan")}, "dropout=nan"),
        ({"dtype": "foo"}, "foo"),
        ({"dtype": "float128"}, "dtype: expected float32, float16 or bfloat16, not float128"),
        ({"dtype": "int32"}, r"dtype: expected float32, float16 or bfloat16, not int32"),
        ({"is_encoder_decoder": "no"}, 'is_encoder_decoder: expected true or false, not "no"'),
        ({"auto_map": 5}, "auto_map: expected a JSON object, not 5"),
        ({"quantization_config": 5}, "quantization_config: expected a JSON object, not 5"),
        ({"model_type": "new", "auto_map": {"AutoConfig": "new.New"}}, "code of its own .* is not run unless you say"),
        (None, "cannot be read"),
    ],
)
def test_a_config_that_no_model_has_is_refused_before_one_is_built(folder, content, message):
    if isinstance(content, dict):
        change_config(folder, **content)
    elif content is None:
        (folder / CONFIG).chmod(0)
        if os.access(folder / CONFIG, os.R_OK):
            pytest.skip("who runs this may read everything")
    else:
        (folder / CONFIG).write_bytes(content)
    for name, read in {**READERS, "describe": describe, "file": lambda folder: describe(folder / CONFIG)}.items():
        weights_alone = name in ("average", "init_from")
        with suppress(UserError) if weights_alone else pytest.raises(UserError, match=message) as error:
            read(folder)
        assert weights_alone or str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("stop_strings", "x", 'stop_strings: expected null, not "x"'),
        ("constraints", [1], "constraints: expected null"),
        ("begin_suppress_tokens", 5, "begin_suppress_tokens: expected a list, not 5"),
        ("exponential_decay_length_penalty", [1], "exponential_decay_length_penalty: expected a list of 2"),
        ("is_assistant", True, "is_assistant: expected false, not true"),
        ("prompt_lookup_num_tokens", 5, "prompt_lookup_num_tokens: expected null"),
        ("length_normalization", 5, "length_normalization: expected a text, not 5"),
        ("forced_bos_token_id", [1], "forced_bos_token_id: expected a whole number"),
        ("forced_eos_token_id", True, "forced_eos_token_id: expected a list"),
        ("sequence_bias", [[1, 2]], r"sequence_bias\.0\.0: expected a list"),
    ],
)
def test_a_generation_config_of_another_form_is_refused_by_all_that_load(folder, field, value, message):
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    for read in (*READERS.values(), describe):
        with pytest.raises(UserError, match=rf"generation_config\.json: {message}"):
            read(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("text_processing.json", {"source": None}, "source: expected a JSON object, not null"),
        ("special_tokens_map.json", {"bos_token": -1}, "bos_token: expected a list, not -1"),
        ("special_tokens_map.json", b"\xef\xbb\xbf{}", "not valid JSON .*BOM"),
        ("added_tokens.json", {"<bt>": "x"}, '<bt>: expected a whole number, not "x"'),
        ("tokenizer_config.json", {"eos_token": 5}, "eos_token: expected a text, not 5"),
        ("tokenizer_config.json", {"pad_token": [1]}, r"pad_token: expected a JSON object|pad_token: expected a text"),
        ("tokenizer_config.json", {"mask_token": {"content": 3}}, "mask_token: expected a text, not"),
        ("tokenizer.json", {"model": 5}, "model: expected a JSON object, not 5"),
    ],
)
def test_a_file_of_a_tokenizer_of_another_form_is_refused_by_name(folder, file, content, message):
    (folder / file).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    for read in (TranslationPipeline.from_pretrained, READERS["publish"]):
        with pytest.raises(UserError, match=rf"{re.escape(file)}: {message}"):
            read(folder)
    with suppress(UserError):
        describe(folder)


def test_a_tokenizer_that_its_library_cannot_read_is_refused(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"]["special_tokens"] = {}  # at which tokenizers panics
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"the tokenizer cannot be loaded \(no entry found"):
        load_tokenizers(folder)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bad_words_ids", [], r"bad_words_ids: \[\] is no list of lists"),
        ("suppress_tokens", [10**6], r"suppress_tokens: \[1000000\] are no numbers of tokens"),
        ("begin_suppress_tokens", [-1], "begin_suppress_tokens: "),
        ("sequence_bias", [[[10**6], 1.0]], "sequence_bias: "),
        ("repetition_penalty", 5, None),  # a whole number is a number
        ("encoder_repetition_penalty", 2, None),
    ],
)
def test_a_generation_config_names_tokens_and_numbers_that_can_be(folder, field, value, message):
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with nullcontext() if message is None else pytest.raises(UserError, match=message):
        TranslationPipeline.from_pretrained(folder)("A man.", num_beams=1)


def test_a_model_that_is_said_not_to_translate_is_not_loaded_as_one_that_does(folder):
    change_config(folder, is_encoder_decoder=False)
    with pytest.raises(UserError, match="not an encoder-decoder"):
        TranslationPipeline.from_pretrained(folder)


def test_a_quantised_model_without_its_package_is_refused(folder):
    change_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(UserError, match="optimum"):
        load_model(folder)


def test_tokens_that_a_generation_config_leaves_out_are_the_model_s(folder):
    expected = TranslationPipeline.from_pretrained(folder)("A man.", num_beams=2, max_new_tokens=9)
    (folder / "generation_config.json").write_text("{}")
    assert TranslationPipeline.from_pretrained(folder)("A man.", num_beams=2, max_new_tokens=9) == expected


def test_positions_that_do_not_fit_into_memory_are_refused(folder):
    change_config(folder, max_position_embeddings=10**13)
    with pytest.raises(UserError, match="too large for the memory"):
        load_model(folder)


def test_describe_says_that_weights_and_config_do_not_fit(folder):
    assert "problem" not in describe(folder)
    change_config(folder, d_model=8)
    told = describe(folder)
    assert "config.json and weights do not fit: of the weights" in told["problem"]
    assert told["problem"] in [row[1] for table in render(told) for row in table.rows]


# The tokenizer that belongs to a model


def with_tokenizers(folder):
    load_tokenizers(folder).save(folder)
    return json.loads((folder / "tokenizer.json").read_text())


def less_merges(content):
    content["model"]["merges"] = content["model"]["merges"][:1]


def less_words(content):
    kept = {token: number for token, number in content["model"]["vocab"].items() if number < 9}
    content["model"] |= {"vocab": kept, "merges": []}


CHANGES = {
    "merges": less_merges,
    "words": less_words,
    "decoder": lambda content: content.update(decoder=None),
    "normalizer": lambda content: content.update(normalizer={"type": "Lowercase"}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_tokenizer_that_is_not_the_model_s_is_refused(folder, change):
    content = with_tokenizers(folder)
    TranslationPipeline.from_pretrained(folder)
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    for name in ("translate", "init_from", "fuse", "publish"):
        with pytest.raises(UserError, match="is not the one that the model was saved with"):
            READERS[name](folder)
    change_config(folder, tokenizers=None)
    load_tokenizers(folder)


def test_a_tokenizer_may_grow_with_its_model(folder, tmp_path):
    with_tokenizers(folder)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer.add_tokens(["<new>"])
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert len(load_tokenizers(tmp_path).source) == len(tokenizer)
    assert json.loads((tmp_path / CONFIG).read_text())["tokenizers"]["source"]["size"] == len(tokenizer) - 1


def test_what_a_config_says_of_tokenizers_goes_with_them(folder, tmp_path):
    with_tokenizers(folder)
    said = json.loads((folder / CONFIG).read_text())["tokenizers"]
    fuse_folders([folder], tmp_path / "fused", print)
    READERS["average"](folder)
    for made in (tmp_path / "fused", folder.parent / "out"):
        assert json.loads((made / CONFIG).read_text())["tokenizers"] == said


def test_a_tokenizer_of_far_less_entries_than_the_model_s_is_said(folder, caplog, monkeypatch):
    monkeypatch.setattr("hf_mlnmt.data.tokenizer._ROUNDED", 8)
    TranslationPipeline.from_pretrained(folder)
    assert not caplog.records
    content = json.loads((folder / "tokenizer.json").read_text())
    less_words(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    TranslationPipeline.from_pretrained(folder)
    assert re.search(r"tokenizer has \d+ entries, the model \d+ embeddings", caplog.text)
    content["model"]["vocab"]["zz"] = 4444
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="has 4445 entries, the model"):
        TranslationPipeline.from_pretrained(folder)


# Finding


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("the Hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(AutoModelForSeq2SeqLM, "from_pretrained", refuse)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("runs/demo/averag", "runs/demo/average"),
        ("rums/demo/average", "runs/demo/average"),
        ("runs/dem", "runs/demo"),
        ("./runs/demo/best", None),
        ("runs/demo/average/", None),  # it is there
        ("no such model", None),
    ],
)
def test_a_mistyped_path_is_refused_at_once(folder, monkeypatch, no_network, name, near):
    monkeypatch.chdir(folder.parents[2])
    if name.endswith("/"):
        assert check_model_folder(name)
        return
    for find in (load_model, fetch_small_files):
        with pytest.raises(UserError, match="no such folder") as error:
            find(name)
        assert (f"did you mean '{near}'?" in str(error.value)) == (near is not None)


def test_names_on_the_hub_are_no_paths(folder, monkeypatch):
    monkeypatch.chdir(folder.parents[2])
    assert not any(map(is_path, ["t5-small", "facebook/nllb-200-distilled-600M", "demo/average"]))
    assert all(map(is_path, ["runs/other", "../x", "/a", "~/models/x", "a/b/c", "a b", "x/"]))


# Copying


def test_everything_that_belongs_to_a_model_is_copied(folder, tmp_path):
    extra = {"source.spm", "vocab.json", "text_processing.json", "transformer.py", "results.json", "optimizer.pt"}
    for name in extra:
        (folder / name).write_text("{}")
    (folder / "target_tokenizer").mkdir()
    (folder / "target_tokenizer" / "tokenizer.json").write_text("{}")
    text = {"tokenizer.json", "tokenizer_config.json", "source.spm", "vocab.json", "text_processing.json"}
    text.add("target_tokenizer/tokenizer.json")
    for copy, expected in [
        (copy_text_files, text),
        (copy_all_but_weights, text | {CONFIG, "generation_config.json", "transformer.py"}),
    ]:
        target = tmp_path / copy.__name__
        target.mkdir()
        copy(folder, target)
        found = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
        assert found == expected


def test_a_model_that_depends_on_its_weights():
    """The tests above say something only if the toy's weights are its own."""
    assert small_model(30).model.encoder.layers[0].feed_forward.fc1.weight.std() > 0.1


def test_from_the_hub_too_only_safetensors_are_loaded(monkeypatch):
    asked = {}

    def note(name, **options):
        asked.update(options)
        raise OSError("no such file on the Hub\nSee the pages of another library.")

    monkeypatch.setattr(AutoModelForSeq2SeqLM, "from_pretrained", note)
    with pytest.raises(UserError, match=r"a Hub name\. no such file on the Hub\.$"):
        load_model("owner/name", revision="main")
    assert asked["use_safetensors"] is True
    assert asked["revision"] == "main"


def test_code_of_a_changed_package_is_run_where_it_is_asked_for(tmp_path):
    """Without that, the message says whose config it is."""
    published, variant = Path(__file__).parents[1] / "published" / "en-de", tmp_path / "variant"
    shutil.copytree(published, variant)
    assert type(load_model(variant, trust_remote_code=True)).__module__.startswith("hf_mlnmt")  # the same code
    text = (variant / "configuration.py").read_text()
    (variant / "configuration.py").write_text(text.replace('"learned"]', '"learned", "mine"]'))
    (variant / "stack.py").write_text(
        (published / "stack.py")
        .read_text()
        .replace(
            "*sizes, config.position_embedding,", "*sizes, config.position_embedding.replace('mine', 'interleaved'),"
        )
    )
    change_config(variant, position_embedding="mine")
    with pytest.raises(UserError, match="made by another version of this package, or a changed one"):
        load_model(variant)
    texts = ["A man rides a horse."]
    found = TranslationPipeline.from_pretrained(str(variant), trust_remote_code=True)
    assert type(found.model).__module__.startswith("transformers_modules.")
    assert found(texts) == TranslationPipeline.from_pretrained(str(published))(texts)
