"""Decoding speed with trained weights: Transformers' own loops, ours and CTranslate2, in one interleaved run.

    python benchmarks/decode.py runs/transformer.multi30k-ende/average --source DIR/test_2016_flickr.en.gz
    python benchmarks/decode.py runs/*/average --source FILE --engines stock,ours --beams 1,6 --batches 32
    python benchmarks/decode.py runs/transformer.multi30k-ende/average --memory
    python benchmarks/decode.py --systems all --steps 20
    python benchmarks/decode.py --families all --beams 1,5 --batches 1,32 --threads 1 --rounds 2 --processor-time
    python benchmarks/decode.py published/en-de --costs --source FILE --reference FILE --sentences 64 --threads 1 \
        --processor-time

The same model.generate() is called both times; `stock` is the loop that ours replaces. Batches are taken in the file's
order and hold `--batches` sentences. CTranslate2 runs the baseline only; its outputs are compared with ours, as are
stock's. A weak model (an early checkpoint) shows what outputs of very different length do. `--systems` takes random
weights (tiny shape) and a fixed number of steps: no sentence ends before another, and less of the gain is left.
`--families` does the same with Transformers' own classes, as they are and as TranslationPipeline takes them.
`--costs` says how many times as long what is asked for takes as a beam search of 5 of the same lines right before it.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from common import ROOT, Measure, machine, numbers, parse, print_ratios, require_green_tests, short, take_turns
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt import search
from hf_mlnmt.common.files import write_json
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.convert import huggingface
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.generation.translating.loading import load
from hf_mlnmt.search.t5 import let_search

CLOCK = time.perf_counter  # or time.process_time, on a busy machine
ENGINES = ("stock", "ours", "int8", "ctranslate2", "ctranslate2-int8")


@contextmanager
def stock_loops() -> Iterator[None]:
    """Transformers' own loops in generate()."""
    decide = search.why_not
    search.why_not = lambda *arguments: "the benchmark"
    try:
        yield
    finally:
        search.why_not = decide


def batches(lines: list[str], tokenizer: Any, size: int) -> list[dict[str, torch.Tensor]]:
    """Padded batches in the order of the lines."""
    return [dict(tokenizer(lines[i : i + size], return_tensors="pt", padding=True)) for i in range(0, len(lines), size)]


def by_generate(model: Any, inputs: list[dict[str, torch.Tensor]], options: dict[str, Any], outputs: list) -> Callable:
    """One turn of generate(); `outputs` gets the tokens of every sentence."""

    @torch.inference_mode()
    def run() -> Measure:
        outputs.clear()
        start = CLOCK()
        for batch in inputs:
            outputs.extend(model.generate(**batch, **options).tolist())
        seconds = CLOCK() - start
        special = {model.config.pad_token_id, model.config.eos_token_id, model.config.decoder_start_token_id}
        outputs[:] = [[token for token in row if token not in special] for row in outputs]
        return Measure(len(outputs), seconds)

    return run


