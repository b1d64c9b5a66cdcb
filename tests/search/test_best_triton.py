"""The choice of a step as Triton kernels: what `Stage` chooses, with ties in the order of beams and tokens."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from helpers.contract import assert_same
from helpers.searching import decode, sources, toy

from hf_mlnmt import search
from hf_mlnmt.search import best_triton, fixed

NUMBERS = ("tokens", "table", "last", "open", "going")
SCORES = ("running", "best")


def stages(device, vocabulary, sentences, **options):
    """Two stages for the same search, without kernels and with them."""
    model, found = toy(vocabulary).float().to(device), []

    def build(decoder, choice, source, prompt, width, rules, config, *others):
        size = fixed.Size(sentences, width, 3, 1, 8)
        for chosen in (None, best_triton):
            fixed.kernels_for = lambda *given, chosen=chosen: chosen
            found.append(fixed.Stage(decoder, choice, size, rules, config, None))
            found[-1].limit(rules, config)
        raise InterruptedError

    search.runs_ahead, fixed._run, fixed.BLOCK = lambda tensor: True, build, vocabulary + 1
    with suppress(InterruptedError):
        decode(model, **{name: value.to(device) for name, value in sources((3,), vocabulary).items()}, **options)
    return found


def stable(tensor, count, sorted=True, out=None):
    """topk with an order of ties: the first are first."""
    values, places = (part[..., :count] for part in tensor.sort(stable=True, dim=-1, descending=True))
    if out is not None:
        out[0].copy_(values)
        out[1].copy_(places)
    return torch.return_types.topk((values, places))


@torch.inference_mode()
def assert_same_choices(both, logits, monkeypatch):
    """Both stages choose by the same logits (steps, sentences, width, vocabulary), the first of each sentence's."""
    monkeypatch.setattr(torch, "topk", stable)
    monkeypatch.setattr(torch.Tensor, "topk", stable)
    for stage in both:
        stage.found.begin(stage.size.sentences)
        stage.clock.restart(stage.size.prompt)
        stage.noise.copy_(torch.rand(stage.noise.shape, generator=torch.Generator().manual_seed(0)))
    for step, scores in enumerate(logits):
        scores = scores if step else scores[:, :1]
        for stage in both:
            stage.choose(scores.float() if stage.kernels is None else scores)
        plain, fused = ({**vars(stage), **vars(stage.found)} for stage in both)
        for name in (*NUMBERS, *SCORES):
            if name in plain:
                numbers = name in NUMBERS
                expected, actual = plain[name], fused[name]
                assert expected.tolist() == actual.tolist() if numbers else torch.allclose(actual, expected, 1e-5, 1e-5)
    return both
