"""Documents in the style of what other programs write: what stays, what is translated, and that it is read again."""
# ruff: noqa: E501  (documents are as wide as programs write them)

import io
import random
import re
import zipfile

import pysubs2
import pytest
from lxml import etree
from lxml import html as pages
from markdown_it import MarkdownIt

from hf_mlnmt.documents import Reading, read, read_bytes
from hf_mlnmt.generation import Hypothesis


def upper(text):
    """In capitals, word by word."""
    return Hypothesis(text.upper(), 0.0, 0.0, 1, alignment=tuple((i, i) for i in range(len(text.split()))))


def one_word(text):
    """A translation without a word for most of its source."""
    return Hypothesis("Wort", 0.0, 0.0, 1, alignment=((0, 0),))


def full_stop(text):
    return Hypothesis(".", 0.0, 0.0, 1)


def translated(content, ending, how=upper, **told):
    """(texts, what a text or a file becomes)."""
    document = (read if isinstance(content, str) else read_bytes)(content, ending, Reading(**told))
    return document.texts, document.write([how(text) for text in document.texts])


def marked(content, ending, **told):
    """Checks a document in which «this is translated» and all else stays; returns what it becomes."""
    plain = re.sub("[«»]", "", content)
    wanted = re.sub("«([^«»]*)»", lambda match: match[1].upper(), content).replace("<c> ", " <c>")
    assert translated(plain, ending, **told)[1] == wanted
    return plain


# Markdown as Hugo, Jekyll, MkDocs-Material, Docusaurus, GitHub, Obsidian and pandoc have it.
MARKDOWN = {
    "Hugo": """+++
title = "a page"
tags = ["one", "two"]
+++

«look at» {{< figure src="dog.png" title="a dog" >}} «this».

{{< highlight python >}}
print("a dog")

print("two dogs")
{{< /highlight >}}

{{% notice tip %}}
«a tip with» {{% ref "page.md" %}}
{{% /notice %}}
""",
    "Jekyll": """---
layout: post
---
{% include head.html title="a dog" %}
{% highlight ruby %}
puts "a dog"

puts "a cat"
{% endhighlight %}

# «the title»
{: .no_toc }

* toc
{:toc}

«see» [«the page»]({% link a.md %}) «by» {{ page.author }}.
{: .note}
""".replace("* toc", "* «toc»"),
    "MkDocs-Material": """[TOC]

!!! note "«a title»"
    «the first text».

    «the second text».

??? tip
    «one more»

=== "«a tab»"

    ``` py
    print("a dog")
    ```

    «text in a tab»

    $$
    x
    $$

    «more of it»

«a term»
:   «its meaning» :smile:

    «more of its meaning»

«one word» :fontawesome-solid-dog:{ .red } ==«marked words»== «here».

*[HTML]: Hyper Text

++ctrl+c++ «copies it»
""",
    "Docusaurus": """---
id: one
---
import Tabs from '@theme/Tabs';
import {
  One,
  Two,
} from 'x';
import './a.css';

export const Red = ({children}) => (
  <span>{children}</span>
);

:::tip[«a tip»]

«text of it»

:::

::::note «My title»
:::danger
«deep in it»
:::
::::

{/* a comment */}

<Tabs>
<TabItem value="one" label="x">

«a text»

</TabItem>
</Tabs>
""",
    "GitHub": """> [!NOTE]
> «a note for you».

«an area» $$a = b$$ «and» $`c`$ «here»:

$$
\\text{a dog}
= b
$$

```math
\\text{a dog}
```

- [x] «done» :tada: :+1: «by» <kbd>Ctrl</kbd>+<kbd>C</kbd>

| «a head» | `x | y` |
| --- | --- |
| «cell» `a|b` «here» | «two» |

«a» | «b»
--|--
«cell» `a|b` | «two»

[![«the build»](a.svg)](b) ![«a dog»](a.png "«the title»")

<details><summary>«more»</summary>

«inside of it»

</details>

[site]: http://a.org "«the site»"
[other]: <http://b.org>
  '«another one»'
""",
    "Obsidian": """%%
a comment
%%

«a link» [[Some page|some text]] «and» ![[a picture.png]] «here» #a-tag ^block-id
""".replace("#a-tag ^block-id", "#«A-TAG»"),
    "pandoc": """::: {.warning #one}
«be careful»
:::

«a note»[^1] «and» [@doe2020, p. 3] «by» [@doe](x) «here».

[^1]: «the first text».

    «the second text».

    ```
    code
    ```

[^long]:
    «the third text».

«a term»

:   «its meaning»
""",
}


