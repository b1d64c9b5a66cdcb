"""Both loops of generate(), this package's and Transformers' own, on the same arguments; and models to search with."""

from __future__ import annotations

import torch
from helpers.contract import TINY, Member, assert_same

from hf_mlnmt import search
from hf_mlnmt.search.cpu.step import CompiledStep, find_family

LENGTHS = {"do_sample": False, "max_new_tokens": 20}
# Random weights hardly ever end a sentence by themselves: the longer, the likelier </s> is made.
ENDING = {"exponential_decay_length_penalty": (2, 1.2), "max_new_tokens": 40}


def tiny(system, vocabulary, seed=0):
    """A model so small that all that it can say can be tried."""
    fields = {"vocab_size": vocabulary, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    return Member(system, "post", {**fields, "norm_position": "post", "max_position_embeddings": 16}).model(seed=seed)


def compiled_step(model):
    """The model's compiled step, or None: then its modules are called."""
    return CompiledStep.of(model, find_family(model))


def call_modules(monkeypatch):
    """Lets every search call the model's modules, as without a compiler or on a GPU."""
    monkeypatch.setattr(CompiledStep, "of", classmethod(lambda *given: None))


def decode(model, seed=3, **arguments):
    """generate(), and whether its loop was the fast one."""
    torch.manual_seed(seed)
    return model.generate(**{**LENGTHS, **arguments}, return_dict_in_generate=True)


def assert_equal_loops(model, monkeypatch, fast=True, **arguments):
    """Both loops on the same arguments; returns what the one under test found."""
    calls = []
    with monkeypatch.context() as patch:
        run = search.run
        patch.setattr(search, "run", lambda *a: (calls.append(run(*a)), calls[-1])[1])
        found = decode(model, **arguments)
        patch.setattr(search, "why_not", lambda *a: "a test")
        expected = decode(model, **arguments, output_scores=True)
    assert (calls[0] is not None) == fast
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert_padded(model, found.sequences, **arguments)
    if "beam_indices" in expected and "sequences_scores" in found:
        assert_same(found.sequences_scores, expected.sequences_scores, 1e-5)
        assert found.beam_indices.tolist() == expected.beam_indices.tolist()
    return found


def assert_padded(model, sequences, eos_token_id=None, pad_token_id=None, **_):
    """Behind the first end of a sentence stands nothing but padding."""
    ends, pad = (
        getattr(model.generation_config, name) if given is None else given
        for name, given in (("eos_token_id", eos_token_id), ("pad_token_id", pad_token_id))
    )
    is_end = torch.isin(sequences, torch.tensor(ends))
    is_end[:, 0] = False  # what the decoder begins with
    behind = is_end.cumsum(1) - is_end.int() > 0
    assert (sequences[behind] == pad).all()


def toy(vocabulary: int = 200, seed: int = 0, system: str = "transformer", **fields):
    """A float64 model that gives outputs of very different lengths, and sources for it."""
    member = Member(system, "post", {**TINY, "vocab_size": vocabulary, **fields})
    return member.model(seed=seed)


def sources(lengths, vocabulary: int = 200, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, vocabulary, (len(lengths), max(lengths)), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    return {"input_ids": ids * mask, "attention_mask": mask}
