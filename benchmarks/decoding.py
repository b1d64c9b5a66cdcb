"""Decoding speed: our baseline's generate() against Transformers' Marian of the same shape, in one run.

    python benchmarks/decoding.py

Random weights and a fixed number of steps, so that both do the same work; what users see depends on how long the
outputs of a trained model are. A faster decoder inside generate() has an issue of its own: this is where it will show.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from common import Measure, print_ratios, require_green_tests, take_turns
from transformers import PreTrainedModel

import hf_mlnmt
from training import marian_like


def contestant(
    model: PreTrainedModel, inputs: dict[str, torch.Tensor], beams: int, steps: int
) -> Callable[[], Measure]:
    """One turn: one batch, exactly `steps` tokens for every sentence."""

    @torch.inference_mode()
    def run() -> Measure:
        start = time.perf_counter()
        model.generate(**inputs, num_beams=beams, do_sample=False, min_new_tokens=steps, max_new_tokens=steps)
        return Measure(len(inputs["input_ids"]), time.perf_counter() - start)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="small", choices=["tiny", "small", "base"])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--source", type=int, default=15, help="subwords of every source")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    require_green_tests()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    config = hf_mlnmt.config_for("transformer", options.shape, vocab_size=8000)
    models = {
        "Marian": marian_like(config).eval(),
        "ours": hf_mlnmt.TransformerForConditionalGeneration(config).eval(),
    }
    ids = torch.randint(5, config.vocab_size, (options.batch, options.source))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for beams in (1, 6):
        runs = {name: contestant(model, inputs, beams, options.steps) for name, model in models.items()}
        title = f"generate(), {options.shape} shape, batch {options.batch}, beam {beams}, {options.steps} steps"
        print_ratios(title, "sentences", take_turns(runs, options.rounds), "Marian")


if __name__ == "__main__":
    main()
