"""Several test sets: numbers are `compare`'s and `perplexity`'s on each; the command; mistakes."""

from __future__ import annotations

import json

import pytest
from helpers.contract import redraw
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import hf_mlnmt
from hf_mlnmt.analysis.outputs import domain_study
from hf_mlnmt.cli import app
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.tokenizer import save_tokenizers, train_tokenizer
from hf_mlnmt.evaluation import compare, read_comparison
from hf_mlnmt.evaluation.outputs import read_systems, text_files
from hf_mlnmt.evaluation.perplexity import perplexity
from hf_mlnmt.generation import DecodingOptions
from hf_mlnmt.generation.translating.loading import load_scored
from hf_mlnmt.reports.comparison import add_runs

pytest.importorskip("matplotlib")

NEWS = ["A dog sees the red house .", "Two women ride .", "Two children play ."]
TALKS = ["A man .", "A woman rides the bicycle ."]
REFERENCES = {"news": [NEWS], "talks": [TALKS]}
OUTPUTS = {
    "news": {"base": ["A dog sees a house .", "Two men ride .", "Two play ."], "new": NEWS},
    "talks": {"base": TALKS, "new": ["A dog .", "A woman rides a bicycle ."]},
}
FAST = {"bootstrap": 20, "trials": 20}


def test_each_test_set_by_itself(tmp_path):
    comparison = compared(tmp_path)
    study = domain_study(comparison, "cased")
    study.write(tmp_path, {})
    assert all((tmp_path / f"domains.{kind}").is_file() for kind in ("csv", "png", "svg"))
    assert len(study.rows) == 2 * 2 * 3
    for test, systems in OUTPUTS.items():
        expected = compare(systems, REFERENCES[test], **FAST)
        for row in study.rows:
            if row["test"] == test:
                place = (row["system"], "test", "cased", row["measure"])
                assert row["value"] == expected.scores(*place)[0]
                assert row.get("difference") == (expected.tested(*place) or {}).get("difference")
    lines = {(line["measure"], line["system"]): (line["news"], line["talks"]) for line in study.summary}
    assert lines["BLEU", "new"][0] == "100.00"
    assert lines["BLEU", "base"][1] == "100.00"
    differences = [row["difference"] for row in study.rows if row["system"] == "new" and row["measure"] == "BLEU"]
    assert differences[0] > 0 > differences[1]


def compared(folder):
    """The comparison of both systems on both test sets, of their files."""
    for name, (lines,) in REFERENCES.items():
        for file, texts in {"en": lines, "de": lines, **OUTPUTS[name]}.items():
            (folder / f"{name}.{file}").write_text("\n".join(texts) + "\n")
    files = text_files([(name, str(folder / f"{name}.de")) for name in REFERENCES], [])
    systems = [(name, name, str(folder / f"{{test}}.{name}")) for name in ("base", "new")]
    return add_runs(
        read_systems(systems, files, None, {"bootstrap": 20, "protocols": ["cased"]}, DecodingOptions()), None, **FAST
    )


def run(*arguments):
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_the_command(folders, tmp_path, undraw):
    undraw()
    tokenizer = train_tokenizer((NEWS + TALKS) * 20, vocab_size=100, byte_fallback=False)
    fields = {"d_model": 16, "decoder_layers": 1, "decoder_ffn_dim": 16, "decoder_attention_heads": 2}
    lm = AutoModelForCausalLM.from_config(hf_mlnmt.config_for("lm", "tiny", vocab_size=len(tokenizer), **fields))
    redraw(lm)
    lm.save_pretrained(tmp_path / "lm")
    save_tokenizers(tmp_path / "lm", tokenizer)
    compared(tmp_path)
    tests = [word for name in REFERENCES for word in ("-s", f"{name}={tmp_path}/{name}.en")]
    tests += [word for name in REFERENCES for word in ("-r", f"{name}={tmp_path}/{name}.de")]
    tests += ["--language-text", f"xx={tmp_path}/news.base", "--protocol", "cased"]
    files = [f"{system}={tmp_path}/{{test}}.{system}" for system in ("base", "new")]
    few = ["--bootstrap", 20, "--trials", 20, "-o", tmp_path / "out"]
    run(*files, f"model={folders('transformer')}", *tests, *few, "-b", 1, "-m", "bleu", "--lm", tmp_path / "lm")
    content = json.loads((tmp_path / "out" / "domains.json").read_text())
    found = {(row["test"], row["system"], row["measure"]): row["value"] for row in content["rows"]}
    assert len(found) == 2 * (3 + 3)
    assert found["talks", "base", "BLEU"] == pytest.approx(100)
    expected = perplexity(*load_scored(str(tmp_path / "lm")), TALKS)
    assert found["talks", "lm", "perplexity per subword"] == pytest.approx(expected.per_subword)
    assert found["talks", "lm", "bits per byte"] == pytest.approx(expected.bits_per_byte)
    assert all((tmp_path / "out" / f"lengths.{name}.csv").is_file() for name in REFERENCES)
    page = (tmp_path / "out" / "README.md").read_text()
    assert all(f"## {name}, protocol cased" in page for name in REFERENCES)
    assert read_comparison(tmp_path / "out").places == [("news", "cased"), ("talks", "cased")]
    few[-1] = tmp_path / "other"
    with pytest.raises(UserError, match="a translation model"):
        run(*files, *tests, *few, "--lm", folders("transformer"))
    (tmp_path / "talks.new").write_text("one\n")
    with pytest.raises(UserError, match=r"talks\.new"):
        run(*files, *tests, *few)
