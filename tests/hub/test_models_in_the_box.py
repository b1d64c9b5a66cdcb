"""The models in published/: whole, small, with a card, and what README shows of one is what it translates."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.hub import check_folder
from hf_mlnmt.reports.tables import show

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path for path in (ROOT / "published").iterdir() if path.is_dir())
MOST_BYTES = 12_000_000


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_is_whole_and_small(folder: Path):
    check_folder(folder, folder, folder)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= MOST_BYTES
    assert {"README.md", "curves.png", "results.json", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    card, results = ModelCard.load(folder / "README.md"), json.loads((folder / "results.json").read_text("utf-8"))
    assert card.data.license == "cc-by-nc-sa-4.0"
    for scores in results["scores"].values():
        for protocol in scores.values():
            assert all(score["signature"] for score in protocol.values())
    assert f"| begins with the weights of | {show(results['recipe']['init_from'])} |" in str(card)
    words = results["command"].split()
    assert (ROOT / "training" / words[words.index("train") + 1] / "base.yaml").is_file()


def test_the_first_example_of_the_readme_prints_what_it_says():
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[1]
    told = re.search(r'from_pretrained\("([^"]+)".*tokenizer\(\["(.+?)"\].*# \[\'(.+)\'\]', block, re.DOTALL)
    translate = TranslationPipeline.from_pretrained(str(ROOT / told[1]))
    assert translate(told[2], num_beams=5, length_penalty=1.0) == told[3]
