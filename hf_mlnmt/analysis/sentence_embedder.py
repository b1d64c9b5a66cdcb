"""A translation model as a module of sentence-transformers, which must be installed, release 6 or later.

>>> embedder = sentence_transformer("runs/bridge/average", language="de")
>>> embedder.encode(["Ein Hund."])                      # the embeddings of `hf-mlnmt analyse embed`
>>> embedder.encode(["A dog."], language="en")          # with a model of several languages, in the same space

`embedder.save(FOLDER)` writes a model folder, which SentenceTransformer(FOLDER, trust_remote_code=True) loads, as
sentence-transformers requires for modules that are not its own, where this package is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import InputModule
from torch import Tensor

from hf_mlnmt.data.directions import Direction, has_modules
from hf_mlnmt.generation.choosing.embedding import default_pooling
from hf_mlnmt.generation.translating.batches import pad
from hf_mlnmt.generation.translating.loading import Parts, load
from hf_mlnmt.generation.translating.segments import TextEncoder


def sentence_transformer(
    name: str, language: str | None = None, pooling: str | int | None = None, device: str | None = None
) -> SentenceTransformer:
    """Makes a SentenceTransformer from a model of this package, a folder or a Hub name. Raises: UserError for others.

    Args:
        language: of the texts, unless encode(..., language=...) is given.
        pooling: as of `model.embed`; default: flat with a bridge, else mean.
    """
    return SentenceTransformer(modules=[SentenceEmbedder(load(name, device), language, pooling)], device=device)


class SentenceEmbedder(InputModule):
    """Tokenizes texts and embeds them by `model.embed`; the embedding of an empty text is zeros."""

    config_file_name = "sentence_embedder.json"
    config_keys = ["language", "pooling"]
    forward_kwargs = {"language"}
    save_in_root = True

    def __init__(self, parts: Parts, language: str | None = None, pooling: str | int | None = None):
        super().__init__()
        self.model, self.tokenizer, self.parts = parts.model, parts.source, parts._replace(model=None)
        self.language = language
        self.pooling = default_pooling(parts.model) if pooling is None else pooling
        self.encoder = TextEncoder(parts.tokenizers, Direction())

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Tokenizes texts, after the prompt if given; returns input_ids and attention_mask (texts, longest)."""
        language = kwargs.get("language") or self.language
        encoder = self.encoder
        if self.parts.tokenizers.each and language is not None:
            encoder = TextEncoder(self.parts.of(language).tokenizers, Direction())
        ids = encoder([(prompt or "") + text for text in inputs])
        input_ids, mask = pad(ids, self.tokenizer.pad_token_id or 0)
        return {"input_ids": input_ids, "attention_mask": mask}

    def forward(self, features: dict[str, Any], language: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Adds `sentence_embedding` (texts, width) to the features input_ids and attention_mask, and returns them."""
        told = {"source_language": language or self.language} if has_modules(self.model) else {}
        mask: Tensor = features["attention_mask"]
        vectors = self.model.embed(features["input_ids"], mask, pooling=self.pooling, **told)
        real = mask.sum(1, keepdim=True) > self.encoder.overhead
        features["sentence_embedding"] = torch.where(real, vectors, 0.0)
        return features

    def get_embedding_dimension(self) -> int:
        """Returns the width of an embedding."""
        width, rows = self.model.config.d_model, getattr(self.model.config, "bridge_heads", 1)
        return width * rows if self.pooling == "flat" else width

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Writes a model folder, and this module's language and pooling into sentence_embedder.json in it."""
        self.model.save_pretrained(output_path)
        self.parts.tokenizers.save(output_path)
        self.save_config(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> SentenceEmbedder:
        """Loads the module from a folder that `save` wrote, or by the Hub name of one."""
        hub = {name: kwargs.get(name) for name in ("revision", "token", "local_files_only")}
        config = cls.load_config(model_name_or_path, subfolder=subfolder, **hub)
        options = {name: value for name, value in hub.items() if value}
        return cls(load(f"{model_name_or_path}/{subfolder}".rstrip("/"), "cpu", **options), **config)