def by_ctranslate2(folder: Path, tokenizer: Any, inputs: list, options: dict[str, Any], outputs: list) -> Callable:
    """One turn of the exported model, in the same batches."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), intra_threads=torch.get_num_threads(), inter_threads=1)
    pieces = [
        [tokenizer.convert_ids_to_tokens(row[mask.bool()]) for row, mask in zip(b["input_ids"], b["attention_mask"])]
        for b in inputs
    ]

    def run() -> Measure:
        found: list[list[str]] = []
        start = CLOCK()
        for batch in pieces:
            results = translator.translate_batch(
                batch,
                beam_size=options["num_beams"],
                max_decoding_length=options["max_new_tokens"],
                length_penalty=1.0,
                max_batch_size=0,
            )
            found.extend(result.hypotheses[0] for result in results)
        seconds = CLOCK() - start
        outputs[:] = [tokenizer.convert_tokens_to_ids(row) for row in found]
        return Measure(len(outputs), seconds)

    return run


def contestants(
    name: str, parts: Any, folder: Path, engines: list[str], inputs: list, options: dict[str, Any], outputs: dict
) -> dict[str, Callable[[], Measure]]:
    """A turn for every engine that can run this model."""
    runs: dict[str, Callable[[], Measure]] = {}
    for engine in engines:
        kept = outputs.setdefault(engine, [])
        if engine.startswith("ctranslate2"):
            exported = folder / engine
            if exported.is_dir():
                runs[engine] = by_ctranslate2(exported, parts.source, inputs, options, kept)
        elif engine == "int8":
            runs[engine] = by_generate(load(name, dtype="int8").model, inputs, options, kept)
        elif engine == "stock":
            ours = by_generate(parts.model, inputs, options, kept)
            runs[engine] = lambda run=ours: _with_stock_loops(run)
        else:
            runs[engine] = by_generate(parts.model, inputs, options, kept)
    return runs


def _with_stock_loops(run: Callable[[], Measure]) -> Measure:
    with stock_loops():
        return run()


def export_all(name: str, model: Any, engines: list[str], folder: Path) -> None:
    """What CTranslate2 needs, if it can run the model."""
    from hf_mlnmt import UserError
    from hf_mlnmt.export import export

    for engine in engines:
        if engine.startswith("ctranslate2"):
            try:
                export(name, folder / engine, "ctranslate2", dtype="int8" if engine.endswith("int8") else "float32")
            except UserError as error:
                print(f"{engine}: {error}", file=sys.stderr)


def compare_speed(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One table for each beam size and batch size; the same as rows, one for each engine."""
    rows = []
    parts = load(name, device=options.device)
    lines = list(itertools.islice(read_lines(options.source), options.sentences))
    engines = options.engines.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        export_all(name, parts.model, engines, Path(scratch))
        for beams, size in itertools.product(numbers(options.beams), numbers(options.batches)):
            inputs = [{k: v.to(parts.model.device) for k, v in b.items()} for b in batches(lines, parts.source, size)]
            arguments = {"num_beams": beams, "do_sample": False, "max_new_tokens": options.limit}
            outputs: dict[str, list] = {}
            runs = contestants(name, parts, Path(scratch), engines, inputs, arguments, outputs)
            rates = take_turns(runs, options.rounds)
            lengths = [len(row) for row in outputs["ours"]]
            mean = sum(lengths) / len(lengths)
            title = (
                f"{short(name)}: beam {beams}, batch {size}, {len(lines)} sentences of {mean:.1f} subwords on average, "
                f"{max(lengths)} at most (tokens/s: times {mean:.1f})"
            )
            print_ratios(title, "sentences", rates, "stock" if "stock" in rates else "ours")
            for engine in rates:
                same = sum(a == b for a, b in zip(outputs[engine], outputs["ours"], strict=True))
                score = bleu(outputs[engine], parts, options.reference)
                known = "" if score is None else f", BLEU {score:.2f}"
                print(f"  {engine}: {same} of {len(lines)} outputs are those of ours{known}")
                row = {"model": short(name), "beams": beams, "batch": size, "engine": engine, "outputs_as_ours": same}
                row["sentences_per_second"] = statistics.median(rates[engine])
                row["tokens_per_second"] = row["sentences_per_second"] * mean
                if "stock" in rates:
                    pairs = zip(rates[engine], rates["stock"], strict=True)
                    row["times_stock"] = statistics.median(own / stock for own, stock in pairs)
                rows.append(row if score is None else row | {"bleu_cased": score})
    return rows


def summarise(measured: list[dict[str, Any]]) -> None:
    """How many times as fast as stock: a row for each model and engine, a column for each beam and batch."""
    settings = list(dict.fromkeys((row["beams"], row["batch"]) for row in measured))
    cells: dict[tuple[str, str], dict] = {}
    for row in measured:
        if row["engine"] != "stock" and "times_stock" in row:
            cells.setdefault((row["model"], row["engine"]), {})[row["beams"], row["batch"]] = row["times_stock"]
    rows = [
        [model, engine, *(f"{ratios[x]:.2f}" if x in ratios else "" for x in settings)]
        for (model, engine), ratios in cells.items()
    ]
    columns = ["model", "engine", *(Number(f"{beams}, {batch}") for beams, batch in settings)]
    table = Table(columns, rows, "times stock generate() (beam, batch)")
    Console(width=60 + 10 * len(settings)).print(table)


