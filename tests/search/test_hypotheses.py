"""The hypotheses of a search by themselves: who goes on, what is kept, when a sentence is closed, reading off."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig

from hf_mlnmt.search.hypotheses import Chains, Hypotheses, Record

CPU = torch.device("cpu")


def filled(early=False):
    """Two sentences of two beams; the first has two finished hypotheses, the second one."""
    beams = Hypotheses(2, 2, early, CPU)
    over = torch.tensor([[True, True], [True, False]])
    beams.finish(torch.tensor([[-2.0, -4.0], [-2.0, -3.0]]), torch.tensor([[7, 8], [9, 6]]), over, 2.0)
    return beams


def test_a_tie_with_the_worst_finished_one_closes():
    """Only a beam that is better than the worst can still be among them; what is no number is not."""
    for highest, open_ in ((-4.0, False), (-3.9, True), (torch.nan, False)):
        beams = filled()
        beams.close(torch.tensor([highest, -50.0]), 2.0)
        assert beams.open.tolist() == [open_, True]  # the second has room
    early = filled(early=True)
    early.close(torch.tensor([-0.1, -0.1]), 2.0)
    assert early.open.tolist() == [False, True]


def test_what_is_closed_stays_as_it_is():
    beams = filled()
    beams.close(torch.tensor([-5.0, -5.0]), 2.0)
    over = torch.ones(2, 2, dtype=torch.bool)
    beams.finish(torch.tensor([[-0.1, -0.2], [-1.0, -1.5]]), torch.tensor([[1, 2], [3, 4]]), over, 1.0)
    assert beams.best.tolist() == [[-1.0, -2.0], [-1.0, -1.0]]
    assert beams.last[0].tolist() == [7, 8]
    assert sorted(beams.last[1].tolist()) == [3, 9]
    beams.close(torch.tensor([0.0, 0.0]), 1.0)
    assert beams.open.tolist() == [False, True]


def test_they_move_to_another_size_and_rows_that_fill_it_are_closed():
    beams, other = filled(), Hypotheses(3, 2, False, CPU)
    beams.move_to(other, torch.tensor([1, 0, 0]), 2)
    assert other.open.tolist() == [True, True, False]
    assert other.best.tolist() == [[-1.0, -torch.inf], [-1.0, -2.0], [-1.0, -2.0]]
    assert other.last[1].tolist() == [7, 8]
    chains, more = Chains(3, 2, 0, CPU), Chains(2, 2, 0, CPU)
    chains.close(torch.tensor([[True, True], [True, False], [False, False]]))
    assert chains.open.tolist() == [False, True, True]
    assert chains.padded(torch.tensor([[5, 5], [5, 5], [5, 5]])).tolist() == [[0, 0], [0, 5], [5, 5]]
    chains.move_to(more, torch.tensor([1, 1]), 1)
    assert more.going.tolist() == [[False, True], [False, False]]
    assert more.open.tolist() == [True, False]


@pytest.mark.parametrize("returned", [1, 2])
def test_sequences_are_read_off(returned):
    """One sentence left after the first step; of the other one hypothesis was found, so the second is empty."""
    config = GenerationConfig(num_beams=2, num_return_sequences=returned, return_dict_in_generate=True)
    config._eos_token_tensor, config._pad_token_tensor = torch.tensor([1]), torch.tensor(9)
    record = Record(torch.tensor([[3], [3]]), 2, config)
    both, second = torch.tensor([0, 1]), torch.tensor([1])
    record.steps = [(both, torch.tensor([[4, 5], [6, 7]]), torch.zeros(2, 2, dtype=torch.long))]
    record.steps += [(second, torch.tensor([[8, 2]]), torch.tensor([[1, 0]]))]
    columns = 10  # step, beam and token of each end
    number = lambda step, beam, token: (step * 2 + beam) * columns + token  # noqa: E731
    record.write(both, torch.tensor([[-1.0, -2.0], [-1.0, -torch.inf]]), torch.tensor(
        [[number(0, 0, 1), number(0, 0, 2)], [number(2, 1, 1), number(1, 1, 4)]]
    ), columns)  # fmt: skip
    found = record.beams()
    rows = [[3, 1, 9, 9], [3, 2, 9, 9], [3, 6, 2, 1], [3, 9, 9, 9]]
    origins = [[0, -1, -1], [0, -1, -1], [2, 2, 3], [-1, -1, -1]]
    chosen = [0, 2] if returned == 1 else range(4)
    assert found.sequences.tolist() == [rows[row] for row in chosen]
    assert found.beam_indices.tolist() == [origins[row] for row in chosen]
