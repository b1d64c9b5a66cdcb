"""Small documents in the style of what other programs write: what stays, what is translated, and that it is read again."""

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

    «text in a tab»

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

- [x] «done» :tada:

| «a head» | `x | y` |
| --- | --- |
| «cell» `a|b` «here» | «two» |

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

«a note»[^1] «and» [@doe2020, p. 3] «here».

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
    for _ in range(150):
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
        "<p class=MsoNormal><b><span lang=de>«one»</span></b><span style='x'>&nbsp;</span>«dog»"
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
        "`a`/`b`",
        "`a`, `b`",
        "`a`::`b`",
        "$x$ = $y$",
        "`a` -> `b` | `c`",
        "![](a.png) / ![](b.png)",
        "**`a`**/[`b`](c)",
        "`a`.`b`",
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
        ("a **b [c](http://a)** d", "Wort.", "**[Wort](http://a).**"),
        ("[a](b) [c](d) _e_", "Wort", "[Wort](b)"),
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