def outline(text):
    """What a reader of Markdown finds in it, without its words."""
    environment = {}
    blocks = MarkdownIt("commonmark").enable("table").parse(text, environment)
    tokens = [each for block in blocks for each in (block, *(block.children or []))]
    shape = [
        (t.type, t.tag, t.attrs.get("href"), t.attrs.get("src")) for t in tokens if t.type not in ("text", "inline")
    ]
    return shape, [entry["href"] for entry in environment.get("references", {}).values()]


@pytest.mark.parametrize("program", MARKDOWN)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_markdown(program, end):
    plain = marked(MARKDOWN[program].replace("\n", end), ".md")
    assert outline(translated(plain, ".md")[1].replace("\r\n", "\n")) == outline(plain.replace("\r\n", "\n"))


SUBTITLES = {
    "YouTube": (
        ".vtt",
        "WEBVTT\nKind: captions\nLanguage: en\n\n00:00:01.000 --> 00:00:02.500 align:start position:0%\n"
        "«one»<00:00:01.500><c> «dog»</c><00:00:02.000><c> «runs»</c>\n\n"
        "00:00:03.000 --> 00:00:04.000\n&gt;&gt; «hello»\n&gt;&gt; «yes»\n",
    ),
    "an editor's WebVTT": (
        ".vtt",
        "WEBVTT\n\nSTYLE\n::cue { color: red }\n\nNOTE not this\n\nfirst cue\n00:01.000 --> 00:02.000\n"
        "<v.loud Roger Bingham>«we are here»\n\nNOTE\nnor this\n\nthe id\n00:03.000 --> 00:04.000\n"
        "<c.yellow>«and there»</c>\n",
    ),
    "Aegisub": (
        ".srt",
        "1\n00:00:01,000 --> 00:00:02,000\n{\\an8}<i>«a dog»</i>\\N«runs here»\n\n"
        "2\n00:00:03,000 --> 00:00:04,000\n{\\pos(1,2)}«one»\n",
    ),
    "ffmpeg": (
        ".srt",
        '1\n00:00:01,000 --> 00:00:02,000\n<font face="Arial" size="48" color="#ff0000">«a dog»</font>\n\n'
        "2\n00:00:03,000 --> 00:00:04,000\n{\\an7}«one»\n\n",
    ),
    "blank lines in cues": (
        ".srt",
        "1\n00:00:01,000 --> 00:00:02,000\n\n«a dog»\n \n«a cat»\n\n2\n00:00:03,000 --> 00:00:04,000\n«one»\n\n\n\n"
        "3\n00:00:05,000 --> 00:00:06,000\n\n\n4\n00:00:07,000 --> 00:00:08,000\n«two»\n5\n00:00:09,000 --> 00:00:10,000\n"
        "«three»\n\n12\n\n«four»",
    ),
    **{
        f"times as {times}": (".srt", f"1\n{times}\n«a dog»\n\n2\n{times}\n«a cat»\n")
        for times in (
            "00:00:01 --> 00:00:02",
            "00:00:01,000 -> 00:00:02,000",
            "00:00:01.000-->00:00:02.000",
            "00:00:01, 000 --> 00:00:02, 000",
            "00:00:01:000 --> 00:00:02:000",
            "0:1,5 –> 0:2,5",
            "00:00:01,000 \u2192 00:00:02,000",
            "-00:00:01,000 --> 00:00:02,000  X1:1 Y1:2",
        )
    },
}


