"""search.c: what it computes is what PyTorch's operations compute, and without a compiler those are called."""

from __future__ import annotations

import copy
import os
import stat

import pytest
import torch
from helpers.contract import redraw
from helpers.searching import ENDING, assert_equal_loops, compiled_step, decode, sources, toy

from hf_mlnmt.search.cpu import native, step
from hf_mlnmt.search.cpu.native import NativeUnits, best_continuations_natively, library
from hf_mlnmt.search.transformer import TransformerDecoder

needs_compiler = pytest.mark.skipif(library(torch.float32) is None, reason="there is no C compiler here")


@pytest.fixture
def no_library(monkeypatch, tmp_path):
    """As if nothing had been compiled yet; what is compiled is not made fast, which takes seconds."""
    monkeypatch.setenv("HF_MLNMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "FLAGS", [*native.FLAGS, "-O0"])
    native._library.cache_clear()
    yield tmp_path
    native._library.cache_clear()


def both(monkeypatch, run):
    """The logits of all steps of a search with search.c, and without it."""
    found = []
    for choice in ("1", "0"):
        steps, step = [], TransformerDecoder.step
        with monkeypatch.context() as patch:
            patch.setenv("HF_MLNMT_NATIVE", choice)

            def spy(self, *given, step=step, steps=steps, choice=choice):
                assert (self.compiled is not None) == (choice == "1")
                scores, state = step(self, *given)
                steps.append(scores.clone())
                return scores, state

            patch.setattr(TransformerDecoder, "step", spy)
            run()
        found.append(steps)
    assert found[0]
    return zip(*found, strict=True)


SHAPES = {
    "pre": {"norm_position": "pre", "layer_norm_eps": 0.3},
    "bias": {"attention_bias": True, "d_model": 20, "decoder_attention_heads": 4},
    "wide": {"d_model": 144, "decoder_ffn_dim": 272, "decoder_layers": 3},
    "swish": {"activation_function": "swish", "decoder_ffn_dim": 70},
    "ssru": {"system": "ssru", "d_model": 36},
    "ssru, pre": {"system": "ssru", "norm_position": "pre"},
}


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "beams"), [*(("bias", beams) for beams in (1, 2, 7)), ("wide", 1), *((shape, 3) for shape in SHAPES)]
)
def test_a_step(shape, beams, monkeypatch):
    """To the last digits in double precision, which is the same code as single precision but for its exponential."""
    fields = SHAPES[shape]
    model, batch = toy(**fields), sources((6, 1, 17, 4, 3, 3, 8))
    for left, right in both(monkeypatch, lambda: decode(model, **batch, num_beams=beams, **ENDING)):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)
    single = model.float()
    redraw(single, std=None)  # large weights would let rounding grow
    for left, right in both(monkeypatch, lambda: decode(single, **batch, num_beams=beams, max_new_tokens=6)):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_large_weights_are_multiplied_by_the_library(threads, monkeypatch, set_threads):
    """By PyTorch's own matrix product, called in compiled code, for any number of rows."""
    if library(torch.float64).gemm is None:
        pytest.skip("PyTorch's library shows no matrix product here")
    monkeypatch.setattr(native, "SMALL", 10)
    monkeypatch.setattr(step, "SMALL", 10)
    set_threads(threads)
    model, batch = toy(attention_bias=True, d_model=48), sources((6, 1, 4))
    assert {unit.plain_in for unit in compiled_step(model).units.units} == {native.TRANSPOSED}
    for left, right in both(monkeypatch, lambda: decode(model, **batch, num_beams=3, max_new_tokens=4)):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


