"""What a language model costs in the search: a fused model against its members, each searched alone.

All decode the same number of tokens for every sentence, so that a step is compared with a step. The language model
alone is the fused model with alpha = 0 (symbol level). Ratio: seconds of the fused model / seconds of both members.

    python benchmarks/fusion.py --rounds 3
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any

import torch
from common import Measure, machine, parse, take_turns
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GPT2Config

from hf_mlnmt import config_for, fuse

TOKENS = 20


def contestants(shape: str, vocabulary: int, other: bool) -> dict[str, tuple[Any, dict[str, float]]]:
    """Models with the scales they are called with, by name."""
    torch.manual_seed(1)
    translation = AutoModelForSeq2SeqLM.from_config(config_for("transformer", shape, vocab_size=vocabulary)).eval()
    config: Any = config_for("lm", shape, vocab_size=vocabulary)
    if other:
        layers, width, heads = config.decoder_layers, config.d_model, config.decoder_attention_heads
        config = GPT2Config(vocab_size=vocabulary, n_embd=width, n_layer=layers, n_head=heads)
    language = AutoModelForCausalLM.from_config(config).eval()
    symbol, sequence = (fuse(translation, language, normalization=name) for name in ("symbol", "sequence"))
    return {
        "translation model": (translation, {}),
        "language model": (symbol, {"alpha": 0.0, "beta": 1.0}),
        "symbol level": (symbol, {"alpha": 1.0, "beta": 0.1}),
        "sequence level": (sequence, {"alpha": 1.0, "beta": 0.1}),
    }


def search(model: Any, scales: dict[str, float], beams: int, sources: torch.Tensor) -> Measure:
    """One batch through the search."""
    mask = torch.ones_like(sources)
    length = {"min_new_tokens": TOKENS, "max_new_tokens": TOKENS}
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(sources, attention_mask=mask, num_beams=beams, **length, **scales)
    return Measure(1, time.perf_counter() - started)


def main() -> None:
    """Contestants take turns; the median of the rounds' ratios is printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rounds", 3), ("beams", 6), ("sentences", 32), ("vocabulary", 8000), ("threads", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--shape", default="tiny")
    parser.add_argument("--gpt2", action="store_true", help="a language model of Transformers, called as modules")
    given = parse(parser, "--rounds 1 --beams 2 --sentences 2 --vocabulary 100 --threads 1")
    if given.threads:
        torch.set_num_threads(given.threads)
    models = contestants(given.shape, given.vocabulary, given.gpt2)
    sources = torch.randint(4, given.vocabulary, (given.sentences, 15))
    turns = {name: partial(search, *one, given.beams, sources) for name, one in models.items()}
    times = {name: [1 / rate for rate in rates] for name, rates in take_turns(turns, given.rounds).items()}
    for name, values in times.items():
        both = [a + b for a, b in zip(times["translation model"], times["language model"], strict=True)]
        ratio = statistics.median(value / two for value, two in zip(values, both, strict=True))
        print(f"{name:<18} {statistics.median(values):6.3f} s   {ratio:.2f} of both members")
    print(machine())


if __name__ == "__main__":
    main()
