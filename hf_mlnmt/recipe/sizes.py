"""Chooses a recipe for a corpus given as two files, by the corpus's size and by the machine (docs/training.md).

`SIZES` has the settings for each size of corpus, and for each choice its reason and source, measured here or
literature. `choose` makes a recipe's content from SIZES, `tune` from TUNING, which has the settings for fine-tuning;
training/pair.py reads the corpus and runs the recipe.

Literature: Vaswani et al. 2017, arXiv:1706.03762, on millions of pairs; on 5,000 to 165,000 Sennrich and Zhang 2019,
arXiv:1905.11901, and Araabi and Monz 2020, arXiv:2011.02266.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import base_language, language_in, language_tag, pair_of_name, same_language
from hf_mlnmt.data.corpus import FORMATS
from hf_mlnmt.data.formats import PACKERS, format_of
from hf_mlnmt.recipe.schema import LANGUAGE

TAG = "<bt>"
BACKWARD, FORWARD = "backward", "forward"  # names of the two rounds of back-translation
# synthetic pairs for each other pair; on Multi30k 4 was the best of 0.5 to 4 (docs/monolingual.md)
MOST_SYNTHETIC = 4.0
FILTERS: dict[str, Any] = {"max_length": 200, "max_ratio": 4, "drop_duplicates": True}
# Shares of changed pairs (augment), which help text as people write it and cost nothing (docs/studies/decoding.md).
AUGMENT = {"typos": 0.04, "unpunctuated": 0.04, "emoji": 0.02, "sentences": 0.04}
# Subwords for each word, and share of a batch that is no padding, both measured on Multi30k's German side (10,000
# subwords, batches of 1,024 tokens); each end of sentence counts as a word and as a subword.
SUBWORDS_PER_WORD, FILLED = 1.27, 0.97
AT_ONCE, MOST_STEPS, AVERAGED = 4096, 100_000, 5  # most target tokens of a batch; most steps; averaged checkpoints


@dataclass(frozen=True)
class Setting:
    """The settings that one size of corpus is trained with on one kind of machine.

    tokens: of the target in an optimizer step, of all processes together.
    epochs: of the whole training; each of `restarts` cycles, whose ends are averaged, has `cycle` of them.
    """

    shape: str
    dropout: float
    vocabulary: int
    tokens: int
    optimizer: dict[str, Any]
    schedule: str
    warmup: int
    epochs: float
    why: dict[str, str]
    restarts: int = 0
    cycle: float = 0.0


@dataclass(frozen=True)
class Size:
    """A size of corpus, of about `pairs` and fewer than `below` distinct pairs after filters, with its settings."""

    pairs: int
    below: float
    gpu: Setting
    cpu: Setting


MULTI30K = "results/multi30k-ende-settings"
_DECAY = {"name": "adamw", "learning_rate": 5.0e-3, "betas": [0.9, 0.98], "clip": 1.0, "weight_decay": 0.2}
_ADAM = {"name": "adam", "learning_rate": 7.0e-4, "betas": [0.9, 0.98], "eps": 1.0e-9, "clip": 1.0}

_CAPTIONS = Setting(
    shape="tiny",
    dropout=0.2,
    vocabulary=10_000,
    tokens=1024,
    optimizer=_DECAY,
    schedule="linear",
    warmup=1000,
    epochs=44,
    restarts=5,
    cycle=4,
    why={
        "model": f"measured on Multi30k's 29,000 en-de captions: more dropout or post-norm were no better ({MULTI30K})",
        "vocabulary": f"measured on these captions: 10,000 before 4,000 and 16,000 ({MULTI30K})",
        "optimizer": f"measured on these captions: weight decay 0.2 gave 1.5 BLEU ({MULTI30K})",
        "steps": f"measured on these captions: 24 epochs, five cycles of four averaged; 50 were no better ({MULTI30K})",
    },
)
MULTI30K_5000 = "results/multi30k-ende-5000-pairs"
_FEW = replace(
    _CAPTIONS,
    dropout=0.3,
    vocabulary=8000,
    warmup=300,
    epochs=60,
    cycle=5,
    why={
        "model": f"measured on 5,000 en-de captions: 22.4 BLEU on theirs, with dropout 0.4 22.6 ({MULTI30K_5000})",
        "vocabulary": f"measured on these captions: 21.0 BLEU, 20.4 with 4,000, 18.8 with 2,000 ({MULTI30K_5000})",
        "optimizer": f"as measured on 29,000 captions ({MULTI30K})",
        "steps": f"measured on these captions: 22.4 BLEU, 21.0 after 17 epochs ({MULTI30K_5000})",
    },
)
_TALKS = Setting(
    shape="small",
    dropout=0.3,
    vocabulary=10_000,
    tokens=4096,
    optimizer=_ADAM | {"learning_rate": 1.0e-3},
    schedule="cosine",
    warmup=4000,
    epochs=40,
    why={
        "model": "fewer layers, more dropout than base (Araabi and Monz 2020); the shape of the setups iwslt-*",
        "vocabulary": "fewer than base has (Sennrich and Zhang 2019); the number is ours, not measured",
        "optimizer": "as in the setups iwslt-* (docs/training.md); not measured here",
        "steps": "ours, not measured",
    },
)
_NEWS = Setting(
    shape="base",
    dropout=0.2,
    vocabulary=20_000,
    tokens=16_384,
    optimizer=_ADAM,
    schedule="cosine",
    warmup=4000,
    epochs=30,
    why={
        "model": "the base Transformer (Vaswani et al. 2017), dropout as in the setup wmt16-roen; not measured here",
        "vocabulary": "as in the setup wmt16-roen (612,000 pairs)",
        "optimizer": "Adam with the peak that Vaswani et al. 2017 reach with warm-up 4,000",
        "steps": "about as many tokens a step as in the setup wmt16-roen; the epochs are ours, not measured",
    },
)
_WEB = replace(
    _NEWS,
    dropout=0.1,
    vocabulary=32_000,
    tokens=24_576,
    schedule="inverse_sqrt",
    epochs=20,
    why={
        "model": "the base Transformer with dropout 0.1 (Vaswani et al. 2017)",
        "vocabulary": "literature: 32,000 to 37,000 (Vaswani et al. 2017)",
        "optimizer": "Adam, warm-up 4,000, inverse square root (Vaswani et al. 2017)",
        "steps": "literature: 100,000 steps of 25,000 tokens, the last five averaged (Vaswani et al. 2017)",
    },
)


def _on_cpu(setting: Setting, epochs: float) -> Setting:
    """Returns the setting for a CPU: the tiny shape and small batches, for a training of a night or two."""
    why = {
        "model": "this machine has no GPU: the tiny shape, some 4,000 tokens a second on a core",
        "optimizer": f"as for the tiny shape on Multi30k ({MULTI30K}); not measured at this size",
        "steps": "this machine has no GPU: fewer epochs, 100,000 steps at most; not measured at this size",
    }
    small = replace(_CAPTIONS, restarts=0, schedule="cosine", optimizer=_DECAY | {"learning_rate": 3.0e-3})
    vocabulary = min(setting.vocabulary, 16_000)
    return replace(
        small, dropout=0.1, vocabulary=vocabulary, tokens=2048, warmup=2000, epochs=epochs, why=setting.why | why
    )


SIZES = (
    Size(5_000, 12_000, _FEW, _FEW),
    Size(30_000, 80_000, _CAPTIONS, _CAPTIONS),
    Size(200_000, 450_000, _TALKS, _on_cpu(_TALKS, 15)),
    Size(1_000_000, 3_000_000, _NEWS, _on_cpu(_NEWS, 6)),
    Size(10_000_000, math.inf, _WEB, _on_cpu(_WEB, 1)),
)


# Fine-tuning: (pairs, epochs, target tokens in a step); a corpus has the first row with more pairs than its own.
TUNING = ((500, 70, 512), (5_000, 20, 512), (50_000, 8, 2048), (math.inf, 3, 4096))
RATE, WIDTH = 1e-3, 192  # the learning rate of a model of this width; a wider one has RATE * (WIDTH / its width) ** 2
FEW = "results/fine-tuning"


@dataclass(frozen=True)
class Measured:
    """The size of a corpus after filters: its distinct pairs; the words of their targets, with one for each end."""

    pairs: int
    words: int


@dataclass(frozen=True)
class Machine:
    """A machine: whether it has an accelerator; how many processes train side by side; cores of its CPU."""

    gpu: bool
    processes: int = 1
    cores: int = 1

    def __str__(self) -> str:
        many = self.processes > 1
        idle = "" if self.gpu or many or self.cores < 2 else f" (of {self.cores} cores; --processes 2 is faster)"
        return f"{'a GPU' if self.gpu else 'a CPU'}, {self.processes} process{'es' * many}{idle}"


def choose(corpus: Measured, machine: Machine) -> tuple[dict[str, Any], list[str]]:
    """Chooses model, tokenizer, batches and budget for a corpus: keys of a recipe, and a line with each reason."""
    size = next(size for size in SIZES if corpus.pairs < size.below)
    chosen, processes = size.gpu if machine.gpu else size.cpu, machine.processes
    accumulate = max(1, round(chosen.tokens / (AT_ONCE * processes)))
    tokens = chosen.tokens // (accumulate * processes)
    epoch = max(1.0, corpus.words * SUBWORDS_PER_WORD / (chosen.tokens * FILLED))
    scale = min(1.0, MOST_STEPS / (chosen.epochs * epoch))
    cycle = max(1, _rounded(chosen.cycle * epoch * scale)) if chosen.restarts else 0
    first = _rounded((chosen.epochs - chosen.restarts * chosen.cycle) * epoch * scale)
    if cycle:  # whole cycles, so that evaluations, one a cycle, are at the cycles' ends
        first = max(1, round(first / cycle)) * cycle
    first = max(first, 10)
    warmup = max(1, min(chosen.warmup, first // 5))
    steps = first + chosen.restarts * cycle
    every = cycle or max(1, steps // 12)
    average = chosen.restarts + 1 if chosen.restarts else AVERAGED
    schedule: dict[str, Any] = {"name": chosen.schedule, "warmup": warmup}
    if chosen.restarts:
        schedule |= {"restarts": chosen.restarts, "restart_steps": cycle}
    content = {
        "model": {
            "system": "transformer",
            "shape": chosen.shape,
            "settings": {"norm_position": "pre", "dropout": chosen.dropout},
        },
        "tokenizer": {"kind": "bpe", "vocab_size": chosen.vocabulary, "joint": True},
        "batch": {"tokens": tokens, "accumulate": accumulate, "side": "target"},
        "optimizer": dict(chosen.optimizer),
        "schedule": schedule,
        "budget": {"steps": steps},
        "precision": {"dtype": "auto"},
        "evaluation": {"every": every, "metrics": ["bleu", "chrf"], "best": "bleu"},
        "checkpoints": {"keep": max(average, 5), "average": average},
    }
    optimizer = f"{chosen.optimizer['name']}, learning rate {chosen.optimizer['learning_rate']:g}, {chosen.schedule}"
    restarts = f", {chosen.restarts} short cycles of {cycle:,} at the end" if chosen.restarts else ""
    each = f" in {accumulate} batches" if accumulate > 1 else ""
    lines = [
        f"size: {corpus.pairs:,} distinct pairs are trained as the table's {size.pairs:,} (docs/training.md)",
        f"machine: {machine}; --dry-run estimates the time",
        f"model: transformer, {chosen.shape} shape, pre-norm, dropout {chosen.dropout:g}: {chosen.why['model']}",
        f"vocabulary: {chosen.vocabulary:,} subwords of both sides: {chosen.why['vocabulary']}",
        f"optimizer: {optimizer}: {chosen.why['optimizer']}",
        f"steps: {steps:,} of {chosen.tokens:,} target tokens{each}{restarts}, about {steps / epoch:.1f} epochs: "
        f"{chosen.why['steps']}",
    ]
    return content, lines


def tune(corpus: Measured, machine: Machine, model: str, width: int | None) -> tuple[dict[str, Any], list[str]]:
    """Chooses how a trained model is fine-tuned: keys of a recipe, and a line with each reason.

    model: a folder or Hub name. width: its d_model, if it says one.
    """
    epochs, step = next((epochs, tokens) for below, epochs, tokens in TUNING if corpus.pairs < below)
    tokens = max(1, step // machine.processes)
    steps = max(10, _rounded(epochs * corpus.words * SUBWORDS_PER_WORD / (step * FILLED)))
    rate = float(f"{RATE * min(1, (WIDTH / (width or WIDTH)) ** 2):.1g}")
    content = {
        "init_from": model,
        "tokenizer": {"path": model},
        "batch": {"tokens": tokens, "side": "target"},
        "optimizer": {"name": "adamw", "learning_rate": rate, "betas": [0.9, 0.98], "clip": 1.0},
        "schedule": {"name": "linear", "warmup": max(1, steps // 10)},
        "budget": {"steps": steps},
        "precision": {"dtype": "auto"},
        "evaluation": {"every": max(1, steps // 6), "metrics": ["bleu", "chrf"], "best": "bleu", "before": True},
        "checkpoints": {"keep": 3, "average": 3},
    }
    lines = [
        f"size: {corpus.pairs:,} distinct pairs, to fine-tune {model}: its weights, shape and tokenizer",
        f"machine: {machine}; --dry-run estimates the time",
        f"optimizer: adamw, learning rate {rate:g}, linear: measured on 200 pairs at width {WIDTH} ({FEW}); "
        "for wider models less, not measured",
        f"steps: {steps:,} of at most {step:,} target tokens: "
        + (f"measured on 200 pairs ({FEW})" if epochs == TUNING[0][1] else "ours, not measured"),
        "scores: those of the model as it is stand beside them as `before`, of the development set too",
    ]
    return content, lines


def _rounded(steps: float) -> int:
    """Rounds a number of steps to two significant digits."""
    digits = max(0, int(math.log10(max(steps, 1))) - 1)
    return int(round(steps, -digits))


def with_text(content: dict[str, Any], corpus: Measured, text: str, lines: int) -> list[str]:
    """Adds two rounds to a recipe's content, the first in the reverse direction; returns the plan in words. UserError
    for too few lines."""
    # 80 of 100 lines: filters may drop a fifth
    ratio = min(MOST_SYNTHETIC, math.floor(80 * lines / corpus.pairs) / 100)
    if ratio < 0.05:
        raise UserError(
            f"{text}: {lines:,} distinct sentences are too few to add to {corpus.pairs:,} pairs. Give at least a tenth "
            "as many, or leave --text out."
        )
    languages = content["languages"]
    content["tokenizer"]["tags"] = [TAG]
    limit = math.ceil(ratio * corpus.pairs / 0.8)
    content["rounds"] = {
        BACKWARD: {"reverse": True},
        FORWARD: {
            "translate": {"model": BACKWARD, "text": text, "tag": TAG, "settings": {"limit": limit}},
            "ratio": ratio,
        },
    }
    return [
        f"text: {lines:,} distinct sentences of {languages['target']}, of which at most {limit:,} are translated back; "
        f"{ratio:g} synthetic pairs to each parallel one, tagged {TAG} (docs/monolingual.md: on 10,000 pairs 1:4 was "
        "the best ratio, and a tag gained)",
        f"plan: 1. {BACKWARD}, {languages['target']}-{languages['source']}, on the pairs; 2. it translates the text; "
        f"3. {FORWARD}, {languages['source']}-{languages['target']}, on both: the model to use",
    ]


def stem_of(path: str) -> str:
    """Returns a file's name without its language and endings: train of train.en.gz, else the whole name."""
    name, code = Path(path).name, language_in(path)
    parts = [part for part in name.split(".") if f".{part.lower()}" not in (*PACKERS, ".txt", ".text", ".tok")]
    if code not in parts or len(parts) == 1:
        return Path(name).stem.removesuffix(".txt")
    last = len(parts) - 1 - parts[::-1].index(code)
    return ".".join(parts[:last] + parts[last + 1 :])


