"""Memory of a training step: the attention bridge of twelve directions beside that of one.

Each model trains in a process of its own: batches of one pair after the other, forward and backward, without
an optimizer, whose state is as large as the weights that it has seen. Printed are MiB: of the weights, of the gradients
there are at most at once, and of the process's memory at its highest above what it was before the first step.

    python benchmarks/step_memory.py --output benchmarks/results/step-memory-cpu.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from common import parse

from hf_mlnmt import config_for
from hf_mlnmt.common.files import write_json
from hf_mlnmt.modeling import BridgeForConditionalGeneration

LANGUAGES = ["cs", "de", "en", "fr"]
MIB = 2**20


def resident() -> float:
    """MiB of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


def measure(settings: dict[str, Any], languages: list[str]) -> dict[str, float]:
    """One model, in this process."""
    torch.set_num_threads(1)
    sides = [languages[:1], languages[1:]] if len(languages) == 2 else [languages, languages]
    fields = {name: settings[name] for name in ("d_model", "vocab_size")}
    config = config_for(settings["system"], "small", **fields, source_languages=sides[0], target_languages=sides[1])
    model = BridgeForConditionalGeneration(config).train()
    shape = settings["sentences"], settings["length"]
    source, labels = (torch.randint(4, fields["vocab_size"], shape) for _ in range(2))
    before, most = resident(), 0
    pairs = [(a, b) for a, b in itertools.product(*sides) if a != b]
    for number in range(settings["steps"]):
        names = dict(zip(("source_language", "target_language"), pairs[number % len(pairs)]))
        model(input_ids=source, labels=labels, loss_only=True, **names).loss.backward()
        gradients = [x.grad.numel() * x.grad.itemsize for x in model.parameters() if x.grad is not None]
        most = max(most, sum(gradients))
        model.zero_grad()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    weights = sum(x.numel() * x.itemsize for x in model.parameters())
    return {"weights": weights / MIB, "gradients": most / MIB, "step": peak - before}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="bridge-rnn", help="bridge-rnn or bridge-transformer")
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=10000)
    parser.add_argument("--sentences", type=int, default=48)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--languages", nargs="+", help=argparse.SUPPRESS)  # of one model, in a process of its own
    parser.add_argument("--output", type=Path)
    settings = vars(parse(parser, "--d-model 16 --vocab-size 50 --sentences 2 --length 4 --steps 2"))
    languages, output, _ = (settings.pop(name) for name in ("languages", "output", "quick"))
    if languages:
        print(json.dumps(measure(settings, languages)))
        return
    options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    found = {}
    for name, chosen in (("one direction", LANGUAGES[:2]), ("twelve directions", LANGUAGES)):
        command = [sys.executable, __file__, *options, "--languages", *chosen]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        found[name] = {part: round(number, 1) for part, number in json.loads(done.stdout).items()}
        print(name, found[name], flush=True)
    if output:
        content = {"schema": "hf_mlnmt.benchmark/1", "what": "MiB", "settings": settings, "found": found}
        write_json(output, {**content, "torch": torch.__version__})


if __name__ == "__main__":
    main()
