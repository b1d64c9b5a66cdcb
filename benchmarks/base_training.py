"""A step of training at the small and the base shape: ours, Transformers' Marian, and Marian's own engine, in one run.

    python benchmarks/base_training.py --data DIR --marian PYTHON --output benchmarks/results/base-training-cpu.json

DIR as for training/multi30k-ende/base.yaml; PYTHON: of an environment with pymarian (pip install pymarian).
Shapes: "small", and "opus", what an imported OPUS-MT model is: 6+6 layers of 512 with biases, swish, sines in halves.

| contestant | model | loop | batches |
| --- | --- | --- | --- |
| ours | the baseline | TranslationTrainer | token budget, sorted by length, random order |
| ours, stock trainer | the baseline | Seq2SeqTrainer | random order, as many sentences a batch |
| Marian, stock trainer | MarianMTModel | Seq2SeqTrainer | the same |
| Marian, bare loop | MarianMTModel | twelve lines in training.py | as ours |
| Marian's engine | its own | its own, --sync-sgd | --mini-batch-words, sorted by target length |

All have the same subwords, label smoothing, dropout and Adam. Speed is real target tokens a second, end of sentence
counted, from the second step of a turn to its last. Marian's engine counts its own.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import ROOT, Measure, machine, parse, print_ratios, require_green_tests, take_turns
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer

import hf_mlnmt
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import write_json
from training import Race, load

OPUS = {"attention_bias": True, "output_bias": True, "activation_function": "swish", "position_embedding": "halves"}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {"small": ("small", {}), "opus": ("base", OPUS)}
STEPS = {"small": 8, "opus": 4}  # a turn
_UPDATE = re.compile(r"\* [\d,.]+ @ ([\d,]+) after .*? Time ([\d.]+)s")
_TRAIN = "import sys; from pymarian import Trainer; Trainer(sys.argv[1]).train()"


class Contest(Race):
    """The contestants of training.py, ours under the stock trainer, and Marian's own engine."""

    def run_ours_stock(self) -> Measure:
        size = self.sentences
        data = [{name: ids.tolist() for name, ids in self.data[i].items()} for i in range(size * (self.steps + 1))]
        return self.trainer(
            Seq2SeqTrainer, self.exact, DataCollatorForSeq2Seq(self.tokenizer, model=self.exact), train_dataset=data,
            args=lambda folder: self.arguments(folder, per_device_train_batch_size=size, label_smoothing_factor=0.1),
        )  # fmt: skip


class Engine:
    """pymarian's trainer, in a process of its own for each turn; it reads our subwords as words."""

    def __init__(self, python: str, data: Any, tokenizer: Any, config: Any, options: Any, folder: Path):
        self.python, self.folder, self.steps = python, folder, options.steps
        tokens = {index: token for token, index in tokenizer.get_vocab().items()}
        others = [token for _, token in sorted(tokens.items()) if token not in ("</s>", "<unk>")]
        lines = [
            f"{json.dumps(token, ensure_ascii=False)}: {n}\n" for n, token in enumerate(["</s>", "<unk>", *others])
        ]
        (folder / "v.yml").write_text("".join(lines), encoding="utf-8")
        for name, key in (("en", "input_ids"), ("de", "labels")):
            rows = (" ".join(tokens[i] for i in data[n][key].tolist()[:-1]) for n in range(len(data)))
            (folder / f"t.{name}").write_text("\n".join(rows) + "\n", encoding="utf-8")
        self.options = _options(folder, config, options)

    def turn(self) -> Measure:
        done = subprocess.run(
            [self.python, "-c", _TRAIN, self.options], capture_output=True, text=True, errors="replace", timeout=600
        )
        found = [(int(count.replace(",", "")), float(time)) for count, time in _UPDATE.findall(done.stderr)]
        if done.returncode or len(found) < self.steps:
            raise UserError(f"{self.python}: Marian's engine did not train:\n{done.stderr[-1500:]}")
        counts, times = zip(*found[1:], strict=True)
        return Measure(sum(counts), sum(times))


def _options(folder: Path, config: Any, options: Any) -> str:
    """The same shape and rates, as Marian's command line."""
    values = {
        "type": "transformer", "model": folder / "m.npz", "train-sets": f"{folder}/t.en {folder}/t.de",
        "vocabs": f"{folder}/v.yml {folder}/v.yml", "dim-emb": config.d_model, "enc-depth": config.encoder_layers,
        "dec-depth": config.decoder_layers, "transformer-heads": config.encoder_attention_heads,
        "transformer-dim-ffn": config.encoder_ffn_dim, "transformer-ffn-activation": config.activation_function,
        "transformer-dropout": config.dropout, "label-smoothing": 0.1, "learn-rate": 0.0001, "optimizer": "adam",
        "clip-norm": 1, "cost-type": "ce-sum", "disp-label-counts": "true", "mini-batch": 1000, "maxi-batch": 100,
        "mini-batch-words": options.tokens, "maxi-batch-sort": "trg", "cpu-threads": options.threads,
        "workspace": 2000, "after": f"{options.steps + 1}u", "disp-freq": "1u", "save-freq": "100000u", "seed": 1,
    }  # fmt: skip
    flags = "--tied-embeddings-all --sync-sgd --overwrite --no-reload"
    return " ".join([flags, *(f"--{name} {value}" for name, value in values.items())])


def measure(shape: str, options: Any, work: Path) -> dict[str, Any]:
    """The rates of one shape, in target tokens a second."""
    options.steps = options.turn_steps or STEPS[shape]
    data, tokenizer = load(options.data, options.vocabulary, work / "pairs")
    base, fields = SHAPES[shape]
    config = hf_mlnmt.config_for("transformer", base, vocab_size=len(tokenizer), **fields)
    contest = Contest(data, config, options, tokenizer)
    contestants = {
        "Marian, stock trainer": contest.run_stock,
        "Marian, bare loop": contest.run_bare,
        "ours, stock trainer": contest.run_ours_stock,
        "ours": contest.run_ours,
    }
    if options.marian:
        (folder := work / "marian").mkdir()
        contestants["Marian's engine"] = Engine(options.marian, data, tokenizer, config, options, folder).turn
    rates = take_turns(contestants, options.rounds)
    title = f"training, {shape} shape, vocabulary {len(tokenizer)}, {options.tokens} target tokens a step"
    print_ratios(title, "target tokens", rates, "Marian, stock trainer")
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {"shape": shape, "steps_a_turn": options.steps, "target_tokens_per_second": medians, "rates": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.en.gz and train.de.gz")
    parser.add_argument("--marian", metavar="PYTHON", help="of an environment with pymarian; left out: not measured")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=1024, help="target tokens a step")
    parser.add_argument("--turn-steps", type=int, help=f"steps a turn; by default {STEPS}")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-tests", action="store_true", help="do not run the tests of what is measured first")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "base-training-cpu.json")
    quick = "--data {toys} --shapes small --vocabulary 400 --tokens 100 --turn-steps 2 --rounds 1 --threads 1"
    options = parse(parser, f"{quick} --no-tests")
    if not options.no_tests:
        require_green_tests()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    options.bf16, rows = False, []
    for shape in options.shapes:
        with tempfile.TemporaryDirectory() as work:
            rows.append(measure(shape, options, Path(work)))
    kept = ("vocabulary", "tokens", "rounds", "threads")
    settings = {name: getattr(options, name) for name in kept} | {"marian": bool(options.marian)}
    if options.output:
        write_json(options.output, {"settings": settings, "machine": machine(), "shapes": rows})


if __name__ == "__main__":
    main()
