"""The keys of a recipe, each once: its type, range, choices and default, and what it means.

A section is a dataclass that pydantic reads (hf_mlnmt/common/keys.py), and a key is a field of it, written as
`name: type = key(default, "help")`. checks.py has the rules between keys. studies/keys_page.py makes docs/recipes.md
and the JSON schema of editors, also of keys in the dataclasses of hf_mlnmt/data that `_keys_of` names.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, TypeAdapter, WithJsonSchema

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import REQUIRED, Range, Section, YAMLDumper, key
from hf_mlnmt.data.changes import Augment
from hf_mlnmt.data.placeholders import checked_patterns
from hf_mlnmt.zoo.records import run_name

Side = Literal["source", "target", "both"]
TextSide = Literal["source", "target"]
ScheduleName = Literal["cosine", "inverse_sqrt", "linear", "newbob", "constant"]

# Names that become names of files: letters, digits, and some signs between them.
FILE_NAME = re.compile(r"\w[\w.+-]{0,99}")
TASK_NAME = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
LANGUAGE = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*")
# Only names with an owner: a name without an owner, such as "data", may be that of a local folder.
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
MAIN_DEV = "dev"  # the name of the development set data.dev
TASK_KEY = re.compile(f"(?!{MAIN_DEV}$){TASK_NAME.pattern}")

# Types of values. Numbers above the upper ends are slips of the hand, and would fill the memory or the disk.

Share = Annotated[float, Range(0, 1, below=True)]
Positive = Annotated[float, Range(0, 10**6, above=True)]
Temperature = Annotated[float, Range(0.1, 1000)]
Factor = Annotated[float, Range(0, 1, above=True)]
Count = Annotated[int, Range(0, 10**9, above=True)]
Million = Annotated[int, Range(0, 10**6, above=True)]
Thousand = Annotated[int, Range(0, 1000, above=True)]
Hundred = Annotated[int, Range(0, 100, above=True)]
Subwords = Annotated[int, Range(0, 100_000, above=True)]


def _matches(pattern: re.Pattern[str], expected: str) -> AfterValidator:
    """Returns a validator of text that the whole pattern matches; `expected` says in its message what is."""

    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise UserError(f"expected {expected}, not {text!r}.")
        return text

    return AfterValidator(check)


def _placeholders(placeholders: dict[str, str]) -> dict[str, str]:
    for token, pattern in placeholders.items():
        given = checked_patterns(pattern, token)
        if len(given) > 1 or list(placeholders.values()).count(pattern) > 1:
            raise UserError(f"{token}: {pattern!r}: expected one name or regular expression, and no other token's.")
    return placeholders


def truth(value: Any) -> Any:
    """Returns True for "yes" and "on", False for "no" and "off", which YAML is read with as text; else the value."""
    return {"yes": True, "on": True, "no": False, "off": False}.get(str(value).lower(), value)


# Ranges of some fields of model configs (model.settings) and of `arguments`, whose fields are not listed here.
SIZES = {name: Range(0, 1000, above=True) for name in ("encoder_layers", "decoder_layers")}
SIZES |= {name: Range(0, 10**6, above=True) for name in ("encoder_ffn_dim", "decoder_ffn_dim")}
SIZES |= {"d_model": Range(0, 65_536, above=True), "max_position_embeddings": Range(0, 10**6, above=True)}
WORKERS = {"dataloader_num_workers": Range(0, 1000)}


def _settings(settings: dict[str, Any]) -> dict[str, Any]:
    for name, value in settings.items():
        allowed = (SIZES | WORKERS).get(name, Range(-math.inf))
        if isinstance(value, int | float) and (problem := allowed.problem(value)):
            raise UserError(f"{name}{problem}")
    return {name: truth(value) for name, value in settings.items()}


def _arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    for said_by, names in SAID_BY_KEYS.items():
        for name in names.split():
            if name in arguments:
                raise UserError(f"{name}: this is what {said_by} says. Set that in its place.")
    return _settings(arguments)


def _keys_of(*classes: str) -> WithJsonSchema:
    """Names the dataclasses ("module:class") of which one has the keys of a section, for the documentation alone."""
    return WithJsonSchema({"keys_of": classes})


def _limits(ranges: Mapping[str, Range]) -> WithJsonSchema:
    numbers = {name: TypeAdapter(Annotated[float, limits]).json_schema() for name, limits in ranges.items()}
    return WithJsonSchema({"type": "object", "properties": numbers})


Language = Annotated[str, _matches(LANGUAGE, "a language's code, such as de or pt-BR")]
HubName = Annotated[str, _matches(HUB_NAME, "a name of the Hub, owner/name")]
TestName = Annotated[str, _matches(FILE_NAME, "a name that files can have: up to 100 letters, digits and _ . + -")]
TaskName = Annotated[
    str, _matches(TASK_KEY, "a task's name: letters, digits, single '-', and not 'dev', which is data.dev")
]
# A corpus of pairs or, for an objective that reads text, of text of one language.
Corpus = Annotated[dict[str, Any], _keys_of("hf_mlnmt.data.corpus:CorpusSpec", "hf_mlnmt.data.corpus:TextSpec")]
Corpora = Annotated[list[Corpus], Field(min_length=1)]
Filter = Annotated[dict[str, Any], _keys_of("hf_mlnmt.data.filters:PairFilter")]
Processing = Annotated[dict[str, Any], _keys_of("hf_mlnmt.data.processing:TextProcessing")]
Method = Annotated[dict[str, Any], _keys_of("hf_mlnmt.generation.synthetic.methods:Method")]
Objective = Annotated[str | dict[str, Any], _keys_of("OBJECTIVES")]
ModelSettings = Annotated[dict[str, Any], AfterValidator(_settings), _limits(SIZES)]
Arguments = Annotated[dict[str, Any], AfterValidator(_arguments), _limits(WORKERS)]
Changes = Annotated[dict[str, Any], Field(min_length=1), _keys_of(f"{__name__}:Recipe")]
Models = str | Annotated[list[str], Field(min_length=1)]
Parts = dict[Literal["encoder", "decoder", "embeddings", "all"], str]

# Fields of Seq2SeqTrainingArguments that a key of the recipe sets: under `arguments` they would undo it, or do nothing.
SAID_BY_KEYS = {
    "--output": "output_dir",
    "starting the same command again": "resume_from_checkpoint",
    "label_smoothing": "label_smoothing_factor",
    "seed": "seed data_seed",
    "batch.tokens": "per_device_train_batch_size group_by_length train_sampling_strategy",
    "batch.accumulate": "gradient_accumulation_steps",
    "optimizer": "learning_rate adam_beta1 adam_beta2 adam_epsilon weight_decay max_grad_norm",
    "schedule": "lr_scheduler_type warmup_steps warmup_ratio",
    "budget": "max_steps num_train_epochs",
    "evaluation.every": "eval_steps eval_strategy save_steps save_strategy",
    "evaluation.best": "metric_for_best_model greater_is_better",
    "checkpoints.keep": "save_total_limit",
    "precision.dtype": "bf16 fp16",
    "precision": "gradient_checkpointing activation_checkpointing",
    "logging.every": "logging_steps",
    "logging.trackers": "report_to",
}

# Licences that the Hub takes in a card's metadata, by https://huggingface.co/docs/hub/repositories-licenses.
_LICENCES = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0
lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl
openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma
unknown other
"""
LICENCES = frozenset(_LICENCES.split())


