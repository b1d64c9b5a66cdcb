"""A training step's kernels: equal to what they are written from, in values and gradients; and who is given them."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter

import pytest
import torch
from helpers import card
from helpers.contract import assert_same, gradients
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from hf_mlnmt.modeling import fused
from hf_mlnmt.modeling import training_triton as kernels

HALF = torch.float16  # the interpreter multiplies bits where numbers are bfloat16


def far(found, expected):
    scale = expected.abs().max().clamp(min=1e-30)
    return ((found.double().cpu() - expected).abs().max() / scale).item()


def compare(found, expected, bound):
    for given, other in zip(found, expected, strict=True):
        assert (given is None) == (other is None)
        assert given is None or far(given, other) < bound


def on(device, *tensors):
    return [None if x is None else x.to(device) for x in tensors]


def wide(*tensors):
    return [x.double() if x is not None and x.is_floating_point() else x for x in tensors]


def check_residual(device, dtype, bound, shape, rate, summed, normed):
    states, computed, gradient = (torch.randn(shape).to(dtype) for _ in range(3))
    computed = computed if summed else None
    weight, bias = torch.randn(2, shape[-1]) if normed else (None, None)
    seed = fused._draw(torch.device(device)) if rate else None
    given = [states, computed, None if seed is None else seed.cpu(), weight, bias]
    expected, *kept = card.residual_forward(*wide(*given), rate, 1e-5)
    found, *statistics = kernels.residual_forward(*on(device, *given), rate, 1e-5)
    compare([found], [expected], bound)
    found = kernels.residual_backward(*on(device, gradient, *given[:4]), *statistics, rate)
    compare(found, card.residual_backward(*wide(gradient, *given[:4]), *kept, rate), bound)


def check_attention(device, dtype, bound, sizes, kind, rate):
    batch, heads, target, source, width = sizes
    projected = torch.randn(batch, max(target, source), 3 * heads * width).to(dtype)
    gradient = torch.randn(batch, target, heads, width).to(dtype)

    def cut(states):
        parts = [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in states.chunk(3, -1)]
        return [part[:, :, :size] for part, size in zip(parts, (target, source, source))]

    real = torch.arange(source) < torch.arange(batch).unsqueeze(1)  # of the first sentence nothing
    mask = {
        "boolean": real[:, None, None].expand(batch, 1, target, source).contiguous(),
        "keys": real[:, None, None],
        "added": torch.randn(batch, heads, target, source).to(dtype),
    }.get(kind)
    seed = fused._draw(torch.device(device)) if rate else None
    settings = width**-0.5, rate, kind == "causal"
    here = [mask, None if seed is None else seed.cpu()]
    expected = card.attention_forward(*wide(*cut(projected), *here), *settings)
    found = kernels.attention_forward(*cut(projected.to(device)), *on(device, *here), *settings)
    compare([found], [expected], bound)
    by_projected, there = torch.zeros_like(projected, dtype=torch.float64), torch.zeros_like(projected, device=device)
    card.attention_backward(*wide(gradient, *cut(projected), *here), *settings, *cut(by_projected))
    given = [gradient.to(device), *cut(projected.to(device)), *on(device, *here)]
    kernels.attention_backward(*given, *settings, *cut(there))
    compare([there], [by_projected], bound)


def check_loss(device, dtype, bound, rows, width, smoothing, biased):
    logits, bias = 3 * torch.randn(rows, width).to(dtype), torch.randn(width) if biased else None
    labels = torch.randint(0, width, (rows,))
    labels[::3] = -100
    expected, losses = logits.double(), torch.empty(rows, dtype=torch.float64)
    card.loss_in_place(expected, None if bias is None else bias.double(), labels, losses, smoothing, True)
    buffer = torch.full((rows, -(-width // 64) * 64), torch.nan, dtype=dtype, device=device)
    buffer[:, :width] = logits
    found = torch.empty(rows, device=device)
    kernels.loss_in_place(buffer[:, :width], *on(device, bias, labels), found, smoothing, True)
    compare([found, buffer[:, :width]], [losses, expected], bound)
    assert (buffer[:, width:] == 0).all()


def check_kernels(device, halves, sizes):
    torch.manual_seed(0)
    for dtype, bound in ((torch.float32, 2e-5), (halves, 2e-2)):
        for shape in ((3, 5, 7), (37, 64), (2, 2048)):
            check_residual(device, dtype, bound, shape, 0.3, True, True)
            check_residual(device, dtype, bound, shape, 0.0, True, True)
            check_residual(device, dtype, bound, shape, 0.0, False, True)
            check_residual(device, dtype, bound, shape, 0.1, True, False)
        for number, each in enumerate(sizes):
            for kind in (None, "boolean", "keys", "added", "causal"):
                check_attention(device, dtype, bound, each, kind, 0.2 * (number % 2))
        check_loss(device, dtype, bound, 7, 100, 0.0, False)
        check_loss(device, dtype, bound, 5, 9001, 0.1, True)
        gradient, hidden = torch.randn(2, 40, 130).to(dtype)
        hidden = hidden.relu()
        found = kernels.activation_backward(*on(device, gradient, hidden))
        compare(found, card.activation_backward(gradient.double(), hidden.double()), bound)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.skipif(not kernels.AVAILABLE, reason="needs Triton")
def test_kernels_on_the_device():
    check_kernels("cuda", torch.bfloat16, [(3, 2, 17, 17, 64), (3, 2, 15, 17, 64), (2, 4, 33, 64, 128)])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_kernels_in_the_interpreter():
    """The kernels' arithmetic, without a device."""
    code = "import test_fused as t; t.check_kernels('cpu', t.HALF, [(3, 2, 5, 17, 48), (2, 1, 17, 17, 16)])"
    card.run_in_the_interpreter(os.path.dirname(__file__), code)