def commit() -> str:
    """What is measured."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def bleu(outputs: list[list[int]], parts: Any, reference: Path | None) -> float | None:
    """Cased; None without a reference."""
    if reference is None:
        return None
    import sacrebleu

    texts = parts.target.batch_decode(outputs, skip_special_tokens=True)
    texts = [parts.tokenizers.processing["target"].undo(text) for text in texts]
    references = list(itertools.islice(read_lines(reference), len(texts)))
    return sacrebleu.corpus_bleu([text.strip() for text in texts], [references]).score


def compare_systems(options: argparse.Namespace) -> None:
    """Every system with random weights: stock and ours, the same number of steps for every sentence."""
    systems = hf_mlnmt.list_systems("translation") if options.systems == "all" else options.systems.split(",")
    ids = torch.randint(5, 8000, (32, 15), generator=torch.Generator().manual_seed(1))
    inputs = [{"input_ids": ids.to(options.device), "attention_mask": torch.ones_like(ids).to(options.device)}]
    fixed = {"do_sample": False, "min_new_tokens": options.steps, "max_new_tokens": options.steps}
    rows = []
    for system in systems:
        torch.manual_seed(1)
        config = hf_mlnmt.config_for(system, "tiny", vocab_size=8000)
        model = AutoModelForSeq2SeqLM.from_config(config).to(options.device).eval()
        cells = []
        for beams in numbers(options.beams):
            ours = by_generate(model, inputs, {"num_beams": beams, **fixed}, [])
            runs = {f"{system} stock": lambda run=ours: _with_stock_loops(run), system: ours}
            rates = take_turns(runs, options.rounds)
            ratios = [a / b for a, b in zip(rates[system], rates[f"{system} stock"], strict=True)]
            cells.append(f"{statistics.median(ratios):.2f}")
        rows.append([system, *cells])
    columns = ["system", *(Number(f"beam {beams}") for beams in numbers(options.beams))]
    title = f"times stock generate(): tiny shape, random weights, batch 32, {options.steps} steps"
    Console().print(Table(columns, rows, title))
    print(machine())


def families(asked: str, layers: int, width: int, vocabulary: int) -> Iterator[tuple[str, Any, Any]]:
    """Stock models of a shape with random weights: name, the model, and what TranslationPipeline makes of it."""
    of_all = {"vocab_size": vocabulary, "d_model": width}
    ids = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    sides = {"layers": layers, "attention_heads": 8, "ffn_dim": 4 * width}
    both = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()}
    both |= of_all | ids
    of_t5 = {**of_all, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    of_t5 |= {"d_kv": width // 8, "d_ff": 4 * width, "num_layers": layers, "num_heads": 8}
    gated = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    configs = {
        "Marian": transformers.MarianConfig(**both, forced_eos_token_id=None),
        "M2M100": transformers.M2M100Config(**both),
        "mBART": transformers.MBartConfig(**both, forced_eos_token_id=None),
        "T5": transformers.T5Config(**of_t5),
        "MADLAD": transformers.T5Config(**of_t5, **gated),
    }
    for name in configs if asked == "all" else asked.split(","):
        config = configs[name]
        torch.manual_seed(1)
        stock = AutoModelForSeq2SeqLM.from_config(config).eval()
        for part, weight in stock.named_parameters():
            if weight.dim() > 1 and "positions" not in part:  # as they are made they say one token for ever
                torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
        if config.model_type == "t5":
            let_search(ours := copy.copy(stock))
        else:
            placement = huggingface.placement_of(stock, of_ours := huggingface.config_of(name, stock), name)
            kind = hf_mlnmt.TransformerForConditionalGeneration
            with torch.device("meta"):
                empty: Any = kind(of_ours)
            ours = kind.from_pretrained(None, config=of_ours, state_dict=placement.finish(empty)).eval()
        yield name, stock, ours


def compare_families(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Transformers' own classes: stock and ours, 20 source tokens and the same number of steps for every sentence."""
    rows = []
    fixed = {"do_sample": False, "min_new_tokens": options.steps, "max_new_tokens": options.steps}
    for name, stock, ours in families(options.families, *((1, 16, 200) if options.quick else (6, 512, 20_000))):
        for size, beams in itertools.product(numbers(options.batches), numbers(options.beams)):
            ids = torch.randint(5, stock.config.vocab_size, (size, 20), generator=torch.Generator().manual_seed(1))
            inputs = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}]
            asked, found = {"num_beams": beams, **fixed}, {"stock": [], "ours": []}
            runs = {
                key: by_generate(each, inputs, asked, found[key]) for key, each in (("stock", stock), ("ours", ours))
            }
            rates = take_turns(runs, options.rounds)
            times = statistics.median(a / b for a, b in zip(rates["ours"], rates["stock"], strict=True))
            same = sum(a == b for a, b in zip(found["stock"], found["ours"], strict=True))
            print(f"{name}: batch {size}, beam {beams}: {times:.2f} times stock, {same} of {size} outputs the same")
            row = {"model": name, "engine": "ours", "beams": beams, "batch": size, "times_stock": times}
            rows.append(row | {"outputs_as_stock": same, **{key: statistics.median(rates[key]) for key in rates}})
    return rows


