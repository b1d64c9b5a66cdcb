"""Lengths and words by language: what a filter, a judge of outputs and a statistic count."""

from __future__ import annotations

import pytest

from hf_mlnmt.analysis.outputs import has_run, is_copied, is_repeated, is_untranslated, source_lengths
from hf_mlnmt.data import CorpusSpec, Tokenizers, encode_corpus, train_tokenizer
from hf_mlnmt.data.filters import PairFilter
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.words import is_unspaced, is_visible, spelt, spoken, terms, without_invisible, words
from hf_mlnmt.generation.synthetic.methods import Counts, Judge

ENGLISH = "The weather is very nice today, so we walk in the park."
# Without spaces: Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan; Chinese of the rarer planes.
UNSPACED = [
    "今天天气很好我们去公园散步。",
    "今日は天気がいいので公園を散歩します。",
    "วันนี้อากาศดีมากเราจึงเดินเล่นในสวน",
    "ມື້ນີ້ອາກາດດີຫຼາຍພວກເຮົາຍ່າງຫຼິ້ນ",
    "ថ្ងៃនេះអាកាសធាតុល្អណាស់យើងដើរ",
    "ဒီနေ့ရာသီဥတုကောင်းတယ်",
    "དེ་རིང་གནམ་གཤིས་ཡག་པོ་འདུག",
    "我用Python编程已经3年了𠀀𠀁",
]  # fmt: skip
# With spaces: Korean, Hindi, Arabic, Persian with U+200C, Hebrew with points, Vietnamese with marks apart, Amharic.
SPACED = [
    "오늘 날씨가 아주 좋아서 우리는 공원을 산책해요.",
    "आज मौसम बहुत अच्छा है इसलिए हम पार्क में घूमते हैं।",
    "الطقس جميل جدا اليوم لذلك نتمشى في الحديقة",
    "امروز هوا خوب است و ما می‌خواهیم قدم بزنیم",
    "שָׁלוֹם לָכֶם חֲבֵרִים",
    "Ho\u0302m nay tro\u031b\u0300i \u0111e\u0323p",
    "ዛሬ አየሩ በጣም ጥሩ ነው",
    "He lives in 東京 and not in 京都.",
    "我们 去 公园 散步 。",
]


@pytest.mark.parametrize("text", UNSPACED)
def test_a_side_without_spaces_is_as_long_as_its_characters(text):
    keep = PairFilter(max_ratio=4, max_word=20)
    assert keep.reason(ENGLISH, text) is None
    assert keep.reason(text, ENGLISH) is None
    assert PairFilter(max_ratio=4).reason("A dog.", 5 * text) == "length ratio above 4"
    assert PairFilter(max_length=100).reason(ENGLISH, 40 * text) == "longer than 100 words"
    assert PairFilter(max_length=100).reason(40 * text) == "longer than 100 words"
    assert PairFilter(min_length=5).reason(ENGLISH, text) is None
    assert PairFilter(max_word=20).reason(text) is None
    assert source_lengths([text])[0] > 4


@pytest.mark.parametrize("text", SPACED)
def test_a_side_with_spaces_is_as_long_as_its_words(text):
    count = len(text.split())
    assert PairFilter(max_length=count).reason(text, text) is None
    assert PairFilter(min_length=1, max_length=count - 1).reason(text, text) == f"longer than {count - 1} words"
    assert source_lengths([text]) == [count]


@pytest.mark.parametrize("text", UNSPACED)
def test_an_output_without_spaces_is_judged_by_its_characters(text):
    def reasons(read, written):
        judge = Judge((), 3.0, Counts())
        judge.keeps(read, written, True, written)
        return set(judge.counts.found)

    assert reasons(ENGLISH, text) == reasons(text, ENGLISH) == set()
    phrase = "".join(spoken(text)[1:6])
    assert reasons("A dog.", 5 * text) == {"long"}
    assert reasons("A dog.", 5 * phrase) == {"long", "repeated"}
    assert reasons(ENGLISH, 5 * phrase) == {"repeated"}


@pytest.mark.parametrize("text", UNSPACED)
def test_faults_of_outputs_without_spaces(text):
    assert not has_run(text)
    phrase = "".join(spoken(text)[1:6])
    assert has_run(phrase + phrase)
    assert is_repeated(ENGLISH, phrase + phrase, text)
    assert is_copied(text, text, ENGLISH)
    assert is_untranslated(text, text[:-1], ENGLISH)
    assert not is_untranslated(ENGLISH, text, text)


def test_marks_belong_to_their_letters():
    other = "हम कल बाजार जाएंगे"
    assert not has_run("नानी ने नीना")  # one consonant, three vowel signs
    assert has_run("हिन्दी में, हिन्दी में")
    assert not {*terms("हिन्दी भाषा")} & {*terms("हल्दी भूषण")}
    assert {*terms(other)} <= {*other.split()}


