"""The cards of the project's own records are what the records and results say."""

from __future__ import annotations

import shutil
from pathlib import Path

from published import papers_table
from records import main, stale_cards, write_cards

from hf_mlnmt.reports import card_for_record
from hf_mlnmt.zoo.records import stems

ROOT = Path(__file__).resolve().parents[2]


def test_cards_are_in_step_with_their_records():
    assert stems(ROOT)
    assert stale_cards(ROOT) == [], "run `make records`"


def test_a_card_has_the_papers_numbers_where_there_are_some():
    names = ("iter-c-agg.wmt14-ende", "iter-c-agg.multi30k-ende")
    cards = [card_for_record(name, ROOT, papers_table(name)) for name in names]
    section = cards[0].split("## What the paper reports")[1].split("\n## ")[0]
    assert "28.81 | 28.37" in section
    assert "77.0 | 61.2" in section
    assert "What the paper reports" not in cards[1]


def test_cards_are_written_and_kept_in_step(tmp_path):
    stem = "iter-c-agg.wmt14-ende"
    for name in (f"modeling/{stem}.json", f"training/{stem}.yaml", "training/transformer.wmt14-ende.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    assert stale_cards(tmp_path) == [stem]
    (path,) = write_cards(tmp_path)
    assert path == tmp_path / "model_cards" / f"{stem}.md"
    assert path.read_text() == (ROOT / "model_cards" / f"{stem}.md").read_text()
    assert stale_cards(tmp_path) == []
    path.write_text(path.read_text().replace("No results yet", "BLEU 99"))
    assert stale_cards(tmp_path) == [stem]


def test_the_command(monkeypatch, capsys):
    monkeypatch.setattr("records.stale_cards", lambda: ["one"])
    assert main(["--check"]) == 1
    assert "stale: one" in capsys.readouterr().err