class ForAnH100:
    """A kernel that is compiled down to machine code, as a call with these arguments would; it needs no device."""

    NAMES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int64: "*i64", torch.bool: "*i1"}

    def __init__(self, function, seen):
        self.function, self.seen = function, seen

    def __getitem__(self, grid):
        return self.compile

    def compile(self, *args, num_warps=4):
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource, compile

        signature, fixed = {}, {}
        for place, (parameter, value) in enumerate(zip(self.function.params, args, strict=True)):
            if parameter.is_constexpr:
                fixed[(place,)] = value
                signature[parameter.name] = "constexpr"
            elif isinstance(value, torch.Tensor):
                signature[parameter.name] = self.NAMES[value.dtype]
            else:
                signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
        source = ASTSource(self.function, signature, fixed)
        done = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})
        assert done.asm["cubin"]
        self.seen[self.function.__name__] += 1


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_kernels_compile_for_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    seen: Counter[str] = Counter()
    for name in [name for name in vars(kernels) if name.endswith("_kernel")]:
        monkeypatch.setattr(kernels, name, ForAnH100(getattr(kernels, name), seen))
    states = torch.empty(50, 512, dtype=torch.bfloat16)
    seed, weight, mean = torch.empty(1, dtype=torch.int64), torch.empty(512), torch.empty(50)
    kernels.residual_forward(states, states, seed, weight, weight, 0.1, 1e-5)
    kernels.residual_backward(states, states, states, seed, weight, mean, mean, 0.1)
    views = [part.unflatten(-1, (8, -1)).transpose(1, 2) for part in torch.empty(2, 17, 1536).bfloat16().chunk(3, -1)]
    mask, gradient = torch.empty(2, 1, 17, 17, dtype=torch.bool), torch.empty(2, 17, 8, 64).bfloat16()
    kernels.attention_forward(*views, mask, seed, 0.125, 0.1, False)
    kernels.attention_backward(gradient, *views, mask, seed, 0.125, 0.1, False, *views)
    kernels.activation_backward(states, states)
    kernels.loss_in_place(states, None, torch.empty(50, dtype=torch.int64), mean, 0.1, True)
    assert len(seen) == 6


def test_the_draw_is_fair():
    kept = card.keeps(torch.tensor(7 << 40 | 12345), (1000, 1000), 0.1).double()
    assert abs(kept.mean() - 0.9) < 6 * (0.09 / 1e6) ** 0.5
    for axis in (0, 1):
        assert kept.mean(axis).std() < 1.2 * (0.09 / 1000) ** 0.5
    other = card.keeps(torch.tensor(8 << 40 | 12345), (1000, 1000), 0.1).double()
    for pair in ((kept[:, 1:], kept[:, :-1]), (kept[1:], kept[:-1]), (kept, other)):
        assert abs(torch.corrcoef(torch.stack([each.flatten() for each in pair]))[0, 1]) < 6e-3


