"""The demo corpus: correct German for chosen clauses, one translation a sentence, a fair split, the same bytes."""

from __future__ import annotations

import gzip

import pytest

from hf_mlnmt.demo import grammar
from hf_mlnmt.demo.grammar import (
    CASES,
    PLACES,
    TIMES,
    Clause,
    Sampler,
    noun_phrase,
    pronoun,
    sample_demo_corpus,
    write_demo_corpus,
)

VERB = {verb.en: verb for verb in grammar.VERBS}
ADJECTIVE = {adjective[0]: adjective for adjective in grammar.ADJECTIVES}
HE, SHE, WE, THEY = map(pronoun, range(4))


def phrase(text):
    """ "the old man" or "two dogs" as a phrase."""
    determiner, *adjective, word = text.split()
    noun = next(noun for noun in grammar.NOUNS if word in (noun.en, noun.en_plural))
    determiner = {"an": "a", "these": "this"}.get(determiner, determiner)
    return noun_phrase(noun, determiner, ADJECTIVE[adjective[0]] if adjective else (), word != noun.en)


@pytest.mark.parametrize(
    ("english", "forms"),
    [
        ("the old man", "der alte Mann, den alten Mann, dem alten Mann"),
        ("a small dog", "ein kleiner Hund, einen kleinen Hund, einem kleinen Hund"),
        ("my young friend", "mein junger Freund, meinen jungen Freund, meinem jungen Freund"),
        ("this big car", "dieses große Auto, dieses große Auto, diesem großen Auto"),
        ("a red flower", "eine rote Blume, eine rote Blume, einer roten Blume"),
        ("an old child", "ein altes Kind, ein altes Kind, einem alten Kind"),
        ("an apple", "ein Apfel, einen Apfel, einem Apfel"),
        ("two old women", "zwei alte Frauen, zwei alte Frauen, zwei alten Frauen"),
        ("my small apples", "meine kleinen Äpfel, meine kleinen Äpfel, meinen kleinen Äpfeln"),
        ("these big cars", "diese großen Autos, diese großen Autos, diesen großen Autos"),
        ("the children", "die Kinder, die Kinder, den Kindern"),
    ],
)
def test_declension(english, forms):
    made = phrase(english)
    assert (made.subject, ", ".join(made.german[case] for case in CASES)) == (english, forms)


# A clause in English, and in German with the verb in second, first and last place.
CLAUSES = [
    (
        Clause(phrase("the woman"), VERB["call"], phrase("the men")),
        "the woman calls the men: die Frau ruft die Männer an, ruft die Frau die Männer an, die Frau die Männer anruft",
    ),
    (
        Clause(THEY, VERB["help"], phrase("a girl"), "perfect", time=TIMES[0]),
        "they have helped a girl today: sie haben heute einem Mädchen geholfen, "
        "haben sie heute einem Mädchen geholfen, sie heute einem Mädchen geholfen haben",
    ),
    (
        Clause(phrase("the cats"), VERB["listen to"], SHE, "must", place=PLACES[0]),
        "the cats must listen to her in the garden: die Katzen müssen ihr im Garten zuhören, "
        "müssen die Katzen ihr im Garten zuhören, die Katzen ihr im Garten zuhören müssen",
    ),
    (
        Clause(phrase("my mother"), VERB["visit"], HE, time=TIMES[1]),
        "my mother visits him every day: meine Mutter besucht ihn jeden Tag, "
        "besucht meine Mutter ihn jeden Tag, meine Mutter ihn jeden Tag besucht",
    ),
    (
        Clause(WE, VERB["sleep"], tense="can", front=TIMES[3]),
        "now we can sleep: jetzt können wir schlafen, können wir schlafen, wir schlafen können",
    ),
]


@pytest.mark.parametrize(("clause", "expected"), CLAUSES)
def test_clauses(clause, expected):
    german = ", ".join(clause.german(order) for order in ("second", "first", "last"))
    assert f"{clause.english()}: {german}" == expected


def test_questions():
    clause = Clause(phrase("the woman"), VERB["see"], HE)
    assert clause.english(question=True) == "does the woman see him"
    assert clause._replace(tense="perfect").english(question=True) == "has the woman seen him"


def test_a_sentence_has_one_translation_over_many_draws():
    sampler, seen = Sampler(5), {}
    for _ in range(20_000):
        (source, target), _ = sampler.sentence()
        assert seen.setdefault(source, target) == target
        assert (source[0].isupper(), source[-1]) == (True, target[-1])
        assert "  " not in source + target


def test_each_part_holds_only_its_own_combinations_in_words_that_training_has(demo):
    pairs = [pair for part in demo.values() for pair in part]
    assert len({source for source, _ in pairs}) == len(pairs)
    sampler, names = Sampler(3), {}
    while len(names) < 20_000:  # the draws that the corpus was made of, and further ones
        (source, _), names[source] = sampler.sentence()
    shown = {part: {name for source, _ in pairs for name in names[source]} for part, pairs in demo.items()}
    for part in ("val", "test"):
        assert all(set(names[source]) - shown["train"] for source, _ in demo[part])
        forms = {word for pair in demo["train"] for text in pair for word in text.split()}
        assert {word for pair in demo[part] for text in pair for word in text.split()} <= forms
    alone = {part: {names[s][0] for s, _ in pairs if len(names[s]) == 1} for part, pairs in demo.items()}
    assert min(map(len, alone.values())) > 20
    assert not alone["test"] & (shown["train"] | shown["val"])
    assert not alone["val"] & (shown["train"] | shown["test"])


def test_written_files_are_the_same_bytes_for_the_same_seed(tmp_path):
    sizes = {"train": 300, "val": 10, "test": 10}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_demo_corpus(tmp_path / name, seed, sizes)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(f"{part}.{side}.gz" for part in sizes for side in ("en", "de"))
    content = {folder: [(tmp_path / folder / name).read_bytes() for name in names] for folder in "abc"}
    assert content["a"] == content["b"] != content["c"]
    lines = gzip.decompress((tmp_path / "a" / "train.de.gz").read_bytes()).decode().splitlines()
    assert lines == [target for _, target in sample_demo_corpus(1, sizes)["train"]]
