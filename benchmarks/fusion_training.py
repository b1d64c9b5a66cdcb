"""What training with a fused loss costs: the same batches, plain, by symbol, with n-best lists and trellises.

    python benchmarks/fusion_training.py MODEL --source train.de.gz --target train.en.gz --rounds 3 --threads 1

MODEL is a trained translation model: of an untrained one no hypothesis ends before the length limit. The model of
`--language-model` has its tokenizer; without one, one of the same sizes is made, whose weights say nothing: its time is
the same. A step is the loss of a batch, its gradients and the optimizer's step, as the trainer does them; rates are
target tokens a second, of contestants that take turns. The thesis on monolingual data (table 4.6) prints of its epochs,
the fused ones with fewer decoder layers and much smaller batches: 12 minutes, 35 by symbol, 7:58 hours by sequence.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Measure, machine, parse, print_ratios, take_turns
from transformers import AutoModelForCausalLM

from hf_mlnmt import config_for, fuse
from hf_mlnmt.common.files import write_json
from hf_mlnmt.common.memory import keep_memory
from hf_mlnmt.common.model_folder import load_model
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.tokenizer import encode, load_tokenizers
from hf_mlnmt.training.batching import TokenBatchSampler
from hf_mlnmt.training.fusion_objectives import FusionNBest, FusionSymbol, FusionTrellis
from hf_mlnmt.training.objectives import Batch, Objective, Translation

PRINTED = {"symbol / plain": 2.8, "n-best / plain": 38.4, "n-best / symbol": 13.7}


def batches(folder: str, source: Path, target: Path, lines: int, tokens: int, pad: int) -> list[Batch]:
    """The first lines of a corpus, as a training sees them."""
    tokenizers = load_tokenizers(folder)
    sides = [encode(side, list(islice(read_lines(path), lines))) for side, path in (
        (tokenizers.source, source), (tokenizers.target, target)
    )]  # fmt: skip
    examples = [{"input_ids": np.array(one), "labels": np.array(two)} for one, two in zip(*sides, strict=True)]
    lengths = [np.array([len(example[name]) for example in examples]) for name in ("input_ids", "labels")]
    sampler = TokenBatchSampler(*lengths, tokens)
    return [Translation(pad).collate([examples[index] for index in batch]) for batch in sampler.batches(0)]


def language_model(translation: Any, folder: str | None) -> Any:
    """Of a folder, or of the translation model's sizes."""
    if folder is not None:
        return load_model(folder, AutoModelForCausalLM)
    config, known = translation.config, config_for("lm", "tiny").to_dict()
    sizes = {name: getattr(config, name) for name in known if name.startswith(("d_model", "decoder_", "norm_"))}
    return AutoModelForCausalLM.from_config(
        config_for("lm", "tiny", **{**sizes, "vocab_size": config.decoder_vocab_size})
    )


def contestants(given: argparse.Namespace, translation: Any, lm: Any) -> dict[str, tuple[Any, Objective]]:
    """Name -> model and objective; each has weights of its own, which move."""
    pad, beams = translation.config.pad_token_id, given.n
    symbol, sequence = (
        [fuse(translation, lm, normalization=level) for _ in range(count)]
        for level, count in (("symbol", 1), ("sequence", 2))
    )
    return {
        "plain": (translation, Translation(pad)),
        "symbol": (symbol[0], FusionSymbol(pad)),
        "n-best": (sequence[0], FusionNBest(pad, n=beams)),
        "trellis": (sequence[1], FusionTrellis(pad, beams=beams)),
    }


def steps(model: Any, objective: Objective, some: list[Batch]) -> Callable[[], Measure]:
    """A round: a step for each batch."""
    moving = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(moving, lr=1e-6)  # no speed depends on it, and lists stay those of a trained model

    def work() -> Measure:
        started, model_mode = time.perf_counter(), model.train()
        for batch in some:
            objective.loss(model_mode, batch)[0].backward()
            optimizer.step()
            optimizer.zero_grad()
        return Measure(sum(int(objective.items(batch)) for batch in some), time.perf_counter() - started)

    return work


def ratios(rates: dict[str, list[float]]) -> Iterator[tuple[str, float]]:
    """Times that a contestant takes longer than another, the median over rounds."""
    for name, other in (("symbol", "plain"), ("n-best", "plain"), ("n-best", "symbol"), ("trellis", "plain")):
        found = statistics.median(base / own for own, base in zip(rates[name], rates[other], strict=True))
        yield f"{name} / {other}", round(found, 2)


def main() -> None:
    """Contestants take turns; rates, ratios and what the thesis prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a trained translation model")
    parser.add_argument("--language-model", help="folder of a language model with its tokenizer")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    options = {"rounds": 3, "lines": 32, "tokens": 256, "n": 12, "threads": 1}
    for name, value in options.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    quick = (
        "{toys}/model --source {toys}/train.de.gz --target {toys}/train.en.gz --lines 4 --tokens 64 --n 2 --rounds 1"
    )
    given = parse(parser, quick)
    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    keep_memory()
    translation = load_model(given.model)
    some = batches(given.model, given.source, given.target, given.lines, given.tokens, translation.config.pad_token_id)
    found = contestants(given, translation, language_model(translation, given.language_model))
    rates = take_turns({name: steps(*one, some) for name, one in found.items()}, given.rounds)
    print_ratios(f"Training, {len(some)} batches of {given.tokens} tokens", "target tokens", rates, "plain")
    ours = dict(ratios(rates))
    for name, value in ours.items():
        print(
            f"{name:<16} {value:6.2f} times as long" + (f"   (the thesis: {PRINTED[name]})" if name in PRINTED else "")
        )
    if given.output:
        settings = {name: getattr(given, name) for name in options}
        content = {"settings": settings, "machine": machine(), "tokens_per_second": rates, "times_as_long": ours}
        write_json(given.output, json.loads(json.dumps({**content, "thesis": PRINTED})))


if __name__ == "__main__":
    main()
