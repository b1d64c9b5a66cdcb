"""Texts of programs beside their keys, messages of ICU, workbooks and subtitles, in capitals for a translation."""

import io

import pytest

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.documents import Reading, is_document, read_bytes, read_file
from hf_mlnmt.generation import Hypothesis

pytest.importorskip("translate.storage.factory")

PLURALS = (
    "<resources><plurals name='n'><item quantity='one'>%d dog</item><item quantity='other'>%d dogs</item></plurals>{}"
    "</resources>"
)
QT = (
    '<!DOCTYPE TS><TS version="2.1"><context><name>M</name><message><source>&amp;Open</source>'
    '<translation type="unfinished"/></message>'
    '<message numerus="yes"><source>%n dog(s)</source><translation><numerusform/></translation></message>'
    "<message><source>Done</source><translation>Fertig</translation></message></context></TS>"
)
STRINGSDICT = (
    "<plist version='1.0'><dict><key>dogs</key><dict><key>NSStringLocalizedFormatKey</key><string>%#@n@</string>"
    "<key>n</key><dict><key>NSStringFormatSpecTypeKey</key><string>NSStringPluralRuleType</string><key>one</key>"
    "<string>%d dog</string><key>other</key><string>%d dogs</string></dict></dict></dict></plist>"
)
RAILS = "# note\nen:\n  d:\n    one: one dog\n    other: '%{count} dogs'\n  on: 1\n"
ASS = "[Events]\nFormat: S, E, Text\nDialogue: 1,2,{\\i1}a dog, it\\Nplays\nDialogue: 1,2,{\\p1}m 0 0\n"
DOGS = "{n, plural, one {# dog} other {# dogs}}"


def translated(content, ending, language="cs", drop=""):
    """(the document, what it becomes): the texts in capitals, without `drop`."""
    document = read_bytes(
        content if isinstance(content, bytes) else content.encode(), ending, Reading(language=language)
    )
    hypotheses = []
    for text in document.texts:
        words = [(place, word) for place, word in enumerate(text.split()) if word != drop]
        links = tuple((place, number) for number, (place, _) in enumerate(words))
        hypotheses.append(Hypothesis(" ".join(word for _, word in words).upper(), 0.0, 0.0, 1, alignment=links))
    return document, document.write(hypotheses).decode()


@pytest.mark.parametrize(
    ("ending", "content", "expected"),
    [
        (".properties", "# note\na=&Open {0}, it''s \\u00e4\nb=12\n", ["# note", "a=&OPEN {0}, IT''S \u00c4", "b=12"]),
        (".properties", "a=\u00e4 dog\n", ["a=\u00c4 DOG"]),
        (".strings", '/* a */\n"a" = "%1$@ has \\"%d\\" dogs";\n', ["/* a */", '"%1$@ HAS \\"%d\\" DOGS";']),
        (".resx", "<root><data name='a'><value>A {0} &amp; x</value></data></root>", [">A {0} &amp; X</value>"]),
        (".xml", PLURALS.format(""), [f'quantity="{tag}">%d DOG' for tag in ("one", "few", "many", "other")]),
        (".xml", "<resources><string name='a'>It\\'s <b>%1$s</b></string></resources>", ["IT\\'S <b>%1$s</b>"]),
        (".xml", "<resources><string name='a' translatable='false'>A dog</string></resources>", ["A dog"]),
        (".stringsdict", STRINGSDICT, ["<key>few</key>", "<string>%d DOG</string>", "<string>%d DOGS</string>"]),
        (".arb", '{"@@locale": "en", "a": "It\'s {x}", "@a": {"x": "of"}}', ['"@@locale": "cs"', "IT'S {x}", '"of"']),
        (".arb", '{"a": "{n, plural, =0{none} one{# dog} other{# dogs}}"}', ["=0 {NONE} one {# DOG} few {# DOGS}"]),
        (".arb", '{"a": "{n, plural, other {it\'s #}}"}', ["other {IT'S #}"]),
        (".ts", QT, ["n>&amp;OPEN<", ">%n DOG(S)</numerusform>\n" + " " * 12 + "<numerusform>", "Fertig", '"cs"']),
        (".json", '{"n": 3, "d_one": "{{count}} dog", "d_other": "{{n}} dogs"}', ['"n": 3', '"d_few": "{{n}} DOGS"']),
        (".php", "<?php\nreturn [\n    'a' => ['b' => 'A dog :name'],\n];\n", ["'b' => 'A DOG :name'"]),
        (".yml", RAILS, ["# note", "cs:", "one: ONE DOG", "few: '%{count} DOGS'", "on: 1"]),
        (".csv", 'id,source,target\n1,A dog,\n2,A cat,Katze\n', ["A DOG", "Katze"]),
        (".sbv", "0:00:01.000,0:00:02.000\na dog\nplays\n", ["0:00:01.000,0:00:02.000\nA DOG\nPLAYS\n"]),
        (".ass", ASS, ["1,2,{\\i1}A DOG, IT\\NPLAYS", "m 0 0"]),
    ],
)  # fmt: skip
def test_texts_of_programs(ending, content, expected):
    document, out = translated(content, ending)
    assert [part for part in expected if part not in out] == [], out
    assert not document.left
    assert read_bytes(out.encode(), ending, Reading(language="cs"))  # and it can be read again


