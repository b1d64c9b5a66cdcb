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
        "«one<00:00:01.500><c> dog</c><00:00:02.000><c> runs</c>»\n\n"
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