def check_texts(option: str, files: tuple[str, str]) -> None:
    """Raises UserError if one of two files is an option, or a table instead of a file of text. Twice the same name is
    one file of both languages, which may be a table."""
    if files[0] == files[1]:
        return
    for path in files:
        if path.startswith("--"):
            raise UserError(f"{option}: expected two files, and {path} is an option. Give the sources' and targets'.")
        if format_of(Path(path)) in FORMATS:
            raise UserError(
                f"{option}: {path} is a table, and two files of text are expected, line by line. Make a file of each "
                f"of its columns, or write a recipe with {{path: {path}}} in the files' place (docs/training.md)."
            )


def languages_of(files: tuple[str, str], named: tuple[str | None, str | None]) -> tuple[str, str]:
    """Returns source and target: as `named` (--from, --to), else of the files' names. UserError for a missing one."""
    codes: list[str] = []
    check_texts("--pair", files)
    one, both = files[0] == files[1], pair_of_name(files[0]) or (None, None)
    for path, code, option, of_both in zip(files, named, ("--from", "--to"), both, strict=True):
        said = language_in(path) if not one else of_both if code is None else None
        if code is None and said is None and one:
            raise UserError(f"--pair: which languages of {path}? Add their codes, as in --from en --to de.")
        if code is None and said is None:
            raise UserError(
                f"--pair: the name of {path} says no language, as train.en would. Add {option} with its code, as in "
                "--from en --to de."
            )
        if code is not None and not LANGUAGE.fullmatch(code):
            raise UserError(f"{option} {code}: expected a language's code, such as de or pt-BR.")
        if not same_language(code, said):
            raise UserError(
                f"{option} {code}: the name of {path} says {said}. Give the source's file first and the target's "
                f"second, leave {option} out, or rename the file."
            )
        codes.append(str(code or said))
    source, target = codes
    if language_tag(source) == language_tag(target):
        raise UserError(
            f"--pair: both sides are {source}: {files[0]} and {files[1]}. Give one file of each language, or say with "
            "--from and --to what they are."
        )
    pair = pair_of_name(files[0])
    if not one and pair and not {*map(base_language, codes)} <= {*map(base_language, pair)} and not any(named):
        raise UserError(
            f"--pair: the name of {files[0]} says {pair[0]} and {pair[1]}, and the files are {source} and {target}. "
            "Say with --from and --to what they are."
        )
    return source, target


def to_yaml(content: dict[str, Any], lines: list[str]) -> str:
    """Returns the text of the recipe's file, to copy and change: the choices as comments, then the keys."""
    comments = "".join(f"# {line}\n" for line in lines)
    return f"{comments}\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}"
