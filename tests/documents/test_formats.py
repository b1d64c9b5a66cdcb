"""The formats of documents: what is translated in each, and that all else stays, to the byte."""

import io
import random
import re
import time
import zipfile
from xml.parsers import expat

import pytest

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.documents import FORMATS, Reading, read, read_bytes, translate_file
from hf_mlnmt.generation import Hypothesis, TranslationPipeline

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
A = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
ODF = " ".join(f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "text"))
OUTSIDE = "[Content_Types].xml", b"<Types/>  "


def upper(text):
    """In capitals, word by word."""
    return Hypothesis(text.upper(), 0.0, 0.0, 1, alignment=tuple((i, i) for i in range(len(text.split()))))


def backwards(text):
    """The words in the opposite order."""
    words = text.split()
    links = tuple((i, len(words) - 1 - i) for i in range(len(words)))
    return Hypothesis(" ".join(reversed(words)), 0.0, 0.0, 1, alignment=links)


def same(text):
    return Hypothesis(text, 0.0, 0.0, 1)


def translated(content, ending, how=upper, **told):
    """(texts, what a text or a file becomes)."""
    document = (read if isinstance(content, str) else read_bytes)(content, ending, Reading(**told))
    return document.texts, document.write([how(text) for text in document.texts])


def archive(*members, stored=()):
    """The bytes of an archive of (name, content)."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content, zipfile.ZIP_STORED if name in stored else zipfile.ZIP_DEFLATED)
    return out.getvalue()


def member(content, name):
    return zipfile.ZipFile(io.BytesIO(content)).read(name).decode()


def word(*paragraphs):
    """A document of Word, and its part with the text."""
    body = "".join(f"<w:p>{paragraph}</w:p>" for paragraph in paragraphs)
    text = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\r\n'
    text += f"<w:document {W}><w:body>{body}</w:body></w:document>"
    return archive(OUTSIDE, ("word/document.xml", text), ("word/comments.xml", f"<w:comments {W}><w:p/></w:comments>"))


def run(text, properties=""):
    return f"<w:r>{properties}<w:t>{text}</w:t></w:r>"


def field(kind):
    return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'


BOLD = "<w:rPr><w:b/></w:rPr>"


def in_word(*paragraphs, how=upper, **told):
    """(texts, the paragraphs that they become)."""
    texts, out = translated(word(*paragraphs), ".docx", how, **told)
    body = re.search("<w:body>(.*)</w:body>", member(out, "word/document.xml"), re.DOTALL)[1]
    return texts, body.replace(' xml:space="preserve"', "")


def test_word_joins_runs_and_marks_follow_their_words():
    split = (
        run("A m")
        + '<w:proofErr w:type="x"/>'
        + '<w:r w:rsidR="1"><w:t>an rides</w:t></w:r>'
        + run(" a bicycle", BOLD)
        + run(".")
    )
    texts, out = in_word("<w:pPr><w:jc/></w:pPr>" + split)
    assert texts == ["A man rides a bicycle."]
    assert out == f"<w:p><w:pPr><w:jc/></w:pPr>{run('A MAN RIDES ')}{run('A BICYCLE', BOLD)}{run('.')}</w:p>"
    _, out = in_word(split, how=backwards)
    assert out == f"<w:p>{run('bicycle', BOLD)}{run('. ')}{run('a', BOLD)}{run(' rides man A')}</w:p>"


FIELD = f"{field('begin')}<w:r><w:instrText>%s</w:instrText></w:r>{field('separate')}{run('%s')}{field('end')}"
LINK = f'<w:hyperlink w:id="4">{run("«the page»", BOLD)}</w:hyperlink>'
CONTROL = f"<w:sdt><w:sdtPr><w:id/></w:sdtPr><w:sdtContent>{run('«a field»')}</w:sdtContent></w:sdt>"
BOX = f'<w:r><w:drawing><docPr name="n" descr="«a cat»"/><w:p>{run("«inside»")}</w:p></w:drawing></w:r>'
PARAGRAPHS = {
    "a tab": run("«one»") + "<w:r><w:tab/></w:r>" + run("«two»"),
    "a line": run("«One.»") + "<w:r><w:br/></w:r>" + run("«Two»"),
    "a note": run("«the house»") + '<w:r><w:footnoteReference w:id="2"/></w:r>' + run("« sees»"),
    "a link": run("«see »") + LINK,
    "a link by a field": run("«see »") + FIELD % ("HYPERLINK x", "«this»"),
    "a field that computes": run("«page »") + FIELD % ("PAGE", "two"),
    "deleted text and entities": f"<w:del>{run('gone')}</w:del>" + run("«is» &lt;«new»&gt;"),
    "a control": CONTROL + run("« here»"),
    "a text box and a picture's text": run("«around »") + BOX,
}


@pytest.mark.parametrize("kind", PARAGRAPHS)
def test_what_stands_in_paragraphs_of_word(kind):
    paragraph = re.sub("[«»]", "", PARAGRAPHS[kind])
    expected = re.sub("«([^«»]*)»", lambda match: match[1].upper(), PARAGRAPHS[kind])
    assert in_word(paragraph)[1] == f"<w:p>{expected}</w:p>".replace("&LT;", "&lt;")
    order = re.findall("<w:(?:fldChar|instrText)[^>]*>", in_word(paragraph, how=backwards)[1])
    assert order == re.findall("<w:(?:fldChar|instrText)[^>]*>", paragraph)  # a field begins before it ends


def test_other_members_and_what_has_no_text_stay_to_the_byte():
    before = word(run("a house"), run("12"), "<w:pPr/>")
    _, after = translated(before, ".docx")
    old, new = (zipfile.ZipFile(io.BytesIO(content)) for content in (before, after))
    assert [entry.filename for entry in new.infolist()] == [entry.filename for entry in old.infolist()]
    assert new.testzip() is None
    for entry, other in zip(old.infolist(), new.infolist()):
        if entry.filename != "word/document.xml":
            packed, repacked = before[entry.header_offset :], after[other.header_offset :]
            assert packed[: 30 + entry.compress_size] == repacked[: 30 + entry.compress_size]
    text, changed = member(before, "word/document.xml"), member(after, "word/document.xml")
    assert changed == text.replace("<w:t>a house", '<w:t xml:space="preserve">A HOUSE')
    nothing = word(run("12"), run("https://example.org"))
    assert translated(nothing, ".docx") == ([], nothing)


def test_the_language_of_a_document_of_word():
    look = '<w:rPrDefault><w:rPr><w:lang w:val="en-US" w:bidi="ar-SA"/></w:rPr></w:rPrDefault>'
    text = f"<w:document {W}><w:p>{run('a dog')}</w:p></w:document>"
    before = archive(("word/document.xml", text), ("word/styles.xml", f"<w:styles {W}>{look}</w:styles>"))
    _, out = translated(before, ".docx", language="de")
    assert '<w:lang w:val="de" w:bidi="ar-SA"/>' in member(out, "word/styles.xml")


def test_powerpoint():
    slide = f'<p:sld xmlns:p="urn:p" {A}><a:p><a:r><a:rPr lang="en-US" dirty="0"/><a:t>The dog</a:t></a:r>'
    slide += '<a:r><a:rPr lang="en-US"/><a:t> sees</a:t></a:r><a:fld type="slidenum"><a:t>3</a:t></a:fld>'
    slide += "<a:endParaRPr/></a:p></p:sld>"
    before = archive(
        OUTSIDE,
        ("ppt/slides/slide1.xml", slide),
        ("ppt/notesSlides/notesSlide1.xml", slide),
        ("ppt/slideLayouts/slideLayout1.xml", slide),
    )
    texts, out = translated(before, ".pptx", language="de")
    assert texts == ["The dog sees"] * 2
    joined = (
        '<a:r><a:rPr lang="de"/><a:t>THE DOG SEES</a:t></a:r><a:fld type="slidenum"><a:t>3</a:t></a:fld><a:endParaRPr/>'
    )
    assert joined in member(out, "ppt/slides/slide1.xml")
    assert member(out, "ppt/slideLayouts/slideLayout1.xml") == slide


def test_open_document():
    body = (
        '<text:p>The <text:span text:style-name="T1">red</text:span> house<text:note>'
        "<text:note-citation>1</text:note-citation>"
        "<text:note-body><text:p>a note</text:p></text:note-body></text:note>.<office:annotation><text:p>no</text:p>"
        "</office:annotation></text:p><text:h>A<text:tab/>title<text:line-break/>here</text:h>"
    )
    content = f"<office:document-content {ODF}>{body}</office:document-content>"
    styles = '<style:text-properties xmlns:style="s" xmlns:fo="f" fo:language="en" fo:country="US"/>'
    before = archive(
        ("mimetype", "application/x"), ("content.xml", content), ("styles.xml", styles), stored=["mimetype"]
    )
    texts, out = translated(before, ".odt", backwards, language="de")
    assert texts == ["The red house.", "A", "title here", "a note"]
    after = member(out, "content.xml")
    note = "<text:note-citation>1</text:note-citation><text:note-body><text:p>note a</text:p></text:note-body>"
    note = f"<text:note>{note}</text:note>"
    assert f'<text:p>house{note}. <text:span text:style-name="T1">red</text:span> The' in after
    assert "<office:annotation><text:p>no</text:p></office:annotation>" in after
    assert "<text:h>A<text:tab/>here<text:line-break/>title</text:h>" in after
    assert 'fo:language="de" fo:country="none"' in member(out, "styles.xml")
    first = zipfile.ZipFile(io.BytesIO(out)).infolist()[0]
    assert (first.filename, first.compress_type) == ("mimetype", zipfile.ZIP_STORED)


def test_books():
    chapter = '<?xml version="1.0"?><html xmlns="h" lang="ja" xml:lang="ja"><body><script src="x"/>'
    chapter += "<p>cat<i/> <ruby>dog<rp>(</rp><rt>no</rt><rp>)</rp></ruby></p></body></html>"
    package = '<package xmlns:dc="d"><dc:title>A book</dc:title><dc:language>ja</dc:language>'
    package += "<dc:creator>Anna</dc:creator></package>"
    toc = '<!DOCTYPE ncx PUBLIC "a" "b"><ncx><navLabel><text>One cat</text></navLabel></ncx>'
    before = archive(("mimetype", "x"), ("o.opf", package), ("toc.ncx", toc), ("a.xhtml", chapter), stored=["mimetype"])
    texts, out = translated(before, ".epub", language="de")
    assert texts == ["A book", "One cat", "cat dog"]
    assert member(out, "o.opf") == package.replace("A book", "A BOOK").replace(">ja<", ">de<")
    assert member(out, "toc.ncx") == toc.replace("One cat", "ONE CAT")
    assert '<html xmlns="h" lang="de" xml:lang="de">' in member(out, "a.xhtml")
    assert '<script src="x"/><p>CAT<i/> DOG</p>' in member(out, "a.xhtml")


PAGES = [
    "<a title='«a» \"«dog»\" &amp; «cat»' href='x y'>12</a>",
    '<input type="submit" value="«send it»"><input value="my name" placeholder="«name»">',
    '<meta name="description" content="«a page»"><meta name="x" content="a page">',
    '<div aria-label="«main part»" data-alt="x y"><img translate="no" alt="dog"></div>',
    "«The town.»<a href=#n><sup>1</sup></a> «A dog.»",
    "«go back»<a href=x>\u21a9\ufe0e</a>",
]


def test_what_people_read_in_pages():
    for page in PAGES:
        expected = re.sub("«([^«»]*)»", lambda match: match[1].upper(), page)
        assert translated(re.sub("[«»]", "", page), ".html", language="de")[1] == expected
    for before, after in (
        ("<img alt=dog>", '<img alt="DOG">'),
        ('<html lang="en-US"><p lang="fr">a</p><p LANG=en>b</p>', '<html lang="de"><p lang="fr">A</p><p LANG=de>B</p>'),
        ("<ruby>cat<rt>x</ruby> <ruby>dog<rp>(<rt>y<rp>)</ruby> sees", "CAT DOG SEES"),
    ):
        assert translated(before, ".html", language="de")[1] == after


MARKDOWN = """---
title: x y
---

