"""Small documents in the style of what other programs write: what stays, what is translated, and that it is read again."""

import io
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
    wanted = re.sub("«([^«»]*)»", lambda match: match[1].upper(), content)
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
    shape = [(t.type, t.tag, t.attrs.get("href"), t.attrs.get("src")) for t in tokens if t.type not in ("text", "inline")]
    return shape, [entry["href"] for entry in environment.get("references", {}).values()]


@pytest.mark.parametrize("program", MARKDOWN)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_markdown(program, end):
    plain = marked(MARKDOWN[program].replace("\n", end), ".md")
    assert outline(translated(plain, ".md")[1].replace("\r\n", "\n")) == outline(plain.replace("\r\n", "\n"))
