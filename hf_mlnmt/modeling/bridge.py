"""The attention bridge: an encoder for each source language, a decoder for each target language, and between them one
matrix of fixed size, made by an inner attention that all pairs of languages share.

Reference: Vazquez, Raganato, Creutz and Tiedemann 2020 (cited as by rnn.py), section 2.2; Lin et al. 2017, "A
Structured Self-Attentive Sentence Embedding". Equation numbers are the first's.

| symbol in the paper | here | shape |
| --- | --- | --- |
| H: an encoder's states | last_hidden_state | (batch, source, d_model) |
| A, equation 8 | bridge_attentions | (batch, k, source) |
| M, equation 9: what every decoder reads | memory | (batch, k, d_model) |
| W_1, W_2 | inner_proj, head_proj | (d_w, d_model), (k, d_w) |

(8) A = softmax over the positions of W_2 ReLU(W_1 H^T)      (9) M = A H; padding has weight 0 in A
(10) L = -log p(Y|X) + lambda ||A A^T - I||_F^2, of a sentence: the penalty is summed over sentences, the first term
over target tokens, and both sums are divided by the step's number of target tokens.

Every decoder reads M instead of H, without a mask, as M has k rows for every sentence; a recurrent one begins with
their mean as h and c of all layers. Only the bridge is shared; `pair` returns a model of one encoder and one decoder
around it. The penalty is added in training only, for sentences with a target.

A batch may name its languages by the tokenizer's codes at the beginning of its sources:

| source begins with | source language | target language |
| --- | --- | --- |
| `<2fr>` | the only one, or named | French |
| `<2de><2fr>` | German | French |
| no code | the only one, or named | the only one, or named |

The codes are removed: no encoder reads them. A language given as an argument replaces that of the code.
All rows of a batch are of one pair; padding is on the right.
"""

import copy
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import Seq2SeqModelOutput

from .linear import project
from .outputs import EncoderOutput, TranslationOutput
from .releases import takes_cache
from .rnn import RNNConfig, RNNDecoder, RNNEncoder, RNNForConditionalGeneration, RNNPreTrainedModel
from .transformer import Decoder, Encoder, TransformerForConditionalGeneration, TransformerModel

LANGUAGE = re.compile(r"[A-Za-z0-9]+([-_][A-Za-z0-9]+)*")


