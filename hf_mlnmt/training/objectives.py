"""Objectives: each builds batches of examples and computes the loss of a batch; they know no Trainer and no device.

Which task has the next batch: tasks.py. A batch is of one task; its loss is divided by that task's own items of the
whole step, and the gradients of the step's batches add up (trainer.py).

Reference: thesis on monolingual data, section 4.2, of the objectives on text of one language.

| in a recipe | objective | the model reads | it predicts | equation |
| --- | --- | --- | --- | --- |
| translation | Translation | the source, and the target before a token | each target token | |
| encoder-lm | EncoderLanguageModel | <s> f_1 .. f_J, with causal self-attention | the next source token | (4.7) |
| encoder-cloze | EncoderCloze | tau(f) | f_j at the distorted positions D | (4.9) |
| decoder-lm | DecoderLanguageModel | e_0 .. e_I-1, and no source | e_i | F_trg-LM |
| pseudo-encoder | PseudoEncoder | source tau(e), prefix e_0 .. e_i-1 | e_i, i in D | F_pseudo-enc |
| distillation | Distillation | the source, and the target before a token | each target token | distillation.py |
| fusion-... | those of fused models | | | fusion_objectives.py |

A loss is a sum over predicted positions, divided by the predicted positions of the step; of Translation it is the
label-smoothed cross-entropy, plus what the model adds by itself (`supervise` in modeling/transformer.py). The
projection W_proj of the encoder's two is of the objective (`head`), unless the model has one (encoder_models.py).

tau (`Distortion`) hides, replaces or only marks tokens that are to be predicted, after Devlin et al. 2019, "BERT",
section 3.1. Each token is distorted with probability 0.15, independently of the others. Of the distorted ones 0.8
become <mask>, 0.1 stay as they are and 0.1 become a token that is drawn uniformly. All of them are predicted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.corpus import TextSide
from hf_mlnmt.data.encoded import Examples, Rows
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.modeling.encoder_models import EncoderWithProjection
from hf_mlnmt.modeling.fused import projected_cross_entropy
from hf_mlnmt.modeling.loss import cross_entropy, divisor, head_cross_entropy
from hf_mlnmt.modeling.transformer import Decoder, Encoder
from hf_mlnmt.recipe.schema import DistortionSettings, EncoderSettings

SHOWN = "shown"  # key of an example: (epoch, number of the example), from which its random choices in this epoch follow
IGNORED = -100  # label of a position that no loss counts, as everywhere in Transformers

Example = Mapping[str, np.ndarray]
Batch = dict[str, Tensor]
Losses = tuple[Tensor, dict[str, Tensor]]
"""The scalar to minimise, and its named parts."""


@dataclass(frozen=True)
class Ingredients:
    """The arguments of `Objective.of` beside the objective's own settings.

    label_smoothing: the recipe's. seed: the task's. sides: for objectives on text, whose vocabulary the texts have.
    root: what the folders of other models are relative to.
    """

    model: PreTrainedModel
    tokenizers: Tokenizers
    languages: Mapping[str, str]
    label_smoothing: float
    seed: int = 1
    sides: frozenset[TextSide] = frozenset()
    root: Path = Path()

    def smoothing(self, settings: Any) -> float:
        """Returns the label smoothing of an objective with these settings. UserError for any with a fused model."""
        own = getattr(settings, "label_smoothing", None)
        smoothing = self.label_smoothing if own is None else own
        if smoothing and hasattr(self.model, "factors"):
            raise UserError(
                f"label_smoothing is {smoothing}: it is not defined for a fused model; set it to 0 in the recipe."
            )
        return smoothing


@dataclass(frozen=True)
class Need:
    """A condition on a model. what: completes "the objective needs ..."; met: returns whether a model fulfils it."""

    what: str
    met: Callable[[nn.Module], bool]


class Objective(ABC):
    """The base of objectives: `collate` builds a batch from examples, `loss` computes the loss of a model on it.

    translates: whether a model trained by it translates, so that its development sets can be translated and scored.
    needs: what a model must have; asked before training.
    whole_model: the Auto class of the part of a model that this objective trains when it has no other task beside it;
        None: of the whole translation model, or the language model.
    head: a module that the objective trains beside the model and that the finished model is without.
    as_graph: whether `loss` follows from batch, weights and torch's random numbers alone, and reads no value of the
        card: then steps can be CUDA graphs (captured.py). Graphs would keep state of the objective, such as a growing
        weight, as it was when they were captured.
    """

    as_graph: ClassVar[bool] = False
    translates: ClassVar[bool] = False
    whole_model: ClassVar[str | None] = None
    needs: ClassVar[Sequence[Need]] = ()
    head: nn.Module | None = None

    @classmethod
    def of(cls, settings: Any, given: Ingredients) -> Self:
        """Makes the objective with the settings that a recipe gives (OBJECTIVES in recipe/schema.py).

        Raises: UserError where it does not go with the model or the tokenizers.
        """
        raise NotImplementedError(f"{cls.__name__} does not say how a recipe makes it")

    @abstractmethod
    def collate(self, examples: Sequence[Example]) -> Batch:
        """Pads examples to one batch of (sentences, longest) tensors. Must not draw from torch's random state.

        Random choices must follow from `example[SHOWN]`, which every example has beside its set's arrays.
        """

    def items(self, batch: Batch) -> Tensor:
        """Counts the items of a batch, by which losses are divided: its target tokens."""
        return (batch["labels"] != IGNORED).sum()

    def measured(self) -> Objective:
        """Returns the objective whose loss on a development set is reported: this one."""
        return self

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None) -> Losses:
        """Returns the scalar to minimise and its named parts (for logging; empty when there is only one).

        The loss is a sum over the batch divided by `num_items_in_batch`: what `items` counts in this task's batches of
        the whole optimizer step, over accumulation and processes; None: in this batch.
        """


def unwrap(model: nn.Module) -> Any:
    """Returns the model inside wrappers for several processes, torch.compile and adapters (peft.PeftModel)."""
    while True:
        inner = getattr(model, "_orig_mod", None) or (
            model.module if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel) else None
        )
        if inner is None and hasattr(model, "get_base_model"):
            inner = model.get_base_model()  # type: ignore[operator]
        if inner is None:
            return model
        model = inner


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Runs a block without dropout and without gradients."""
    before = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(before)


