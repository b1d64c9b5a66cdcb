"""Every number that the project has of a GPU, in one run of five minutes.

    python benchmarks/gpu.py --data DIR

| part | what |
| --- | --- |
| correct | every system in float32, autocast and bfloat16 against float64 on the CPU: logits, gradients, translations |
| scans | the Triton kernels of the recurrent attentions, and the loops in float32, against float64 |
| decode | generate(): ours, and stock Marian's of the same shape |
| opus-mt, nllb | the same of models of these shapes, imported, and whether ours writes what stock does |
| file, published | lines a second through the pipeline, of random weights and of published/en-de |
| train | target tokens a second: Marian's bare loop, ours in it, our trainer, Seq2SeqTrainer; memory |
| systems | a training step and decoding of every system, as ratios to the baseline, beside the papers' |

Of decoding and of training a profile says how often the device was given work (launches), how often Python waited for
it, which share of the time it computed, and its milliseconds by kinds of kernels. A part that fails, or has no time
left, is said and the others go on; the numbers are written after every part. What the output has already is not read
again unless `--again` says so. At the end stands what was to be reached beside what was. On a CPU it runs at small
sizes; its numbers mean nothing there.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gzip
import itertools
import logging
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import Measure, machine, parse, take_turns
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AutoModelForSeq2SeqLM,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    TrainerCallback,
)

import hf_mlnmt
from hf_mlnmt.analysis.cost import Work, beside_baseline, decoding, training
from hf_mlnmt.common.files import read_json, write_json
from hf_mlnmt.convert.huggingface import config_of, placement_of
from hf_mlnmt.data import Tokenizers, train_tokenizer
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.modeling import attention_scan as loops
from hf_mlnmt.training import Batches, Task, TranslationTrainer
from hf_mlnmt.training.batching import TokenBatchSampler
from hf_mlnmt.training.half_weights import HalfWeights
from hf_mlnmt.training.tasks import collate_in
from hf_mlnmt.zoo.systems import list_systems
from training import IGNORED, Race, load, marian_like

sys.path.append(str(Path(__file__).resolve().parents[1] / "studies"))
from papers import decoding_ratio, training_ratio

ROOT = Path(__file__).resolve().parents[1]
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
# Kinds of kernels by words in their names; the first that fits.
KINDS = {
    "attention": ("fmha", "flash", "attention"),
    "products": ("gemm", "cutlass", "nvjet", "xmma", "splitkreduce", "gemv"),
    "norm": ("norm",),
    "softmax": ("softmax",),
    "optimizer": ("multi_tensor", "adam"),
    "sums": ("reduce",),
    "copies": ("copy", "memcpy", "memset"),
    "choices": ("topk", "sort", "gather", "scatter", "index", "embedding"),
    "elementwise": ("elementwise", "dropout"),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CASES = {"bfloat16": [(1, 1), (1, 5), (64, 5), (256, 1), (256, 5), (1024, 5)], "float32": [(1, 5), (64, 5)]}
IMPORTED_CASES = [(1, 1), (64, 5)]  # sentences, beams
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # operations a second in bfloat16, by the name of the card
# What is to be reached: a part's name, the keys of a number in it, and the least of it (the most of it, if negative).
ASKED: list[tuple[str, tuple[str, ...], float]] = [
    *((f"decode/base/bfloat16/{case}", ("ratio",), least) for case, least in
      (("1x1", 10), ("1x5", 8), ("64x5", 7), ("256x1", 6), ("256x5", 5), ("1024x5", 4))),
    *((f"decode/base/float32/{case}", ("ratio",), least) for case, least in (("1x5", 6), ("64x5", 3))),
    *((f"{model}/bfloat16/{case}", ("ratio",), least) for model, case, least in
      (("opus-mt", "1x1", 12), ("opus-mt", "64x5", 7), ("nllb", "1x1", 8), ("nllb", "64x5", 5))),
    ("file", ("share_of_generate",), 0.9),
    ("published", ("lines_a_second",), 8000),
    ("train/base/16384", ("our trainer, 64 shapes", "ratio"), 2.0),
    ("train/base/16384", ("our trainer, 64 shapes", "profile", "device_milliseconds_a_step"), -25),
    ("train/base/16384", ("our trainer, 64 shapes", "profile", "launches"), -500),
    ("train/base/16384", ("our trainer, 64 shapes", "first_100_of_the_warm"), 0.5),
    *((f"train/{shape}/4096", ("our trainer, 64 shapes", "of_its_warm_loop"), 0.9) for shape in ("small", "tiny")),
]  # fmt: skip


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


def kind_of(name: str) -> str:
    """The kind of a kernel; those of Triton's have the name of a private function."""
    name = name.lower()
    return (
        "ours"
        if name.startswith(("_", "triton"))
        else next((kind for kind, words in KINDS.items() if any(word in name for word in words)), "others")
    )


