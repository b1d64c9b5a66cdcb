"""The config of the attention bridge (bridge.py): its languages, what encoders and decoders are, and the bridge."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Literal

from huggingface_hub.dataclasses import strict

from .rnn import RNNConfig

LANGUAGE = re.compile(r"[A-Za-z0-9]+([-_][A-Za-z0-9]+)*")


@strict
class BridgeConfig(RNNConfig):
    """The config of a model with an encoder for each source language and a decoder for each target language.

    Args:
        coders: what encoders and decoders are: "rnn" (rnn.py) or "transformer" (transformer.py).
        source_languages, target_languages: codes. A language may be both: then it has an encoder and a decoder.
        vocab_sizes: language -> entries of its vocabulary. None: one joint vocabulary of `vocab_size`, or with a single
            pair `vocab_size` and `decoder_vocab_size`.
        language_codes: language -> id of its token, which may begin a source and name languages (language_codes.py).
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
        """All languages, each once. Set, it leaves only those modules: `from_pretrained(folder, languages=[...])`."""
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
        """Whether there is one language on each side."""
        return len(self.source_languages) == len(self.target_languages) == 1

    def vocabulary(self, language: str, side: Literal["source", "target"]) -> int:
        """Entries of a language's vocabulary."""
        if self.vocab_sizes is not None:
            return self.vocab_sizes[language]
        assert self.decoder_vocab_size is not None
        return self.vocab_size if side == "source" else self.decoder_vocab_size

    @contextmanager
    def sized_for(self, language: str) -> Iterator[None]:
        """While a language's encoder or decoder is made, the vocabulary is that language's.

        All modules share this one config, or what is changed in it later would reach some of them only.
        """
        sizes = self.vocab_size, self.decoder_vocab_size
        self.vocab_size, self.decoder_vocab_size = (self.vocabulary(language, side) for side in ("source", "target"))
        try:
            yield
        finally:
            self.vocab_size, self.decoder_vocab_size = sizes

    def choose(self, side: Literal["source", "target"], language: str | None) -> str:
        """The language that is meant; None: the only one. Raises: ValueError that lists those there are."""
        known = self.source_languages if side == "source" else self.target_languages
        if language is None and len(known) == 1:
            return known[0]
        if language not in known:
            said = " is missing" if language is None else f"={language!r} is unknown"
            raise ValueError(f"{side}_language{said}: this model's {side} languages are {', '.join(known) or 'none'}")
        return language

    def cache_slots(self) -> list[str]:
        """As the decoders need."""
        return ["mlnmt_lstm"] if self.coders == "rnn" else ["full_attention"] * self.decoder_layers

    def validate_depth(self):
        """Decoders begin with the mean of the bridge's rows: encoders may have other depths."""

    def validate_languages(self):
        """Codes that can name modules; vocabularies for all."""
        for name in ("source_languages", "target_languages"):
            codes = getattr(self, name)
            if len(set(codes)) < len(codes):
                raise ValueError(f"{name}={codes}: a language is there twice")
            for code in codes:
                if not LANGUAGE.fullmatch(code):
                    raise ValueError(f"{name}: {code!r} is no language code; letters and digits, as de or zh-Hans")
        if not self.source_languages:
            raise ValueError("source_languages=[]: give at least one")
        if missing := [
            name for name in self.languages if self.vocab_sizes is not None and name not in self.vocab_sizes
        ]:
            raise ValueError(f"vocab_sizes has no {', '.join(missing)}")
        if self.vocab_sizes is None and not self.is_pair and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"decoder_vocab_size={self.decoder_vocab_size} differs from vocab_size={self.vocab_size}: several "
                "languages have one joint vocabulary, or each its own in vocab_sizes"
            )

    def validate_bridge(self):
        """Sizes of the bridge; and nothing but the bridge is shared."""
        for name in ("bridge_heads", "bridge_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.penalty_weight < 0:
            raise ValueError(f"penalty_weight={self.penalty_weight}: must be at least 0")
        if self.share_encoder_decoder_embeddings:
            raise ValueError("share_encoder_decoder_embeddings: only the bridge is shared; embeddings are a language's")
