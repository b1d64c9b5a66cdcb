"""Products of plain layers by oneDNN: values and gradients, what is left to PyTorch, and who chooses."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.contract import redraw
from helpers.searching import sources, toy
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from hf_mlnmt import UserError
from hf_mlnmt.analysis.cost import LiveBytes
from hf_mlnmt.common import matmul_backends
from hf_mlnmt.common.matmul_backends import KINDS, chosen, forget, measured, packed
from hf_mlnmt.modeling.linear import project
from hf_mlnmt.search.cpu import step

pytestmark = pytest.mark.skipif(not matmul_backends.has_onednn(), reason="this PyTorch has no oneDNN")


@pytest.fixture(autouse=True)
def onednn(monkeypatch):
    """oneDNN for every product, however small; the number of its calls."""
    monkeypatch.setenv(matmul_backends.VARIABLE, "onednn")
    monkeypatch.setattr(matmul_backends, "LEAST", 0)
    torch.manual_seed(1)


@pytest.fixture
def calls(monkeypatch):
    """A name for each product that went to oneDNN."""
    found = []
    for name in ("packed", "_multiply"):
        of_module = getattr(matmul_backends, name)

        def counted(*arguments, name=name, own=of_module, **options):
            product = own(*arguments, **options)
            found.extend([name] if product is not None else [])
            return product

        monkeypatch.setattr(matmul_backends, name, counted)
    monkeypatch.setattr(step, "packed", matmul_backends.packed)
    return found


def bound(*factors: torch.Tensor) -> torch.Tensor:
    """What a product of two matrices may be off by in any order of sums, gamma_n |A| |B| (Higham 2002, section 3.5),
    and a bias or another tensor added."""
    left, right, *added = (factor.detach().double().abs() for factor in factors)
    rounding = (left.shape[1] + 2) * 2.0**-24
    return rounding / (1 - rounding) * (left @ right + sum(added))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [2, 15, 40])
def test_values(rows, bias, calls):
    layer, states = nn.Linear(70, 33, bias).eval(), torch.randn(rows, 70)
    added, weight = layer.bias if bias else torch.zeros(33), layer.weight.detach()
    exact = states.double() @ weight.double().t() + added.double()
    limit = bound(states, weight.t(), added)
    with torch.no_grad():
        assert ((project(layer, states.view(1, rows, 70))[0] - exact).abs() <= limit).all()
        assert calls == ["packed"]
        onto = torch.randn(rows, 33)
        assert ((packed(layer, states, onto=onto) - exact - onto).abs() <= bound(states, weight.t(), added, onto)).all()
        for name, function in (("relu", nn.functional.relu), ("swish", nn.functional.silu)):
            torch.testing.assert_close(packed(layer, states, name), function(exact).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_gradients(bias, calls):
    """Those of any gradient, a number for all elements too, and of gradients; gradient checkpoints compute the same."""
    layer, states = nn.Linear(70, 33, bias), torch.randn(40, 70, requires_grad=True)
    weight, read, by_bias = layer.weight.detach(), states.detach(), torch.zeros(33)
    for gradient in (torch.randn(40, 33), torch.ones(1, 1).expand(40, 33)):
        states.grad = layer.weight.grad = None
        output = project(layer, states.view(2, 20, 70)).flatten(0, 1)
        output.backward(gradient)
        exact = read.double() @ weight.double().t() + (layer.bias.detach().double() if bias else 0)
        assert ((output - exact).abs() <= bound(read, weight.t(), *([layer.bias] if bias else []))).all()
        wide, by_bias = gradient.double(), by_bias + gradient.sum(0)
        assert ((states.grad - wide @ weight.double()).abs() <= bound(gradient, weight)).all()
        assert ((layer.weight.grad - wide.t() @ read.double()).abs() <= bound(gradient.t(), read)).all()
    assert calls == ["_multiply"] * 4
    if bias:
        assert torch.equal(layer.bias.grad, by_bias)
    found = []
    for run in (project, lambda layer, states: layer(states)):
        (first,) = torch.autograd.grad(run(layer, states).pow(3).sum(), states, create_graph=True)
        found.append(torch.autograd.grad(first.pow(2).sum(), [states, layer.weight], materialize_grads=True))
    torch.testing.assert_close(*found)
    (wanted,) = torch.autograd.grad(project(layer, states).sum(), states)
    for reentrant in (False, True):
        states.grad = None
        checkpoint(project, layer, states, use_reentrant=reentrant).sum().backward()
        assert torch.equal(states.grad, wanted)


def test_a_weight_that_has_changed_is_laid_out_anew():
    layer, states = nn.Linear(70, 33).eval(), torch.randn(5, 70)
    with torch.no_grad():
        before = project(layer, states)
        layer.weight.mul_(2)
        torch.testing.assert_close(project(layer, states) - layer.bias, 2 * (before - layer.bias))
    forget()


def doubled(layer: nn.Linear, register: str) -> nn.Linear:
    getattr(layer, register)(lambda *given: None)
    return layer


OTHERS = {
    "forward hook": lambda: doubled(nn.Linear(8, 8), "register_forward_hook"),
    "pre-hook": lambda: doubled(nn.Linear(8, 8), "register_forward_pre_hook"),
    "backward hook": lambda: doubled(nn.Linear(8, 8), "register_full_backward_hook"),
    "adapter": lambda: get_peft_model(
        nn.Sequential(nn.Linear(8, 8)), LoraConfig(target_modules=["0"], init_lora_weights=False)
    ).base_model.model[0],
    "parametrised": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
    "double": lambda: nn.Linear(8, 8).double(),
    "bfloat16": lambda: nn.Linear(8, 8).bfloat16(),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_layer_that_is_not_plain_is_called(kind, calls):
    layer = OTHERS[kind]()
    states = torch.randn(5, 8, dtype=next(layer.parameters()).dtype)
    assert torch.equal(project(layer, states), layer(states))
    with torch.no_grad():
        assert torch.equal(project(layer.eval(), states), layer(states))
    assert not calls


@torch.no_grad()
def test_what_watches_or_changes_operators_sees_the_layer(calls):
    layer, states = nn.Linear(8, 8).eval(), torch.randn(5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert project(layer, states).dtype == torch.bfloat16
    with FlopCounterMode(display=False) as counter:
        project(layer, states)
    assert counter.get_total_flops() == 2 * 5 * 8 * 8
    with LiveBytes():
        project(layer, states)
    assert not calls
    torch.testing.assert_close(torch.func.jacrev(lambda x: project(layer.train(), x))(states[0]), layer.weight)
    layer.eval()
    traced = torch.jit.trace(Called(layer), states[:3], check_trace=False)  # which calls it untraced
    exported = torch.export.export(Called(layer), (states,))
    assert not any("mkldnn" in str(node.target) for node in exported.graph.nodes)
    assert "mkldnn" not in str(traced.graph)
    assert project(layer.to("meta"), states.to("meta")).shape == (5, 8)
    assert not calls


class Called(nn.Module):
    """A model that has the layer."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return project(self.layer, states)


