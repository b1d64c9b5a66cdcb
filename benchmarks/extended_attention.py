"""Training speed of extended cross-attention: every member against the baseline and against a loop over positions.

    python benchmarks/extended_attention.py --shapes small base --rounds 9

One run, turns A B C A B C of one step each: training steps a second (forward, backward, Adam) of the pre-norm
baseline, of each member as it is, and of each recurrent member with the naive loop, which computes one target position
after the other in every attention over the source (the thesis's systems did so with the whole decoder). Batches of
random tokens: 64 pairs of up to 15 and 16 subwords, about 900 target tokens. Ratios are taken round by round.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from common import GUARDS, Measure, machine, parse, require_green_tests, take_turns
from rich.console import Console
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.modeling.attention import split_heads
from hf_mlnmt.modeling.extended_cross_attention import EMBEDDING, RecurrentAttention, hidden_positions
from hf_mlnmt.zoo.systems import EXTENDED_CROSS_ATTENTION, SYSTEMS

MEMBERS = [name for name, entry in SYSTEMS.items() if entry.architecture is EXTENDED_CROSS_ATTENTION]
FEW = ["accumulated-weight", "previous-context-head", "key-value-full"]  # for --quick: one of each kind
BASELINE = "transformer (pre-norm)"


def naive_forward(self: RecurrentAttention, hidden_states: Tensor, memory: Tensor, attention_mask=None, *_, **given):
    """`RecurrentAttention.forward` without a cache, one target position after the other."""
    key, value = self.project_source(memory)
    hidden, inverse_fertility = hidden_positions(attention_mask), given.get("inverse_fertility")
    if hasattr(self, "transition"):  # products of weights are made once, also here
        self.transition = functools.cache(self.transition)
    outputs, before = [], None
    for i in range(hidden_states.shape[1]):
        query = split_heads(self.q_proj(hidden_states[:, i : i + 1]), self.heads)
        covered = hidden if hidden is None or hidden.shape[2] == 1 else hidden[:, :, i : i + 1]
        context, _, before = self.recur(query, key, value, covered, inverse_fertility, None, before, None, None)
        outputs.append(self.out_proj(context.transpose(1, 2).flatten(2)))
    self.__dict__.pop("transition", None)
    return torch.cat(outputs, dim=1), None


@contextlib.contextmanager
def naive_loop() -> Iterator[None]:
    """In here, recurrent attention is the naive loop."""
    fast = RecurrentAttention.forward
    RecurrentAttention.forward = naive_forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        RecurrentAttention.forward = fast  # type: ignore[method-assign]


def make_batch(vocabulary: int, device: str) -> dict[str, Tensor]:
    """64 pairs, each a few subwords shorter than the longest, padded on the right."""
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(5, vocabulary, (64, 15), generator=generator)
    labels = torch.randint(5, vocabulary, (64, 16), generator=generator)
    cuts = torch.randint(0, 4, (64, 1), generator=generator)
    mask = torch.arange(15) < 15 - cuts
    labels = labels.where(torch.arange(16) < 16 - cuts, -100)
    return {
        "input_ids": source.where(mask, 0).to(device),
        "attention_mask": mask.long().to(device),
        "labels": labels.to(device),
    }


class Contestant:
    """One model, its optimizer and its batch, made in its first turn; at the base shape in every turn, because all
    models together do not fit into memory."""

    def __init__(self, system: str, shape: str, naive: bool, options: argparse.Namespace):
        self.system, self.shape, self.naive = system, shape, naive
        self.vocabulary, self.steps, self.device = options.vocabulary, options.steps, options.device
        self.made: tuple | None = None

    def make(self) -> tuple:
        torch.manual_seed(1)
        config = hf_mlnmt.config_for(self.system, self.shape, vocab_size=self.vocabulary, norm_position="pre")
        model = AutoModelForSeq2SeqLM.from_config(config).to(self.device).train()
        return model, torch.optim.Adam(model.parameters(), lr=1e-4), make_batch(self.vocabulary, self.device)

    def __call__(self) -> Measure:
        with naive_loop() if self.naive else contextlib.nullcontext():
            parts = self.made
            if parts is None:
                parts = self.make()
                self.step(*parts)  # memory is allocated, kernels are compiled
                self.wait()
            start = time.perf_counter()
            for _ in range(self.steps):
                self.step(*parts)
            self.wait()
            seconds = time.perf_counter() - start
        if self.shape != "base":
            self.made = parts
        return Measure(self.steps, seconds)

    def step(self, model, optimizer, batch) -> None:
        model(**batch, loss_only=True, smoothing=0.1).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


def check_naive(members: list[str], device: str) -> None:
    """The naive loop computes the same."""
    for member in members:
        if member not in EMBEDDING:
            config = hf_mlnmt.config_for(member, "tiny", vocab_size=100, dropout=0.0)
            model, batch = AutoModelForSeq2SeqLM.from_config(config).to(device), make_batch(100, device)
            loss = model(**batch).loss
            with naive_loop():
                torch.testing.assert_close(model(**batch).loss, loss, rtol=1e-4, atol=1e-4)


def report(shape: str, rates: dict[str, list[float]], members: list[str]) -> None:
    """Medians, and the medians of the ratios taken round by round."""

    def ratio(name: str, other: str) -> str:
        if other not in rates:
            return "-"
        return f"{statistics.median(a / b for a, b in zip(rates[name], rates[other], strict=True)):.2f}"

    rows = [[BASELINE, f"{statistics.median(rates[BASELINE]):.3f}", "", "1.00", "", ""]]
    for member in members:
        naive = f"{member}, naive"
        slow = f"{statistics.median(rates[naive]):.3f}" if naive in rates else "-"
        slow_ratio = ratio(naive, BASELINE) if naive in rates else "-"
        median = f"{statistics.median(rates[member]):.3f}"
        rows.append([member, median, slow, ratio(member, BASELINE), slow_ratio, ratio(member, naive)])
    columns = ["", *map(Number, ("steps/s", "naive steps/s", ": baseline", "naive : baseline", ": naive"))]
    console = Console(width=110)
    console.print(Table(columns, rows, f"training, {shape} shape, 64 x 16 target tokens"))
    console.print(machine(), style="dim")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["small", "base"], choices=["tiny", "small", "base"])
    parser.add_argument("--members", nargs="+", default=MEMBERS, choices=MEMBERS)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=1, help="training steps in a turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-tests", action="store_true", help="only while working on this file")
    options = parse(parser, f"--shapes tiny --members {' '.join(FEW)} --vocabulary 100 --rounds 1 --no-tests")
    torch.set_num_threads(options.threads)
    if not options.no_tests:
        GUARDS[:] = ["tests/modeling/test_extended_cross_attention.py", "tests/modeling/test_attention_scan.py"]
        require_green_tests()
    check_naive(options.members, options.device)
    for shape in options.shapes:
        contestants: dict[str, Callable[[], Measure]] = {BASELINE: Contestant("transformer", shape, False, options)}
        for member in options.members:
            contestants[member] = Contestant(member, shape, False, options)
            if member not in EMBEDDING:
                contestants[f"{member}, naive"] = Contestant(member, shape, True, options)
        print(f"{shape} shape, steps/s", file=sys.stderr)
        report(shape, take_turns(contestants, options.rounds), options.members)


if __name__ == "__main__":
    main()
