"""Training speed: our baseline and trainer against Transformers' Marian, same shape and tokens a step, in one run.

    python benchmarks/training.py --data DIR
    python benchmarks/training.py --data DIR --bf16

DIR as for training/multi30k-ende/base.yaml.

| contestant | model | loop | batches |
| --- | --- | --- | --- |
| ours | TransformerForConditionalGeneration | TranslationTrainer | token budget, sorted by length, random order |
| with --bf16: ours, float32 | the same | the same | the same |
| Marian, bare loop | MarianMTModel | twelve lines below | the same batches |
| Marian, stock trainer | MarianMTModel | Seq2SeqTrainer | random order, as many sentences a batch |

Speed is real target tokens (padding not counted) a second, from the second step of a turn to its last.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Measure, parse, print_ratios, require_green_tests, take_turns
from torch import nn
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

import hf_mlnmt
from hf_mlnmt.data import CorpusSpec, Tokenizers, read_pairs, train_tokenizer
from hf_mlnmt.data.encoded import Encoded
from hf_mlnmt.data.encoding import encode_corpus
from hf_mlnmt.data.training_set import Corpora
from hf_mlnmt.training import Batches, Task, TokenBatchSampler, Translation, TranslationTrainer, batch_statistics

IGNORED = -100


class Clock(TrainerCallback):
    """Notes the time at the end of every step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.times.append(time.perf_counter())


def counted(collate: Any, counts: list[int]) -> Any:
    """`collate`, noting the real target tokens of each batch."""

    def run(examples: Any) -> Any:
        batch = collate(examples)
        counts.append(int((batch["labels"] != IGNORED).sum()))
        return batch

    return run


def marian_like(config: hf_mlnmt.TransformerConfig) -> MarianMTModel:
    """A Marian model of the same shape (it has biases and no final projection bias to speak of)."""
    names = ("vocab_size", "d_model", "dropout", "scale_embedding", "pad_token_id", "decoder_start_token_id")
    per_side = [
        f"{side}_{name}" for side in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")
    ]
    fields = {name: getattr(config, name) for name in (*names, *per_side)}
    fields |= {
        "eos_token_id": 1,
        "forced_eos_token_id": 1,
        "activation_function": config.activation_function,
        "max_position_embeddings": 512,
    }
    return MarianMTModel(MarianConfig(**fields))


