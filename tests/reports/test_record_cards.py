"""The cards of the project's own records are what the records and results say."""

from __future__ import annotations

from pathlib import Path

from hf_mlnmt.reports.record_cards import stale_cards
from hf_mlnmt.zoo.records import stems

ROOT = Path(__file__).resolve().parents[2]


def test_cards_are_in_step_with_their_records():
    assert stems(ROOT)
    assert stale_cards(ROOT) == [], 'run: python -c "from hf_mlnmt.reports import write_cards; write_cards()"'
