"""The choice of a step as Triton kernels: what `Stage` chooses, with ties in the order of beams and tokens."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from helpers import card
from helpers.searching import decode, sources, toy
from torch.utils._python_dispatch import TorchDispatchMode

from hf_mlnmt.search.gpu import kernels, static_shapes

LEAST = {"min_new_tokens": 3, "max_new_tokens": 8}
NUMBERS, SCORES = ("tokens", "table", "last", "open"), ("running", "best")


def stages(device, vocabulary, sentences, kernels=(None, kernels), **options):
    """Two stages for the same search, without kernels and with them."""
    model, found = toy(vocabulary).float().to(device), []

    def build(decoder, choice, source, prompt, rules, record, *others):
        for chosen in kernels:
            patch.setattr(static_shapes, "kernels_for", lambda *given, chosen=chosen: chosen)
            found.append(
                static_shapes.Stage(
                    decoder, choice, static_shapes.Size(sentences, record.width, 3, 8), rules, record.config, None
                )
            )
            found[-1].limit(rules, record.config)
            found[-1].found.begin(sentences)
            found[-1].clock.restart()
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patch, suppress(InterruptedError):
        patch.setattr(static_shapes, "is_asynchronous", lambda tensor: True)
        patch.setattr("hf_mlnmt.search.prepare.UnencodedSources.ready", lambda *given: None)
        patch.setattr(static_shapes, "_run", build)
        decode(model, **{name: value.to(device) for name, value in sources((3,), vocabulary).items()}, **options)
    assert [stage.kernels for stage in found] == list(kernels)
    return found


def stable(tensor, count, sorted=True, out=None):
    """topk with an order of ties: the first are first."""
    best = [part[..., :count] for part in tensor.sort(stable=True, dim=-1, descending=True)]
    for part, place in zip(best, out or ()):
        place.copy_(part)
    return torch.return_types.topk(best)


@torch.inference_mode()
def assert_same_choices(logits, **options):
    """Both choose by logits (steps, sentences, width, vocabulary), behind the prompt by the first of a sentence's."""
    _, sentences, _, vocabulary = logits.shape
    plain, fused = stages(logits.device, vocabulary, sentences, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "topk", stable)
        patch.setattr(torch.Tensor, "topk", stable)
        for step, scores in enumerate(logits):
            scores = scores[:, : plain.size.width] if step else scores[:, :1]
            plain.choose(scores.float())
            fused.choose(scores)
            expected, actual = ({**vars(stage.found), **vars(stage)} for stage in (plain, fused))
            for name in (*NUMBERS, *SCORES):
                same = torch.equal if name in NUMBERS else lambda *both: torch.allclose(*both, 1e-5, 1e-5)
                assert same(actual[name], expected[name]), (options, step, name, actual[name], expected[name])


