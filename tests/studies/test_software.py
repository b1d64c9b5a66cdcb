"""The corpus out of free software's translations: every kind of package on a few lines, and no network."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import re
import shutil
import zipfile
from collections import Counter
from types import SimpleNamespace

import polib
import pytest
import torch
from software import __main__ as command
from software import clean, packages, readers, sets, student

from hf_mlnmt import UserError
from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.filters import FilterReport
from hf_mlnmt.data.subwords import SPECIAL_TOKENS
from hf_mlnmt.modeling import TransformerConfig, TransformerForConditionalGeneration
from hf_mlnmt.recipe import read_recipe


def read(kind, english, translated):
    """The pairs of members, without their keys, and what was told."""
    told: list[str] = []
    pairs = readers.KINDS[kind](english, translated, told.append)
    return [(pair.source, pair.target) for pair in pairs], told


def catalogue(compiled):
    entries = polib.POFile()
    entries.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    entries.append(polib.POEntry(msgid="_Open", msgstr="Ö_ffnen", msgctxt="menu"))
    plural = {0: "%d Datei", 1: "%d Dateien"}
    entries.append(polib.POEntry(msgid="%d file", msgid_plural="%d files", msgstr_plural=plural))
    entries.append(polib.POEntry(msgid="Close", msgstr="Zu", flags=[] if compiled else ["fuzzy"]))
    return entries.to_binary() if compiled else str(entries).encode()


def pack(strings):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in strings.items():
            archive.writestr(name, text)
    return file.getvalue()


def test_catalogues():
    expected = [("_Open", "Ö_ffnen"), ("%d file", "%d Datei"), ("%d files", "%d Dateien")]
    assert read("catalogues", {}, {"a": catalogue(compiled=False)}) == (expected, [])
    pairs, told = read("catalogues", {}, {"a": catalogue(compiled=True), "b": b"\xde\x12\x04\x95\0\0"})
    assert sorted(pairs) == sorted([*expected, ("Close", "Zu")])
    assert [text.split(" (")[0] for text in told] == ["b: no catalogue that can be read"]


BROKEN = [b"", b"\xff\xfe\x00", b"<a", b"[1", b"PK\x03\x04", b"BZh9", gzip.compress(b"x")[:-4], b"\x1f\x8b\x08\x00"]
CASES = [
    (
        "ids",
        b'<p id="par_id1">Save <em>all</em>.</p><h1 id="hd_id2">Print</h1><p id="other">x</p><p id="par_id4">y</p>',
        b'<h1 id="hd_id2">Drucken</h1><p id="par_id1">Alles\n <b>speichern</b>.</p><p id="other">z</p>',
        [("Save all.", "Alles speichern."), ("Print", "Drucken")],
    ),
    (
        "pages",
        b"<h1>Files &amp; more</h1><ul><li>Type <code>ls</code><br>here</li><pre>$ ls</pre><li>End</ul>",
        b"<h1>Dateien &amp; mehr</h1><ul><li>Tippe <code>ls</code> hier</li><pre>$ ls</pre><li>Ende</ul>",
        [("Files & more", "Dateien & mehr"), ("Type ls here", "Tippe ls hier"), ("", ""), ("End", "Ende")],
    ),
    ("kde", bz2.compress(b"<p>Edit</p>"), bz2.compress(b"<p>Bearbeiten</p>"), [("Edit", "Bearbeiten")]),
    (
        "mallard",
        b'<page xmlns="m"><info><desc>A window.</desc></info><p>Press <key>A</key>.</p><code>x</code></page>',
        b'<page xmlns="m"><info><desc>Ein Fenster.</desc></info><p><key>A</key> dr\xc3\xbccken.</p></page>',
        [("A window.", "Ein Fenster."), ("Press A.", "A drücken.")],
    ),
    (
        "manuals",
        gzip.compress(
            b'.\\" no\n.TH LS 1\n.SH NAME\nls \\- list\n.TP\n\\fB\\-a\\fR\nall,\n.BR too (1).\n.nf\n$ ls\n.fi\n.PP\n'
            b"\\(bu\\c\nOne"
        ),
        gzip.compress(b'.TH LS 1\n.SH "BEZEICHNUNG"\nls \\- zeigen\n.TP\n.B \\-a\nalle\n.nf\n$ x\n.fi\n.PP\nEins'),
        [
            *(("LS(1)",) * 2, ("General Commands Manual",) * 2, ("LS(1)",) * 2, ("NAME", "BEZEICHNUNG")),
            *(("ls - list", "ls - zeigen"), ("-a", "-a"), ("all, too(1).", "alle"), ("", ""), ("One", "Eins")),
        ],
    ),
    (
        "messages",
        b'{"@metadata": {"authors": ["A"]}, "save": "Save $1", "a": {"b": "Deep"}, "only": "x"}',
        b'{"save": "$1 speichern", "a": {"b": "Tief"}}',
        [("Save $1", "$1 speichern"), ("Deep", "Tief")],
    ),
    (
        "bundles",
        pack(
            {
                "localization/en-GB/a.ftl": "# c\nopen = Open { $n }\n    .label = Go\n    .accesskey = G\n"
                "many = { $n ->\n    [one] One\n   *[other] All\n  }\nlong =\n    First\n    second\n",
                "chrome/en-GB/locale/en-GB/b.properties": "# c\nsave=Save\\u0021 \\\n  now\nkey=S\n",
                "chrome/en-GB/locale/en-GB/c.dtd": '<!ENTITY x.label "Cut &amp; paste">',
            }
        ),
        pack(
            {
                "localization/de/a.ftl": "open = { $n } öffnen\n    .label = Los\nlong = Erst\n",
                "chrome/de/locale/de/b.properties": "save = Speichern! jetzt\nkey = P\n",
                "chrome/de/locale/de/c.dtd": "<!ENTITY x.label 'Umzug'>",
            }
        ),
        [
            *(("Open { $n }", "{ $n } öffnen"), ("Go", "Los"), ("First second", "Erst")),
            *(("Save! now", "Speichern! jetzt"), ("Cut & paste", "Umzug")),
        ],
    ),
    (
        "descriptions",
        b"Package: a\nDescription-md5: 1\nDescription-en: Game\n One\n line.\n .\n  * an item\n"
        b"\nPackage: b\nDescription-md5: 2\nDescription-en: Tool\n Text.\n",
        b"Package: a\nDescription-md5: 1\nDescription-de: Spiel\n Eine Zeile.\n .\n  * ein\n    Punkt\n"
        b"\nPackage: b\nDescription-md5: 2\nDescription-de: Werkzeug\n A.\n .\n B.\n",
        [("Game", "Spiel"), ("One line.", "Eine Zeile."), ("an item", "ein Punkt"), ("Tool", "Werkzeug")],
    ),
]
MANDOC = pytest.mark.skipif(not shutil.which("mandoc"), reason="needs mandoc, Debian's package of that name")
KINDS = [pytest.param(*case, id=case[0], marks=MANDOC if case[0] == "manuals" else ()) for case in CASES]


@pytest.mark.parametrize(("kind", "english", "translated", "expected"), KINDS)
def test_kinds(kind, english, translated, expected):
    others = ({}, {}) if kind == "descriptions" else ({"only": english}, {"other": translated})
    pairs, _ = read(kind, {"here": english, **others[0]}, {"here": translated, **others[1]})
    assert [tuple(" ".join(side.split()) for side in pair) for pair in pairs] == expected


def test_broken_descriptions_are_read_over():
    record = "Package: {}\nDescription-md5: {}\nDescription-en: {}"
    own, other = (
        "\n\n".join(record.format(name, name, f"{title} {name}") for name in "ab").encode()
        for title in ("Game", "Spiel")
    )
    for broken in (*BROKEN, b"\xff"):
        pairs, _ = read("descriptions", {"x": broken + b"\n\n" + own}, {"x": broken + b"\n\n" + other})
        assert pairs == [("Game a", "Spiel a"), ("Game b", "Spiel b")]


def test_pages_that_differ_are_aligned_in_runs():
    """What is as long as a run is taken; what stands alone, or in a page that cannot be read, is not."""
    run = "".join(f"<dt>{n}</dt><dd>{n}</dd>" for n in "abcd")
    pairs, told = read(
        "pages", {"x": f"<p>new</p>{run}<h1>e</h1><p>g".encode()}, {"x": f"{run}<h2>f</h2><p>f".encode()}
    )
    assert pairs == [(n, n) for n in "aabbccdd"]
    assert told == ["0 pages have the same blocks, 1 in part, 0 cannot be read"]
    assert read("mallard", {"x": b"<p>"}, {"x": b"<p>a</p>"}) == (
        [],
        ["0 pages have the same blocks, 0 in part, 1 cannot be read"],
    )


@pytest.mark.parametrize(("kind", "english", "translated", "expected"), KINDS[:-1])  # descriptions have their own
def test_what_is_broken_is_told(kind, english, translated, expected):
    """A whole member beside broken ones is read; no kind ends at one, and none is silent."""
    told: list[str] = []
    for broken in BROKEN:
        pairs = readers.KINDS[kind]({"a": broken, "b": english}, {"a": broken, "b": translated}, told.append)
        assert len([pair for pair in pairs if pair.key.startswith("b")]) == len(expected)
    assert told or kind == "ids"  # anything is HTML


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a word", "ein Wort", None),
        ("", "ein Wort", "empty side"),
        ("a word", "\u200b\x0c", "empty side"),
        ("Linux", "Linux", "target is a copy of the source"),
        ("12 %", "12 v. H.", "no words"),
        ("a word", "ein W\ufffdrt", "characters that could not be decoded"),
        ("word " * 101, "Wort " * 101, "longer than 100 words"),
        ("a word", "ein sehr langer Satz, der nicht dazu passt", "lengths too different"),
        ("open %s", "%d öffnen", "other placeholders"),
        ("open %1", "öffnen", "other placeholders"),
        ("%s of %d", "%2$d, %1$s", None),
        ("open {name}", "{name} öffnen", None),
    ],
)
def test_what_is_left_out(source, target, reason):
    report = FilterReport()
    kept = list(clean.kept([clean.Pair("k", source, target)] * 2, report))
    assert len(kept) == (reason is None)
    assert dict(report.dropped) == ({reason: 2} if reason else {"seen before": 1})


def test_cleaned_texts_are_lines_that_a_training_takes(tmp_path):
    raw = "a\x00b\x1bc\x85d\u2028e\tf\r\ng\x0bh\ufeff\u00ad\ue000 e\u0301"
    assert clean.cleaned(raw) == "abc d e f g h é"
    files = {side: f"{side}.txt" for side in ("source", "target")}
    for name in files.values():
        (tmp_path / name).write_text(clean.cleaned(raw) + "\n", "utf-8")
    assert len(list(read_pairs(CorpusSpec(files=files), tmp_path))) == 1
    assert clean.paragraphs(clean.Pair("k", "a\n\nb", "c\n \nd")) == [("k", "a", "c"), ("k", "b", "d")]
    assert clean.paragraphs(clean.Pair("k", "a\n\nb", "c")) == [("k", "a\n\nb", "c")]


def row(project, number, source=None, key="k"):
    return sets.Row(project, project, key, source or f"a text {project} {number}", f"ein Text {project} {number}")


def test_sets_are_divided_by_project(monkeypatch):
    rows = [row(name, number) for name in ("gnucash", "wesnoth", "git", "kmymoney") for number in range(9)]
    rows += [row("debian-descriptions", number, key=f"{number:04}-pkg") for number in range(200)]
    rows += [row("gnucash", 99, "Yes"), row("git", 99, "Yes")]
    rows += [sets.Row(project, project, "k", "the same text", "derselbe Text") for project in ("git", "wesnoth")]
    monkeypatch.setattr(sets, "TEST_SIZE", 10)
    assert "the same text" in {one.source for one in sets.divide(rows)[0]["test.stories"]}
    assert "the same text" not in {one.source for one in sets.divide(rows)[0]["train"]}
    monkeypatch.setattr(sets, "TEST_SIZE", 3)
    parts, _ = sets.divide(rows)
    projects = {name: {one.project for one in part} for name, part in parts.items()}
    assert projects["train"] == {"git", "debian-descriptions"}
    assert projects["test.interface"] == projects["memory.interface"] == {"gnucash"}
    assert len(parts["test.interface"]) == 3 and len(parts["memory.interface"]) == 7  # noqa: PT018
    letters = {
        name: {one.key[:4] for one in part if one.project == "debian-descriptions"} for name, part in parts.items()
    }
    assert not letters["train"] & (letters["test.descriptions"] | letters["dev"] | letters["memory.descriptions"])
    assert [one.source for one in parts["test.short"]] == ["Yes"]
    tested = {one.source for one in parts["test.interface"] + parts["dev"]}
    assert "Yes" in {one.source for one in parts["train"]} - tested
    doubled, changes = sets.divide([*rows, *(row("git", 50 + n, text) for n, text in enumerate(sorted(tested)))])
    assert [one.source for one in doubled["train"]] == [one.source for one in parts["train"]]
    assert changes["left out: stands in a test or development set"] == len(tested)
    assert sets.divide(rows[::-1]) == (parts, _)
    labels = [("_Open", "Ö_ffnen"), ("~File", "ファイル(~F)"), ("Save &amp; &go", "&Los &amp; so"), ("Q & A", "F & A")]
    labels += [("read file_name", "lies file_name"), ("a_b_c", "d_e_f"), ("Go", "_Los")]
    bare = {("Open", "Öffnen"), ("File", "ファイル"), ("Save &amp; go", "Los &amp; so")}
    marked = [row("git", 1)._replace(source=source, target=target) for source, target in labels]
    new = {one[-2:] for one in sets.divide([*rows, *marked])[0]["train"]} - {one[-2:] for one in parts["train"]}
    assert new == bare | {*labels}


def test_near_ones_are_found():
    training = ["Open the file with that name in a new window now", "a b c", "Delete all files"]
    asked = ["Open the file with this name in a new window now", "delete all files", "open it", "d e f"]
    assert sets.near({"a": asked}, training) == {"a": [0.9, 0.99, 0.0, 0.0]}


def test_the_list():
    entries = packages.read_list()
    assert len({entry.label("de") for entry in entries}) == len(entries)
    assert {entry.kind for entry in entries} == set(readers.KINDS)
    assert {*sets.DEV, *(name for names in sets.TESTS.values() for name in names)} <= {
        entry.project for entry in entries
    }
    for entry in entries:
        for language in ("de", "pt_BR"):
            assert entry.sides(language)
    assert packages.Entry("a", "catalogues", "a", "MIT").sides("cs")[1][1].fullmatch("a/cs_CZ.po")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{package: python3-django, kind: catalogues, project: d, licence: BSD}", "Django's texts are kept"),
        ("{package: a, kind: catalogues, project: a, licence: GPL-2}", "GPL-2 cannot be joined with GPL-3"),
        ("{package: a, kind: catalog, project: a, licence: MIT}", "unknown kind 'catalog'.*did you mean 'catalogues'"),
        ("{package: a, kind: pages, project: a, licence: MIT}", "places are two patterns"),
        ("{package: a, kind: catalogues, project: a}", "licence.*An entry has package, kind, project"),
        ("{package: a}", "An entry has package, kind, project and licence"),
    ],
)
def test_a_wrong_list_is_named(tmp_path, line, message):
    (tmp_path / "list.yaml").write_text(f"- {line}\n")
    with pytest.raises(UserError, match=message):
        packages.read_list(tmp_path / "list.yaml")


@pytest.fixture
def shelf(monkeypatch, tmp_path):
    """The command's folders, with three packages of which one is translated, and apt as a dictionary."""
    monkeypatch.chdir(tmp_path)
    entries = [packages.Entry(name, "messages", name, "MIT") for name in ("git", "kmymoney", "gone")]
    text = {name: {f"k{n}": f"a {name} text {n}" for n in range(5)} for name in ("git", "kmymoney")}
    reads: list[str] = []

    def read_sides(entry, language, cache):
        reads.append(entry.project)
        if entry.project not in text:
            raise packages.Missing("apt knows no package gone")
        translated = {key: value.replace("text", "Text") for key, value in text[entry.project].items()}
        return [{"a": json.dumps(side).encode()} for side in (text[entry.project], translated)], []

    monkeypatch.setattr(packages, "read_list", lambda: entries)
    monkeypatch.setattr(packages, "read_sides", read_sides)
    return reads


