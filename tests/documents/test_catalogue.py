"""Messages of programs: catalogues of gettext and XLIFF, damaged ones, placeholders, keys."""

import random
import shutil
import subprocess

import polib
import pytest

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.documents import Reading, read, read_bytes
from hf_mlnmt.generation import Hypothesis

# As xgettext makes it: nothing in the header is filled in.
FRESH = r"""# SOME DESCRIPTIVE TITLE.
#, fuzzy
msgid ""
msgstr ""
"Project-Id-Version: PACKAGE VERSION\n"
"PO-Revision-Date: YEAR-MO-DA HO:MI+ZONE\n"
"Last-Translator: FULL NAME <EMAIL@ADDRESS>\n"
"Language-Team: LANGUAGE <LL@li.org>\n"
"Language: \n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=CHARSET\n"
"Content-Transfer-Encoding: 8bit\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\n"

#: a.py:1
#, python-format
msgid "%(count)r items of %(n)d%% are %r"
msgstr ""

#, c-format
msgid "%*d of %<PRIu64> bytes, %5.2f%% done, %-10s and %.*s"
msgstr ""

#, c-format
msgid "%d file removed\n"
msgid_plural "%d files removed\n"
msgstr[0] ""
msgstr[1] ""

#, c-format
msgid ""
"first line %s\n"
"second \"line\" with a tab\there\n"
msgstr ""

msgid "Hello %{name}, %1 of %n by @count at ${x} with {{y}}"
msgstr ""

msgid "Today {count, plural, one {# dog} other {# dogs}} play"
msgstr ""

msgid "You have {count, plural, one {# dog}} today"
msgstr ""

#| msgid "Old one"
msgid "New one"
msgstr ""
"""


def upper(words):
    return [*enumerate(word.upper() for word in words)]


def backwards(words):
    return [*enumerate(words)][::-1]


def doubled(words):
    return [(place, word) for place, word in enumerate(words) for _ in range(2)]


def fewer(words):
    chance = random.Random(len(words))
    return [(place, word) for place, word in enumerate(words) if chance.random() > 0.4]


def translated(content, ending, how=upper, **told):
    """(the document, what it becomes)."""
    document = (read if isinstance(content, str) else read_bytes)(content, ending, Reading(**told))
    hypotheses = []
    for text in document.texts:
        made = how(text.split())
        links = tuple((place, number) for number, (place, _) in enumerate(made))
        hypotheses.append(Hypothesis(" ".join(word for _, word in made), 0.0, 0.0, 1, alignment=links))
    return document, document.write(hypotheses)


@pytest.mark.parametrize("language", ["de", "pl", "ja", "ar", "pt-BR"])
@pytest.mark.parametrize("how", [upper, backwards, doubled, fewer])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_whatever_a_model_says_a_catalogue_is_one_that_gettext_takes(how, language, newline):
    document, out = translated(FRESH.replace("\n", newline).encode(), ".po", how, language=language)
    assert out.count(b"\r\n") == (out.count(b"\n") if newline == "\r\n" else 0)
    catalogue = polib.pofile(out.decode())
    count = int(catalogue.metadata["Plural-Forms"].split(";")[0].removeprefix("nplurals="))
    assert count == {"de": 2, "pl": 3, "ja": 1, "ar": 6, "pt-BR": 2}[language]
    assert catalogue.metadata["Content-Type"].endswith("UTF-8")
    (plural,) = [entry for entry in catalogue if entry.msgid_plural]
    assert len(plural.msgstr_plural) == count
    left = [entry for entry in catalogue if not (entry.msgstr or any(entry.msgstr_plural.values()))]
    assert len(left) == document.left
    assert all(entry.fuzzy for entry in left)
    assert "You have" in left[-1].msgid
    if shutil.which("msgfmt"):
        judged = subprocess.run(["msgfmt", "-c", "-o", "-", "-"], input=out, capture_output=True)
        assert judged.returncode == 0, judged.stderr.decode()


def messages(*pairs):
    return "".join(f'msgid "{message}"\nmsgstr "{translation}"\n\n' for message, translation in pairs)


