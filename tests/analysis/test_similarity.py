"""Correlation of cosines with scores, by hand; the command on pairs and on embeddings; broken files."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from hf_mlnmt.analysis.embeddings import correlations, cosines, read_pairs
from hf_mlnmt.cli import app
from hf_mlnmt.common.errors import UserError

LINES = ["A man rides a red bicycle.", "The dog sees a woman on the street.", "Two children play in the house."]
PAIRS = [(LINES[0], LINES[0], 5.0), (LINES[0], LINES[1], 1.0), (LINES[1], LINES[2], 2.0), (LINES[2], LINES[0], 2.0)]


def test_correlations_by_hand():
    """(1, 2, 3, 4) and (1, 4, 9, 25): squares and products about the means; ranks that agree, and a tie of two."""
    found = correlations(np.array([1, 2, 3, 4]), np.array([1, 4, 9, 25]))
    assert found["Pearson"][0] == pytest.approx(38.5 / math.sqrt(5 * 342.75))
    assert found["Spearman"] == (1.0, 1.0, 1.0)
    assert correlations(np.array([7, 3, 7, 1]), np.array([4, 2, 3, 1]))["Spearman"][0] == pytest.approx(4.5 / 22.5**0.5)
    assert math.isnan(correlations(np.ones(4), np.arange(4))["Pearson"][0])


def test_intervals_by_hand():
    """r = 0.5 of 28 pairs: atanh r +- 1.96 / 5, for ranks wider by the root of 1 + r^2 / 2."""
    x = np.array([1, 0, 0] * 28)[:28]
    y = np.roll(x, 1)
    found = correlations(x, y)
    for name, wider in (("Pearson", 1), ("Spearman", math.sqrt(1 + found["Spearman"][0] ** 2 / 2))):
        r, low, high = found[name]
        assert math.atanh(high) - math.atanh(r) == pytest.approx(1.959964 / 5 * wider)
        assert math.atanh(r) - math.atanh(low) == pytest.approx(1.959964 / 5 * wider)


def test_cosines_of_rows():
    first, second = np.array([[3.0, 4], [1, 0], [0, 0]]), np.array([[6.0, 8], [0, 5], [1, 1]])
    assert cosines(first, second).tolist() == [pytest.approx(1), 0, 0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\tb\t1\na\tb\n", "line 2: expected two sentences and a score"),
        ("a\tb\tnan\n", "line 1"),
        (" \tb\t1\n", "line 1"),
        ("a\tb\t1\n" * 3, "needs four pairs"),
        ("a\tb\t1\n" * 5, "scores that differ"),
    ],
)
def test_broken_pairs(tmp_path, text, said):
    (tmp_path / "pairs").write_text(text)
    with pytest.raises(UserError, match=said):
        read_pairs(tmp_path / "pairs")


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_probe_of_embeddings(folders, tmp_path):
    """The command's numbers are those of `embed`'s vectors; a bridge is classified from its rows."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    bridge = folders("bridge-rnn")
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\t{score}\n" for a, b, score in PAIRS))
    common = ["--pairs", tmp_path / "pairs.tsv", "-o", tmp_path / "out"]
    run("analyse", "probe", f"bridge={bridge}", f"base={folders('transformer')}", *common, "--from", "en")
    rows = json.loads((tmp_path / "out" / "similarity.json").read_text())["rows"]
    assert [(row["system"], row["pooling"], row["correlation"]) for row in rows[::2]] == [
        ("bridge", "flat", "Pearson"),
        ("base", "mean", "Pearson"),
    ]
    (tmp_path / "texts").write_text("".join(f"{a}\n{b}\n" for a, b, _ in PAIRS))
    run("analyse", "embed", bridge, tmp_path / "texts", "--from", "en", "-o", tmp_path / "v.npy")
    vectors = np.load(tmp_path / "v.npy")
    expected = correlations(cosines(vectors[::2], vectors[1::2]), np.array([score for *_, score in PAIRS]))
    assert rows[0]["value"] == pytest.approx(expected["Pearson"][0], abs=1e-5)
    assert (tmp_path / "out" / "similarity.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "past_present.txt").write_text(
        "".join(f"{part}\t{i % 2}\t{LINES[i % 2]}\n" for part in ("tr", "va", "te") for i in range(6))
    )
    task = ["--senteval", tmp_path / "past_present.txt", "-o", tmp_path / "out", "--classifier", "logistic"]
    run("analyse", "probe", f"bridge={bridge}", *task, "--from", "en", "--pooling", "1")
    row = json.loads((tmp_path / "out" / "probing.json").read_text())["rows"][0]
    assert (row["layer"], row["accuracy"]) == ("row 1", 100.0)
    with pytest.raises(UserError, match="bridge: a model of several encoders is read at its bridge"):
        run("analyse", "probe", f"bridge={bridge}", *task, "--from", "en")
    lines = "".join(f"{a} {b}\n" for a in LINES for b in (*LINES, "A red house.", "A man.", "Two dogs."))
    (tmp_path / "raw").write_text(lines)
    raw = ["--text", tmp_path / "raw", "--task", "bigram-shift", "--sizes", "6,4,4", "-o", tmp_path / "out"]
    languages = ["--from", "en", "--to", "fr"]
    run("analyse", "probe", f"bridge={bridge}", *raw, *languages, "--pooling", "flat", "--classifier", "logistic")
    with pytest.raises(UserError, match="give layers or a pooling"):
        run("analyse", "probe", f"base={folders('transformer')}", *task, "--pooling", "mean", "--layer", 1)
    with pytest.raises(UserError, match=r"base: .*bridge"):
        run("analyse", "probe", f"base={folders('transformer')}", *common, "--pooling", "flat")
