"""README's Python runs, block after block, with a tiny model for ours."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import hf_mlnmt
from hf_mlnmt.data import save_tokenizers, train_tokenizer

ROOT = Path(__file__).resolve().parents[1]
SENTENCES = [
    "The teacher buys two red cars.",
    "Der Hund schläft.",
    "The cat sees a bird.",
    "Die Katze sieht einen Vogel.",
]


def test_every_python_block_runs(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = train_tokenizer(SENTENCES, vocab_size=400)
    config = hf_mlnmt.config_for("transformer", "tiny", vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=1)
    model = hf_mlnmt.TransformerForConditionalGeneration(config)
    model.generation_config.max_new_tokens = 8
    model.save_pretrained("published/software-en-de")
    save_tokenizers("published/software-en-de", tokenizer)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    scope: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
    assert scope["trainer"].state.global_step == 4


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


def test_every_link_leads_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in headings(page.parent / target if target else page), f"{page.name}: {target}#{anchor}"


def test_every_picture_says_what_is_seen():
    """Of pages and cards, to who does not see it: a sentence with numbers that can be read off it."""
    folders = ("docs", "published", "model_cards", "results")
    pages = [*ROOT.glob("*.md"), *(page for folder in folders for page in (ROOT / folder).rglob("*.md"))]
    alts = {alt for page in pages for alt in re.findall(r"!\[([^\]]*)\]\(|<img\b", page.read_text(encoding="utf-8"))}
    assert len(alts) >= 12
    assert not [alt for alt in alts if len(alt.split()) < 10 or not re.search(r"\d", alt)]


def test_every_page_that_code_names_is_there():
    """In messages, help texts and comments; the index names each page of docs/."""
    code = [path for room in ("hf_mlnmt", "studies", "benchmarks", "training") for path in (ROOT / room).rglob("*.*")]
    for path in code:
        if path.suffix in (".py", ".yaml", ".jinja"):
            for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
                assert (ROOT / name).is_file(), f"{path.relative_to(ROOT)}: {name}"
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name == "README.md" or f"({name})" in index, f"docs/README.md does not name {name}"


def test_every_table_has_a_head_and_no_gap():
    folders = [ROOT / name for name in ("docs", "results", "benchmarks", "model_cards")]
    for page in [*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))]:
        lines = ["", *page.read_text(encoding="utf-8").splitlines(), ""]
        for number in range(1, len(lines) - 1):
            if lines[number].startswith("|") and not lines[number - 1].startswith("|"):
                assert re.fullmatch(r"[|:\- ]+", lines[number + 1]), f"{page.name}: line {number} begins no table"


def results_rows(page: str) -> list[str]:
    """The rows of a page's tables that link a results file of the folder results/ itself."""
    return [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if _RESULTS_FILE.search(line)]


_RESULTS_FILE = re.compile(r"^\| \[[^]]+\]\((?:\.\./)*results/([^/)]+\.json)\)")


@pytest.mark.parametrize("row", results_rows("docs/studies/results.md"))
def test_the_tables_of_results_say_what_the_results_say(row: str):
    results = json.loads((ROOT / "results" / _RESULTS_FILE.match(row)[1]).read_text(encoding="utf-8"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    named = [name for name in results["scores"] if name == cells[1]]
    name = named[0] if named else "test_2016_flickr" if "test_2016_flickr" in results["scores"] else "held-out"
    scores = results["scores"][name]
    cased, classic = scores["cased"], scores["classic"]["BLEU"]["score"]
    expected = [cased["BLEU"]["score"], classic, cased["chrF"]["score"], cased["TER"]["score"]]
    assert cells[-4:] == [f"{value:.2f}" for value in expected]
    assert f"{results['budget']['steps']:,} steps" in row


def test_every_results_file_has_its_row():
    rows = results_rows("docs/studies/results.md")
    assert [_RESULTS_FILE.match(row)[1] for row in rows] == list(
        dict.fromkeys(_RESULTS_FILE.match(row)[1] for row in rows)
    )
    assert {_RESULTS_FILE.match(row)[1] for row in rows} == {path.name for path in (ROOT / "results").glob("*.json")}


SETTINGS = ROOT / "results" / "multi30k-ende-settings" / "README.md"
ROWS = [line for line in SETTINGS.read_text(encoding="utf-8").splitlines() if ".json)" in line]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.search(r"([^/(]+)\.json\)", row)[1])
def test_the_page_of_settings_says_what_the_results_say(row: str):
    results = json.loads((SETTINGS.parent / re.search(r"\((\S+\.json)\)", row)[1]).read_text(encoding="utf-8"))
    cells = [cell.strip(" *") for cell in row.strip("|").split("|")]
    scores = [
        results["scores"][name][protocol]["BLEU"]["score"]
        for name in ("val", "test_2016_flickr")
        for protocol in ("cased", "classic")
    ]
    minutes = results["budget"]["cpu_minutes"]
    assert cells[1:] == [f"{minutes:.0f}", *(f"{score:.2f}" for score in scores)]


def test_the_page_of_settings_has_a_row_for_each_file():
    for path in SETTINGS.parent.glob("*.json"):
        assert sum(f"({path.name})" in row for row in ROWS) == 1, path.name


def test_the_pages_stay_short():
    """Words that a hand wrote: 20,000 in docs/*.md, 1,500 on the README."""
    for pages, most in ([ROOT / "README.md"], 1500), ((ROOT / "docs").glob("*.md"), 20_000):
        text = "\n".join(page.read_text("utf-8") for page in pages)
        assert len(re.sub(r"<!-- report: .*?-->.*?<!-- /report -->", "", text, flags=re.DOTALL).split()) <= most
