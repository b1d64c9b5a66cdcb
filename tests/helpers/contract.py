"""The members of the zoo that every contract test runs over, and what the tests share.

A new system needs nothing here unless the tiny size does not suit it: then one line in `FIELDS` (fields it needs), in
`VARIANTS` (more variants of its own) or in `IDLE` (parameters that have no gradient, and why).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

import hf_mlnmt
from hf_mlnmt.zoo.systems import find_system

TINY: dict[str, Any] = {
    "vocab_size": 29,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
}
SEPARATE = {"decoder_vocab_size": 23, "share_encoder_decoder_embeddings": False}

# Fields that a system needs at the tiny size.
_BRIDGE = {"bridge_heads": 3, "bridge_width": 10}
FIELDS: dict[str, dict[str, Any]] = {
    "ms-123": {"encoder_layers": 4},
    "ms-123-aif": {"encoder_layers": 4},
    "bridge-rnn": _BRIDGE,
    "bridge-transformer": _BRIDGE,
}
# Variants that every system has, and those that single systems have besides.
COMMON_VARIANTS: dict[str, dict[str, Any]] = {
    "post": {"norm_position": "post"},
    "pre": {"norm_position": "pre"},
    "separate": {"norm_position": "post", **SEPARATE},
}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "transformer": {
        "untied": {"tie_word_embeddings": False, "norm_position": "pre", **SEPARATE},
        "bias": {"attention_bias": True, "activation_function": "gelu"},
        "uneven": {"encoder_layers": 3, "decoder_layers": 1, "decoder_attention_heads": 4},
    },
    # With a target vocabulary of 23 the random weights end every sentence at once.
    "enc-dc": {"separate": {"norm_position": "post", **SEPARATE, "decoder_vocab_size": 25}},
    "full-dc": {"wide": {"kernel_size": 5, "dual_layers": [2, 2]}},
    "rnn": {"no feeding": {"input_feeding": False}},
    "bridge-transformer": {"bias": {"bridge_bias": True}},
}
# Systems of LSTM layers: no self-attention, no layer norm, no positions, and so no longest sentence.
RECURRENT = ("rnn", "bridge-rnn")
# Systems whose decoder reads so many rows, however long the source is.
FIXED_MEMORY = {"bridge-rnn": 3, "bridge-transformer": 3}
# Tests that every variant of a system goes through: what the norm, or a second vocabulary, has code of its own for; in
# `make test` every variant of one system of each family. In all other tests a system is there once, as its config has
# the norm by default, with the variants that only it has; the baseline with all its variants.
EVERY_VARIANT = {
    "test_every_parameter_gets_a_gradient",
    "test_loss_only_equals_full",
    "test_round_trip_is_exact",
    "test_source_padding_is_invisible",
}
# A system of each family, and so of each kind of decoder state: the last, which has the most of what the family does.
KINDS = tuple({find_system(name).architecture: name for name in hf_mlnmt.list_systems("translation")}.values())
# Tests of code that all systems of a family share, slots of a cache among it: in `make test` those of one of each.
ONE_OF_EACH_FAMILY = {
    "test_base_model_and_head_share_a_checkpoint",
    "test_loads_from_hub_code_without_the_package",
    "test_published_code_imports_only_torch_and_transformers",
    "test_published_code_is_the_paper_and_the_baseline",
    "test_published_folder_loads_with_the_package_and_no_remote_code",
    "test_resized_vocabulary",
}
# System -> {end of a parameter's name: why it has no gradient}.
IDLE: dict[str, dict[str, str]] = {
    "bridge-transformer": {"bridge.head_proj.bias": "the same at all positions of a row: softmax takes it away again"}
}
# Systems whose attention over the source leaves part of its weight to something that is not in the source.
PARTLY_ELSEWHERE = ("key-value-head", "key-value-full")
# System -> how far bfloat16 may be from float32, where 0.05 of the logits' deviation is too strict: weights as large as
# the tests', multiplied three deep into a recurrence, amplify the rounding of the weights alone to half of that.
BFLOAT16: dict[str, float] = {"key-value-full": 0.1}

# No token twice, and no end at once: a random model otherwise repeats one token for ever, or ends every sentence.
DECODING: dict[str, Any] = {
    "do_sample": False,
    "min_new_tokens": 4,
    "max_new_tokens": 10,
    "no_repeat_ngram_size": 1,
    "return_dict_in_generate": True,
    "output_logits": True,
    "output_scores": True,
}


@dataclass(frozen=True)
class Member:
    """One system in one variant."""

    system: str
    variant: str
    fields: dict[str, Any] = field(hash=False)

    def __str__(self) -> str:
        return f"{self.system}-{self.variant}"

    def config(self, **overrides: Any) -> PreTrainedConfig:
        return hf_mlnmt.config_for(self.system, "tiny", **{**self.fields, **overrides})

    def model(self, seed: int = 0, dtype: torch.dtype = torch.float64, **overrides: Any) -> PreTrainedModel:
        """A model in evaluation mode whose weights are large, so that mistakes show; float64, so that nothing ties."""
        if overrides:  # hardly ever asked for twice
            return _build(self, seed, dtype, **overrides)
        return copy.deepcopy(_kept(self, seed, dtype))


@functools.lru_cache(maxsize=256)  # more than there are members, so that each is made once
def _kept(member: Member, seed: int, dtype: torch.dtype) -> PreTrainedModel:
    return _build(member, seed, dtype)


def _build(member: Member, seed: int, dtype: torch.dtype, **overrides: Any) -> PreTrainedModel:
    auto_class = getattr(transformers, find_system(member.system).architecture.auto_class)
    model = auto_class.from_config(member.config(**overrides)).eval().to(dtype)
    redraw(model, seed)
    return model


@contextmanager
def lent(member: Member) -> Iterator[PreTrainedModel]:
    """The member's model, made once. Mode, attention, gradients are put back; changed weights or hooks are its end."""
    model = _LENT.get(member) or _LENT.setdefault(member, member.model())
    attention, weights = model.config._attn_implementation, _state_of(model)
    yield model
    model.eval().zero_grad(set_to_none=True)
    if model.config._attn_implementation != attention:
        model.set_attn_implementation(attention)
    if _state_of(model) != weights:
        del _LENT[member]


