"""Every number that the project has of a GPU, in one run of about five minutes.

    python benchmarks/gpu.py --data DIR

| part | what |
| --- | --- |
| correct | every system in float32, autocast and bfloat16 against float64 on the CPU: logits, gradients, translations |
| scans | the Triton kernels of the recurrent attentions, and the loops in float32, against float64 |
| decode | generate(): ours, stock Marian's of the same shape, and stock's with a static cache and torch.compile |
| opus-mt, nllb | the same of models of these shapes, imported, and whether ours writes what stock does |
| file | lines a second through the pipeline, and which share of the time generate() has of it |
| train | target tokens a second: a bare Marian loop, ours in it, our trainer, Seq2SeqTrainer; memory, shapes met |
| systems | a training step and decoding of every system, as ratios to the baseline, beside the papers' |

Of decoding and of training a profile says how often the device was given work (launches), how often Python waited for
it, and which share of the time it computed. A part that fails, or has no time left, is said and the others go on; the
numbers are written after every part. What the output has already is not read again unless `--again` says so: where five
minutes are not enough, the same command goes on. At the end stands what was to be reached beside what was. On a CPU it
runs at small sizes; its numbers mean nothing there.
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
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import machine, parse
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AutoModelForSeq2SeqLM,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
)

import hf_mlnmt
from hf_mlnmt.convert.huggingface import config_of, placement_of
from hf_mlnmt.data import CorpusSpec, Tokenizers, read_pairs, train_tokenizer
from hf_mlnmt.files import read_json, write_json
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.modeling import attention_scan_eager as loops
from hf_mlnmt.reports.cost import Measure, Work, beside_baseline, decoding, take_turns, training
from hf_mlnmt.training.batching import TokenBatchSampler
from hf_mlnmt.training.tasks import collate_in
from hf_mlnmt.training.trainer import compiled_layers
from hf_mlnmt.zoo.systems import list_systems
from training import IGNORED, Race, load, marian_like

sys.path.append(str(Path(__file__).resolve().parents[1] / "studies"))
from papers import decoding_ratio, training_ratio

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CASES = [(1, 1), (1, 5), (64, 5), (256, 1), (256, 5), (1024, 5)]  # sentences, beams
IMPORTED_CASES = [(1, 1), (64, 5)]
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # operations a second in bfloat16, by the name of the card
# What is to be reached: the beginning of a part's name, the keys of a number in it, and the least of it.
ASKED: list[tuple[str, tuple[str, ...], float]] = [
    *((f"{model}bfloat16/{case}", ("ratio",), least)
      for model in ("decode/base/", "opus-mt/", "nllb/")
      for case, least in (("1x1", 8), ("1x5", 6), ("64x5", 4), ("256x5", 3), ("1024x5", 3))),
    ("file", ("share_of_generate",), 0.9),
    ("train/base/16384", ("our trainer", "ratio"), 1.3),
    ("train/base/16384", ("bare ours", "memory_ratio"), 1.0),
    ("train/small/4096", ("our trainer", "of_its_warm_loop"), 0.9),
    ("train/tiny/4096", ("our trainer", "of_its_warm_loop"), 0.9),
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


def decode(
    make: Callable[[Any], tuple[Any, Any]], dtype: str, sentences: int, beams: int, options: Any
) -> dict[str, Any]:
    """Sentences a second of each way to decode exactly `--length` tokens, and of ours a profile."""
    device, length = options.device, options.length
    torch.manual_seed(1)
    with torch.device(device):  # a large model's weights are drawn there at once
        made = make(options)
    ours, stock = (model.eval().to(device, DTYPES[dtype]) for model in made)
    shape, vocabulary = options.shape, ours.config.vocab_size
    ids = torch.randint(10, vocabulary - 1, (sentences, 25), device=device)
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
    if make is not baseline and dtype == "float32":
        few = {"num_beams": beams, "max_new_tokens": length, "do_sample": False}
        both = [
            model.generate(input_ids=ids[:4], attention_mask=torch.ones_like(ids[:4]), **few) for model in (ours, stock)
        ]
        numbers["same_as_stock"] = both[0].shape == both[1].shape and bool((both[0] == both[1]).all())
    if "stock" in found and "ours" in found:
        numbers["ratio"] = statistics.median(a / b for a, b in zip(found["ours"], found["stock"], strict=True))
    return {**numbers, "profile": profiled(lambda: run(ours), device, length)}


def file(options: Any) -> dict[str, Any]:
    """Lines a second of the captions, again and again, through a pipeline in bfloat16 with 4 beams, for some seconds.

    Random weights end no sentence: all translations are of `--length` tokens.
    """
    pairs = read_pairs(CorpusSpec(files={"source": "train.en.gz", "target": "train.de.gz"}), options.data)
    texts = [source for source, _ in pairs]
    tokenizer = train_tokenizer(texts, vocab_size=min(options.vocabulary, 8000))
    config = hf_mlnmt.config_for("transformer", options.shape, vocab_size=len(tokenizer))
    inside, model = 0.0, AutoModelForSeq2SeqLM.from_config(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        Tokenizers(tokenizer, tokenizer).save(Path(folder))
        pipeline = TranslationPipeline.from_pretrained(folder, device=options.device, dtype="bfloat16")
    generate = pipeline.model.generate

    def timed_generate(*arguments: Any, **given: Any) -> Any:
        nonlocal inside
        start = time.perf_counter()
        output = generate(*arguments, **given)
        synchronize(options.device)
        inside += time.perf_counter() - start
        return output

    pipeline.model.generate = timed_generate
    asked: dict[str, Any] = {"num_beams": 4, "max_new_tokens": options.length}
    lines = itertools.islice(itertools.cycle(texts), options.lines)
    for _ in pipeline.stream(itertools.islice(lines, min(len(texts), options.lines // 10)), **asked):
        pass  # sizes and graphs are there from now on
    inside, done, start = 0.0, 0, time.perf_counter()
    for _ in pipeline.stream(lines, **asked):
        done += 1
        if time.perf_counter() - start > options.seconds:
            break
    seconds = time.perf_counter() - start
    return {"lines": done, "lines_a_second": done / seconds, "share_of_generate": inside / seconds}


def train(shape: str, tokens: int, options: Any) -> dict[str, Any]:
    """Tokens a second of the loops and trainers on the same batches, profiles of the loops, memory, shapes met."""
    device, steps = options.device, options.steps
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        data, tokenizer = load(options.data, options.vocabulary, Path(folder) / "pairs")
        config = hf_mlnmt.config_for("transformer", shape, vocab_size=len(tokenizer))
        race = Race(data, config, SimpleNamespace(tokens=tokens, steps=2 * steps, bf16=True), tokenizer)
        boxed = TokenBatchSampler(data.source_lengths, data.target_lengths, tokens, shapes=64)

        def made(sampler: TokenBatchSampler) -> list[dict[str, Tensor]]:
            members = itertools.islice(sampler, steps)
            examples = ([data[i] for i in batch] for batch in members)
            batches = [collate_in(sampler.boxes, race.objective.collate, each) for each in examples]
            return [{name: tensor.to(device) for name, tensor in batch.items()} for batch in batches]

        there, filled = made(race.sampler), made(boxed)
        for name, batches in (("shapes", there), ("shapes, 64 asked for", filled)):
            result[name] = len({(*batch["input_ids"].shape, batch["labels"].shape[1]) for batch in batches})

        def of_marian(model: Any, batch: Any) -> Tensor:
            logits = model(**batch, use_cache=False).logits.float()
            return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)

        def of_ours(model: Any, batch: Any) -> Tensor:
            return race.objective.loss(model, batch)[0]

        loops = [("bare Marian", race.marian, of_marian, there, False), ("bare ours", race.ours, of_ours, there, False)]
        loops += [("bare ours, 64 shapes", race.ours, of_ours, filled, False)]
        loops += [("bare ours, 64 shapes, compiled", race.ours, of_ours, filled, True)] * options.compile
        for name, model, loss, batches, is_compiled in loops:
            model = model.to(device).train()
            amount = sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
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
            with compiled_layers(model) if is_compiled else nullcontext():
                times = [
                    timed(lambda epoch=epoch, batches=batches: epoch(batches), device)
                    for _ in range(options.rounds + 1)
                ]
                few = batches[:4]
                result[name] = {
                    "tokens_a_second": amount / min(times[1:]),
                    "first_epoch": amount / times[0],
                    "milliseconds_of_a_new_shape": 1e3 * (times[0] - min(times[1:])) / result["shapes"],
                    "memory": torch.cuda.max_memory_allocated() if device != "cpu" else None,
                    "profile": profiled(lambda epoch=epoch, few=few: epoch(few), device, len(few)),
                }
        # Twice: a loop that was warm before it meets no new shapes in its second turn.
        for name, run in (
            ("our trainer", race.run_ours),
            ("our trainer, again", race.run_ours),
            ("stock trainer", race.run_stock),
        ):
            with saying(f"{name}, {shape}, {tokens}"):
                result[name] = {"tokens_a_second": run().rate}
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
        result["share_of_the_peak"] = result["our trainer"]["tokens_a_second"] * 6 * weights / peak
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
    """The name of each piece of work, and what reads its numbers; of what is wanted most, the short ones first."""
    device, shape = options.device, options.shape
    for dtype in ("bfloat16", "float32"):
        for sentences, beams in options.cases:
            asked = baseline, dtype, sentences, beams, options
            yield f"decode/{shape}/{dtype}/{sentences}x{beams}", lambda asked=asked: decode(*asked)
    yield f"train/{shape}/{options.tokens[0]}", lambda: train(shape, options.tokens[0], options)
    yield "file", lambda: file(options)
    for kind, dtype in itertools.product(("opus-mt", "nllb"), ("bfloat16", "float32")):
        for sentences, beams in options.imported_cases:
            made = partial(imported, kind), dtype, sentences, beams, options
            yield f"{kind}/{dtype}/{sentences}x{beams}", lambda made=made: decode(*made)
    for other in options.other_shapes:
        yield f"train/{other}/{options.tokens[-1]}", partial(train, other, options.tokens[-1], options)
    yield "systems", lambda: systems(options)
    for system in list_systems("translation")[: options.systems]:
        yield f"correct/{system}", lambda system=system: correct(system, device)
    yield "scans", lambda: scans(device)


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
    parser.add_argument("--parts", help="only those whose name begins so, as decode/ or train/", default="")
    parser.add_argument("--minutes", type=float, default=5.0, help="after these no part begins")
    parser.add_argument("--shape", default="base", choices=["tiny", "small", "base"])
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16384, 4096], help="target tokens a step")
    parser.add_argument("--system-tokens", type=int, default=8192, help="the same, of the ratios of systems")
    parser.add_argument("--length", type=int, default=25, help="tokens that are decoded")
    parser.add_argument("--batch", type=int, default=64, help="sentences that a system decodes at once")
    parser.add_argument("--cases", type=_case, nargs="+", default=CASES, help="sentences x beams, as 64x5")
    parser.add_argument("--imported-cases", type=_case, nargs="+", default=IMPORTED_CASES, help="the same")
    parser.add_argument("--other-shapes", nargs="*", default=["small", "tiny"], help="that are trained, too")
    parser.add_argument("--steps", type=int, default=24, help="batches of a turn of training")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", type=int, help="so many of the systems")
    parser.add_argument("--static", action=argparse.BooleanOptionalAction, default=True, help="stock's static cache")
    parser.add_argument("--lines", type=int, default=100_000, help="of the file that is translated")
    parser.add_argument("--seconds", type=float, default=30.0, help="after these the file is left")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    parser.add_argument("--again", action="store_true", help="read anew what the output has already")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results") / "gpu.json")
    quick = "--data {toys} --device cpu --shape tiny --vocabulary 400 --tokens 200 --system-tokens 64 --length 3"
    quick += " --batch 2 --cases 2x2 --imported-cases 2x2 --other-shapes --steps 1 --rounds 1 --systems 2 --no-static"
    options = parse(parser, f"{quick} --lines 20 --seconds 1")
    logging.disable(logging.WARNING)
    torch.manual_seed(1)
    start, numbers = time.perf_counter(), {"machine": machine(), "device": options.device, "failed": FAILED}
    known = read_json(options.output) if options.output and not options.again else {}
    numbers |= {name: value for name, value in known.items() if "/" in name or name in ("file", "systems", "scans")}
    for name, read in parts(options):
        if not name.startswith(options.parts) or name in numbers:
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
    numbers["asked"] = reached(numbers)
    for name, one in numbers["asked"].items():
        print(f"{name}: {one['is']:.2f}, asked {one['asked']:g}")
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
