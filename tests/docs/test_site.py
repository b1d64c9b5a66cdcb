"""The site of docs/: what pages link to is there, docstrings have sections, no link of the built site breaks."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "studies" / "site"


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


def test_sections_of_docstrings():
    pytest.importorskip("griffe", reason="needs the extra site")
    as_sections = loaded("docstrings").as_sections
    assert as_sections("Reads <file>. Twice.\n\nRaises: UserError for\n    a bad one.") == (
        "Reads `<file>`. Twice.\n\n\nRaises:\n    UserError: for a bad one.\n"
    )


def test_the_site_is_built_without_a_broken_link(tmp_path):
    pytest.importorskip("zensical", reason="needs the extra site")
    build = loaded("build")
    site = build.build(tmp_path / "site", "zensical")
    assert not list(build.broken_links(site))
    api = (site / "api" / "generation.html").read_text(encoding="utf-8")
    assert "TranslationPipeline" in api
    assert "option(" not in api