@dataclass
class Languages(Section):
    """The languages: codes of two letters, or a pretrained model's own, as eng_Latn. A corpus may name others."""

    source: Language = key(REQUIRED, "Code of the language that is translated from.")
    target: Language = key(REQUIRED, "Code of the language that is translated into.")


@dataclass
class Data(Section):
    """The corpora. Paths are relative to --data."""

    train: Corpus | Corpora | None = key(None, "The training corpus, or a list of them; or use tasks.")
    dev: Corpus | None = key(None, "The development set, a corpus.")
    test: dict[TestName, Corpus] = key({}, "The test sets: name -> corpus.")
    filters: Filter = key({}, "What is dropped from the training corpora.")
    drop_test_pairs: bool = key(
        False, "Drop pairs with a side that a dev or test set holds, but for case and punctuation."
    )
    processes: Thousand | None = key(None, "Processes that encode the corpora; unless told, one for each core.")
    max_length: Subwords = key(256, "Training pairs with more subwords on a side are dropped, and counted.")
    temperature: Temperature | None = key(None, "Corpora are drawn with a probability ~ size ** (1 / temperature).")
    placeholders: Annotated[dict[str, str], AfterValidator(_placeholders)] = key(
        {},
        "Tokens for parts that are kept, as {<number>: number, <code>: '[A-Z]+-[0-9]+'}: url, email, number, tag, "
        "placeholder, or a regular expression. In every other pair with such parts, those on both sides become tokens.",
    )
    memory: Models | None = key(
        None,
        "Translation memories, files as of translate --memory, which may be the corpus itself: the translation of the "
        "most similar other text stands behind each source, of dev too. The model then reads those of --memory.",
    )
    no_match: Share = key(0.3, "Of memory: the share of training pairs that are shown without a match.")
    other_match: Share = key(0.1, "Of memory: the share of training pairs that are shown with another pair's match.")
    bpe_dropout: Share = key(0.0, "Words are cut anew in every epoch, each merge left out with this probability.")
    bpe_dropout_epochs: Count | None = key(None, "bpe_dropout ends after so many epochs.")
    name: str | None = key(None, "The name of the data in the model card.")
    licence: str | None = key(None, "The licence of the data in the model card, an identifier of the Hub.")
    domain: str | None = key(None, "What the text is, such as image captions: the model card begins with it.")
    datasets: list[HubName] = key([], "Data sets of the Hub, owner/name, that hold the same text as the files.")

    def __post_init__(self) -> None:
        if self.bpe_dropout_epochs is not None and not self.bpe_dropout:
            raise UserError("bpe_dropout_epochs: they end bpe_dropout: set that too (0.1 is usual), or leave both out.")
        if self.memory and self.bpe_dropout:
            raise UserError("memory: matches are encoded once: leave memory or bpe_dropout out.")
        if self.no_match + self.other_match > 1:
            raise UserError("no_match and other_match: they are shares of the same pairs: together at most 1.")


