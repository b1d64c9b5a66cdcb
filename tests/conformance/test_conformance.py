"""Transformers' ModelTesterMixin and ConfigTester on every architecture of the zoo.

The baseline, and each family that has machinery of its own, runs all of it; of each other config class and of each
further kind (other parameters, or attention weights of another shape) one runs what can tell them apart,
`OF_EACH_CLASS` and `OF_EACH_KIND`. `make test` has the families in `ALWAYS`, `make test-versions` all.
An API check: what it cannot see (it passes a decoder that is not causal) is in tests/zoo/test_zoo.py.
"""

from __future__ import annotations

import os
import re
import unittest
from fnmatch import fnmatch
from typing import Any

import pytest
import torch
from helpers.causal_contract import causal_members
from helpers.contract import RECURRENT, Batch, Member, members
from helpers.skips import OF_THIS_RELEASE, SKIPS
from helpers.upstream import Unavailable, introduce, introduce_causal, load

from hf_mlnmt.zoo import find_system

try:
    UPSTREAM = load()
except Unavailable as error:
    if os.environ.get("CI", "").lower() in ("1", "true"):
        raise
    pytest.skip(str(error), allow_module_level=True)


class Sizes:
    """What upstream's mixins ask about a model: sizes, a config, inputs."""

    batch_size = 5
    seq_length = encoder_seq_length = decoder_seq_length = key_length = 7
    is_training = True

    def __init__(self, parent: unittest.TestCase, member: Member):
        self.parent, self.member = parent, member
        config = self.get_config()
        self.hidden_size, self.num_hidden_layers = config.d_model, config.encoder_layers
        self.num_attention_heads = config.encoder_attention_heads

    def get_config(self):
        return self.member.config(dropout=0.1, attention_dropout=0.1, init_std=0.02)

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(1)
        shape = (self.batch_size, self.seq_length)
        source, target = (torch.randint(5, 20, shape, generator=generator) for _ in range(2))
        source[:, -1] = 1
        ones = torch.ones(shape, dtype=torch.long)
        return self.get_config(), {
            "input_ids": source,
            "attention_mask": ones,
            "decoder_input_ids": target,
            "decoder_attention_mask": ones.clone(),
        }


def conformance_class(member: Member) -> type[unittest.TestCase]:
    """The test case of one member."""
    config, architecture = member.config(), find_system(member.system).architecture
    base, translation = architecture.base_class, architecture.head_class
    introduce(base, translation, config.model_type)

    class Case(UPSTREAM.ModelTesterMixin, UPSTREAM.GenerationTesterMixin, unittest.TestCase):
        all_model_classes = (base, translation)
        is_encoder_decoder = True
        test_can_init_all_missing_weights_before_2023 = True  # our files carry no copyright line with a year

        def setUp(self):
            self.model_tester = Sizes(self, member)
            self.config_tester = UPSTREAM.ConfigTester(self, config_class=type(config), d_model=16)

        def test_config(self):
            self.config_tester.run_common_tests()

    return Case


@pytest.mark.skipif(not OF_THIS_RELEASE, reason="the table is for the release of Transformers in constraints.txt")
def test_the_table_of_skips_is_not_stale():
    names = [name for name in dir(UPSTREAM.ModelTesterMixin) if name.startswith("test_")]
    assert not [pattern for pattern in SKIPS if not any(fnmatch(name, pattern) for name in names)]


# Outputs, gradients, attention implementations, saving: what depends on a model's own modules.
OF_EACH_KIND = (
    "test_attention_outputs",
    "test_batching_equivalence",
    "test_determinism",
    "test_eager_matches_sdpa_inference_9_*",
    "test_hidden_states_output",
    "test_model_outputs_equivalence",
    "test_retain_grad_hidden_states_attentions",
    "test_save_load",
    "test_training",
    "test_training_gradient_checkpointing*",
)

# What depends on a config class, on the names of its weights and on what they begin with; the rest of upstream's tests
# goes through methods that a family has from the baseline.
OF_EACH_CLASS = (
    *OF_EACH_KIND,
    "test_can_be_initialized_on_meta",
    "test_config",
    "test_correct_missing_keys",
    "test_load_save_without_tied_weights",
    "test_model_weights_reload_no_missing_tied_weights",
    "test_resize_embeddings_untied",
    "test_sdpa_can_dispatch_non_composite_models",
    "test_tied_weights_keys",
)
WHOLE = ("TransformerConfig", "RNNConfig", "BridgeConfig")
# With `make test`: the baseline, whose methods the others have, LSTMs, and a decoder with a state of its own.
ALWAYS = ("TransformerConfig", "RNNConfig", "DualContextConfig")

