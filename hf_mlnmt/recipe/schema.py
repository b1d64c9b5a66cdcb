"""The keys of a recipe: what each section holds, and what is there where nothing is said."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from hf_mlnmt.training.batching import Side
from hf_mlnmt.training.schedules import ScheduleName


@dataclass
class Directions:
    """Files with `<language>` for its code; see directions.py."""

    between: list[str]
    train: str
    dev: str | None = None
    test: dict[str, str] = field(default_factory=dict)
    pairs: str | list[str] = "all"
    leave_out: list[str] = field(default_factory=list)
    copies: bool = False
    shares: dict[str, float] = field(default_factory=dict)  # of single tasks, as {de-en: 2}; 1 unless told


@dataclass
class Fuse:
    """A fused model (modeling/fusion.py) of finished ones: folders, relative to --data or not, or Hub names."""

    translation: str | list[str]
    language_model: str | list[str]
    alpha: float = 1.0
    beta: float = 0.1
    normalization: Literal["symbol", "sequence"] = "sequence"
    translation_weights: list[float] | None = None
    language_weights: list[float] | None = None


@dataclass
class Model:
    """`record` names modeling/<record>.json (beside the folder of the recipe); or `system` and `shape`."""

    record: str | None = None
    system: str | None = None
    shape: str = "base"
    settings: dict[str, Any] = field(default_factory=dict)  # config fields that replace those of the record or shape
    fuse: Fuse | None = None  # instead of all these: a fused model, which is trained further
    add_to: str | None = None  # instead: a trained model of many languages; the tasks' others are added, it is frozen


@dataclass
class Languages:
    """Two-letter codes; for scores, text processing and the model card. One pair; corpora may name others."""

    source: str
    target: str


@dataclass
class Data:
    """Corpora, each a mapping of CorpusSpec's fields (data/corpus.py); paths are relative to --data."""

    train: dict[str, Any] | list[dict[str, Any]] | None = None  # or `tasks`
    dev: dict[str, Any] | None = None
    test: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> corpus
    filters: dict[str, Any] = field(default_factory=dict)  # PairFilter's fields (data/filters.py); only for train
    max_length: int = 256  # subwords; longer training pairs are dropped, and counted
    temperature: float | None = None  # mixtures: corpora are drawn with probability ~ size ** (1 / temperature)
    bpe_dropout: float = 0.0  # words are cut anew every epoch, merges left out so often (data/resegmented.py)
    bpe_dropout_epochs: int | None = None  # in so many first epochs only
    name: str | None = None  # for the model card
    licence: str | None = None

    DROPPED: ClassVar[dict[str, Any]] = {"bidirectional_epochs": 0}  # keys of earlier versions: see `build`


@dataclass
class TaskSection:
    """A task (tasks.py): what is trained on what, and how often."""

    data: dict[str, Any] | list[dict[str, Any]]  # corpora as in data.train; for objectives on text, TextSpec's fields
    objective: str | dict[str, Any] = "translation"  # a name, or {name: ..., its settings} (objective_names.py)
    share: float = 1.0  # of the batches, in relation to the other tasks'; 0 leaves the task out
    languages: Languages | None = None  # unless told, the recipe's
    dev: dict[str, Any] | None = None  # a development set of its own


@dataclass
class TranslationSection:
    """The synthetic corpus of a round (hf_mlnmt/synthetic): text of one language, and what translates it."""

    model: str | None  # an earlier round's name, or a folder or Hub name; null for the method copied
    text: str | list[str]  # files of one sentence a line, relative to --data
    method: str | dict[str, Any] = "beam"  # a name, or {name: ..., its options}
    forward: bool = False  # the text is the source
    tag: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # limit, drop, max_ratio ... (synthetic.Settings' fields)


@dataclass
class Round:
    """One training of several that build on one another (rounds.py)."""

    reverse: bool = False  # in the other direction than the recipe's
    translate: TranslationSection | None = None
    ratio: float | None = None  # of its synthetic corpus to the recipe's own
    recipe: dict[str, Any] = field(default_factory=dict)  # keys that this round has otherwise


@dataclass
class Tokenizer:
    """Trained on the training corpora, or taken from `path`."""

    path: str | None = None
    kind: Literal["bpe", "unigram"] = "bpe"
    vocab_size: int = 8000
    joint: bool = (
        True  # one vocabulary for both sides; false: one for each, of a model of many languages for each language
    )
    byte_fallback: bool = True
    mask: bool = False  # add <mask> to the tokenizer of `path` where it lacks it; those trained here have it
    languages: list[str] = field(default_factory=list)  # codes for multilingual use: <2de> ...
    tags: list[str] = field(default_factory=list)  # tokens that corpora may put before their sources: <bt> ...
    processing: dict[Literal["source", "target"], dict[str, Any]] = field(
        default_factory=dict
    )  # TextProcessing's fields


@dataclass
class BatchSize:
    """tokens x accumulate x processes is what an optimizer step sees, at most."""

    tokens: int = 2048
    side: Side = "target"
    accumulate: int = 1
    max_sentences: int | None = None