def read_profile(seen: Any, seconds: float, steps: int) -> dict[str, Any]:
    """What a profile says of each step; `seconds` are those of as many steps without the profiler."""
    events = seen.key_averages()
    on_device = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    kinds: Counter[str] = Counter()
    for event in on_device:
        kinds[kind_of(event.key)] += event.self_device_time_total / 1e3 / steps  # type: ignore[assignment]

    def count(*parts: str) -> float:
        return round(sum(event.count for event in events if any(part in event.key for part in parts)) / steps, 1)

    return {
        "milliseconds_a_step": 1e3 * seconds / steps,
        "device_milliseconds_a_step": sum(kinds.values()),
        "device_share": sum(kinds.values()) * steps / 1e3 / seconds,
        "kinds": {kind: round(milliseconds, 3) for kind, milliseconds in kinds.most_common()},
        "kernels": round(sum(event.count for event in on_device) / steps, 1),
        "launches": count("aunchKernel", "cudaGraphLaunch"),
        "copies": count("aten::copy_", "aten::_foreach_copy_"),
        "waits": count(*WAITS),
        "reads": count("aten::_local_scalar_dense", "aten::nonzero"),
    }


def profiled(run: Callable[[], Any], device: str, steps: int) -> dict[str, Any]:
    """A profile of `run`, which is warm and takes so many steps."""
    seconds = timed(run, device)  # without the profiler, which makes Python slower
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device != "cpu")
    with profile(activities=activities) as seen:
        timed(run, device)
    return read_profile(seen, seconds, steps)


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
    exact, moved = copy.deepcopy(model).double().train(), copy.deepcopy(model).to(device).train()
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
    moved.zero_grad()
    with torch.autocast(device, torch.bfloat16), HalfWeights(moved).cast():  # as a training in bfloat16 computes
        moved(**there, loss_only=True).loss.backward()
    moved.eval()
    pairs = [
        (x.grad.flatten(), y.grad.flatten())
        for x, y in zip(moved.parameters(), exact.parameters())
        if y.grad is not None
    ]
    far["gradients in bfloat16"] = distance(*map(torch.cat, zip(*pairs)))
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


def baseline(options: Any) -> tuple[Any, Any]:
    """Our model of a shape, and stock Marian's with other weights."""
    config = hf_mlnmt.config_for("transformer", options.shape, vocab_size=options.vocabulary)
    stock = marian_like(config)
    stock.generation_config.forced_eos_token_id = None
    return AutoModelForSeq2SeqLM.from_config(config), stock


def imported(kind: str, options: Any) -> tuple[Any, Any]:
    """OPUS-MT's or NLLB's shape (with other shapes than base: a toy's), as we import it, and stock."""
    base, nllb = options.shape == "base", kind == "nllb"
    vocabulary = options.vocabulary if not base else 256206 if nllb else 58101
    width, layers, heads = (32, 1, 2) if not base else (1024, 12, 16) if nllb else (512, 6, 8)
    fields: dict[str, Any] = {"vocab_size": vocabulary, "d_model": width, "scale_embedding": True}
    fields |= {"max_position_embeddings": 1024 if nllb else 512, "activation_function": "relu" if nllb else "swish"}
    for side in ("encoder", "decoder"):
        fields |= {f"{side}_layers": layers, f"{side}_attention_heads": heads, f"{side}_ffn_dim": 4 * width}
    if nllb:
        stock: Any = M2M100ForConditionalGeneration(M2M100Config(**fields))
        stock.generation_config.forced_bos_token_id = 7
    else:
        ids = {"pad_token_id": vocabulary - 1, "decoder_start_token_id": vocabulary - 1, "eos_token_id": 0}
        stock = MarianMTModel(MarianConfig(**fields, **ids, forced_eos_token_id=0))
        stock.generation_config.bad_words_ids = [[vocabulary - 1]]
    config = config_of(kind, stock)
    ours = AutoModelForSeq2SeqLM.from_config(config)
    ours.load_state_dict(placement_of(stock, config, kind).state, strict=False)
    ours.tie_weights()
    ours.generation_config = copy.deepcopy(stock.generation_config)
    return ours, stock