def counted(calls):
    return {name: lambda *args, f=f: (calls.update([f.__name__]), f(*args))[1] for name, f in card.TWINS.items()}


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_step_by_kernels_is_the_step_by_modules(norm, batch, monkeypatch):
    """Loss and gradients of the baseline; query, key and value lie in two or three projections or one."""
    from hf_mlnmt.modeling import TransformerConfig, TransformerForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "norm_position": norm}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "attention_bias": norm == "pre"}
    config = TransformerConfig(**sizes, **heads, encoder_ffn_dim=24, decoder_ffn_dim=24, dropout=0.0)
    model = TransformerForConditionalGeneration(config).train()
    expected = model(**batch.training, smoothing=0.1, loss_only=True).loss
    expected.backward()
    by_modules, calls = gradients(model), Counter()
    card.on_card(monkeypatch, counted(calls))
    monkeypatch.setattr(fused, "HALVES", (torch.float32,))
    found = model(**batch.training, smoothing=0.1, loss_only=True).loss
    found.backward()
    assert_same(found, expected, 1e-5)
    assert_same(gradients(model), by_modules, 1e-4)
    sums = {"post": 10, "pre": 22}[norm]  # pre: a norm and a sum each, and a norm at the end of both stacks
    assert calls == {
        **dict.fromkeys(("residual_forward", "residual_backward"), sums),
        **dict.fromkeys(("attention_forward", "attention_backward"), 6),
        "activation_backward": 4,
        "loss_in_place": 1,
    }
    calls.clear()
    with torch.no_grad():
        model.eval()(**batch.training)
    assert not calls


KINDS = ("one projection", "two", "keys are values", "keys of one head", "some sentences", "a slice", "frozen")


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_attention_wherever_its_inputs_lie(kind, monkeypatch):
    card.on_card(monkeypatch)
    monkeypatch.setattr(fused, "HALVES", (torch.float32,))
    leaf = torch.randn(3, 5, 48, requires_grad=True)

    def inputs():
        states = 2 * leaf
        query, key, value = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in states.chunk(3, -1))
        if kind == "two":
            query = query * 1.0
            key, value = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (3 * leaf[..., 16:]).chunk(2, -1))
        if kind == "keys are values":
            value = key
        if kind == "keys of one head":
            key = key[:, :1].expand(-1, 2, -1, -1)
        if kind == "some sentences":
            query, key, value = query[:2], key[:2], value[:2]
        if kind == "a slice":
            key, value = key[:, :, 1:], value[:, :, 1:]
        return query, key.detach() if kind == "frozen" else key, value

    query, key, value = inputs()
    expected = torch.softmax(query @ key.transpose(2, 3), -1) @ value
    found = fused.short_attention(*inputs(), None, 1.0, 0.0, False)
    assert_same(found, expected.transpose(1, 2).flatten(2), 1e-4)
    above = torch.randn_like(found)
    by_kernel = torch.autograd.grad(found, leaf, above)
    assert_same(by_kernel, torch.autograd.grad(expected.transpose(1, 2).flatten(2), leaf, above), 1e-4)


def test_the_way_back_drops_what_the_way_there_did(monkeypatch):
    card.on_card(monkeypatch)
    states, computed = torch.randn(2, 40, 8, requires_grad=True), torch.randn(40, 8, requires_grad=True)
    whole = fused.residual(states[0], computed, 0.5, None)
    (by_computed,) = torch.autograd.grad(whole.sum(), computed)
    assert_same(whole - states[0], computed * by_computed, 1e-5)
    assert set(by_computed.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.9])
def test_on_a_cpu_a_fair_draw_keeps_elements(rate):
    """Rate, scale, gradient, independence of near elements, four of which share a draw; the seed decides."""
    states, ones, norm = torch.randn(499, 401), torch.ones(499, 401, requires_grad=True), nn.LayerNorm(401)

    def draw(seed, computed=ones):
        torch.manual_seed(seed)
        return fused.residual(torch.zeros(499, 401), computed, rate, None)

    found = draw(4)
    kept, share = (found != 0).double().flatten(), 1 - rate
    assert abs(kept.mean() - share) < 5 * (rate * share / len(kept)) ** 0.5  # five standard deviations
    for distance in (1, 2, 3, 4, 8):
        assert (
            abs(((kept - share)[distance:] * (kept - share)[:-distance]).mean()) < 5 * rate * share / len(kept) ** 0.5
        )
    torch.testing.assert_close(found, kept.view(499, 401).float() / share)
    incoming = torch.randn(499, 401)
    assert torch.equal(torch.autograd.grad(found, ones, incoming)[0], incoming * found)
    assert torch.equal(draw(4), found)
    assert not torch.equal(draw(5), found)
    torch.manual_seed(4)
    assert torch.equal(fused.residual(states, ones, rate, norm), norm(states + found))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(draw(4, ones.bfloat16()), found)


