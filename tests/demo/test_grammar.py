"""The demo corpus: correct German for chosen clauses, one translation a sentence, a fair split, the same bytes."""

from __future__ import annotations

import gzip
import re

import pytest

from hf_mlnmt.demo import lexicon as lex
from hf_mlnmt.demo.grammar import (
    MAX_WORDS,
    MIN_WORDS,
    Clause,
    NounPhrase,
    Sampler,
    combinations,
    english_clause,
    english_question,
    german_clause,
    german_phrase,
    sample_demo_corpus,
    write_demo_corpus,
)

NOUN = {noun.en: noun for noun in lex.NOUNS}
VERB = {verb.en: verb for verb in lex.VERBS}
ADJECTIVE = {adjective.en: adjective for adjective in lex.ADJECTIVES}
HE, SHE, WE, THEY = lex.PRONOUNS


def phrase(text: str) -> NounPhrase:
    """ "the old man" or "many dogs" as a phrase."""
    determiner, *adjective, noun = text.split()
    plural = noun not in NOUN
    singular = next(n for n in lex.NOUNS if noun in (n.en, n.en_plural))
    determiner = {"an": "a", "these": "this"}.get(determiner, determiner)
    return NounPhrase(singular, determiner, ADJECTIVE[adjective[0]] if adjective else None, plural)


@pytest.mark.parametrize(
    ("english", "nominative", "accusative", "dative"),
    [
        ("the old man", "der alte Mann", "den alten Mann", "dem alten Mann"),
        ("a small dog", "ein kleiner Hund", "einen kleinen Hund", "einem kleinen Hund"),
        ("my young friend", "mein junger Freund", "meinen jungen Freund", "meinem jungen Freund"),
        ("this big car", "dieses große Auto", "dieses große Auto", "diesem großen Auto"),
        ("a red flower", "eine rote Blume", "eine rote Blume", "einer roten Blume"),
        ("a tired child", "ein müdes Kind", "ein müdes Kind", "einem müden Kind"),
        ("the boy", "der Junge", "den Jungen", "dem Jungen"),
        ("two old women", "zwei alte Frauen", "zwei alte Frauen", "zwei alten Frauen"),
        ("many small birds", "viele kleine Vögel", "viele kleine Vögel", "vielen kleinen Vögeln"),
        ("my small apples", "meine kleinen Äpfel", "meine kleinen Äpfel", "meinen kleinen Äpfeln"),
        ("these big cars", "diese großen Autos", "diese großen Autos", "diesen großen Autos"),
        ("the children", "die Kinder", "die Kinder", "den Kindern"),
    ],
)
def test_german_declension(english, nominative, accusative, dative):
    forms = [german_phrase(phrase(english), case) for case in ("nom", "acc", "dat")]
    assert forms == [nominative, accusative, dative]


def clauses():
    """A clause, its English, and its German with the verb second, first and last."""
    call = Clause(phrase("the woman"), VERB["call"], phrase("the men"))
    yield call, "the woman calls the men", "die Frau ruft die Männer an", "ruft die Frau die Männer an"
    perfect = Clause(THEY, VERB["help"], phrase("a boy"), tense="perfect", often=True)
    yield perfect, "they have often helped a boy", "sie haben oft einem Jungen geholfen", None
    front = Clause(phrase("my father"), VERB["wait for"], HE, tense="want", front=lex.FRONT_TIMES[1])
    yield front, "today my father wants to wait for him", "heute will mein Vater auf ihn warten", None
    negated = Clause(phrase("the cats"), VERB["listen to"], SHE, negated=True)
    yield negated, "the cats do not listen to her", "die Katzen hören ihr nicht zu", None
    give = Clause(WE, VERB["give"], phrase("two apples"), phrase("the doctor"), tense="can", time=lex.END_TIMES[0])
    yield give, "we can give the doctor two apples today", "wir können heute dem Arzt zwei Äpfel geben", None


@pytest.mark.parametrize(("clause", "english", "german", "first"), clauses())
def test_clauses(clause, english, german, first):
    assert english_clause(clause) == english
    assert german_clause(clause) == german
    assert first is None or german_clause(clause, "first") == first


def test_verb_last_joins_the_prefix_and_puts_the_modal_last():
    call = Clause(phrase("the woman"), VERB["call"], phrase("the men"))
    assert german_clause(call, "last") == "die Frau die Männer anruft"
    call.tense = "must"
    assert german_clause(call, "last") == "die Frau die Männer anrufen muss"
    call.tense = "perfect"
    assert german_clause(call, "last") == "die Frau die Männer angerufen hat"


