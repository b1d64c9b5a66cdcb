"""Every number that the project has of a GPU, in one run of about five minutes.

    python benchmarks/gpu.py --data DIR

| part | what |
| --- | --- |
| correct | every system in float32, autocast and bfloat16 against float64 on the CPU: logits, gradients, translations |
| scans | the Triton kernels of the recurrent attentions, and the loops in float32, against float64 |
| decode | generate(): ours, stock Marian's of the same shape, and stock's with a static cache and torch.compile |
| train | target tokens a second: a bare Marian loop, ours in it, our trainer, Seq2SeqTrainer; memory, shapes met |
| systems | a training step and decoding of every system, as ratios to the baseline, beside the papers' |

Of decoding and of training a profile says how often the device was given work (launches), how often Python waited for
it, and which share of the time it computed. A part that fails, or has no time left, is said and the others go on; the
numbers are written after every part. On a CPU it runs at small sizes; its numbers mean nothing there.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import machine, parse
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt.files import write_json
from hf_mlnmt.modeling import attention_scan_eager as loops
from hf_mlnmt.reports.cost import Measure, Work, beside_baseline, decoding, take_turns, training
from hf_mlnmt.zoo.systems import list_systems
from training import IGNORED, Race, load, marian_like

sys.path.append(str(Path(__file__).resolve().parents[1] / "studies"))
from papers import decoding_ratio, training_ratio

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CASES = [(1, 1), (1, 5), (64, 5), (256, 1), (256, 5), (1024, 5)]  # sentences, beams
SMALL_CASES = [(1, 1), (64, 5)]


def synchronize(device: str) -> None:
    """Wait until the device has done what it was told."""
    if device != "cpu":
        torch.accelerator.synchronize()


def timed(run: Callable[[], Any], device: str) -> float:
    """Seconds."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def profiled(run: Callable[[], Any], device: str, steps: int) -> dict[str, float]:
    """Launches, copies and waits a step, and the share of the time in which the device computes; warmed up before."""
    seconds = timed(run, device)  # without the profiler, which makes Python slower
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device != "cpu")
    with profile(activities=activities) as seen:
        timed(run, device)
    events = seen.key_averages()
    busy = sum(getattr(event, "self_device_time_total", 0) for event in events) / 1e6

    def count(*parts: str) -> float:
        return round(sum(event.count for event in events if any(part in event.key for part in parts)) / steps, 1)

    return {
        "milliseconds_a_step": 1e3 * seconds / steps,
        "device_share": busy / seconds,
        "launches": count("aunchKernel", "cudaGraphLaunch"),
        "copies": count("aten::copy_"),
        "waits": count(*WAITS),
        "reads": count("aten::_local_scalar_dense", "aten::nonzero"),
    }


def distance(actual: Tensor, expected: Tensor) -> float:
    """The norm of the difference, as a part of the expected one's."""
    expected = expected.detach().double().cpu()
    return float((actual.detach().double().cpu() - expected).norm() / expected.norm().clamp(min=1e-30))


def correct(system: str, device: str) -> dict[str, Any]:
    """How far one system is from float64 on the CPU, and whether greedy and beam search find the CPU's translations."""
    torch.manual_seed(1)
    vocabulary = 200
    source = torch.randint(5, vocabulary, (6, 11))
    mask = torch.arange(11) < torch.tensor([[11], [8], [11], [5], [11], [11]])
    labels = torch.randint(5, vocabulary, (6, 9))
    labels[0, 6:] = labels[4, 3:] = IGNORED
    given = {"input_ids": source.where(mask, 0), "attention_mask": mask.long(), "labels": labels}
    there = {name: tensor.to(device) for name, tensor in given.items()}
    config = hf_mlnmt.config_for(system, "tiny", vocab_size=vocabulary, dropout=0.0)
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    exact, moved = copy.deepcopy(model).double(), copy.deepcopy(model).to(device)
    expected, actual = exact(**given), moved(**there)
    expected.loss.backward()
    actual.loss.backward()
    pairs = zip(moved.parameters(), exact.parameters())
    far = {
        "logits": distance(actual.logits, expected.logits),
        "gradients": max(distance(x.grad, y.grad) for x, y in pairs if y.grad is not None and y.grad.norm() > 1e-9),
    }
    with torch.autocast(device, torch.bfloat16):
        far["autocast"] = distance(moved(**there).logits, expected.logits)
    inputs = {name: there[name] for name in ("input_ids", "attention_mask")}
    half, equal = copy.deepcopy(model).to(device, torch.bfloat16), {}
    far["bfloat16"] = distance(half(**there).logits, expected.logits)
    for beams in (1, 4):
        asked = {"num_beams": beams, "max_new_tokens": 12, "do_sample": False}
        theirs = model.generate(given["input_ids"], attention_mask=given["attention_mask"], **asked)
        ours = moved.generate(**inputs, **asked).cpu()
        equal[f"beam_{beams}"] = ours.shape == theirs.shape and bool((ours == theirs).all())
        half.generate(**inputs, **asked)
    return {**far, **equal}