@pytest.mark.parametrize("program", SUBTITLES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_subtitles(program, end):
    ending, content = SUBTITLES[program]
    marked(content.replace("\n", end), ending)


@pytest.mark.parametrize("ending", [".srt", ".vtt"])
@pytest.mark.parametrize("how", [upper, one_word, full_stop, lambda text: Hypothesis("", 0.0, 0.0, 1)])
def test_no_cue_gets_an_empty_line(ending, how):
    """Narrow cues, whose lines are more than the words of a translation."""
    draw = random.Random(1)
    for _ in range(40):
        words = draw.choices(["a", "dog.", "<i>runs</i>", "Two", "cats,", "<b>x", "y</b>"], k=draw.randint(2, 8))
        cue = "".join(word + draw.choice(["\n", "\n", " "]) for word in words[:-1]) + words[-1]
        head = "WEBVTT\n\n" * (ending == ".vtt")
        content = head + f"00:00:01.000 --> 00:00:02.000\n{cue}\n\n00:00:03.000 --> 00:00:04.000\nend\n"

        def at_one_place(text, how=how):  # which the words of all lines share
            hypothesis = how(text)
            links = tuple((i, 0) for i in range(len(text.split())))
            return Hypothesis(hypothesis.text, 0.0, 0.0, 1, alignment=draw.choice([None, links]))

        out = translated(content, ending, at_one_place)[1]
        lines = re.fullmatch(rf"{head}.*?-->.*?\n(.*)\n\n00:00:03.*", out, re.DOTALL)[1]
        empty = how("a").text == ""
        assert empty or "\n\n" not in f"\n{lines}\n", (cue, out)
        if not empty:
            said = pysubs2.SSAFile.from_string(out, ending[1:])
            assert [(event.start, event.end) for event in said] == [(1000, 2000), (3000, 4000)]


@pytest.mark.parametrize("how", [upper, one_word])
def test_the_breaks_of_a_cue_keep_their_number_where_words_are_left(how):
    out = translated("00:00:01,000 --> 00:00:02,000\na\nb\nc\nd\n", ".srt", lambda text: same_place(how, text))[1]
    assert out.count("\n") == (5 if how is upper else 2)


def same_place(how, text):
    return Hypothesis(how(text).text, 0.0, 0.0, 1, alignment=((3, 0), (2, 0), (1, 0), (0, 0)))


# Pages of Sphinx, MkDocs, rustdoc, Wikipedia, pandoc and Word.
PAGES = {
    "Sphinx": (
        '<section id="a"><h1>«The dog»<a class="headerlink" href="#a" title="«Link to this heading»">¶</a></h1>\n'
        '<p>«See» <a class="reference internal" href="b.html"><span class="doc">«the page»</span></a> «and» '
        '<a class="footnote-reference brackets" href="#id2" id="id1" role="doc-noteref">'
        '<span class="fn-bracket">[</span>1<span class="fn-bracket">]</span></a> «here».</p>\n'
        '<dl class="py function"><dt class="sig"><code class="sig-name">run</code><span class="sig-paren">(</span>'
        '<em class="sig-param">«x»</em><span class="sig-paren">)</span>'
        '<a class="headerlink" href="#run" title="«Link»">¶</a></dt></dl></section>'
    ),
    "MkDocs": '<h2 id="a">«The dog»<a class="headerlink" href="#a" title="«Permanent link»">&para;</a></h2><p>«one»</p>',
    "rustdoc": (
        '<h2 id="a"><a class="doc-anchor" href="#a">§</a>«The dog»</h2><p>«A» <code>u8</code>/<code>u16</code> «is»'
        ' <a href="x"><code>A</code></a>::<a href="y"><code>b</code></a>.</p>'
    ),
    "Wikipedia": (
        '<div class="mw-content-ltr mw-parser-output" lang="de" dir="ltr"><p>«The»<b> «dog»</b>'
        '<sup id="cite_ref-1" class="reference"><a href="#cite_note-1"><span class="cite-bracket">&#91;</span>1'
        '<span class="cite-bracket">&#93;</span></a></sup><sup id="r2" class="reference"><a href="#n2">[a]</a></sup> «is»'
        ' 5 «m»<sup>2</sup><sup>[note 1]</sup> «large»*.<sup>†</sup> «In» <a href="y">2024</a> «it was».</p></div>'
    ).replace("«The»<b> «dog»</b>", "«The» <b>«dog»</b>"),
    "pandoc": (
        '<p>«a note»<a href="#fn1" class="footnote-ref" id="fnref1" role="doc-noteref"><sup>1</sup></a> «here»</p>'
        '<ol><li id="fn1"><p>«the note»<a href="#fnref1" class="footnote-back" role="doc-backlink">↩︎</a></p></li></ol>'
    ),
    "Word": (
        "<p class=MsoNormal><b><span lang=de>«one»</span></b> «dog»"
        '<a href="#_ftn1" name="_ftnref1"><span class=MsoFootnoteReference><span>[1]</span></span></a> «here»</p>'
    ),
    "breadcrumbs": '<a href="/">«one»</a> <span>/</span> <a href="/a">«two»</a> <span>›</span> «three» <i>•</i> «four»',
}


def skeleton(page):
    """Elements, attributes and places as a parser of HTML reads them, without texts."""
    return [
        (each.tag, dict(each.attrib))
        for each in pages.fromstring(f"<div>{page}</div>").iter()
        if each.tag is not etree.Comment
    ]


@pytest.mark.parametrize("program", PAGES)
def test_pages(program):
    plain = marked(PAGES[program], ".html", language="de")
    for how in (upper, one_word, full_stop):
        out = translated(plain, ".html", how, language="de")[1]
        notes = {
            sign: plain.count(sign) for sign in ("¶", "&para;", "§", "[a]", "†", "<sup>", "<code>", "#cite_note-1")
        }
        assert {sign: out.count(sign) for sign in notes} == notes
        assert not re.search(r"<(b|i|em|strong)>[^\w<]*</\1>", out.replace("<i>•</i>", ""))
    bare = lambda page: [(tag, {n: v for n, v in said.items() if n != "title"}) for tag, said in skeleton(page)]  # noqa: E731
    assert bare(translated(plain, ".html", language="de")[1]) == bare(plain)


@pytest.mark.parametrize(
    ("page", "language", "expected"),
    [
        ('<html lang="en"><body dir=ltr>', "ar", '<html lang="ar" dir="rtl"><body dir=rtl>'),
        ('<html lang="en" dir="ltr"><p dir="ltr">', "fa-IR", '<html lang="fa-IR" dir="rtl"><p dir="ltr">'),
        ('<html lang="he" dir="rtl"><div lang="he" dir="rtl"><p lang="en" dir="ltr">', "de", None),
        ('<html dir="auto" lang="en">', "he", '<html dir="auto" lang="he">'),
        ('<html lang="en">', "de", '<html lang="de">'),
        ('<html lang="en" dir="ltr">', None, '<html lang="en" dir="ltr">'),
        ("<html>", "ur", '<html dir="rtl">'),
        ('<html lang="en">', "uz-Arab", '<html lang="uz-Arab" dir="rtl">'),
        (
            '<meta http-equiv="Content-Language" content="en">',
            "de",
            '<meta http-equiv="Content-Language" content="de">',
        ),
        ('<meta http-equiv="refresh" content="en">', "de", '<meta http-equiv="refresh" content="en">'),
    ],
)
def test_the_direction_of_a_page(page, language, expected):
    expected = expected or '<html lang="de" dir="ltr"><div lang="de" dir="ltr"><p lang="en" dir="ltr">'
    assert translated(f"{page}<p>a dog", ".html", language=language)[1] == f"{expected}<p>A DOG"


@pytest.mark.parametrize(
    "text",
    [
        *("`a`/`b`", "`a`, `b`", "`a`::`b`", "$x$ = $y$", "`a` -> `b` | `c`", "![](a.png) / ![](b.png)"),
        *("**`a`**/[`b`](c)", "`a`.`b`"),
    ],
)
@pytest.mark.parametrize("how", [upper, one_word, full_stop])
def test_kept_pieces_and_the_sign_between_them_stay(text, how):
    assert text in translated(f"The dog {text} is here.", ".md", how)[1]
    assert "." in translated(f"Say `a`. `b` {text} is.", ".md")[0][0]  # where a sentence ends, two pieces are two


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("a **b** [c](http://a) d", ".", "."),
        ("a **b** [c](http://a) d", "Wort", "[Wort](http://a)"),
        ("a **b [c](http://a)** d", "Wort.", "**[Wort](http://a)**."),
        ("[a](b) [c](d) _e_", "Wort", "[Wort](d)"),
        ("a ~~b~~ c", "", ""),
    ],
)
def test_an_element_without_a_word_is_left_out_and_a_link_takes_the_nearest(text, translation, expected):
    assert translated(text, ".md", lambda _: Hypothesis(translation, 0.0, 0.0, 1))[1] == expected
    links = tuple((i, 0) for i in range(2))
    out = translated(text, ".md", lambda _: Hypothesis(translation, 0.0, 0.0, 1, alignment=links))[1]
    assert not re.search(r"\*\*\W*\*\*|\[\W*\]|_\W*_|~~\W*~~", out)
    assert re.sub(r"\]\([^)]*\)|\W", "", out) == re.sub(r"\W", "", translation)