def compare_memory(name: str, options: argparse.Namespace) -> None:
    """Peak memory of one batch at beam 12 and source length 200, each loop in a process of its own."""
    peaks = {}
    for engine in ("stock", "ours"):
        command = [sys.executable, __file__, name, "--peak", engine, "--threads", str(options.threads)]
        peaks[engine] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    ratio = peaks["ours"] / peaks["stock"]
    print(
        f"peak memory above the loaded model, beam 12, batch 32, source length 200, 60 steps: "
        f"stock {peaks['stock']:,} KiB, ours {peaks['ours']:,} KiB, ratio {ratio:.2f}"
    )


@torch.inference_mode()
def measure_peak(name: str, engine: str) -> int:
    """KiB that this process's peak rises by."""
    model = load(name, device="cpu").model
    torch.manual_seed(1)
    ids = torch.randint(5, model.config.vocab_size, (32, 200))
    arguments = {"num_beams": 12, "do_sample": False, "min_new_tokens": 60, "max_new_tokens": 60}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    model.generate(**{k: v[:1, :4] for k, v in inputs.items()}, num_beams=2, max_new_tokens=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if engine == "stock":
        with stock_loops():
            model.generate(**inputs, **arguments)
    else:
        model.generate(**inputs, **arguments)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def compare_costs(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Times a beam search of 5, of the same sentences: of what a pipeline is asked for, and of drawing.

    The pipeline's look at its first translations, once for a calibrated model, is no part of it.
    """
    from hf_mlnmt.generation import TranslationPipeline

    translate = TranslationPipeline.from_pretrained(name, device=options.device)
    translate.model.generation_config.confidence = None
    lines = list(itertools.islice(read_lines(options.source), options.sentences))
    references = itertools.islice(read_lines(options.reference), options.sentences)
    words = [max(line.split(), key=len).strip('.,"') for line in references]
    numbered = [f"{line.rstrip(' .')} number {10 + number}." for number, line in enumerate(lines)]
    groups = {"num_beam_groups": 5, "diversity_penalty": 0.5}
    drawn = {"mbr": 64, "seed": 1}
    asked: dict[str, tuple[list[str], dict[str, Any]]] = {
        "a word that must be there": (lines, {"num_beams": 5, "force_phrases": words}),
        "a number that is kept": (numbered, {"num_beams": 5, "keep": ["number"]}),
        "5 diverse groups": (lines, {"num_beams": 5, **groups}),
        "MBR of 64 samples, aggregated chrF, epsilon .02": (lines, {**drawn, "epsilon_cutoff": 0.02}),
        "MBR of 64 samples, aggregated chrF": (lines, drawn),
    }

    def turn(texts: list[str], how: dict[str, Any]) -> Measure:
        start = CLOCK()
        translate(texts, max_new_tokens=options.limit, **how)
        return Measure(len(texts), CLOCK() - start)

    runs: dict[str, Callable[[], Measure]] = {}
    for what, (texts, how) in asked.items():
        runs[f"beam before {what}"] = lambda texts=texts: turn(texts, {"num_beams": 5})
        runs[what] = lambda texts=texts, how=how: turn(texts, how)
    inputs = batches(lines[:16], translate.parts.source, 16)
    copies = [{key: value.repeat_interleave(64, 0) for key, value in batch.items()} for batch in inputs]
    fixed = {"max_new_tokens": options.limit, "num_beams": 1}
    runs["64 greedy copies"] = by_generate(translate.model, copies, {**fixed, "do_sample": False}, [])
    samples = {**fixed, "do_sample": True, "draws": "row", "top_k": 0, "num_return_sequences": 64}
    runs["64 samples"] = by_generate(translate.model, inputs, samples, [])
    rates = take_turns(runs, options.rounds)
    pairs = {what: f"beam before {what}" for what in asked} | {"64 samples": "64 greedy copies"}
    found = {
        what: statistics.median(before / own for own, before in zip(rates[what], rates[other], strict=True))
        for what, other in pairs.items()
    }
    rows = [[what, pairs[what].removesuffix(what), f"{times:.2f}"] for what, times in found.items()]
    Console(width=110).print(Table(["", "times", Number("")], rows, f"{short(name)}, {len(lines)} sentences"))
    print(machine())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="folders of trained models")
    parser.add_argument("--systems", help="instead: names of systems, as in m-10,ms-1-aif, or all")
    parser.add_argument("--families", help="instead: Transformers' own: Marian, M2M100, mBART, T5, MADLAD, or all")
    parser.add_argument("--steps", type=int, default=20, help="subwords of every output, for --systems")
    parser.add_argument("--source", type=Path, help="sentences, one a line, text or .gz")
    parser.add_argument("--reference", type=Path, help="their translations: BLEU (cased) of every engine")
    parser.add_argument("--sentences", type=int, default=1000, help="how many of them")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--beams", default="1,4,6,12")
    parser.add_argument("--batches", default="1,32,128")
    parser.add_argument("--limit", type=int, default=80, help="most subwords of an output")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processor-time", action="store_true", help="instead of wall time, on a CPU others use too")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of speed")
    parser.add_argument("--costs", action="store_true", help="of what a search can be asked for, instead")
    parser.add_argument("--no-tests", action="store_true", help="do not run the search's tests first")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON here too")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    quick = "{toys}/model --source {toys}/train.en.gz --reference {toys}/train.de.gz --sentences 2 --beams 2"
    quick += " --batches 2 --limit 4 --systems transformer --families all --steps 2 --rounds 1 --threads 1 --no-tests"
    options = parse(parser, quick)
    torch.set_num_threads(options.threads)
    if options.processor_time:
        global CLOCK
        CLOCK = time.process_time
    if options.peak:
        print(measure_peak(options.models[0], options.peak))
        return
    if not options.models and not options.systems and not options.families:
        parser.error("give folders of models, --systems or --families")
    if options.models and not options.memory and not options.source:
        parser.error("--source FILE is needed: the sentences to translate")
    if options.costs and not options.reference:
        parser.error("--costs needs --reference FILE, whose words must be there")
    if not options.no_tests:
        require_green_tests()
    if options.systems:
        compare_systems(options)
    rows: list[dict[str, Any]] = compare_families(options) if options.families else []
    if rows and options.output:
        write_json(options.output, {"machine": machine(), "commit": commit(), "rows": rows})
    for name in options.models:
        if options.memory:
            compare_memory(name, options)
            continue
        if options.costs:
            rows.append({"model": short(name), "times": compare_costs(name, options)})
        else:
            rows += compare_speed(name, options)
        if options.output:  # after every model: a long run that is cut short has not been for nothing
            given = {key: value for key, value in vars(options).items() if key not in ("output", "models")}
            settings = {key: value.name if isinstance(value, Path) else str(value) for key, value in given.items()}
            made_from = {"settings": settings, "machine": machine(), "commit": commit()}
            write_json(options.output, {**made_from, "rows": rows})
    if rows and not options.costs:
        summarise(rows)


if __name__ == "__main__":
    main()