@dataclass
class Directions(Section):
    """Short for a task for each pair of languages; file names have `<language>` for the code (docs/multilingual.md)."""

    between: list[str] = key(REQUIRED, "The codes of the languages.")
    train: str = key(REQUIRED, "The training file of a language: line i translates line i of every other.")
    dev: str | None = key(None, "The development file of a language; unless told data.dev alone is measured.")
    test: dict[str, str] = key({}, "The test sets: name -> the file of a language.")
    pairs: str | list[str] = key("all", "Trained pairs: all, to-X, from-X or with-X of a language, or a list: [de-en].")
    leave_out: list[str] = key([], "Pairs that are tested but not trained, in both directions (zero-shot).")
    copies: bool = key(False, "Also train each language into itself, on the same files.")
    shares: dict[str, float] = key({}, "Shares of single tasks, as {de-en: 2}; the others' are 1.")


@dataclass
class TaskSection(Section):
    """A task: an objective, its corpora and its share of the batches."""

    data: Corpus | Corpora = key(REQUIRED, "Corpora as in data.train; of text for an objective that reads text.")
    objective: Objective = key("translation", "The objective: a name, or {name: ..., setting: ...}.")
    share: Annotated[float, Range(0)] = key(1.0, "Its share of the batches, relative to other tasks'; 0 leaves it out.")
    languages: Languages | None = key(None, "The languages of its corpora; unless told, the recipe's.")
    dev: Corpus | None = key(None, "A development set of its own.")


@dataclass
class Fuse(Section):
    """A model fused of finished models (modeling/fusion.py): folders, relative to --data or not, or Hub names."""

    translation: Models = key(REQUIRED, "The translation model, or several.")
    language_model: Models = key(REQUIRED, "The language model, or several.")
    alpha: float = key(1.0, "The scale of the translation models.")
    beta: float = key(0.1, "The scale of the language models.")
    normalization: Literal["symbol", "sequence"] = key("sequence", "symbol: renormalises each symbol; sequence: none.")
    translation_weights: list[float] | None = key(None, "A weight for each translation model; unless told, equal ones.")
    language_weights: list[float] | None = key(None, "A weight for each language model; unless told, equal ones.")

    def __post_init__(self) -> None:
        from hf_mlnmt.modeling.fusion import check_scales  # torch is imported only where something is fused

        check_scales(self.alpha, self.beta, self.normalization)


@dataclass
class Model(Section):
    """The model that is trained: a system of the zoo at a shape, or a config of a file."""

    record: str | None = key(None, "Instead of system and shape: `modeling/<record>.json`, beside the recipe's folder.")
    system: str | None = key(None, "A system of the zoo, with shape; or one's own, package.module:NameConfig.")
    shape: str = key("base", "The sizes of the system: tiny, small, base ...")
    settings: ModelSettings = key({}, "Fields of the model's config that replace those of the record or shape.")
    fuse: Fuse | None = key(None, "Instead of system: a fused model, which is trained further.")
    add_to: str | None = key(None, "Instead of system: a model of many languages; new languages of tasks are added.")