@functools.cache
def models(kind: str, dtype: str, options: Any) -> tuple[Any, Any]:
    """Ours and stock on the device, made once for all cases of a kind and a type."""
    torch.manual_seed(1)
    with torch.device(options.device):  # a large model's weights are drawn there at once
        made = baseline(options) if kind == "base" else imported(kind, options)
    return tuple(model.eval().to(options.device, DTYPES[dtype]) for model in made)  # type: ignore[return-value]


def decode(kind: str, dtype: str, sentences: int, beams: int, options: Any) -> dict[str, Any]:
    """Sentences a second of each way to decode exactly `--length` tokens, and of ours a profile."""
    device, length = options.device, options.length
    ours, stock = models(kind, dtype, options)
    ids = torch.randint(10, ours.config.vocab_size - 1, (sentences, 25), device=device)
    asked = {"num_beams": beams, "min_new_tokens": length, "max_new_tokens": length, "do_sample": False}

    @torch.inference_mode()
    def run(model: Any) -> Any:
        return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **asked)

    def turn(model: Any, calls: int) -> Callable[[], Measure]:
        return lambda: Measure(calls * sentences, timed(lambda: [run(model) for _ in range(calls)], device))

    ours_calls = 1 if device == "cpu" or sentences > 64 else 5
    found = take_turns({"stock": turn(stock, 1), "ours": turn(ours, ours_calls)}, options.rounds)
    numbers: dict[str, Any] = {name: statistics.median(values) for name, values in found.items()}
    numbers["ratio"] = statistics.median(a / b for a, b in zip(found["ours"], found["stock"], strict=True))
    if kind != "base":
        few = {"num_beams": beams, "max_new_tokens": length, "do_sample": False}
        both = [model.generate(ids[:4], attention_mask=torch.ones_like(ids[:4]), **few) for model in (ours, stock)]
        same = [bool((x == y).all()) for x, y in itertools.zip_longest(*both) if x is not None and len(x) == len(y)]
        numbers["same_as_stock"] = sum(same), len(both[1])
    return {**numbers, "profile": profiled(lambda: run(ours), device, length)}


@functools.cache
def captions(folder: Path) -> list[str]:
    """The English training captions."""
    return gzip.open(folder / "train.en.gz", "rt", encoding="utf-8").read().splitlines()


def stream(pipeline: TranslationPipeline, texts: list[str], options: Any, **asked: Any) -> dict[str, Any]:
    """Lines a second of passes over the texts, behind a first one, until the time is used."""
    inside, generate = 0.0, pipeline.model.generate

    def timed_generate(*arguments: Any, **given: Any) -> Any:
        nonlocal inside
        start = time.perf_counter()
        output = generate(*arguments, **given)
        inside += time.perf_counter() - start
        return output

    lines = texts[: options.lines]
    first = timed(lambda: list(pipeline.stream(lines, **asked)), options.device)
    pipeline.model.generate = timed_generate  # sizes and graphs are there from now on
    done, start = 0, time.perf_counter()
    while not done or time.perf_counter() - start < options.seconds:
        done += sum(1 for _ in pipeline.stream(lines, **asked))
    seconds = time.perf_counter() - start
    found = {"lines": done, "lines_a_second": done / seconds, "share_of_generate": inside / seconds}
    return {**found, "lines_a_second_of_the_first_pass": len(lines) / first}