class Race:
    """The contestants' state: models go on from turn to turn, each turn `steps` steps."""

    def __init__(self, data: Encoded, config: hf_mlnmt.TransformerConfig, options: Any, tokenizer: Any):
        self.data, self.tokens, self.steps, self.tokenizer = data, options.tokens, options.steps, tokenizer
        self.bf16 = options.bf16
        self.config = config
        self.sampler = TokenBatchSampler(data.source_lengths, data.target_lengths, self.tokens)
        self.sentences = round(statistics.mean(map(len, self.sampler.batches(0))))
        self.objective = Translation(config.pad_token_id or 0, label_smoothing=0.1)

    @functools.cached_property
    def ours(self) -> nn.Module:
        return hf_mlnmt.TransformerForConditionalGeneration(self.config)

    @functools.cached_property
    def exact(self) -> nn.Module:
        return hf_mlnmt.TransformerForConditionalGeneration(self.config)

    @functools.cached_property
    def marian(self) -> nn.Module:
        return marian_like(self.config)

    @functools.cached_property
    def stock(self) -> nn.Module:
        return marian_like(self.config)

    def arguments(self, folder: str, **more: Any) -> Seq2SeqTrainingArguments:
        """The same arguments for both trainers."""
        return Seq2SeqTrainingArguments(
            folder, learning_rate=1e-4, logging_steps=10_000, save_strategy="no",
            report_to="none", disable_tqdm=True, use_cpu=not torch.accelerator.is_available(),
            **{"bf16": self.bf16, "max_steps": self.steps, **more},
        )  # fmt: skip

    def trainer(self, trainer_class: type, model: nn.Module, collate_owner: Any, **kwargs: Any) -> Measure:
        counts: list[int] = []
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_class(model, args=kwargs.pop("args")(folder), callbacks=[clock], **kwargs)
            if trainer_class is TranslationTrainer:
                trainer.tasks[0].objective.collate = counted(collate_owner, counts)
            else:
                trainer.data_collator = counted(collate_owner, counts)
            trainer.train()
        return Measure(sum(counts[1 : self.steps]), clock.times[-1] - clock.times[0])

    def loading(self) -> float:
        """Milliseconds of one core for a batch of an average number of sentences to become tensors."""
        batches = [np.array(batch) for batch in itertools.islice(self.sampler, 50)]
        start = time.process_time()
        for batch in batches:
            self.objective.collate(self.data.gather(batch))
        return 1e3 * (time.process_time() - start) / len(batches)

    def run_ours(self) -> Measure:
        return self.by_our_trainer(self.ours)

    def run_exact(self) -> Measure:
        return self.by_our_trainer(self.exact, bf16=False)

    def by_our_trainer(self, model: nn.Module, **more: Any) -> Measure:
        objective = copy.copy(self.objective)
        return self.trainer(
            TranslationTrainer, model, self.objective.collate, batches=Batches(self.tokens),
            args=lambda folder: self.arguments(folder, **more), tasks=Task(Corpora([self.data]), objective),
        )  # fmt: skip

    def run_stock(self) -> Measure:
        collate = DataCollatorForSeq2Seq(self.tokenizer, model=self.stock)
        size = self.sentences
        data = [
            {name: ids.tolist() for name, ids in self.data[i % len(self.data)].items()}
            for i in range(size * (self.steps + 1))
        ]
        return self.trainer(
            Seq2SeqTrainer, self.stock, collate, train_dataset=data,
            args=lambda folder: self.arguments(folder, per_device_train_batch_size=size, label_smoothing_factor=0.1),
        )  # fmt: skip

    def run_bare(self) -> Measure:
        self.marian.train()
        optimizer = torch.optim.AdamW(self.marian.parameters(), lr=1e-4, fused=True)
        total, start = 0, 0.0
        for step, batch in enumerate(itertools.islice(self.sampler, self.steps)):
            inputs = self.objective.collate(self.data.gather(np.array(batch)))
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                logits = self.marian(**inputs, use_cache=False).logits
            nn.functional.cross_entropy(
                logits.float().flatten(0, 1), inputs["labels"].flatten(), label_smoothing=0.1
            ).backward()
            nn.utils.clip_grad_norm_(self.marian.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                start = time.perf_counter()
            else:
                total += int((inputs["labels"] != IGNORED).sum())
        return Measure(total, time.perf_counter() - start)


def load(folder: Path, vocabulary: int, work: Path) -> tuple[Encoded, Any]:
    """English-German training pairs of `folder`, a joint tokenizer trained on them, encoded."""
    spec = CorpusSpec(files={"source": "train.en.gz", "target": "train.de.gz"})
    tokenizer = train_tokenizer(itertools.chain.from_iterable(read_pairs(spec, folder)), vocab_size=vocabulary)
    return encode_corpus(spec, folder, Tokenizers(tokenizer, tokenizer), work), tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.en.gz and train.de.gz")
    parser.add_argument("--shape", default="small", choices=["tiny", "small", "base"])
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=1024, help="target tokens a step")
    parser.add_argument("--steps", type=int, default=25, help="steps a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="mixed precision for all, on a CPU")
    parser.add_argument("--no-tests", action="store_true", help="do not run the tests of what is measured first")
    quick = "--data {toys} --shape tiny --vocabulary 400 --tokens 200 --steps 2 --rounds 1 --threads 1 --no-tests"
    options = parse(parser, quick)
    if not options.no_tests:
        require_green_tests()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as work:
        data, tokenizer = load(options.data, options.vocabulary, Path(work) / "pairs")
        config = hf_mlnmt.config_for("transformer", options.shape, vocab_size=len(tokenizer))
        race = Race(data, config, options, tokenizer)
        statistics_ = batch_statistics(race.sampler)
        print(
            f"padding of our batches: source {statistics_.source_padding:.1%}, target {statistics_.target_padding:.1%}"
        )
        print(f"a batch of {options.tokens} target tokens to tensors: {race.loading():.2f} ms")
        contestants = {
            "Marian, stock trainer": race.run_stock,
            "Marian, bare loop": race.run_bare,
            "ours": race.run_ours,
        }
        if options.bf16:
            contestants["ours, float32"] = race.run_exact
        rates = take_turns(contestants, options.rounds)
    precision = "bf16" if options.bf16 else "float32"
    title = f"training, {options.shape} shape, vocabulary {len(tokenizer)}, {options.tokens} target tokens a step"
    print_ratios(f"{title}, {precision}", "target tokens", rates, "Marian, stock trainer")


if __name__ == "__main__":
    main()