@pytest.mark.parametrize(
    ("message", "how", "expected"),
    [
        ("&File", upper, "&FILE"),
        ("_Open a file", upper, "_OPEN A FILE"),
        ("Creat_e a dog", upper, "CR_EATE A DOG"),
        ("E_xit now", upper, "E_XIT NOW"),
        ("Save &As", backwards, "&As Save"),
        ("&Exit", lambda words: [(0, "Text ende")], "Text &ende"),
        ("~Edit", upper, "~EDIT"),
        ("Q & A by R&D of A&B", upper, "Q & A BY R&D OF A&B"),
        ("a &amp; b&nbsp;c<br>d", upper, "A &amp; B&nbsp;C<br>D"),
        ("~5 minutes", upper, "~5 MINUTES"),
        ("a dog\\r\\n", upper, 'A DOG\\r\\n"\n"'),
        ("one\\ttwo \\a \\x41 c", upper, "ONE\\tTWO \\a \\x41 C"),
        ("{{ user.name }} has {0, number} of %name%, :url", upper, "{{ user.name }} HAS {0, number} OF %name%, :url"),
        ("a\u2028b", upper, "A B"),
        ("snake_case and my_file", upper, "snake_case AND my_file"),
        ("&One and &two", upper, "&ONE AND &TWO"),
        ("_Open", lambda words: [(0, "打开")], "打开(_O)"),
        ("Go to <b>%s</b> &now", upper, "GO TO <b>%s</b> &NOW"),
        ("Hello {name}, {0}", upper, "HELLO {name}, {0}"),
    ],
)  # fmt: skip
def test_keys_and_frames(message, how, expected):
    document, out = translated(messages((message, "")), ".po", how)
    assert document.left == (expected is None)
    assert out == messages((message, expected)) if expected else out.startswith("#, fuzzy\n")


def garbled(words):
    signs = str.maketrans({"%": "% ", "{": "(", "}": ")", "$": ""})
    return [(place, f"l'{word.translate(signs)}") for place, word in enumerate(words)]


# A header of the source's language, whose plural forms are not those of all others.
ENGLISH = 'msgid ""\nmsgstr ""\n"Language: en\\n"\n"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n\n'
FORMATS = {
    "c": ["%d%% of %s is %+.3Lf", "100% of it", "%1$s is before %2$s", "use %<PRId64>-%<PRIuMAX>", "%dx%d dots"],
    "python": ["50%% of %s", "%(a)s of %(b-c)r"],
    "python-brace": ["Hello {name!r:>10} and {0.x[1]}"],
    "c++": ["Hello {} and {:d}"],
    "java": ["Hello {0}, {1,number,integer} dogs"],
    "csharp": ["Hello {0:N2}, {1,10} dogs"],
    "qt": ["Copy %1 to %2 (%n left) %L3, 100% of it"],
    "ruby": ["Hello %{name}, %<count>d dogs"],
    "sh": ["Hello $name and ${other}"],
    "perl": ["Hello %s and %vd"],
    "javascript": ["Hello %s and %j"],
    "objc": ["Hello %@ and %ld", "Hello %@ and %1$@"],
    "boost": ["Hello %1% and %2%"],
    "gcc-internal": ["expected %<;%> before %qs at %K"],
    "lisp": ["Hello ~A and ~D"],
    "php": ["Hello %1$s and %2$05d"],
}


@pytest.mark.parametrize("how", [upper, backwards, doubled, fewer, garbled])
def test_placeholders_of_every_dialect_are_whole_or_the_message_stays(how):
    """All dialects that gettext checks, in languages that have one, two, three and six forms of a plural."""
    entries = [
        f'#, {name}-format\nmsgid "{message}"\nmsgstr ""\n' for name, some in FORMATS.items() for message in some
    ]
    plural = '#, c-format\nmsgid "One file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    for language in ("de", "fr", "ru", "ja", "ar"):
        for head in ("", ENGLISH):  # without, and of another language
            document, out = translated(head + "\n".join([*entries, plural]), ".po", how, language=language)
            catalogue = polib.pofile(out)
            left = [entry for entry in catalogue if not (entry.msgstr or any(entry.msgstr_plural.values()))]
            assert document.left == len(left) == len(catalogue.fuzzy_entries())
            forms = {"de": 2, "fr": 2, "ru": 3, "ja": 1, "ar": 6}[language]
            assert catalogue.metadata["Plural-Forms"].startswith(f"nplurals={forms};")
            if how is upper:  # what is no placeholder to a reader
                assert {entry.msgid for entry in left} == {"100% of it"}
            if shutil.which("msgfmt"):
                judged = subprocess.run(["msgfmt", "-c", "-o", "-", "-"], input=out.encode(), capture_output=True)
                assert judged.returncode == 0, (language, judged.stderr.decode())


