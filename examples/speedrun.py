"""From Multi30k's files to a scored test set, by what hf_mlnmt offers in public: how fast is a classic BLEU of 41?

    python examples/speedrun.py DIR                   # DIR: train, val and test_2016_flickr as .en.gz and .de.gz
    python examples/speedrun.py DIR --seed 2 --threads 2 --output runs/speedrun-2
    python examples/speedrun.py DIR --steps 200       # only to see it run

The clock starts before the tokenizer is trained and stops after the test set is translated and scored. Settings were
chosen on val, but for the length penalty (LEADERBOARD.md); the test set is translated once.
"""

import argparse
import resource
import time
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainingArguments, set_seed

import hf_mlnmt
from hf_mlnmt.data import (
    Corpora,
    CorpusSpec,
    FilterReport,
    PairFilter,
    encode_corpus,
    load_tokenizers,
    read_lines,
    read_pairs,
    save_tokenizers,
    train_tokenizer,
)
from hf_mlnmt.evaluation import score
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.training import (
    Batches,
    Schedule,
    Task,
    Translation,
    TranslationTrainer,
    average_checkpoints,
    computes_bfloat16,
)

SUBWORDS, TOKENS = 10_000, 1024  # of the vocabulary; of a batch, on the target side, padding included
CYCLES, SHARE = 6, 1 / 11  # the learning rate falls to 0 six times; each cycle but the first is this share of the steps


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("--steps", type=int, default=19_800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("runs/speedrun"))
    return parser.parse_args()


def seconds_of_cpu() -> float:
    """Returns the processor seconds of this process and of those that it started."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    asked = options()
    torch.set_num_threads(asked.threads)
    set_seed(asked.seed)
    started = time.perf_counter(), seconds_of_cpu()

    # 1. Text: filtered pairs, subwords for both languages, ids on disk.
    files = {"source": "train.en.gz", "target": "train.de.gz"}
    corpus = CorpusSpec(files=files, languages={"source": "en", "target": "de"})
    keep = PairFilter(max_length=100, max_ratio=4)
    pairs = keep(read_pairs(corpus, asked.data), FilterReport())
    tokenizer = train_tokenizer((text for pair in pairs for text in pair), "bpe", vocab_size=SUBWORDS)
    save_tokenizers(asked.output / "tokenizer", tokenizer)
    tokenizers = load_tokenizers(asked.output / "tokenizer")
    data = encode_corpus(corpus, asked.data, tokenizers, asked.output / "encoded", keep, max_length=128)

    # 2. Model: the pre-norm Transformer at the tiny shape, from the zoo's table.
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "eos")}
    config = hf_mlnmt.config_for(
        "transformer", "tiny", vocab_size=len(tokenizer), norm_position="pre", dropout=0.2, **ids
    )
    model = AutoModelForSeq2SeqLM.from_config(config)

    # 3. Training: the weights at the ends of the learning rate's cycles are kept, and their mean is the model.
    cycle = max(1, round(asked.steps * SHARE))
    arguments = Seq2SeqTrainingArguments(
        str(asked.output / "training"),
        max_steps=asked.steps,
        learning_rate=5e-3,
        weight_decay=0.2,
        adam_beta2=0.98,
        bf16=computes_bfloat16(on_cpu=True),
        use_cpu=True,
        save_steps=cycle,
        save_total_limit=CYCLES,
        logging_steps=max(1, asked.steps // 50),
        seed=asked.seed,
        report_to="none",
    )
    schedule = Schedule("linear", warmup=asked.steps // 20, total=asked.steps, restarts=CYCLES - 1, restart_steps=cycle)
    task = Task(Corpora([data]), Translation(tokenizer.pad_token_id, label_smoothing=0.1))
    trainer = TranslationTrainer(
        model,
        arguments,
        task,
        Batches(tokens=TOKENS),
        schedule,
        save_extras=lambda folder: save_tokenizers(folder, tokenizer),
    )
    trainer.train()
    saved = sorted((asked.output / "training").glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))
    model.load_state_dict(average_checkpoints(saved[-CYCLES:]), strict=False)

    # 4. The test set, with five beams.
    translate = TranslationPipeline(model.eval(), tokenizer)
    results = {}
    for name in ("val", "test_2016_flickr"):
        source, reference = ([*read_lines(asked.data / f"{name}.{code}.gz")] for code in ("en", "de"))
        output = translate(source, num_beams=5, length_penalty=1.0)
        (asked.output / f"{name}.de").write_text("\n".join(output) + "\n", encoding="utf-8")
        scores = score(output, [reference], protocol="classic", language="de", metrics=["bleu"], bootstrap=0)
        results[name] = scores.metrics["BLEU"]
    wall, cpu = time.perf_counter() - started[0], seconds_of_cpu() - started[1]
    print(f"seed {asked.seed}, {asked.steps:,} steps: {wall / 60:.1f} minutes, {cpu / 60:.1f} CPU minutes")
    for name, bleu in results.items():
        print(f"{name}: {bleu.score:.2f}  {bleu.signature}")


if __name__ == "__main__":
    main()
