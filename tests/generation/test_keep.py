"""Parts of the source that a translation keeps: found, asked for in the search, or put in by the alignment."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from helpers.contract import Member
from helpers.fused import fused
from helpers.toy_context import bigram_translator
from helpers.toy_translators import SENTENCES, bpe, our_model

from hf_mlnmt import UserError
from hf_mlnmt.data import placeholders
from hf_mlnmt.data.placeholders import Kept, checked_patterns, whole, with_placeholders
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer
from hf_mlnmt.generation import DecodingOptions, TranslationPipeline
from hf_mlnmt.generation.constraints.lexical_constraints import ForbiddenPhrases, Pattern, WholeParts, spelling_of
from hf_mlnmt.generation.constraints.linked import KeptPart, Linked, filled
from hf_mlnmt.generation.constraints.rules import TextConstraints
from hf_mlnmt.generation.translating.call import TranslationCall
from hf_mlnmt.generation.translating.loading import Parts

KINDS = "url,email,number,tag,placeholder"
PARTS = ["https://a.example/b?c=1", "jo.doe@a.example", "3.14", "<b>", "{name}", "%s"]
OPTIONS = {"num_beams": 4, "max_new_tokens": 24}
TEXTS = [f"{sentence.rstrip('.')} {part}." for sentence, part in zip(SENTENCES, PARTS)]
TEXTS += ["A dog.", "", "3.14 and 3.14 men in 3 houses."]


def parts_in(text, *patterns):
    return [part.text for part in Kept(patterns or checked_patterns(KINDS, "keep"))([text])[0]]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("See https://a.b/c?d=e#f, or www.a.de.", ["https://a.b/c?d=e#f", "www.a.de"]),
        ("jo.doe+x@a.example wrote.", ["jo.doe+x@a.example"]),
        ("3.5, 1,000 at 10:30 on 24/12/2019 (7) A4 x2", ["3.5", "1,000", "10:30", "24/12/2019", "7"]),
        ("我有2019年的狗", ["2019"]),
        ('a <b>red</b> <a href="x y">x</a><br/>', ["<b>", "</b>", '<a href="x y">', "</a>", "<br/>"]),
        ("3 < 4 > 1", ["3", "4", "1"]),
        ("{name} ${x} {{y}} %s %1$d %(z)s 100% sure", ["{name}", "${x}", "{{y}}", "%s", "%1$d", "%(z)s", "100"]),
        ("nothing here", []),
    ],
)  # fmt: skip
def test_the_named_kinds(text, parts):
    assert parts_in(text) == parts


def test_parts_that_overlap_and_white_space_around():
    assert parts_in("http://a.b/12 12", "number", "url") == ["http://a.b/12", "12"]
    assert parts_in("AB-12 x", r"[A-Z]+", r"[A-Z]+-\d+") == ["AB-12"]
    assert parts_in("red cars ,x", r" \w+ ", r"\b") == ["cars"]


def test_names_with_commas_between_them_and_what_only_looks_like_them():
    assert checked_patterns("number, url", "keep") == ["number", "url"]
    assert checked_patterns(["number,url,", ", tag ,,"], "keep") == ["number", "url", "tag"]
    for other in ("number,dogs", "tag,xyz", r"\d+,url", "url,a1,", "email,Url"):
        with pytest.raises(UserError, match=r"keep: '.*' .*is none of url, email"):
            checked_patterns(other, "keep")
    assert checked_patterns("dogs,cats", "keep") == ["dogs,cats"]
    with pytest.raises(UserError, match=r"keep: 'numbers' \(did you mean 'number'\?\)"):
        checked_patterns("url,numbers", "keep")


@pytest.mark.parametrize(
    "given", ["", " ", 3, ["url", 3], "(", "a*", "urls", "x" * 1001, "(?:(?:a{99}){99}){99}", r"\L<x>"]
)
def test_what_is_no_pattern_is_refused(given):
    with pytest.raises(UserError, match="keep: "):
        DecodingOptions(keep=given)
    assert DecodingOptions(keep=["url, number", "u{2}rls"]).keep == ["url", "number", "u{2}rls"]


def test_a_regular_expression_that_does_not_end_is_bounded(monkeypatch):
    monkeypatch.setattr(placeholders, "_SECONDS", 0.02)
    with pytest.raises(UserError, match=r"keep: the regular expression .* does not come to an end"):
        Kept([r"(a|aa)+$"])(["a" * 60 + "b"])


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([*SENTENCES, *TEXTS * 9], vocab_size=500)  # with bytes: it spells everything


@pytest.fixture(scope="module")
def pipeline(tokenizer):
    model = our_model(len(tokenizer), max_position_embeddings=96)
    return TranslationPipeline(Parts(model, Tokenizers(tokenizer, tokenizer)))


def assert_kept(text, translation):
    """Each part is there as often as in the source, as no piece of a word; longer ones are taken out first."""
    for part, times in sorted(Counter(parts_in(text)).items(), key=lambda item: -len(item[0])):
        translation, found = whole(part).subn(" ", translation)
        assert found == times, (part, translation)


def test_what_matches_stands_as_it_is_whatever_the_order(pipeline):
    translations = pipeline(TEXTS, keep=KINDS, **OPTIONS)
    plain = pipeline(TEXTS, **OPTIONS)
    for text, translation in zip(TEXTS, translations):
        assert_kept(text, translation)
    assert not any(part in translation for part, translation in zip(PARTS, plain))
    assert translations[6:8] == plain[6:8]
    assert [pipeline(text, keep=KINDS, **OPTIONS) for text in TEXTS[::4]] == translations[::4]
    assert list(pipeline.stream(TEXTS[::-1], window=4, keep=KINDS, batch_tokens=60, **OPTIONS)) == translations[::-1]
    assert pipeline(TEXTS[:3], keep="url", **OPTIONS)[1:] == plain[1:3]
    ranked = pipeline(TEXTS, keep=KINDS, num_return_sequences=3, alignments=True, **OPTIONS)
    for text, of_text in zip(TEXTS, ranked):
        for hypothesis in of_text:
            assert_kept(text, hypothesis.text)
            assert max((word for _, word in hypothesis.alignment), default=0) <= len(hypothesis.text.split())
    line = " ".join(TEXTS[:2])
    assert_kept(line, pipeline(line, split="sentences", keep=KINDS, **OPTIONS))


def test_beside_terms_phrases_and_prefixes(pipeline):
    asked = {"terms": {"dog": "house"}, "force_phrases": ["red", None], "bad_phrases": ["men", None], **OPTIONS}
    texts = ["The dog 7.", "A dog {x}."]
    first, second = pipeline(texts, keep=KINDS, **asked)
    assert all(word in first for word in ("7", "house", "red"))
    assert all(word in second for word in ("{x}", "house"))
    asked |= {"force_phrases": [None, "red"], "bad_phrases": [None, "men"]}
    assert pipeline(texts[::-1], keep=KINDS, **asked) == [second, first]
    assert pipeline(texts, keep=KINDS, target_prefix=["Red 7", ""], **OPTIONS)[0].startswith("Red 7")


def test_what_must_not_be_there_is_not_kept(pipeline, caplog):
    (found,) = pipeline(["The 7 dogs {x}."], keep=KINDS, bad_phrases="7", **OPTIONS)
    assert "{x}" in found
    assert "7" not in found.split()
    assert "line 1: a part is not kept" in caplog.text


def test_no_word_goes_on_behind_a_part_and_no_copy_is_too_many(tokenizer):
    """Whatever is drawn among what is allowed."""
    spelling, draws = spelling_of(tokenizer), torch.Generator().manual_seed(1)
    parts = {"3": 1, "5a": 1, "{": 2}
    letters = [number for of_token, number in spelling.ordered if of_token in (b" ", *(b"3", b".", b"5", b"{", b"a"))]
    rule, rows = WholeParts(spelling, [parts], [1], 0, 99), torch.full((64, 1), 3)
    for _ in range(30):
        weights = torch.where(rule(rows, torch.zeros(len(rows), len(tokenizer))).isinf(), 0.0, 1e-6)
        weights[:, [1, *letters]] *= 1e6
        rows = torch.cat([rows, torch.multinomial(weights, 1, generator=draws)], 1)
    counts = Counter()
    for row in rows[:, 1:].tolist():
        text = spelling.spelt(row).decode("utf-8", "replace")
        for part, times in parts.items():
            found = [match.end() for match in whole(part).finditer(text)]
            assert len(found[:-1]) <= times, text  # the last one may go on
            counts[part] += len(found)
            first = re.search(rf"(?<!\w){part}[.]?(\w?)", text) if part != "{" else None
            assert first is None or not first[1], text
    assert min(counts[part] for part in parts) > 3


def test_the_tokens_that_complete_a_phrase_are_all_found(tokenizer):
    for spelling in (spelling_of(tokenizer), spelling_of(bpe())):
        for phrase in ("the dog", "aa a", "ab ab c", "内", "(x)"):
            pattern, rule = Pattern.of(phrase), ForbiddenPhrases(spelling, [[phrase]], [1], 0, 99)
            for size in range(len(pattern.text) + 1):
                text = b"\1" * 3 + pattern.text[:size]
                state = pattern.follow(0, text[-len(pattern.text) - 1 :]) or 0
                for last, complete in ((False, (None,)), (True, (None, len(pattern.text)))):
                    slow = {number for part, number in spelling.plain if pattern.follow(state, part) in complete}
                    slow |= {1} if state == len(pattern.text) else set()
                    assert set(rule.completing(pattern, text, last).tolist()) == slow


# Where it stands


def test_each_goes_where_the_links_say_and_the_others_in_their_order():
    source = "12 men and 34 dogs with 56"
    parts = [KeptPart(part, "<n>", [[5]]) for part in Kept(["number"])([source])[0]]
    target = "Mit <n> sind <n> Hunde, <n> da"
    assert filled(source, target, parts, {(6, 1), (3, 3)})[0] == "Mit 56 sind 34 Hunde, 12 da"
    assert filled(source, target, parts, ())[0] == "Mit 12 sind 34 Hunde, 56 da"
    assert filled(source, "<n> da, <n>", parts, {(0, 2)}) == ("34 da, 12", Counter({"56": 1}))
    own = [KeptPart(part, part.text, [[5]]) for part in Kept(["number"])(["3.5 is 3"])[0]]
    assert filled("3.5 is 3", "3 x 3.5", own, ()) == ("3 x 3.5", Counter())
    assert filled("3.5 is 3", "3.5", own, ()) == ("3.5", Counter({"3": 1}))


@pytest.mark.parametrize(
    ("source", "target", "alignment", "expected", "before"),
    [
        ("A {x} dog.", "Ein Hund.", ((0, 0), (2, 1)), "Ein {x} Hund.", [0, None, 1]),
        ("A dog {x}.", "Ein Hund Quark.", ((0, 0), (1, 1), (2, 2)), "Ein Hund {x}.", [0, 1, None]),
        ("A dog {x}.", "Ein Hund.", None, "Ein Hund {x}.", [0, 1, None]),
        ("{x} dog", "", (), "{x}", [None]),
        ("A dog {x}.", "一只狗。", ((0, 0),), "一只狗{x}。", [0, 1, 2, None, 3]),
    ],
)
def test_what_is_lacking_is_put_in(source, target, alignment, expected, before):
    linked = Linked(source, target, alignment)
    found = linked.put_back(Counter(["{x}"]), [("{x}", source.index("{"), source.index("}") + 1)], lambda word: ())
    assert (linked.target, len(found), found.count(None)) == (expected, len(before), before.count(None))
    assert [number for number in found if number is not None] == sorted(
        number for number in before if number is not None
    )


def test_what_the_vocabulary_cannot_spell_is_put_in_and_said(caplog):
    tokenizer = train_tokenizer(SENTENCES, vocab_size=200, byte_fallback=False)
    pipeline = TranslationPipeline(Parts(our_model(len(tokenizer)), Tokenizers(tokenizer, tokenizer)))
    texts = ["A green {name} dog.", "A man."]
    free, found = pipeline(texts, num_beams=4), pipeline(texts, keep=KINDS, num_beams=4, alignments=True)
    assert found[0][0].text.split().count("{name}") + found[0][0].text.split().count("{name}.") == 1
    assert found[1][0].text == free[1]
    assert any(read == 2 for read, _ in found[0][0].alignment)
    assert pipeline(texts, keep=KINDS, num_beams=4) == [each[0].text for each in found]
    assert "cannot spell: 1, the first is line 1" in caplog.text


# Models


MODELS = {
    "rnn": lambda size: Member("rnn", "post", {"vocab_size": size, "d_model": 16}).model(dtype=torch.float32),
    "fused": lambda size: fused(bigram_translator(size), normalization="sequence", alpha=0.6, beta=0.4),
}


@pytest.mark.parametrize("kind", MODELS)
def test_other_families_keep_parts_too(kind, tokenizer):
    pipeline = TranslationPipeline(Parts(MODELS[kind](len(tokenizer)), Tokenizers(tokenizer, tokenizer)))
    for text, translation in zip(TEXTS, pipeline(TEXTS, keep=KINDS, **OPTIONS)):
        assert_kept(text, translation)


@pytest.mark.parametrize(
    ("family", "asked"), [("marian", {}), ("nllb", {"source_language": "eng_Latn", "target_language": "deu_Latn"})]
)
@pytest.mark.parametrize("fast", [True, False])
def test_imported_models_keep_what_they_spell(foreign, family, asked, fast, caplog):
    texts = ["A dog plays.", "The man takes a red house.", "Two men."]
    pipeline = TranslationPipeline.from_pretrained(str(foreign[family]), device="cpu", fast=fast)
    if not fast:
        with pytest.raises(UserError, match="only this package's beam search knows them"):
            pipeline(texts, keep="plays|red|men", num_beams=4, **asked)
        return
    found = pipeline(texts, keep="plays|red|men", num_beams=4, max_new_tokens=14, **asked)
    assert all(len(whole(part).findall(text)) == 1 for part, text in zip(("plays", "red", "men"), found))
    assert "put in where" not in caplog.text


# Tokens that a model was trained with


@pytest.fixture(scope="module")
def trained():
    """A random model whose tokenizer and configuration are those of one that was trained with placeholders."""
    texts = [f"{sentence} <n> <u>" for sentence in SENTENCES]
    tokenizer = train_tokenizer(texts, vocab_size=450, keep=["<n>", "<u>"])
    model = our_model(len(tokenizer))
    model.generation_config.placeholders = {"<n>": "number", "<u>": "url"}
    return TranslationPipeline(Parts(model, Tokenizers(tokenizer, tokenizer)))


def test_tokens_stand_for_the_parts_while_it_is_searched(trained, monkeypatch):
    searched, search = [], TranslationCall.search
    monkeypatch.setattr(
        TranslationCall, "search", lambda call, inputs, **more: searched.extend(inputs) or search(call, inputs, **more)
    )
    texts = ["12 men, 3.5 dogs and 7 at www.a.de/x.", "The <n> 3 {x} dogs.", "A man in 2019.", "A man."]
    found = trained(texts, keep=KINDS, **OPTIONS)
    for text, translation in zip(texts, found):
        assert_kept(text, translation)
    shown = {piece.source: piece.text for piece in searched}
    assert shown[texts[0]] == "<n> men, <n> dogs and <n> at <u>."
    assert shown[texts[1]] == texts[1]  # which has the token already
    assert [trained(text, keep=KINDS, **OPTIONS) for text in texts[::-1]] == found[::-1]
    assert trained(texts[2:], **OPTIONS)[1] == found[3]
    (best,) = trained(texts[:1], keep=KINDS, alignments=True, **OPTIONS)[0]
    assert (best.text, best.alignment is None) == (found[0], False)
    for prefix in ("Two", "Two 2"):  # the second may begin the part
        trained(texts[2], keep=KINDS, target_prefix=prefix, **OPTIONS)
    assert [piece.text for piece in searched[-2:]] == ["A man in <n>.", texts[2]]


def test_tokens_are_spelt_as_they_are_written_and_are_no_more_than_the_parts(trained, monkeypatch):
    tokenizer = trained.parts.target
    spelling, ids = spelling_of(tokenizer), tokenizer("men <n>-<n>", add_special_tokens=False)["input_ids"]
    assert spelling.spelt(ids) == b" men <n>-<n>"
    asked, demands = [], TextConstraints.demands
    monkeypatch.setattr(
        TextConstraints, "demands", lambda rules, piece: asked.append(demands(rules, piece)) or asked[-1]
    )
    texts = ["12-13 men (14) in 15.", "16 17", "(18) 19 dogs", "20"]
    for text, translation in zip(texts, trained(texts, keep="number", **OPTIONS)):
        assert sorted(re.findall(r"\d\d|<n>", translation)) == re.findall(r"\d\d", text)
    # Where a part is joined to what stands before it, its token without a space counts as well.
    assert sorted((demand.times, len(demand.ids)) for (demand,) in asked) == [(1, 1), (2, 1), (2, 2), (4, 2)]


def test_a_number_counts_once_for_each_time_that_it_is_there():
    assert placeholders.lost("12 men and 12 dogs", "12 Männer") == {"12": 1}
    assert not placeholders.lost("1,000 men in A4", "1.000 Männer in A4")


def test_pairs_with_placeholders():
    placeholders = {"<n>": "number", "<code>": r"[A-Z]{2}-\d+"}
    pairs = [
        ("12 men and 12 dogs", "12 Männer und zwölf Hunde"),
        ("12 men", "12 Männer"),
        ("no number", "3 Zahlen"),
        ("AB-3 and 4 <n>", "4 und AB-3"),
        ("3.5 x AB-3 and 4", "4 und AB-3, 3,5"),
        ("9", "9"),
    ]
    assert list(with_placeholders(pairs, placeholders)) == [
        ("<n> men and 12 dogs", "<n> Männer und zwölf Hunde"),
        pairs[1],  # every other one that has some
        pairs[2],
        pairs[3],  # has the token already
        pairs[4],
        ("<n>", "<n>"),
    ]