def test_a_word_is_looked_for_ten_words_away():
    """A word of an element that the alignment leaves out: the words near to it are in elements of their own."""
    text = "<b>one</b> " + " ".join(f"<i>{'x' * (n + 1)}</i>" for n in range(7)) + " end"
    links = tuple((n, n) for n in range(1, 8))
    words = "A " + " ".join("x" * (n + 1) for n in range(7)) + " Ende"
    out = translated(
        text.replace("<b>one</b>", "<i>A</i> <b>one</b>"),
        ".html",
        lambda _: Hypothesis(words, 0.0, 0.0, 1, alignment=((0, 0), *((n + 1, n) for n in range(1, 8)))),
    )[1]
    assert out.endswith("<b>Ende</b>"), (out, links)


W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" xmlns:m="m" xmlns:r="r" xmlns:w14="w14"'
A = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:c="c" xmlns:p="p" xmlns:r="r"'
ODF = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "text", "style")
)
ODF += ' xmlns:loext="l" xmlns:fo="fo"'


def run(text, properties=""):
    properties = f"<w:rPr>{properties}</w:rPr>" if properties else ""
    return f'<w:r>{properties}<w:t xml:space="preserve">{text}</w:t></w:r>'


def field(code, shown):
    kinds = [f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "separate", "end")]
    return f"{kinds[0]}<w:r><w:instrText> {code} </w:instrText></w:r>{kinds[1]}{run(shown)}{kinds[2]}"