@dataclass
class TranslationSection(Section):
    """The synthetic corpus of a round, as `hf-mlnmt back-translate` makes it."""

    model: str | None = key(REQUIRED, "An earlier round's name, a folder or Hub name; null for the method copied.")
    text: str | list[str] = key(REQUIRED, "Files of one sentence a line, relative to --data.")
    method: str | Method = key("beam", "The method: a name, or {name: ..., option: ...}.")
    forward: bool = key(False, "The text is the source side, not the target side.")
    tag: str | None = key(None, "A token that is put before every synthetic source, such as `<bt>`.")
    settings: dict[str, Any] = key({}, "How much is translated, what is dropped: limit, drop, references, reverse ...")


@dataclass
class Round(Section):
    """One of several trainings that use models of earlier ones (training/rounds.py)."""

    reverse: bool = key(False, "Train in the other direction than the recipe's.")
    translate: TranslationSection | None = key(None, "What is translated for this round.")
    ratio: Positive | None = key(None, "Synthetic pairs for each pair of data.train.")
    alone: bool = key(False, "Train only on the translations, without data.train, as a student of its teacher's.")
    after: str | None = key(None, "Train an earlier round's model further, on what was translated for it.")
    recipe: Changes | None = key(None, "Keys of the recipe that are different in this round.")


@dataclass
class Keep(Section):
    """Text that the model of init_from translates at first; these pairs are trained on too, so that it forgets less."""

    text: str | list[str] = key(REQUIRED, "Files of one sentence a line, of the source language, relative to --data.")
    share: Annotated[float, Range(0, 0.99, above=True)] = key(0.1, "The share of the batches with this text.")
    languages: Languages | None = key(None, "The direction that is kept; unless told, the recipe's.")
    limit: Annotated[int, Range(1, 10**9)] | None = key(None, "So many lines are translated; unless told, all.")


@dataclass
class Adapter(Section):
    """An adapter of PEFT (extra `peft`), which is trained instead of the weights of init_from."""

    kind: Literal["lora"] = key("lora", "LoRA: to a layer's weight W is added alpha / r B A.")
    r: Thousand = key(16, "The rank: A has so many rows, B so many columns.")
    alpha: Annotated[float, Range(0, 10**4, above=True)] = key(32.0, "The factor of B A, before it is divided by r.")
    dropout: Share = key(0.0, "The dropout of A's inputs.")
    modules: str | list[str] = key(
        "all-linear", "all-linear, names of layers ([qkv_proj, fc1]) or a regular expression."
    )


@dataclass
class Tokenizer(Section):
    """The tokenizer: trained on the training corpora, or loaded from `path`."""

    path: str | None = key(None, "Use this folder's tokenizer or SentencePiece .model; else that of add_to or fuse.")
    kind: Literal["bpe", "unigram"] = key("bpe", "The kind of subwords.")
    vocab_size: Million = key(8000, "The number of subwords.")
    sample: Annotated[int, Range(0, 10**10, above=True)] = key(10**7, "Most lines it is trained on, drawn by the seed.")
    joint: bool = key(True, "One vocabulary for both sides; false: one a side, or a language in a model of many.")
    byte_fallback: bool = key(True, "Characters never seen become bytes; false: they become `<unk>`.")
    alphabet_limit: Million | None = key(
        None, "Most characters in the vocabulary; unless told, all, or with byte_fallback an eighth of vocab_size."
    )
    keep: list[str] = key([], "Text that is never cut, as `{name}` or `<url>`; `digits`: each digit is a piece.")
    mask: bool = key(False, "Add `<mask>` to the tokenizer of path where it lacks it; those trained here have it.")
    languages: list[Language] = key([], "Codes of target languages, told before a source by `<2de>` and so on.")
    tags: list[str] = key([], "Tokens that corpora may put before their sources, such as `<bt>`.")
    processing: dict[TextSide, Processing] = key({}, "What is done to the text of each side before the tokenizer.")


@dataclass
class Batches(Section):
    """The size of batches: an optimizer step sees at most tokens x accumulate x processes."""

    tokens: Annotated[int, Range(0, 10**7, above=True)] = key(2048, "Most tokens of a batch, padding included.")
    side: Side = key("target", "The side whose tokens are counted; both counts the longer of the two.")
    accumulate: Annotated[int, Range(0, 10**5, above=True)] = key(1, "Batches per optimizer step.")
    max_sentences: Million | None = key(None, "A batch has at most so many sentences.")
    buckets: Thousand | None = key(None, "Most shapes that batches are padded to, each a CUDA graph; 64 is usual.")
    temperature: Temperature | None = key(None, "Each share is multiplied by the task's pairs ** (1 / temperature).")


