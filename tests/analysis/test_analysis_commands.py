"""The commands of the analysis, run whole on small models: what they write, and what they refuse."""

from __future__ import annotations

import copy
import csv
import json

import pytest
from transformers import AutoModelForSeq2SeqLM
from typer.testing import CliRunner

from hf_mlnmt.cli import app
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import file_name
from hf_mlnmt.common.model_folder import copy_text_files
from hf_mlnmt.evaluation.figures import Panel, bars, curves, heat_maps, points, save, to_csv

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

SOURCES = ["A dog sees the red house .", "Two women ride .", "", "A man .", "Two children play ."]
TARGETS = ["The dog plays .", "Two children in the house .", "x", "A woman .", "A man rides ."]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "src").write_text("\n".join(SOURCES) + "\n")
    (tmp_path / "trg").write_text("\n".join(TARGETS) + "\n")
    return tmp_path


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def contents(folder, stem):
    content = json.loads((folder / f"{stem}.json").read_text())
    with (folder / f"{stem}.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(content["rows"])
    assert content["schema"] == "hf_mlnmt.analysis/1"
    return content


def check_figures(folder, *stems):
    for stem in stems:
        assert (folder / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (folder / f"{stem}.svg").read_bytes()


def test_attention_of_several_models(folders, files, undraw):
    out = files / "out"
    models = [f"base={folders('transformer')}", f"dual={folders('full-dc')}"]
    common = ["-s", files / "src", "-t", files / "trg", "-o", out]
    text = run("analyse", "attention", *models, *common, "-w", "entropy", "-w", "maps", "--layer", 2)
    assert "base: attention is computed by 'eager' here, as 'sdpa' returns no weights" in text
    found = contents(out, "entropy.encoder")
    assert found["settings"]["lines"] == [1, 2, 4, 5]
    assert found["settings"]["left_out"] == 1
    keys = {(row["system"], row["unit"], row["range"]) for row in found["rows"]}
    assert keys == {
        (s, u, r) for s, u in (("base", ""), ("dual", "local"), ("dual", "global")) for r in ("printed", "all")
    }
    mean = next(row["value"] for row in found["rows"] if row["head"] == "mean")
    heads = [row["value"] for row in found["rows"] if row["layer"] == 1 and row["head"] != "mean"][:2]
    assert mean == pytest.approx(sum(heads) / 2)
    check_figures(out, "entropy.encoder.layers", "entropy.encoder.heads.all", "maps.dual")
    assert "4 sentences of src" in (out / "entropy.encoder.layers.svg").read_text()
    maps = (out / "maps.dual.svg").read_text()
    assert "attention weight, dual" in maps
    assert "line 1 of src" in maps
    undraw()
    run("analyse", "attention", models[1], *common, "-w", "distance", "--side", "decoder")
    assert {row["range"] for row in contents(out, "distance.decoder")["rows"]} == {"printed"}


def test_attention_of_one_family(folders, files):
    out = files / "out"
    common = ["-s", files / "src", "-o", out]
    models = [f"dual={folders('full-dc')}", f"again={folders('full-dc')}"]
    run("analyse", "attention", *models, *common, "-w", "divergence", "--side", "decoder")
    assert [row["layer"] for row in contents(out, "divergence.decoder")["rows"]] == [1, 2, "mean"] * 2
    assert "again, kernel of " in (out / "divergence.decoder.layers.svg").read_text()
    run("analyse", "attention", f"aif={folders('ms-123-aif')}", *common, "-w", "dependency", "--sentence", 4)
    rows = contents(out, "dependency")["rows"]
    assert [row["of"] for row in rows[:7]] == ["outputs"] + ["attention"] * 6
    assert rows[7]["of"] == "line 4"
    check_figures(out, "divergence.decoder.means", "dependency.outputs", "dependency.layers", "dependency.sentence")


def test_alignments(folders, files, undraw):
    undraw()
    out, model = files / "out", f"m-10={folders('m-10')}"
    (files / "gold").write_text("1-1 2?2\n1-1\n9-9\n1-1\n2-2\n")  # line 3 has no source
    common = ["analyse", "attention", model, "-s", files / "src", "-t", files / "trg", "-o", out, "-w", "alignments"]
    run(*common, "--gold", files / "gold", "--one-based")
    rates = [row["AER"] for row in contents(out, "alignments")["rows"]]
    assert len(rates) == 2 * 2 * 3
    (path,) = out.glob("alignments.m-10.*.txt")
    assert len(path.read_text().splitlines()) == 4  # the empty line is left out, and said so
    assert contents(out, "alignments")["settings"]["lines"] == [1, 2, 4, 5]
    run(*common, "--layer", 2, "--head", 1)
    assert (out / "alignments.m-10.layer2.encoder1.head1.txt").is_file()
    with pytest.raises(UserError, match="which attention aligns best"):
        run(*common)
    with pytest.raises(UserError, match="alignments are of given translations"):
        run("analyse", "attention", model, "-s", files / "src", "-o", out, "-w", "alignments", "--layer", 1)
    (files / "gold").write_text("0-0\n")
    with pytest.raises(UserError, match="1 lines for 5 sentences"):
        run(*common, "--gold", files / "gold")


@pytest.mark.parametrize("more", [("--beams", 2), ("-t",)])
def test_coverage(folders, files, more, undraw):
    """Of a search, or of a given translation; of one line of the file."""
    undraw()
    more = (*more, files / "trg") if more == ("-t",) else more
    common = ["-s", files / "src", "-o", files / "out", "--sentence", 2, "--layer", 2]
    run("analyse", "attention", f"own={folders('fertility')}", *common, "-w", "coverage", *more)
    found = contents(files / "out", "coverage")
    own = [row for row in found["rows"] if "coverage" in row]
    assert ({row["layer"] for row in own}, found["settings"]["beams"]) == ({2}, 2 if "--beams" in more else 5)
    assert " ".join({row["column"]: row["source"] for row in own}.values()).startswith("_T")
    assert any("fertility" in row for row in found["rows"])


def test_refusals_of_attention(folders, files):
    common = ["-s", files / "src", "-o", files / "out"]
    model = f"m={folders('m-10')}"
    for words, said in (
        ([model, "-w", "divergence"], r"m: .* no dual contextual module in its encoder"),
        ([model, "-w", "dependency"], r"m: .* no auxiliary information fusion"),
        ([model, f"m={folders('m-00')}", "-w", "distance"], "two models are called 'm'"),
        ([model, "-w", "maps", "--layer", 9], "m: --layer 9: this model has 1 to 2"),
    ):
        with pytest.raises(UserError, match=said):
            run("analyse", "attention", *words, *common)
    with pytest.raises(UserError, match="Different numbers of lines"):
        (files / "short").write_text("x\n")
        run("analyse", "attention", f"m={folders('m-10')}", *common, "-w", "maps", "-t", files / "short")
    assert not (files / "out").exists()


def test_masking(folders, files, undraw):
    undraw()
    out = files / "out"
    common = ["-s", files / "src", "-r", files / "trg", "-o", out, "--bootstrap", 20, "--trials", 20, "-b", 1]
    text = run("analyse", "masking", f"a={folders('m-10')}", f"b={folders('ms-1-aif')}", *common)
    assert "a: 3 translations of 5 sentences" in text
    rows = contents(out, "masking")["rows"]
    assert [row["without"] for row in rows if row["system"] == "b"] == [
        "whole model",
        "auxiliary 1",
        "decoder on layer 1",
    ]
    assert len([row for row in rows if row["system"] == "a"]) == 3, "rows are of our own translations alone"
    assert len((out / "translations" / "a.layer-2.txt").read_text().splitlines()) == 5
    with pytest.raises(UserError, match=r"c: .*collects no encoder layers"):
        run("analyse", "masking", f"c={folders('transformer')}", *common)
    (files / "short").write_text("x\n")
    with pytest.raises(UserError, match="every output needs its reference on the same line"):
        run("analyse", "masking", f"a={folders('m-10')}", "-s", files / "src", "-r", files / "short", "-o", out)


def test_probe(folders, files, demo, undraw):
    undraw()
    out = files / "out"
    for side, language in enumerate(("en", "de")):
        short = [pair[side] for pair in demo["train"] if len(pair[side]) < 45]
        (files / language).write_text("\n".join(short) + "\n")
    texts = ["--text", f"en={files / 'en'}", "--text", f"de={files / 'de'}", "--sizes", "200,50,50"]
    common = ["analyse", "probe", f"a={folders('transformer')}", *texts, "-o", out, "--words", 5]
    text = run(*common, "--task", "length", "--classifier", "mlp")
    assert "a, length, layer 2, mlp: " in text
    text = run(*common, "--task", "length", "--task", "language", "--layer", 2)
    assert "a, length, layer 2, logistic: " in text
    rows = contents(out, "probing")["rows"]
    assert [(row["task"], row["classifier"]) for row in rows] == [
        (task, classifier) for task in ("length", "language") for classifier in ("mlp", "logistic")
    ]
    (files / "past_present.txt").write_text(
        "".join(f"{part}\t{label}\tA man {i} .\n" for part in ("tr", "va", "te") for label in "ab" for i in range(3))
    )
    run("analyse", "probe", f"a={folders('transformer')}", "--senteval", files, "-o", out, "--classifier", "logistic")
    rows = contents(out, "probing")["rows"]
    assert [row["task"] for row in rows] == ["Tense"]
    with pytest.raises(UserError, match="probe needs sentences"):
        run("analyse", "probe", f"a={folders('transformer')}", "-o", out)
    with pytest.raises(UserError, match="expected three numbers"):
        run(*common, "--sizes", "5,5")
    with pytest.raises(UserError, match="a: layer 7: this encoder has 0"):
        run(*common, "--task", "length", "--layer", 7)


def test_outputs(folders, files, undraw):
    out = files / "out"
    (files / "new").write_text("\n".join(["The dog plays .", "Two women ride .", "", "A A A woman", "A man ."]) + "\n")
    common = ["-s", files / "src", "-r", files / "trg", "-o", out, "--bootstrap", 20]
    run("compare", f"base={files / 'trg'}", f"new={files / 'new'}", *common, "-g", "4,6")
    rows = contents(out, "lengths")["rows"]
    assert [row["sentences"] for row in rows if row["system"] == "new" and row["metric"] == "BLEU"] == [2, 2, 1]
    shares = {row["kind"]: row.get("lines") for row in contents(out, "statistics")["rows"] if row["system"] == "new"}
    assert (shares["empty"], shares["copied"], shares["repeated"]) == ("3", "2", "4")
    differences = contents(out, "differences")["rows"]
    assert {row["line"] for row in differences} == {2, 3, 4, 5}
    assert all(row["difference"] < 0 for row in differences)
    check_figures(out, "lengths", "statistics", "differences")
    undraw()
    model = folders("transformer")
    run("compare", f"base={files / 'trg'}", *common, "--tokenizer", model, "--language-text", f"xx={files / 'new'}")
    assert contents(out, "lengths")["settings"]["unit"] == f"subwords of {model}"
    with pytest.raises(UserError, match="expected XX=FILE"):
        run("compare", f"base={files / 'trg'}", *common, "--language-text", "de")
    with pytest.raises(UserError, match="expected wmt, iwslt, or ascending"):
        run("compare", f"base={files / 'trg'}", *common, "-g", "x")


def test_figures_have_what_they_are_given(tmp_path):
    panels = [Panel("a", [[1.0, 2.5], [None, 4.0]], ["r1", "r2"], ["c1", "c2"]), Panel("b", [[0.0]], ["r1"], ["c1"])]
    figure = heat_maps(panels, "rows", "columns", "label")
    shown = [axis for axis in figure.axes if axis.images]
    assert [text.get_text() for text in shown[0].texts] == ["1.0", "2.5", "4.0"]
    assert {axis.images[0].get_clim() for axis in shown} == {(0.0, 4.0)}
    lines = curves({"x": {"one": {1: 2.0, 3: 4.0}, "two": {1: 1.0}}, "y": {"two": {1: 5.0}}}, "layer", "value").axes
    assert lines[0].lines[0].get_xydata().tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert lines[0].lines[1].get_color() == lines[1].lines[0].get_color() != lines[0].lines[0].get_color()
    for changes, plus in ((False, ""), (True, "+")):
        drawn = bars({"t": [("a", -1.5, "‡"), ("b", 2.0, "")]}, "change", changes=changes).axes[0]
        assert [text.get_text() for text in drawn.texts] == ["-1.50‡", f"{plus}2.00"]
    figure = points({"t": {"s": [(1.0, 0.5, 2.0), (None, None, None)]}}, ["x", "y"], "", "", ("level", [3.0, 4.0]))
    (container,) = figure.axes[0].containers
    (segment,) = container[2][0].get_segments()
    assert segment[:, 1].tolist() == [0.5, 2.0]
    assert figure.axes[0].lines[-1].get_ydata().tolist() == [3.0, 4.0]
    paths = save(figure, tmp_path, "figure")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
    first = paths[1].read_bytes()
    assert save(figure, tmp_path, "figure")[1].read_bytes() == first


def test_csv_and_names():
    assert to_csv([{"a": 1, "b": None}, {"a": 'x,"', "c": 2.5}]) == 'a,b,c\n1,,\n"x,""",,2.5\n'
    assert file_name("m-10, layer 2/x") == "m-10--layer-2-x"


def test_a_bridge_is_looked_at_between_the_two_languages_that_are_named(folders, files, undraw):
    undraw()
    whole = AutoModelForSeq2SeqLM.from_pretrained(folders("bridge-transformer"))
    languages = {"source_languages": ["de", "en"], "target_languages": ["en", "fr"]}
    config = copy.deepcopy(whole.config)
    for name, codes in languages.items():
        setattr(config, name, codes)
    model = AutoModelForSeq2SeqLM.from_config(config)
    model.save_pretrained(files / "bridge")
    model.pair("de", "fr").save_pretrained(files / "pair")
    for name in ("bridge", "pair"):
        copy_text_files(folders("bridge-transformer"), files / name)
    arguments = ["-s", files / "src", "--what", "entropy", "--sample", "2", "-o"]
    with pytest.raises(UserError, match=r"source_language: needed by this model. bridge knows: de, en"):
        run("analyse", "attention", files / "bridge", *arguments, files / "none")
    named = ["--from", "de", "--to", "fr"]
    for name in ("bridge", "pair"):
        run("analyse", "attention", f"it={files / name}", *arguments, files / f"{name}-out", *named)
    assert (files / "bridge-out" / "entropy.encoder.csv").read_bytes() == (
        files / "pair-out" / "entropy.encoder.csv"
    ).read_bytes()