@strict
class BridgeConfig(RNNConfig):
    """The config of a model with an encoder for each source language and a decoder for each target language.

    Args:
        coders: the kind of encoders and decoders: "rnn" (rnn.py) or "transformer" (transformer.py).
        source_languages, target_languages: codes. A language may be both: then it has an encoder and a decoder.
        vocab_sizes: language -> entries of its vocabulary. None: one joint vocabulary of `vocab_size`, or with a single
            pair `vocab_size` and `decoder_vocab_size`.
        language_codes: language -> id of its token, which may begin a source and name languages.
        bridge_heads: k, rows of the matrix that every sentence becomes.
        bridge_width: d_w, inner width of the bridge. bridge_bias: biases in both of its products.
        penalty_weight: lambda, of equation 10's penalty; the paper has 1.
    """

    model_type = "mlnmt-bridge"

    coders: Literal["rnn", "transformer"] = "rnn"
    source_languages: list[str] = field(default_factory=lambda: ["en"])
    target_languages: list[str] = field(default_factory=lambda: ["de"])
    vocab_sizes: dict[str, int] | None = None
    language_codes: dict[str, int] | None = None
    bridge_heads: int = 10
    bridge_width: int = 1024
    bridge_bias: bool = False
    penalty_weight: float | int = 1.0
    share_encoder_decoder_embeddings: bool = False

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        if self.vocab_sizes and self.is_pair:
            self.vocab_size = self.vocab_sizes.get(self.source_languages[0], self.vocab_size)
            self.decoder_vocab_size = self.vocab_sizes.get(self.target_languages[0], self.decoder_vocab_size)

    @property
    def languages(self) -> list[str]:
        """Returns all languages, each once. Setting a list removes all other languages from the config, which
        `from_pretrained(folder, languages=[...])` does."""
        return list(dict.fromkeys([*self.source_languages, *self.target_languages]))

    @languages.setter
    def languages(self, wanted: list[str]):
        if missing := [name for name in wanted if name not in self.languages]:
            raise ValueError(f"languages={missing}: not in this model, which has {', '.join(self.languages)}")
        self.source_languages = [name for name in self.source_languages if name in wanted]
        self.target_languages = [name for name in self.target_languages if name in wanted]
        if self.vocab_sizes is not None:
            self.vocab_sizes = {name: size for name, size in self.vocab_sizes.items() if name in wanted}

    @property
    def is_pair(self) -> bool:
        """Returns whether the model has just one source language and one target language."""
        return len(self.source_languages) == len(self.target_languages) == 1

    def vocabulary(self, language: str, side: Literal["source", "target"]) -> int:
        if self.vocab_sizes is not None:
            return self.vocab_sizes[language]
        assert self.decoder_vocab_size is not None
        return self.vocab_size if side == "source" else self.decoder_vocab_size

    @contextmanager
    def sized_for(self, language: str) -> Iterator[None]:
        """Sets the config's vocabulary sizes to those of `language` inside a with block that makes its modules.

        All modules share this one config object, so that later changes in it reach all of them.
        """
        sizes = self.vocab_size, self.decoder_vocab_size
        self.vocab_size, self.decoder_vocab_size = (self.vocabulary(language, side) for side in ("source", "target"))
        try:
            yield
        finally:
            self.vocab_size, self.decoder_vocab_size = sizes

    def choose(self, side: Literal["source", "target"], language: str | None) -> str:
        """Returns `language`, or for None the side's only language. Raises: ValueError, which lists the side's
        languages, for an unknown language, and for None where the side has several."""
        known = self.source_languages if side == "source" else self.target_languages
        if language is None and len(known) == 1:
            return known[0]
        if language not in known:
            said = " is missing" if language is None else f"={language!r} is unknown"
            raise ValueError(f"{side}_language{said}: this model's {side} languages are {', '.join(known) or 'none'}")
        return language

    def cache_slots(self) -> list[str]:
        return super().cache_slots() if self.coders == "rnn" else ["full_attention"] * self.decoder_layers

    def validate_depth(self):
        pass  # no check: decoders begin with the mean of M's rows, whatever the encoder's number of layers

    def validate_languages(self):
        """Raises ValueError for no source language, a repeated or wrong code, and a language without a vocabulary."""
        for name in ("source_languages", "target_languages"):
            codes = getattr(self, name)
            if len(set(codes)) < len(codes):
                raise ValueError(f"{name}={codes}: a language is there twice")
            for code in codes:
                if not LANGUAGE.fullmatch(code):
                    raise ValueError(f"{name}: {code!r} is no language code; letters and digits, as de or zh-Hans")
        if not self.source_languages:
            raise ValueError("source_languages=[]: give at least one")
        if self.vocab_sizes is not None:
            if missing := [name for name in self.languages if name not in self.vocab_sizes]:
                raise ValueError(f"vocab_sizes has no {', '.join(missing)}")
        elif not self.is_pair and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"decoder_vocab_size={self.decoder_vocab_size} differs from vocab_size={self.vocab_size}: several "
                "languages have one joint vocabulary, or each its own in vocab_sizes"
            )

    def validate_bridge(self):
        """Raises ValueError for a size of the bridge below 1, a negative penalty weight, and shared embeddings."""
        for name in ("bridge_heads", "bridge_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.penalty_weight < 0:
            raise ValueError(f"penalty_weight={self.penalty_weight}: must be at least 0")
        if self.share_encoder_decoder_embeddings:
            raise ValueError("share_encoder_decoder_embeddings: only the bridge is shared; embeddings are a language's")


class AttentionBridge(nn.Module):
    """The inner attention, equations 8 and 9, which turns a sentence's states into k rows. `width` is the paper's d_h,
    `inner` d_w and `heads` k; the paper prints no biases."""

    def __init__(self, width: int, inner: int, heads: int, bias: bool = False):
        super().__init__()
        self.inner_proj = nn.Linear(width, inner, bias=bias)  # W_1
        self.head_proj = nn.Linear(inner, heads, bias=bias)  # W_2

    def forward(self, states: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Computes M (batch, k, d_h) and A (batch, k, source) of H (batch, source, d_h) and its mask, 0 at padding."""
        scores = project(self.head_proj, torch.relu(project(self.inner_proj, states))).transpose(1, 2)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if mask is not None:
            scores = scores.masked_fill((mask == 0).unsqueeze(1), torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        return torch.matmul(weights.to(states.dtype), states), weights


def pooled_rows(memory: Tensor, pooling: str | int) -> Tensor:
    """Pools M (batch, k, d): "flat" concatenates its rows, (batch, k d); "mean" averages them; a number selects one.

    Raises: ValueError for another pooling.
    """
    if pooling == "flat":
        return memory.flatten(1)
    if pooling == "mean":
        return memory.mean(1)
    if isinstance(pooling, int) and not isinstance(pooling, bool) and 0 <= pooling < memory.shape[1]:
        return memory[:, pooling]
    raise ValueError(f"pooling={pooling!r}: give flat, mean, or a row's number from 0 to {memory.shape[1] - 1}")


def redundancy(weights: Tensor) -> Tensor:
    """Computes equation 10's penalty ||A A^T - I||_F^2 for each sentence, (batch,), from A (batch, k, source).

    Where k is greater than the number n of a sentence's positions it cannot be less than k - n: A A^T has rank n.
    """
    excess = torch.matmul(weights, weights.transpose(1, 2)) - torch.eye(weights.shape[1]).to(weights)
    return excess.square().sum((1, 2))


def take_codes(
    codes: Mapping[str, int] | None,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    source: str | None = None,
    target: str | None = None,
) -> tuple[Tensor | None, Tensor | None, str | None, str | None]:
    """Removes the language codes at the beginning of input_ids and attention_mask (batch, source). Returns both
    tensors, then source and target language: each the given one, else the code's, else None.

    codes: language -> id of its token; None: the model has none, and nothing is changed.
    Raises: ValueError where rows begin with codes of different languages.
    """
    if not codes or input_ids is None:
        return input_ids, attention_mask, source, target
    names = {identifier: language for language, identifier in codes.items()}
    rows: set[tuple[str | None, ...]] = {tuple(map(names.get, row)) for row in input_ids[:, :2].tolist()}
    said = {row if None not in row else row[: row.index(None)] for row in rows}
    if len(said) > 1:
        pairs = "; ".join(sorted(" to ".join(map(str, row)) or "none" for row in said))
        raise ValueError(
            f"the rows of this batch begin with codes of different languages ({pairs}): a batch is of one pair; "
            "hf_mlnmt.generation.TranslationPipeline takes a list of languages, one for each text"
        )
    languages = next(iter(said), ())
    mask = None if attention_mask is None else attention_mask[:, len(languages) :]
    by_code = (None, None, *languages)[-2:]
    return input_ids[:, len(languages) :], mask, source or by_code[0], target or by_code[1]


CODERS: dict[str, dict[str, Any]] = {
    "rnn": {"source": RNNEncoder, "target": RNNDecoder},
    "transformer": {"source": Encoder, "target": Decoder},
}


@dataclass
class BridgeEncoderOutput(EncoderOutput):
    """The output of encoder and bridge. `bridge_attentions`: the bridge's weights A (batch, k, source)."""

    bridge_attentions: Tensor | None = None


@dataclass
class BridgeModelOutput(Seq2SeqModelOutput):
    """The output of `BridgeModel`. `bridge_attentions`: the bridge's weights A (batch, k, source)."""

    bridge_attentions: Tensor | None = None


class BridgePreTrainedModel(RNNPreTrainedModel):
    """The base of all models with an attention bridge."""

    config: BridgeConfig
    _supports_flash_attn = True

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        # Transformers would guess from the text of this file, and be misled by the name AttentionBridge.
        return True


def module_name(language: str) -> str:
    """Returns the name of a language's modules: "of_" and its code, since the code "to" is also a method of modules."""
    return f"of_{language}"


def new_coder(config: BridgeConfig, language: str, side: Literal["source", "target"]) -> Any:
    """Makes a language's encoder (source) or decoder (target), with new weights."""
    with config.sized_for(language):
        return CODERS[config.coders][side](config)


def new_head(config: BridgeConfig, language: str) -> nn.Linear:
    """Makes a language's output projection, with new weights."""
    return nn.Linear(config.d_model, config.vocabulary(language, "target"), bias=config.output_bias)


def tied_heads(names: Iterable[str]) -> dict[str, str]:
    """Maps, for modules of the given names, the name of an output projection's weight to that of the decoder's
    embeddings, to which it is tied."""
    return {f"lm_heads.{name}.weight": f"model.decoders.{name}.embed_tokens.weight" for name in names}


def other_languages(config: BridgeConfig) -> list[str]:
    """Returns patterns of the names of weights that belong to none of the config's languages: loading ignores these."""
    kept = {"encoders": config.source_languages, "decoders": config.target_languages}
    kept["lm_heads"] = config.target_languages
    names = {part: "|".join(map(module_name, codes)) or "-" for part, codes in kept.items()}
    return [rf"(^|\.){part}\.(?!({known})\.)" for part, known in names.items()]


class BridgedEncoder(nn.Module):
    """A language's encoder followed by the bridge, called like an encoder."""

    main_input_name = "input_ids"
    hands_on = ("memory",)

    def __init__(self, encoder: Any, bridge: AttentionBridge):
        super().__init__()
        self.encoder, self.bridge = encoder, bridge
        self.train(encoder.training)

    @property
    def embed_tokens(self) -> nn.Module:
        return self.encoder.embed_tokens

    @property
    def layers(self) -> nn.ModuleList:
        return self.encoder.layers

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs,
    ) -> BridgeEncoderOutput:
        """Encodes input_ids and attention_mask (batch, source); returns H, M (`memory`) and A (`bridge_attentions`)."""
        encoded = self.encoder(input_ids, attention_mask, inputs_embeds, **{**kwargs, "return_dict": True})
        memory, weights = self.bridge(encoded.last_hidden_state, attention_mask)
        return BridgeEncoderOutput(
            last_hidden_state=encoded.last_hidden_state,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
            memory=memory,
            bridge_attentions=weights,
        )


class BridgeModel(BridgePreTrainedModel, TransformerModel):
    """Encoders, bridge and decoders, without output projections; forward is for one language on each side."""

    def __init__(self, config: BridgeConfig):
        super(TransformerModel, self).__init__(config)
        self._tied_weights_keys, self._keys_to_ignore_on_load_unexpected = {}, other_languages(config)
        source, target = config.source_languages, config.target_languages
        self.encoders = nn.ModuleDict({module_name(code): new_coder(config, code, "source") for code in source})
        self.decoders = nn.ModuleDict({module_name(code): new_coder(config, code, "target") for code in target})
        self.bridge = AttentionBridge(config.d_model, config.bridge_width, config.bridge_heads, config.bridge_bias)
        self.post_init()

    @property
    def encoder(self) -> BridgedEncoder:  # type: ignore[override]
        """Returns the encoder, with the bridge, of a model that has one source language."""
        return BridgedEncoder(self.encoders[module_name(self.config.choose("source", None))], self.bridge)

    @property
    def decoder(self) -> Any:  # type: ignore[override]
        """Returns the decoder of a model that has one target language."""
        return self.decoders[module_name(self.config.choose("target", None))]

    def get_input_embeddings(self) -> nn.Module:
        if len(self.config.source_languages) != 1:
            raise NotImplementedError("every source language has embeddings of its own: model.pair(...) has one")
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module):
        self.encoder.encoder.embed_tokens = value

    def decode(self, encoded: EncoderOutput, **inputs: Any) -> BridgeModelOutput:
        """Runs the decoder over M; drops a mask (batch, source), since no row of M is padding.

        A mask of four dimensions is kept: a search made it for M, which it pads to whole blocks of slots.
        """
        mask = inputs["encoder_attention_mask"]
        if mask is not None and mask.dim() == 2:
            inputs["encoder_attention_mask"] = None
        outputs = super().decode(encoded, **inputs)
        return BridgeModelOutput(**outputs, bridge_attentions=getattr(encoded, "bridge_attentions", None))


