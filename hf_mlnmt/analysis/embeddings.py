"""Sentence embeddings of a translation model, and translation retrieval with them.

Reference: the paper on the attention bridge, sections 1 and 2: the k rows of M as a sentence's representation.
`model.embed` (modeling/sentence_embedding.py) says what an embedding is; this file compares texts and languages.

Retrieval: for every sentence of one language the nearest one of another, by cosine; accuracy@1 is the share for which
that is its translation, line by line of two aligned files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import torch

from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.batches import batches_by_tokens, pad
from hf_mlnmt.generation.languages import Direction, has_modules
from hf_mlnmt.generation.loading import Parts
from hf_mlnmt.generation.segments import TextEncoder


@torch.inference_mode()
def embed_texts(
    parts: Parts,
    texts: Sequence[str],
    language: str | None = None,
    pooling: str | int = "flat",
    batch_tokens: int = 4096,
    progress: Any = None,
) -> np.ndarray:
    """Embeddings of the texts, float32 (texts, width); an empty text is zeros.

    Args:
        language: of the texts, for a model with several encoders.
        pooling: "flat", "mean" or the number of a row, from 0 (`model.embed`).
        progress: called with the number of texts done.

    Raises: UserError for an unknown language, or a pooling that the model has not.
    """
    model = parts.model
    options: dict[str, Any] = {"pooling": pooling}
    if has_modules(model):
        try:
            options["source_language"] = model.config.choose("source", language)
        except ValueError as error:
            raise UserError(str(error)) from error
        parts = parts.of(options["source_language"])
    encoder = TextEncoder(parts.source, parts.source_processing, Direction(), None, None)
    ids = encoder(list(texts))
    real = [number for number, sentence in enumerate(ids) if len(sentence) > encoder.overhead]
    found: np.ndarray | None = None
    for batch in batches_by_tokens([len(ids[i]) for i in real], batch_tokens):
        chosen = [real[i] for i in batch]
        input_ids, mask = pad([ids[i] for i in chosen], parts.source.pad_token_id or 0, model.device)
        try:
            vectors = model.embed(input_ids=input_ids, attention_mask=mask, **options).float().cpu().numpy()
        except ValueError as error:
            raise UserError(str(error)) from error
        found = np.zeros((len(texts), vectors.shape[1]), np.float32) if found is None else found
        found[chosen] = vectors
        if progress:
            progress(len(chosen))
    if found is None:
        raise UserError("there is no text to embed: every line is empty.")
    return found


def retrieval(embeddings: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Accuracy@1 by "from-to", of embeddings (sentences, width) of the same sentences in several languages.

    Raises: UserError for files of different lengths.
    """
    counts = {language: len(vectors) for language, vectors in embeddings.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{language} {count}" for language, count in counts.items())
        raise UserError(f"the files have different numbers of lines ({said}): line i must say the same in all of them.")
    unit = {language: normalised(vectors) for language, vectors in embeddings.items()}
    return {
        f"{source}-{target}": float(((unit[source] @ unit[target].T).argmax(1) == np.arange(counts[source])).mean())
        for source, target in permutations(unit, 2)
    }


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Of length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)
