"""The causal language models of the zoo that the tests of tests/zoo/test_zoo_causal.py run over, and their batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from helpers.contract import TINY, Member
from torch import Tensor

import hf_mlnmt

VARIANTS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {"norm_position": "pre"},
    "untied": {"tie_word_embeddings": False, "output_bias": True, "position_embedding": "learned"},
    "bias": {"attention_bias": True, "activation_function": "gelu", "position_embedding": "halves"},
}


def causal_members() -> list[Member]:
    """Every language model in every variant."""
    found = []
    for system in hf_mlnmt.list_systems("language-model"):
        known = hf_mlnmt.config_for(system, "tiny").to_dict()
        sizes = {name: value for name, value in TINY.items() if name in known}
        found += [Member(system, name, {**sizes, **fields}) for name, fields in VARIANTS.items()]
    return found


@dataclass
class TextBatch:
    """Four sentences <s> .. </s> of unequal lengths."""

    tokens: Tensor
    mask: Tensor

    @classmethod
    def draw(cls, seed: int = 0, lengths=(7, 5, 3, 7)) -> TextBatch:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(5, 22, (len(lengths), max(lengths)), generator=generator)
        mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
        tokens[:, 0] = 3
        tokens[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = 1
        return cls(tokens.masked_fill(~mask, 0), mask.long())

    @property
    def inputs(self) -> dict[str, Tensor]:
        return {"input_ids": self.tokens, "attention_mask": self.mask}

    @property
    def training(self) -> dict[str, Tensor]:
        return {**self.inputs, "labels": self.tokens.masked_fill(self.mask == 0, -100)}

    def rows(self, index) -> TextBatch:
        """Some of the sentences, in the order of `index`."""
        index = torch.as_tensor(index)
        return TextBatch(self.tokens[index], self.mask[index])

    def padded_left(self) -> TextBatch:
        """The same sentences, each at the right end of its row, what stands under the mask being noise."""
        moved = [
            (row.roll(int((1 - mask).sum())), mask.roll(int((1 - mask).sum())))
            for row, mask in zip(self.tokens, self.mask)
        ]
        mask = torch.stack([one for _, one in moved])
        return TextBatch(torch.stack([row for row, _ in moved]).masked_fill(mask == 0, 17), mask)
