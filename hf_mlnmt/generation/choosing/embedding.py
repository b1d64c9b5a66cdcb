"""Computes sentence embeddings of texts by a translation model's encoder, or by any encoder of Transformers.

For this package's models they are computed by `model.embed` (modeling/transformer.py, bridge.py); for other models they
are the mean of the last states over the positions that are no padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.model_folder import fetch_small_files, load_model, read_config
from hf_mlnmt.data.directions import Direction, direction, has_modules, language_codes
from hf_mlnmt.generation.translating.batches import batches_by_tokens, pad
from hf_mlnmt.generation.translating.loading import Parts, choose_device, load
from hf_mlnmt.generation.translating.segments import TextEncoder
from hf_mlnmt.modeling.transformer import pooled_states

BATCH_TOKENS = 4096
KNOWN = 20_000  # texts whose vectors an Embedder caches


class Embedder:
    """Computes embeddings of texts, vectors of length 1: `embedder(texts)` returns float32 (texts, width).

    Args:
        name: folder or Hub name of a translation model or an encoder. language: code of the texts' language, for a
            model that needs it.
    Raises: UserError when the model cannot be loaded.
    """

    def __init__(self, name: str, device: str | None = None, language: str | None = None):
        self.name, self.language, self.known = name, language, dict[str, np.ndarray]()
        self.parts: Parts | None = None
        if read_config(fetch_small_files(name)).is_encoder_decoder:
            self.parts = load(name, device)
        else:
            self.model = load_model(name, AutoModel, strict=False).to(choose_device(device)).eval()
            self.tokenizer = AutoTokenizer.from_pretrained(name)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        if len(self.known) > KNOWN:
            self.known.clear()
        if new := [text for text in dict.fromkeys(texts) if text not in self.known]:
            self.known |= zip(new, normalised(self._embedded(new)), strict=True)
        return np.stack([self.known[text] for text in texts])

    def _embedded(self, texts: Sequence[str]) -> np.ndarray:
        if self.parts is not None:
            given = [*texts, "."]  # embed_texts refuses texts that are all empty
            return embed_texts(self.parts, given, self.language, default_pooling(self.parts.model))[:-1]
        ids = self.tokenizer(list(texts), truncation=True)["input_ids"]
        found: dict[int, np.ndarray] = {}
        for batch in batches_by_tokens([len(each) for each in ids], BATCH_TOKENS):
            input_ids, mask = pad([ids[i] for i in batch], self.tokenizer.pad_token_id or 0, self.model.device)
            with torch.inference_mode():
                states = self.model(input_ids=input_ids, attention_mask=mask).last_hidden_state
            found |= zip(batch, pooled_states(states, mask, "mean").float().cpu().numpy(), strict=True)
        return np.stack([found[i] for i in range(len(texts))])


@torch.inference_mode()
def embed_texts(
    parts: Parts,
    texts: Sequence[str],
    language: str | None = None,
    pooling: str | int = "flat",
    progress: Any = None,
    target_language: str | None = None,
) -> np.ndarray:
    """Returns embeddings of the texts, float32 (texts, width); an empty text is zeros.

    Args:
        language: code of the texts' language, for a model with several encoders, or one that needs it (NLLB, mBART).
        pooling: "flat", "mean" or the number of a row of the attention bridge, from 0 (`model.embed`).
        progress: called after each batch with its number of texts.
        target_language: for a model whose sources begin with a token of the target language: put that token before
            every text; None: no token, though the encoder was trained with one.

    Raises: UserError for an unknown language, a pooling that the model does not have, or texts that are all empty.
    """
    model = parts.model
    options: dict[str, Any] = {"pooling": pooling}
    if has_modules(model):
        try:
            options["source_language"] = model.config.choose("source", language)
        except ValueError as error:
            raise UserError(str(error)) from error
        parts = parts.of(options["source_language"])
    told = _told(parts, language, target_language)
    encoder = TextEncoder(parts.tokenizers, told)
    ids = encoder(list(texts))
    real = [number for number, sentence in enumerate(ids) if len(sentence) > encoder.overhead]
    if not real:
        raise UserError("there is no text to embed: every line is empty.")
    vectors: dict[int, np.ndarray] = {}
    for batch in batches_by_tokens([len(ids[i]) for i in real], BATCH_TOKENS):
        input_ids, mask = pad([ids[real[i]] for i in batch], parts.source.pad_token_id or 0, model.device)
        try:
            if hasattr(model, "embed"):
                embedded = model.embed(input_ids=input_ids, attention_mask=mask, **options)
            else:  # a model of Transformers has no `embed`
                states = model.get_encoder()(input_ids=input_ids, attention_mask=mask).last_hidden_state
                embedded = pooled_states(states, mask, pooling)
        except ValueError as error:
            raise UserError(str(error)) from error
        found = embedded.float().cpu().numpy()
        vectors |= {real[i]: vector for i, vector in zip(batch, found, strict=True)}
        if progress:
            progress(len(batch))
    zeros = np.zeros_like(vectors[real[0]])
    return np.stack([vectors.get(number, zeros) for number in range(len(texts))])


def check_told(parts: Parts, language: str | None, target_language: str | None) -> None:
    """Raises UserError for a `language` that would be ignored: the model is not told the language of a text."""
    tells = has_modules(parts.model) or hasattr(parts.source, "src_lang")
    if language is not None and not tells and (target_language is None or language_codes(parts.source)):
        raise UserError(
            f"source_language {language!r}: the model is not told the language of a text. Leave the option out."
        )


def default_pooling(model: Any) -> str:
    """Returns the usual pooling: "flat" (concatenated rows) for a model with an attention bridge, else "mean"."""
    return "flat" if has_modules(model) else "mean"


def _told(parts: Parts, language: str | None, target: str | None) -> Direction:
    """Returns the Direction by which the encoder is told the text's language, and the target language if given."""
    if has_modules(parts.model):
        if target is not None:
            raise UserError(f"target_language {target!r}: the encoders of this model see no target. Leave it out.")
        return Direction()
    if target is None and not hasattr(parts.source, "src_lang"):
        return Direction()
    return direction(parts.model, parts.source, language, target or language)


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Returns the vectors scaled to length 1; a vector of zeros stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)