# What tries Transformers' own keywords, and what tests/zoo has of every system: weights that are missing in a file, and
# eager attention beside SDPA, of whose 25 forms three are run.
LEFT_OUT = ("test_bc_torch_dtype", "test_can_init_all_missing_weights", "test_eager_matches_sdpa_inference_*")
KEPT = ("*_9_fp32_*", "*_17_bf16_*", "*_24_*")
OF_NONE: dict[str, Any] = {
    name: None
    for name in dir(UPSTREAM.ModelTesterMixin)
    if any(fnmatch(name, pattern) for pattern in LEFT_OUT) and not any(fnmatch(name, pattern) for pattern in KEPT)
}

# They count self-attentions, choose their implementation, and want a gradient of the weights over the source.
NOT_OF_LSTMS = (
    "test_attention_outputs",
    "test_can_set_attention_dynamically",
    "test_retain_grad_hidden_states_attentions",
)
# A vocabulary and its embeddings belong to a language, on one side; the encoder has outputs that the tests count not.
NOT_OF_BRIDGE = ("test_resize_", "test_attention_outputs", "test_inputs_embeds_matches_input_ids")


def kind_of(member: Member) -> tuple[Any, ...]:
    """The names of the parameters, without their numbers, and the dimensions of the attention weights returned."""
    model = member.model(dtype=torch.float32)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(**Batch.draw().inputs, output_attentions=True)
    kinds = (found.encoder_attentions, found.decoder_attentions, found.cross_attentions)
    weights = [layer for kind in kinds for layer in kind or ()]
    names = frozenset(re.sub(r"\d+", "", name) for name, _ in model.named_parameters())
    return type(member.config()), names, frozenset(layer.dim() for layer in weights)


def cases() -> dict[str, type]:
    """The test cases of this file by name: whole ones, and those of the further kinds."""
    found, seen, classes = {}, set(), set()
    firsts: dict[str, Member] = {}
    for member in members():
        firsts.setdefault(member.system, member)
    for member in firsts.values():
        kind = kind_of(member)
        if kind in seen:
            continue
        config_class = kind[0]
        name = f"Test{config_class.__name__.removesuffix('Config')}"
        leave_out = dict(OF_NONE)
        if config_class in classes or config_class.__name__ not in WHOLE:
            chosen = OF_EACH_CLASS
            if config_class in classes:
                name, chosen = name + "Of" + member.system.title().replace("-", ""), OF_EACH_KIND
            names = [
                x for x, value in vars(UPSTREAM.ModelTesterMixin).items() if x.startswith("test_") and callable(value)
            ]
            names.append("test_config")  # the others of such names are settings
            leave_out |= {x: None for x in names if not any(fnmatch(x, pattern) for pattern in chosen)}
            if getattr(member.config(), "information_fusion", False):
                leave_out["test_attention_outputs"] = None  # it counts the outputs, and auxiliary_states is one more
        if member.system in RECURRENT:
            leave_out |= dict.fromkeys(NOT_OF_LSTMS)
        if member.system == "ssru":  # whose decoder layers have no attention over the target
            leave_out |= dict.fromkeys(["test_attention_outputs", "test_retain_grad_hidden_states_attentions"])
        if config_class.__name__ == "BridgeConfig":
            leave_out |= dict.fromkeys(
                name for name in dir(UPSTREAM.ModelTesterMixin) if name.startswith(NOT_OF_BRIDGE)
            )
        seen.add(kind), classes.add(config_class)
        case = type(name, (conformance_class(member),), {"__module__": __name__, **leave_out})
        found[name] = case if config_class.__name__ in ALWAYS else pytest.mark.versions(case)
    return found


class CausalSizes(Sizes):
    """The same of a language model."""

    def __init__(self, parent: unittest.TestCase, member: Any):
        self.parent, self.member = parent, member
        config = self.get_config()
        self.hidden_size, self.num_hidden_layers = config.d_model, config.decoder_layers
        self.num_attention_heads = config.decoder_attention_heads

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        config, inputs = super().prepare_config_and_inputs_for_common()
        return config, {name: value for name, value in inputs.items() if not name.startswith("decoder")}


def causal_cases() -> dict[str, type]:
    """Of every language model."""
    found = {}
    for member in {one.system: one for one in reversed(causal_members())}.values():
        architecture = find_system(member.system).architecture
        classes = (architecture.base_class, architecture.head_class)
        introduce_causal(*classes, architecture.model_type)

        class Case(UPSTREAM.ModelTesterMixin, UPSTREAM.GenerationTesterMixin, unittest.TestCase):
            all_model_classes = classes
            is_encoder_decoder = False
            test_can_init_all_missing_weights_before_2023 = True
            of = member

            def setUp(self):
                self.model_tester = CausalSizes(self, self.of)
                self.config_tester = UPSTREAM.ConfigTester(self, config_class=type(self.of.config()), d_model=16)

            def test_config(self):
                self.config_tester.run_common_tests()

        found[f"Test{architecture.prefix}"] = type(
            f"Test{architecture.prefix}", (Case,), {"__module__": __name__, **OF_NONE}
        )
    return found


globals().update(cases() | causal_cases())
