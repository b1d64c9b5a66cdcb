"""tau: its shares within binomial bounds, special tokens left alone, a pure function of what it is given."""

from __future__ import annotations

import numpy as np
import pytest

from hf_mlnmt import UserError
from hf_mlnmt.recipe.schema import DistortionSettings
from hf_mlnmt.training.objectives import Distortion

SPECIAL, MASK, VOCABULARY = np.arange(5), 4, 60


def of(seed: int = 1, **settings) -> Distortion:
    return Distortion(DistortionSettings(**settings), MASK, SPECIAL, VOCABULARY, seed)


def many(distortion: Distortion, length: int = 13, sentences: int = 4000):
    """Sentences of `length` words and </s>: the sentences, tau of them, D."""
    rng = np.random.default_rng(3)
    ids = np.concatenate([rng.integers(5, VOCABULARY, (sentences, length)), np.ones((sentences, 1), int)], 1)
    found = [distortion(row, 0, number) for number, row in enumerate(ids)]
    return ids, np.stack([one for one, _ in found]), np.stack([chosen for _, chosen in found])


def within(count: int, of: int, probability: float) -> bool:
    """Five standard deviations: one in two million draws fails."""
    return abs(count - of * probability) <= 5 * np.sqrt(of * probability * (1 - probability))


@pytest.mark.parametrize(("distorted", "masked", "kept"), [(0.15, 0.8, 0.1), (0.4, 0.5, 0.2), (1.0, 1.0, 0.0)])
def test_shares(distorted, masked, kept):
    ids, found, chosen = many(of(distorted=distorted, masked=masked, kept=kept))
    words = ids[:, :-1].size
    assert within(chosen.sum(), words, distorted)
    assert (found == ids)[~chosen].all(), "what is not in D stays"
    hidden = (found == MASK) & chosen
    assert within(hidden.sum(), chosen.sum(), masked)
    others = chosen & ~hidden & (found != ids)
    random = 1 - masked - kept
    same_by_chance = 1 / (VOCABULARY - len(SPECIAL))
    assert within(others.sum(), chosen.sum(), random * (1 - same_by_chance))
    if random > 0:
        drawn = np.bincount(found[others], minlength=VOCABULARY)
        assert (drawn[5:] > 0).all(), "every word is drawn"
        assert not drawn[:5].any(), "no special token is"


def test_sentences_in_which_nothing_is_drawn():
    """0.85^13 = 12 % of those with 13 words; none with `force`, which draws one and leaves the others as they were."""
    ids, found, chosen = many(of())
    empty = ~chosen.any(1)
    assert within(empty.sum(), len(ids), 0.85**13)
    _, forced_found, forced = many(of(force=True))
    assert forced.any(1).all()
    assert (forced[empty].sum(1) == 1).all()
    assert (forced[~empty] == chosen[~empty]).all()
    assert (forced_found[~empty] == found[~empty]).all()
    assert len(set(forced[empty].argmax(1).tolist())) == 13, "any of the words, but never </s>"


def test_special_tokens_are_left_alone():
    tau = of(distorted=1.0, masked=0.0, kept=0.0, force=True)
    found, chosen = tau(np.array([3, 2, 40, 0, 1]), 0, 0)
    assert chosen.tolist() == [False, False, True, False, False]
    assert found[[0, 1, 3, 4]].tolist() == [3, 2, 0, 1]
    assert not tau(np.array([1]), 0, 0)[1].any(), "an empty sentence has nothing to hide"


def test_it_is_a_function_of_seed_epoch_and_sentence():
    ids = np.arange(5, 45)
    first = of()(ids, 2, 7)
    assert all((a == b).all() for a, b in zip(first, of()(ids, 2, 7)))
    for other in (of(seed=2)(ids, 2, 7), of()(ids, 3, 7), of()(ids, 2, 8)):
        assert (other[1] != first[1]).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distorted": 0.0}, "distorted must be above 0"),
        ({"masked": 0.8, "kept": 0.3}, "masked and kept are 1.1 together"),
    ],
)
def test_refused_settings(settings, message):
    with pytest.raises(UserError, match=message):
        DistortionSettings(**settings)