def computes_own_loss(model: nn.Module) -> bool:
    """Returns whether the model's class says that its forward computes the loss, as ours do (transformer.py)."""
    return getattr(unwrap(model), "computes_own_loss", False)


def part_of(model: nn.Module, side: str) -> Any:
    """Returns the model's encoder or decoder, or None without one. side: "encoder" or "decoder"."""
    get = getattr(unwrap(model), f"get_{side}", None)
    return get() if callable(get) else None


def _is_causal_model(model: nn.Module) -> bool:
    """Returns whether the model is a causal language model, ours or Transformers', and no EncoderWithProjection."""
    inner = unwrap(model)
    encoder = isinstance(inner, EncoderWithProjection)
    return not (encoder or inner.config.is_encoder_decoder) and inner.get_output_embeddings() is not None


ENCODER_DECODER = Need(
    "an encoder and a decoder (config.is_encoder_decoder)",
    lambda model: bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False)),
)
HAS_ENCODER = Need(
    "an encoder",
    lambda model: isinstance(unwrap(model), EncoderWithProjection) or bool(unwrap(model).config.is_encoder_decoder),
)
CAUSAL_ENCODER = Need(
    "an encoder of this package, whose self-attention can be made causal",
    lambda model: isinstance(part_of(model, "encoder"), Encoder),
)
HAS_DECODER = Need(
    "a decoder of this package, which can leave its attention over the source out, or a causal language model",
    lambda model: isinstance(part_of(model, "decoder"), Decoder) or _is_causal_model(model),
)
NO_FUSION = Need(
    "a decoder that works without a source (with information_fusion it reads its auxiliary decoders, which read one)",
    lambda model: not getattr(unwrap(model).config, "information_fusion", False),
)
# A model with an encoder or decoder for each language must be told the language, which no objective on text does.
ONE_FOR_ALL = Need(
    "one encoder and one decoder for all languages", lambda model: not hasattr(unwrap(model).config, "source_languages")
)


