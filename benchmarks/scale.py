"""What grows with a corpus: reading, tokenizer, encoding, batches, a step, scores, directions; seconds and memory.

    python benchmarks/scale.py --pairs 0.1,1 --output benchmarks/results/scale-cpu.json
    python benchmarks/scale.py --pairs 5,20 --folder DIR

Pairs, in millions, are made: words by Zipf's law in sentences of the lengths of WMT's, 24 words in the mean, no two
alike. They and what is encoded of them lie in a temporary folder, or in DIR, where they are kept and used again, but
for what is encoded: 650 bytes a pair, 13 GB for 20 million. Each reading is a process of its own, whose memory is what
it had at most above what it began with; pages of mapped files count, which the system takes back when it needs them.
Readings of other sizes and names that --output holds already are kept, its notes too; it is written behind each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from common import machine, parse
from rich.console import Console

import hf_mlnmt
from hf_mlnmt.common.files import read_json, write_json
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.data import (
    CorpusSpec,
    PairFilter,
    encode_corpus,
    load_tokenizers,
    read_pairs,
    save_tokenizers,
    train_tokenizer,
)
from hf_mlnmt.data.training_set import Corpora
from hf_mlnmt.evaluation import score
from hf_mlnmt.training.batching import TokenBatchSampler
from hf_mlnmt.training.objectives import Translation
from hf_mlnmt.training.tasks import Ahead, TaskBatchSampler, TaskSchedule, collate_in, shown

SPEC = CorpusSpec(files={"source": "train.en", "target": "train.de"}, languages={"source": "en", "target": "de"})
LONGEST = 256  # subwords of a training pair
BLOCK = 50_000


def make(folder: Path, count: int) -> None:
    """Writes so many pairs, the same ones for the same number."""
    draws = np.random.default_rng(1)
    for language in ("en", "de"):
        letters = draws.choice(list("etaoinshrdlcumwfgypbvk"), (60_000, 12))
        words = np.array(["".join(row[:size]) for row, size in zip(letters, draws.integers(2, 13, 60_000))])
        picked = words[np.minimum(draws.zipf(1.2, (1 << 16, 8)) - 1, len(words) - 1)]
        pieces = np.array([" ".join(row) for row in picked])  # of eight words
        with (folder / f"train.{language}").open("w", encoding="utf-8") as file:
            for start in range(0, count, BLOCK):
                rows = min(BLOCK, count - start)
                sizes = np.clip(np.random.default_rng([2, start]).lognormal(1.0, 0.6, rows), 1, 12).astype(int)
                found = iter(pieces[draws.integers(0, len(pieces), sizes.sum())].tolist())
                for row, size in enumerate(sizes.tolist(), start):
                    file.write(f"{' '.join(islice(found, size))} {row}.\n")


def reading(told: argparse.Namespace, folder: Path) -> dict[str, float]:
    return _rate(read_pairs(SPEC, folder))


def without_duplicates(told: argparse.Namespace, folder: Path) -> dict[str, float]:
    return _rate(PairFilter(drop_duplicates=True)(read_pairs(SPEC, folder)))


def _rate(pairs: Iterator[Any]) -> dict[str, float]:
    begin = time.process_time()
    count = sum(1 for _ in pairs)
    return {"pairs a CPU second": count / (time.process_time() - begin)}


def tokenizer(told: argparse.Namespace, folder: Path) -> dict[str, float]:
    lines = chain.from_iterable(islice(read_pairs(SPEC, folder), told.tokenizer_pairs))
    begin = time.process_time()
    save_tokenizers(folder / "tokenizer", train_tokenizer(lines, vocab_size=told.vocabulary))
    return {"CPU seconds": time.process_time() - begin}


def encoding(told: argparse.Namespace, folder: Path) -> dict[str, float]:
    shutil.rmtree(folder / "encoded", ignore_errors=True)
    tokenizers, begin, own = load_tokenizers(folder / "tokenizer"), sum(os.times()[:4]), time.process_time()
    count = encode_corpus(SPEC, folder, tokenizers, folder / "encoded", PairFilter(), LONGEST).report.read
    seconds, own = sum(os.times()[:4]) - begin, time.process_time() - own  # of all processes, of the one that reads
    size = sum(path.stat().st_size for path in (folder / "encoded").rglob("*"))
    reads = 1e6 * own / count
    return {
        "pairs a CPU second": count / seconds,
        "microseconds a pair of the process that reads": reads,
        "bytes a pair": size / count,
    }


def opening(told: argparse.Namespace, folder: Path) -> dict[str, float]:
    begin = time.process_time()
    encoded(folder)
    return {"CPU seconds": time.process_time() - begin}


def encoded(folder: Path) -> Corpora:
    """The training set, which is encoded already."""
    tokenizers = load_tokenizers(folder / "tokenizer")
    return Corpora([encode_corpus(SPEC, folder, tokenizers, folder / "encoded", PairFilter(), LONGEST)])


def batches(told: argparse.Namespace, folder: Path) -> dict[str, float]:
    return _batches(told, encoded(folder))


def mixture(told: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Batches of two corpora: all of the pairs, of which the other one shows every second."""
    part = encoded(folder).parts[0]
    return _batches(told, Corpora([part, part], [1, 0.5]))