def file(options: Any) -> dict[str, Any]:
    """Captions through a pipeline in bfloat16 with 4 beams; random weights end no sentence: all have `--length`."""
    texts = captions(options.data)
    tokenizer = train_tokenizer(texts, vocab_size=min(options.vocabulary, 8000))
    config = hf_mlnmt.config_for("transformer", options.shape, vocab_size=len(tokenizer))
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
        Tokenizers(tokenizer, tokenizer).save(Path(folder))
        pipeline = TranslationPipeline.from_pretrained(folder, device=options.device, dtype="bfloat16")
    return stream(pipeline, texts, options, num_beams=4, max_new_tokens=options.length)


def published(options: Any) -> dict[str, Any]:
    """Captions through published/en-de in bfloat16 with 4 beams."""
    pipeline = TranslationPipeline.from_pretrained(ROOT / "published/en-de", device=options.device, dtype="bfloat16")
    return stream(pipeline, captions(options.data), options, num_beams=4)


@functools.cache
def pairs(options: Any) -> tuple[Any, Any, Any]:
    """The encoded pairs, their tokenizer, and the folder they are in until the end."""
    folder = tempfile.TemporaryDirectory()
    return (*load(options.data, options.vocabulary, Path(folder.name) / "pairs"), folder)


class Watch(TrainerCallback):
    """Seconds at the ends of steps, when the device has done its work; and a profile of some steps behind them."""

    def __init__(self, marks: tuple[int, ...], profiled: int, device: str):
        self.marks, self.profiled, self.device = marks, profiled, device
        self.times: dict[int, float] = {}
        self.profile: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        last = max(self.marks)
        if state.global_step in self.marks or state.global_step == last + self.profiled:
            synchronize(self.device)
            self.times[state.global_step] = time.perf_counter()
        if state.global_step == last:
            self.profile = profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self.device != "cpu"))
            self.profile.__enter__()
        if state.global_step == last + self.profiled:
            self.profile.__exit__(None, None, None)


def by_our_trainer(race: Race, shapes: int | None, options: Any) -> dict[str, Any]:
    """Target tokens a second of TranslationTrainer: of its first steps, from step 20 on; a profile of some more."""
    early, late = (2, 4) if options.quick else (20, options.steps + 20)
    marks = (1, early, min(100, late), late)
    watch, batches = Watch(marks, 4, options.device), Batches(race.tokens, buckets=shapes)
    with tempfile.TemporaryDirectory() as folder:
        arguments = race.arguments(folder, max_steps=late + watch.profiled)
        objective, data = copy.copy(race.objective), hf_mlnmt.data.training_set.Corpora([race.data])
        trainer = TranslationTrainer(race.ours, arguments, Task(data, objective), batches, callbacks=[watch])
        start = time.perf_counter()
        trainer.train()
    sampler, lengths = trainer.sampler(), race.data.target_lengths

    def tokens(first: int, last: int) -> int:
        batches = [batch for step in range(first, last) for _, batch in sampler.members(step)]
        return int(lengths[list(itertools.chain.from_iterable(batches))].sum())

    def rate(first: int, last: int) -> float:
        return tokens(first, last) / (watch.times[last] - watch.times[first])

    steps = late - early
    seconds = (watch.times[late] - watch.times[early]) / steps
    return {
        "tokens_a_second": rate(early, late),
        "steps_a_second": 1 / seconds,
        "first_100_of_the_warm": rate(1, marks[2]) / rate(early, late),
        "seconds_before_the_first_step": watch.times[1] - start,
        "profile": read_profile(watch.profile, 4 * seconds, 4),
    }