def scans(device: str) -> dict[str, Any]:
    """The largest error of the kernels, and of the loops in float32, of values and gradients: (kernel, loop)."""
    if device != "cuda":
        return {"skipped": "Triton's kernels are for CUDA"}
    from hf_mlnmt.modeling import attention_scan_triton as kernels

    def error(actual: Any, expected: Any) -> float:
        pairs = [(x.double(), y) for x, y in zip(actual, expected, strict=True) if y is not None and y.numel()]
        return max(float((x - y).abs().max() / y.abs().max().clamp(min=1)) for x, y in pairs)

    errors: dict[str, Any] = {}
    for batch, heads, steps, places, width in [(3, 2, 5, 7, 6), (2, 4, 33, 65, 64), (1, 2, 512, 512, 64)]:
        draw = lambda *shape: torch.randn(*shape, device=device)  # noqa: E731
        energies, gradient = draw(batch, heads, steps, places), draw(batch, heads, steps, places)
        keys, values = draw(batch, heads, places, width) * width**-0.25, draw(batch, heads, places, width)
        coefficient, size = draw(batch, heads, places), f"{batch}x{heads}x{steps}x{places}x{width}"
        wide = [x.double() for x in (energies, keys, values, coefficient, gradient)]
        exact = loops.contexts_forward(*wide[:3], None, None, None)
        errors[f"contexts {size}"] = [
            error([kernels.contexts_forward(energies, keys, values, None)], [exact]),
            error([loops.contexts_forward(energies, keys, values, None, None, None)], [exact]),
        ]
        exact = loops.weights_forward(wide[0], wide[3], None, None, True)
        errors[f"weights {size}"] = [
            error([kernels.weights_forward(energies, coefficient, None, True)], [exact]),
            error([loops.weights_forward(energies, coefficient, None, None, True)], [exact]),
        ]
    return errors


def decode(shape: str, vocabulary: int, dtype: str, sentences: int, beams: int, options: Any) -> dict[str, Any]:
    """Sentences a second of each way to decode exactly `--length` tokens, and of ours a profile."""
    device, length = options.device, options.length
    config = hf_mlnmt.config_for("transformer", shape, vocab_size=vocabulary)
    torch.manual_seed(1)
    ours = AutoModelForSeq2SeqLM.from_config(config).eval().to(device, DTYPES[dtype])
    stock = marian_like(config).eval().to(device, DTYPES[dtype])
    stock.generation_config.forced_eos_token_id = None
    ids = torch.randint(10, vocabulary, (sentences, 25), device=device)
    asked = {"num_beams": beams, "min_new_tokens": length, "max_new_tokens": length, "do_sample": False}

    @torch.inference_mode()
    def run(model: Any, **more: Any) -> Any:
        return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **asked, **more)

    def turn(model: Any, **more: Any) -> Callable[[], Measure]:
        return lambda: Measure(sentences, timed(lambda: run(model, **more), device))

    contestants = {"stock": turn(stock), "ours": turn(ours)}
    if options.static:
        contestants["stock, static cache"] = turn(stock, cache_implementation="static")
    rates = {}
    for name, run_one in contestants.items():  # one alone: where one does not run, the others do
        with saying(f"{name}, {shape}, {dtype}, {sentences} x {beams}"):
            run_one()
            rates[name] = run_one
    found = take_turns(rates, options.rounds, lambda text: None)
    numbers: dict[str, Any] = {name: statistics.median(values) for name, values in found.items()}
    if "stock" in found and "ours" in found:
        numbers["ratio"] = statistics.median(a / b for a, b in zip(found["ours"], found["stock"], strict=True))
    return {**numbers, "profile": profiled(lambda: run(ours), device, length)}


def train(shape: str, tokens: int, options: Any) -> dict[str, Any]:
    """Tokens a second of the loops and trainers on the same batches, profiles of the loops, memory, shapes met."""
    device, steps = options.device, options.steps
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        data, tokenizer = load(options.data, options.vocabulary, Path(folder) / "pairs")
        config = hf_mlnmt.config_for("transformer", shape, vocab_size=len(tokenizer))
        race = Race(data, config, SimpleNamespace(tokens=tokens, steps=2 * steps, bf16=True), tokenizer)
        members = list(itertools.islice(race.sampler, steps))
        batches = [race.objective.collate([data[i] for i in batch]) for batch in members]
        amount = sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
        there = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in batches]
        result["shapes"] = len({(*batch["input_ids"].shape, batch["labels"].shape[1]) for batch in batches})

        def of_marian(model: Any, batch: Any) -> Tensor:
            logits = model(**batch, use_cache=False).logits.float()
            return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)

        def of_ours(model: Any, batch: Any) -> Tensor:
            return race.objective.loss(model, batch)[0]

        for name, model, loss in (("bare Marian", race.marian, of_marian), ("bare ours", race.ours, of_ours)):
            model = model.to(device).train()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

            def epoch(batches: list[Any], model=model, loss=loss, optimizer=optimizer) -> None:
                for batch in batches:
                    with torch.autocast(device, torch.bfloat16):
                        value = loss(model, batch)
                    value.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()

            if device != "cpu":
                torch.cuda.reset_peak_memory_stats()
            times = [timed(lambda epoch=epoch: epoch(there), device) for _ in range(options.rounds + 1)]
            result[name] = {
                "tokens_a_second": amount / min(times[1:]),
                "first_epoch": amount / times[0],
                "memory": torch.cuda.max_memory_allocated() if device != "cpu" else None,
                "profile": profiled(lambda epoch=epoch: epoch(there[:4]), device, len(there[:4])),
            }
        for name, run in (("our trainer", race.run_ours), ("stock trainer", race.run_stock)):
            with saying(f"{name}, {shape}, {tokens}"):
                result[name] = {"tokens_a_second": run().rate}
    bare = result["bare Marian"]["tokens_a_second"]
    for name in ("bare ours", "our trainer", "stock trainer"):
        if name in result:
            result[name]["ratio"] = result[name]["tokens_a_second"] / bare
    return result


