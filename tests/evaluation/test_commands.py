"""`hf-mlnmt evaluate` and `hf-mlnmt compare`: files and models in, tables and JSON out, mistakes named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.verbs import of_verbs
from typer.testing import CliRunner

import hf_mlnmt.generation
from hf_mlnmt.cli import app as whole
from hf_mlnmt.cli.compare import compare
from hf_mlnmt.cli.evaluate import evaluate
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import read_comparison, score
from hf_mlnmt.evaluation.outputs import read_texts

run, _ = of_verbs(evaluate, compare)


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def pipeline(monkeypatch, systems):
    """A stand-in for TranslationPipeline that 'translates' line numbers; returns the calls it got."""
    calls = []

    class Pipeline:
        model = SimpleNamespace(
            num_parameters=lambda: 1234, generation_config=SimpleNamespace(num_beams=4, max_length=20)
        )

        @classmethod
        def from_pretrained(cls, name, **options):
            calls.append((Path(name).name, options))
            return cls()

        def __call__(self, texts, decoding, **options):
            calls.append({**decoding.given, **options})
            return [systems["a"][int(text)] for text in texts]

    monkeypatch.setattr(hf_mlnmt.generation, "TranslationPipeline", Pipeline)
    return calls


@pytest.fixture
def model(files: Path) -> Path:
    """A model folder, and source.en with the line numbers."""
    (files / "source.en").write_text("".join(f"{i}\n" for i in range(104)))
    (files / "run").mkdir()
    return files / "run"


def test_evaluate_a_file(files: Path, systems, references, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/hf-mlnmt", "evaluate", "-i", "a.txt"])
    output = files / "results" / "a.json"
    text = run("evaluate", "-i", files / "a.txt", "-r", files / "test.de", "-o", output, "--bootstrap", 50)
    expected = score(systems["a"], references, protocol="classic", language="de", bootstrap=50)
    assert f"{expected['BLEU']:.2f}" in text
    assert expected.metrics["BLEU"].signature in text
    content = json.loads(output.read_text())
    assert content["scores"]["test.de"]["classic"] == expected.to_dict()
    assert content["system"] == "a.txt"
    assert content["command"] == "hf-mlnmt evaluate -i a.txt"


def test_several_references_one_protocol_one_metric(files: Path, systems, references) -> None:
    arguments = ["-r", files / "test.de", "-r", files / "second.de", "--protocol", "cased", "-m", "bleu"]
    text = run("evaluate", "-i", files / "b.txt", *arguments, "--bootstrap", 0)
    second = read_texts(files / "second.de")
    assert f"{score(systems['b'], [references, second])['BLEU']:.2f}" in text
    assert "nrefs:2|" in text
    assert "chrF" not in text
    assert "classic" not in text


def test_without_a_language_there_is_no_classic_score_and_a_hint(files: Path) -> None:
    (files / "plain").write_bytes((files / "test.de").read_bytes())
    command = ("evaluate", "-i", files / "a.txt", "-r", files / "plain", "--bootstrap", 0, "-m", "bleu")
    text = run(*command)
    assert "classic: lower-cased" not in text
    assert "--language" in text
    assert "tok:moses-fr" in run(*command, "-l", "fr")


def test_evaluate_a_model(files: Path, model: Path, pipeline, systems) -> None:
    output = files / "r.json"
    paths = ("-s", files / "source.en", "-r", files / "test.de", "-o", output)
    run("evaluate", model, *paths, "--beams", 6, "--length-penalty", 1.1, "--device", "cpu", "--bootstrap", 0)
    assert pipeline == [("run", {"device": "cpu"}), {"num_beams": 6, "length_penalty": 1.1, "progress": True}]
    content = json.loads(output.read_text())
    assert content["parameters"] == 1234
    assert content["decoding"] == {"num_beams": 6, "length_penalty": 1.1, "max_length": 20}


def test_names_of_other_languages_are_refused(files: Path, model: Path, pipeline) -> None:
    (files / "out.en").write_bytes((files / "a.txt").read_bytes())
    with pytest.raises(UserError, match=r"out.en: its name says en, but that of .*test.de de"):
        run("evaluate", "-i", files / "out.en", "-r", files / "test.de")
    with pytest.raises(UserError, match=r"out.en: its name says en"):
        run("compare", files / "a.txt", files / "out.en", "-r", files / "test.de")
    (model / "results.json").write_text(json.dumps({"languages": {"source": "de", "target": "en"}}))
    with pytest.raises(UserError, match=r"source.en: its name says en, but .*run translates from de"):
        run("evaluate", model, "-s", files / "source.en", "-r", files / "test.de")
    assert not pipeline


def test_a_results_file_grows_and_keeps_what_training_wrote(files: Path) -> None:
    output = files / "r.json"
    output.write_text(
        json.dumps({"schema": "hf_mlnmt.results/1", "system": "x", "command": "train", "seed": 3, "new": 1})
    )
    common = ("-i", files / "a.txt", "-r", files / "test.de", "-o", output, "--bootstrap", 0, "--test-set")
    run("evaluate", *common, "one")
    run("evaluate", *common, "two")
    content = json.loads(output.read_text())
    assert (content["command"], content["seed"], content["new"], content["system"]) == ("train", 3, 1, "x")
    assert list(content["scores"]) == ["one", "two"]
    before = output.read_bytes()
    with pytest.raises(UserError, match="results of 'x', not of 'y'"):
        run("evaluate", *common, "two", "--name", "y")
    assert output.read_bytes() == before


def test_compare_files_and_models(files: Path, model: Path, pipeline, undraw) -> None:
    undraw()
    output = files / "out"
    named = (f"base={files / 'b.txt'}", f"new={model}", files / "c.txt")
    quick = ("--bootstrap", 20, "--trials", 20, "-o", output)
    text = run("compare", *named, "-r", files / "test.de", "-s", files / "source.en", *quick, "--beams", 2)
    found = read_comparison(output)
    assert list(found.runs) == ["base", "new", "c.txt"]
    assert list(found.first["scores"]["test.de"]) == ["cased", "classic"]
    assert found.baseline == "base"
    assert [found.runs[name][1]["decoding"] for name in found.runs] == [{}, {"num_beams": 2, "max_length": 20}, {}]
    assert found.runs["new"][1]["parameters"] == 1234
    assert found.settings == {"bootstrap": 20, "trials": 20, "seed": 12345}
    assert "‡" in text


def test_the_language_scored_is_the_one_translated_into(files: Path, model: Path, pipeline) -> None:
    """A multilingual model's French is not cut by German rules."""
    (files / "plain").write_bytes((files / "test.de").read_bytes())
    common = ("-s", files / "source.en", "--bootstrap", 0, "-m", "bleu")
    assert "tok:moses-fr" in run("evaluate", model, "-r", files / "plain", "--to", "fr", *common)
    assert "tok:moses-fr" in run("evaluate", model, "-r", files / "plain", "--to", "fr_XX", *common)
    assert "tok:moses-de" in run("evaluate", model, "-r", files / "test.de", "--to", "deu_Latn", *common)
    calls = len(pipeline)
    for command in (("evaluate", model), ("compare", files / "a.txt", model)):
        with pytest.raises(UserError, match=r"test.de: its name says .*'de'.* into 'fr'.*--language"):
            run(*command, "-r", files / "test.de", "--to", "fr", "-s", files / "source.en")
    assert len(pipeline) == calls
    text = run("evaluate", model, "-r", files / "test.de", "--to", "fr", "-l", "de", *common)
    assert "tok:moses-de" in text