def _batches(told: argparse.Namespace, data: Corpora) -> dict[str, float]:
    begin = time.process_time()
    sampler = TokenBatchSampler(data.source_lengths, data.target_lengths, told.tokens, choose=data.choose)
    next(iter(sampler))
    start = time.process_time() - begin
    sampler.set_epoch(1)
    begin = time.process_time()
    next(iter(sampler))
    turn = time.process_time() - begin
    padding = _padding(sampler)
    return {"start, CPU seconds": start, "next epoch, CPU seconds": turn, "padding, %": 100 * padding}


def _padding(sampler: TokenBatchSampler) -> float:
    """The share of target places that hold no token, of an epoch's first batches."""
    some = list(islice(sampler, 2000))
    places = sum(len(batch) * int(sampler.target[batch].max()) for batch in some)
    return 1 - sum(int(sampler.target[batch].sum()) for batch in some) / places


def step(told: argparse.Namespace, folder: Path) -> dict[str, float]:
    """A step, and what the loader's batch takes, of the thread that trains too where another one loads."""
    data, tokenizers = encoded(folder), load_tokenizers(folder / "tokenizer")
    sampler = TokenBatchSampler(data.source_lengths, data.target_lengths, told.tokens)
    model = hf_mlnmt.TransformerForConditionalGeneration(
        hf_mlnmt.config_for("transformer", told.shape, vocab_size=len(tokenizers.source))
    )
    objective, optimizer = Translation(model.config.pad_token_id, 0.1), torch.optim.Adam(model.parameters())
    loading, steps, following = [], [], iter(sampler)
    next(following)  # the sampler's start has a reading of its own
    loaded = (collate_in(None, objective.collate, shown(data, np.array(batch), 0)) for batch in following)
    for number in range(told.loaded):
        begin = time.process_time()
        batch = next(loaded)
        loading.append(time.process_time() - begin)
        if number > told.loaded - told.steps - 2:
            begin = time.process_time()
            objective.loss(model, batch)[0].backward()
            optimizer.step()
            optimizer.zero_grad()
            steps.append(time.process_time() - begin)
    ahead, taking = Ahead(loaded, torch.device("cpu")), []
    for _ in range(told.loaded):
        begin = time.thread_time()
        next(ahead)
        taking.append(time.thread_time() - begin)
    ahead.close()
    load, compute, take = map(statistics.median, (loading, steps[1:], taking))
    times = {
        "loading, CPU ms": 1000 * load,
        "of the thread that trains, ms": 1000 * take,
        "step, CPU ms": 1000 * compute,
    }
    return {**times, "loading, % of it": 100 * load / compute}


def evaluation(told: argparse.Namespace, folder: Path) -> dict[str, float]:
    sources, targets = zip(*islice(read_pairs(SPEC, folder), told.scored))
    outputs = [line.replace("e", "a", 1) for line in targets]
    begin = time.process_time()
    score(outputs, targets, metrics=["BLEU", "chrF"])
    return {"lines": len(sources), "CPU seconds": time.process_time() - begin}