def simple(code, shown):
    return f'<w:fldSimple w:instr=" {code} ">{run(shown)}</w:fldSimple>'


def control(properties, shown):
    return f"<w:sdt><w:sdtPr>{properties}</w:sdtPr><w:sdtContent>{run(shown)}</w:sdtContent></w:sdt>"


RUBY = '<w:ruby><w:rubyPr><w:lid w:val="ja-JP"/></w:rubyPr><w:rt><w:r><w:t>no</w:t></w:r></w:rt><w:rubyBase>%s</w:rubyBase></w:ruby>'
LINK = '<w:hyperlink r:id="rId4">%s</w:hyperlink>'
CHART = (
    "<c:ser><c:tx><c:strRef><c:f>Sheet1!$B$1</c:f><c:strCache><c:ptCount val='1'/><c:pt idx='0'><c:v>«Sales of dogs»</c:v>"
    "</c:pt></c:strCache></c:strRef></c:tx><c:val><c:numCache><c:formatCode>General</c:formatCode><c:pt idx='0'><c:v>4.3"
    "</c:v></c:pt></c:numCache></c:val></c:ser>"
)

# Word's, LibreOffice's, pandoc's and Google's ways, a paragraph each.
PARAGRAPHS = {
    "hidden": run("«see» ") + run("secret words ", "<w:vanish/>") + run("«it»"),
    "shown again": run("«see it»", '<w:vanish w:val="0"/>'),
    "code of pandoc": run("«call» ") + run("do it", '<w:rStyle w:val="VerbatimChar"/>') + run(" «now»"),
    "code of Word": run("«call» ") + run("do it", '<w:rStyle w:val="HTMLCode"/>') + run(" «now»"),
    "two pieces of code": run("«a» ")
    + run("x", '<w:rStyle w:val="SourceText"/>')
    + run("/")
    + run("y", '<w:rStyle w:val="SourceText"/>')
    + run(" «here»"),
    "lines of code": '<w:pPr><w:pStyle w:val="SourceCode"/></w:pPr>' + run("print this"),
    "lines of HTML": '<w:pPr><w:pStyle w:val="HTMLPreformatted"/></w:pPr>' + run("print this"),
    "a formula": run("«if» ") + "<m:oMath><m:r><m:t>speed</m:t></m:r></m:oMath>" + run(" «is»"),
    "notes": run("«a dog»") + run("*", '<w:vertAlign w:val="superscript"/>') + run(" «is»"),
    "blank of a link": run("«Important note»", '<w:u w:val="single"/>') + run(" «see» ") + LINK % run("«this»", "<w:u/>"),
    **{f"field {code}": run("«see» ") + field(code, "«the text»") + run(" «here»") for code in
       ('HYPERLINK "x"', "FORMTEXT", 'IF 1 = 1 "a" "b"', 'FILLIN "x"', "REF a", "QUOTE x")},
    **{f"field {code}": run("«see» ") + field(code, "the text") + run(" «here»") for code in
       ("DATE", "AUTHOR", "FILENAME", "PAGE", "DOCPROPERTY x", "MERGEFIELD n", "TITLE", "SEQ Figure", "= 1 + 1")},
    **{f"simple {code}": run("«see» ") + simple(code, "«the text»") + run(" «here»") for code in ("REF a", "FORMTEXT", "QUOTE x")},
    **{f"simple {code}": run("«see» ") + simple(code, "the text") + run(" «here»") for code in
       ("DATE \\@ yyyy", "AUTHOR", "FILENAME", "NUMPAGES", "MERGEFIELD n", "SAVEDATE", "USERNAME")},
    "a control": run("«see» ") + control('<w:alias w:val="x"/>', "«a text»") + run(" «here»"),
    "a bound control": run("«see» ") + control('<w:dataBinding w:xpath="x"/>', "a text") + run(" «here»"),
    "a box to tick": control("<w14:checkbox/>", "☐") + run(" «done»"),
}  # fmt: skip