def test_a_language_that_moses_lacks_is_said(files: Path, caplog) -> None:
    for language, said in (("de", False), ("zz", True)):
        run("evaluate", "-i", files / "a.txt", "-r", files / "test.de", "-l", language, "--bootstrap", 0, "-m", "bleu")
        assert ("no rules of its own" in caplog.text) == said


def test_outputs_that_cannot_be_written_are_refused_before_translating(files: Path, model: Path, pipeline) -> None:
    common = ("-s", files / "source.en", "-r", files / "test.de")
    for arguments in (
        ("evaluate", model, *common, "-o", files),
        ("evaluate", model, *common, "--save-translations", files),
        ("compare", files / "a.txt", model, *common, "--html", files),
        ("compare", files / "a.txt", model, *common, "-o", files / "a.txt"),
    ):
        with pytest.raises(UserError, match=r"is a (folder|file)"):
            run(*arguments)
    with pytest.raises(UserError, match="length_penalty: nan"):
        run("evaluate", model, *common, "--length-penalty", "nan")
    assert pipeline == []


def test_lines_are_sacrebleu_s(tmp_path: Path) -> None:
    # Only \n ends a line: U+2028, \x0b and \r inside a line do not, and trailing white space goes.
    path = tmp_path / "odd.gz"
    with gzip.open(path, "wb") as file:
        file.write("a\u2028b\x0bc \r\n\n\x00\td\t\nlast".encode())
    assert read_texts(path) == ["a\u2028b\x0bc", "", "\x00\td", "last"]