def check_kernels(device, vocabulary, generates):
    torch.manual_seed(0)
    logits = torch.randn(3, 2, 4, vocabulary, device=device) * 3
    logits[1:, :, :2, 1] += 9  # ends
    whole_lines = torch.nn.functional.pad(logits, (0, -vocabulary % 64), value=torch.nan)[..., :vocabulary]
    few = logits.clone()
    few[..., 11:] = -torch.inf
    for scores in (whole_lines, logits.round().bfloat16(), few, torch.zeros_like(logits), logits[:, :, :, :30]):
        assert_same_choices(scores, num_beams=4)
    half = logits.half()
    assert_same_choices(half[:, :, :2], num_beams=2, early_stopping=True, eos_token_id=[1, 2, 5], **LEAST)
    assert_same_choices(half[:, :, :2], num_beams=2, forced_bos_token_id=7, forced_eos_token_id=1, max_new_tokens=3)
    bias = [[[9], 2.0], [[vocabulary - 2], -3.0]]
    assert_same_choices(
        logits[:, :, :3], num_beams=3, suppress_tokens=[70], begin_suppress_tokens=[80], sequence_bias=bias
    )
    assert kernels.works(torch.device(device))
    if generates:
        found, options = [], {"num_beams": 3, "min_new_tokens": 2, "max_new_tokens": 4}
        for chosen in (None, kernels):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(static_shapes, "is_asynchronous", lambda tensor: True)
                patch.setattr(static_shapes, "kernels_for", lambda *given, chosen=chosen: chosen)
                found.append(decode(toy(22).float(), **sources((3, 2), 22), **options).sequences.tolist())
        assert found[0] == found[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.skipif(not kernels.AVAILABLE, reason="needs Triton")
def test_kernels_on_the_device():
    check_kernels("cuda", 26_430, generates=False)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_kernels_in_the_interpreter():
    """The kernels' arithmetic, without a device."""
    code = "import test_kernels as t; t.kernels.TILE = 128; t.check_kernels('cpu', 203, True)"
    card.run_in_the_interpreter(os.path.dirname(__file__), code)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize("types", ["*fp32", "*bf16"])
def test_kernels_compile_for_a_gpu(types, tmp_path, monkeypatch):
    """Down to the machine code of an H100, for which Triton needs no device; several logits are read at once."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = {"changed": True, "summed": True, "normalized": False, "early": True}
    constants |= {"block": 2048, "width": 5, "lanes": 8, "entries": 64, "count": 10, "wide": 16}
    of = {"logits": types} | dict.fromkeys(("forced", "open_", "is_end"), "*i1")
    of |= dict.fromkeys(
        ("row_of", "step", "final", "keys", "last", "first_candidate", "table", "tokens", "origins"), "*i64"
    )
    of |= dict.fromkeys(("rows", "highest", "totals", "running", "best", "length_penalties"), "*fp32")
    for kernel in (kernels._read_kernel, kernels._beams_kernel):
        names = kernel.arg_names
        chosen = {p.name: constants[p.name] for p in kernel.params if p.is_constexpr}
        signature = {name: "constexpr" if name in chosen else of.get(name, "i32") for name in names}
        aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in kernels.ALIGNED if name in names}
        source = ASTSource(kernel, signature, {(names.index(name),): chosen[name] for name in chosen}, aligned)
        compiled = compile(source, target=GPUTarget("cuda", 90, 32))
        assert compiled.asm["cubin"]
        assert "logits" not in names or "ld.global.v4.b32" in compiled.asm["ptx"]


def test_a_choice_is_few_calls(monkeypatch):
    """Beside the decoder's, and what its state takes to follow the beams: launches of kernels, and operations."""
    names = Counter()

    class Launch:
        def __getitem__(self, grid):
            return lambda *given, **options: names.update(["kernel"])

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.update([] if function.is_view else [function._schema.name])
            return function(*args, **(kwargs or {}))

    for name in ("_read_kernel", "_beams_kernel"):
        monkeypatch.setattr(kernels, name, Launch())
    (stage,) = stages("cpu", 200, 3, [kernels], num_beams=4, **LEAST)
    with torch.inference_mode(), Calls():
        stage.choose(torch.zeros(3, stage.size.width, 200))
    assert names["kernel"] == 2
    assert names.total() <= 15


def test_a_triton_that_does_not_work_is_not_used(monkeypatch):
    class Broken:
        def __getitem__(self, grid):
            raise FileNotFoundError("no C compiler")

    monkeypatch.setattr(kernels, "_first_kernel", Broken())
    assert not kernels.works.__wrapped__(torch.device("cpu"))


def test_kernels_are_for_cuda_and_what_they_can(monkeypatch):
    monkeypatch.setattr(kernels, "AVAILABLE", True)
    monkeypatch.setattr(kernels, "works", lambda device: True)
    model = toy(200).float()
    assert static_shapes.kernels_for(model, 4, 8) is None
    known = lambda *given, **more: static_shapes.kernels_for(  # noqa: E731
        SimpleNamespace(**{"device": torch.device("cuda"), "dtype": torch.bfloat16, "config": model.config, **more}),
        *given,
    )
    assert known(4, 8) is kernels
    assert known(4, 8, dtype=torch.float64) is None
    assert known(4, kernels.MOST_CANDIDATES + 1) is known(kernels.MOST_BEAMS + 1, 2) is None
    monkeypatch.setattr(kernels, "works", lambda device: False)
    assert known(4, 8) is None
    for options in ({"repetition_penalty": 1.0, "renormalize_logits": True, "num_beams": 2}, {"do_sample": True}, {}):
        with pytest.raises(AssertionError):  # which kernels the stages have
            stages("cpu", 200, 2, [kernels], **options)
