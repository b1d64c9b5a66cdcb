"""What translators have, as units: memories, catalogues, glossaries, archives; what is left out, what is refused."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import polib
import pytest
from lxml import etree

from hf_mlnmt import UserError
from hf_mlnmt.data import CorpusSpec, FilterReport, read_pairs
from hf_mlnmt.data.bilingual import BILINGUAL, UnitReport, WhichLanguages, chosen, read_terms, read_units

HEAD = '<tmx version="1.4"><header creationtool="x" srclang="{}"/><body>'
END = "</body></tmx>"
XLF = 'version="1.2"><file original="a" datatype="x" source-language="en-US" target-language="de"><body>'
XLF_END = "</body></file></xliff>"
PO = """msgid ""
msgstr ""
"Language: {}\\n"
"PO-Revision-Date: 2024-01-15 10:15+0100\\n"
"Plural-Forms: {}\\n"
"Content-Type: text/plain; charset=UTF-8\\n"

"""


def tu(**texts: str) -> str:
    """A unit of TMX; a language's code has _ for -."""
    tuvs = (f'<tuv xml:lang="{code.replace("_", "-")}"><seg>{text}</seg></tuv>' for code, text in texts.items())
    return f"<tu>{''.join(tuvs)}</tu>"


def tmx(*units: str, original: str = "en") -> str:
    return HEAD.format(original) + "".join(units) + END


def xliff(*units: str, more: str = "") -> str:
    return f'<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" {more} {XLF}{"".join(units)}{XLF_END}'


def entry(source: str, target: str, flags: str = "") -> str:
    return f'{flags}msgid "{source}"\nmsgstr "{target}"\n\n'