@dataclass
class Optimizer(Section):
    """The optimizer."""

    name: Literal["adam", "adamw", "sgd"] = key("adam", "The optimizer; weight_decay needs adamw.")
    learning_rate: Annotated[float, Range(0, 1000, above=True)] = key(1e-3, "The peak of the learning rate.")
    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] = key([0.9, 0.98], "Adam's two decay rates.")
    eps: Annotated[float, Range(0, 1, above=True)] = key(1e-9, "Adam's epsilon.")
    weight_decay: Annotated[float, Range(0, 100)] = key(0.0, "The weight decay of adamw.")
    clip: Annotated[float, Range(0, 10**6)] = key(1.0, "The gradient's norm is clipped to this; 0 does not clip.")

    def __post_init__(self) -> None:
        if self.name == "adam" and self.weight_decay:
            raise UserError("weight_decay: is for adamw: set name to adamw.")


@dataclass
class LearningRate(Section):
    """The learning rate of each step, as factors of optimizer.learning_rate (training/arguments.py)."""

    name: ScheduleName = key("cosine", "The schedule after the warm-up.")
    warmup: Annotated[int, Range(0, 10**9)] = key(4000, "Steps in which the rate rises in a straight line.")
    floor: Annotated[float, Range(0, 1)] = key(0.0, "The factor never falls below this after the warm-up.")
    factor: Factor = key(0.8, "newbob: multiplies the rate when the dev loss stops falling.")
    patience: Count = key(2, "newbob: evaluations without a better dev loss before the rate is multiplied.")
    threshold: Share = key(0.0, "newbob: a dev loss is better when it is below best * (1 - threshold).")
    restarts: Annotated[int, Range(0, 1000)] = key(0, "cosine and linear: short cycles at the end, to be averaged.")
    restart_steps: Annotated[int, Range(0, 10**9)] = key(0, "Steps of each of these cycles.")
    restart_factor: Factor = key(0.4, "The factor that each of these cycles begins with.")

    def __post_init__(self) -> None:
        if self.restarts and (self.name not in ("cosine", "linear") or self.restarts < 0 or self.restart_steps < 1):
            raise UserError(
                f"restarts is {self.restarts}: 0 or more are expected, of the schedules cosine and linear, with "
                f"restart_steps of 1 or more; this is {self.name} with {self.restart_steps}."
            )

    def ends(self, total: int) -> list[int]:
        """Returns the steps after which the training before the cycles of `restarts`, and each cycle, end; [] without
        cycles. UserError if the cycles are too long for `total` steps."""
        if not self.restarts:
            return []
        first = total - self.restarts * self.restart_steps
        if first <= self.warmup:
            raise UserError(
                f"restarts: {self.restarts} cycles of {self.restart_steps:,} steps and a warm-up of {self.warmup:,} do "
                f"not fit in a training of {total:,}: lower restarts, restart_steps or warmup, or train longer."
            )
        return list(range(first, total + 1, self.restart_steps))


@dataclass
class Budget(Section):
    """The length of the training: give either steps or epochs."""

    steps: Count | None = key(None, "Optimizer steps.")
    epochs: Positive | None = key(None, "Epochs of the training data.")


@dataclass
class Evaluation(Section):
    """Evaluations on the development sets, each followed by a checkpoint."""

    every: Count = key(1000, "Steps between two evaluations.")
    metrics: list[str] = key(["bleu"], "bleu, ter, chrf, or any metric of the evaluate library (docs/scores.md).")
    beams: Hundred = key(1, "Beams of the translations that are scored.")
    best: str = key(
        "bleu", "Chooses the best checkpoint: one of metrics, loss, `<task>_bleu`; loss where nothing is translated."
    )
    higher_is_better: bool | None = key(None, "Unless told: false for loss, perplexity and ter, else true.")
    patience: Count | None = key(None, "Stop after so many evaluations without a better one.")
    before: bool = key(False, "Also score the model of init_from on the test sets, beside the average and the best.")


@dataclass
class Checkpoints(Section):
    """The checkpoints that are kept and averaged."""

    keep: Thousand = key(5, "The last so many checkpoints are kept, and the best.")
    average: Thousand = key(5, "The last so many are averaged at the end.")

    def __post_init__(self) -> None:
        if self.average > self.keep:
            raise UserError(f"average: is {self.average}, but only {self.keep} are kept: raise keep.")


