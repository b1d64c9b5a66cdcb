"""Documents: what is translated, and that all else stays as it was."""

import io
import random
import re
import sys
import zipfile

import pytest

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.documents import Reading, read, read_bytes
from hf_mlnmt.generation import Hypothesis

GERMAN = {"the": "das", "red": "rote", "house": "Haus", "dog": "Hund", "sees": "sieht", "hello": "hallo"}
GERMAN |= {"world": "Welt", "and": "und"}


def word_by_word(text):
    return Hypothesis(re.sub(r"\w+", lambda match: GERMAN.get(match[0].lower(), match[0]), text), 0.0, 0.0, 1)


def translated(text, kind=".html"):
    document = read(text, kind)
    return document.write([word_by_word(one) for one in document.texts])


CASES = {
    "nested": (
        '<p>Hello <b>world</b>, the <i class="x">red <u>house</u></i>.</p>',
        '<p>hallo <b>Welt</b>, das <i class="x">rote <u>Haus</u></i>.</p>',
    ),
    "in a word": ("H<sub>2</sub>O and the <b>dog</b>!", "H<sub>2</sub>O und das <b>Hund</b>!"),
    "two paragraphs": ("<p>Hello<P CLASS=a>world</p>", "<p>hallo<P CLASS=a>Welt</p>"),
    "over blocks": ("<b><p>Hello</p><p>world</b> dog", "<b><p>hallo</p><p>Welt</b> Hund"),
    "crossed": ("<b>red <i>house</b> dog</i>", "<b>rote <i>Haus</b> Hund</i>"),
    "line in a sentence": ("Hello<br>world", "hallo<br>Welt"),
    "line after a sentence": ("<b>Hello.<br/>The dog.</b>", "<b>hallo.<br/>das Hund.</b>"),
    "entities": ("&nbsp;the dog &amp; world &lt;b&gt; &#128512;&nbsp;", "&nbsp;das Hund &amp; Welt &lt;b&gt; 😀&nbsp;"),
    "comment and image": (
        "Hello <!-- the dog --> world <img alt='dog'>.",
        "hallo <!-- the dog --> Welt <img alt='Hund'>.",
    ),
    "empty": ('<a id="x"></a>the dog<i></i> sees', '<a id="x"></a>das Hund<i></i> sieht'),
    "code between signs": (
        "the (<code>dog</code>, <code>red</code>) house <i>'<code>dog</code>'</i>.",
        "das (<code>dog</code>, <code>red</code>) Haus <i>'<code>dog</code>'</i>.",
    ),
    "images at the ends of elements": (
        "the <a><img> red</a> house <b>sees <img></b> <img> <i><b>dog</b> <img></i> world",
        "das <a><img> rote</a> Haus <b>sieht <img></b> <img> <i><b>Hund</b> <img></i> Welt",
    ),
    "code": ("the <code>dog</code> sees", "das <code>dog</code> sieht"),
    "not translated": (
        '<p translate="no">dog <p>dog <span class="a notranslate">dog <span>dog</span></span> sees</p>',
        '<p translate="no">dog <p>Hund <span class="a notranslate">dog <span>dog</span></span> sieht</p>',
    ),
    "script": (
        "<script>if (a</b>0) '<p>dog'</script><style>dog{}</style><pre>dog\n<b>dog</b></pre><p>dog",
        "<script>if (a</b>0) '<p>dog'</script><style>dog{}</style><pre>dog\n<b>dog</b></pre><p>Hund",
    ),
    "quoted >": ('<a title="a > b" href=x>dog</a>', '<a title="a > b" href=x>Hund</a>'),
    "no words": ("<p> 12 &gt; 3 &hellip; 😀 </p>", "<p> 12 &gt; 3 &hellip; 😀 </p>"),
    "no tag": ("1 < 2 and 3<4", "1 &lt; 2 und 3&lt;4"),
    "unfinished": ("<p>dog</p><!-- dog", "<p>Hund</p><!-- dog"),
    "whole page": (
        "<!DOCTYPE html>\n<html><head><title>The dog</title></head>\n<body>\n <h1>Hello</h1>\n</body></html>\n",
        "<!DOCTYPE html>\n<html><head><title>das Hund</title></head>\n<body>\n <h1>hallo</h1>\n</body></html>\n",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_html(name):
    before, after = CASES[name]
    assert translated(before) == after


def moved(text, translation, alignment=None):
    """A document of one text, translated; with an alignment where one is given."""
    hypothesis = Hypothesis(translation, 0.0, 0.0, 1)
    if alignment:
        object.__setattr__(hypothesis, "alignment", alignment)
    return read(text, ".html").write([hypothesis])


def test_an_element_follows_its_words():
    """Where words change their order, the alignment says where they went."""
    english, german = "He has <b>read</b> the <a href=x>book</a>.", "Er hat das Buch gelesen."
    aligned = ((0, 0), (1, 1), (2, 4), (3, 2), (4, 3))
    assert moved(english, german, aligned) == "Er hat das <a href=x>Buch</a> <b>gelesen</b>."


def test_an_element_that_comes_apart_is_written_twice_without_its_id():
    text = 'She <em id="one" class="x">called up</em> the man.'
    assert moved(text, "Sie rief den Mann an.", ((0, 0), (1, 1), (2, 4), (3, 2), (4, 3))) == (
        'Sie <em id="one" class="x">rief</em> den Mann <em class="x">an</em>.'
    )


@pytest.mark.parametrize(
    ("text", "translation", "alignment", "expected"),
    [
        ("<a>He has read it.</a>", "Er hat es gelesen.", "0-0 1-1 2-3 3-2", "<a>Er hat es gelesen.</a>"),
        ("<a>He has read it</a>.", "Er hat es gelesen.", "0-0 1-1 2-3 3-2", "<a>Er hat es gelesen</a>."),
        ("<a>They walk.</a>", "Sie gehen entlang.", "0-0 1-1", "<a>Sie gehen entlang.</a>"),
        ('<b>"They walk!"</b> No.', "Da gehen sie. Nein.", "0-1 0-2 1-1", "<b>Da gehen sie.</b> Nein."),
        ("He saw <b>Anna.</b>", "Er hat Anna gesehen.", "0-0 1-3 2-2", "Er hat <b>Anna</b> gesehen."),
        ("He saw <b>Anna</b>", "Er hat Anna gesehen.", "0-0 1-3 2-2", "Er hat <b>Anna</b> gesehen."),
        ("<i>They <b>walk.</b></i>", "Es gehen sie.", "0-2 1-1", "<i>Es <b>gehen</b> sie.</i>"),
        ("<a>They walk</a>", "Sie gehen.", "0-0 1-1", "<a>Sie gehen.</a>"),
    ],
)
def test_the_end_of_a_sentence_is_where_it_was(text, translation, alignment, expected):
    """What no word of the source stands for, a full stop above all, leaves no element in which the text ends."""
    document = read(text, ".html")
    links = tuple(tuple(map(int, link.split("-"))) for link in alignment.split())
    parts = re.findall(r"[^.]+\.", translation) if len(document.texts) > 1 else [translation]
    hypotheses = [Hypothesis(part.strip(), 0.0, 0.0, 1, alignment=links) for part in parts]
    assert document.write(hypotheses) == expected


def test_what_stood_before_a_full_stop_is_parted_from_a_word():
    """The full stop, a word of its own in the text of this, is one with a word of the translation."""
    links = ((0, 0), (1, 1), (2, 2))
    assert moved("They play <code>x</code>.", "Sie spielen dort.", links) == "Sie spielen <code>x</code> dort."
    assert moved("They play <img>here.", "Sie spielen hier.", links) == "Sie spielen <img>hier."


def test_without_an_alignment_the_same_words_and_the_places_between_say_it():
    assert (
        moved("Yesterday <b>Anna</b> came home.", "Nach Hause kam gestern Anna.")
        == "Nach Hause kam gestern <b>Anna</b>."
    )
    assert moved("<b>One two</b> three four", "eins zwei drei vier") == "<b>eins zwei</b> drei vier"


@pytest.mark.parametrize("translation", ["Wort", "", "ein langer Satz mit sehr vielen Wörtern", "猫は家にいます。"])
def test_no_link_and_no_picture_is_lost(translation):
    text = "the <a href=1>red</a> <b>house <i>and</i></b> <img src=2> the <a href=3>dog</a>"
    out = moved(text, translation)
    assert all(out.count(each) == 1 for each in ("<a href=1>", "<img src=2>", "<a href=3>"))
    assert not re.search(r"<(i|b)></\1>", out)  # emphasis without a word is left out
    assert re.sub(r"<[^>]*>", "", out).replace(" ", "") == translation.replace(" ", "")


def test_scripts_without_spaces_and_from_right_to_left():
    assert moved("<b>The cat</b> sleeps now", "猫正在睡觉").startswith("<b>猫")
    assert moved("the <b>2024</b> house", "البيت <2024>") == "البيت &lt;<b>2024</b>&gt;"


def test_what_a_model_writes_is_text():
    assert moved("<p>Hello</p>", "<script>alert(1)</script> & more") == (
        "<p>&lt;script&gt;alert(1)&lt;/script&gt; &amp; more</p>"
    )


def test_random_markup_keeps_every_tag_and_nests_as_before():
    draw = random.Random(1)
    pieces = ["<b>", "</b>", "<i>", "</i>", "<p>", "</p>", "dog ", "the", "<br>", "<!-- x -->", "&amp;", "<", ">"]
    pieces += ["house. ", "<code>", "</code>", "<span translate=no>", "</span>", "<img>", "&nbsp;", "\n", "😀"]
    pieces += ["<a id=x>", "</a>", "'"]
    for _ in range(300):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 40)))
        document = read(text, ".html")
        same = document.write([Hypothesis(one, 0.0, 0.0, 1) for one in document.texts])
        for tag in ("<p>", "</p>", "<img>", "<br>", "<!-- x -->", "<code>", "<a id=x>"):
            assert same.count(tag) == text.count(tag), text
        changed = document.write([Hypothesis("ein Wort", 0.0, 0.0, 1) for _ in document.texts])
        assert changed.count("<p>") == text.count("<p>"), text


