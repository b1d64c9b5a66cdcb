"""Bidirectional training: which pairs its epochs show, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.tiny_run import run_in
from helpers.training_helpers import Pairs

from hf_mlnmt import UserError
from hf_mlnmt.data.bidirectional import BothDirections
from hf_mlnmt.data.corpora import Corpora
from hf_mlnmt.training import corpora as recipe_corpora
from hf_mlnmt.training.batching import TokenBatchSampler

PAIRS = 60


@pytest.fixture
def both() -> BothDirections:
    return BothDirections(Corpora([Pairs(PAIRS)]), epochs=4, seed=1)


def test_the_second_half_is_the_first_turned_round(both: BothDirections):
    assert len(both) == 2 * PAIRS
    for i in range(PAIRS):
        pair, turned = both[i], both[i + PAIRS]
        assert pair["input_ids"].tolist() == turned["labels"].tolist()
        assert pair["labels"].tolist() == turned["input_ids"].tolist()
    for i in range(2 * PAIRS):
        assert both.source_lengths[i] == len(both[i]["input_ids"])
        assert both.target_lengths[i] == len(both[i]["labels"])


def test_two_epochs_show_every_pair_in_both_directions(both: BothDirections):
    for first in (0, 2):
        one, other = both.choose(first), both.choose(first + 1)
        assert sorted(one % PAIRS) == sorted(other % PAIRS) == list(range(PAIRS))
        assert sorted([*one, *other]) == list(range(2 * PAIRS))
        assert PAIRS / 4 < (one >= PAIRS).sum() < 3 * PAIRS / 4
    assert set(both.choose(0)) != set(both.choose(2)), "another half every time"
    assert (both.choose(0) == both.choose(0)).all()


def test_later_epochs_show_the_own_direction_alone(both: BothDirections):
    assert both.choose(4).tolist() == both.choose(9).tolist() == list(range(PAIRS))


def test_another_seed_turns_others(both: BothDirections):
    assert set(both.choose(0)) != set(BothDirections(both.corpora, 4, seed=2).choose(0))


def test_of_a_mixture_what_the_epoch_shows_is_turned():
    mixture = Corpora([Pairs(40, seed=1), Pairs(20, seed=2)], weights=[1, 3])
    both = BothDirections(mixture, epochs=2)
    for epoch in (0, 1):
        assert sorted(both.choose(epoch) % both.distinct) == sorted(mixture.choose(epoch))
        assert (both.choose(epoch) >= both.distinct).any()
    assert both.choose(2).tolist() == mixture.choose(2).tolist()


def test_batches_hold_what_was_chosen(both: BothDirections):
    sampler = TokenBatchSampler(both.source_lengths, both.target_lengths, 60, "target", choose=both.choose)
    for epoch in (0, 1, 5):
        batches = sampler.batches(epoch)
        assert len(batches) == len(sampler)
        assert sorted(np.concatenate(batches)) == sorted(both.choose(epoch))


def test_a_run_learns_both_ways_and_then_its_own(tmp_path: Path, monkeypatch):
    shown = []

    class Watched(BothDirections):
        def __getitem__(self, index: int):
            shown.append(index)
            return super().__getitem__(index)

    monkeypatch.setattr(recipe_corpora, "BothDirections", Watched)
    run_in(tmp_path, budget={"epochs": 2}, data={"bidirectional_epochs": 1})
    first, second, pairs = shown[:120], shown[120:], list(range(120))
    assert [index % 120 for index in sorted(first, key=lambda index: index % 120)] == pairs
    assert 30 < sum(index >= 120 for index in first) < 90
    assert sorted(second) == pairs
    assert (tmp_path / "run" / "average" / "model.safetensors").is_file()


def test_a_dry_run_says_so(tmp_path: Path):
    text = run_in(tmp_path, budget={"epochs": 3}, data={"bidirectional_epochs": 1}, dry_run=True)
    assert "120 pairs, the first 1 epoch(s) in both directions" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": {"vocab_size": 60, "joint": False, "byte_fallback": False}}, "tokenizer.joint to true"),
        ({"tokenizer": {"vocab_size": 120, "languages": ["de"]}}, "use one of the two"),
        ({"data": {"bidirectional_epochs": -1}}, "must be at least 0, not -1"),
        ({"data": {"bidirectional_epochs": 3}, "budget": {"epochs": 3}}, "is 3 but the budget is 3 epochs"),
        ({"data": {"bidirectional_epochs": 9}, "budget": {"steps": 20}}, "is 9 but the budget is"),
    ],
)
def test_what_it_refuses(tmp_path: Path, changes: dict, message: str):
    with pytest.raises(UserError, match=message):
        run_in(tmp_path, **{"data": {"bidirectional_epochs": 1}, "budget": {"epochs": 3}, **changes})
    assert not list(tmp_path.glob("run/checkpoints/*"))