# Functions that objectives of all kinds share


def rows_of(arrays: Sequence[np.ndarray]) -> Rows:
    """Joins arrays of different lengths to `Rows`, which hold all values in one array, and the lengths."""
    return Rows(np.concatenate(arrays), np.fromiter(map(len, arrays), np.int64, len(arrays)))


def gathered(examples: Sequence[Example]) -> Examples:
    """Joins examples by name: the arrays of a name become `Rows`; its numbers, and the arrays of SHOWN, one array."""
    if isinstance(examples, Examples):
        return examples
    columns = {name: [np.asarray(example[name]) for example in examples] for name in examples[0]}
    whole = {name for name, own in columns.items() if name == SHOWN or not own[0].ndim}
    return Examples({name: np.stack(own) if name in whole else rows_of(own) for name, own in columns.items()})


def batch_of(inputs: Rows, labels: Rows, pad_token_id: int) -> Batch:
    """Makes input_ids, attention_mask (sentences, longest input) and labels (sentences, longest of them), int64."""
    ids = inputs.padded(pad_token_id)
    mask = (np.arange(ids.shape[1]) < inputs.lengths[:, None]).astype(np.int64)
    arrays = {"input_ids": ids, "attention_mask": mask, "labels": labels.padded(IGNORED)}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _loss_of_logits(logits: Tensor, labels: Tensor, smoothing: float, items: Tensor | int | None) -> Tensor:
    """Returns the smoothed cross-entropy of a model's logits, summed over labelled positions and divided by `items`."""
    real = labels != IGNORED
    return cross_entropy(logits[real], labels[real], smoothing) / divisor(labels, items)


@dataclass
class Translation(Objective):
    """Cross-entropy of the target given the source.

    Inputs: examples {"input_ids": (source,), "labels": (target,)}, both ending with </s>, integers.
    A model whose class says `computes_own_loss` computes it in its forward (and may add auxiliary losses); for any
    other encoder-decoder of Transformers the loss is computed here from its logits, with the same formula:
        (1 - eps) * -log p(y) + eps * mean over the vocabulary of -log p       (Szegedy et al. 2016, section 7)

    languages: what a model of several languages is told: {"source_language": "de", "target_language": "en"}.
    """

    as_graph: ClassVar[bool] = True
    translates: ClassVar[bool] = True
    needs: ClassVar[Sequence[Need]] = (ENCODER_DECODER,)

    pad_token_id: int
    label_smoothing: float = 0.0
    languages: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Any, given: Ingredients) -> Self:
        config, smoothing = given.model.config, given.smoothing(settings)
        languages = {f"{side}_language": code for side, code in given.languages.items()}
        return cls(config.pad_token_id, smoothing, languages if hasattr(config, "source_languages") else {})

    def collate(self, examples: Sequence[Example]) -> Batch:
        columns = gathered(examples).columns
        return batch_of(columns["input_ids"], columns["labels"], self.pad_token_id)

    def loss(self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None) -> Losses:
        """Sums the smoothed cross-entropy over target tokens, divided by `num_items_in_batch`."""
        if computes_own_loss(model):
            settings = {"smoothing": self.label_smoothing, "loss_only": True, **self.languages}
            output = model(**batch, **settings, num_items_in_batch=num_items_in_batch)
            return output.loss, output.losses or {}
        inputs: dict[str, Any] = batch
        if shift := getattr(unwrap(model), "prepare_decoder_input_ids_from_labels", None):
            # with labels, forward would compute a loss too
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            inputs["decoder_input_ids"] = shift(batch["labels"])
        logits = model(**inputs, use_cache=False).logits
        return _loss_of_logits(logits, batch["labels"], self.label_smoothing, num_items_in_batch), {}


# Objectives on text of one language


