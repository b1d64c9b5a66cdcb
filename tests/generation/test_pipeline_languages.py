"""The pipeline and languages: which codes a model knows, prefixes, and codes typed into the text."""

import logging
import shutil

import pytest
from helpers.toy_translators import SENTENCES, bpe
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from typer.testing import CliRunner

from hf_mlnmt import UserError, config_for
from hf_mlnmt.cli import app
from hf_mlnmt.data.directions import code_tokens
from hf_mlnmt.generation import TranslationPipeline


def test_languages(ours_multilingual, foreign, pipeline):
    multilingual = TranslationPipeline.from_pretrained(ours_multilingual, device="cpu")
    assert multilingual.languages == ["de", "fr"]
    model, tokenizer = multilingual.model, multilingual.parts.source
    inputs = tokenizer("<2fr>" + SENTENCES[0], return_tensors="pt")
    expected = tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True).strip()
    assert multilingual(SENTENCES[0], target_language="fr") == expected
    assert pipeline.languages == []
    cases = [
        (multilingual, {}, "target_language: needed.*knows: de, fr"),
        (multilingual, {"target_language": "xx"}, "unknown code 'xx'.*knows: de, fr"),
        (pipeline, {"target_language": "de"}, "no language codes"),
        (pipeline, {"source_language": "de"}, "no language codes"),
    ]
    nllb = TranslationPipeline.from_pretrained(foreign["nllb"], device="cpu")
    cases += [
        (nllb, {"source_language": "en", "target_language": "de"}, "source_language: .*did you mean 'eng_Latn'"),
        (
            nllb,
            {"source_language": "fra_Latn", "target_language": "de"},
            "target_language: .*did you mean 'deu_Latn'.*fra_Latn",
        ),
        (nllb, {"source_language": "eng_Latn"}, "target_language: needed"),
    ]
    t5 = TranslationPipeline.from_pretrained(foreign["t5"], device="cpu")
    cases += [
        (t5, {"source_language": "en", "target_language": "fr"}, "'en' to 'fr'.*en_to_de"),
        (t5, {"target_language": "fr"}, "both"),
    ]
    m2m = TranslationPipeline.from_pretrained(foreign["m2m100"], device="cpu")
    cases += [(m2m, {"target_language": "de"}, "source_language: needed")]
    for translate, options, message in cases:
        with pytest.raises(UserError, match=message):
            translate("A man.", **options)


def test_the_languages_of_a_model_of_one_pair_may_be_said_again(pipeline, ours, tmp_path):
    folder = shutil.copytree(ours, tmp_path / "model")
    (folder / "results.json").write_text('{"languages": {"source": "en", "target": "de"}}')
    named, text = TranslationPipeline.from_pretrained(folder, device="cpu"), SENTENCES[0]
    assert named(text, source_language="en", target_language="de-AT") == pipeline(text)
    with pytest.raises(UserError, match="no language codes"):
        named(text, source_language="en", target_language="fr")
    (tmp_path / "a.ts").write_text("<!DOCTYPE TS><TS/>")  # its ending is of Qt, not of Tsonga
    ran = CliRunner().invoke(app, ["translate", str(folder), str(tmp_path / "a.ts"), "-o", str(tmp_path / "b.ts")])
    assert "its name says" not in str(ran.exception)


def test_a_model_with_modules_of_each_language_in_int8(tmp_path):
    """It is rounded as a whole, before a call says which modules it needs."""
    tokenizer = bpe()
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "bridge_heads": 3, "bridge_width": 8}
    languages = {"source_languages": ["de", "en"], "target_languages": ["en", "fr"]}
    tokens = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
    tokens |= {"vocab_size": len(tokenizer), "decoder_start_token_id": tokenizer.pad_token_id}
    config = config_for("bridge-transformer", "tiny", **sizes, **languages, **tokens)
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    pair = {"source_language": "de", "target_language": "fr"}
    options = {**pair, "num_return_sequences": 1, "max_new_tokens": 6}
    scores = [
        TranslationPipeline.from_pretrained(tmp_path, "cpu", dtype=dtype)(SENTENCES[0], **options)[0].score
        for dtype in ("auto", "int8")
    ]
    assert scores[0] == pytest.approx(scores[1], abs=0.1)
    assert scores[0] != scores[1]


def test_prefix_is_used_as_it_is(foreign):
    t5 = TranslationPipeline.from_pretrained(foreign["t5"], device="cpu")
    by_code = t5(SENTENCES[:4], source_language="en", target_language="de")
    assert t5(SENTENCES[:4], prefix="translate English to German: ") == by_code
    assert t5(SENTENCES[:4], source_language="English", target_language="German") == by_code
    assert t5(SENTENCES[:4]) != by_code


def test_language_codes_typed_into_the_text_are_counted_and_said(ours_multilingual, foreign, pipeline, caplog):
    texts = ["A man.", "<2fr> A man.", "A <2fr> man.", " <2de>A man."]
    multilingual = TranslationPipeline.from_pretrained(ours_multilingual, device="cpu")
    with caplog.at_level(logging.WARNING):
        list(multilingual.stream(texts, window=1, target_language="de"))
    (message,) = [record.message for record in caplog.records if "language code" in record.message]
    assert message.startswith("source lines that begin with a language code: 2, the first is line 2")
    caplog.clear()
    marian = TranslationPipeline.from_pretrained(foreign["marian-multilingual"], device="cpu")
    with caplog.at_level(logging.WARNING):
        pipeline(texts)  # has no codes: nothing to mistake
        multilingual(texts[::2], target_language="de")
        assert "language code" not in caplog.text
        marian([">>fra<< A man."], target_language="deu")
    assert "source lines that begin with a language code: 1" in caplog.text


def test_codes_as_they_are_typed(ours_multilingual, foreign):
    def tokens(folder):
        return set(code_tokens(AutoTokenizer.from_pretrained(folder)))

    assert tokens(ours_multilingual) == {"<2de>", "<2fr>"}
    assert tokens(foreign["marian-multilingual"]) == {">>deu<<", ">>fra<<"}
    assert {"__de__", "__fr__"} <= tokens(foreign["m2m100"])
    assert tokens(foreign["nllb"]) == {"eng_Latn", "deu_Latn", "fra_Latn"}
    assert {"de_DE", "en_XX"} <= tokens(foreign["mbart50"])
    assert tokens(foreign["t5"]) == tokens(foreign["marian"]) == set()


@pytest.mark.parametrize(("family", "target"), [("ours", "de"), ("marian-multilingual", "deu")])
def test_a_source_language_that_changes_nothing_is_said(ours_multilingual, foreign, caplog, family, target):
    folder = ours_multilingual if family == "ours" else foreign[family]
    translate = TranslationPipeline.from_pretrained(folder, device="cpu")
    with caplog.at_level(logging.WARNING):
        translate(SENTENCES[0], source_language=target, target_language=target)
        assert "changes nothing" not in caplog.text
        for _ in range(2):
            translate(SENTENCES[0], source_language=f"zz-{family}", target_language=target)
    assert caplog.text.count("changes nothing: ") == 1