def systems(options: Any) -> dict[str, Any]:
    """Of every system the ratios of training and decoding to the baseline's, and the papers'."""
    names = [name for name in list_systems("translation") if name != "transformer"][: options.systems]
    sizes = {"vocabulary": options.vocabulary, "tokens": options.system_tokens, "length": options.length}
    work = Work(**sizes, batch=options.batch, steps=3, rounds=options.rounds, device=options.device)
    ratios: dict[str, Any] = {name: {} for name in names}
    for what, turn, papers in (("training", training, training_ratio), ("decoding", decoding, decoding_ratio)):
        turns = {}
        for name in names:
            with saying(f"{what} of {name}"):
                one = turn(hf_mlnmt.config_for(name, options.shape, vocab_size=options.vocabulary), work)
                one()
                turns[name] = one
        baseline = turn(hf_mlnmt.config_for("transformer", options.shape, vocab_size=options.vocabulary), work)
        for name, (_, ratio) in beside_baseline(baseline, turns, work.rounds, lambda text: None).items():
            ratios[name][what] = {"ratio": ratio, "papers": papers(name)}
        turns.clear()
    return ratios


@contextmanager
def saying(what: str) -> Iterator[None]:
    """An error is said, and ends only this."""
    try:
        yield
    except Exception as error:
        print(f"{what}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr, flush=True)
        FAILED.append(f"{what}: {type(error).__name__}: {str(error)[:200]}")


FAILED: list[str] = []


def parts(options: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The name of each piece of work, and what reads its numbers; the most wanted first."""
    device, shape = options.device, options.shape
    for tokens in options.tokens:
        yield f"train/{shape}/{tokens}", lambda tokens=tokens: train(shape, tokens, options)
    for dtype in ("bfloat16", "float32"):
        for sentences, beams in options.cases:
            asked = shape, options.vocabulary, dtype, sentences, beams, options
            yield f"decode/{shape}/{dtype}/{sentences}x{beams}", lambda asked=asked: decode(*asked)
    yield "systems", lambda: systems(options)
    for system in list_systems("translation")[: options.systems]:
        yield f"correct/{system}", lambda system=system: correct(system, device)
    yield "scans", lambda: scans(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.en.gz and train.de.gz")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", help="only those whose name begins so, as decode/ or train/", default="")
    parser.add_argument("--minutes", type=float, default=5.0, help="after these no part begins")
    parser.add_argument("--shape", default="base", choices=["tiny", "small", "base"])
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16384, 4096], help="target tokens a step")
    parser.add_argument("--system-tokens", type=int, default=8192, help="the same, of the ratios of systems")
    parser.add_argument("--length", type=int, default=25, help="tokens that are decoded")
    parser.add_argument("--batch", type=int, default=64, help="sentences that a system decodes at once")
    parser.add_argument("--cases", type=_case, nargs="+", default=CASES, help="sentences x beams, as 64x5")
    parser.add_argument("--steps", type=int, default=24, help="batches of a turn of training")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", type=int, help="so many of the systems")
    parser.add_argument("--static", action=argparse.BooleanOptionalAction, default=True, help="stock's static cache")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results") / "gpu.json")
    quick = "--data {toys} --device cpu --shape tiny --vocabulary 400 --tokens 200 --system-tokens 64 --length 3"
    options = parse(parser, f"{quick} --batch 2 --cases 2x2 --steps 2 --rounds 1 --systems 2 --no-static")
    logging.disable(logging.WARNING)
    torch.manual_seed(1)
    start, numbers = time.perf_counter(), {"machine": machine(), "device": options.device, "failed": FAILED}
    for name, read in parts(options):
        if not name.startswith(options.parts):
            continue
        if time.perf_counter() - start > 60 * options.minutes:
            FAILED.append(f"{name}: no time left")
            continue
        with saying(name):
            numbers[name] = read()
            print(name, numbers[name], flush=True)
        if options.output:
            write_json(options.output, numbers)
        if options.device == "cuda":
            torch.cuda.empty_cache()
    for line in FAILED:
        print(f"not read: {line}")
    if FAILED and options.quick:
        sys.exit(1)


def _case(text: str) -> tuple[int, int]:
    sentences, beams = text.split("x")
    return int(sentences), int(beams)


if __name__ == "__main__":
    main()
