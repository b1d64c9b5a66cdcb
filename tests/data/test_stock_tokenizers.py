"""Two vocabularies, and text processing, in Transformers' own tools, and by a name on the Hub."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from helpers.export_toys import joint_tokenizer, toy_model, two_tokenizers, write_folder
from helpers.fresh import Popen
from helpers.model_folders import SENTENCES
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq

from hf_mlnmt import UserError
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers, load_tokenizers, train_tokenizer
from hf_mlnmt.generation import TranslationPipeline

TEXTS = SENTENCES[:4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizers = two_tokenizers()
    return write_folder(tmp_path_factory.mktemp("two") / "model", tokenizers, toy_model(tokenizers))


def test_text_target_is_cut_with_the_targets_vocabulary(folder):
    tokenizer, tokenizers = AutoTokenizer.from_pretrained(folder), load_tokenizers(folder)
    source, target = (one(TEXTS)["input_ids"] for one in (tokenizers.source, tokenizers.target))
    assert source != target
    both = tokenizer(TEXTS, text_target=TEXTS)
    assert (both["input_ids"], both["labels"]) == (source, target)
    assert tokenizer(text_target=TEXTS)["input_ids"] == target
    assert tokenizer(TEXTS)["input_ids"] == source
    padded = tokenizer(TEXTS, text_target=TEXTS, padding=True, return_tensors="pt")
    assert padded["labels"].shape != padded["input_ids"].shape
    assert tokenizer.batch_decode(target, skip_special_tokens=True) == TEXTS
    assert tokenizer.decode(source[0], skip_special_tokens=True, use_source_tokenizer=True) == TEXTS[0]


@pytest.mark.parametrize("make", [two_tokenizers, joint_tokenizer])
def test_what_a_stock_tool_saves_is_whole(make, tmp_path):
    """As Trainer saves it: the model, and the tokenizer that it was given."""
    tokenizers = make()
    tokenizers.processing["source"] = TextProcessing("en", lowercase=True)
    model = toy_model(tokenizers)
    first, second = write_folder(tmp_path / "first", tokenizers, model), tmp_path / "second"
    tokenizer = AutoTokenizer.from_pretrained(first)
    batch = DataCollatorForSeq2Seq(tokenizer, model)([tokenizer(TEXTS[0], text_target=TEXTS[1])])
    assert batch["labels"].tolist() == [tokenizers.target(TEXTS[1])["input_ids"]]
    tokenizer(TEXTS, text_target=TEXTS, padding="max_length", truncation=True, max_length=5)
    model.save_pretrained(second)
    tokenizer.save_pretrained(second)
    assert load_tokenizers(second).processing == tokenizers.processing
    expected = TranslationPipeline.from_pretrained(first, "cpu")(TEXTS)
    for options in ({}, {"trust_remote_code": True}):
        assert TranslationPipeline.from_pretrained(second, "cpu", **options)(TEXTS) == expected
    assert any(expected)


def test_two_vocabularies_and_one_tokenizer_are_refused(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(copy / "target_tokenizer")
    with pytest.raises(UserError, match=r"its tokenizer has target_tokenizer, which is not there"):
        TranslationPipeline.from_pretrained(copy, "cpu")


def test_a_name_is_resolved_before_anything_is_looked_for(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--someone--two"
    shutil.copytree(folder, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    local, by_name = load_tokenizers(folder), load_tokenizers("someone/two")
    assert not by_name.joint
    assert by_name.processing == local.processing
    assert by_name.target(TEXTS)["input_ids"] == local.target(TEXTS)["input_ids"]
    stock = AutoTokenizer.from_pretrained("someone/two", cache_dir=tmp_path)
    assert stock(text_target=TEXTS)["input_ids"] == local.target(TEXTS)["input_ids"]
    assert stock.text_processing is not None
    with pytest.raises(UserError, match="someone/nothing"):
        load_tokenizers("someone/nothing")


def test_the_source_is_read_without_this_package(folder, tmp_path):
    code = (
        "import sys; sys.modules['hf_mlnmt'] = None\n"
        "from transformers import AutoTokenizer\n"
        f"print(AutoTokenizer.from_pretrained({str(folder)!r})({TEXTS!r})['input_ids'])\n"
    )
    process = Popen([sys.executable, "-c", code], text=True, stdout=-1)
    assert json.loads(process.communicate()[0]) == load_tokenizers(folder).source(TEXTS)["input_ids"]


def test_tokenizers_of_one_vocabulary_are_plain(tmp_path):
    joint_tokenizer().save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "TokenizersBackend"
    assert isinstance(load_tokenizers(tmp_path), Tokenizers)


@pytest.fixture
def many(tmp_path):
    """Returns a folder of a model of many languages, and what Transformers loads from it."""
    tokenizer = train_tokenizer(SENTENCES, vocab_size=320, languages=["de", "fr"])
    tokenizers = Tokenizers(tokenizer, tokenizer)
    folder = write_folder(tmp_path / "many", tokenizers, toy_model(tokenizers))
    return folder, AutoTokenizer.from_pretrained(folder)


def test_the_language_is_set_given_loaded_and_saved_as_nllbs_is(many, tmp_path):
    folder, tokenizer = many
    plain = load_tokenizers(folder).source(TEXTS)["input_ids"]
    coded = [[tokenizer.convert_tokens_to_ids("<2fr>"), *ids] for ids in plain]
    assert tokenizer(TEXTS)["input_ids"] == plain
    assert tokenizer(TEXTS, tgt_lang="fr")["input_ids"] == coded
    assert tokenizer.tgt_lang is None
    tokenizer.src_lang, tokenizer.tgt_lang = "en", "fr"
    both = tokenizer(TEXTS, text_target=TEXTS)
    assert (both["input_ids"], both["labels"]) == (coded, plain)
    assert tokenizer(text_target=TEXTS)["input_ids"] == plain
    assert tokenizer(TEXTS, truncation=True, max_length=4)["input_ids"] == [[*ids[:3], ids[-1]] for ids in coded]
    assert tokenizer.encode(TEXTS[0]) == coded[0]
    assert tokenizer.encode(TEXTS[0], add_special_tokens=False) == plain[0][:-1]
    tokenizer.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert (again.src_lang, again.tgt_lang, again(TEXTS)["input_ids"]) == ("en", "fr", coded)
    assert again.backend_tokenizer.encode(TEXTS[0]).ids == plain[0]
    assert load_tokenizers(tmp_path / "saved").encode_source(TEXTS[:1], "de")[0].tolist() == [5, *plain[0]]
    assert AutoTokenizer.from_pretrained(folder, tgt_lang="fr")(TEXTS)["input_ids"] == coded


def test_the_pipeline_takes_its_own_languages(many):
    folder, tokenizer = many
    expected = TranslationPipeline.from_pretrained(folder, "cpu")(TEXTS, target_language="de", max_new_tokens=5)
    tokenizer.tgt_lang = "fr"
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert TranslationPipeline(model, tokenizer)(TEXTS, target_language="de", max_new_tokens=5) == expected


def test_a_missing_or_the_same_language_is_warned_of_once_and_a_wrong_one_refused(many, caplog):
    _, tokenizer = many
    tokenizer(text_target=TEXTS)
    tokenizer(TEXTS, verbose=False)
    tokenizer(["<2de> A man.", " <2fr>A man."])
    assert not caplog.records
    for _ in range(2):
        tokenizer(TEXTS)
    (record,) = caplog.records
    assert "tokenizer.tgt_lang = 'de'" in record.message
    tokenizer(TEXTS, src_lang="de", tgt_lang="fr")
    tokenizer(TEXTS, src_lang="fr", tgt_lang="fr")
    tokenizer("<2fr> A man.", src_lang="fr")
    assert [record.message for record in caplog.records[1:]] == [
        "Source and target language are fr: the model copies. It has de, fr."
    ]
    with pytest.raises(ValueError, match="tgt_lang 'cs': the tokenizer lacks it; it has de, fr"):
        tokenizer.tgt_lang = "cs"
    for words in ("<2de> A man.", [["<2de>", "A"]]):
        with pytest.raises(ValueError, match="a text begins with <2de>, and tgt_lang is fr"):
            tokenizer(words, tgt_lang="fr", is_split_into_words=not isinstance(words, str))


def test_published_the_class_goes_with_the_tokenizer_and_a_training_leaves_it(many, tmp_path):
    folder, tokenizer = many
    load_tokenizers(folder).save(folder, code=True)
    remote = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert type(remote).__module__.startswith("transformers_modules")
    for each, name in ((remote, "remote"), (AutoTokenizer.from_pretrained(folder), "own")):
        each.save_pretrained(tmp_path / name)
        again = AutoTokenizer.from_pretrained(tmp_path / name, trust_remote_code=True)
        assert again(TEXTS, tgt_lang="fr")["input_ids"] == tokenizer(TEXTS, tgt_lang="fr")["input_ids"]
        assert (tmp_path / name / "tokenization.py").is_file()
    trusted = load_tokenizers(folder, trust_remote_code=True)
    assert trusted.encode_source(TEXTS[:1], "fr")[0].tolist() == tokenizer(TEXTS[0], tgt_lang="fr")["input_ids"]
    trusted.save(tmp_path / "run")
    assert not (tmp_path / "run" / "tokenization.py").exists()
    assert "auto_map" not in json.loads((tmp_path / "run" / "tokenizer_config.json").read_text())


def test_a_tokenizer_promises_as_much_as_its_model(folder):
    positions = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    assert positions not in (None, 1024)
    for part in (folder, folder / "target_tokenizer"):
        assert AutoTokenizer.from_pretrained(part).model_max_length == positions