def train(shape: str, tokens: int, options: Any) -> dict[str, Any]:
    """Tokens a second of the loops, on batches of one shape, and of the trainers; profiles and memory."""
    device, result = options.device, {}
    data, tokenizer, _ = pairs(options)
    config = hf_mlnmt.config_for("transformer", shape, vocab_size=len(tokenizer))
    race = Race(data, config, SimpleNamespace(tokens=tokens, steps=options.steps, bf16=True), tokenizer)
    boxed = TokenBatchSampler(data.source_lengths, data.target_lengths, tokens, buckets=64)
    shapes: dict[Any, list[list[int]]] = {}
    for batch in boxed:
        shapes.setdefault(boxed.shape(batch), []).append(batch)
    # Marian's loop takes .3 to 1.6 s for a new shape: it runs on one, that of the batch in the middle by length.
    middle = sorted(shapes, key=lambda shape: shape[2])[len(shapes) // 2]
    there = [collate_in(boxed.buckets, race.objective.collate, [data[i] for i in batch]) for batch in shapes[middle]]
    there = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in there]
    there = list(itertools.islice(itertools.cycle(there), max(2, options.steps // 4)))
    result["shape"] = middle

    def of_marian(model: Any, batch: Any) -> Tensor:
        logits = model(**batch, use_cache=False).logits.float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)

    def of_ours(model: Any, batch: Any) -> Tensor:
        return race.objective.loss(model, batch)[0]

    for name, model, loss in (("bare Marian", race.marian, of_marian), ("bare ours", race.ours, of_ours)):
        model = model.to(device).train()
        amount = sum(int((batch["labels"] != IGNORED).sum()) for batch in there)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def epoch(batches: list[Any], model=model, loss=loss, optimizer=optimizer) -> None:
            for batch in batches:
                with torch.autocast(device, torch.bfloat16):
                    value = loss(model, batch)
                value.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

        epoch(there[:2])
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        times = [timed(functools.partial(epoch, there), device) for _ in range(options.rounds)]
        memory = torch.cuda.max_memory_allocated() if device != "cpu" else None
        profile_ = profiled(functools.partial(epoch, there[:4]), device, len(there[:4]))
        result[name] = {"tokens_a_second": amount / statistics.median(times), "memory": memory, "profile": profile_}
        del model, optimizer
    asked = [("our trainer, 64 shapes", 64)] + [("our trainer", None)] * (shape == options.shape)
    for name, shapes_ in asked:
        with saying(f"{name}, {shape}, {tokens}"):
            result[name] = by_our_trainer(race, shapes_, options)
    if shape == options.shape:
        with saying(f"stock trainer, {shape}, {tokens}"):
            race.steps = max(2, options.steps // 20)
            result["stock trainer"] = {"tokens_a_second": race.run_stock().rate}
    bare, warm = result["bare Marian"], result["bare ours"]["tokens_a_second"]
    for part in [part for part in result.values() if isinstance(part, dict)]:
        part["ratio"] = part["tokens_a_second"] / bare["tokens_a_second"]
        part["of_its_warm_loop"] = part["tokens_a_second"] / warm
        if part.get("memory"):
            part["memory_ratio"] = bare["memory"] / part["memory"]
    peak = next(
        (peak for name, peak in PEAKS.items() if device == "cuda" and name in torch.cuda.get_device_name()), None
    )
    weights = sum(weight.numel() for name, weight in race.ours.named_parameters() if "embed" not in name)
    weights += config.vocab_size * config.d_model  # of the output
    if peak:  # six operations a weight and target token, with sources as long as targets
        result["share_of_the_peak"] = result["our trainer, 64 shapes"]["tokens_a_second"] * 6 * weights / peak
    return result


def systems(options: Any) -> dict[str, Any]:
    """Of every system the ratios of training and decoding to the baseline's, and the papers'."""
    names = [name for name in list_systems("translation") if name != "transformer"][: options.systems]
    sizes = {"vocabulary": min(options.vocabulary, 8000), "tokens": options.system_tokens, "length": options.length}
    work = Work(**sizes, batch=options.batch, steps=2, rounds=1, device=options.device)
    ratios: dict[str, Any] = {name: {} for name in names}
    for what, turn, papers in (("training", training, training_ratio), ("decoding", decoding, decoding_ratio)):
        turns = {}
        for name in names:
            with saying(f"{what} of {name}"):
                run = turn(hf_mlnmt.config_for(name, options.shape, vocab_size=work.vocabulary), work)
                run()
                turns[name] = run
        baseline = turn(hf_mlnmt.config_for("transformer", options.shape, vocab_size=work.vocabulary), work)
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
    """The name of each piece of work, and what reads its numbers; of what is wanted most, the short ones first."""
    device, shape = options.device, options.shape
    of_models = [("base", dtype, case) for dtype in DTYPES for case in options.cases or CASES[dtype]]
    of_models += [(kind, "bfloat16", case) for kind in ("opus-mt", "nllb") for case in options.imported_cases]
    for kind, dtype, case in of_models:
        name = f"decode/{shape}" if kind == "base" else kind
        asked = kind, dtype, *case, options
        yield f"{name}/{dtype}/{case[0]}x{case[1]}", functools.partial(decode, *asked)
    yield f"train/{shape}/{options.tokens[0]}", functools.partial(train, shape, options.tokens[0], options)
    yield "file", functools.partial(file, options)
    yield "published", functools.partial(published, options)
    for other in options.other_shapes:
        yield f"train/{other}/{options.tokens[-1]}", functools.partial(train, other, options.tokens[-1], options)
    yield "scans", functools.partial(scans, device)
    for system in list_systems("translation")[: options.systems]:
        yield f"correct/{system}", functools.partial(correct, system, device)
    yield "systems", functools.partial(systems, options)


def reached(numbers: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Of every number that is asked for and was read, what it is."""
    found = {}
    for part, keys, least in ASKED:
        value: Any = numbers.get(part)
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found[" ".join((part, *keys))] = {"is": value, "asked": least}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.en.gz and train.de.gz")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--parts", nargs="+", default=[""], help="only those whose name begins so, as decode/ or train/"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="after these no part begins")
    parser.add_argument("--shape", default="base", choices=["tiny", "small", "base"])
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16384, 4096], help="target tokens a step")
    parser.add_argument("--system-tokens", type=int, default=8192, help="the same, of the ratios of systems")
    parser.add_argument("--length", type=int, default=25, help="tokens that are decoded")
    parser.add_argument("--batch", type=int, default=64, help="sentences that a system decodes at once")
    parser.add_argument("--cases", type=_case, nargs="+", help="sentences x beams, as 64x5")
    parser.add_argument("--imported-cases", type=_case, nargs="+", default=IMPORTED_CASES, help="the same")
    parser.add_argument("--other-shapes", nargs="*", default=["small", "tiny"], help="that are trained, too")
    parser.add_argument("--steps", type=int, default=100, help="of our trainer, behind its first 20")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--systems", type=int, help="so many of the systems")
    parser.add_argument("--lines", type=int, default=10_000, help="of the file that is translated")
    parser.add_argument("--seconds", type=float, default=3.0, help="of passes over a file; at least one")
    parser.add_argument("--again", action="store_true", help="read anew what the output has already")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results") / "gpu.json")
    quick = "--data {toys} --device cpu --shape tiny --vocabulary 400 --tokens 80 --system-tokens 64 --length 3"
    quick += " --batch 2 --cases 2x2 --imported-cases 2x2 --other-shapes --steps 2 --rounds 1 --systems 2"
    options = parse(parser, f"{quick} --lines 20 --seconds 0")
    options.__class__ = type("Options", (argparse.Namespace,), {"__hash__": object.__hash__})  # for functools.cache
    logging.disable(logging.WARNING)
    torch.manual_seed(1)
    start, numbers = time.perf_counter(), {"machine": machine(), "device": options.device, "failed": FAILED}
    known = read_json(options.output) if options.output and not options.again else {}
    numbers |= {name: value for name, value in known.items() if name not in numbers and name != "asked"}
    for name, read in parts(options):
        if not name.startswith(tuple(options.parts)) or name in numbers:
            continue
        if time.perf_counter() - start > 60 * options.minutes:
            FAILED.append(f"{name}: no time left")
            continue
        begun = time.perf_counter()
        with saying(name):
            numbers[name] = read()
            numbers[name]["seconds"] = round(time.perf_counter() - begun, 1)
            print(name, numbers[name], flush=True)
        if options.output:
            write_json(options.output, numbers)
        if options.device == "cuda" and not name.startswith(("decode", "opus-mt", "nllb")):
            torch.cuda.empty_cache()
    numbers["asked"] = reached(numbers)
    for name, number in numbers["asked"].items():
        asked = number["asked"]
        print(f"{name}: {number['is']:.2f}, asked {'at most' if asked < 0 else 'at least'} {abs(asked):g}")
    if options.output:
        write_json(options.output, numbers)
    for line in FAILED:
        print(f"not read: {line}")
    if FAILED and options.quick:
        sys.exit(1)


def _case(text: str) -> tuple[int, int]:
    sentences, beams = text.split("x")
    return int(sentences), int(beams)


if __name__ == "__main__":
    main()
