"""The cards of the project's own records are what the records and results say."""

from __future__ import annotations

from pathlib import Path

from hf_mlnmt.reports.published import papers_table
from hf_mlnmt.reports.record_cards import card_for_record, stale_cards
from hf_mlnmt.zoo.records import stems

ROOT = Path(__file__).resolve().parents[2]


def test_cards_are_in_step_with_their_records():
    assert stems(ROOT)
    assert stale_cards(ROOT, papers_table) == [], "run `hf-mlnmt report results`"


def test_a_card_has_the_papers_numbers_where_there_are_some():
    names = ("iter-c-agg.wmt14-ende", "iter-c-agg.multi30k-ende")
    cards = [card_for_record(name, ROOT, papers_table(name)) for name in names]
    section = cards[0].split("## What the paper reports")[1].split("\n## ")[0]
    assert "28.81 | 28.37" in section
    assert "77.0 | 61.2" in section
    assert "What the paper reports" not in cards[1]