def test_the_command_writes_once_and_goes_on(shelf, tmp_path, capsys):
    assert command.main(["de", "-o", "out"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"git \(messages\): 5 pairs, 20 words\n", printed)
    assert "gone (messages): left out: apt knows no package gone" in printed
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["sets"]["train"]["pairs"] == manifest["sets"]["dev"]["pairs"] == 5
    assert manifest["licences"] == {"MIT": 10}
    assert list(manifest["missing"]) == ["gone (messages)"]
    recipe = read_recipe(tmp_path / "out" / "recipe.yaml")
    assert (recipe.data.train["files"]["target"], list(recipe.data.test)) == ("train.de", ["dev"])
    assert list(command.recipe_of("fr", ["train", "dev", "test.short"])["data"]["test"]) == ["short"]
    lines = {
        ending: (tmp_path / "out" / f"train.{ending}").read_text().splitlines() for ending in ("en", "de", "jsonl")
    }
    assert sorted(lines["de"])[0] == "a git Text 0"
    assert json.loads(lines["jsonl"][0])["project"] == "git"
    assert "test.stories: no pairs, so no files" in printed
    assert not (tmp_path / "out" / "test.stories.en").exists()
    assert shelf == ["git", "kmymoney", "gone"]
    assert command.main(["de", "-o", "out"]) == 0
    assert shelf[3:] == ["gone"], "what was read before is read from the cache"


def test_mistakes_are_named(shelf, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine").mkdir()
    assert command.main(["de", "-o", "mine"]) == 1
    assert "mine: holds something else" in capsys.readouterr().err
    monkeypatch.setattr(packages, "read_list", list)
    for code in ("en", "../de", "DE", ""):
        assert command.main([code, "-o", "out"]) == 1
        assert "is no code of a language" in capsys.readouterr().err
    assert command.main(["xx", "-o", "out"]) == 1
    assert "xx: the packages have no pairs for train and dev" in capsys.readouterr().err
    monkeypatch.setattr(packages, "run", lambda *words, folder=None: b"")
    with pytest.raises(packages.Missing, match="apt knows no package none"):
        packages.fetch("none", tmp_path)
    monkeypatch.undo()
    with pytest.raises(UserError, match="no-such-program: no such program here"):
        packages.run("no-such-program")
    with pytest.raises(UserError, match="is no whole package"):
        list(packages.members(tmp_path / "none.deb", re.compile("x")))


def test_a_student_begins_with_its_teacher_s_function():
    """They differ by deviations and rates of sines from the second word on, and by the SSRU: there is one word."""
    torch.manual_seed(1)
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    teacher = TransformerForConditionalGeneration(TransformerConfig(vocab_size=9, norm_position="pre", **sizes)).eval()
    with torch.no_grad():
        for name, values in teacher.named_parameters():
            values += torch.randn_like(values) * (0.1 if values.dim() == 1 or "proj" in name else 0)
            if name.endswith("qkv_proj.weight") and "decoder" in name:
                values[32:] = 0  # what self-attention hands on is nothing, and so is what SSRU does
        rows = teacher.model.decoder.embed_tokens.weight
        rows[3] = 0  # as the student's decoder begins, whatever the teacher's row is
        numbers = dict.fromkeys(("encode_source", "encode_target"), lambda texts: [[int(texts[0])]])
        scales = student.deviations(teacher, SimpleNamespace(**numbers), [["7"], ["5"]])
        expected = teacher(input_ids=torch.tensor([[7]]), labels=torch.tensor([[5]])).logits
        rows[3] = 1
        made = student.begin(teacher, scales, [0, 1, 2, 3, 5, 7]).eval()
        found = made(input_ids=torch.tensor([[5]]), labels=torch.tensor([[4]])).logits
    torch.testing.assert_close(found, expected[..., [0, 1, 2, 3, 5, 7]], atol=1e-4, rtol=1e-4)


def test_a_student_s_subwords_are_its_teacher_s():
    steps = [{"type": "NFC"}, {"content": "\U000f0001"}, {"pattern": {"Regex": "[\\x{F0000}-\\x{FFFFD}]"}}]
    names = [("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"), ("decoder", "decoders")]
    tokens = [*SPECIAL_TOKENS, "<0x00>", "a", "\u2581ab", "\u2581abc", "\U000f0001"]
    model = {"vocab": {token: number for number, token in enumerate(tokens)}}
    teacher = {"model": model, **{key: {name: steps} for key, name in names}}
    made = student.unigram(teacher, Counter({1: 2, 7: 6, 9: 4}))
    kept = [*((token, 0.0) for token in SPECIAL_TOKENS), ("<0x00>", -20.0), ("a", -20.0), ("\u2581ab", -0.69315)]
    assert list(map(tuple, made["model"]["vocab"])) == kept
    assert made["normalizer"]["normalizers"] == steps[:1]