_LENT: dict[Member, PreTrainedModel] = {}


def _state_of(model: nn.Module) -> list[tuple[int, int]]:
    """Weights, and hooks: Transformers leaves its own behind where hidden states or attentions were asked for."""
    hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
    return hooks + [(id(parameter), parameter._version) for parameter in model.parameters()]


@functools.cache
def forced_logits(member: Member) -> Tensor:
    """Those of `Batch.draw()`, by the whole target at once."""
    with lent(member) as model, torch.no_grad():
        return model(**Batch.draw().inputs, use_cache=False).logits


def common_variants(system: str) -> dict[str, dict[str, Any]]:
    """Those of `COMMON_VARIANTS` that differ for the system."""
    return {name: fields for name, fields in COMMON_VARIANTS.items() if name != "pre" or system not in RECURRENT}


def members() -> list[Member]:
    """Every system in every variant."""
    return [
        Member(system, variant, {**TINY, **FIELDS.get(system, {}), **fields})
        for system in hf_mlnmt.list_systems("translation")
        for variant, fields in {**common_variants(system), **VARIANTS.get(system, {})}.items()
    ]


@functools.cache  # each test asks for them
def members_once() -> list[Member]:
    """Every system in its default variant and in those of its own; the baseline in all."""
    systems = hf_mlnmt.list_systems("translation")
    default = {system: hf_mlnmt.config_for(system, "tiny").norm_position for system in systems}
    baseline = systems[0]
    return [
        member
        for member in members()
        if member.system == baseline or member.variant not in {"pre", "post", "separate"} - {default[member.system]}
    ]


def members_for(test: str) -> list[Any]:
    """Those that a test of this name runs over."""
    if test in ONE_OF_EACH_FAMILY:
        return of_each_kind(members_once())
    if test in EVERY_VARIANT:
        return [one if one in members_once() else of_each_kind([one])[0] for one in members()]
    return members_once()


def of_each_kind(members: Iterable[Any], kinds: Collection[str] = KINDS) -> list[Any]:
    """Parameters of a test: members, or names of systems; those of other systems are for `make test-versions`."""
    return [
        pytest.param(each, id=str(each), marks=[] if system in kinds else pytest.mark.versions)
        for each in members
        for system in [getattr(each, "system", each)]
    ]