MARKED = '<source>A b. C.</source><seg-source><mrk mtype="seg" mid="1">A <g id="1">b</g>.</mrk> '
MARKED += '<mrk mtype="seg" mid="2">C.</mrk></seg-source><target><g id="2"><mrk mtype="seg" mid="1">Ah be.</mrk></g> '
MARKED += '<mrk mtype="seg" mid="2">Ce.</mrk></target>'
TRADOS = 'xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0"'
SDL = '<sdl:seg-defs><sdl:seg id="1" conf="ApprovedTranslation"/><sdl:seg id="2" conf="Draft"/></sdl:seg-defs>'
LINK = '<bpt i="1">&lt;a title="<sub>{}</sub>"&gt;</bpt>{}<ept i="1">&lt;/a&gt;</ept>'
XLIFF2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.1" version="2.1" srcLang="en" trgLang="de"><file id="f">
<unit id="1"><segment state="reviewed"><source>A <pc id="1">b</pc><ph id="2"/>c</source><target>Ah</target></segment>
<ignorable><source> </source></ignorable><segment state="initial"><source>D</source><target>D</target></segment></unit>
<unit id="2" translate="no"><segment><source>E</source><target>Eh</target></segment></unit></file></xliff>"""
TBX2 = """<martif type="TBX"><text><body><termEntry id="1"><langSet xml:lang="en">
<tig><term>button</term></tig></langSet><langSet xml:lang="de"><tig><term>Taste</term></tig><ntig><termGrp>
<term>Knopf</term>
<termNote type="administrativeStatus">deprecatedTerm-admn-sts</termNote></termGrp></ntig></langSet></termEntry></body>
</text></martif>"""
TBX3 = """<tbx xmlns="urn:iso:std:iso:30042:ed-2" xmlns:min="m" type="TBX-Min"><text><body><conceptEntry id="1">
<langSec xml:lang="en"><termSec><term>button</term></termSec></langSec><langSec xml:lang="de-AT"><termSec>
<term>Taste</term></termSec><termSec><term>Knopf</term><min:administrativeStatus>deprecatedTerm-admn-sts
</min:administrativeStatus></termSec></langSec></conceptEntry></body></text></tbx>"""

# Name, content; source, target, before and after of each unit; what the report says.
READ = {
    "languages": (
        "a.tmx",
        tmx(
            tu(en_US="one", de="eins", fr="un"),
            tu(EN_GB="colour", en="two", de_AT="zwo", de="zwei"),
            tu(en="three", fr="trois"),
            tu(en="four", de=" "),
        ),
        [("one", "eins", None, "two"), ("two", "zwei", "one", "three")],
        "4 units read, with de 3, en 3, fr 2, en-US 1, EN-GB 1, de-AT 1; 2 are pairs; left out: other languages 1, "
        "empty target 1.",
    ),
    "several targets": (
        "a.tmx",
        tmx('<tu><tuv lang="en"><seg>a\n b</seg></tuv><tuv lang="de"><seg>x</seg></tuv><tuv lang="de"><seg>y</seg>'
            '</tuv></tu>', original="de"),
        [("a b", "x", None, None), ("a b", "y", None, None)],
        "1 are pairs. Files that were translated the other way, from de (srclang): 1.",
    ),
    "inline": (
        "a.tmx",
        tmx(
            tu(en=f"Press <hi>a</hi> {LINK.format('Tip', 'key')}<ph/>now<!-- no -->.", de=LINK.format("Rat", "Taste")),
            tu(en="x<it pos='begin'>&lt;b&gt;</it>y<ut>\\b</ut>", de="z"),
        ),
        [("Press a key now.", "Taste", None, "xy"), ("xy", "z", "Press a key now.", None)],
        "Inline markup was dropped from units: 2.",
    ),
    "XLIFF 1.2": (
        "a.xlf",
        xliff(
            '<group><trans-unit id="1" approved="yes"><source>A</source><target>Ah</target><alt-trans>'
            "<source>no</source><target>nein</target></alt-trans></trans-unit></group>",
            '<trans-unit id="2"><source>B</source><target state="needs-review-translation">Be</target></trans-unit>',
            '<trans-unit id="3"><source>C</source><target state="new">C</target></trans-unit>',
            '<trans-unit id="4"><source>D</source></trans-unit>',
            '<group translate="no"><group><trans-unit id="5"><source>E</source><target>E</target></trans-unit></group>',
            '<trans-unit id="6" translate="yes"><source>F</source><target state="signed-off">Ef</target></trans-unit>'
            "</group>",
        ),
        [("A", "Ah", None, "B"), ("F", "Ef", "E", None)],
        '2 are pairs (final 2); left out: untranslated 2, unconfirmed 1, translate="no" 1.',
    ),
    "Trados": (
        "a.sdlxliff",
        xliff(f'<trans-unit id="1">{MARKED}{SDL}</trans-unit>', more=TRADOS),
        [("A b.", "Ah be.", None, "C.")],
        "1 are pairs (reviewed 1); left out: unconfirmed 1.",
    ),
    "memoQ": (
        "a.mqxliff",
        xliff(
            '<trans-unit id="1" mq:status="ManuallyConfirmed"><source>A</source><target>Ah</target></trans-unit>',
            '<trans-unit id="2" mq:status="Pretranslated"><source>B</source><target>Be</target></trans-unit>',
            more='xmlns:mq="MQXliff"',
        ),
        [("A", "Ah", None, "B")],
        "1 are pairs (translated 1); left out: unconfirmed 1.",
    ),
    "Phrase": (
        "a.mxliff",
        xliff(
            '<trans-unit id="1" m:confirmed="1"><source>A</source><target>Ah</target></trans-unit>',
            '<trans-unit id="2" m:confirmed="0"><source>B</source><target>Be</target></trans-unit>',
            more='xmlns:m="http://www.memsource.com/mxlf/2.0"',
        ),
        [("A", "Ah", None, "B")],
        "1 are pairs (translated 1); left out: unconfirmed 1.",
    ),
    "XLIFF 2": (
        "a.xliff",
        XLIFF2,
        [("A b c", "Ah", None, "D")],
        '1 are pairs (reviewed 1); left out: untranslated 1, translate="no" 1.',
    ),
    "PO": (
        "a.po",
        PO.format("de", "nplurals=2; plural=(n != 1);")
        + entry("&File", "&Datei")
        + entry("Open", "Auf", "#, fuzzy\n")
        + 'msgid "one file"\nmsgid_plural "%d files"\nmsgstr[0] "eine"\nmsgstr[1] "%d Dateien"\n\n'
        + entry("a\\r\\nb\vc", "x")
        + entry("none", "")
        + '#~ msgid "old"\n#~ msgstr "alt"\n',
        [
            ("File", "Datei", None, "Open"),
            ("one file", "eine", "Open", "%d files"),
            ("%d files", "%d Dateien", "one file", "a b c"),
            ("a b c", "x", "%d files", "none"),
        ],
        "7 units read, with de 6; 4 are pairs (translated 4); left out: fuzzy 1, untranslated 1, obsolete 1. "
        "Accelerators were taken out of units: 1.",
    ),
    "PO without plural": (
        "locale/de/LC_MESSAGES/a.po",
        PO.format("", "nplurals=1; plural=0;")
        + 'msgid "one"\nmsgid_plural "many"\nmsgstr[0] "viele"\n\n' + entry("_Open", "開く(_O)"),
        [("many", "viele", None, "Open"), ("Open", "開く", "many", None)],
        "2 units read, with de 2; 2 are pairs",
    ),
    "TBX 2": ("a.tbx", TBX2, [("button", "Taste", None, None)], "left out: forbidden 1."),
    "TBX 3": ("a.tbx", TBX3, [("button", "Taste", None, None)], "left out: forbidden 1."),
    "table": ("a.tsv", "a\tb\n\x0be\tf\nc\td\n", [("a", "b", None, None), ("c", "d", None, None)], "character 1"),
}  # fmt: skip


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("case", READ)
def test_units_of_every_format(tmp_path, case):
    """As they are, in UTF-16 where it is XML, and in a zip beside what macOS puts there."""
    name, content, units, said = READ[case]
    path, report = write(tmp_path / name, content), UnitReport()
    found = list(read_units(path, "en", "de", report))
    assert [unit[:4] for unit in found] == units
    assert said in str(report)
    assert all(unit.place.startswith(str(path)) for unit in found)
    assert report.read == report.kept + report.dropped.total()
    if content.startswith("<"):
        coded = write(
            tmp_path / f"16{path.suffix}", ('<?xml version="1.0" encoding="UTF-16"?>' + content).encode("utf-16")
        )
        assert [unit[:4] for unit in read_units(coded, "en", "de")] == units
    with zipfile.ZipFile(tmp_path / "z.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path, name)
        archive.writestr(f"__MACOSX/._{path.name}", b"\0")
        archive.writestr("README", "Read me.")
    assert [unit[:4] for unit in read_units(tmp_path / "z.zip", "en", "de")] == units


def test_dates_states_and_accelerators(tmp_path):
    po = write(tmp_path / "a.po", READ["PO"][1])
    polib.pofile(str(po)).save_as_mofile(str(tmp_path / "a.mo"))
    for path in (po, tmp_path / "a.mo"):
        kept = list(read_units(path, "en", "de", keep_keys=True))
        assert {unit.source: unit.target for unit in kept}["&File"] == "&Datei"
        assert {(unit.changed, unit.state) for unit in kept} == {("2024-01-15T09:15:00Z", "translated")}
    dated = tu(en="a", de="b").replace("<tu>", '<tu changedate="20240131T101500Z">')
    assert next(read_units(write(tmp_path / "a.tmx", tmx(dated)), "en", "de")).changed == "2024-01-31T10:15:00Z"


def test_a_folder_and_what_opus_gives(tmp_path):
    with zipfile.ZipFile(tmp_path / "Books.de-en.zip", "w") as archive:
        archive.writestr("Books.de-en.de", "eins\nzwei\n\vdrei\n")
        archive.writestr("Books.de-en.en", "one\ntwo\nthree\n")
        for other in ("README", "LICENSE", "Books.de-en.ids", "__MACOSX/._Books.de-en.en"):
            archive.writestr(other, "x\n")
    where = f"{tmp_path}/Books.de-en.zip/Books.de-en"
    found = list(read_units(tmp_path / "Books.de-en.zip", "en", "de", report := UnitReport()))
    assert [(unit.source, unit.target, unit.place) for unit in found] == [
        ("one", "eins", f"{where}.en, pair 1"),
        ("two", "zwei", f"{where}.en, pair 2"),
    ]
    assert report.dropped == {"control character": 1}
    with pytest.raises(
        UserError, match=r"Books\.de-en\.de, line 3: control character .*--bad-lines drop.*bad_lines: drop"
    ):
        list(read_pairs(CorpusSpec(path="Books.de-en.zip", languages={"source": "en", "target": "de"}), tmp_path))
    folder = tmp_path / "folder"
    for name, (ending, content, *_) in READ.items():
        write(folder / name / ending, content)
    write(folder / "of.others.po", PO.format("fr", "") + entry("one", "un"))
    write(folder / "._a.tmx", b"\0")
    spec = CorpusSpec(path="folder", languages={"source": "en", "target": "de"}, bad_lines="drop")
    pairs = list(read_pairs(spec, tmp_path, dropped := FilterReport()))
    assert sorted(pairs) == sorted(unit[:2] for _, _, units, _ in READ.values() for unit in units)
    assert (dropped.dropped["fuzzy"], dropped.dropped["other languages"]) == (1, 2)
    assert set(spec.local_files(tmp_path)) == {path for path in folder.rglob("*") if path.is_file()}
    turned = CorpusSpec(path="folder/PO/a.po", languages={"source": "de", "target": "en"}, reverse=True)
    assert list(read_pairs(turned, tmp_path)) == [(target, source) for source, target, *_ in READ["PO"][2]]


BOMB = '<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in zip("abcdefghi", "bcdefghij")
)
SIXTY = tmx(tu(**{f"q{a}{b}": "x" for a in "abcdef" for b in "abcdefghij"}))
BAD = {
    "cut off": ("a.tmx", tmx("\n", tu(en="a", de="b"), "\n", tu(en="c", de="d"))[:-40], r"a\.tmx, line 3: broken XML"),
    "no XML": ("a.tmx", "nothing", r"a\.tmx, line 1: broken XML"),
    "another root": ("a.tmx", "<html><p/></html>", "its root is <html>, not <tmx>"),
    "bomb": ("a.tmx", BOMB + "]>" + tmx(tu(en="&j;", de="b")), "declares the entity a; .* Write them out"),
    "bomb in an attribute": ("a.tmx", BOMB + "]>" + tmx().replace("1.4", "&j;"), "line 1: broken XML.*amplification"),
    "another file": (
        "a.xlf",
        '<!DOCTYPE xliff [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + xliff("<note>&a;</note>"),
        "declares the entity a",
    ),
    "no such languages": ("a.tmx", tmx(tu(fr="a", it="b")), r"no unit of en and de .* with fr 1, it 1; .*--from and"),
    "sixty languages": ("a.tmx", SIXTY, r"with qaa 1, .* and 48 more; 0 are pairs"),
    "empty targets": ("a.tmx", tmx(tu(en="a", de="")), r"0 are pairs; left out: empty target 1\. "),
    "the other way, XLIFF": (
        "a.xlf",
        xliff().replace('"en-US"', '"de"').replace('"de">', '"en">'),
        r"its translations are en, and en to de .* Exchange --from and --to, .*reverse: true",
    ),
    "the other way, PO": ("a.po", PO.format("en_GB", "") + entry("a", "b"), "its translations are en_GB, and en to de"),
    "broken PO": ("a.po", entry("a", "b") + 'msgid "c\n', r"a\.po, line 4: broken, or no messages"),
    "broken MO": ("a.mo", b"\xde\x12\x04\x95\0\0", r"a\.mo: broken, or no messages"),
    "no such format": ("a.txt", "x", r"a\.txt: expected \.tmx, "),
    "broken zip": ("a.zip", b"PK\x03\x04", "cannot be read as a zip"),
    "a folder of others": ("folder/a.txt", "x", r"no corpus of en and de, but a\.txt\. Expected are \.tmx.*NAME\.de"),
    "no plural": ("a.po", PO.format("de", "nplurals=2; plural=x;") + entry("a", "b"), r"a\.po: its header's Plural-F"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_one_message_for_each_fault(tmp_path, case):
    name, content, message = BAD[case]
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        list(read_units(path.parent if "/" in name else path, "en", "de"))


def test_a_file_of_another_language_is_no_fault_beside_others(tmp_path):
    write(tmp_path / "a.tmx", tmx(tu(fr="a", it="b")))
    write(tmp_path / "en.po", PO.format("en", "") + entry("a", "b"))
    write(tmp_path / "b.tmx", tmx(tu(en="a", de="b")))
    assert [unit[:2] for unit in read_units(tmp_path, "en", "de")] == [("a", "b")]


def test_what_is_read_is_dropped(tmp_path, monkeypatch):
    """A tree that does not grow with the file, also where every unit has a group around it."""
    trees = []
    parse = etree.iterparse
    monkeypatch.setattr(etree, "iterparse", lambda *given, **how: trees.append(parse(*given, **how)) or trees[-1])
    unit = "<group><trans-unit id='1'><source>a</source><target>b</target></trans-unit></group>"
    for path in (
        write(tmp_path / "a.tmx", tmx(*[tu(en="a", de="b")] * 3000)),
        write(tmp_path / "a.xlf", xliff(*[unit] * 3000)),
    ):
        sizes = {
            sum(1 for _ in trees[-1].root.iter()) for _ in read_units(path, "en", "de") if trees[-1].root is not None
        }
        assert max(sizes, default=0) < 20
        assert sum(1 for _ in trees[-1].root.iter()) < 20


def test_languages_are_chosen_by_region():
    assert chosen(("en-GB", "en-US", "en"), "en_us") == "en-US"
    assert chosen(("de", "en-GB", "eng"), "en") == "en-GB"
    assert chosen(("", "de"), "en") is None


GLOSSARY = "en,de,fr,forbidden\nbutton,Taste,bouton,Knopf\nopen,offen,,\nfile,Feile,,x\n"


@pytest.mark.parametrize(
    ("name", "content", "languages", "terms"),
    [
        ("a.tbx", TBX2, ("en", "de"), {"button": {"use": ["Taste"], "not": ["Knopf"]}}),
        ("a.tbx", TBX3, ("en", "de"), {"button": {"use": ["Taste"], "not": ["Knopf"]}}),
        ("a.tbx", TBX2, (None, None), WhichLanguages),
        ("a.tbx", TBX2, ("en", "it"), "has no term of en and it, but of en, de"),
        ("a.csv", GLOSSARY, ("en", "fr-CA"), {"button": {"use": ["bouton"], "not": ["Knopf"]}}),
        ("a.csv", GLOSSARY, ("de", "en"), {"Taste": {"use": ["button"], "not": ["Knopf"]}, "offen": ["open"],
                                           "Feile": {"use": [], "not": ["file"]}}),
        ("a.csv", GLOSSARY, (None, "de"), WhichLanguages),
        ("a.csv", GLOSSARY, ("en", "it"), "has en, de, fr, not en and it"),
        ("a.tsv", "button\tTaste\tKnopf\nbutton\tTaster\n", ("en", "de"), {"button": ["Taste", "Knopf", "Taster"]}),
        ("a.tsv", "button\n", ("en", "de"), "line 1: 'button' is no term"),
    ],
)  # fmt: skip
def test_glossaries(tmp_path, name, content, languages, terms):
    path = write(tmp_path / name, content)
    if isinstance(terms, dict):
        assert read_terms(path, *languages) == terms
    else:
        kind, message = (UserError, terms) if isinstance(terms, str) else (terms, "say which, --from and --to")
        with pytest.raises(kind, match=re.escape(message)):
            read_terms(path, *languages)


def test_every_format_is_tried():
    tried = {Path(name).suffix for name, *_ in READ.values()} | {".mo", ".csv"}
    assert tried == BILINGUAL.keys()