def bad(files: Path, name: str, content: bytes) -> Path:
    (files / name).write_bytes(content)
    return files / name


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("short.txt", b"one\ntwo\n", r"short.txt: 2, .*test.de: 104"),
        ("line.txt", b"one\n", r"line.txt: 1, .*test.de: 104"),
        ("empty.txt", b"", "empty.txt: the file is empty"),
        ("latin.txt", "ok\nMänner\n".encode("latin-1"), "latin.txt, line 2: invalid UTF-8"),
        ("broken.gz", b"\x1f\x8bno gzip", "broken.gz"),
    ],
)
def test_bad_hypotheses_are_named(files: Path, name, content, message) -> None:
    with pytest.raises(UserError, match=message):
        run("evaluate", "-i", bad(files, name, content), "-r", files / "test.de")
    with pytest.raises(UserError, match=message) as error:
        run("compare", files / "a.txt", files / name, "-r", files / "test.de")
    assert "per sentence" not in str(error.value)  # which is for Python


def test_bad_calls_are_explained(files: Path, model: Path, pipeline) -> None:
    reference = ("-r", files / "test.de")
    for arguments, message in [
        (("evaluate", *reference), "either a model"),
        (("evaluate", model, "-i", files / "a.txt", *reference), "either a model"),
        (("evaluate", model, *reference), "--source"),
        (("evaluate", model, "-s", bad(files, "s.en", b"1\n"), *reference), r"s.en: 1, .*test.de: 104"),
        (("evaluate", "-i", files / "nothing", *reference), "nothing: no such file"),
        (("evaluate", "-i", files / "a.txt", *reference, "--bootstrap", 1), "1000 are usual"),
        (("evaluate", "-i", files / "a.txt", *reference, "--save-translations", files / "x"), "is for a model"),
        (("evaluate", "-i", files / "a.txt", *reference, "--robustness"), "--robustness is of a model"),
        (("evaluate", "-i", files / "a.txt", *reference, "-r", bad(files, "r.de", b"1\n")), r"test.de: 104, .*r.de: 1"),
        (
            ("evaluate", "-i", files / "a.txt", *reference, "-o", bad(files, "o.json", b"{}")),
            "o.json: expected a results",
        ),
        (("evaluate", model, "-s", files / "source.en", *reference, "--protocol", "clasic"), "did you mean 'classic'"),
        (("evaluate", model, "-s", files / "source.en", *reference, "-l", "Deutsch"), "expected a code, such as de"),
        (("evaluate", model, *reference, "-l", "deu", "--protocol", "classic"), "two-letter code"),
        (("evaluate", model, "-s", files / "source.en", *reference, "-m", "comet"), "BLEU, chrF, TER"),
        (("compare", files / "a.txt", *reference), "at least one other"),
        (("compare", files / "a.txt", files / "b.txt"), "give --reference"),
        (
            ("compare", files / "a.txt", files / "b.txt", *reference, "-r", f"x={files / 'test.de'}"),
            "NAME=FILE, or none",
        ),
        (("evaluate", "-i", files / "a.txt"), "--reference FILE"),
        (("evaluate", "-r", files / "test.de", "--perplexity"), "is of a model"),
        (("evaluate", "--matrix"), "is of a run"),
        (("evaluate", "run", "--matrix", "-m", "BLEU", "-m", "TER"), "one --metric"),
        (("evaluate", "run", "--matrix", "-r", files / "test.de"), "--reference: --matrix does not read this"),
        (("evaluate", "run", "--matrix", "--robustness"), "--robustness: --matrix does not read this"),
        (("evaluate", "run", "--matrix", "--beams", "3"), "options of the search: --matrix does not read this"),
        (
            ("evaluate", "-i", files / "base.de", "-r", files / "test.de", "-d", files),
            "--data: the score of a test set",
        ),
        (("evaluate", "lm", "--perplexity", "-r", files / "test.de", "-m", "TER"), "--metric: a perplexity does not"),
        (("evaluate", "lm", "--perplexity", "-r", files / "test.de", "-b", "3"), "search: a perplexity does not"),
        (("compare", files / "a.txt", files / "a.txt", *reference), "given twice"),
        (("compare", files / "a.txt", files / "nothing", *reference), "nothing: no such file or model folder"),
        (("compare", files / "a.txt", model, *reference), "--source"),
    ]:
        with pytest.raises(UserError, match=message):
            run(*arguments)
    assert pipeline == []