@pytest.mark.parametrize(
    ("language", "forms", "rule", "expected"),
    [
        ("de", 2, "n != 1", ["ONE FILE", "%d FILES"]),
        ("fr", 2, "n > 1", ["%d FILES", "%d FILES"]),  # no file is a singular, too
        ("ru", 3, "n%10==1 ? 0 : n%10<5 ? 1 : 2", ["%d FILES"] * 3),
        ("ja", 1, "0", ["%d FILES"]),
    ],
)
def test_a_plural_form_of_several_numbers_says_which(language, forms, rule, expected):
    head = f'msgid ""\nmsgstr ""\n"Language: {language}\\n"\n"Plural-Forms: nplurals={forms}; plural={rule};\\n"\n\n'
    entry = 'msgid "One file"\nmsgid_plural "%d files"\nmsgstr[0] ""\n'
    _, out = translated(head + entry, ".po", language=language)
    assert list(polib.pofile(out)[0].msgstr_plural.values()) == expected
    assert out.startswith(head)


@pytest.mark.parametrize("rule", ["nplurals=2; plural=__import__(x)", "nplurals=1; plural=n", "nplurals=2; plural=n%0"])
def test_plural_forms_that_are_no_rule_are_refused(rule):
    with pytest.raises(UserError, match="Plural-Forms are no rule"):
        read(GOOD.replace('"Language: \\n"', f'"Plural-Forms: {rule};\\n"'), ".po")


@pytest.mark.parametrize(
    "message",
    [
        "{n, plural, one {# dog} other {# dogs}}",
        "You have {n, plural, one {# dog} other {# dogs}}",
        "{n, plural, one {# dog} other {# dogs}",
        "{n, plural, }",
    ],
)
def test_what_cannot_be_said_stays_and_is_counted(message):
    document, out = translated(messages((message, ""), ("A man.", "")), ".po")
    assert document.left == 1
    assert out == "#, fuzzy\n" + messages((message, ""), ("A man.", "A MAN."))
    document, out = translated(messages((message, "")), ".po")  # and nothing else is to be translated
    assert document.left == 1
    assert out == "#, fuzzy\n" + messages((message, ""))


def test_two_apostrophes_of_an_icu_message_are_read_as_one():
    message = "{n, plural, one {it''s # dog} other {they''re # dogs}}"
    document, out = translated(messages((message, "")), ".po", language="de")
    assert document.texts == ["it's {n} dog", "they're {n} dogs"]
    assert "one {IT''S # DOG} other {THEY''RE # DOGS}" in out


GOOD = 'msgid ""\nmsgstr ""\n"Language: \\n"\n\nmsgid "A man."\nmsgstr ""\n\nmsgid "Two."\nmsgstr ""\n'
PLURAL = 'msgid "Two."\nmsgid_plural "Twos."\nmsgstr'


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"Two."', '"Two.', 8),
        ('"A man."\nmsgstr ""', '"A man."\nmsgstr "', 5),
        ('"A man."\nmsgstr ""', '"A man."', 5),
        ('msgid "Two."\nmsgstr', f"{PLURAL}[x]", 8),
        ('msgid "Two."\nmsgstr', f"{PLURAL}[", 8),
        ('msgid "Two."\nmsgstr', PLURAL, 8),
        ('msgid "Two."', '<<<<<<< HEAD\nmsgid "Two."\n=======\nmsgid "Tow."\n>>>>>>> x', 8),
        ('"Two."', "Two.", 8),
        ('"Two."', '"Tw"o."', 8),
        ('"Two."', "'Two.'", 8),
        ('"Two."', '"Two.\\"', 8),
        ('msgid "Two."', 'msgid "Two."\nmsgid "Three."', 8),
        ('msgid "Two."', 'a line\nmsgid "Two."', 8),
        ('msgid "Two."\nmsgstr ""\n', 'msgctxt "x"\n', 8),
    ],
)
def test_a_damaged_catalogue_is_refused_by_its_line(old, new, line):
    assert old in GOOD
    with pytest.raises(UserError, match=f"^line {line}\\b.*msgfmt -c"):
        read(GOOD.replace(old, new), ".po")


HEAD = '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" source-language="en">'


def unit(source, target="", named=""):
    return f'<trans-unit id="1"{named}><source>{source}</source>{target}</trans-unit>'