@dataclass
class Decoding(Section):
    """The search of the finished model, in its generation_config.json; the test sets are scored with it."""

    beams: Hundred = key(5, "The beams.")
    length_penalty: Annotated[float, Range(-100, 100)] = key(1.0, "The exponent of the length penalty.")
    length_normalization: Literal["generate", "length", "length+1", "gnmt"] = key(
        "generate", "The formula of the length penalty (docs/decoding.md)."
    )
    max_new_tokens: Subwords = key(256, "The longest translation in subwords.")


@dataclass
class Precision(Section):
    """The number formats that the steps compute in."""

    dtype: Literal["float32", "bf16", "fp16", "auto"] = key(
        "float32", "bf16 and fp16: mixed precision, weights stay float32; auto: bf16 where the machine computes in it."
    )
    gradient_checkpointing: bool = key(False, "Compute each layer again for its gradient, and keep only its input.")
    int8: bool = key(
        False, "Round as Firefox's engines do, in the forward pass: last steps of a student of system ssru."
    )

    def __post_init__(self) -> None:
        if self.int8 and (self.dtype != "float32" or self.gradient_checkpointing):
            raise UserError("int8: rounds in float32: set dtype to float32, and leave gradient_checkpointing out.")


@dataclass
class Logging(Section):
    """The logs of a training: how often it logs, and to which trackers."""

    every: Count = key(100, "Steps between two logs.")
    trackers: list[str] = key([], "tensorboard, wandb, trackio, mlflow ... whatever Trainer knows and is installed.")


@dataclass
class Recipe(Section):
    """A whole training: all its keys."""

    languages: Languages = key(REQUIRED, "The languages of the recipe.")
    data: Data = key(Data, "The corpora.")
    augment: Augment = key(Augment, "Training pairs that are shown changed (docs/training.md).")
    directions: Directions | None = key(None, "Short for tasks and test sets of many languages.")
    tasks: dict[TaskName, TaskSection] | None = key(None, "Instead of data.train: name -> task.")
    objective: Objective = key("translation", "The objective of data: a name, or {name: ..., setting: ...}.")
    model: Model = key(Model, "The model.")
    rounds: dict[str, Round] | None = key(None, "Trainings one after the other: name -> round (hf-mlnmt train).")
    init_from: str | Annotated[Parts, Field(min_length=1)] | None = key(
        None, "Weights to begin with: a folder or Hub name, or part -> folder (encoder, decoder, embeddings, all)."
    )
    keep: Keep | None = key(None, "What the model of init_from is not to forget (docs/fine-tuning.md).")
    adapter: Adapter | None = key(None, "Train an adapter of the model of init_from, and not its weights.")
    freeze: Literal["embeddings"] | None = key(None, "embeddings: leave those of init_from's model as they are.")
    tokenizer: Tokenizer = key(Tokenizer, "The tokenizer.")
    batch: Batches = key(Batches, "The size of a batch.")
    optimizer: Optimizer = key(Optimizer, "The optimizer.")
    schedule: LearningRate = key(LearningRate, "The learning rate of each step.")
    budget: Budget = key(Budget, "How long the training is.")
    label_smoothing: Share = key(0.1, "The label smoothing of every objective that names none.")
    evaluation: Evaluation = key(Evaluation, "Evaluations on the development sets.")
    checkpoints: Checkpoints = key(Checkpoints, "Which checkpoints are kept and averaged.")
    decoding: Decoding = key(Decoding, "How the finished model decodes.")
    precision: Precision = key(Precision, "The number formats of the steps.")
    logging: Logging = key(Logging, "What is logged where.")
    arguments: Arguments = key({}, "Any other field of Seq2SeqTrainingArguments.")
    reverse: bool = key(False, "Train the other direction: after all keys are read, en-de becomes de-en everywhere.")
    seed: Annotated[int, Range(0, 2**31 - 1)] = key(1, "The seed of everything that is drawn.")
    # the file that the recipe was read from
    path: Path | None = field(default=None, repr=False, metadata={"exclude": True})

    @property
    def stem(self) -> str:
        """Returns the name of the recipe's runs: its file's name, or <system>.<setup> if it is in training/<setup>/."""
        return run_name(self.path, self.model.system) if self.path else "recipe"

    def sections(self) -> dict[str, TaskSection]:
        """Returns the tasks with a share above 0; data.train is one task with the name of its objective."""
        if self.tasks is None:
            assert self.data.train is not None
            return {str(name_of(self.objective)): TaskSection(self.data.train, self.objective)}
        return {name: section for name, section in self.tasks.items() if section.share}

    def to_dict(self) -> dict[str, Any]:
        """Returns every key with its value, as plain values that YAML can hold."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "path"}

    def to_yaml(self) -> str:
        """Returns the recipe with all defaults written out."""
        return str(yaml.dump(self.to_dict(), Dumper=YAMLDumper, sort_keys=False, allow_unicode=True))


def default_keys() -> dict[str, Any]:
    """Returns the keys outside languages and data with their defaults, for keys that a stored recipe lacks."""
    keys = Recipe(languages=Languages("", "")).to_dict()
    return {key: value for key, value in keys.items() if key not in ("languages", "data")}


# Objectives: their names, and the settings that each has in a recipe. training/preparation.py names their classes.


@dataclass
class ObjectiveSettings(Section):
    """An objective without settings of its own."""


@dataclass
class SmoothedSettings(ObjectiveSettings):
    """Label smoothing of the training loss; a development set's perplexity is measured without it."""

    label_smoothing: Share | None = key(None, "Unless told, the recipe's label_smoothing.")