@pytest.mark.parametrize("activation", ["relu", "swish", "gelu"])
def test_a_search_by_it_finds_the_same(activation, calls, monkeypatch):
    """Beams, few rows and many, with the layers of large weights written out."""
    monkeypatch.setattr(step, "SMALL", 10)
    model, batch = toy(activation_function=activation, d_model=48).float(), sources((6, 1, 17, 4, 3, 3, 8))
    redraw(model, std=None)
    options = {"num_beams": 3, "max_new_tokens": 9, "return_dict_in_generate": True, "output_scores": False}
    found = []
    for library in ("onednn", "mkl"):
        monkeypatch.setenv(matmul_backends.VARIABLE, library)
        forget()
        found.append(model.generate(**batch, **options))
    assert len(calls) > 100
    assert torch.equal(found[0].sequences, found[1].sequences)
    torch.testing.assert_close(found[0].sequences_scores, found[1].sequences_scores, rtol=1e-4, atol=1e-4)


def test_what_is_small_is_left_to_pytorch(monkeypatch, calls):
    monkeypatch.setattr(matmul_backends, "LEAST", 8 * 8 * 5)
    layer = nn.Linear(8, 8).eval()
    with torch.no_grad():
        project(layer, torch.randn(4, 8))
        assert not calls
        project(layer, torch.randn(5, 8))
        assert calls.pop() == "packed"
    project(layer, torch.randn(matmul_backends.TIMES * 5 - 1, 8))
    assert not calls
    project(layer, torch.randn(matmul_backends.TIMES * 5, 8))
    assert calls == ["_multiply"]


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """A cache folder, and a clock of one's own: {kind: (PyTorch's speed, oneDNN's)}."""
    monkeypatch.delenv(matmul_backends.VARIABLE)
    monkeypatch.setenv("HF_MLNMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(matmul_backends, "_MEASURED", {})
    speeds = {"few": [50.0, 90.0], "many": [100.0, 101.0], "training": [99.0, 96.0], "bfloat16": [99.0, 120.0]}
    monkeypatch.setattr(matmul_backends, "_timed", lambda: speeds)
    return tmp_path / "cache"


def test_the_choice_is_measured_once_and_kept(timed, monkeypatch):
    assert chosen() == {"few"}  # a hundredth more is no reason
    (path,) = timed.iterdir()
    kept = json.loads(path.read_text())
    assert (kept["torch"], kept["gigaflops"]["few"]) == (torch.__version__, [50.0, 90.0])
    monkeypatch.setattr(matmul_backends, "_timed", lambda: pytest.fail("measured again"))
    monkeypatch.setattr(matmul_backends, "_MEASURED", {})
    assert measured() == kept
    with matmul_backends.using(frozenset({"many"})):
        assert chosen() == {"many"}
        monkeypatch.setenv(matmul_backends.VARIABLE, "mkl")
        assert chosen() == frozenset()
    monkeypatch.setenv(matmul_backends.VARIABLE, "intel")
    with pytest.raises(UserError, match=r"HF_MLNMT_MATMUL is .intel., and one of mkl, onednn"):
        chosen()


@pytest.mark.parametrize("text", ["{", "[]", '{"gigaflops": {"few": [1]}, "onednn": []}', '{"onednn": ["few"]}'])
def test_a_damaged_file_is_made_again(text, timed, monkeypatch):
    chosen()
    (path,) = timed.iterdir()
    path.write_text(text)
    monkeypatch.setattr(matmul_backends, "_MEASURED", {})
    assert chosen() == {"few"}
    assert json.loads(path.read_text())["onednn"] == ["few"]


@pytest.mark.parametrize(("speed", "prefers"), [(98.0, False), (100.0, True)])
def test_bfloat16_is_preferred_where_it_is_faster(speed, prefers, timed, monkeypatch):
    measured()["gigaflops"]["bfloat16"] = [99.0, speed]
    assert matmul_backends.prefers_bfloat16() == prefers
    del measured()["gigaflops"]["bfloat16"]
    assert matmul_backends.prefers_bfloat16()  # not measured: the processor's word is taken


def test_a_folder_that_cannot_be_written(timed, monkeypatch):
    timed.write_text("a file")
    assert chosen() == {"few"}


def test_without_the_operators_it_is_pytorch(timed, monkeypatch, calls):
    monkeypatch.setattr(matmul_backends, "has_onednn", lambda: False)
    assert measured()["gigaflops"] == {}
    monkeypatch.setenv(matmul_backends.VARIABLE, "onednn")
    with matmul_backends.using(frozenset(KINDS)):
        assert chosen() == frozenset()
    layer, states = nn.Linear(8, 8).eval(), torch.randn(5, 8)
    with torch.no_grad():
        assert torch.equal(project(layer, states), layer(states))
    assert not calls


def test_a_measurement_draws_nothing_and_names_the_processor(monkeypatch):
    monkeypatch.setattr(matmul_backends, "ROWS", dict.fromkeys(matmul_backends.ROWS, 2))
    before = torch.get_rng_state()
    rates = matmul_backends._timed()
    assert torch.equal(torch.get_rng_state(), before)
    assert rates.keys() == {*KINDS, "bfloat16"}
    assert min(map(min, rates.values())) > 0
    assert matmul_backends.processor_name() in str(matmul_backends.record())


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_multiplies_by_its_padded_weight_where_it_is_asked_to(bias):
    """On a card a product with rows of zeros behind the weight takes half the time; outputs are the layer's."""
    torch.manual_seed(1)
    layer, other = (nn.Linear(16, 27, bias=bias).bfloat16() for _ in range(2))
    states = torch.randn(2, 3, 16).bfloat16()
    padded = nn.functional.pad(layer.weight.detach(), (0, 0, 0, 5))
    with matmul_backends.with_padded(layer.weight, padded):
        found = matmul_backends.project(layer, states)
        assert matmul_backends.project(other, states) is None
        padded.zero_()  # what is multiplied by
        empty = matmul_backends.project(layer, states)
    assert found.shape == (2, 3, 27)
    assert found.stride(1) == 32
    torch.testing.assert_close(found, layer(states))
    torch.testing.assert_close(empty, layer.bias.expand(2, 3, -1) if bias else torch.zeros(2, 3, 27).bfloat16())
    assert matmul_backends.project(layer, states) is None