# A *big* title {#id}

Hello **bold _word_ here** and `code x` with [a link](http://x.org/a_b "the title"), ![an image](a.png).
A line\\
and one\x20\x20
more. See [ref], [text][ref] and[^1] 2 * 3, snake_case, \\*star\\*.

> a quoted
> line **over
> two**

- [ ] task <b>two</b>
  1. inner

| head | cell |
|------|------|
| a | b **c** |

```python
code("here")
```

    more code

<div title="hey you">
some <i>html</i>
</div>

[ref]: http://x.y "z"
[^1]: The foot note.

A title
=======
"""


def test_markdown():
    expected = MARKDOWN.upper()
    stays = ["title: x y", "{#id}", "`code x`", "](http://x.org/a_b ", "(a.png)", "[^1]", 'code("here")', "more code"]
    stays += ["<div title=", "</div>", "<i>", "</i>", '[ref]: http://x.y "', "<b>", "</b>", "```python", "snake_case"]
    for kept in [*stays, "[ref]"]:
        expected = expected.replace(kept.upper(), kept)
    texts, out = translated(MARKDOWN, ".md")
    assert out == expected
    assert texts[0] == "A big title"
    assert "a quoted line over two" in texts
    assert translated(MARKDOWN.replace("\n", "\r\n"), ".md")[1] == expected.replace("\n", "\r\n")
    assert translated("He **has _read_** [it](x).", ".md", backwards)[1] == "[it](x). **_read_ has** He"
    table = "| a \\| **b** | `c \\| d` e |\n| --- | --- |\n| f | g \\| h |\n"
    texts, out = translated(table, ".md")
    assert texts[0].split() == ["a", "|", "b"]
    assert out == table.upper().replace("`C \\| D`", "`c \\| d`")
    assert translated("- a *b", ".md")[1] == "- A *B"  # alone it is no markup
    assert translated("x a_b_c d", ".md", backwards)[1] == "d a_b_c x"  # nor inside of a word
    assert translated("a\rb\n\nc", ".md")[1] == "a\rb\n\nC"  # no line ends there, for others' places
    assert translated("May 1", ".md", lambda text: same("1. Mai"))[1] == "1\\. Mai"  # no item of a list


PO = r"""# A comment of the translator.
msgid ""
msgstr ""
"Project-Id-Version: x\n"
"Language: \n"
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

#. Of the programmer.
#: a.c:1
#, c-format
msgctxt "a menu"
msgid ""
"Open %s <b>\"now\"</b>\n"
"and here\n"
msgstr ""

msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#, fuzzy
msgid "Done"
msgstr "Fertig"

#~ msgid "Old one"
#~ msgstr ""
"""


def test_po():
    texts, out = translated(PO, ".po", language="pt-BR")
    assert texts == ['Open %s "now" and here', "%d file", "%d files"]
    expected = (
        PO.replace("Language: ", "Language: pt_BR")
        .replace('[0] ""', '[0] "%d FILE"')
        .replace('[1] ""', '[1] "%d FILES"')
    )
    message = 'msgstr "OPEN %s <b>\\"NOW\\"</b>\\n"\n"AND HERE\\n"\n""'
    assert out == expected.replace('"and here\\n"\nmsgstr ""', '"and here\\n"\n' + message)
    flagged = translated(PO, ".po", fuzzy=True)[1]
    assert flagged.count("#, fuzzy\n") == 3
    assert '#, c-format\n#, fuzzy\nmsgctxt "a menu"' in flagged
    done = translated(PO, ".po")[1]
    assert translated(done, ".po") == ([], done)
    latin = PO.replace("UTF-8", "ISO-8859-1").replace("now", "f\u00fcr").encode("latin-1")
    assert "F\u00dcR" in translated(latin, ".po")[1].decode("latin-1")
    with pytest.raises(UserError, match="not a catalogue of gettext"):
        read("Hello", ".po")


XLIFF = (
    '<?xml version="1.0"?>\n<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">'
    '<file original="a" source-language="en" datatype="plaintext"><body>\n%s</body></file></xliff>'
)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ('a <g id="1">big</g> dog<x id="2"/>', 'dog <g id="1">big</g> a<x id="2"/>'),
        (
            'a <bpt id="1">&lt;b></bpt>big<ept id="1">&lt;/b></ept> dog',
            'dog <bpt id="1">&lt;b></bpt>big<ept id="1">&lt;/b></ept> a',
        ),
        ('see <mrk mtype="protected">This It</mrk> here', '<mrk mtype="protected">This It</mrk> here see'),
    ],
)
def test_xliff(source, target):
    unit = f'<trans-unit id="1"><source>{source}</source></trans-unit>'
    _, out = translated(XLIFF % unit, ".xlf", backwards, language="de")
    expected = XLIFF % unit.replace("</source>", f'</source><target state="translated">{target}</target>')
    assert out == expected.replace('"plaintext"', '"plaintext" target-language="de"')


def test_xliff_leaves_what_is_translated_or_is_not_to_be():
    units = (
        "<trans-unit id='1'><source>a dog</source><target>ein Hund</target></trans-unit>"
        "<trans-unit id='2' translate='no'><source>a dog</source></trans-unit><group translate='no'><trans-unit id='3'>"
        "<source>a dog</source></trans-unit></group>%s"
        "<trans-unit id='5'><source>One. Two.</source><seg-source>"
        "<mrk mtype='seg' mid='1'>One.</mrk> <mrk mtype='seg' mid='2'>Two.</mrk></seg-source>%s"
        "<alt-trans><source>One dog</source><target>x</target></alt-trans></trans-unit>"
    )
    fourth = "<trans-unit id='4'><source>a cat</source><note>x</note>%s</trans-unit>"
    texts, out = translated(XLIFF % units % (fourth % "<target state='new'/>", ""), ".xliff", fuzzy=True)
    assert texts == ["a cat", "One.", "Two."]
    state = ' state="needs-review-translation" state-qualifier="mt-suggestion"'
    segments = f"<target{state}><mrk mtype='seg' mid='1'>ONE.</mrk> <mrk mtype='seg' mid='2'>TWO.</mrk></target>"
    assert out == XLIFF % units % (fourth % f"<target{state}>A CAT</target>", segments)


def test_xliff_2():
    file = (
        '<x:xliff xmlns:x="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en"><x:file id="f">'
        '<x:unit id="1"><x:segment><x:source>call <x:pc id="1">up them</x:pc> now</x:source>%s</x:segment>'
        "<x:ignorable><x:source> a</x:source></x:ignorable></x:unit></x:file></x:xliff>"
    )
    apart = Hypothesis("rufe sie jetzt an", 0.0, 0.0, 1, alignment=((0, 0), (1, 3), (2, 1), (3, 2)))
    _, out = translated(file % "", ".xliff", lambda text: apart, language="de")
    target = '<x:target>rufe <x:pc id="1">sie</x:pc> jetzt <x:pc id="1-2" copyOf="1">an</x:pc></x:target>'
    expected = (file % target).replace('srcLang="en"', 'srcLang="en" trgLang="de"')
    assert out == expected.replace("<x:segment>", '<x:segment state="translated">')
    with pytest.raises(UserError, match="not XLIFF"):
        read("<a/>", ".xlf")


@pytest.mark.parametrize(
    ("source", "translation", "alignment", "expected"),
    [
        ("Hello {name}!", "Hallo Name!", "0-0 1-1", "Hallo {name}!"),
        ("Hello {name}!", "Hallo!", "0-0", "Hallo {name}!"),
        ("%s of %d files", "von Dateien", "1-0 3-1", "%s von %d Dateien"),
        ("See https://x.org/a?b=c now", "Siehe https jetzt", "0-0 1-1 2-2", "Siehe https://x.org/a?b=c jetzt"),
        ("It costs 1,234.50 here", "Es kostet 1.234,50 hier", "0-0", "Es kostet 1.234,50 hier"),
        ("It is 10:30 now", "Es ist zehn jetzt", "0-0 1-1 2-2 3-3", "Es ist 10:30 jetzt"),
        ("Take the A4 and COVID-19", "Nimm die A5 und", "0-0 1-1 2-2 3-3", "Nimm die A4 und COVID-19"),
        ("Press <0/> now", "Jetzt", "2-0", "<0/> Jetzt"),
        ("write to a.b@c.org", "schreib", "0-0", "schreib a.b@c.org"),
        ("the 21st of snake_case", "der 21. von snake_case", "0-0", "der 21. von snake_case"),
        ("Hello {name}", "Hallo", None, "Hallo {name}"),
        ("a $" + "{x} b", "b", None, "b $" + "{x}"),
    ],
)
def test_numbers_codes_and_placeholders_stay(source, translation, alignment, expected):
    links = tuple(tuple(map(int, link.split("-"))) for link in alignment.split()) if alignment else None
    document = read(source, ".txt")
    assert document.texts == [source]
    assert document.write([Hypothesis(translation, 0.0, 0.0, 1, alignment=links)]) == expected


def test_what_is_only_kept_is_not_translated():
    text = "{name}\n10:30\nhttps://example.org\n%s/%s\nsnake_case\npic.png\nA4\n"
    assert translated(text, ".txt") == ([], text)


BOMB = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10 if i else "ha"}">' for i in range(10))


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (f"<!DOCTYPE a [{BOMB}]>", "declares the entity a0"),
        ('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>', "declares the entity x"),
        ('<!DOCTYPE a [<!ENTITY % x SYSTEM "http://example.org/x">]>', "declares the entity x"),
        ("<b>", "not well-formed"),
        ("<b>" * 300, "more than 256 elements"),
    ],
)
def test_strange_xml_is_refused(head, said):
    body = "<xliff>&x;</xliff>"
    for content, ending in (
        (head + body, ".xlf"),
        (archive(("content.xml", head + body)), ".odt"),
        (archive(("word/document.xml", head + body)), ".docx"),
    ):
        with pytest.raises(UserError, match=said):
            translated(content, ending)


def test_strange_archives_are_refused():
    bomb = archive(("word/document.xml", b" " * 2_000_000))
    assert len(bomb) < 3_000
    with pytest.raises(UserError, match=r"^unpacks to 2,000,000 bytes; the limit is 1,000,000\.$"):
        read_bytes(bomb, ".docx", Reading(most=1_000_000))
    content = word(run("a dog"))
    directory = content.index(b"PK\x01\x02", content.index(b"word/document.xml"))
    locked = bytearray(content)
    for at in re.finditer(b"PK\x01\x02", content):
        locked[at.start() + 8] |= 1
    lying = bytearray(content)
    lying[content.rindex(b"word/document.xml", 0, content.index(b"PK\x05\x06")) - 46 + 16] ^= 1  # the sum
    for broken, said in (
        (b"Hello", r"cannot be read \(File is not a zip file\): not whole, of another format, or locked\.$"),
        (content[:directory], "cannot be read"),
        (bytes(locked), r"^is locked by a password\. Save it without one\.$"),
        (bytes(lying), "cannot be read"),
        (archive(("a", "b")), r"^holds no text of this format: .* or another ending\.$"),
        (archive(("word/document.xml", b"\xff")), "cannot be read"),
    ):
        with pytest.raises(UserError, match=said):
            read_bytes(bytes(broken), ".docx")
    for packing in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):  # a byte that a download spoilt
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", packing) as file:
            file.writestr("word/document.xml", f"<a>{'dog ' * 300}</a>")
        for at in range(47, out.getvalue().index(b"PK\x01\x02")):
            try:
                read_bytes(out.getvalue()[:at] + b"\xff\xff" + out.getvalue()[at + 2 :], ".docx")
            except UserError as error:
                assert re.search("cannot be read", str(error))  # noqa: PT017
            else:
                assert packing == zipfile.ZIP_LZMA  # the size of its dictionary changes nothing
    with pytest.raises(UserError, match=r"holds U\+FDD0, which is no character"):
        read("a \ufdd00\ufdd1", ".txt")


def test_a_file_s_own_styles_are_not_those_of_another_file():
    """Headers in styles.xml name theirs T1 too, and so do charts."""
    hidden = '<style:style style:name="T1"><style:text-properties text:display="none"/></style:style>'
    own = '<style:style style:name="T1" style:parent-style-name="Standard"/>'
    text = '<text:p>a dog <text:span text:style-name="T1">runs fast</text:span></text:p>'
    members = {"styles.xml": hidden, "content.xml": own + text, "Object 1/content.xml": text}
    file = archive(*((name, f'<x {ODF} xmlns:style="s">{content}</x>') for name, content in members.items()))
    written = translated(file, ".odt")[1]
    for name in ("content.xml", "Object 1/content.xml"):
        assert "RUNS FAST" in member(written, name)


@pytest.mark.parametrize("begun", ["<style:style>", "<style:style "])
def test_many_styles_without_an_end_take_no_time(begun):
    members = {"styles.xml": f"<!--{begun * 100_000}-->", "content.xml": "<text:p>a dog</text:p>"}
    file = archive(*((name, f'<x {ODF} xmlns:style="s">{content}</x>') for name, content in members.items()))
    before = time.perf_counter()
    assert "A DOG" in member(translated(file, ".odt")[1], "content.xml")
    assert time.perf_counter() - before < 20  # minutes, if each is looked for up to the end of the file


_WITH_TEXT = {
    ".docx": ("word/document.xml", f"<w:p {W}><w:r><w:t>a dog</w:t></w:r></w:p>"),
    ".pptx": ("ppt/slides/slide1.xml", f"<a:p {A}><a:r><a:t>a dog</a:t></a:r></a:p>"),
    ".odt": ("content.xml", f"<text:p {ODF}>a dog</text:p>"),
    ".odp": ("content.xml", f"<text:p {ODF}>a dog</text:p>"),
    ".epub": ("a.html", "<p>a dog</p>"),
}


@pytest.mark.parametrize("ending", _WITH_TEXT)
def test_a_damaged_archive_is_refused_or_written_whole(ending):
    """Bytes of members, of their headers and of the directory, one spoilt at a time."""
    name, text = _WITH_TEXT[ending]
    content = archive(("mimetype", "x"), (name, text), ("z.png", bytes(range(40))), stored=["mimetype"])
    draws, refused = random.Random(1), 0
    ends = [content.rindex(b"PK\x01\x02") + 42 + byte for byte in range(4)]  # where the picture is said to be
    for at in [*ends, *draws.sample(range(len(content)), 30)]:
        spoilt = content[:at] + bytes([content[at] ^ draws.choice((1, 32, 128, 255))]) + content[at + 1 :]
        try:
            written = translated(spoilt, ending)[1]
        except UserError:
            refused += 1
            continue
        assert ">A DOG</" in member(written, name), at
    assert refused > len(ends)


def test_encodings():
    """A file stays in its own; what that lacks is written as a page can, or refused."""
    page = '<meta charset="iso-8859-1"><p>f\u00fcr</p>'.encode("latin-1")
    assert translated(page, ".html", lambda text: same("\u00fc\u0142"))[1] == page.replace(b"f\xfcr", b"\xfc&#322;")
    latin = PO.replace("UTF-8", "ISO-8859-1").encode()
    with pytest.raises(UserError, match="ISO-8859-1 lacks characters of the translation"):
        translated(latin, ".po", lambda text: same("\u0142"))
    for content, said in ((b"<meta charset=x-y>a", "'x-y' is unknown"), (b"a\xff", "byte 1 is not UTF-8")):
        with pytest.raises(UserError, match=said):
            read_bytes(content, ".html")
    sixteen = "a dog\n".encode("utf-16")
    assert translated(sixteen, ".txt")[1] == "A DOG\n".encode("utf-16")


# The texts of a program in each format that the Translate Toolkit reads.
_ANDROID = "<resources><string name='a'>A dog</string></resources>"
_QT = "<message><source>A dog</source><translation/></message>"
_PLIST = (
    "<key>NSStringFormatSpecTypeKey</key><string>NSStringPluralRuleType</string><key>other</key><string>A dog</string>"
)
PROGRAMS = {
    ".properties": "a=A dog\n",
    ".resx": "<root><data name='a'><value>A dog</value></data></root>",
    ".strings": '"a" = "A dog";\n',
    ".stringsdict": f"<plist><dict><key>a</key><dict><key>n</key><dict>{_PLIST}</dict></dict></dict></plist>",
    ".xml": _ANDROID,
    ".arb": '{"@@locale": "en", "a": "A dog"}',
    ".ts": f"<!DOCTYPE TS><TS version='2.1'><context><name>M</name>{_QT}</context></TS>",
    ".json": '{"a": "A dog"}',
    ".php": "<?php\nreturn [\n    'a' => 'A dog',\n];\n",
    ".yml": "en:\n  a: A dog\n",
    ".yaml": "a: A dog\n",
    ".csv": '"source","target"\n"A dog",""\n',
}


@pytest.mark.parametrize("ending", sorted(FORMATS))
def test_each_format_can_be_stopped_and_takes_random_bytes(ending):
    for content in (b"\x00\x01", b"PK\x03\x04" * 9, b"<", b'msgid "', b"\xff\xfea", b""):
        try:
            document = read_bytes(content, ending)
        except UserError:
            continue
        assert document.write([same(text) for text in document.texts]) == content
    samples = {
        **dict.fromkeys((".po", ".pot"), PO),
        **dict.fromkeys((".xlf", ".xliff", ".sdlxliff", ".mqxliff"), XLIFF % ""),
        ".vtt": "00:01.000 --> 00:02.000\na",
        ".srt": "0:00:01,0 --> 0:00:02,0\na",
        ".sbv": "0:00:01.000,0:00:02.000\na",
        ".ass": "[Events]\nFormat: Start, End, Text\nDialogue: 0:00:01.00,0:00:02.00,a",
        **PROGRAMS,
    }
    name, text = {**_WITH_TEXT, ".xlsx": ("xl/sharedStrings.xml", "<a>b</a>")}.get(ending, ("", ""))
    content = archive((name, text)) if name else samples.get(ending, "a **b** <b>c</b>").encode()
    with pytest.raises(ZeroDivisionError):
        read_bytes(content, ending, Reading(lambda: 1 / 0))


def test_a_file_in_python(tmp_path):
    """A real model, whose alignments say where the marks go."""
    pipeline = TranslationPipeline.from_pretrained("published/en-de", device="cpu")
    (tmp_path / "in.docx").write_bytes(word(run("A man ") + run("rides", BOLD) + run(" a bicycle.")))
    out = translate_file(pipeline, tmp_path / "in.docx", tmp_path / "out.docx", num_beams=1).read_bytes()
    text = member(out, "word/document.xml")
    said = re.sub("<[^>]*>", "", text).strip()
    assert said == pipeline("A man rides a bicycle.", num_beams=1)
    assert re.search(r"<w:r><w:rPr><w:b/></w:rPr><w:t[^>]*>[^<]+</w:t></w:r>", text)
    with pytest.raises(UserError, match=r"written in its own format. Name it .docx"):
        translate_file(pipeline, tmp_path / "in.docx", tmp_path / "out.pdf")
    (tmp_path / "in.pdf").write_bytes(b"%PDF-1.7")
    with pytest.raises(UserError, match=r"in\.pdf: pdf says where each letter stands.*pdftotext"):
        translate_file(pipeline, tmp_path / "in.pdf", tmp_path / "out.pdf")


def nested(draw, leaves, elements, depth=0):
    """Leaves in any order, some of them in elements, which may be in others."""
    pieces = []
    for _ in range(draw.randint(1, 5)):
        start, end = draw.choice(elements)
        inside = depth < 3 and draw.random() < 0.3
        pieces.append(start + nested(draw, leaves, elements, depth + 1) + end if inside else draw.choice(leaves))
    return "".join(pieces)


LEAVES = {
    ".docx": [
        *(run(text, look) for text in ("the ", " red", "dog.", "{x} ", "(b)", "\u732b") for look in ("", BOLD)),
        *(field("begin"), field("separate"), field("end"), "<w:r><w:instrText>HYPERLINK x</w:instrText></w:r>"),
        *("<w:r><w:tab/></w:r>", "<w:r><w:br/></w:r>", "<w:bookmarkEnd/>", f"<w:del>{run('x')}</w:del>", "<!-- c -->"),
        f'<w:r><w:pict descr="x"><w:p>{run("in a box")}</w:p></w:pict></w:r>',
    ],
    ".odt": [
        *("the ", " red", "dog. ", "&amp;", "\u732b", "<text:s/>", "<text:tab/>"),
        "<text:note><text:p>a</text:p></text:note>",
    ],
    ".xlf": [
        *("the ", " red", "dog. ", "<![CDATA[a<b]]>", "<x/>"),
        *('<bpt id="2">b</bpt>', '<ept id="2">c</ept>', "<!-- c -->"),
    ],
}
ELEMENTS = {
    ".docx": [("<w:hyperlink>", "</w:hyperlink>"), ("<w:sdt><w:sdtPr/><w:sdtContent>", "</w:sdtContent></w:sdt>")],
    ".odt": [("<text:span>", "</text:span>"), ("<text:a>", "</text:a>")],
    ".xlf": [("<g>", "</g>"), ("<pc>", "</pc>")],
}
WHOLE = {
    ".docx": f"<w:body {W}><w:p>%s</w:p></w:body>",
    ".odt": f"<office:text {ODF}><text:p>%s</text:p></office:text>",
    ".xlf": "<xliff><trans-unit><source>%s</source></trans-unit></xliff>",
}


@pytest.mark.parametrize("ending", WHOLE)
def test_whatever_is_translated_nests_well_and_loses_nothing(ending):
    draw = random.Random(1)
    name = {".docx": "word/document.xml", ".odt": "content.xml"}.get(ending)

    def anyhow(text):
        words = text.split()
        others = draw.choice([words, words[::-1], ["ein", "Wort"], []])
        links = [(draw.randrange(len(words)), draw.randrange(len(others) or 1)) for _ in range(2 * len(words))]
        return Hypothesis(" ".join(others), 0.0, 0.0, 1, alignment=draw.choice([None, tuple(sorted(links))]))

    for _ in range(150):
        text = WHOLE[ending] % nested(draw, LEAVES[ending], ELEMENTS[ending])
        texts, out = translated(archive((name, text)) if name else text.encode(), ending, anyhow)
        out = member(out, name) if name else out.decode()
        expat.ParserCreate().Parse(out.encode(), True)
        times = 2 if texts and not name else 1  # in XLIFF the source stays
        for leaf in LEAVES[ending]:
            if not leaf.startswith("<w:r><w:t>") and re.fullmatch("<[^!].*>", leaf) and "<w:t>" not in leaf:
                kept = leaf.split("<text:p>")[0]
                assert out.count(kept) == times * text.count(kept), (leaf, text, out)
        if ending == ".docx":  # each text is in a run, and each run in a paragraph
            assert not re.search(r"</w:r>[^<]|<w:r>[^<]|<w:p>[^<]|<w:r>(?:(?!</w:r>|<w:p>).)*<w:r>", out), (text, out)
