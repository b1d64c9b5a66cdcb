"""Tokenizers from elsewhere in a recipe: what they lack is added and said, or named."""

from __future__ import annotations

import io
import json

import pytest
from helpers.tiny_run import WORDS, run, run_in, write_corpus, write_recipe
from rich.console import Console
from tokenizers import processors
from transformers import AutoTokenizer

from hf_mlnmt import UserError
from hf_mlnmt.data.encoded import Encoded
from hf_mlnmt.data.tokenizer import Tokenizers, check_whole, load_tokenizers, save_tokenizers, train_tokenizer
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.hub import build_folder
from hf_mlnmt.recipe import read_recipe
from hf_mlnmt.training.pair import TwoFiles, train_pair

SHORT = {"scores": False, "budget": {"steps": 1}, "checkpoints": {"keep": 1, "average": 1}}


@pytest.fixture
def tokenizer():
    texts = [f"{word} {word}{word[::-1]}." for word in WORDS]
    return train_tokenizer(texts, vocab_size=120, byte_fallback=False)


def test_one_that_puts_no_end_behind_a_text(tokenizer, tmp_path):
    tokenizer.backend_tokenizer.post_processor = processors.Sequence([])
    save_tokenizers(tmp_path / "given", tokenizer)
    text = run_in(tmp_path / "first", tokenizer={"path": str(tmp_path / "given")}, **SHORT)
    assert "given: the tokenizer puts no </s> behind a text: it is added" in text
    saved = load_tokenizers(tmp_path / "first" / "run" / "average").source
    assert saved("ba do")["input_ids"][-1] == saved.eos_token_id


def test_one_that_puts_other_tokens_around_a_text(tokenizer, tmp_path):
    template = processors.TemplateProcessing(single="<unk> $A", special_tokens=[("<unk>", 2)])
    tokenizer.backend_tokenizer.post_processor = template
    save_tokenizers(tmp_path / "given", tokenizer)
    with pytest.raises(UserError, match=r"given: the tokenizer puts no </s> \(eos_token\) behind a text"):
        run_in(tmp_path / "first", tokenizer={"path": str(tmp_path / "given")}, **SHORT)


@pytest.mark.parametrize("name", ["pad_token", "bos_token", "eos_token"])
def test_one_without_a_token_that_the_model_needs(tokenizer, name, tmp_path):
    save_tokenizers(tmp_path / "given", tokenizer)
    given = AutoTokenizer.from_pretrained(tmp_path / "given", **{name: None})
    given.save_pretrained(tmp_path / "given")
    with pytest.raises(UserError, match=rf"tokenizer.* no {name}"):
        run_in(tmp_path / "first", tokenizer={"path": str(tmp_path / "given")}, **SHORT)


def test_a_sentencepiece_model_is_a_tokenizer(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    data = write_corpus(tmp_path / "data")
    lines = [line for name in ("train.en", "train.de") for line in (data / name).read_text().splitlines()]
    with (data / "spm.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=36, minloglevel=2
        )
    recipe = write_recipe(tmp_path / "recipe.yaml", tokenizer={"path": "spm.model"}, **SHORT)
    run(recipe, data, tmp_path / "run")
    made = tmp_path / "run" / "average"
    pieces = sentencepiece.SentencePieceProcessor(str(data / "spm.model")).encode(lines, out_type=str)
    assert [load_tokenizers(made).source.tokenize(line) for line in lines] == pieces
    assert isinstance(TranslationPipeline.from_pretrained(made)("ba do"), str)
    (data / "broken.model").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"broken\.model: not a SentencePiece model"):
        run(recipe, data, tmp_path / "other", settings=["tokenizer.path=broken.model"])


def test_placeholders_are_tokens_of_the_pairs_and_of_the_model(tmp_path):
    data = write_corpus(tmp_path / "data")
    for language, sign in (("en", ""), ("de", ".")):
        lines = "".join(f"ba {number} do{sign}\n" for number in range(10, 90))
        (data / f"train.{language}").write_text(lines)
    placeholders = {"<n>": "number"}
    recipe = write_recipe(tmp_path / "recipe.yaml", data={"placeholders": placeholders}, **SHORT)
    run(recipe, data, tmp_path / "run")
    tokenizers = load_tokenizers(tmp_path / "run" / "average")
    encoded = Encoded(tmp_path / "run" / "data" / "train0")
    texts = [
        tokenizers.decode_target([encoded[number][side]])[0] for number in (0, 1) for side in ("input_ids", "labels")
    ]
    assert texts == ["ba <n> do", "ba <n> do.", "ba 11 do", "ba 11 do."]
    pipeline = TranslationPipeline.from_pretrained(str(tmp_path / "run" / "average"), device="cpu")
    assert pipeline.model.generation_config.placeholders == placeholders
    assert pipeline("ba 12 do", keep="number", num_beams=2).count("12") == 1
    build_folder(tmp_path / "run" / "average", tmp_path / "published", licence="mit")
    published = json.loads((tmp_path / "published" / "generation_config.json").read_text())
    assert published["placeholders"] == placeholders
    (data / "more.en").write_text("".join(f"ba {number} do\n" for number in range(210)))
    (data / "more.de").write_text("".join(f"ba {number} do.\n" for number in range(210)))
    asked = TwoFiles(("more.en", "more.de"), init_from=str(tmp_path / "published"))
    console = Console(file=io.StringIO(), width=200)
    train_pair(asked, data, tmp_path / "tuned", dry_run=True, console=console)
    assert "placeholders: <n>, as of the model" in console.file.getvalue()
    other = train_tokenizer(["ba do <n>"] * 9, vocab_size=120, byte_fallback=False)
    with pytest.raises(UserError, match="<n>: the tokenizer does not leave it whole"):
        check_whole(Tokenizers(other, other), placeholders)


@pytest.mark.parametrize(
    "wrong", [{"<n>": "("}, {"<n>": "number,url"}, {"<n>": "number", "<m>": "number"}, {"<n>": "urls"}]
)
def test_placeholders_that_are_none(tmp_path, wrong):
    with pytest.raises(UserError, match=r"recipe.yaml, line \d+: data.placeholders.<n>: "):
        read_recipe(write_recipe(tmp_path / "recipe.yaml", data={"placeholders": wrong}))
