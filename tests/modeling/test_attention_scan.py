"""The scans: equal to one step after the other, in values and gradients; the Triton kernels: equal to the scans."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest
import torch
from helpers import card, fresh
from helpers.contract import assert_same
from torch.library import opcheck

from hf_mlnmt.modeling import attention_scan as scans
from hf_mlnmt.modeling import attention_scan_triton as kernels
from hf_mlnmt.modeling import fused

BATCH, HEADS, STEPS, PLACES, WIDTH = 3, 2, 5, 4, 3
REAL = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 0, 1, 0, 0]], dtype=torch.bool)


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def after(new, old, real, i):
    return new if real is None else torch.where(real[:, i, None, None], new, old)


def weights_step_by_step(energies, coefficient, start, real, accumulate):
    memory = torch.zeros_like(coefficient) if start is None else start
    found = []
    for i in range(energies.shape[2]):
        alpha = torch.softmax(energies[:, :, i] + coefficient * memory, -1)
        found.append(alpha)
        memory = after(memory + alpha if accumulate else alpha, memory, real, i)
    return torch.stack(found, 2)


def contexts_step_by_step(energies, keys, values, transition, start, real):
    context = keys.new_zeros(*keys.shape[:2], keys.shape[3]) if start is None else start
    found = []
    for i in range(energies.shape[2]):
        query = context if transition is None else (context.flatten(1) @ transition).view_as(context)
        alpha = torch.softmax(energies[:, :, i] + torch.einsum("bhw,bhjw->bhj", query, keys), -1)
        found.append(alpha)
        context = after(torch.einsum("bhj,bhjw->bhw", alpha, values), context, real, i)
    return torch.stack(found, 2)


def gates_step_by_step(query, plain, log_sum, transition, bias, start, real):
    batch, heads, steps, width = query.shape
    groups = len(transition)
    context = torch.zeros_like(plain[:, :, 0]) if start is None else start
    found = []
    for i in range(steps):
        mixed = torch.einsum("bgs,gsw->bgw", context.reshape(batch, groups, -1), transition)
        mixed = mixed if bias is None else mixed + bias
        key, value = (x.reshape(batch, heads, width) for x in mixed.chunk(2, -1))
        gate = torch.sigmoid((query[:, :, i] * key).sum(-1) - log_sum[:, :, i]).unsqueeze(-1)
        new = (1 - gate) * plain[:, :, i] + gate * value
        found.append(new)
        context = after(new, context, real, i)
    return torch.stack(found, 2)


def linear_step_by_step(added, decay, start):
    state, found = torch.zeros_like(added[:, 0]) if start is None else start, []
    for i in range(added.shape[1]):
        state = decay[:, i] * state + added[:, i]
        found.append(state)
    return torch.stack(found, 1)


def compare(scan, reference, arguments):
    actual, expected = scan(*arguments), reference(*arguments)
    assert_same(actual, expected, 1e-11)
    leaves = [x for x in arguments if isinstance(x, torch.Tensor) and x.requires_grad]
    probe = torch.randn_like(actual)
    got = torch.autograd.grad((actual * probe).sum(), leaves)
    assert_same(got, torch.autograd.grad((expected * probe).sum(), leaves), 1e-11)


@pytest.mark.parametrize("real", [None, REAL], ids=["whole", "padded"])
@pytest.mark.parametrize("started", [False, True])
class TestLoops:
    @pytest.mark.parametrize("accumulate", [False, True])
    def test_weights(self, started, real, accumulate):
        start = draw(BATCH, HEADS, PLACES) if started else None
        arguments = draw(BATCH, HEADS, STEPS, PLACES), draw(BATCH, HEADS, PLACES), start, real, accumulate
        compare(scans.weight_scan, weights_step_by_step, arguments)

    @pytest.mark.parametrize("mixed", [False, True], ids=["heads alone", "heads mixed"])
    def test_contexts(self, started, real, mixed):
        compare(
            scans.context_scan,
            contexts_step_by_step,
            (
                draw(BATCH, HEADS, STEPS, PLACES),
                draw(BATCH, HEADS, PLACES, WIDTH),
                draw(BATCH, HEADS, PLACES, WIDTH),
                draw(HEADS * WIDTH, HEADS * WIDTH) if mixed else None,
                draw(BATCH, HEADS, WIDTH) if started else None,
                real,
            ),
        )

    @pytest.mark.parametrize("biased", [False, True])
    @pytest.mark.parametrize("groups", [1, HEADS])
    def test_gates(self, started, real, groups, biased):
        size = HEADS // groups * WIDTH
        compare(
            scans.gate_scan,
            gates_step_by_step,
            (
                draw(BATCH, HEADS, STEPS, WIDTH),
                draw(BATCH, HEADS, STEPS, WIDTH),
                draw(BATCH, HEADS, STEPS),
                draw(groups, size, 2 * size),
                draw(groups, 2 * size) if biased else None,
                draw(BATCH, HEADS, WIDTH) if started else None,
                real,
            ),
        )


@pytest.mark.parametrize("steps", [1, 2, 5, 8])
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("recur", [scans.recur, scans.recur_by_doubling], ids=["in order", "by doubling"])
def test_linear(started, steps, recur, monkeypatch):
    monkeypatch.setattr(scans, "recur", recur)
    start = draw(BATCH, WIDTH) if started else None
    compare(scans.linear_scan, linear_step_by_step, (draw(BATCH, steps, WIDTH), draw(BATCH, steps, WIDTH), start))


# Of a second form of the arguments; tracing the backward takes seconds.
WITHOUT_TRACING = ("test_schema", "test_autograd_registration", "test_faketensor")


def test_operators_keep_what_they_promise_the_compiler():
    energies, start = draw(BATCH, HEADS, STEPS, PLACES), draw(BATCH, HEADS, WIDTH)
    operators = torch.ops.hf_mlnmt
    opcheck(operators.weight_scan_3.default, (energies, draw(BATCH, HEADS, PLACES), None, None, True))
    pair = draw(BATCH, HEADS, PLACES, WIDTH), draw(BATCH, HEADS, PLACES, WIDTH)
    opcheck(operators.context_scan_3.default, (energies, *pair, draw(HEADS * WIDTH, HEADS * WIDTH), start, REAL))
    opcheck(operators.context_scan_3.default, (energies, *pair, None, None, None), test_utils=WITHOUT_TRACING)
    queries = draw(BATCH, HEADS, STEPS, WIDTH), draw(BATCH, HEADS, STEPS, WIDTH), draw(BATCH, HEADS, STEPS)
    opcheck(operators.gate_scan_3.default, (*queries, draw(HEADS, WIDTH, 2 * WIDTH), None, None, None))
    rows = draw(BATCH, STEPS, WIDTH), draw(BATCH, STEPS, WIDTH)
    opcheck(operators.linear_scan_3.default, (*rows, None), test_utils=WITHOUT_TRACING)
    opcheck(operators.linear_scan_3.default, (*rows, draw(BATCH, WIDTH)))
    wide = 2 * HEADS * WIDTH
    whole = draw(1, wide // 2, wide), draw(1, wide), start, REAL
    opcheck(operators.gate_scan_3.default, (*queries, *whole), test_utils=WITHOUT_TRACING)


def test_autocast_does_not_reach_the_loops():
    energies, coefficient = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 4)
    pair = torch.randn(2, 2, 4, 6), torch.randn(2, 2, 4, 6)
    plain = scans.context_scan(energies, *pair, torch.eye(12), None, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(scans.context_scan(energies, *pair, torch.eye(12), None, None), plain, 1e-6)
        assert scans.weight_scan(energies, coefficient, None, None, True).dtype == torch.float32


def check_kernels(device: str, sizes, dtypes=(torch.float32, torch.bfloat16)):
    """Values and every gradient of the kernels against the loops in float64, with masked places and whole rows."""

    def close(actual, expected, tolerance):
        for x, y in zip(actual, expected, strict=True):
            assert x.shape == y.shape
            if y.numel():  # what was None has an empty gradient
                scale = max(1.0, float(y.abs().max()))
                torch.testing.assert_close(x.double() / scale, y / scale, rtol=tolerance, atol=tolerance)

    torch.manual_seed(0)
    for (batch, heads, steps, places, width), dtype in ((size, dtype) for size in sizes for dtype in dtypes):
        randn = lambda *shape, dtype=dtype: torch.randn(*shape, device=device).to(dtype)  # noqa: E731
        energies = randn(batch, heads, steps, places)
        energies[0, :, :, places // 2 + 1 :] = torch.finfo(dtype).min
        energies[-1, 0] = torch.finfo(dtype).min
        for started in (False, True):
            coefficient, gradient = randn(batch, heads, places), randn(batch, heads, steps, places)
            start = randn(batch, heads, places).abs() if started else None
            exact = [None if x is None else x.double() for x in (energies, coefficient, start, gradient)]
            for sums in (False, True):
                alpha = kernels.weights_forward(energies, coefficient, start, sums)
                expected = scans.weights_forward(*exact[:3], None, sums)
                close([alpha], [expected], 1e-4)
                found = kernels.weights_backward(gradient, coefficient, start, alpha, sums)
                close(found, scans.weights_backward(exact[3], *exact[1:3], None, expected, sums), 5e-4)
            # Keys so small that the recurrence forgets: with larger ones it is chaotic, and float32 far from float64.
            keys, values = randn(batch, heads, places, width) * width**-0.25, randn(batch, heads, places, width)
            start = randn(batch, heads, width) if started else None
            context = [None if x is None else x.double() for x in (keys, values, start)]
            alpha = kernels.contexts_forward(energies, keys, values, start)
            expected = scans.contexts_forward(exact[0], *context[:2], None, context[2], None)
            close([alpha], [expected], 1e-4)
            found = kernels.contexts_backward(gradient, keys, values, start, alpha)
            close(found, scans.contexts_backward(exact[3], *context[:2], None, context[2], None, expected), 5e-4)
            for biased in (False, True):
                inputs = [randn(batch, heads, steps, width), randn(batch, heads, steps, width)]
                inputs += [randn(batch, heads, steps), randn(heads, width, 2 * width) * width**-0.5]
                inputs += [randn(heads, 2 * width) if biased else None, start]
                inputs = [None if x is None else x.float() for x in inputs]
                wide = [None if x is None else x.double() for x in inputs]
                found, expected = kernels.gates_forward(*inputs), scans.gates_forward(*wide, None)
                close([found], [expected], 1e-4)
                up = randn(batch, heads, steps, width, dtype=torch.float32)
                found = kernels.gates_backward(up, *inputs, found)
                close(found, scans.gates_backward(up.double(), *wide, None, expected), 5e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.skipif(not kernels.AVAILABLE, reason="needs Triton")
def test_kernels_on_the_device():
    check_kernels("cuda", [(3, 2, 5, 7, 6), (2, 4, 33, 65, 64), (1, 2, 512, 512, 64), (2, 1, 511, 129, 32)])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_kernels_in_the_interpreter():
    """The kernels' arithmetic, without a device."""
    code = "import test_attention_scan as t; t.check_kernels('cpu', [(2, 2, 3, 5, 3), (1, 1, 2, 70, 80)])"
    card.run_in_the_interpreter(os.path.dirname(__file__), code)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize("types", ["*fp32", "*bf16"])