@pytest.fixture
def set_threads():
    """Sets PyTorch's number of threads; as it was, afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@needs_compiler
def test_threads_change_nothing_in_compiled_code(set_threads, monkeypatch):
    """The order of its sums does not depend on them: every number of a step is the same, in states and cache."""
    sizes = []
    call = NativeUnits.__call__

    def compare(self, states, width, cache, *masks):
        again, other = states.clone(), copy.deepcopy(cache)
        set_threads(2)
        call(self, again, width, other, *masks)
        set_threads(1)
        found = call(self, states, width, cache, *masks)
        assert torch.equal(again, found)
        for left, right in zip(other.target_layers, cache.target_layers, strict=True):
            assert torch.equal(left.storage.key_buffer, right.storage.key_buffer)
            assert torch.equal(left.storage.value_buffer, right.storage.value_buffer)
        sizes.append(len(states))
        return found

    monkeypatch.setattr(NativeUnits, "__call__", compare)
    set_threads(1)
    decode(toy(d_model=48).float(), **sources((6, 1, 17, 4, 3, 3, 8) * 5), num_beams=5, max_new_tokens=4)
    assert sizes[1] == 35 * 5


@needs_compiler
@pytest.mark.parametrize("vocabulary", [3, 30, 64, 1000, 5003])
def test_choose(vocabulary):
    numbers, running = 5 * torch.randn(3, 4, vocabulary), torch.randn(3, 4)
    scores, beams, tokens = best_continuations_natively(numbers, running, 8)
    expected, index = (numbers.log_softmax(-1) + running.unsqueeze(-1)).flatten(1).topk(8)
    torch.testing.assert_close(scores, expected)
    assert (beams * vocabulary + tokens).tolist() == index.tolist()
    spread = numbers[:, :1].expand(-1, 4, -1)  # the prompt's, one row for all beams
    first, alone = torch.tensor([[0.0, -1e9, -1e9, -1e9]] * 3), min(3, vocabulary)
    scores, beams, tokens = best_continuations_natively(spread, first, alone)
    assert tokens.tolist() == numbers[:, 0].topk(alone).indices.tolist()
    assert not beams.any()


@needs_compiler
def test_choose_with_numbers_that_are_none():
    numbers = torch.full((1, 2, 100), float("-inf"))
    numbers[0, 0, 70] = 3.0
    scores, beams, tokens = best_continuations_natively(numbers, torch.zeros(1, 2), 2)
    assert (scores[0, 0], beams[0, 0], tokens[0, 0]) == (0.0, 0, 70)
    assert best_continuations_natively(torch.full((1, 1, 100), float("nan")), torch.zeros(1, 1), 2)[2].tolist() == [
        [0, 0]
    ]
    assert best_continuations_natively(torch.zeros(1, 1, 3), torch.zeros(1, 1), 4) is None  # more than there are
    assert best_continuations_natively(torch.zeros(1, 1, 3).double(), torch.zeros(1, 1), 2) is None


@needs_compiler
def test_what_is_called_as_modules():
    """Other precisions and activations, and large weights where PyTorch's library shows no matrix product."""
    assert compiled_step(toy()) is not None
    assert compiled_step(toy().bfloat16()) is None
    assert compiled_step(toy(activation_function="gelu")) is None


@needs_compiler
def test_large_weights_without_a_matrix_product(monkeypatch):
    monkeypatch.setattr(step, "SMALL", 10)
    monkeypatch.setattr(library(torch.float64), "gemm", None)
    assert compiled_step(toy()) is None


@pytest.mark.parametrize("beams", [1, 3])
def test_without_it(beams, monkeypatch):
    monkeypatch.setenv("HF_MLNMT_NATIVE", "0")
    assert library(torch.float32) is None
    assert best_continuations_natively(torch.zeros(1, 1, 3), torch.zeros(1, 1), 1) is None
    assert_equal_loops(toy(), monkeypatch, **sources((6, 1, 4)), num_beams=beams, **ENDING)


@needs_compiler
def test_it_is_compiled_once(no_library, monkeypatch):
    monkeypatch.setenv("CC", f"{os.environ.get('CC') or 'cc'} -pthread")  # some environments name options there
    assert library(torch.float32) is not None
    (made,) = (no_library / "cache").iterdir()
    before = made.stat().st_mtime_ns
    native._library.cache_clear()
    assert library(torch.float32) is not None
    assert made.stat().st_mtime_ns == before
    assert len(list((no_library / "cache").iterdir())) == 1


@needs_compiler
@pytest.mark.parametrize("damage", [lambda code: code[: len(code) // 2], lambda code: code[:-1] + b"x"])
def test_a_damaged_library_is_compiled_again(no_library, damage):
    """The first of them would end the process with SIGBUS."""
    assert library(torch.float32) is not None
    (made,) = (no_library / "cache").iterdir()
    code = made.read_bytes()
    made.unlink()
    made.write_bytes(damage(code))
    native._library.cache_clear()
    assert library(torch.float32) is not None
    (again,) = (no_library / "cache").iterdir()
    assert again.read_bytes() == code


@pytest.mark.skipif(os.name == "nt", reason="a shell script plays the compiler")
def test_a_compiler_that_fails(no_library, monkeypatch, caplog):
    compiler = no_library / "cc"
    compiler.write_text("#!/bin/sh\necho no such option >&2\nexit 1\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(native.logger, "propagate", True)
    assert library(torch.float32) is None
    assert "no such option" in caplog.text
    assert not list((no_library / "cache").iterdir())
    decode(toy().float(), **sources((3, 2)), num_beams=2)


def test_no_compiler(no_library, monkeypatch):
    monkeypatch.setenv("CC", "there-is-no-such-compiler")
    assert library(torch.float32) is None