def office(name, text):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr(name, text)
    return out.getvalue()


def member(content, name):
    return zipfile.ZipFile(io.BytesIO(content)).read(name).decode()


def in_member(ending, name, content, how=upper, **told):
    """What a member of an archive becomes, which is well-formed."""
    out = member(translated(office(name, content), ending, how, **told)[1], name)
    etree.fromstring(out.encode())
    return out


def marked_member(ending, name, content, **told):
    plain = re.sub("[«»]", "", content)
    assert in_member(ending, name, plain, **told) == re.sub("«([^«»]*)»", lambda match: match[1].upper(), content)


@pytest.mark.parametrize("kind", PARAGRAPHS)
def test_word(kind):
    marked_member(
        ".docx", "word/document.xml", f"<w:document {W}><w:body><w:p>{PARAGRAPHS[kind]}</w:p></w:body></w:document>"
    )


@pytest.mark.parametrize(
    ("ending", "name", "text"),
    [
        (".docx", "word/charts/chart1.xml", f"<c:chartSpace {A}>{CHART}</c:chartSpace>"),
        (".pptx", "ppt/charts/chart12.xml", f"<c:chartSpace {A}>{CHART}</c:chartSpace>"),
        (
            ".odt",
            "content.xml",
            f'<office:document-content {ODF}><style:style style:name="P1" style:parent-style-name="Preformatted_20_Text"/>'
            '<style:style style:name="T1" style:parent-style-name="Source_20_Text"><style:text-properties/></style:style>'
            '<style:style style:name="T2"><style:text-properties text:display="none"/></style:style>'
            '<style:style style:name="T4"><style:text-properties fo:font-weight="bold"/></style:style>'
            '<text:p text:style-name="P1">print this</text:p><text:p text:style-name="Preformatted_20_Text">and this</text:p>'
            '<text:p>«call» <text:span text:style-name="T1">do it</text:span>/<text:span text:style-name="Source_20_Text">it'
            '</text:span> «now» <text:span text:style-name="T2">secret</text:span> «here»'
            ' <text:span text:style-name="T4">«bold»</text:span></text:p>'
            '<text:p>«see» <loext:content-control loext:alias="x">«the text»</loext:content-control> «here» <text:text-input '
            'text:description="x">«input»</text:text-input> <text:date>1 May</text:date> <text:author-name>Anna'
            "</text:author-name></text:p></office:document-content>",
        ),
    ],
)
def test_charts_and_open_document(ending, name, text):
    marked_member(ending, name, text)