def test_kernels_compile_for_a_gpu(types, tmp_path, monkeypatch):
    """Down to the machine code of an H100, for which Triton needs no device."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = {"started": True, "sums": True, "biased": True, "block": 64, "wide": 64}
    counts = ("length", "places", "width", "heads", "programs")
    inputs = {"energies", "coefficient", "start", "gradient", "keys", "values", "queries"}
    inputs |= {"transition", "plains", "bias"}
    for name in ("_weights", "_weights_backward", "_contexts", "_contexts_backward", "_gates", "_gates_backward"):
        function = getattr(kernels, f"{name}_kernel")
        fixed = {p.name: constants[p.name] for p in function.params if p.is_constexpr}
        signature = {n: types if n in inputs else "*fp32" for n in function.arg_names}
        signature |= {n: "i32" for n in counts if n in signature} | dict.fromkeys(fixed, "constexpr")
        fixed = {(function.arg_names.index(n),): value for n, value in fixed.items()}
        compiled = compile(ASTSource(function, signature, fixed), target=GPUTarget("cuda", 90, 32))
        assert compiled.asm["cubin"]


def test_kernels_are_for_cuda_alone(monkeypatch):
    assert fused.scan_kernels(torch.zeros(1)) is None

    class Remote:
        device, dtype = torch.device("cuda"), torch.float32

    assert fused.scan_kernels(Remote()) is kernels.KERNELS
    Remote.dtype = torch.float64
    assert fused.scan_kernels(Remote()) is None
    given = torch.zeros(BATCH, HEADS, STEPS, PLACES), torch.zeros(BATCH, HEADS, PLACES), None
    monkeypatch.setattr(scans, "faster", lambda *asked: {"weights_forward": None})
    assert scans.weight_scan(*given, REAL, True).shape == given[0].shape  # padding is not for kernels
    with pytest.raises(TypeError):
        scans.weight_scan(*given, None, True)


def test_without_triton_the_loops_do():
    """A process that cannot import Triton imports the kernels' file and knows that there are none."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from hf_mlnmt.modeling import attention_scan_triton as kernels, attention_scan as scans, training_triton\n"
        "import torch\nassert kernels.KERNELS is None and not kernels.AVAILABLE\n"
        "assert training_triton.KERNELS is None\n"
        "scans.weight_scan(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 2), None, None, True)\n"
    )
    done = fresh.python("-c", code, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stderr[-3000:]