@dataclass
class DistillationSettings(SmoothedSettings):
    """Settings of the losses that a student learns from its teachers by (training/distillation.py)."""

    teacher: str | list[str] = key("", "A teacher's folder or Hub name, or more; the first's attention aligns words.")
    words: Annotated[float, Range(0, 1)] = key(0.0, "The share of a loss on the teachers' distribution of each word.")
    alignment: Annotated[float, Range(0, 100)] = key(0.0, "The weight of guided alignment by the teacher's attention.")

    def __post_init__(self) -> None:
        if not self.teacher or not (self.words or self.alignment):
            raise UserError("give a teacher, and words or alignment above 0.")


@dataclass
class EncoderSettings(SmoothedSettings):
    """The settings of an objective that trains an encoder."""

    tie: bool = key(False, "The projection is the source embedding, and not a parameter of the objective's own.")


@dataclass
class DistortionSettings(ObjectiveSettings):
    """Settings of the distortion that hides tokens (training/objectives.py)."""

    distorted: Annotated[float, Range(0, 1)] = key(0.15, "The share of tokens that are predicted.")
    masked: Annotated[float, Range(0, 1)] = key(0.8, "The share of these that becomes `<mask>`.")
    kept: Annotated[float, Range(0, 1)] = key(0.1, "The share of these that stays; the rest become other tokens.")
    force: bool = key(False, "Predict at least one token of each sentence; in the thesis some have none, and no loss.")

    def __post_init__(self) -> None:
        if self.masked + self.kept > 1 + 1e-9:
            raise UserError(f"masked and kept are {self.masked + self.kept:g} together: at most 1 is expected.")
        if not self.distorted:
            raise UserError("distorted must be above 0: nothing would be predicted.")


@dataclass
class PseudoEncoderSettings(DistortionSettings, SmoothedSettings):
    """Settings of pseudo-encoder: distortion and label smoothing."""


@dataclass
class ClozeSettings(PseudoEncoderSettings, EncoderSettings):
    """Settings of encoder-cloze: distortion, label smoothing and the projection."""


@dataclass
class SequenceSettings(ObjectiveSettings):
    """The settings that FusionNBest and FusionTrellis share: sums over translations of a fused model."""

    max_length: Annotated[int, Range(1)] | None = key(None, "Most tokens; unless told 2 x the longest reference + 10.")


@dataclass
class NBestSettings(SequenceSettings):
    """Settings of `FusionNBest`, which trains on n-best lists."""

    n: Annotated[int, Range(1, 1000)] = key(12, "Hypotheses of a list, and beams of its search.")
    found_by: Literal["q", "translation"] = key("q", "The search maximises q, or q of the translation models alone.")
    length_penalty: float = key(0.0, "The search's length penalty; 0: the list has the n largest q that were found.")
    reuse: Annotated[int, Range(1)] = key(1, "Uses until a list is made anew; above 1 a resumed training differs.")


@dataclass
class TrellisSettings(SequenceSettings):
    """Settings of `FusionTrellis`, which trains on beam searches with recombination."""

    beams: Annotated[int, Range(1, 1000)] = key(12, "Beams of the search.")
    k: Annotated[int, Range(0)] = key(1, "Beams that share so many last tokens are joined.")
    tolerance: Share = key(1e-6, "A sentence's search ends when its open beams have less than this part of Z.")


@dataclass(frozen=True)
class ObjectiveKey:
    """Describes an objective that a recipe can name.

    side: of its text, where the corpus names neither side nor language. translates: whether a model that is trained by
    it translates, so that its development sets are scored.
    """

    settings: type
    help: str
    reads: Literal["pairs", "text"] = "pairs"
    side: TextSide | None = None
    translates: bool = False


