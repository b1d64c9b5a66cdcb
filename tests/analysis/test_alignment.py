"""Alignments: from subwords to words, links, Pharaoh's format, the error rate; of models, MLMHA too."""

from __future__ import annotations

import pytest
import torch
from reference import analysis as reference

from hf_mlnmt.analysis.reading import Sample, encode_sources, encode_targets, forced_passes, words_of
from hf_mlnmt.analysis.source_attention import (
    GoldAlignment,
    Place,
    align,
    alignment_error_rate,
    check_gold,
    choose_places,
    error_rates,
    read_gold,
    source_attentions,
)
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.tokenizer import train_tokenizer
from hf_mlnmt.generation.translating.alignments import links, to_pharaoh, word_weights
from hf_mlnmt.generation.translating.loading import load

SOURCES = ["A dog sees the red house .", "Two women ride .", "A man ."]
TARGETS = ["The dog plays .", "Two children in the house .", "A woman ."]
SAMPLE = Sample(SOURCES, TARGETS, [1, 2, 3], 0)


def test_words_from_subwords_by_hand():
    # Source words: 0 of two subwords, 1 of one, then </s>, which has most of the weight and is no word.
    weights = torch.tensor([[0.2, 0.2, 0.1, 0.5], [0.0, 0.1, 0.6, 0.3], [0.0, 0.0, 0.1, 0.9]])
    words = word_weights(weights, [0, 0, 1, None], [0, 0, None])
    torch.testing.assert_close(words, torch.tensor([[0.25, 0.35]], dtype=torch.float64))
    assert links(words) == {(1, 0)}
    assert links(torch.tensor([[0.5, 0.5], [0.1, 0.2]])) == {(0, 0), (1, 1)}  # the first of equal ones


