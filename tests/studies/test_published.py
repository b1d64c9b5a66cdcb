"""What the papers print: the pages repeat the data of studies/."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_on_analyses_repeats_the_data():
    """docs/studies/analysis.md writes numbers below one as the thesis does, -.83."""
    content = yaml.safe_load((ROOT / "studies" / "published_analyses.yaml").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "studies" / "analysis.md").read_text(encoding="utf-8")
    for system in ("M-10", "Iter-C-Agg"):
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {system}, published |"))
        cells = [cell.strip().replace("-.", "-0.") for cell in line.strip("|").split("|")]
        assert cells[2:] == content["masking"]["rows"][system]
    for table in content["probing"]["tables"]:
        assert {len(row) for row in table["rows"].values()} == {len(content["probing"]["tasks"])}
