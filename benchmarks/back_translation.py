"""Back-translation's speed against bare decoding: the same lines through generate() alone, in one interleaved run.

    python benchmarks/back_translation.py runs/transformer.multi30k-ende/average --text DIR/train.en.gz --lines 1000

`generate()` gets the batches that back-translation makes (lines sorted by length, a number of tokens a batch), made
beforehand: no text is read, encoded, decoded, judged, hashed or written. For sampling that is Transformers' own drawing
with the same loop.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import Measure, machine, parse, print_ratios, require_green_tests, short, take_turns

from hf_mlnmt.common.files import write_json, write_text
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.tokenizer import encode
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.synthetic.back_translation import Method, Settings, back_translate
from hf_mlnmt.generation.translating.batches import batches_by_tokens, pad

CLOCK = time.perf_counter  # or time.process_time, on a busy machine
BARE: dict[str, dict[str, Any]] = {
    "beam": {"num_beams": 5, "do_sample": False},
    "greedy": {"num_beams": 1, "do_sample": False},
    "sampling": {"num_beams": 1, "do_sample": True, "top_k": 0},
}


def bare(pipeline: TranslationPipeline, lines: list[str], settings: Settings, options: dict[str, Any]) -> Callable:
    """One turn of generate() on the batches of these lines."""
    parts, model = pipeline.parts, pipeline.model
    ids = [sequence.tolist() for sequence in encode(parts.source, lines)]
    inputs = []
    for start in range(0, len(ids), settings.window):
        window = ids[start : start + settings.window]
        for batch in batches_by_tokens([len(sequence) for sequence in window], settings.batch_tokens):
            inputs.append(pad([window[i] for i in batch], parts.source.pad_token_id, model.device))

    @torch.inference_mode()
    def run() -> Measure:
        start = CLOCK()
        for input_ids, mask in inputs:
            model.generate(input_ids=input_ids, attention_mask=mask, max_new_tokens=settings.max_new_tokens, **options)
        return Measure(len(lines), CLOCK() - start)

    return run


def whole(model: str, text: Path, lines: int, method: Method, settings: Settings) -> Callable:
    """One turn of the job, without the time that loading the model takes."""

    def run() -> Measure:
        with tempfile.TemporaryDirectory() as folder:
            start = CLOCK()
            back_translate(model, [text], Path(folder) / "pairs", method, settings)
            return Measure(lines, CLOCK() - start)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a trained model")
    parser.add_argument("--text", type=Path, required=True, help="sentences of the model's source language")
    parser.add_argument("--lines", type=int, default=2000, help="how many of them")
    parser.add_argument("--methods", default=",".join(BARE))
    parser.add_argument("--limit", type=int, default=80, help="most subwords of an output")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor-time", action="store_true", help="instead of wall time, on a CPU others use too")
    parser.add_argument("--no-tests", action="store_true", help="do not run the tests first")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON here too")
    quick = "{toys}/model --text {toys}/train.en.gz --lines 4 --limit 4 --rounds 1 --threads 1 --no-tests"
    options = parse(parser, quick)
    torch.set_num_threads(options.threads)
    if options.processor_time:
        global CLOCK
        CLOCK = time.process_time
    if not options.no_tests:
        require_green_tests()
    pipeline = TranslationPipeline.from_pretrained(options.model)
    TranslationPipeline.from_pretrained = classmethod(lambda *_, **__: pipeline)  # type: ignore[assignment,method-assign]
    lines = list(itertools.islice(read_lines(options.text), options.lines))
    settings = Settings(drop=(), max_new_tokens=options.limit)
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        text = write_text(Path(folder) / "text", "".join(line + "\n" for line in lines))
        for name in options.methods.split(","):
            runs = {
                "generate()": bare(pipeline, lines, settings, BARE[name]),
                "back-translate": whole(options.model, text, len(lines), Method(name), settings),
            }
            measured[name] = rates = take_turns(runs, options.rounds)
            print_ratios(f"{name}: {len(lines)} lines", "lines", rates, "generate()")
    if options.output:
        clock = "processor time" if options.processor_time else "wall time"
        about = {"model": short(options.model), "machine": machine(), "clock": clock, "lines": len(lines)}
        write_json(options.output, {**about, "batch_tokens": settings.batch_tokens, "lines_per_second": measured})


if __name__ == "__main__":
    main()