@pytest.mark.parametrize("main_first", [True, False])
@pytest.mark.parametrize(
    ("ending", "main", "others", "text"),
    [
        (
            ".docx",
            "word/document.xml",
            f"<w:styles {W}>"
            '<w:style w:styleId="C"><w:basedOn w:val="B"/></w:style>'
            '<w:style w:styleId="B"><w:basedOn w:val="HTMLCode"/></w:style>'
            '<w:style w:styleId="S"><w:rPr><w:vanish/></w:rPr></w:style><w:style w:styleId="N"/></w:styles>',
            f"<w:document {W}><w:p>"
            + run("«call» ")
            + run("do it", '<w:rStyle w:val="C"/>')
            + run(" «now» ")
            + run("secret", '<w:rStyle w:val="S"/>')
            + run("«here» ")
            + run("«bold»", '<w:rStyle w:val="N"/>')
            + '</w:p><w:p><w:pPr><w:pStyle w:val="C"/></w:pPr>'
            + run("print this")
            + "</w:p></w:document>",
        ),
        (
            ".odt",
            "content.xml",
            f'<office:document-styles {ODF}><style:style style:name="C" style:parent-style-name="Source_20_Text"/>'
            '<style:style style:name="S"><style:text-properties text:display="none"/></style:style>'
            '<style:style style:name="R"><style:text-properties style:text-position="super 58%"/></style:style>'
            "</office:document-styles>",
            f'<office:document-content {ODF}><style:style style:name="T1" style:parent-style-name="C"/>'
            '<style:style style:name="T2" style:parent-style-name="S"/><style:style style:name="T3" '
            'style:parent-style-name="R"/><text:p>«call» <text:span text:style-name="T1">do it</text:span> «now» '
            '<text:span text:style-name="T2">secret</text:span> «a dog»<text:span text:style-name="T3">2</text:span>'
            ' «here» <text:span text:style-name="T3">«th»</text:span></text:p></office:document-content>',
        ),
    ],
)
def test_styles_that_build_on_code_hidden_or_raised_ones(ending, main, others, text, main_first):
    members = [(main, re.sub("[«»]", "", text)), (main.rpartition("/")[0] + "/styles.xml", others)]
    members = [(name.lstrip("/"), content) for name, content in members]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in members if main_first else members[::-1]:
            file.writestr(name, content)
    seen, written = translated(out.getvalue(), ending, upper)
    assert member(written, main) == re.sub("«([^«»]*)»", lambda match: match[1].upper(), text)
    assert not re.search("do it|secret|print this|2", "".join(seen))


@pytest.mark.parametrize("ending", ["[A *big* dog][]", "[A *big* dog][] [x][]", "[the [A *big* dog][]"])
def test_a_link_by_its_own_label_is_translated(ending):
    out = translated(f"See {ending} here.\n\n[A *big* dog]: http://a\n", ".md", upper)[1]
    assert "[A *BIG* DOG][A *big* dog]" in out
    assert "HERE." in out


def test_ruby_is_its_base():
    ruby = f"<w:p>{run('a ')}<w:r>{RUBY % run('dog', '<w:b/>')}</w:r>{run(' runs')}</w:p>"
    out = in_member(".docx", "word/document.xml", f"<w:document {W}>{ruby}</w:document>")
    assert f"<w:p>{run('A ')}{run('DOG', '<w:b/>')}{run(' RUNS')}</w:p>" in out
    ruby = "<text:ruby><text:ruby-base>dog</text:ruby-base><text:ruby-text>no</text:ruby-text></text:ruby>"
    out = in_member(".odt", "content.xml", f"<office:text {ODF}><text:p>a {ruby} runs</text:p></office:text>")
    assert "<text:p>A DOG RUNS</text:p>" in out