@pytest.mark.parametrize("processing", [{}, {"source": TextProcessing("en", moses=True)}], ids=["plain", "Moses"])
def test_invisible_characters_are_read_nowhere(processing):
    """Soft hyphen, zero-width space, byte-order mark, marks of direction, word joiner: no tokenizer has them."""
    odd, plain = "\ufeffA ci\u00adty \u202awi\u200bth\u202c h\u2060ou\u200ese\u2066s\u2069", "A city with houses"
    tokenizer = train_tokenizer([odd] * 3, "bpe", vocab_size=300, byte_fallback=False)
    assert not {"\u00ad", "\u200b", "\ufeff"} & set("".join(tokenizer.get_vocab()))
    sides = Tokenizers(tokenizer, tokenizer, processing)
    for encode in (sides.encode_source, sides.encode_target):
        assert encode([odd])[0].tolist() == encode([plain])[0].tolist()


# Persian and Hindi with their joiners, Khmer and Thai with the zero-width space behind words, an emoji of three.
NEEDED = ["می\u200cخواهم", "क्\u200dष क्\u200cष", "ខ្ញុំ\u200bទៅ", "ฉัน\u200bไป", "👩\u200d👩\u200d👧"]


@pytest.mark.parametrize("text", NEEDED)
def test_what_a_language_needs_stays(text):
    assert without_invisible(text) == text
    assert without_invisible(f"\u200b{text}\u00ad") == text


def test_words_of_two_languages_in_one_script():
    def share(text, other):
        return len({*terms(text)} & {*terms(other)}) / len({*terms(text)})

    japanese, chinese = UNSPACED[1], UNSPACED[0]
    assert share(chinese, "他说今天天气很好") > 0.4
    assert share(chinese, japanese) < 0.2


def test_a_filter_that_drops_much_is_said(tmp_path, caplog):
    (tmp_path / "a.tsv").write_text(
        "".join(f"a house {i}\tein Haus {'sehr ' * (i % 4 == 0) * 9}{i}\n" for i in range(40))
    )
    tokenizers = Tokenizers(*[train_tokenizer(["a house ein Haus sehr"] * 9, vocab_size=300)] * 2)
    spec = CorpusSpec(path="a.tsv")
    encode_corpus(spec, tmp_path, tokenizers, tmp_path / "data", PairFilter(max_length=8))
    assert "a.tsv: 25% of its 40 pairs are dropped: longer than 8 words" in caplog.text
    assert all(said in caplog.text for said in ("10", "data.filters"))
    caplog.clear()
    encode_corpus(spec, tmp_path, tokenizers, tmp_path / "data", PairFilter(max_length=20))
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("今天", 2),
        ("今天天气 很好我们", 2),  # four characters between spaces, in the mean: somebody put spaces between words
        ("今天天气 很好我们去", 9),
        ("我a", 1),  # as many characters as runs of other letters
        ("我们a", 3),
    ],
)
def test_where_a_text_without_spaces_begins(text, count):
    assert is_unspaced(text) is (count != len(text.split()))
    assert len(words(text)) == count


def test_what_shows_nothing_is_that_of_unicode():
    """Inside a word; what a script or emoji is written with stays."""
    import regex

    ignorable = regex.findall(
        r"\p{Default_Ignorable_Code_Point}", "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    )
    assert len(ignorable) > 4000
    for sign in {*ignorable, "\ufffc", "\u2800", "\ufff9"} - {"\u200c", "\u200d"}:
        assert without_invisible(f"do{sign}g") == "dog", hex(ord(sign))
        assert not is_visible(f"{sign} \u200d")
    kept = [
        "\u2764\ufe0f",
        "1\ufe0f\u20e3",
        "\U0001f3f4\U000e0067\U000e0062\U000e007f",
        "\u1820\u180b\u1821\u180e\u1820",
    ]
    for text in [*kept, "\u115f\u1161", "\u1100\u1160", "\u2813\u2800\u2811", "\u0e01\u200b\u0e01", "می\u200cخواهیم"]:
        assert without_invisible(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ｔｗｏ ｄｏｇｓ！", "Two dogs!"),
        ("ﬁsh ½ ² \u2026 \u00a0 Ⅳ", "fish ½ ² \u2026 \u00a0 IV"),  # what is not known, and what says another number
        ("ｶﾞｰ猫", "ガー猫"),
        ("über \u2126 日本", "über \u2126 日本"),
    ],
)
def test_what_an_alphabet_lacks_is_spelt_otherwise(text, expected):
    assert spelt(text, set("Twodgsfih!IV12ガー猫ü").__contains__) == expected
    assert spelt(text, lambda sign: True) == text


FULL_WIDTH = {number: number + 0xFEE0 for number in range(33, 127)}
BOLD = {65 + number: 0x1D400 + number for number in range(26)} | {97 + number: 0x1D41A + number for number in range(26)}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_letters_are_read_so_in_training_and_in_translating(kind):
    tokenizer = train_tokenizer([ENGLISH, "Two dogs run fast."] * 20, kind, 400)
    tokenizers = Tokenizers(tokenizer, tokenizer)
    expected = [ids.tolist() for ids in tokenizers.encode_source([ENGLISH])]
    for letters in (FULL_WIDTH, BOLD):
        text = ENGLISH.translate(letters)
        assert [ids.tolist() for ids in tokenizers.encode_source([text])] == expected
        for side in tokenizers.sides().values():
            assert [side([text])[0].tolist()] == expected
