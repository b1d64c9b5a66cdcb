"""The site of docs/: links lead somewhere, docstrings have sections, each family its drawing, each system its row."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from hf_mlnmt.zoo.systems import SYSTEMS, architectures

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "studies" / "site"
sys.path[:0] = [str(SITE), str(SITE.parent)]  # of programs that import each other, as in tests/studies


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_a_page_links_to_is_copied(tmp_path):
    build = loaded("build")
    pages = build.Pages(tmp_path)
    pages.copy("docs/studies/speed.md")
    text = (tmp_path / "studies" / "speed.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((\.\./repository/[^)#]+)", text)
    assert any(link.endswith(".json") for link in links)
    for link in links:
        assert (tmp_path / "studies" / link).resolve().is_file(), link
    assert "](../../" not in text


def test_the_navigation_has_every_page():
    settings = (ROOT / "studies" / "site" / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert pages <= set(re.findall(r"[\w/-]+\.md", settings.partition("\nnav:")[2]))


def test_links_that_lead_nowhere_are_seen(tmp_path):
    build = loaded("build")
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="b.html">b</a><a href="#here">h</a><a href="#there">t</a></p>'
    )
    (tmp_path / "c.html").write_text(
        '<script src="https://example.org/x.js"></script><a href="https://example.org">e</a>'
    )
    assert list(build.broken_links(tmp_path)) == [
        "a.html: b.html is not there",
        "a.html: #there has no such place",
        "c.html: asks https://example.org/x.js",
    ]


@pytest.mark.parametrize(
    ("docstring", "page"),
    [
        (
            "Reads <file>. Twice.\n\nRaises: UserError for\n    a bad one.",
            "Reads `<file>`. Twice.\n\n\nRaises:\n    UserError: for a bad one.\n",
        ),
        ("Both end with </s>.", "Both end with `</s>`."),
        ("It is [Q^1 .. Q^n]\n[K^1 .. K^n]^T.", "It is `[Q^1 .. Q^n]`\n`[K^1 .. K^n]`^T."),
        ("(1) a = b\n(2) c = d\nand (3) e", "(1) a = b  \n(2) c = d\nand (3) e"),
        ("Adds.\n\n>>> 1 + 1\n2\n\nEnd.", "Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nEnd."),
        ("The loss:\n    a + b\n\nArgs:\n    a: it.", "The loss:\n```text\na + b\n```\n\nArgs:\n    a: it."),
    ],
)
def test_docstrings_have_sections_and_nothing_that_markdown_would_swallow(docstring, page):
    pytest.importorskip("griffe", reason="needs the extra site")
    assert loaded("docstrings").as_sections(docstring) == page


def test_each_family_has_a_drawing_that_fits():
    families = loaded("drawings").FAMILIES
    assert families.keys() == {architecture.module for architecture in architectures()}
    for name, drawn in families.items():
        drawing = ElementTree.fromstring(drawn().svg(alone=True))
        _, _, width, height = map(float, drawing.attrib["viewBox"].split())
        assert width <= 560
        boxes = [
            {key: float(box.attrib[key]) for key in ("x", "y", "width", "height")} for box in _all(drawing, "rect")
        ]
        assert all(box["x"] > 0 and box["x"] + box["width"] < width for box in boxes), name
        assert all(box["y"] > 0 and box["y"] + box["height"] < height for box in boxes), name
        assert all(float(text.attrib["y"]) < height - 4 for text in _all(drawing, "text")), name


def _all(drawing: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return list(drawing.iter(f"{{http://www.w3.org/2000/svg}}{tag}"))


def test_the_gallery_has_every_system_with_its_facts():
    gallery = loaded("gallery")
    page = gallery.systems_page()
    rows = {row[0]: row for row in re.findall(r"^\| `(\S+)`\{ #\S+ \} \| (.*) \|$", page, re.M)}
    assert SYSTEMS.keys() <= rows.keys()
    assert rows["m-10"][1].startswith(f"{SYSTEMS['m-10'].clause} | (3.8), (3.11) | 91.9 | 29.08 (+0.71) | ")
    here = (ROOT / "results/multi30k-ende-short/README.md").read_text(encoding="utf-8")
    score, distance, answer = re.search(r"([\d.]+ ± [\d.]+) \(([-+.\d]+)\), ([a-z ]+)$", rows["full-dc"][1]).groups()
    assert f"{score} ({distance}" in here
    assert re.search(rf"`full-dc` better than `transformer` .*{distance} .*\| {answer} \|", here)
    assert "Vázquez, Raganato, Creutz and Tiedemann 2020: *A Systematic Study" in page


def test_the_site_is_built_without_a_broken_link(tmp_path):
    pytest.importorskip("zensical", reason="needs the extra site")
    build = loaded("build")
    site = build.build(tmp_path / "site", "zensical")
    assert not list(build.broken_links(site))
    api = (site / "api" / "generation.html").read_text(encoding="utf-8")
    assert "TranslationPipeline" in api
    assert "option(" not in api
    systems = (site / "systems.html").read_text(encoding="utf-8")
    assert systems.count('class="drawing"') == len(loaded("drawings").FAMILIES)
    assert (site / "search.js").is_file()  # what the search reads from file://
    assert 'src="../iframe-worker.js"' in api