def test_questions():
    see = Clause(phrase("the woman"), VERB["see"], HE)
    assert (english_question(see), german_clause(see, "first")) == ("does the woman see him", "sieht die Frau ihn")
    see.tense = "want"
    assert english_question(see) == "does the woman want to see him"


def test_relative_clauses_stand_after_their_noun_or_the_closing_verb():
    head, thanks = phrase("the queen"), VERB["thank"]
    head.relative = Clause(phrase("two women"), thanks, object=head)
    on_subject = Clause(head, VERB["sing"])
    assert english_clause(on_subject) == "the queen that two women thank sings"
    assert german_clause(on_subject) == "die Königin, der zwei Frauen danken, singt"
    on_object = Clause(HE, VERB["look at"], head)
    assert german_clause(on_object) == "er sieht die Königin an, der zwei Frauen danken"
    friends = phrase("the friends")
    friends.relative = Clause(friends, VERB["open"], phrase("a letter"))
    subject = Clause(friends, VERB["laugh"])
    assert english_clause(subject) == "the friends who open a letter laugh"
    assert german_clause(subject) == "die Freunde, die einen Brief aufmachen, lachen"


def test_one_translation_each_and_no_sentence_twice(demo):
    pairs = [pair for part in demo.values() for pair in part]
    assert len({source for source, _ in pairs}) == len(pairs) == sum(map(len, demo.values()))


def test_a_source_has_one_translation_over_many_draws():
    sampler, seen = Sampler(5), {}
    for _ in range(20_000):
        (source, target), _ = sampler.sentence()
        assert seen.setdefault(source, target) == target
        assert MIN_WORDS <= len(source.split()) <= MAX_WORDS
        assert source[0].isupper()
        assert source[-1] == target[-1]
        assert "  " not in source + target
        assert ",," not in target
        assert ",." not in target


def test_every_held_out_word_form_is_in_training(demo):
    forms = {word for pair in demo["train"] for text in pair for word in text.split()}
    held_out = {word for part in ("val", "test") for pair in demo[part] for text in pair for word in text.split()}
    assert held_out <= forms


def test_training_has_no_combination_that_is_held_out():
    sampler = Sampler(11)
    in_training: set[str] = set()
    alone: dict[str, set[str]] = {"train": set(), "val": set(), "test": set()}
    for _ in range(20_000):
        _, parts = sampler.sentence()
        names = {name for clause in sampler.clauses for name in combinations(clause)}
        if parts == {"train"}:
            in_training |= names
        if len(names) == 1:
            alone[parts.pop()] |= names
    assert min(len(names) for names in alone.values()) > 50
    assert not alone["test"] & (in_training | alone["val"])
    assert not alone["val"] & in_training


def test_each_part_holds_only_its_own_combinations(demo):
    sampler, parts_of = Sampler(3), {}
    for _ in range(6000):  # the draws that the corpus was made of
        (source, _), parts = sampler.sentence()
        parts_of[source] = parts
    for part, pairs in demo.items():
        assert all(parts_of[source] - {"train"} == {part} - {"train"} for source, _ in pairs)


def test_the_text_itself_holds_combinations_out():
    """Read off the English text, without the grammar's own bookkeeping."""
    demo = sample_demo_corpus(seed=3, sizes={"train": 6000, "val": 100, "test": 800})
    nouns = "|".join(noun.en for noun in lex.NOUNS)
    verbs = "|".join(verb.en_singular for verb in lex.VERBS)
    adjective = "(?:" + "|".join(adjective.en for adjective in lex.ADJECTIVES) + ")?"
    said = rf"(?:the|a|an|my|this) ?{adjective} ({nouns}) ({verbs}) (?:the|a|an|my|this) ?{adjective} ({nouns})\b"
    found = {
        part: {match for source, _ in pairs for match in re.findall(f"(?i)^{said}", source)}
        for part, pairs in demo.items()
    }
    alone = {match for source, _ in demo["test"] for match in re.findall(f"(?i)^{said}\\.$", source)}
    assert len(found["train"]) > 50
    assert len(alone) > 5
    assert not alone & (found["train"] | found["val"])


def test_written_files_are_the_same_bytes_for_the_same_seed(tmp_path):
    sizes = {"train": 300, "val": 10, "test": 10}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_demo_corpus(tmp_path / name, seed, sizes)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(f"{part}.{side}.gz" for part in sizes for side in ("en", "de"))
    content = {folder: [(tmp_path / folder / name).read_bytes() for name in names] for folder in "abc"}
    assert content["a"] == content["b"] != content["c"]
    lines = gzip.decompress((tmp_path / "a" / "train.de.gz").read_bytes()).decode().splitlines()
    assert len(lines) == 300
    assert lines == [target for _, target in sample_demo_corpus(1, sizes)["train"]]
