"""Builds docs/ into a site with search, the zoo as a gallery and the API from docstrings: `make site`.

    python studies/site/build.py                    # .cache/site/html/index.html, by zensical
    python studies/site/build.py --with mkdocs      # the same by mkdocs and its theme material

No page is written twice: docs/ is copied as it lies, and its links to files beside it lead to copies of those files.
The page of systems (gallery.py) and those of the API (from `__all__` of each package) are made. What is built is
checked: every link, image and anchor of every page leads somewhere, and nothing is asked of another machine.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = ("", "data", "training", "generation", "evaluation", "hub", "convert", "export")  # of docs/versions.md
MOVED = {"docs/README.md": "index.md", "README.md": "systems.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(\]\(|(?:src|href)=\")([^)\s\"]+)")
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
sys.path.insert(0, str(HERE.parent))  # what gallery.py reads: claims.py, papers.py


def place_of(path: str) -> str:
    """Returns where a file of the repository stands among the pages."""
    if path in MOVED:
        return MOVED[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


class Pages:
    """The pages of the site in a folder, made of docs/ and of what they link to."""

    def __init__(self, folder: Path):
        self.folder, self.done = folder, set[str]()

    def copy(self, path: str) -> None:
        """Copies a file of the repository, and what a page links to with it."""
        if path in self.done:
            return
        self.done.add(path)
        target = self.folder / place_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path == "README.md":  # the gallery stands in its place
            return
        if not path.endswith(".md"):
            shutil.copy(ROOT / path, target)
            return
        parts = FENCE.split((ROOT / path).read_text(encoding="utf-8"))
        parts[::2] = [LINK.sub(lambda found: found[1] + self.link(path, found[2]), part) for part in parts[::2]]
        target.write_text("".join(parts), encoding="utf-8")

    def link(self, page: str, link: str) -> str:
        """Returns a page's link as it is on the site; what it leads to is there then."""
        name, hash_, anchor = link.partition("#")
        if not name or urlsplit(link).scheme:
            return link
        found = os.path.normpath(Path(page).parent / name)
        if (ROOT / found).is_dir():
            if not (ROOT / found / "README.md").is_file():
                return "#"  # a folder without a page
            found += "/README.md"
        self.copy(found)
        anchor = "" if found == "README.md" else anchor
        return os.path.relpath(place_of(found), Path(place_of(page)).parent) + (hash_ + anchor if anchor else "")


def api_pages(folder: Path) -> list[str]:
    """Writes a page for each package with what its `__all__` names; returns the pages."""
    pages = []
    (folder / "api").mkdir(exist_ok=True)
    for package in PACKAGES:
        module = importlib.import_module(f"hf_mlnmt.{package}".rstrip("."))
        names = sorted(name for name in module.__all__ if not isinstance(getattr(module, name), str | tuple | dict))
        lines = [f"# {module.__name__}", "", (module.__doc__ or "").strip().split("\n\n")[0], ""]
        for name in names:
            thing = getattr(module, name)
            home = getattr(thing, "__module__", module.__name__)
            lines += [f"::: {home if home.startswith('hf_mlnmt') else module.__name__}.{name}", ""]
        page = f"api/{package or 'hf_mlnmt'}.md"
        (folder / page).write_text("\n".join(lines), encoding="utf-8")
        pages.append(page)
    return pages


class _Links(HTMLParser):
    """The links, sources and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links, self.anchors, self.asked = list[str](), set[str](), list[str]()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                external = bool(urlsplit(value).scheme or value.startswith("//"))
                loads = name == "src" or (tag == "link" and dict(attributes).get("rel") != "canonical")
                if external and loads and not value.startswith("data:"):
                    self.asked.append(value)
                elif not external:
                    self.links.append(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yields what does not lead anywhere, and what would be asked of another machine, page by page."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path.resolve()] = found = _Links()
        found.feed(path.read_text(encoding="utf-8"))
    for path, found in pages.items():
        page = path.relative_to(site.resolve())
        yield from (f"{page}: asks {address}" for address in found.asked)
        for link in found.links:
            name, _, anchor = link.partition("#")
            name = unquote(name.partition("?")[0])
            target = (path.parent / name).resolve() if name else path
            if name.startswith("/") or page.name == "404.html":
                continue
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{page}: {link} is not there"
            elif anchor and target in pages and unquote(anchor) not in pages[target].anchors and anchor != "__skip":
                yield f"{page}: {link} has no such place"


def build(folder: Path, program: str) -> Path:
    """Builds the site in a folder; returns where its pages are."""
    from gallery import systems_page

    shutil.rmtree(folder, ignore_errors=True)
    pages = Pages(folder / "pages")
    pages.folder.mkdir(parents=True)
    for path in subprocess.check_output(["git", "ls-files", "docs"], cwd=ROOT, text=True).split():
        pages.copy(path)
    pages.copy("CHANGELOG.md")
    for name in ("style.css", "iframe-worker.js"):
        shutil.copy(HERE / name, pages.folder / name)
    for file in (ROOT / "hf_mlnmt/modeling").glob("*.py"):
        pages.copy(str(file.relative_to(ROOT)))
    (pages.folder / "systems.md").write_text(systems_page(), encoding="utf-8")
    settings = (HERE / "mkdocs.yml").read_text(encoding="utf-8")
    places = {
        "API: []": f"API: [{', '.join(api_pages(pages.folder))}]",
        "../..": ROOT,
        "docstrings.py": HERE / "docstrings.py",
    }
    for said, meant in places.items():
        settings = settings.replace(said, str(meant))
    (folder / "mkdocs.yml").write_text(settings, encoding="utf-8")
    options = "-c" if program == "zensical" else "-q"  # zensical: what a changed docstring says is made anew
    subprocess.run([sys.executable, "-m", program, "build", "-f", "mkdocs.yml", options], cwd=folder, check=True)
    return folder / "html"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / ".cache" / "site", help="a folder of its own")
    parser.add_argument("--with", dest="program", choices=("zensical", "mkdocs"), default="zensical")
    options = parser.parse_args()
    site = build(options.output, options.program)
    broken = list(broken_links(site))
    print(*broken, sep="\n")
    print(f"{site / 'index.html'}: {len(list(site.rglob('*.html')))} pages, {len(broken)} links that lead nowhere")
    return bool(broken)


if __name__ == "__main__":
    raise SystemExit(main())