class BridgeForConditionalGeneration(BridgePreTrainedModel, TransformerForConditionalGeneration):
    """The translation model from any of its source languages into any of its target languages.

    forward and generate() have arguments `source_language` and `target_language`; they can be left out for a side with
    one language, and where the sources begin with language codes.
    """

    model_class = BridgeModel
    citation = RNNForConditionalGeneration.citation
    _tied_weights_keys = {}

    def __init__(self, config: BridgeConfig):
        super(TransformerForConditionalGeneration, self).__init__(config)
        self.model: Any = BridgeModel(config)
        self.lm_heads = nn.ModuleDict({module_name(code): new_head(config, code) for code in config.target_languages})
        self._keys_to_ignore_on_load_unexpected = other_languages(config)
        self._tied_weights_keys = tied_heads(self.lm_heads)
        self.post_init()

    @property
    def lm_head(self) -> Any:  # type: ignore[override]
        """Returns the output projection of a model that has one target language."""
        return self.lm_heads[module_name(self.config.choose("target", None))]

    def get_output_embeddings(self) -> Any:
        """Returns the output projection of a model that has one target language; None for several."""
        return self.lm_head if len(self.config.target_languages) == 1 else None

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, pretrained_model_name_or_path: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any
    ) -> Any:
        """Loads the model; with `languages=[...]` only the encoders and decoders of these. Raises: ValueError if one of
        them has no weights in the checkpoint."""
        model, info = super().from_pretrained(pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs)
        missing = set(info["missing_keys"])
        loaded = [name for name, _ in model.named_parameters() if name not in missing]
        coders = [f"model.encoders.{name}" for name in model.model.encoders]
        coders += [f"model.decoders.{name}" for name in model.model.decoders]
        lacking = [coder for coder in coders if not any(name.startswith(f"{coder}.") for name in loaded)]
        # If the bridge is missing too, no weight matched: then the languages are not the cause.
        if lacking and not any(".bridge." in key for key in missing):
            raise ValueError(
                f"{pretrained_model_name_or_path} has no weights of {', '.join(lacking)}, which its config.json names: "
                "take languages=[...] that are there, or download the folder again"
            )
        return (model, info) if output_loading_info else model

    def pair(self, source_language: str | None = None, target_language: str | None = None) -> Any:
        """Makes a model of one encoder, the bridge and one decoder, which shares the weights and can be saved alone.

        Raises: ValueError for an unknown language, which lists the model's.
        """
        pair = self.between(source_language, target_language)
        pair = copy.copy(self) if pair is self else pair
        pair.generation_config = copy.deepcopy(self.generation_config)
        return pair

    def between(self, source_language: str | None, target_language: str | None) -> Any:
        """Returns a model of one source and one target language: this one if it has no others, else a copy that shares
        its weights."""
        source = self.config.choose("source", source_language)
        target = self.config.choose("target", target_language)
        if self.config.is_pair:
            return self
        model, inner = copy.copy(self), copy.copy(self.model)
        source_name, target_name = module_name(source), module_name(target)
        config = model.config = inner.config = copy.copy(self.config)
        sizes = self.config.vocabulary(source, "source"), self.config.vocabulary(target, "target")
        config.source_languages, config.target_languages = [source], [target]
        config.vocab_size, config.decoder_vocab_size = sizes
        if config.vocab_sizes is not None:
            config.vocab_sizes = dict(zip((source, target), sizes))
        inner._modules = {
            **self.model._modules,
            "encoders": nn.ModuleDict({source_name: self.model.encoders[source_name]}),
            "decoders": nn.ModuleDict({target_name: self.model.decoders[target_name]}),
        }
        heads = nn.ModuleDict({target_name: self.lm_heads[target_name]})
        model._modules = {**self._modules, "model": inner, "lm_heads": heads}
        own = tied_heads(heads)
        for name in ("_tied_weights_keys", "all_tied_weights_keys"):
            tied = getattr(self, name, None) or {}
            setattr(model, name, {key: value for key, value in tied.items() if key in own})
        return model

    def add_language(
        self, language: str, source: bool = True, target: bool = True, vocab_size: int | None = None
    ) -> None:
        """Adds an encoder, a decoder or both for a new language, with new weights.

        vocab_size: entries of the language's vocabulary, where every language has its own; None: the joint one.

        Raises: ValueError if the model has them already, or where `vocab_size` is missing or not allowed.
        """
        config, name = self.config, module_name(language)
        if (vocab_size is None) != (config.vocab_sizes is None):
            has = "one joint vocabulary: leave it out" if vocab_size else "a vocabulary each: give that of this one"
            raise ValueError(f"vocab_size={vocab_size}: the languages of this model have {has}")
        own = config.vocab_sizes or {}
        if vocab_size != own.get(language, vocab_size):
            raise ValueError(f"vocab_size={vocab_size}: {language} has {own[language]} entries already")
        for side, wanted in (("source", source), ("target", target)):
            if wanted and language in (codes := getattr(config, f"{side}_languages")):
                raise ValueError(f"{language} is a {side} language of this model already: {', '.join(codes)}")
        device, dtype = self.device, self.dtype
        if vocab_size is not None:
            config.vocab_sizes = {**own, language: vocab_size}
        if source:
            self.model.encoders[name] = new_coder(config, language, "source").to(device, dtype)
            config.source_languages = [*config.source_languages, language]
        if target:
            self.model.decoders[name] = new_coder(config, language, "target").to(device, dtype)
            head = new_head(config, language)
            self._init_weights(head)
            self.lm_heads[name] = head.to(device, dtype)
            tied = tied_heads([name])
            self._tied_weights_keys = {**self._tied_weights_keys, **tied}
            if config.tie_word_embeddings:
                self.all_tied_weights_keys = {**self.all_tied_weights_keys, **tied}
                self.lm_heads[name].weight = self.model.decoders[name].embed_tokens.weight
            config.target_languages = [*config.target_languages, language]
        self.train(self.training)

    @takes_cache
    @functools.wraps(TransformerForConditionalGeneration.forward)
    def forward(  # type: ignore[override]
        self, input_ids=None, attention_mask=None, *inputs, source_language=None, target_language=None, **named
    ) -> TranslationOutput:
        """Computes logits and loss for one source and one target language; further arguments as of the baseline's."""
        input_ids, attention_mask, source_language, target_language = take_codes(
            self.config.language_codes, input_ids, attention_mask, source_language, target_language
        )
        model = self.between(source_language, target_language)
        return super(BridgeForConditionalGeneration, model).forward(input_ids, attention_mask, *inputs, **named)

    def generate(self, inputs=None, *args, source_language=None, target_language=None, **kwargs) -> Any:
        """Translates from one language of this model into another, also where this pair was not trained."""
        inputs = kwargs.pop("input_ids", None) if inputs is None else inputs
        inputs, mask, source_language, target_language = take_codes(
            self.config.language_codes, inputs, kwargs.pop("attention_mask", None), source_language, target_language
        )
        kwargs |= {} if mask is None else {"attention_mask": mask}
        model = self.between(source_language, target_language)
        return super(BridgeForConditionalGeneration, model).generate(inputs, *args, **kwargs)

    def embed(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        pooling: str | int = "flat",
        source_language: str | None = None,
        **inputs,
    ) -> Tensor:
        """Returns sentence embeddings, in the same space for all languages, by `pooling` the rows of M: concatenated
        (batch, k d_model), their mean or one row (batch, d_model). Calls no decoder.

        Raises: ValueError for an unknown language or pooling, which lists the known ones.
        """
        input_ids, attention_mask, source_language, _ = take_codes(
            self.config.language_codes, input_ids, attention_mask, source_language
        )
        language = self.config.choose("source", source_language)
        encoder = BridgedEncoder(self.model.encoders[module_name(language)], self.model.bridge)
        return pooled_rows(encoder(input_ids, attention_mask, **inputs).memory, pooling)

    def supervise(self, outputs: Any, logits, labels, label_smoothing, items) -> dict[str, Tensor]:
        """Returns the terms of equation 10: "translation" and, in training, "penalty"."""
        losses = super().supervise(outputs, logits, labels, label_smoothing, items)
        if self.training and self.config.penalty_weight and outputs.bridge_attentions is not None:
            real = (labels != -100).any(1)
            penalty = torch.where(real, redundancy(outputs.bridge_attentions), 0.0).sum()
            losses["penalty"] = self.config.penalty_weight * penalty / items
        return losses

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args, **kwargs):
        # From here on caches and loops read the length and the mask of the source here: give them M, without a mask.
        encoded = EncoderOutput.of(model_kwargs["encoder_outputs"], BridgedEncoder.hands_on)
        recorded = {name: getattr(encoded, name) for name in ("hidden_states", "attentions")}
        model_kwargs["encoder_outputs"] = EncoderOutput(encoded.memory, memory=encoded.memory, **recorded)
        model_kwargs.pop("attention_mask", None)
        return super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
