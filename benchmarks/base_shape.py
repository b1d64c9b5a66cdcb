"""Decoding at the shape of OPUS-MT (6+6 layers, d_model 512, d_ff 2048) with random weights, in one interleaved run.

    python benchmarks/base_shape.py --threads 1 --batches 1,8,32 --beams 1,4,6 --rounds 5
    python benchmarks/base_shape.py --shape small --engines ours,ctranslate2

Contestants: Transformers' MarianMTModel of the same shape with its own loops (stock), our generate() (ours),
the same with dtype int8, CTranslate2 in float32 and in int8. Every sentence has `--length` source tokens, and as many
target tokens are forced, so that all do the same work; the encoder counts. Ours and CTranslate2 have the same weights;
their float32 outputs are compared. Beams end as with early_stopping=True. Give the machine to nothing else.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import Measure, print_ratios, require_green_tests, take_turns
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, MarianConfig, MarianMTModel

import hf_mlnmt
from hf_mlnmt.engine import conversion
from hf_mlnmt.search.int8 import in_int8

ENGINES = ("stock", "ours", "int8", "ctranslate2", "ctranslate2-int8")
IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


class Numbers:
    """A tokenizer of numbers: CTranslate2 reads pieces."""

    def __init__(self, size: int):
        self.vocabulary = {f"n{index}": index for index in range(size)}
        self.bos_token, self.unk_token = "n0", "n2"

    def __len__(self) -> int:
        return len(self.vocabulary)

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary


def stock_model(config: Any) -> Any:
    """Transformers' Marian in the same shape."""
    sizes = {
        f"{side}_{name}": getattr(config, f"{side}_{name}")
        for side in ("encoder", "decoder")
        for name in ("layers", "attention_heads", "ffn_dim")
    }
    same = {name: getattr(config, name) for name in (*IDS, "vocab_size", "d_model")}
    return MarianMTModel(MarianConfig(**same, **sizes, forced_eos_token_id=None)).eval()


def by_generate(model: Any, ids: torch.Tensor, settings: GenerationConfig, outputs: list) -> Callable[[], Measure]:
    @torch.inference_mode()
    def run() -> Measure:
        model.generation_config = settings
        start = time.perf_counter()
        found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids))
        seconds = time.perf_counter() - start
        outputs[:] = found[:, 1:].tolist()
        return Measure(len(ids), seconds)

    return run


def by_ctranslate2(
    folder: Path, dtype: str, ids: torch.Tensor, beams: int, length: int, outputs: list
) -> Callable[[], Measure]:
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), compute_type=dtype, intra_threads=torch.get_num_threads())
    pieces = [[f"n{index}" for index in row] for row in ids.tolist()]

    def run() -> Measure:
        start = time.perf_counter()
        lengths = {"min_decoding_length": length, "max_decoding_length": length}
        results = translator.translate_batch(pieces, beam_size=beams, **lengths)
        seconds = time.perf_counter() - start
        outputs[:] = [[int(token[1:]) for token in result.hypotheses[0]] for result in results]
        return Measure(len(ids), seconds)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="base", choices=("tiny", "small", "base"))
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--beams", default="1,4,6")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--skip-tests", action="store_true", help="when they have just been run")
    given = parser.parse_args()
    if not given.skip_tests:
        require_green_tests()
    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    sizes = {"vocab_size": given.vocabulary, "decoder_vocab_size": given.vocabulary}
    config = hf_mlnmt.config_for("transformer", given.shape, **sizes)
    model, engines = AutoModelForSeq2SeqLM.from_config(config).eval(), given.engines.split(",")
    models = {"ours": model}
    if "stock" in engines:
        models["stock"] = stock_model(config)
    if "int8" in engines:
        models["int8"] = in_int8(model)
    tokenizer = Numbers(given.vocabulary)
    with tempfile.TemporaryDirectory() as scratch:
        for dtype in ("float32", "int8"):
            (folder := Path(scratch) / dtype).mkdir()
            conversion.write(model, SimpleNamespace(source=tokenizer, target=tokenizer), folder, dtype)
        for batch in map(int, given.batches.split(",")):
            ids = torch.randint(4, given.vocabulary, (batch, given.length))
            for beams in map(int, given.beams.split(",")):
                compare(given, models, engines, Path(scratch), ids, beams)


def compare(
    given: Any, models: dict[str, Any], engines: list[str], scratch: Path, ids: torch.Tensor, beams: int
) -> None:
    """One table: a batch and a number of beams."""
    length, config = given.length, models["ours"].config
    settings = GenerationConfig(
        num_beams=beams,
        max_new_tokens=length,
        min_new_tokens=length,
        **({"early_stopping": True} if beams > 1 else {}),
        **{name: getattr(config, name) for name in IDS},
    )
    outputs: dict[str, list] = {name: [] for name in engines}
    turns: dict[str, Callable[[], Measure]] = {}
    for name in engines:
        if name in models:
            turns[name] = by_generate(models[name], ids, settings, outputs[name])
        else:
            dtype = "int8" if name.endswith("int8") else "float32"
            turns[name] = by_ctranslate2(scratch / dtype, dtype, ids, beams, length, outputs[name])
    rates = take_turns(turns, given.rounds)
    baseline = "ctranslate2" if "ctranslate2" in engines else engines[0]
    print_ratios(f"{given.shape}, batch {len(ids)}, beams {beams}", "sentences", rates, baseline)
    if {"ours", "ctranslate2"} <= outputs.keys():
        same = sum(a == b for a, b in zip(outputs["ours"], outputs["ctranslate2"], strict=True))
        print(f"ours and ctranslate2: {same} of {len(ids)} outputs are the same")


if __name__ == "__main__":
    main()