def build(settings: PreTrainedConfig, std: float | None = 0.4, seed: int = 0) -> Any:
    """A float64 model of a config, in evaluation mode, with weights of `redraw`."""
    model = transformers.AutoModelForSeq2SeqLM.from_config(settings).double().eval()
    redraw(model, seed, std)
    return model


def redraw(model: nn.Module, seed: int = 0, std: float | None = 0.4):
    """Draw every parameter anew: matrices from N(0, std^2) (None: fan_in^-0.5); vectors around 1 (norms) or 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
            if parameter.dim() > 1:
                parameter.copy_(noise * (std or parameter.shape[1:].numel() ** -0.5))
            else:
                parameter.copy_((1.0 if name.endswith("norm.weight") else 0.0) + 0.2 * noise)


@dataclass
class Batch:
    """Four sentence pairs of unequal lengths, padded on the right."""

    source: Tensor
    source_mask: Tensor
    labels: Tensor  # ending in </s>, -100 where nothing counts
    target: Tensor  # the decoder's input: <s> and the labels but the last
    target_mask: Tensor

    @classmethod
    def draw(cls, seed: int = 0, sources=(7, 5, 3, 7), targets=(6, 4, 6, 2)) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        source = _ragged(sources, 0, generator)
        labels = _ragged(targets, -100, generator)
        target = torch.cat([torch.full((len(targets), 1), 3), labels[:, :-1]], 1)
        return cls(source, (source != 0).long(), labels, target.masked_fill(target == -100, 0), (labels != -100).long())

    @property
    def encoder_inputs(self) -> dict[str, Tensor]:
        return {"input_ids": self.source, "attention_mask": self.source_mask}

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Forced decoding: the padding of the target needs no mask, as nothing looks to the right."""
        return {**self.encoder_inputs, "decoder_input_ids": self.target}

    @property
    def training(self) -> dict[str, Tensor]:
        return {**self.encoder_inputs, "labels": self.labels}

    def rows(self, index) -> Batch:
        """Some of the sentence pairs, in the order of `index`."""
        index = torch.as_tensor(index)
        return Batch(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


def _ragged(lengths, padding: int, generator: torch.Generator) -> Tensor:
    """Rows of random words ending in </s>, padded on the right."""
    rows = torch.randint(5, 22, (len(lengths), max(lengths)), generator=generator)
    for row, length in zip(rows, lengths):
        row[length - 1] = 1
        row[length:] = padding
    return rows


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the parameters' gradients, which are then reset."""
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def assert_same(actual, expected, tolerance: float = 1e-9):
    """Equal tensors, or nests of them, to an absolute and relative tolerance."""
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, check_dtype=False)


def check_training(model: nn.Module, batch: Any, scores: Tensor, expected: Tensor) -> None:
    """Loss, scores and gradients of a model are the reference's, whose loss `expected` is not differentiated yet."""
    expected.backward()
    of_reference = gradients(model)
    for loss_only in (False, True):
        out = model(**batch.training, smoothing=0.1, num_items_in_batch=1, loss_only=loss_only)
        assert_same(out.loss, expected)
        if not loss_only:
            assert_same(out.logits, scores)
        out.loss.backward()
        assert_same(gradients(model), of_reference)


def assert_same_decoding(actual, expected, tolerance: float = 1e-5):
    """The same tokens, final scores (generate() keeps them in float32) and every step's scores over the vocabulary."""
    assert actual.sequences.tolist() == expected.sequences.tolist()
    if expected.get("sequences_scores") is not None:
        assert_same(actual.sequences_scores, expected.sequences_scores, tolerance)
        assert actual.beam_indices.tolist() == expected.beam_indices.tolist()
    assert_same(torch.stack(actual.logits), torch.stack(expected.logits), tolerance)


def assert_lively(decoded):
    """Guards the tests: sentences differ, and with beams some hypothesis changes its place."""
    assert len({tuple(row) for row in decoded.sequences.tolist()}) > 1
    indices = decoded.get("beam_indices")
    if indices is not None:
        assert any(len({i for i in row if i >= 0}) > 1 for row in indices.tolist()), "no beam ever moved"