def directions(told: argparse.Namespace, folder: Path) -> dict[str, float]:
    """The order of the batches of all directions of languages, of uneven shares."""
    count = told.languages * (told.languages - 1)
    lengths = np.full(200, 20)
    begin = time.process_time()
    samplers = [TokenBatchSampler(lengths, lengths, told.tokens, seed=number) for number in range(count)]
    sampler = TaskBatchSampler(samplers, TaskSchedule([number**0.2 for number in range(1, count + 1)], 1))
    start = time.process_time() - begin
    begin = time.process_time()
    for place in range(300):
        sampler.at(10**7 + place)
    return {"directions": count, "start, CPU seconds": start, "batch, CPU ms": (time.process_time() - begin) / 0.3}


READINGS: dict[str, Callable[[argparse.Namespace, Path], dict[str, float]]] = {
    "reading": reading,
    "without duplicates": without_duplicates,
    "tokenizer": tokenizer,
    "encoding": encoding,
    "opening what is encoded": opening,
    "batches": batches,
    "batches of a mixture": mixture,
    "step": step,
    "scores with intervals": evaluation,
    "directions": directions,
}


def alone(name: str, told: argparse.Namespace, folder: Path) -> dict[str, float]:
    """A reading in a process of its own, with the MB that it took."""
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe()

    def run() -> None:
        torch.set_num_threads(1)
        before = psutil.Process().memory_info().rss
        found = READINGS[name](told, folder)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        its.send({**found, "MB": max(0, peak - before) / 1e6})

    process = context.Process(target=run)
    process.start()
    its.close()
    try:
        return dict(mine.recv())
    except EOFError as error:
        raise SystemExit(f"{name}: the process ended without a reading.") from error
    finally:
        process.join()


def by_size(item: tuple[str, Any]) -> float:
    return float(item[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default="0.1,1", help="millions of pairs, of each size in turn")
    parser.add_argument("--folder", type=Path, help="where pairs and encoded data are kept")
    parser.add_argument("--only", help="readings by name, with commas; those before them must have been made")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument(
        "--tokenizer-pairs", type=int, default=1_000_000, help="that the tokenizer is trained on at most"
    )
    parser.add_argument("--tokens", type=int, default=16_384, help="of a batch")
    parser.add_argument("--shape", default="tiny", help="of the model that takes a step")
    parser.add_argument("--loaded", type=int, default=60, help="batches that are loaded")
    parser.add_argument("--steps", type=int, default=1, help="that are timed, behind one that is not")
    parser.add_argument("--scored", type=int, default=100_000, help="lines that are scored at most")
    parser.add_argument("--languages", type=int, default=100)
    parser.add_argument("--output", type=Path)
    small = "--pairs 0.0005 --vocabulary 400 --tokens 256 --loaded 2 --steps 1 --scored 20 --languages 4"
    told = parse(parser, small)
    known = read_json(told.output) if told.output is not None and told.output.is_file() else {}
    found: dict[str, dict[str, dict[str, float]]] = known.get("found", {})
    with tempfile.TemporaryDirectory() as temporary:
        for size in told.pairs.split(","):
            folder = (told.folder or Path(temporary)) / size
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "train.de").exists():
                make(folder, round(float(size) * 1e6))
            for name in told.only.split(",") if told.only else READINGS:
                found.setdefault(size, {})[name] = numbers = alone(name, told, folder)
                told_of = ", ".join(f"{key} {value:,.4g}" for key, value in numbers.items())
                print(f"{size} million: {name}: {told_of}", flush=True)
                if told.output:
                    settings = {
                        key: str(value) if isinstance(value, Path) else value for key, value in vars(told).items()
                    }
                    content = {"schema": "hf_mlnmt.benchmark/1", "what": "CPU seconds and MB", "machine": machine()}
                    content |= {"settings": settings, "found": dict(sorted(found.items(), key=by_size))}
                    write_json(told.output, {**known, **content, "torch": torch.__version__})
    sizes = dict(sorted(found.items(), key=by_size))
    rows = [
        [
            name if number == 0 else "",
            key,
            *(f"{of.get(name, {}).get(key, float('nan')):,.4g}" for of in sizes.values()),
        ]
        for name in READINGS
        for number, key in enumerate(max((of.get(name, {}) for of in sizes.values()), key=len))
    ]
    Console(width=110).print(Table(["", "", *(Number(f"{size} million") for size in sizes)], rows, "Pairs"))
    Console(width=110).print(machine(), style="dim")


if __name__ == "__main__":
    main()