def test_what_cannot_be_translated_is_counted():
    array = "<string-array name='a'><item>One</item><item>Two</item></string-array>"
    assert translated(PLURALS.format(array), ".xml")[0].left == 2  # the toolkit reads no arrays
    assert '"A DOG {x} PLAYS"' in translated('{"a": "A dog {x} plays"}', ".json", drop="{x}")[1]  # put back


@pytest.mark.parametrize(
    ("message", "language", "expected"),
    [
        (DOGS, "ru", "{n, plural, one {# DOG} few {# DOGS} many {# DOGS} other {# DOGS}}"),
        (DOGS.replace("#", "One", 1), "ru", "{n, plural, one {# DOGS} few {# DOGS} many {# DOGS} other {# DOGS}}"),
        (DOGS.replace("#", "One", 1), "de", "{n, plural, one {ONE DOG} other {# DOGS}}"),
        (DOGS, "ja", "{n, plural, other {# DOGS}}"),
        ("Oh {n,plural,=0{no dogs}other{# dogs}}.", "ja", "{n,plural,=0 {OH NO DOGS.} other {OH # DOGS.}}"),
        ("{g, select, a {He} other {They}} said {x}", "de", "{g, select, a {HE SAID {x}} other {THEY SAID {x}}}"),
        ("{g,select,a{{n,plural,other{#}}}other{b}} x", "ja", "{g,select,a {{n,plural,other {# X}}} other {B X}}"),
        ("{n,plural,other{# a}} {m,plural,other{#}}", "ja", "{n,plural,other {{m,plural,other {{n, number} A #}}}}"),
        ("{n, selectordinal, one {#st dog} other {#th dog}}", "ja", "{n, selectordinal, other {# DOG}}"),
        ("{n, plural, offset:1 other {{b, plural, other {# y}} and #}}", "ja", None),
        ("a # and {n, plural, other {b}}", "ja", None),
        ("{n, plural, one {# dog}}", "de", None),
        ("{n, plural, other {# dogs}", "de", None),
        ("it '{n}' is {n, plural, other {# dogs}}", "de", None),
        ("{n, plural, other {# dogs}}", "qqq", None),
    ],
)  # fmt: skip
def test_branches_of_icu(message, language, expected):
    document, out = translated(f'{{"a": "{message}"}}', ".json", language)
    assert document.left == (expected is None)
    assert f'"a": "{expected or message}"' in out


@pytest.mark.parametrize(
    ("ending", "content", "said"),
    [
        (".xml", b"<!DOCTYPE r [<!ENTITY a 'x'>]><resources/>", "declares entities"),
        (".json", b'{"a": ', "cannot be read as .json"),
        (".arb", b'{"a": 1}}', "cannot be read as .arb"),
        (".stringsdict", b"<plist/>", "cannot be read as .stringsdict"),
        (".yml", b"a dog", "a single text without keys"),
        (".ass", b"[Events]\nA dog\n", "no Dialogue line"),
        (".sbv", b"A dog\n", "SubViewer"),
    ],
)
def test_damaged_files_are_refused(ending, content, said):
    with pytest.raises(UserError, match=said):
        read_bytes(content, ending)


def test_what_an_ending_means_is_told_by_the_file(tmp_path):
    files = {"a.xml": PLURALS.format(""), "a.ts": QT, "a.json": '{"a": "A dog"}', "a.csv": "source,target\nA dog,\n"}
    others = {"b.xml": "<svg/>", "b.ts": "A dog.\n", "b.json": '[{"a": 1}]', "b.csv": "a,b\n"}
    for name, content in (files | others).items():
        (tmp_path / name).write_text(content)
        assert is_document(tmp_path / name) == (name in files), name
    with pytest.raises(UserError, match="is markup that is not read here"):
        read_file(tmp_path / "b.xml")


def test_a_workbook():
    """Cells and their runs; formulas, numbers and the headings of tables stay."""
    openpyxl = pytest.importorskip("openpyxl")
    from openpyxl.worksheet.table import Table

    book = openpyxl.Workbook()
    for row in (["Dog name", "Price"], ["A dog & a cat", 3], ["Two dogs.\nThey play.", "=B2*2"]):
        book.active.append(row)
    book.active.add_table(Table(displayName="T", ref="A1:B3"))
    file = io.BytesIO()
    book.save(file)
    document = read_bytes(file.getvalue(), ".xlsx", Reading(language="de"))
    written = document.write([Hypothesis(text.upper(), 0.0, 0.0, 1) for text in document.texts])
    rows = [[cell.value for cell in row] for row in openpyxl.load_workbook(io.BytesIO(written)).active.rows]
    assert rows == [["Dog name", "Price"], ["A DOG & A CAT", 3], ["TWO DOGS.\nTHEY PLAY.", "=B2*2"]]