YES = ' translate="yes"'
DONE = '<target state="translated">'
TWO = '<seg-source><mrk mtype="seg" mid="0">One.</mrk> <mrk mtype="seg" mid="1">Two.</mrk></seg-source>'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (unit("A man", '<target state="new">A man</target>'), unit("A man", f"{DONE}A MAN</target>")),
        (unit("A man", '<target state="needs-translation">Ein Mann</target>'), None),
        (unit("A man", "<target>A man</target>"), None),
        (
            unit('See <ph id="1">&lt;img alt="<sub>a ball</sub>"/&gt;</ph> here'),
            unit('See <ph id="1">&lt;img alt="<sub>a ball</sub>"/&gt;</ph> here',
                 f'{DONE}SEE <ph id="1">&lt;img alt="<sub>A BALL</sub>"/&gt;</ph> HERE</target>'),
        ),
        (
            f'<group translate="no">{unit("no")}{unit("yes", "", YES)}</group>',
            f'<group translate="no">{unit("no")}{unit("yes", DONE + "YES</target>", YES)}</group>',
        ),
        (
            unit("one line\n  two\n", named=' xml:space="preserve"'),
            unit("one line\n  two\n", f"{DONE}ONE LINE\n  TWO\n</target>", ' xml:space="preserve"'),
        ),
        (
            unit("<![CDATA[<b>bold</b> %1$s & more]]>"),
            unit("<![CDATA[<b>bold</b> %1$s & more]]>", f"{DONE}&lt;b&gt;BOLD&lt;/b&gt; %1$s &amp; MORE</target>"),
        ),
        (
            unit("Some &lt;b&gt;bold&lt;/b&gt; {0}"),
            unit("Some &lt;b&gt;bold&lt;/b&gt; {0}", f"{DONE}SOME &lt;b&gt;BOLD&lt;/b&gt; {{0}}</target>"),
        ),
        (unit("&amp;File"), unit("&amp;File", f"{DONE}&amp;FILE</target>")),
        (unit("{n, plural, one {# dog} other {# dogs}}"), None),
        (unit("x {n, plural, one {# dog} other {# dogs}}"), None),
        (unit("One. Two.", TWO + '<target state="new">' + TWO[12:-13] + "</target>"),  # of Trados
         unit("One. Two.", TWO + DONE + TWO[12:-13].upper().replace("MRK", "mrk").replace("MTYPE", "mtype")
              .replace("SEG", "seg").replace("MID", "mid") + "</target>")),
        (unit("%ld dogs on %#@days@"), unit("%ld dogs on %#@days@", f"{DONE}%ld DOGS ON %#@days@</target>")),  # Xcode
        (unit("run\\n%d dogs"), unit("run\\n%d dogs", f"{DONE}RUN\\n%d DOGS</target>")),  # Android
        (unit("a&amp;nbsp;dog&lt;br/&gt;here"),
         unit("a&amp;nbsp;dog&lt;br/&gt;here", f"{DONE}A&amp;nbsp;DOG&lt;br/&gt;HERE</target>")),
    ],
)  # fmt: skip
def test_units_of_xliff(before, after):
    head, tail = HEAD + "<body>", "</body></file></xliff>"
    assert translated(head + before + tail, ".xlf")[1] == head + (after or before) + tail


@pytest.mark.parametrize(
    ("second", "left"), [("/>", 1), ("></mrk>", 1), ("> </mrk>", 1), (">Zwei.</mrk>", 0)], ids=lambda each: str(each)
)
@pytest.mark.parametrize("fuzzy", [True, False])
def test_a_half_done_unit_is_left_and_counted(second, left, fuzzy):
    target = f'<target><mrk mtype="seg" mid="0">Eins.</mrk> <mrk mtype="seg" mid="1"{second}</target>'
    before = f"{HEAD}<body>{unit('One. Two.', TWO + target)}{unit('Done', '<target/>')}</body></file></xliff>"
    document, out = translated(before, ".xlf", fuzzy=fuzzy)
    assert document.left == left
    assert TWO + target in out
    assert document.texts == ["Done"]


@pytest.mark.parametrize(
    ("segment", "fuzzy", "expected"),
    [
        ('<segment state="initial"><source>A man</source></segment>', False, "translated"),
        ("<segment><source>A man</source><target/></segment>", False, "translated"),
        ('<segment state="initial"><source>A man</source><target>A man</target></segment>', False, "translated"),
        ('<segment state="initial"><source>A man</source></segment>', True, "initial"),
        ('<segment state="final"><source>A man</source><target>Ein</target></segment>', False, None),
    ],
)
def test_states_of_xliff_2(segment, fuzzy, expected):
    head, tail = '<xliff version="2.0" srcLang="en"><file id="f"><unit id="u">', "</unit></file></xliff>"
    made = f'<segment state="{expected}"><source>A man</source><target>A MAN</target></segment>'
    assert translated(head + segment + tail, ".xlf", fuzzy=fuzzy)[1] == head + (made if expected else segment) + tail