OBJECTIVES = {
    "translation": ObjectiveKey(SmoothedSettings, "Cross-entropy of the target, given the source.", translates=True),
    "distillation": ObjectiveKey(DistillationSettings, "Cross-entropy, and losses by teachers.", translates=True),
    "encoder-lm": ObjectiveKey(EncoderSettings, "A causal encoder predicts the next source token.", "text", "source"),
    "encoder-cloze": ObjectiveKey(ClozeSettings, "The encoder predicts distorted source tokens.", "text", "source"),
    "decoder-lm": ObjectiveKey(SmoothedSettings, "The decoder, without source, predicts a token.", "text", "target"),
    "pseudo-encoder": ObjectiveKey(
        PseudoEncoderSettings, "The whole model restores a target sentence from its distortion.", "text", "target"
    ),
    "fusion-symbol": ObjectiveKey(
        ObjectiveSettings, "Cross-entropy of a fused model, renormalised at each symbol.", translates=True
    ),
    "fusion-n-best": ObjectiveKey(NBestSettings, "log Z - s(e) of a fused model, Z by a list.", translates=True),
    "fusion-trellis": ObjectiveKey(TrellisSettings, "log Z - s(e), Z by a recombining search.", translates=True),
}


def name_of(objective: str | Mapping[str, Any] | None) -> Any:
    """Returns the name in a recipe's key `objective`, which is a name or {name: ..., setting: ...}."""
    name = objective.get("name") if isinstance(objective, Mapping) else objective
    return name if isinstance(name, str | None) else str(name)


def reads_text(objective: str | Mapping[str, Any] | None) -> bool:
    """Returns whether an objective's corpora are text of one language, and not pairs."""
    name = name_of(objective)
    return name in OBJECTIVES and OBJECTIVES[name].reads == "text"


@dataclass(frozen=True)
class NamedObjective:
    """An objective as a recipe names it: its name, its entry of OBJECTIVES, its settings."""

    name: str
    key: ObjectiveKey
    settings: Any


# Values that follow from a recipe


def dev_names(recipe: Recipe) -> list[str]:
    """Returns the names of the development sets in order; scores of the first one are logged without its name."""
    own = [name for name, section in (recipe.tasks or {}).items() if section.share and section.dev is not None]
    return [MAIN_DEV] * (recipe.data.dev is not None) + own


def fill_in(recipe: Recipe, told: Mapping[str, Any]) -> None:
    """Sets tokenizer.path, evaluation.metrics and evaluation.best where other keys decide them. told: the content that
    was read."""
    model, tokenizer, evaluation = recipe.model, recipe.tokenizer, recipe.evaluation
    if tokenizer.path is None and model.add_to is not None:
        tokenizer.path = model.add_to
    elif tokenizer.path is None and model.fuse is not None:
        fused = model.fuse.translation
        tokenizer.path = fused if isinstance(fused, str) else next(iter(fused), None)
    if not any(translates(recipe, name) for name in dev_names(recipe)):
        evaluation.metrics = []
        if "best" not in (told.get("evaluation") or {}):
            evaluation.best = "loss"


def translates(recipe: Recipe, dev_name: str) -> bool:
    """Returns whether the development set of this name is translated and scored."""
    own = recipe.objective if recipe.tasks is None else "translation"
    name = name_of((recipe.tasks or {})[dev_name].objective if dev_name != MAIN_DEV else own)
    return name in OBJECTIVES and OBJECTIVES[name].translates


def measured(recipe: Recipe) -> set[str]:
    """Returns what evaluation.best can name: loss, bleu, ..., and of further development sets <name>_loss, ..."""
    names: set[str] = set()
    for number, name in enumerate(dev_names(recipe)):
        metrics = ["loss", "perplexity", *(recipe.evaluation.metrics if translates(recipe, name) else [])]
        names |= {f"{name}_{metric}" if number else metric for metric in metrics}
    if sum(translates(recipe, name) for name in dev_names(recipe)) > 1:
        names |= {f"mean_{metric}" for metric in ("loss", *recipe.evaluation.metrics)}
    return names


def saved_steps(schedule: LearningRate | None, every: int, steps: int) -> Sequence[int]:
    """Returns the steps whose checkpoints may be averaged: the cycles' ends, else multiples of `every` and the last."""
    return (schedule and schedule.ends(steps)) or sorted({*range(every, steps, every), steps})
