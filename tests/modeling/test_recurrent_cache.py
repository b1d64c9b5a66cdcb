"""The cache's slot for recurrent attention: the state of sentence b after step t is 10 b + t + 1."""

from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, STATIC_LAYER_TYPE_MAPPING

from hf_mlnmt.modeling.caches import RecurrentCacheLayer, StaticRecurrentCacheLayer
from hf_mlnmt.search.cache import BEAM_LAYERS, BeamRecurrentCacheLayer


def filled(steps: int, recorded: int = 0, chunk: int = 1) -> RecurrentCacheLayer:
    slot = RecurrentCacheLayer()
    for t in range(0, steps, chunk):
        if recorded and t == steps - recorded:
            slot.activate_past_recording()
        numbers = torch.arange(t, t + chunk) + torch.tensor([[1.0], [11.0]])
        slot.append_states(numbers[:, :, None, None])
        slot.update(*(numbers[:, None, :, None] for _ in range(2)))
    return slot


def test_last_state():
    assert RecurrentCacheLayer().last_state() is None
    for chunk in (1, 2):
        assert filled(4, chunk=chunk).last_state().flatten().tolist() == [4, 14]
    assert filled(4).states.shape == (2, 1, 1, 1)


def test_rows():
    slot = filled(3)
    slot.reorder_cache(torch.tensor([1, 1]))
    assert slot.last_state().flatten().tolist() == [13, 13]
    slot = filled(3)
    slot.batch_repeat_interleave(2)
    assert slot.last_state().flatten().tolist() == [3, 3, 13, 13]
    slot.batch_select_indices(torch.tensor([3, 0]))
    assert slot.last_state().flatten().tolist() == [13, 3]


@pytest.mark.parametrize("dropped", [1, 2, 3])
def test_crop_of_recorded_steps(dropped):
    slot = filled(5, recorded=3)
    slot.crop(-dropped)
    assert slot.last_state().flatten().tolist() == [5 - dropped, 15 - dropped]
    assert slot.get_seq_length() == 5 - dropped


def test_crop_ends():
    slot = filled(3)
    slot.crop(-3)
    assert slot.last_state() is None
    with pytest.raises(RuntimeError, match="activate_past_recording"):
        filled(4).crop(-1)
    slot = filled(4, recorded=2)
    slot.crop(0)
    assert slot.states.shape[1] == 1


def test_reset_and_constants():
    slot = filled(4)
    assert slot.constant(lambda: 7) == slot.constant(lambda: 8) == 7
    slot.reset()
    assert slot.last_state() is None
    static = StaticRecurrentCacheLayer(max_cache_len=4)
    static.append_states(torch.ones(2, 3, 1, 1))
    place = static.states
    static.append_states(torch.full((2, 1, 1, 1), 5.0))
    assert static.states is place
    assert static.last_state().flatten().tolist() == [5, 5]
    static.reset()
    assert static.last_state().flatten().tolist() == [0, 0]


def test_beams():
    slot = BeamRecurrentCacheLayer()
    slot.update(*(torch.zeros(2, 1, 2, 1) for _ in range(2)))
    slot.append_states(torch.tensor([[1.0, 2.0], [11.0, 12.0]])[:, :, None, None])
    assert slot.last_state().flatten().tolist() == [2, 12]
    slot.expand(2)
    slot.append_states(torch.tensor([[3.0, 4.0], [13.0, 14.0]])[:, :, None, None])
    slot.reorder(torch.tensor([[1, 1], [1, 0]]))
    assert slot.states_before(2).flatten().tolist() == [4, 4, 14, 13]  # (sentences, heads, beams, width)
    assert slot.last_state() is None
    slot.select(torch.tensor([1]), 1)
    assert slot.states_before(2).flatten().tolist() == [14, 13]


def test_registration():
    assert DYNAMIC_LAYER_TYPE_MAPPING["mlnmt_recurrence"] is RecurrentCacheLayer
    assert STATIC_LAYER_TYPE_MAPPING["mlnmt_recurrence"] is StaticRecurrentCacheLayer
    assert BEAM_LAYERS[RecurrentCacheLayer] is BeamRecurrentCacheLayer