def test_words_from_subwords_against_loops():
    weights = torch.rand(2, 6, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    source, target = [0, 0, 1, 2, 2, 3, None], [0, 1, 1, 1, 2, None]
    found = word_weights(weights, source, target)
    for head in range(2):
        expected = torch.tensor(reference.word_weights(weights[head].tolist(), source, target))
        torch.testing.assert_close(found[head], expected.double())


def test_error_rate_by_hand():
    gold = [GoldAlignment(frozenset({(0, 0)}), frozenset({(0, 0), (1, 1)})), GoldAlignment(frozenset(), frozenset())]
    assert alignment_error_rate([{(0, 0), (1, 1)}, set()], gold) == pytest.approx(1 - (1 + 2) / (2 + 1))
    assert alignment_error_rate([{(0, 1), (1, 1)}, {(4, 4)}], gold) == pytest.approx(1 - (0 + 1) / (3 + 1))
    with pytest.raises(UserError, match="no links"):
        alignment_error_rate([set()], gold[1:])


def test_pharaoh():
    assert to_pharaoh({(10, 1), (2, 3), (2, 0)}) == "2-0 2-3 10-1"
    (first, second) = read_gold(["0-0 1?2 3p1", ""], "gold")
    assert first.sure == {(0, 0)}
    assert first.possible == {(0, 0), (1, 2), (3, 1)}
    assert not second.possible
    (shifted,) = read_gold(["1-1 2p3"], "gold", one_based=True)
    assert shifted.possible == {(0, 0), (1, 2)}
    with pytest.raises(UserError, match="gold, line 2: '1:2' is no link"):
        read_gold(["0-0", "1:2"], "gold")
    with pytest.raises(UserError, match="counted from 1"):
        read_gold(["0-1"], "gold", one_based=True)


@pytest.mark.parametrize(
    ("kind", "size", "bytes_too"), [("bpe", 60, False), ("unigram", 60, False), ("bpe", 370, True)]
)
def test_every_subword_belongs_to_its_word(kind, size, bytes_too):
    tokenizer = train_tokenizer([*SOURCES, *TARGETS] * 20, kind=kind, vocab_size=size, byte_fallback=bytes_too)
    text = "A  woman sees\u00a0hens , ä — café"
    ids = tokenizer(text)["input_ids"]
    words = words_of(tokenizer, None, ids, text)
    assert len(words) == len(ids)
    assert words[-1] is None
    tokens = tokenizer.convert_ids_to_tokens(ids)[:-1]
    assert all(word is not None or token == "\u2581" for token, word in zip(tokens, words))
    numbered = [word for word in words if word is not None]
    assert sorted(set(numbered)) == list(range(len(text.split())))
    assert numbered == sorted(numbered)


@pytest.mark.parametrize("system", ["m-10", "m-00", "accumulated-weight"])
def test_links_of_a_model_are_the_largest_weights(folders, system):
    parts = load(str(folders(system)))
    found = align(parts, SAMPLE)
    assert parts.model.config._attn_implementation == "sdpa"
    parts.model.set_attn_implementation("eager")
    for source, target, places in zip(SOURCES, TARGETS, found):
        ids, goal = encode_sources(parts, [source]), encode_targets(parts, [target])
        (one,) = forced_passes(parts, ids, goal, output_attentions=True)
        words = words_of(parts.source, None, ids[0], source), words_of(parts.target, None, goal[0], target)
        for place, links_found in places.items():
            weights = one.output.cross_attentions[place.layer - 1][0]
            if system == "m-10":
                weights = weights[place.encoder_layer - 1]
            weights = weights[place.head - 1] if place.head else weights.mean(0)
            table = reference.word_weights(weights.tolist(), *words)
            assert links_found == {(max(range(len(row)), key=row.__getitem__), t) for t, row in enumerate(table)}
            assert {target for _, target in links_found} == set(range(len(target.split())))
    encoder_layers = (1, 2) if system == "m-10" else (0,)
    assert sorted(found[0]) == [Place(x, n, h) for x in (1, 2) for n in encoder_layers for h in (0, 1, 2)]


def test_the_best_place_by_error_rate(folders):
    parts = load(str(folders("m-10")))
    found = align(parts, SAMPLE)
    wanted = Place(2, 1, 2)
    gold = [GoldAlignment(frozenset(one[wanted]), frozenset(one[wanted])) for one in found]
    rates = error_rates(found, gold, found[0])
    assert next(iter(rates)) == wanted
    assert rates[wanted] == 0
    assert list(rates.values()) == sorted(rates.values())
    assert str(wanted) == "layer 2, encoder layer 1, head 2"
    assert str(Place(1, 0, 0)) == "layer 1, mean of heads"


def test_places(folders):
    parts = load(str(folders("m-10")))
    weights = [torch.rand(1, 2, 2, 3, 4), torch.rand(1, 2, 2, 3, 4)]
    places = source_attentions(parts.model, weights)
    assert choose_places(places, layer=2) == [Place(2, 1, 0), Place(2, 2, 0)]
    assert choose_places(places, 2, 1) == [Place(2, 1, 1), Place(2, 2, 1)]
    torch.testing.assert_close(places[Place(2, 2, 1)], weights[1][:, 1, 0])
    torch.testing.assert_close(places[Place(1, 2, 0)], weights[0][:, 1].mean(1))
    with pytest.raises(UserError, match="--layer 3: this model has 1 to 2"):
        choose_places(places, layer=3)
    with pytest.raises(UserError, match="--head 0"):
        choose_places(places, head=0)
    with pytest.raises(UserError, match="returns no attention over the source"):
        source_attentions(parts.model, None)


def test_refusals(folders):
    gold = read_gold(["0-0", "0-0", "2-2"], "gold")
    check_gold(gold, SOURCES, TARGETS, "gold")
    with pytest.raises(UserError, match=r"gold, line 3: link 2-3 is outside of 3 source words and 3 target words"):
        check_gold(read_gold(["", "", "2-3"], "gold"), SOURCES, TARGETS, "gold")
    for pair, said in ((["a", " "], ["a", "b"]), "sentence 2 is empty"), ((["a"], [" "]), "translation 1 is empty"):
        with pytest.raises(UserError, match=said):
            align(load(str(folders("m-00"))), Sample(*pair, [1, 2], 0))
