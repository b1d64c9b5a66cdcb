"""Phrases that a translation must have, or must not have: by enumeration on a toy, and through the pipeline."""

import itertools

import pytest
import torch
from helpers.toy_translators import bpe, our_model

from hf_mlnmt import UserError
from hf_mlnmt.common.files import write_json
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.constraints.lexical_constraints import (
    ForbiddenPhrases,
    Pattern,
    phrases_of,
    plain,
    spelling_of,
)
from hf_mlnmt.generation.translating.options import DecodingOptions, checked_terms


@pytest.mark.parametrize(
    ("text", "there"),
    [
        (" das Auto", False),  # it may go on: Autos
        (" das Auto ", True),
        (" das Auto.", True),
        (" das Autos", False),
        (" ein Auto. Das", True),
        (" AAuto ", False),
        (" „Auto“ hier", True),
        (" (Auto)", True),
        (" x  Auto fährt", True),
        ("", False),
    ],
)
def test_a_phrase_is_found_as_words(text, there):
    assert (Pattern.of("Auto").follow(0, plain(text.encode())) is None) == there


def test_a_phrase_of_a_script_without_spaces_is_found_anywhere():
    assert Pattern.of("汽车").follow(0, "我的汽车".encode()) is None


def test_the_state_is_the_longest_beginning_that_the_text_ends_with():
    pattern = Pattern.of("ab ab c")
    for text in map(bytes, itertools.product(b" abc", repeat=5)):
        followed = pattern.follow(0, b" " + text)
        ends = [size for size in range(len(pattern.text) + 1) if (b" " + text).endswith(pattern.text[:size])]
        assert followed == max(ends)


@pytest.fixture(scope="module")
def toy():
    tokenizer = bpe()
    return tokenizer, our_model(len(tokenizer)), spelling_of(tokenizer)


def test_no_sequence_of_tokens_spells_it(toy):
    """Whatever is chosen among what is allowed, in however small pieces: the phrase is not in the text."""
    tokenizer, _, spelling = toy
    phrases, draws = ["dog", "the ball", "a"], torch.Generator().manual_seed(1)
    letters = [number for of_token, number in spelling.ordered if of_token.strip() in map(str.encode, "dogtheballa ")]
    rule, rows = ForbiddenPhrases(spelling, [phrases], [1], 0, 99), torch.full((16, 1), 2)
    for _ in range(40):
        scores = rule(rows, torch.zeros(len(rows), len(tokenizer)))
        weights = torch.where(scores.isinf(), 0.0, 0.001)
        weights[:, [1, *letters]] *= 1000
        rows = torch.cat([rows, torch.multinomial(weights, 1, generator=draws)], 1)
    for row in rows[:, 1:].tolist():
        words = plain(spelling.spelt([token for token in row if token != 1])).decode("utf-8", "replace").split()
        ended = [index for index, token in enumerate(row) if token == 1]
        for end in [*ended, None]:
            text = plain(spelling.spelt(row[:end])).decode("utf-8", "replace").split()
            complete = text if end is not None else text[:-1]  # the last word may go on
            assert not {"dog", "a"} & set(complete)
            assert ("the", "ball") not in itertools.pairwise(complete)
        assert words


@pytest.fixture(scope="module")
def pipeline(toy):
    return TranslationPipeline(toy[1], toy[0])


def test_phrases_are_there_or_not(pipeline):
    texts = ["the dog sees the ball .", "a man"]
    plain_, asked = pipeline(texts, num_beams=4, max_new_tokens=12), {"num_beams": 4, "max_new_tokens": 12}
    must = pipeline(texts, force_phrases="green|||red", **asked)
    assert all("green" in text or "red" in text for text in must)
    assert pipeline(texts, force_phrases=["plays", None], **asked)[1] == plain_[1]
    word = plain_[0].split()[0]
    without = pipeline(texts, bad_phrases=word, **asked)
    assert word not in without[0].split()
    assert pipeline(texts, bad_phrases=[None, word], **asked)[0] == plain_[0]
    alone = [pipeline(text, force_phrases=phrase, **asked) for text, phrase in zip(texts, ["plays", "red"])]
    assert pipeline(texts, force_phrases=["plays", "red"], **asked) == alone


def test_one_that_cannot_be_met_is_said(pipeline, caplog):
    text = "the dog sees the ball ."
    found = pipeline(text, force_phrases=" ".join(["plays"] * 30), num_beams=4, max_new_tokens=12)
    assert found == pipeline(text, num_beams=4, max_new_tokens=12)
    assert "terms that are not met: 1, the first is line 1; plays plays" in caplog.text


@pytest.mark.parametrize("given", ["a\t", "", "a||| ", ["a", 3], 5, [[]], [["a", ""]]])
def test_what_is_no_phrase_is_refused(given):
    with pytest.raises(UserError, match="bad_phrases of line 3"):
        phrases_of(given, "bad_phrases of line 3")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("terms.csv", "en,de\ndog,Hund\n\"ball, red\",Ball,Kugel\n"),
        ("terms.csv", "dog;Hund\n\"ball, red\";Ball;Kugel\n"),
        ("terms.tsv", "source\ttarget\ndog\tHund\nball, red\tBall\tKugel\n"),
        ("terms.txt", "dog\tHund\nball, red\tBall\tKugel\n"),
    ],
)  # fmt: skip
def test_a_glossary_is_read_as_data_are(tmp_path, name, content, caplog):
    (tmp_path / name).write_text(content)
    assert checked_terms(str(tmp_path / name)) == {"dog": ["Hund"], "ball, red": ["Ball", "Kugel"]}
    assert ("is a header" in caplog.text) == (content[:2] in ("en", "so"))


def test_a_forbidden_translation_of_a_term_is_forbidden_where_the_term_is(pipeline, tmp_path, caplog):
    """Given as a dict, and by a file of several languages, which the model's folder says."""
    texts, asked = ["the dog sees .", "the man sees ."], {"num_beams": 4, "max_new_tokens": 8}
    free = pipeline(texts, **asked)
    word = next(word for word in free[0].split() if word.isalpha())
    terms = {"dog": {"use": [], "not": [word]}}
    first, second = pipeline(texts, terms=terms, **asked)
    assert word not in first.split()
    assert second == free[1]
    assert first == pipeline(texts[0], bad_phrases=word, **asked)
    assert "not met" not in caplog.text
    path = tmp_path / "terms.csv"
    path.write_text(f"en,fr,de,forbidden\ndog,chien,,{word}\n")
    options = DecodingOptions(terms=str(path), num_beams=4)
    assert options.terms == str(path)
    with pytest.raises(UserError, match=r"terms\.csv: has en, fr, de: say which, --from and --to"):
        options.with_languages_of(str(tmp_path))
    write_json(tmp_path / "results.json", {"languages": {"source": "en", "target": "de"}})
    assert options.with_languages_of(str(tmp_path)).terms == terms
    with pytest.raises(UserError, match="expected a term and its translation"):
        DecodingOptions(terms={"dog": {"use": [], "not": []}})
