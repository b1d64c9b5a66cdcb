"""Objectives: which batch to build and which sum of losses over it. They know no Trainer and no device, and compose.

| objective | batch | loss |
| --- | --- | --- |
| Translation | source, target | label-smoothed cross-entropy of the target, plus whatever the model adds by itself |
| four on text of one language | | see below |

One that is made of others collates their batches, adds up their losses, and has their needs and heads; its `items` may
be a tensor with a number for each of them.

Objectives on text of one language: for pre-training, and for tasks beside translation.

Reference: thesis on monolingual data, section 4.2 (its equation numbers are used here).

| name | objective | the model reads | it predicts | equation |
| --- | --- | --- | --- | --- |
| encoder-lm | EncoderLanguageModel | <s> f_1 .. f_J, with causal self-attention | the next source token | (4.7) |
| encoder-cloze | EncoderCloze | tau(f) | f_j at the distorted positions D | (4.9) |
| decoder-lm | DecoderLanguageModel | e_0 .. e_I-1, and no source | e_i | F_trg-LM |
| pseudo-encoder | PseudoEncoder | source tau(e), prefix e_0 .. e_i-1 | e_i, i in D | F_pseudo-enc |

A loss is a sum over predicted positions, divided by the predicted positions of the step. The projection W_proj of the
first two is of the objective (`head`), unless the model has one (encoder_models.py).

tau (`Distortion`) hides, replaces or only marks tokens that are to be predicted, after Devlin et al. 2019, "BERT",
section 3.1. Each token is distorted with probability 0.15, independently of the others. Of the distorted ones 0.8
become <mask>, 0.1 stay as they are and 0.1 become a token that is drawn uniformly. All of them are predicted. Special
tokens are neither distorted nor drawn.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from hf_mlnmt.errors import UserError
from hf_mlnmt.modeling.encoder_models import EncoderWithProjection
from hf_mlnmt.modeling.loss import divisor, head_cross_entropy, projected_cross_entropy
from hf_mlnmt.modeling.transformer import Decoder, Encoder
from hf_mlnmt.recipe.schema import DistortionSettings

SHOWN = "shown"  # of an example: (epoch, number of the example), for what is drawn anew each time that it is shown
IGNORED = -100  # label of a position that counts nothing, as everywhere in Transformers

Example = Mapping[str, np.ndarray]
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Need:
    """Something that an objective asks of a model: in words that go on "the objective needs ...", and as a question."""

    what: str
    met: Callable[[nn.Module], bool]


def _is_encoder_decoder(model: nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


ENCODER_DECODER = Need("an encoder and a decoder (config.is_encoder_decoder)", _is_encoder_decoder)


class Objective(ABC):
    """What the trainer asks of an objective.

    translates: whether a model that is trained so translates, so that a development set of it can be scored.
    needs: what a model must have; asked before training.
    whole_model: the Auto class of the model that this objective trains when it has no other task beside it: the part
        that it needs, with its head. None: of the whole translation model, or the language model.
    head: a module that the objective trains beside the model and that the finished model is without; None for none.
        It is made before the trainer, which puts it where the model is.
    """

    translates: ClassVar[bool] = False
    whole_model: ClassVar[str | None] = None
    needs: ClassVar[Sequence[Need]] = ()
    head: nn.Module | None = None

    @abstractmethod
    def collate(self, examples: Sequence[Example]) -> Batch:
        """Pad examples to one batch of (sentences, longest) tensors. Must not draw from torch's random state.

        What is to be drawn follows from `example[SHOWN]`, which every example has beside what its set holds.
        """

    def items(self, batch: Batch) -> Tensor:
        """What the sum of a batch's losses is divided by, once added up over the step: the target tokens."""
        return (batch["labels"] != IGNORED).sum()

    def measured(self) -> Objective:
        """The objective whose loss on a development set is reported."""
        return self

    def measured_parts(self) -> tuple[Objective, int] | None:
        """An objective whose parts of the loss are measured on so many first sentences of a translated development set,
        beside the translation's loss; None for none."""
        return None

    @abstractmethod
    def loss(
        self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise and its named parts (for logging; empty when there is only one).

        It may call the model or any part of it. `num_items_in_batch` is what `items` counts in this task's batches of
        the whole optimizer step, over accumulation and processes: the loss is a sum over the batch divided by it.
        None: those of this batch.
        """


@dataclass
class Translation(Objective):
    """Cross-entropy of the target given the source.

    Inputs: examples {"input_ids": (source,), "labels": (target,)}, both ending with </s>, integers.
    A model whose class says `computes_own_loss` does so in its forward (and may add auxiliary ones); for any other
    encoder-decoder of Transformers the loss is computed here from its logits, with the same formula:
        (1 - eps) * -log p(y) + eps * mean over the vocabulary of -log p       (Szegedy et al. 2016, section 7)

    Args:
        pad_token_id: what fills the source; labels are filled with -100.
        label_smoothing: eps above; 0 is plain cross-entropy.
        pad_to_multiple_of: round lengths up (fewer shapes for torch.compile and tensor cores).
        languages: what a model of several languages is told: {"source_language": "de", "target_language": "en"}.
    """

    translates: ClassVar[bool] = True
    needs: ClassVar[Sequence[Need]] = (ENCODER_DECODER,)

    pad_token_id: int
    label_smoothing: float = 0.0
    pad_to_multiple_of: int = 1
    languages: Mapping[str, str] = field(default_factory=dict)

    def collate(self, examples: Sequence[Example]) -> Batch:
        """input_ids, attention_mask (sentences, longest source) and labels (sentences, longest target), int64."""
        multiple = self.pad_to_multiple_of
        source, lengths = pad([example["input_ids"] for example in examples], self.pad_token_id, multiple)
        labels, _ = pad([example["labels"] for example in examples], IGNORED, multiple)
        mask = (np.arange(source.shape[1]) < lengths[:, None]).astype(np.int64)
        arrays = {"input_ids": source, "attention_mask": mask, "labels": labels}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def loss(
        self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Smoothed cross-entropy summed over target tokens, divided by `num_items_in_batch`."""
        if computes_own_loss(model):
            settings = {"smoothing": self.label_smoothing, "loss_only": True, **self.languages}
            output = model(**batch, **settings, num_items_in_batch=num_items_in_batch)
            return output.loss, output.losses or {}
        labels = batch["labels"]
        logits = model(**_with_decoder_inputs(model, batch), use_cache=False).logits
        total = smoothed_cross_entropy(logits, labels, self.label_smoothing)
        return total / (self.items(batch) if num_items_in_batch is None else num_items_in_batch), {}


def pad(rows: Sequence[np.ndarray], value: int, multiple: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rows of different lengths as one int64 array (rows, longest), filled with `value`; and the lengths (rows,)."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    longest = -(-int(lengths.max()) // multiple) * multiple
    padded = np.full((len(rows), longest), value, np.int64)
    for row, length, target in zip(rows, lengths, padded):
        target[:length] = row
    return padded, lengths


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Sum over real positions of (1 - eps) nll + eps * mean over V of -log p. logits (..., V), labels (...)."""
    real = labels != IGNORED
    logits, labels = logits[real].float(), labels[real]
    target = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    loss = logits.logsumexp(-1) - (1 - smoothing) * target
    if smoothing:
        loss = loss - smoothing * logits.mean(-1)
    return loss.sum()


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside wrappers for several processes, for torch.compile and for adapters (peft.PeftModel)."""
    while True:
        inner = getattr(model, "_orig_mod", None) or (
            model.module if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel) else None
        )
        if inner is None and hasattr(model, "get_base_model"):
            inner = model.get_base_model()  # type: ignore[operator]
        if inner is None:
            return model
        model = inner


def computes_own_loss(model: nn.Module) -> bool:
    """Whether the model's class declares that its forward computes the loss, as ours do (modeling/transformer.py)."""
    return getattr(unwrap(model), "computes_own_loss", False)


def _with_decoder_inputs(model: nn.Module, batch: Batch) -> dict[str, Any]:
    """Labels replaced by decoder inputs where the model can shift them: it then computes no loss of its own."""
    shift = getattr(unwrap(model), "prepare_decoder_input_ids_from_labels", None)
    if shift is None:
        return batch
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return {**inputs, "decoder_input_ids": shift(batch["labels"])}


# On text of one language


@dataclass
class Distortion:
    """tau for one vocabulary; a pure function of (seed, epoch, number of the sentence, the sentence).

    Args:
        settings: the probabilities.
        mask: the id of <mask>.
        special: ids that are neither distorted nor drawn.
        vocabulary: ids are below this.
        seed: of the draws.
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
        """For a tokenizer. Raises: UserError when it has no <mask>."""
        if getattr(tokenizer, "mask_token_id", None) is None:
            raise UserError(
                "the tokenizer has no <mask>, which stands for what is to be predicted. Set tokenizer.mask to true, "
                "which adds it to the tokenizer of tokenizer.path, or train a tokenizer, which then has it."
            )
        return cls(settings, tokenizer.mask_token_id, np.array(tokenizer.all_special_ids), len(tokenizer), seed)

    def __call__(self, ids: np.ndarray, epoch: int, sentence: int) -> tuple[np.ndarray, np.ndarray]:
        """tau(ids) (length,), and which positions are D (length,)."""
        draws, settings = np.random.default_rng([self.seed, epoch, sentence]), self.settings
        chances, kinds = draws.random(len(ids)), draws.random(len(ids))
        others = self.words[draws.integers(len(self.words), size=len(ids))]
        words = ~np.isin(ids, self.special)
        chosen = words & (chances < settings.distorted)
        if settings.force and words.any() and not chosen.any():
            chosen[np.argmin(np.where(words, chances, 2.0))] = True
        distorted = np.where(kinds < settings.masked, self.mask, np.where(kinds < 1 - settings.kept, others, ids))
        return np.where(chosen, distorted, ids), chosen


Losses = tuple[Tensor, dict[str, Tensor]]


def _part(model: nn.Module, side: str) -> Any:
    """The model's encoder or decoder, or None."""
    get = getattr(unwrap(model), f"get_{side}", None)
    return get() if callable(get) else None


def _is_causal_model(model: nn.Module) -> bool:
    """A causal language model, ours or any of Transformers'; the encoder with a projection is none of these."""
    inner: Any = unwrap(model)
    encoder = isinstance(inner, EncoderWithProjection)
    return not (encoder or inner.config.is_encoder_decoder) and inner.get_output_embeddings() is not None


def _fuses(model: nn.Module) -> bool:
    return bool(getattr(unwrap(model).config, "information_fusion", False))


def _has_encoder(model: nn.Module) -> bool:
    inner: Any = unwrap(model)
    return isinstance(inner, EncoderWithProjection) or bool(inner.config.is_encoder_decoder)


HAS_ENCODER = Need("an encoder", _has_encoder)
CAUSAL_ENCODER = Need(
    "an encoder of this package, whose self-attention can be made causal",
    lambda m: isinstance(_part(m, "encoder"), Encoder),
)
HAS_DECODER = Need(
    "a decoder of this package, which can leave its attention over the source out, or a causal language model",
    lambda model: isinstance(_part(model, "decoder"), Decoder) or _is_causal_model(model),
)
NO_FUSION = Need(
    "a decoder that works without a source (with information_fusion it reads its auxiliary decoders, which read one)",
    lambda model: not _fuses(model),
)
# An encoder or decoder for each language would have to be told which: no objective on text does that.
ONE_FOR_ALL = Need(
    "one encoder and one decoder for all languages", lambda model: not hasattr(unwrap(model).config, "source_languages")
)


@dataclass
class TextObjective(Objective):
    """What those on text share.

    Args:
        pad_token_id: what fills the input; labels are filled with -100.
        start_token_id: what stands before the first token of a language model.
        label_smoothing: eps of loss.py.
    """

    pad_token_id: int
    start_token_id: int
    label_smoothing: float = 0.0

    def measured(self) -> Self:
        """The same without smoothing, which a development set's perplexity is of."""
        plain = copy.copy(self)
        plain.label_smoothing = 0.0
        return plain

    def shifted(self, examples: Sequence[Example]) -> Batch:
        """input_ids: the start token and all tokens but the last; labels: all tokens; (sentences, longest)."""
        sentences = [np.asarray(example["input_ids"]) for example in examples]
        inputs = [np.concatenate([[self.start_token_id], ids[:-1]]) for ids in sentences]
        return self.padded(inputs, sentences)

    def padded(self, inputs: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> Batch:
        """input_ids, attention_mask and labels (sentences, longest), int64."""
        ids, lengths = pad(inputs, self.pad_token_id)
        mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        arrays = {"input_ids": ids, "attention_mask": mask, "labels": pad(labels, IGNORED)[0]}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


@dataclass
class EncoderObjective(TextObjective):
    """What those that train an encoder share: the projection of its last state, and the cross-entropy.

    head: W_proj (vocabulary, d_model); None: the model's own projection, or with `tie` the source embedding.
    """

    head: nn.Module | None = None
    tie: bool = False

    def cross_entropy(self, model: nn.Module, states: Tensor, labels: Tensor, items: Tensor | int | None) -> Losses:
        """-log softmax(W_proj h) of the labels (sentences, length), from states h (sentences, length, d_model)."""
        inner: Any = unwrap(model)
        if self.tie:
            matrix = inner.get_encoder().get_input_embeddings().weight
            total = projected_cross_entropy(states, matrix, labels, self.label_smoothing)
        else:
            head = inner.projection if self.head is None else self.head
            total = head_cross_entropy(head, states, labels, self.label_smoothing)
        return total / divisor(labels, items), {}


@dataclass
class EncoderLanguageModel(EncoderObjective):
    """Equation 4.7: the encoder, its self-attention causal, predicts each source token from those before it."""

    needs = (ONE_FOR_ALL, CAUSAL_ENCODER)
    whole_model: ClassVar = "AutoModelForCausalLM"

    def collate(self, examples: Sequence[Example]) -> Batch:
        return self.shifted(examples)

    def loss(self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None) -> Losses:
        encoded = _part(model, "encoder")(batch["input_ids"], batch["attention_mask"], is_causal=True)
        return self.cross_entropy(model, encoded.last_hidden_state, batch["labels"], num_items_in_batch)


@dataclass
class EncoderCloze(EncoderObjective):
    """Equation 4.9. distortion: tau."""

    needs = (ONE_FOR_ALL, HAS_ENCODER)
    whole_model: ClassVar = "AutoModelForMaskedLM"
    distortion: Distortion | None = None

    def collate(self, examples: Sequence[Example]) -> Batch:
        distorted, labels = zip(*(_distorted(self.distortion, example) for example in examples))
        return self.padded(distorted, labels)

    def loss(self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None) -> Losses:
        encoded = _part(model, "encoder")(batch["input_ids"], batch["attention_mask"])
        return self.cross_entropy(model, encoded.last_hidden_state, batch["labels"], num_items_in_batch)


@dataclass
class DecoderLanguageModel(TextObjective):
    """F_trg-LM: of a translation model's decoder, or of a causal language model."""

    needs = (ONE_FOR_ALL, HAS_DECODER, NO_FUSION)

    def collate(self, examples: Sequence[Example]) -> Batch:
        return self.shifted(examples)

    def loss(self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None) -> Losses:
        ids, labels, inner = batch["input_ids"], batch["labels"], unwrap(model)
        if not _is_causal_model(model):
            states = _part(model, "decoder")(ids, use_cache=False).last_hidden_state
            total = head_cross_entropy(inner.get_output_embeddings(), states, labels, self.label_smoothing)  # type: ignore[operator]
        elif computes_own_loss(model):
            # Nothing that counts stands to the right of a padded place, so it needs no mask.
            total = model(
                ids, shift_labels=labels, smoothing=self.label_smoothing, loss_only=True, num_items_in_batch=1
            ).loss
        else:
            logits = model(input_ids=ids, attention_mask=batch["attention_mask"], use_cache=False).logits
            total = smoothed_cross_entropy(logits, labels, self.label_smoothing)
        return total / divisor(labels, num_items_in_batch), {}


@dataclass
class PseudoEncoder(TextObjective):
    """F_pseudo-enc: the translation model restores a sentence from its distortion. distortion: tau.

    What a model adds to its loss (auxiliary decoders) is of the same positions.
    """

    needs = (ONE_FOR_ALL, ENCODER_DECODER)
    distortion: Distortion | None = None

    def collate(self, examples: Sequence[Example]) -> Batch:
        distorted, labels = zip(*(_distorted(self.distortion, example) for example in examples))
        batch = self.padded(distorted, labels)
        return {**batch, "decoder_input_ids": self.shifted(examples)["input_ids"]}

    def loss(self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None) -> Losses:
        labels = batch["labels"]
        items = divisor(labels, num_items_in_batch)
        if computes_own_loss(model):
            output = model(**batch, smoothing=self.label_smoothing, loss_only=True, num_items_in_batch=items)
            return output.loss, output.losses or {}
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        logits = model(**inputs, use_cache=False).logits
        return smoothed_cross_entropy(logits, labels, self.label_smoothing) / items, {}


def _distorted(distortion: Distortion | None, example: Example) -> tuple[np.ndarray, np.ndarray]:
    """tau of an example, and its labels: the tokens at the distorted positions, -100 elsewhere."""
    assert distortion is not None
    epoch, sentence = example.get(SHOWN, (0, 0))
    ids = np.asarray(example["input_ids"])
    distorted, chosen = distortion(ids, int(epoch), int(sentence))
    return distorted, np.where(chosen, ids, IGNORED)