# The order of Word's schema (CT_PPrBase, EG_RPrBase), as far as these documents go.
ORDER = ["pStyle", "keepNext", "numPr", "pBdr", "tabs", "bidi", "spacing", "ind", "jc", "outlineLvl", "rPr"]
RUN_ORDER = ["rStyle", "rFonts", "b", "i", "color", "sz", "u", "vertAlign", "rtl", "cs", "lang"]


@pytest.mark.parametrize("language", ["ar", "fa", "he", "ur-PK", "de", None])
@pytest.mark.parametrize(
    "properties",
    ["", "<w:pPr/>", '<w:pPr><w:pStyle w:val="a"/></w:pPr>', '<w:pPr><w:bidi/><w:jc w:val="left"/></w:pPr>',
     '<w:pPr><w:numPr><w:ilvl w:val="0"/></w:numPr><w:spacing w:after="1"/><w:ind w:left="1"/></w:pPr>',
     '<w:pPr><w:keepNext/><w:rPr><w:rtl/><w:lang w:val="en-US"/></w:rPr></w:pPr>'],
)  # fmt: skip
def test_the_direction_of_word(language, properties):
    looks = "<w:b/><w:rtl/><w:lang w:val='en-US' w:bidi='ar-SA'/>"
    text = f"<w:p>{properties}{run('one ')}{run('two', looks)}</w:p><w:p/>"
    out = in_member(".docx", "word/document.xml", f"<w:document {W}>{text}</w:document>", language=language)
    rtl = language not in ("de", None)
    root = etree.fromstring(out.encode())
    space = {"w": re.search('"(.*?)"', W)[1]}
    wanted = rtl if language else "bidi" in properties
    assert len(root.findall("w:p[1]/w:pPr/w:bidi", space)) == wanted
    assert len(root.findall("w:p[1]/w:r/w:rPr/w:rtl", space)) == (2 if rtl else language is None)
    for path, order in (("w:pPr", ORDER), ("w:rPr", RUN_ORDER)):
        for each in root.iterfind(f".//{path}", space):
            places = [order.index(etree.QName(child).localname) for child in each]
            assert places == sorted(places), out
    assert (f"w:bidi='{language}'" in out) == rtl


@pytest.mark.parametrize(("language", "mark"), [("ar", ' rtl="1"'), ("de", ""), (None, None)])
def test_the_direction_of_other_archives(language, mark):
    slide = f'<p:sld {A}><a:p><a:pPr algn="l" rtl="0"/><a:r><a:t>a dog</a:t></a:r></a:p><a:p><a:r><a:t>b</a:t></a:r></a:p></p:sld>'
    out = in_member(".pptx", "ppt/slides/slide1.xml", slide, language=language)
    assert ('algn="l" rtl="0"' in out) == (mark is None)
    assert out.count(' rtl="1"') == (2 if mark else 0)
    style = (
        f'<style:style {ODF}><style:paragraph-properties style:writing-mode="%s"/><text:p>a dog</text:p></style:style>'
    )
    for before in ("lr-tb", "rl-tb", "page"):
        after = in_member(".odt", "styles.xml", style % before, language=language)
        expected = before if language is None or before == "page" else "rl-tb" if mark else "lr-tb"
        assert f'writing-mode="{expected}"' in after


@pytest.mark.parametrize("words", ["see the long page here", "see the page"])
def test_the_blank_before_a_link_is_not_underlined(words):
    """PowerPoint's links are runs, and may be most of a paragraph."""
    link = '<a:rPr><a:hlinkClick r:id="rId2"/></a:rPr>'
    first, rest = words.split(" ", 1)
    slide = f"<p:sld {A}><a:p><a:r><a:t>{first} </a:t></a:r><a:r>{link}<a:t>{rest}</a:t></a:r><a:r><a:t> now</a:t></a:r></a:p></p:sld>"
    assert in_member(".pptx", "ppt/slides/slide1.xml", slide) == re.sub(
        "(?<=<a:t>)[^<]*", lambda match: match[0].upper(), slide
    )