def test_on_a_cpu_other_dropouts_are_pytorchs():
    states = torch.randn(3, 8)
    for given, rate in ((states, 0.0), (states, 1.0), (states.double(), 0.5), (states.bfloat16(), 0.5)):
        assert fused.residual(given, given, rate, None) is None
    assert fused.residual(states, None, 0.5, nn.LayerNorm(8)) is None
    for size in (0, 1, 3, 5):
        assert fused.residual(states[:, :size], states[:, :size], 0.5, None).shape == (3, size)


def test_the_loss_in_chunks(monkeypatch):
    """Which adds the gradients of the table up, and those of the bias."""
    states, weight, bias = torch.randn(9, 4), torch.randn(7, 4), torch.randn(7)
    labels = torch.tensor([1, 2, -100, 0, 6, 5, -100, 3, 4])
    expected = [x.double().requires_grad_() for x in (states, weight, bias)]
    total = fused.projected_cross_entropy(expected[0], expected[1], labels, 0.1, expected[2])
    card.on_card(monkeypatch)
    for size in (1, 7 * 4 * 4, fused.LOGITS):
        monkeypatch.setattr(fused, "LOGITS", size)
        given = [x.clone().requires_grad_() for x in (states, weight, bias)]
        found = fused.projected_cross_entropy(given[0], given[1], labels, 0.1, given[2])
        assert_same(found.double(), total, 1e-5)
        back = torch.autograd.grad(3 * found, given)
        assert_same([x.double() for x in back], torch.autograd.grad(3 * total, expected, retain_graph=True), 1e-5)


def test_what_is_more_than_its_class_is_called(monkeypatch):
    calls: Counter[str] = Counter()
    card.on_card(monkeypatch, counted(calls))
    states, norm, linear = torch.randn(3, 8), nn.LayerNorm(8), nn.Linear(8, 8)
    assert fused.residual(states, states, 0.1, norm) is not None
    assert fused.relu_of(linear, states) is not None
    for module in (norm, linear):
        module.register_forward_hook(lambda *args: None)
    assert fused.residual(states, states, 0.1, norm) is None
    assert fused.relu_of(linear, states) is None
    assert fused.residual(states.double(), states.double(), 0.1, None) is None
    query = torch.randn(1, 2, fused.LONGEST + 1, 4)
    assert fused.short_attention(query, query, query, None, 1.0, 0.0, False) is None


def test_kernels_are_for_cuda_alone(monkeypatch):
    """For the card that is the present one, and where Triton works."""
    assert fused.kernels_for(torch.zeros(1)) is None

    class Remote:
        device, dtype, is_cuda = torch.device("cuda", 1), torch.bfloat16, True

    for present, does, known in ((1, True, kernels.KERNELS), (0, True, None), (1, False, None)):
        monkeypatch.setattr(torch.cuda, "current_device", lambda present=present: present)
        monkeypatch.setattr(kernels, "works", lambda device, does=does: does)
        assert fused.kernels_for(Remote()) is known
    monkeypatch.undo()
    assert not kernels.works(torch.device("cpu"))  # where a kernel cannot run: no more than a warning


@pytest.mark.parametrize("system", ["transformer", "ssru", "previous-weight"])
def test_without_the_package_a_step_is_the_same(system, batch, monkeypatch):
    """Loss and gradients where nothing has filled the slot, as of code beside published weights."""
    from hf_mlnmt import config_for
    from hf_mlnmt.modeling import linear

    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config_for(system, "tiny", vocab_size=30, dropout=0.0)).double().train()
    model(**batch.training, smoothing=0.1, loss_only=True).loss.backward()
    expected = gradients(model)
    monkeypatch.setattr(linear, "kernels", None)
    model.zero_grad()
    loss = model(**batch.training, smoothing=0.1, loss_only=True).loss
    loss.backward()
    assert_same(loss, model(**batch.training, smoothing=0.1).loss, 1e-9)
    assert_same(gradients(model), expected, 1e-9)
