"""What systems cost: bytes and operations by hand, ratios by turns, and the command."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from hf_mlnmt import config_for
from hf_mlnmt.analysis.cost import LiveBytes, Work, batches, beside_baseline, operations, peak_memory
from hf_mlnmt.cli import app
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.reports.parameters import parameters_of_config

SMALL = Work(vocabulary=50, tokens=40, length=5, batch=2, steps=1, rounds=1)


def test_bytes_that_live_at_once():
    """4,000 from before, 4,000 twice of which one goes, a view that costs nothing, 2,000 in place of the one."""
    before = torch.zeros(1000)
    with LiveBytes([before]) as counter:
        kept, gone = before + 1, before * 2
        view = kept.view(10, 100)[1:]
        assert (counter.now, counter.peak) == (12_000, 12_000)
        del gone
        half = before[:500] * 3
    assert (counter.now, counter.peak) == (10_000, 12_000)
    del kept
    assert counter.now == 10_000, "a view keeps what it looks at"
    del view, half
    assert counter.now == 4_000


def test_memory_of_a_training_step():
    """Weights, gradients and Adam's two moments are four times the parameters; states come on top."""
    config = config_for("transformer", "tiny", vocab_size=50)
    floor = 4 * 4 * parameters_of_config(config)["total"]
    few, more = (peak_memory(config, Work(**{**SMALL.__dict__, "tokens": tokens})) for tokens in (10, 400))
    assert floor < few < 1.2 * floor
    assert more > few


def test_operations_by_hand():
    """Six times the weights that are multiplied, a token; attention's own products are few at this length."""
    fields = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    config = config_for("transformer", "tiny", vocab_size=50, **fields)
    tokens = int((batches(SMALL)[0]["labels"] != -100).sum())
    weights = (4 * 32 * 32 + 2 * 32 * 64) + (8 * 32 * 32 + 2 * 32 * 64) + 32 * 50
    assert operations(config, SMALL) / tokens == pytest.approx(6 * weights, rel=0.05)


def test_ratios_are_of_neighbours():
    """Rounds of ratios 4, 1 and 3 on a machine whose speed changes: their median, not the ratio of the medians, 4 / 2.

    The first round of each, the warm-up, does not count.
    """
    rates, order = {"a": iter([50.0, 1, 4, 2]), "b": iter([1.0, 4, 4, 6])}, []

    def turn(name):
        def run():
            order.append(name)
            return next(rates[name])

        return run

    assert beside_baseline(turn("a"), {"b": turn("b")}, 3, lambda text: None) == {"b": (4.0, 3.0)}
    assert order == ["a", "b"] * 4


def test_the_command(tmp_path):
    pytest.importorskip("matplotlib")
    config_for("m-10", "tiny", vocab_size=50).save_pretrained(tmp_path / "own")
    small = ["--shape", "tiny", "--vocabulary", "50", "--tokens", "40", "--length", "5", "--batch", "2", "--steps", "1"]
    arguments = ["transformer", f"own={tmp_path}/own", *small, "--rounds", "1", "-o", f"{tmp_path}/out"]
    result = CliRunner().invoke(app, ["analyse", "cost", *arguments])
    assert result.exit_code == 0, result.output
    assert "measured on: " in result.output
    first, own = json.loads((tmp_path / "out" / "cost.json").read_text())["rows"]
    assert {first[f"{name}_ratio"] for name in ("parameters", "operations", "memory")} == {1.0}
    assert own["baseline"] == "transformer"
    assert own["parameters_ratio"] == own["parameters"] / first["parameters"]
    assert own["operations_ratio"] > 1
    assert own["training_ratio"] > 0
    for kind in ("csv", "png", "svg"):
        assert (tmp_path / "out" / f"cost.{kind}").is_file()
    drawn = (tmp_path / "out" / "cost.svg").read_text()
    for words in ("memory ↓", "training ↑", "times transformer's", "↓ lower is better, ↑ higher is better"):
        assert f">{words}<" in drawn
    with pytest.raises(UserError, match="'transfomer'"):
        raise CliRunner().invoke(app, ["analyse", "cost", "transfomer", "-o", f"{tmp_path}/out"]).exception


def test_lengths_beyond_the_positions(tmp_path, monkeypatch):
    """Recurrent layers read any length."""
    monkeypatch.setattr("hf_mlnmt.analysis.cost.cost_study", lambda *given: 1 / 0)  # it would be measured
    arguments = ["analyse", "cost", "--shape", "tiny", "-o", f"{tmp_path}/out", "--length", "1030"]
    for system, error in (("transformer", UserError), ("rnn", ZeroDivisionError)):
        with pytest.raises(error, match="--length 1030: transformer reads 1024 tokens" if system != "rnn" else ""):
            raise CliRunner().invoke(app, [*arguments, system]).exception


@pytest.mark.parametrize(
    ("system", "overrides", "message"),
    [
        ("lm", {}, "is no translation model"),
        ("bridge-rnn", {"source_languages": ["de", "fr"], "target_languages": ["en"]}, "modules of several languages"),
    ],
)
def test_what_has_no_cost_of_a_translation_model_is_refused(tmp_path, system, overrides, message):
    config_for(system, "tiny", vocab_size=50, **overrides).save_pretrained(tmp_path / "it")
    with pytest.raises(UserError, match=message):
        raise CliRunner().invoke(app, ["analyse", "cost", f"{tmp_path}/it", "-o", f"{tmp_path}/out"]).exception
    assert not (tmp_path / "out").exists()