def test_no_output_takes_the_place_of_an_input(files: Path, model: Path, pipeline) -> None:
    """The whole command sees to it, for every verb."""

    def call(*arguments: object) -> None:
        CliRunner().invoke(whole, [str(a) for a in arguments], catch_exceptions=False)

    a, b, reference, source = (files / name for name in ("a.txt", "b.txt", "test.de", "source.en"))
    array = files / "text.npy"
    array.write_text("a\n")
    (model / "config.json").write_text("{}")
    before = {path: path.read_bytes() for path in (a, b, reference, source, array)}
    common = ("-s", source, "-r", reference)
    for arguments in (
        *(("compare", a, f"new={b}", *common, "--html", path) for path in (a, b, reference, source)),
        ("compare", files / "{test}.txt", f"new={b}", "-r", f"a={reference}", "--html", a),
        *(
            ("evaluate", model, *common, option, path)
            for option in ("-o", "--save-translations")
            for path in (source, reference)
        ),
        ("evaluate", "-i", a, "-r", reference, "-o", a),
        ("evaluate", model, "--perplexity", "-r", reference, "-o", reference),
        ("evaluate", model, *common, "--save-translations", model / "config.json"),
        ("analyse", "retrieve", model, f"de={a}", f"en={b}", "-o", b),
        ("analyse", "embed", model, array, "-o", array),
    ):
        with pytest.raises(UserError, match="is one of the inputs"):
            call(*arguments)
    with pytest.raises(UserError, match="is the name of two outputs"):
        call("compare", a, f"new={b}", *common, "--html", files / "out", "-o", files / "out")
    assert {path: path.read_bytes() for path in before} == before
    # Of a folder's files too, when they are written.
    page = files / "README.md"
    page.write_bytes(a.read_bytes())
    with pytest.raises(UserError, match="is a document"):
        call("compare", page, f"new={b}", "-r", reference, "-o", files, "--bootstrap", 20, "--trials", 20)
    assert page.read_bytes() == a.read_bytes()
