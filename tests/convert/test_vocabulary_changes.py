"""Vocabularies cut to what texts use, and codes, characters and pieces added: every family of Transformers that
translates, saved, loaded again and compared with what it was."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.foreign_translators import FAMILIES, every_family
from helpers.toy_translators import SENTENCES
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from typer.testing import CliRunner

from hf_mlnmt.cli import app
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.convert.vocabulary_changes import add_languages, trim

STRANGE = "Ýaş ŋoŋ Ýaş ŋoŋ"  # no letter of the toys' alphabet but a and o
NEW = {
    "marian": (">>gag<<", "gag", "deu"),
    "nllb": ("gag_Latn", "gag_Latn", "fra_Latn"),
    "mbart50": ("gag_XX", "gag_XX", "tr_TR"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("families")
    for name, (tokenizer, model) in every_family(scratch, (">>deu<<", ">>fra<<")).items():
        model.save_pretrained(scratch / name)
        tokenizer.save_pretrained(scratch / name)
    (scratch / "part.txt").write_text("\n".join(SENTENCES[:3]) + "\n")
    (scratch / "strange.txt").write_text("\n".join([*SENTENCES * 2, *[STRANGE] * 6]) + "\n")
    return scratch


def loaded(folder):
    return AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder).eval()


@torch.no_grad()
def logits(model, ids):
    return model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_cut_computes_what_was_there(family, folders, tmp_path):
    made = trim(folders / family, [folders / "part.txt"], tmp_path)
    (before, model), (after, cut) = loaded(folders / family), loaded(tmp_path)
    assert made.entries == (model.config.vocab_size, cut.config.vocab_size)
    assert made.entries[1] < made.entries[0]
    assert made.shares == {str(folders / "part.txt"): 1.0}
    tokens = before.convert_ids_to_tokens(range(len(before)))
    for text in (*SENTENCES[:3], "", "7 , x ?"):
        old, new = before(text)["input_ids"], after(text)["input_ids"]
        assert after.convert_ids_to_tokens(new) == before.convert_ids_to_tokens(old)
        assert after.decode(new, skip_special_tokens=True) == before.decode(old, skip_special_tokens=True)
        there = {token: number for number, token in enumerate(tokens)}
        kept = [(number, there[token]) for token, number in after.get_vocab().items() if token in there]
        own, theirs = (torch.tensor(ids) for ids in zip(*kept))
        torch.testing.assert_close(logits(cut, new)[:, own], logits(model, old)[:, theirs])
    for settings in ("config", "generation_config"):
        for field in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
            old, new = (getattr(getattr(one, settings), field) for one in (model, cut))
            if old is not None:
                assert after.convert_ids_to_tokens(new) == before.convert_ids_to_tokens(old)


def test_merges_on_the_way_stay(folders, tmp_path):
    """The text holds a subword alone; what it is merged from is in no text."""
    merges = json.loads((folders / "nllb" / "tokenizer.json").read_text())["model"]["merges"]
    left, right = next((pair for pair in merges[20:] if len(pair[0]) > 1), merges[-1])
    word = f"{left}{right}"
    (tmp_path / "one.txt").write_text(word.removeprefix("▁") + "\n")
    trim(folders / "nllb", [tmp_path / "one.txt"], tmp_path / "cut")
    before, after = (AutoTokenizer.from_pretrained(folder) for folder in (folders / "nllb", tmp_path / "cut"))
    assert after.tokenize(word.removeprefix("▁")) == before.tokenize(word.removeprefix("▁"))


def test_codes_that_stay(folders, tmp_path):
    trim(folders / "nllb", [folders / "part.txt"], tmp_path, ["deu_Latn", "eng_Latn"])
    tokenizer, model = loaded(tmp_path)
    assert "fra_Latn" not in tokenizer.get_vocab()
    tokenizer.src_lang = "eng_Latn"
    assert tokenizer.convert_ids_to_tokens(tokenizer("a")["input_ids"])[0] == "eng_Latn"
    assert model.config.vocab_size == len(tokenizer)


@pytest.mark.parametrize("family", ["marian", "nllb", "mbart50", "t5"])
def test_what_is_added(family, folders, tmp_path):
    token, code, near = NEW.get(family, ("", "", ""))
    codes = {code: near} if code else {}
    made = add_languages(folders / family, tmp_path, codes, folders / "strange.txt", characters=True, pieces=12)
    (before, model), (after, larger) = loaded(folders / family), loaded(tmp_path)
    assert {*made.characters} == {*"Ýşŋ"}
    assert made.characters["ŋ"] == (24, ["ŋoŋ"])
    assert set("Ýşŋ") < {*made.entries}
    assert after.unk_token_id not in after(STRANGE)["input_ids"]
    assert after.decode(after(STRANGE)["input_ids"], skip_special_tokens=True) == STRANGE
    assert len(after(STRANGE)["input_ids"]) < len(before(" ".join(STRANGE))["input_ids"])  # pieces are used
    rows = larger.get_input_embeddings().weight
    assert torch.equal(rows[: model.config.vocab_size], model.get_input_embeddings().weight)
    assert {token: before.convert_tokens_to_ids(token) for token in before.get_vocab()}.items() <= {
        token: after.convert_tokens_to_ids(token) for token in before.get_vocab()
    }.items()
    if code:
        number = after.convert_tokens_to_ids(token)
        assert made.codes == {token: number}
        assert torch.equal(rows[number], rows[before.convert_tokens_to_ids(token.replace(code, near))])
        if hasattr(after, "src_lang"):
            after.src_lang = code
            assert after("a")["input_ids"][0] == number
        else:
            assert after(f"{token} a")["input_ids"][0] == number


def test_text_without_new_pieces_is_translated_as_before(folders, tmp_path):
    made = add_languages(folders / "nllb", tmp_path, {"gag_Latn": "fra_Latn"}, folders / "strange.txt", characters=True)
    (before, model), (after, larger) = loaded(folders / "nllb"), loaded(tmp_path)
    for text in SENTENCES:
        ids = before(text)["input_ids"]
        assert after(text)["input_ids"] == ids
        old, new = (logits(one, ids) for one in (model, larger))
        assert torch.equal(old, new[:, : old.shape[1]])
    assert len(made.entries) == 3


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda folders, out: trim(folders / "nllb", [folders / "part.txt"], out, ["xx"]), "the model's are eng_Latn"),
        (lambda folders, out: trim(folders / "nllb", [folders / "empty.txt"], out), "the file is empty"),
        (lambda folders, out: add_languages(folders / "nllb", out, {"deu_Latn": "eng_Latn"}), "has deu_Latn already"),
        (lambda folders, out: add_languages(folders / "nllb", out, {"x_Y": "deu_Lat"}), "did you mean 'deu_Latn'"),
        (lambda folders, out: add_languages(folders / "nllb", out, {"x y": "deu_Latn"}), "letters, digits and _"),
        (lambda folders, out: add_languages(folders / "nllb", out, {}), "nothing to add"),
        (lambda folders, out: add_languages(folders / "nllb", out, {}, pieces=3), "give it with --text"),
        (lambda folders, out: add_languages(folders / "m2m100", out, {"xx": "de"}), "fixed list"),
        (lambda folders, out: add_languages(folders / "t5", out, {"xx": "de"}), "no code to add"),
    ],
)
def test_mistakes_are_named(how, message, folders, tmp_path):
    (folders / "empty.txt").write_text("")
    with pytest.raises(UserError, match=message):
        how(folders, tmp_path / "out")


def test_the_commands(folders, tmp_path):
    """--text and --languages take several words; what failed leaves nothing."""
    words = ["model", "trim", str(folders / "nllb"), "--text", str(folders / "part.txt"), str(folders / "part.txt")]
    result = CliRunner().invoke(app, [*words, "--languages", "eng_Latn", "deu_Latn", "-o", str(tmp_path / "cut")])
    assert result.exit_code == 0, result.output
    assert "100.00% of the lines" in result.output
    assert "fra_Latn" not in AutoTokenizer.from_pretrained(tmp_path / "cut").get_vocab()
    words = ["model", "add-language", str(folders / "nllb"), "--text", str(folders / "strange.txt"), "--characters"]
    result = CliRunner().invoke(app, [*words, "--code", "gag_Latn", "--like", "fra_Latn", "-o", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    assert "ŋ U+014B: 24 times, as in ŋoŋ: added" in result.output
    assert "gag_Latn: id " in result.output
    result = CliRunner().invoke(app, [*words, "--code", "a_B", "-o", str(tmp_path / "none")])
    assert isinstance(result.exception, UserError)
    assert not (tmp_path / "none").exists()