@dataclass
class Optimizer:
    """Adam, AdamW (with weight_decay) or SGD."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = 1e-3  # the peak
    betas: list[float] = field(default_factory=lambda: [0.9, 0.98])
    eps: float = 1e-9
    weight_decay: float = 0.0
    clip: float = 1.0  # limit of the gradient's norm; 0 is none


@dataclass
class LearningRate:
    """See schedules.py."""

    name: ScheduleName = "cosine"
    warmup: int = 4000
    floor: float = 0.0
    factor: float = 0.8
    patience: int = 2
    threshold: float = 0.0
    restarts: int = 0  # so many short cycles at the end; checkpoints are kept of their ends, and averaged
    restart_steps: int = 0
    restart_factor: float = 0.4


@dataclass
class Budget:
    """Give one of the two; steps are optimizer steps."""

    steps: int | None = None
    epochs: float | None = None


@dataclass
class Evaluation:
    """On the dev set, every `every` steps; each evaluation is followed by a checkpoint."""

    every: int = 1000
    metrics: list[str] = field(default_factory=lambda: ["bleu"])  # bleu, chrf, ter, or any of the evaluate library
    beams: int = 1
    best: str = "bleu"  # which of metrics, or loss, chooses the best checkpoint; where nothing is translated: loss
    higher_is_better: bool | None = None  # unless told: no for loss, perplexity and ter, else yes
    patience: int | None = None  # stop after so many evaluations without a better one


@dataclass
class Checkpoints:
    """Kept: the last `keep`, and the best. `average` of the last are averaged at the end."""

    keep: int = 5
    average: int = 5


@dataclass
class Decoding:
    """Of the finished model, written into its generation_config.json; the test sets are scored with it."""

    beams: int = 5
    length_penalty: float = 1.0
    length_normalization: Literal["generate", "length", "length+1", "gnmt"] = "generate"
    max_new_tokens: int = 256


@dataclass
class Precision:
    """bf16 and fp16 are mixed precision: weights stay float32. auto: bf16 where the machine computes in it.

    `compile`: torch.compile; auto: where it brings back what it costs, so far nowhere (arguments.py).
    """

    dtype: Literal["float32", "bf16", "fp16", "auto"] = "float32"
    compile: Literal[False, True, "auto"] = False
    gradient_checkpointing: bool = False


@dataclass
class Logging:
    """`trackers`: tensorboard, wandb, trackio, mlflow, comet_ml ... whatever Trainer knows and is installed."""

    every: int = 100
    trackers: list[str] = field(default_factory=list)


@dataclass
class Recipe:
    """A whole training. Every key of the YAML is a field here or in one of the classes above."""

    languages: Languages
    data: Data = field(default_factory=Data)
    directions: Directions | None = None  # short for tasks and test sets (directions.py)
    tasks: dict[str, TaskSection] | None = None  # instead of data.train
    objective: str | dict[str, Any] = "translation"  # of data.train, data.dev and data.test (objective_names.py)
    model: Model = field(default_factory=Model)
    rounds: dict[str, Round] | None = None  # name -> training, one after the other: hf-mlnmt train
    init_from: str | dict[str, str] | None = None  # folder or Hub name, or part -> folder (init_from.py)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    batch: BatchSize = field(default_factory=BatchSize)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: LearningRate = field(default_factory=LearningRate)
    budget: Budget = field(default_factory=Budget)
    label_smoothing: float = 0.1
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    decoding: Decoding = field(default_factory=Decoding)
    precision: Precision = field(default_factory=Precision)
    logging: Logging = field(default_factory=Logging)
    arguments: dict[str, Any] = field(default_factory=dict)  # any other field of Seq2SeqTrainingArguments
    reverse: bool = False  # turn everything round, as the last thing that is read (reversal.py)
    seed: int = 1
    path: Path | None = field(default=None, repr=False)  # where it was read; not a key of the YAML

    @property
    def stem(self) -> str:
        """The name that recipe, model record and model card share."""
        return self.path.stem if self.path else "recipe"

    def sections(self) -> dict[str, TaskSection]:
        """The tasks that have a share; data.train is one task, with the name of its objective."""
        if self.tasks is None:
            assert self.data.train is not None
            name = self.objective if isinstance(self.objective, str) else str(self.objective.get("name"))
            return {name: TaskSection(self.data.train, self.objective)}
        return {name: section for name, section in self.tasks.items() if section.share}

    def to_dict(self) -> dict[str, Any]:
        """Every key with its value, as the YAML could say it."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "path"}

    def to_yaml(self) -> str:
        """The recipe with all defaults written out."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def default_keys() -> dict[str, Any]:
    """The keys that have defaults, with them; of runs that were made before there was such a key, or after, too."""
    found = Recipe(languages=Languages("", "")).to_dict()
    return {**{key: value for key, value in found.items() if key != "languages"}, "data": dict(Data.DROPPED)}
