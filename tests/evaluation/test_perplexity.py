"""Perplexity by hand, of language models and of translation models; what is counted; mistakes."""

from __future__ import annotations

import json
import math

import pytest
import torch
from helpers.contract import redraw
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from typer.testing import CliRunner

from hf_mlnmt import UserError, config_for
from hf_mlnmt.cli import app
from hf_mlnmt.data.subwords import train_tokenizer
from hf_mlnmt.data.tokenizer import Tokenizers, begin_texts, begins_texts, ending, load_tokenizers
from hf_mlnmt.evaluation.perplexity import perplexity

TEXTS = ["ba do", "ki lu mé no ba", "", "do do ki"]
SOURCES = ["lu me", "no", "ba", "ki"]
SIZES = {"d_model": 16, "decoder_layers": 1, "decoder_ffn_dim": 16, "decoder_attention_heads": 2}
BOTH = {**SIZES, "encoder_layers": 1, "encoder_ffn_dim": 16, "encoder_attention_heads": 2}


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return Tokenizers(*[train_tokenizer([*TEXTS, *SOURCES] * 3, vocab_size=40, byte_fallback=False)] * 2)


@pytest.fixture(scope="module")
def models(tokenizers):
    """A language model and a translation model, in float64."""
    size = {"vocab_size": len(tokenizers.target)}
    found = [
        AutoModelForCausalLM.from_config(config_for("lm", "tiny", **SIZES, **size)),
        AutoModelForSeq2SeqLM.from_config(config_for("transformer", "tiny", **BOTH, **size)),
    ]
    for model in found:
        redraw(model.eval().double())
    return found


def by_hand(model, tokenizers, sources) -> float:
    """Sentence by sentence, token by token."""
    total = 0.0
    for number, ids in enumerate(tokenizers.encode_target(TEXTS)):
        prefix = torch.tensor([[3, *ids.tolist()]])
        if sources is None:
            logits = model(prefix).logits[0]
        else:
            read = torch.tensor([tokenizers.encode_source([sources[number]])[0].tolist()])
            logits = model(read, decoder_input_ids=prefix).logits[0]
        total -= sum(float(logits[i].log_softmax(-1)[token]) for i, token in enumerate(ids.tolist()))
    return total


@pytest.mark.parametrize("translates", [False, True])
def test_it_is_the_definition(models, tokenizers, translates):
    model, sources = models[translates], SOURCES if translates else None
    with torch.no_grad():
        expected = by_hand(model, tokenizers, sources)
    done = []
    for batch_tokens in (1, 12, 4096):
        found = perplexity(model, tokenizers, TEXTS, sources, batch_tokens, progress=done.append)
        assert math.isclose(found.nll, expected, rel_tol=1e-9)
    assert sum(done) == 3 * len(TEXTS)
    subwords = sum(len(tokenizers.target(text)["input_ids"]) for text in TEXTS)
    assert (found.sentences, found.subwords, found.words) == (4, subwords, 10 + 4)
    assert found.bytes == len("\n".join(TEXTS).encode()) + 1
    assert math.isclose(found.per_subword, math.exp(expected / subwords))
    assert math.isclose(found.per_word, math.exp(expected / 14))
    assert math.isclose(2 ** (found.bits_per_byte * found.bytes), math.exp(expected), rel_tol=1e-6)


def test_a_model_of_many_languages_is_scored_between_two_of_them(tokenizers):
    sizes = {**BOTH, "vocab_size": len(tokenizers.target)}
    languages = {"source_languages": ["de", "fr"], "target_languages": ["en", "cs"]}
    model = AutoModelForSeq2SeqLM.from_config(config_for("bridge-transformer", "tiny", **sizes, **languages))
    redraw(model.eval().double())
    found = perplexity(model, tokenizers, TEXTS, SOURCES, language="cs", source_language="fr")
    assert found == perplexity(model.pair("fr", "cs"), tokenizers, TEXTS, SOURCES)
    assert found != perplexity(model.pair("de", "cs"), tokenizers, TEXTS, SOURCES)
    with pytest.raises(UserError, match="source_language"):
        perplexity(model, tokenizers, TEXTS, SOURCES, language="cs")


def test_mistakes(models, tokenizers):
    lm, translation = models
    for model, texts, sources, message in (
        (lm, TEXTS, SOURCES, "reads no sources"),
        (translation, TEXTS, None, "give the sources too"),
        (translation, TEXTS, SOURCES[:2], "2 sources for 4 sentences"),
        (lm, ["", " "], None, "all 2 lines are blank"),
        (lm, ["ba", "ba " * 2000], None, r"sentence 2 has \d+ subwords, and the model reads 1024"),
        (translation, ["ba", "ba"], ["ba", "ba " * 2000], "sentence 2 has"),
    ):
        with pytest.raises(UserError, match=message):
            perplexity(model, tokenizers, texts, sources)


def test_a_recurrent_model_reads_any_length(tokenizers):
    config = config_for("rnn", "tiny", **BOTH, vocab_size=len(tokenizers.target), max_position_embeddings=8)
    model = AutoModelForSeq2SeqLM.from_config(config)
    assert perplexity(model, tokenizers, ["ba " * 20], ["ba " * 20]).subwords > 20


def test_the_command(models, tokenizers, tmp_path):
    """A language model's folder, whose tokenizer begins texts; a translation model's with sources; a JSON file."""
    (tmp_path / "a.de").write_text("".join(f"{text}\n" for text in TEXTS))
    (tmp_path / "a.en").write_text("".join(f"{text}\n" for text in SOURCES))
    for name, model in zip(("lm", "tm"), models):
        model.save_pretrained(tmp_path / name)
        tokenizers.save(tmp_path / name)
    begin_texts(tmp_path / "lm")
    assert begins_texts(load_tokenizers(tmp_path / "lm").target)
    assert ending(load_tokenizers(tmp_path / "lm")).encode_target(TEXTS)[0][-1] == 1
    expected = perplexity(models[0], tokenizers, TEXTS)
    done = CliRunner().invoke(
        app, ["evaluate", f"{tmp_path}/lm", "-r", f"{tmp_path}/a.de", "-o", f"{tmp_path}/out.json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out.json").read_text())["perplexity"][f"{tmp_path}/a.de"]
    assert found["per_subword"] == pytest.approx(expected.per_subword, abs=1e-5)
    arguments = ["evaluate", f"{tmp_path}/tm", "--perplexity", "-r", f"{tmp_path}/a.de", "-s", f"{tmp_path}/a.en"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
