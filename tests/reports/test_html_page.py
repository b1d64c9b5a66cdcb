"""The page of `hf-mlnmt compare`: one file that fetches nothing; a parser reads it, and Chromium where there is one."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from hf_mlnmt.analysis.outputs import analyse_outputs, sentences_of
from hf_mlnmt.evaluation import compare
from hf_mlnmt.evaluation.comparison import Comparison
from hf_mlnmt.evaluation.curves import curves_study
from hf_mlnmt.evaluation.significance import LEGEND
from hf_mlnmt.reports.comparison_page import detail, html_page

WORDS = ["Hund", "Katze", "Haus", "Mann", "Frau", "Kind", "Ball", "rot", "blau", "alt"]
REFERENCES = [" ".join(WORDS[(n * step) % 10] for step in range(1, 3 + n % 12)) + f" {n}." for n in range(120)]
NASTY = '</script><b>&amp; "x" <!-- \u2028'


def worse(every: int) -> list[str]:
    """Every n-th sentence lacks a word, the others are right."""
    return [line if n % every else " ".join(line.split()[1:]) for n, line in enumerate(REFERENCES)]


SYSTEMS = {"base": worse(3), "new": worse(5), "m <10>": [NASTY, *worse(2)[1:]]}
CURVES = {
    "base": [{"step": 100, "eval_loss": 3.0, "eval_bleu": 10.0}, {"step": 200, "eval_loss": 2.0, "eval_bleu": 20.0}]
}


@pytest.fixture(scope="module")
def made() -> str:
    comparison = compare(SYSTEMS, REFERENCES, metrics=["BLEU", "chrF"], trials=50, bootstrap=50)
    analysis = analyse_outputs(SYSTEMS, [REFERENCES], REFERENCES, [5, 9], bootstrap=20)
    return page_of(comparison, {"test": analysis})


def page_of(comparison: Comparison, analyses: dict) -> str:
    studies = [*(study for analysis in analyses.values() for study in analysis.studies), curves_study(CURVES)]
    return html_page(comparison, title="base and others", studies=studies, sentences=sentences_of(analyses))


class Reader(HTMLParser):
    """Elements, attributes, texts by element; complains about what is left open."""

    VOID = {"meta", "input", "br", "link", "img"}

    def __init__(self, text: str):
        super().__init__()
        self.open, self.seen, self.texts, self.problems = [], [], {}, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def test_a_parser_finds_everything_whole(made):
    found = Reader(made)
    assert not found.problems
    assert not found.open
    drawn = ("path", "clippath", "g")  # of several figures the same ones
    ids = [attributes["id"] for tag, attributes in found.seen if "id" in attributes and tag not in drawn]
    assert len(ids) == len(set(ids))
    assert {"scores", "lengths", "statistics", "differences", "curves", "sentences", "a", "b", "list"} <= set(ids)
    tags = [tag for tag, _ in found.seen]
    assert tags.count("table") == 2 + 4  # overview, scores; a study each
    plots = [attributes for tag, attributes in found.seen if tag == "svg" and attributes.get("role") == "img"]
    assert len(plots) == 4
    assert any(tag == "meta" and attributes.get("name") == "viewport" for tag, attributes in found.seen)


def test_nothing_is_fetched(made):
    found = Reader(made)
    for tag, attributes in found.seen:
        assert tag not in ("link", "img", "iframe", "object", "embed")
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
    assert not re.search(r"@import|url\((?!#)|https?://|fetch\(|XMLHttp", made)


def test_texts_are_data_whatever_is_in_them(made):
    data = json.loads(Reader(made).texts["script"][0])
    assert data["outputs"]["m <10>"][0] == NASTY
    assert data["systems"] == list(SYSTEMS)
    assert len(data["chrf"]["new"]) == 120
    assert made.count("</script>") == 2
    assert "m &lt;10&gt;" in made


def test_the_table_says_what_the_scores_are(made):
    comparison = compare(SYSTEMS, REFERENCES, metrics=["BLEU", "chrF"], trials=50, bootstrap=50)
    row = re.search(r"<tr><td>new</td>(<td class=\"number\">\d\d\.\d\d</td>.*?)</tr>", made)[1]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row)
    expected = [cell for metric in ("BLEU", "chrF") for cell in detail(comparison, "new", "test", "cased", metric)]
    assert cells == expected
    assert html.escape(LEGEND) in made


@pytest.mark.parametrize(("other", "differ"), [("new", True), ("base", False)])
def test_without_sources_and_with_two_systems(other, differ):
    """Systems that do not differ have no study of differences; without translations there are no sentences."""
    pair = {"base": SYSTEMS["base"], "other": SYSTEMS[other]}
    comparison = compare(pair, REFERENCES, metrics=["BLEU"], trials=5, bootstrap=5)
    text = page_of(comparison, {"test": analyse_outputs(pair, [REFERENCES], None, [5])})
    assert 'id="lengths"' not in text
    assert ('id="differences"' in text) is differ
    assert text.count("<table>") == text.count("<thead>")  # the page's script asks each for its head
    assert not Reader(text).problems
    text = html_page(comparison, title="x")
    assert text.endswith("</html>")
    assert 'id="sentences"' not in text


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Clicks and looks, as a reader would; what it sees goes into an attribute of the page.
LOOK = """
<script>
const seen = {};
const table = document.querySelectorAll("#scores table")[1];
const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
const head = (n) => table.tHead.rows[0].cells[n].querySelector("button");
seen.before = names();
head(1).click();
seen.down = names();
seen.sorted = table.tHead.rows[0].cells[1].getAttribute("aria-sort");
head(1).click();
seen.up = names();
const drawn = (one) => one.getBoundingClientRect().height > 20;
seen.plots = [...document.querySelectorAll("svg[role=img]")].filter(drawn).length;
const item = () => document.querySelector("#list li");
const choose = (id, value) => {
  const it = document.getElementById(id);
  it.value = value;
  it.dispatchEvent(new Event("input"));
};
seen.items = document.querySelectorAll("#list li").length;
choose("b", "m <10>");
choose("order", "line");
seen.first = item().textContent;
seen.bold = item().querySelectorAll("b").length;
seen.marks = item().querySelectorAll("mark").length;
document.getElementById("more").click();
seen.more = document.querySelectorAll("#list li").length;
choose("find", "hund 11.");
seen.found = document.getElementById("count").textContent;
const before = getComputedStyle(document.body).backgroundColor;
document.getElementById("theme").click();
seen.theme = before !== getComputedStyle(document.body).backgroundColor;
seen.wide = document.documentElement.scrollWidth <= innerWidth;
document.body.dataset.seen = JSON.stringify(seen);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_sorts_and_draws(made, tmp_path, width):
    path = tmp_path / "page.html"
    path.write_text(made.replace("</body>", LOOK), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    options += [f"--window-size={width},900", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run([CHROMIUM, *options, path.as_uri()], capture_output=True, text=True, timeout=120)
    attribute = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert attribute, done.stderr[-2000:]
    from html import unescape

    seen = json.loads(unescape(attribute[1]))
    assert seen["before"] == ["base", "new", "m <10>"]
    assert seen["down"] == ["new", "base", "m <10>"]
    assert seen["sorted"] == "descending"
    assert seen["up"] == ["m <10>", "base", "new"]
    assert seen["plots"] == 4
    assert (seen["items"], seen["more"]) == (25, 50)
    assert "</script><b>" in seen["first"]
    assert seen["bold"] == 0
    assert seen["marks"] > 0
    assert re.fullmatch(r"\d+ of \d+ sentences", seen["found"])
    assert not seen["found"].endswith("of 120 sentences")
    assert seen["theme"]
    assert seen["wide"]  # only tables scroll sideways


def test_several_test_sets_stand_one_behind_the_other():
    one = analyse_outputs(SYSTEMS, [REFERENCES], REFERENCES, [5, 9], bootstrap=0)
    data = sentences_of({"test": one, "other": one})
    assert len(data["reference"]) == len(data["source"]) == len(data["outputs"]["new"]) == len(data["line"]) == 240
    assert (data["line"][0], data["line"][120]) == ("line 1, test", "line 1, other")
