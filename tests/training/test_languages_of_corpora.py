"""What a language's script, and a sentence's length, ask of a training is known before its first step."""

from __future__ import annotations

import pytest
from helpers.tiny_run import run, write_corpus, write_recipe

from hf_mlnmt import UserError

pytestmark = pytest.mark.usefixtures("one_thread")
# Text that Moses cuts where it does not belong: joiners, marks, full stops of other scripts, letters with marks apart.
BROKEN = {
    "fa": "می‌خواهم کتاب را بخوانم.",
    "hi": "आज मौसम बहुत अच्छा है।",
    "th": "วันนี้อากาศดีมาก",
    "my": "ဒီနေ့ ရာသီဥတု ကောင်းတယ်။",
    "km": "ថ្ងៃនេះ អាកាសធាតុ ល្អណាស់",
    "zh": "今天天气很好，我们去公园散步。",
    "ar": "الطقس جميل جدا اليوم، لذلك نتمشى.",
    "de": "Fu\u0308r die Ma\u0308nner.",
}


def with_side(data, code, text, name="train"):
    """The corpus with every second line of a side this text."""
    path = data / f"{name}.{code}"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{text if i % 2 else line}\n" for i, line in enumerate(lines)), encoding="utf-8")


@pytest.mark.parametrize(
    ("language", "side"), [*((language, "source") for language in BROKEN), ("fa", "target"), ("de", "target")]
)
def test_moses_is_refused_where_it_changes_a_side(tmp_path, language, side):
    codes = {"source": "en", "target": "de", side: language}
    if len(set(codes.values())) == 1:
        codes["source" if side == "target" else "target"] = "fr"
    data = write_corpus(tmp_path / "data", languages=codes.values())
    with_side(data, codes[side], BROKEN[language])
    tokenizer = {"vocab_size": 400, "byte_fallback": True, "processing": {side: {"moses": True}}}
    recipe = write_recipe(tmp_path / "recipe.yaml", tokenizer=tokenizer, languages=codes)
    with pytest.raises(UserError, match=rf"processing.{side}.moses: .*Line 2: .*becomes") as caught:
        run(recipe, data, tmp_path / "run", dry_run=True)
    assert BROKEN[language].split()[0] in str(caught.value)


def test_moses_stays_where_it_comes_back(tmp_path):
    data = write_corpus(tmp_path / "data")
    with_side(data, "de", "Er sagte „nein“, ich nicht (oder so).")
    tokenizer = {
        "vocab_size": 120,
        "byte_fallback": False,
        "processing": {"target": {"moses": True, "lowercase": True}},
    }
    recipe = write_recipe(tmp_path / "recipe.yaml", tokenizer=tokenizer)
    assert "parameters" in run(recipe, data, tmp_path / "run", dry_run=True)


def with_a_long_line(tmp_path, side):
    """A corpus whose fourth development sentence has over a hundred words on a side."""
    data = write_corpus(tmp_path / "data")
    path = data / ("val.en" if side == "source" else "val.de")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], "ba do ki " * 60, *lines[4:]]) + "\n")
    return data


def with_positions(tmp_path, system):
    settings = {"max_position_embeddings": 50}
    return write_recipe(tmp_path / "recipe.yaml", model={"system": system, "shape": "tiny", "settings": settings})


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_development_line_that_the_model_cannot_read_is_named_beforehand(tmp_path, side, dry_run):
    data, recipe = with_a_long_line(tmp_path, side), with_positions(tmp_path, "transformer")
    message = rf"data.dev: sentence 4 .*{side} side.* subwords.* 50: .*max_position_embeddings"
    with pytest.raises(UserError, match=message):
        run(recipe, data, tmp_path / "run", dry_run=dry_run)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_model_without_positions_reads_any_length(tmp_path):
    data, recipe = with_a_long_line(tmp_path, "source"), with_positions(tmp_path, "rnn")
    assert "parameters" in run(recipe, data, tmp_path / "run", dry_run=True)