@dataclass
class Distortion:
    """The function tau: hides, replaces or marks tokens at random, drawn from (seed, epoch, number of the sentence).

    mask: the id of <mask>. special: ids that are neither distorted nor drawn. vocabulary: ids are below this.
    """

    settings: DistortionSettings
    mask: int
    special: np.ndarray
    vocabulary: int
    seed: int = 1
    words: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.words = np.setdiff1d(np.arange(self.vocabulary), self.special)

    @classmethod
    def of(cls, settings: DistortionSettings, tokenizer: Any, seed: int) -> Distortion:
        """Makes tau for a tokenizer. Raises: UserError when it has no <mask>."""
        if getattr(tokenizer, "mask_token_id", None) is None:
            raise UserError(
                "the tokenizer has no <mask>, which stands for what is to be predicted. Set tokenizer.mask to true, "
                "which adds it to the tokenizer of tokenizer.path, or train a tokenizer, which then has it."
            )
        return cls(settings, tokenizer.mask_token_id, np.array(tokenizer.all_special_ids), len(tokenizer), seed)

    def __call__(self, ids: np.ndarray, epoch: int, sentence: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns tau(ids), and which positions are distorted, the set D, and so to be predicted: (length,) each."""
        draws, settings = np.random.default_rng([self.seed, epoch, sentence]), self.settings
        chances, kinds = draws.random(len(ids)), draws.random(len(ids))
        others = self.words[draws.integers(len(self.words), size=len(ids))]
        words = ~np.isin(ids, self.special)
        chosen = words & (chances < settings.distorted)
        if settings.force and words.any() and not chosen.any():
            chosen[np.argmin(np.where(words, chances, 2.0))] = True
        distorted = np.where(kinds < settings.masked, self.mask, np.where(kinds < 1 - settings.kept, others, ids))
        return np.where(chosen, distorted, ids), chosen


@dataclass
class TextObjective(Objective):
    """The base of objectives on text of one language.

    start_token_id: stands before the first token of a language model. label_smoothing: eps of loss.py. distortion: tau,
    of objectives that restore distorted text.
    """

    as_graph: ClassVar[bool] = True
    pad_token_id: int
    start_token_id: int
    label_smoothing: float = 0.0
    distortion: Distortion | None = None

    @classmethod
    def of(cls, settings: Any, given: Ingredients) -> Self:
        config = given.model.config
        start = getattr(config, "decoder_start_token_id", None)
        distortion = None
        if isinstance(settings, DistortionSettings):
            distortion = Distortion.of(settings, given.tokenizers.source, given.seed)
        start = config.bos_token_id if start is None else start
        return cls(config.pad_token_id, start, given.smoothing(settings), distortion)  # type: ignore[arg-type]

    def measured(self) -> Self:
        """Returns this objective without smoothing, for a development set's perplexity."""
        return replace(self, label_smoothing=0.0)

    def shifted(self, examples: Sequence[Example]) -> Batch:
        """Makes a batch: input_ids, the start token and all tokens but the last; labels, all tokens."""
        rows = gathered(examples).columns["input_ids"]
        labels = Rows(rows.packed(), rows.lengths)
        values = np.roll(labels.values, 1)
        values[labels.starts] = self.start_token_id
        return batch_of(Rows(values, labels.lengths), labels, self.pad_token_id)

    def distorted(self, examples: Sequence[Example]) -> Batch:
        """Makes a batch: input_ids, tau of the tokens; labels, the tokens at distorted positions and else -100."""
        assert self.distortion is not None
        inputs, labels = [], []
        for example in examples:
            epoch, sentence = example.get(SHOWN, (0, 0))
            ids = np.asarray(example["input_ids"])
            distorted, chosen = self.distortion(ids, int(epoch), int(sentence))
            inputs.append(distorted)
            labels.append(np.where(chosen, ids, IGNORED))
        return batch_of(rows_of(inputs), rows_of(labels), self.pad_token_id)


@dataclass
class EncoderObjective(TextObjective):
    """The base of objectives that train an encoder, whose last states are projected to the vocabulary.

    head: W_proj (vocabulary, d_model); None: the model's own projection, or with `tie` the source embedding.
    """

    is_causal: ClassVar[bool] = False
    head: nn.Module | None = None
    tie: bool = False

    @classmethod
    def of(cls, settings: EncoderSettings, given: Ingredients) -> Self:
        objective, config = super().of(settings, given), given.model.config
        # the config of such a model says whether its projection is tied
        if isinstance(given.model, EncoderWithProjection):
            return objective
        objective.tie = settings.tie
        if not settings.tie:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(given.seed)
                objective.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
                nn.init.xavier_uniform_(objective.head.weight)
        return objective

    def loss(self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None) -> Losses:
        """Returns the label-smoothed cross-entropy of softmax(W_proj h), h the encoder's last states, summed over the
        labels and divided by `num_items_in_batch` or by this batch's labels; no named parts."""
        encoder, options = part_of(model, "encoder"), {"is_causal": True} if self.is_causal else {}
        states = encoder(batch["input_ids"], batch["attention_mask"], **options).last_hidden_state
        inner, labels = unwrap(model), batch["labels"]
        if self.tie:
            matrix = inner.get_encoder().get_input_embeddings().weight
            total = projected_cross_entropy(states, matrix, labels, self.label_smoothing)
        else:
            head = inner.projection if self.head is None else self.head
            total = head_cross_entropy(head, states, labels, self.label_smoothing)
        return total / divisor(labels, num_items_in_batch), {}


@dataclass
class EncoderLanguageModel(EncoderObjective):
    """The encoder, its self-attention causal, predicts each source token from those before it (4.7)."""

    needs = (ONE_FOR_ALL, CAUSAL_ENCODER)
    whole_model: ClassVar = "AutoModelForCausalLM"
    is_causal: ClassVar = True
    collate = TextObjective.shifted


@dataclass
class EncoderCloze(EncoderObjective):
    """The encoder predicts the source tokens at the distorted positions from all others (4.9)."""

    needs = (ONE_FOR_ALL, HAS_ENCODER)
    whole_model: ClassVar = "AutoModelForMaskedLM"
    collate = TextObjective.distorted


@dataclass
class DecoderLanguageModel(TextObjective):
    """The decoder of a translation model, without a source, or a language model predicts each token: F_trg-LM."""

    needs = (ONE_FOR_ALL, HAS_DECODER, NO_FUSION)
    collate = TextObjective.shifted

    def loss(self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None) -> Losses:
        ids, labels, smoothing = batch["input_ids"], batch["labels"], self.label_smoothing
        if not _is_causal_model(model):
            states = part_of(model, "decoder")(ids, use_cache=False).last_hidden_state
            total = head_cross_entropy(unwrap(model).get_output_embeddings(), states, labels, smoothing)
        elif computes_own_loss(model):
            # Padding stands behind all real tokens, and attention is causal: no mask is needed.
            total = model(ids, shift_labels=labels, smoothing=smoothing, loss_only=True, num_items_in_batch=1).loss
        else:
            logits = model(input_ids=ids, attention_mask=batch["attention_mask"], use_cache=False).logits
            return _loss_of_logits(logits, labels, smoothing, num_items_in_batch), {}
        return total / divisor(labels, num_items_in_batch), {}


@dataclass
class PseudoEncoder(TextObjective):
    """The translation model restores a sentence from its distortion: F_pseudo-enc."""

    needs = (ONE_FOR_ALL, ENCODER_DECODER)

    @classmethod
    def of(cls, settings: Any, given: Ingredients) -> Self:
        """Makes the objective. Raises: UserError without a joint vocabulary."""
        if not given.tokenizers.joint:
            raise UserError(
                "pseudo-encoder reads target text as a source, so both sides need one vocabulary: set tokenizer.joint "
                "to true, or take a joint tokenizer.path."
            )
        return super().of(settings, given)

    def collate(self, examples: Sequence[Example]) -> Batch:
        return {**self.distorted(examples), "decoder_input_ids": self.shifted(examples)["input_ids"]}

    def loss(self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None) -> Losses:
        labels = batch["labels"]
        if computes_own_loss(model):
            items = divisor(labels, num_items_in_batch)
            output = model(**batch, smoothing=self.label_smoothing, loss_only=True, num_items_in_batch=items)
            return output.loss, output.losses or {}
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        logits = model(**inputs, use_cache=False).logits
        return _loss_of_logits(logits, labels, self.label_smoothing, num_items_in_batch), {}