@pytest.mark.parametrize(
    "text",
    [
        *("<b>dog </b>" * 3000, "<div>" * 5000 + "dog", "<b>" * 30_000, "<!--" * 30_000, "<" * 50_000, '<a "' * 30_000),
        *("</b>" * 30_000, "<p translate=no>" * 3000, "<a b=" * 30_000, "a" + " " * 50_000 + "b", "<code>" * 10_000),
        *("a" + "." * 60_000 + "b", "<b" + " " * 60_000 + ">a <i>b</i> a</b>"),
    ],
    ids="flat deep open comments lt quotes close untranslated attributes spaces code dots tags".split(),  # noqa: SIM905
)
def test_strange_markup_takes_time_in_proportion(text):
    """Quadratic, each of these would take minutes."""
    document = read(text, ".html")
    document.write([word_by_word(one) for one in document.texts])
    document.write([Hypothesis("b a b", 0.0, 0.0, 1, alignment=((2, 0), (0, 1), (1, 2))) for _ in document.texts])


def steps(text, kind):
    """The lines of Python that reading and writing run."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += 1
        return trace

    if kind in MEMBERS:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(MEMBERS[kind], text)
        text = file.getvalue()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        document = (read_bytes if kind in MEMBERS else read)(text, kind)
        document.write([word_by_word(one) for one in document.texts])
    finally:
        sys.settrace(before)
    return count


W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
STARTS = {".srt": "00:00:01,000 --> 00:00:02,500\n%s", ".md": "%s", ".xlf": "<xliff>%s</xliff>"}
STARTS |= {".docx": f"<w:body {W}><w:p>%s</w:p></w:body>", ".odt": "<x xmlns:text='t'>%s</x>"}
MEMBERS = {".docx": "word/document.xml", ".odt": "content.xml"}


@pytest.mark.parametrize(
    ("piece", "kind"),
    [
        *(("dog <img> ", ".html"), ("dog<br>", ".html"), ("Dog. <img> The ", ".html"), ("<!-- x -->dog ", ".html")),
        *(("dog <a id=x></a>", ".html"), ("<b>dog</b> ", ".html"), ("狗<img>", ".html"), ("<img>dog", ".html")),
        *(("dog\n", ".srt"), ("`x` *a ", ".md"), ("[a `b", ".md"), ("- a\n", ".md"), ("|a\\|b", ".md")),
        *(("![a](b ", ".md"), ('msgid "%d a\\n"\nmsgstr ""\n', ".po"), ("<a title='b'>", ".html")),
        *(("dog {a} %s 1 a_b A4\n", ".txt"), ("<pc><source>a</source></pc>", ".xlf")),
        ("<trans-unit><source>a <g/>b</source></trans-unit>", ".xlf"),
        *(("<w:p><w:r><w:t>a</w:t></w:r></w:p>", ".docx"), ("<w:r><w:t>a</w:t><w:br/></w:r>", ".docx")),
        ('<w:r><w:fldChar w:fldCharType="begin"/><w:t>a</w:t></w:r>', ".docx"),
        ("<text:p>a<text:note/></text:p>", ".odt"),
    ],
)
def test_twice_the_marks_take_twice_the_steps(piece, kind):
    _, some, twice = (steps(STARTS.get(kind, "%s") % (piece * number), kind) for number in (1, 100, 200))  # 1 imports
    assert 1.8 * some < twice < 2.2 * some, "or the piece is not read at all"


def test_reading_and_writing_can_be_ended():
    """Who has a limit of time is asked at every tag and every word."""
    asked = []
    reading = Reading(lambda: asked.append("reading"))
    document = read("<p>The <b>dog</b>. <img> Hello <i>world</i></p>" * 20, ".html", reading)
    reading.check = lambda: asked.append("written")
    document.write([word_by_word(one) for one in document.texts])
    assert asked.count("reading") >= 20 * 7
    assert asked.count("written") >= 20 * 4
    with pytest.raises(ZeroDivisionError):
        read("Hello\nworld", ".txt", Reading(lambda: 1 / 0))


def test_elements_inside_one_another_are_limited():
    with pytest.raises(UserError, match="more than 100 elements inside one another"):
        read("<b>a " * 101 + "</b>" * 101, ".html")


SUBTITLES = (
    "\ufeff1\r\n00:00:01,000 --> 00:00:02,000\r\n<i>Hello world</i>\r\nthe dog\r\n\r\n"
    "2\r\n00:00:03,000 --> 00:00:04,500 X1:1\r\n{\\an8}- Hello.\r\n- The dog & house!\r\n"
)


def test_subtitles_keep_numbers_times_and_lines():
    assert translated(SUBTITLES, ".srt") == (
        "\ufeff1\r\n00:00:01,000 --> 00:00:02,000\r\n<i>hallo Welt</i>\r\ndas Hund\r\n\r\n"
        "2\r\n00:00:03,000 --> 00:00:04,500 X1:1\r\n{\\an8}- hallo.\r\n- das Hund & Haus!\r\n"
    )
    assert read(SUBTITLES, ".srt").texts == ["Hello world the dog", "Hello.", "The dog & house!"]


@pytest.mark.parametrize(
    ("cue", "texts"),
    [
        ("- Hello\n- <i>the dog</i>\n", ["Hello", "the dog"]),
        ("<i>- Hello\n-the dog</i>\n", ["Hello", "the dog"]),
        ("<i>\u2013 Hello</i>\r\n<i>\u2014the dog</i>\r\n", ["Hello", "the dog"]),
        ("-5 dog - house\n", ["-5 dog - house"]),
    ],
)
def test_the_dashes_of_a_dialogue_are_no_text(cue, texts):
    """A model that never saw one leaves it out; each is another speaker's line, whether the one before ends or not."""
    document = read("00:00:01,000 --> 00:00:02,000\n" + cue, ".srt")
    assert document.texts == texts
    written = document.write([word_by_word(one) for one in document.texts])
    assert written == "00:00:01,000 --> 00:00:02,000\n" + word_by_word(cue).text


def test_subtitles_without_times_are_refused():
    for text, ending, said in (
        ("Hello world", ".srt", "not SubRip"),
        ("WEBVTT\n\nHello", ".vtt", r"not WebVTT \(vtt\)"),
    ):
        with pytest.raises(UserError, match=said):
            read(text, ending)


def test_plain_text_keeps_its_lines():
    assert translated("Hello world\r\n\r\n  the dog. 5 < 6\n<b>red</b>", ".txt") == (
        "hallo Welt\r\n\r\n  das Hund. 5 < 6\n<b>rote</b>"
    )
