"""Parallel and synthetic pairs at a ratio: how often each is seen, in every epoch; corpora turned, cut, tagged."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from helpers.encoded_text import build
from helpers.synthetic_corpora import write_synthetic

from hf_mlnmt import UserError
from hf_mlnmt.data import Corpora, CorpusSpec, Encoded, encode_corpus, load_tokenizers, read_pairs, save_tokenizers
from hf_mlnmt.data.tokenizer import train_tokenizer
from hf_mlnmt.data.training_set import at_ratios, check_ratios, draw

PARALLEL, SYNTHETIC = CorpusSpec(files={"source": "a", "target": "b"}), "s"


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizers(folder, train_tokenizer(["ba do ki lu me"] * 5, vocab_size=40, byte_fallback=False, tags=["<bt>"]))
    return load_tokenizers(folder)


@pytest.fixture(scope="module")
def encoded(tokenizers, tmp_path_factory):
    """Pairs by their number, which is in their length: the parallel part has 1 to 10 words, the synthetic one more."""

    def make(lengths) -> Encoded:
        pairs = [("ba " * n, "do " * n) for n in lengths]
        return build(pairs, tokenizers, tmp_path_factory.mktemp("pairs"))

    return make(range(1, 11)), make(range(11, 56))


def shown(corpora: Corpora, epoch: int) -> Counter[int]:
    """How often each pair is in an epoch, by its words."""
    chosen = corpora.choose(epoch)
    return Counter((corpora.source_lengths[np.arange(len(corpora)) if chosen is None else chosen] - 1).tolist())


@pytest.mark.parametrize("ratio", [0.5, 1, 1.5, 2, 4])
def test_both_parts_are_seen_equally_often(encoded, ratio):
    """r x 10 synthetic pairs, the same in each epoch; parallel ones r times, what is over goes round."""
    specs = [PARALLEL, CorpusSpec(synthetic=SYNTHETIC, ratio=ratio)]
    parts, weights = at_ratios(encoded, specs, seed=3)
    corpora = Corpora(parts, weights, None, seed=3)
    together: Counter[int] = Counter()
    for epoch in range(4):
        counts = shown(corpora, epoch)
        human = {length: count for length, count in counts.items() if length <= 10}
        model = {length: count for length, count in counts.items() if length > 10}
        assert sum(human.values()) == sum(model.values()) == len(model) == int(10 * ratio)
        assert set(human.values()) <= {int(ratio), int(ratio + 0.5)}
        assert model == {length: 1 for length in sorted(shown(corpora, 0)) if length > 10}
        together.update(human)
        assert shown(corpora, epoch) == counts, "a pure function of the epoch"
    assert set(together.values()) == {int(4 * ratio)}


def test_a_smaller_ratio_takes_some_of_what_a_larger_one_takes(encoded):
    def taken(ratio: float, seed: int = 1) -> set[int]:
        parts, _ = at_ratios(encoded, [PARALLEL, CorpusSpec(synthetic=SYNTHETIC, ratio=ratio)], seed)
        return set(parts[1].source_lengths[:].tolist())

    assert taken(0.5) < taken(1) < taken(4)
    assert taken(1) != set(range(12, 22)), "not the first ones"
    assert taken(1) != taken(1, seed=2)
    assert taken(1) != set((draw(45, 10, 1, epoch=0)[:] + 12).tolist()), "nor those that an epoch would begin with"


def test_of_a_large_corpus_the_taken_pairs_are_computed(encoded, monkeypatch):
    """As of a small one: others by another seed, of a larger ratio more; their lengths, ids and batches go together."""
    monkeypatch.setattr("hf_mlnmt.data.training_set.LARGE", 45)
    test_a_smaller_ratio_takes_some_of_what_a_larger_one_takes(encoded)
    parts, weights = at_ratios(encoded, [PARALLEL, CorpusSpec(synthetic=SYNTHETIC, ratio=1.5)], seed=1)
    corpora, indices = Corpora(parts, weights, None, seed=1), np.arange(25)[::-1]
    lengths = [len(corpora[i]["input_ids"]) for i in indices.tolist()]
    assert (
        lengths
        == corpora.source_lengths[indices].tolist()
        == corpora.gather(indices).columns["input_ids"].lengths.tolist()
    )


def test_ratios_add_up(encoded):
    specs = [CorpusSpec(synthetic=SYNTHETIC, ratio=0.5), PARALLEL, CorpusSpec(synthetic=SYNTHETIC, ratio=1)]
    parts, weights = at_ratios([encoded[1], encoded[0], encoded[1]], specs, seed=1)
    assert ([len(part) for part in parts], weights) == ([5, 10, 10], [1.0, 1.5, 1.0])
    uneven = [CorpusSpec(synthetic=SYNTHETIC, ratio=0.15), PARALLEL, CorpusSpec(synthetic=SYNTHETIC, ratio=0.15)]
    parts, weights = at_ratios([encoded[1], encoded[0], encoded[1]], uneven, seed=1)
    assert [len(part) for part in parts] == [2, 10, 1], "1.5 and 1.5 of three, not 2 and 2"
    assert Corpora(parts, weights, None, seed=1).counts == [2, 3, 1]
    two = [PARALLEL, PARALLEL, CorpusSpec(synthetic=SYNTHETIC, ratio=0.25)]
    parts, weights = at_ratios([encoded[0], *encoded], two, seed=1)
    assert Corpora(parts, weights, None, seed=1).counts == [2, 2, 4], "each parallel corpus is rounded by itself"


def test_a_ratio_that_the_data_cannot_fill_is_refused_with_the_numbers(encoded):
    message = r"ratio 5 needs 50 synthetic pairs to 10 parallel ones, and 45 are left .* enough for 4.5 at most"
    with pytest.raises(UserError, match=message):
        at_ratios(encoded, [PARALLEL, CorpusSpec(synthetic=SYNTHETIC, ratio=5)], seed=1)
    with pytest.raises(UserError, match=r"ratio 0.01 to 10 parallel pairs rounds to no synthetic pair. Raise ratio"):
        specs = [PARALLEL, CorpusSpec(synthetic=SYNTHETIC, ratio=0.01), CorpusSpec(synthetic=SYNTHETIC, ratio=1)]
        at_ratios([*encoded, encoded[1]], specs, seed=1)


@pytest.mark.parametrize(
    ("specs", "temperature", "message"),
    [
        ([PARALLEL, CorpusSpec(synthetic="s", ratio=1)], 5.0, "ratio and temperature both say"),
        ([PARALLEL, CorpusSpec(synthetic="s", ratio=1, weight=2)], None, "ratio and weight both say"),
        ([CorpusSpec(synthetic="s", ratio=1)], None, "no parallel corpus"),
    ],
)
def test_ratios_beside_other_shares(specs, temperature, message):
    with pytest.raises(UserError, match=message):
        check_ratios(specs, temperature)


def test_a_synthetic_corpus_is_read_turned_cut_and_tagged(tokenizers, tmp_path):
    write_synthetic(tmp_path / "s", ["ba do", "ki", "lu me ba"])
    (tmp_path / "pairs.jsonl").write_text('{"en": "ba", "de": "do ki"}\n{"en": "lu", "de": "me"}\n')
    assert list(read_pairs(CorpusSpec(synthetic="s", limit=2), tmp_path)) == [("ba do", "ba do"), ("ki", "ki")]
    turned = CorpusSpec(path="pairs.jsonl", languages={"source": "de", "target": "en"}, reverse=True, limit=1)
    named = CorpusSpec(path="pairs.jsonl", columns={"source": "en", "target": "de"}, reverse=True)
    assert list(read_pairs(turned, tmp_path)) == [("do ki", "ba")]
    assert list(read_pairs(named, tmp_path)) == [("do ki", "ba"), ("me", "lu")]
    data = encode_corpus(CorpusSpec(synthetic="s", tag="<bt>"), tmp_path, tokenizers, tmp_path / "encoded")
    tag = tokenizers.source.convert_tokens_to_ids("<bt>")
    assert all(data[i]["input_ids"][0] == tag for i in range(3))
    assert all(tag not in data[i]["labels"] for i in range(3))
    assert data[1]["input_ids"][1:].tolist() == data[1]["labels"].tolist()
    assert tag not in tokenizers.encode_source(["<bt> ba"])[0], "text cannot smuggle a tag in"
    with pytest.raises(UserError, match=r"tag <x>: the tokenizer has no such token. Train one .* \{tags: \['<x>'\]"):
        encode_corpus(CorpusSpec(synthetic="s", tag="<x>"), tmp_path, tokenizers, tmp_path / "other")


def test_what_cannot_be_said_of_a_corpus():
    with pytest.raises(UserError, match="is for a synthetic corpus, and above 0"):
        CorpusSpec(path="a.tsv", ratio=1)
    with pytest.raises(UserError, match="is for a synthetic corpus, and above 0"):
        CorpusSpec(synthetic="s", ratio=0)
    with pytest.raises(UserError, match="not path and synthetic"):
        CorpusSpec(path="a.tsv", synthetic="s")
    with pytest.raises(UserError, match="'bt' cannot be one"):
        train_tokenizer(["ba do"], vocab_size=40, byte_fallback=False, tags=["bt"])
