"""Sentence embeddings of a translation model, and translation retrieval with them.

Reference: the paper on the attention bridge, sections 1 and 2: the k rows of M as a sentence's representation.
`model.embed` (modeling/sentence_embedding.py) says what an embedding is; this file compares texts and languages.

Retrieval: for every sentence of one language the nearest one of another, by cosine; accuracy@1 is the share for which
that is its translation, line by line of two aligned files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.words import is_visible
from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.batches import batches_by_tokens, pad
from hf_mlnmt.generation.languages import Direction, direction, has_modules, language_codes
from hf_mlnmt.generation.loading import Parts
from hf_mlnmt.generation.pipeline import progress_bar
from hf_mlnmt.generation.segments import TextEncoder
from hf_mlnmt.modeling.sentence_embedding import pooled_states
from hf_mlnmt.table import Number, Table


@torch.inference_mode()
def embed_texts(
    parts: Parts,
    texts: Sequence[str],
    language: str | None = None,
    pooling: str | int = "flat",
    batch_tokens: int = 4096,
    progress: Any = None,
    target_language: str | None = None,
) -> np.ndarray:
    """Returns embeddings of the texts, float32 (texts, width); an empty text is zeros.

    Args:
        language: of the texts, for a model with several encoders, or whose tokenizer is told it (NLLB, mBART).
        pooling: "flat", "mean" or the number of a row, from 0 (`model.embed`).
        progress: called with the number of texts done.
        target_language: for a model that is told it by a token before the source, which then stands before every text;
            None: no such token, though the encoder has always seen one.

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
    told = _told(parts, language, target_language)
    encoder = TextEncoder(parts.source, parts.source_processing, told, None, None)
    ids = encoder(list(texts))
    real = [number for number, sentence in enumerate(ids) if len(sentence) > encoder.overhead]
    embeddings: np.ndarray | None = None
    for batch in batches_by_tokens([len(ids[i]) for i in real], batch_tokens):
        chosen = [real[i] for i in batch]
        input_ids, mask = pad([ids[i] for i in chosen], parts.source.pad_token_id or 0, model.device)
        try:
            vectors = _embed(model, input_ids, mask, options).float().cpu().numpy()
        except ValueError as error:
            raise UserError(str(error)) from error
        if embeddings is None:
            embeddings = np.zeros((len(texts), vectors.shape[1]), np.float32)
        embeddings[chosen] = vectors
        if progress:
            progress(len(chosen))
    if embeddings is None:
        raise UserError("there is no text to embed: every line is empty.")
    return embeddings


def embed_file(
    parts: Parts,
    file: Path,
    language: str | None = None,
    pooling: str | None = None,
    target_language: str | None = None,
) -> np.ndarray:
    """Embeds a file's lines by `embed_texts`, with a bar on standard error where that is a terminal.

    pooling: "flat", "mean" or the digits of a row's number; None: flat with a bridge, else mean.
    """
    chosen = pooling or default_pooling(parts.model)
    texts = list(read_lines(file))
    if not any(map(is_visible, texts)):
        raise UserError(f"{file}: every line is blank: there is no text to embed.")
    row = int(chosen) if chosen.isdigit() else chosen
    with progress_bar(len(texts)) as update:
        return embed_texts(parts, texts, language, row, progress=update, target_language=target_language)


def check_told(parts: Parts, language: str | None, target_language: str | None) -> None:
    """Raises UserError for a language of the text where nothing in the model depends on it."""
    tells = has_modules(parts.model) or hasattr(parts.source, "src_lang")
    if language is not None and not tells and (target_language is None or language_codes(parts.source)):
        raise UserError(
            f"source_language {language!r}: the model is not told the language of a text. Leave the option out."
        )


def default_pooling(model: Any) -> str:
    """Returns "flat", a bridge's rows side by side, where there is a bridge, else "mean"."""
    return "flat" if has_modules(model) else "mean"


def _told(parts: Parts, language: str | None, target: str | None) -> Direction:
    """Returns the marks that stand before a text, or are set in the tokenizer."""
    if has_modules(parts.model):
        if target is not None:
            raise UserError(f"target_language {target!r}: the encoders of this model see no target. Leave it out.")
        return Direction()
    if target is None and not hasattr(parts.source, "src_lang"):
        return Direction()
    return direction(parts.model, parts.source, language, target or language)


def _embed(model: Any, input_ids: Tensor, mask: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Calls `model.embed`, or takes the mean of the states of a model of another package."""
    inputs = {"input_ids": input_ids, "attention_mask": mask}
    if hasattr(model, "embed"):
        embedded: Tensor = model.embed(**inputs, **options)
        return embedded
    return pooled_states(model.get_encoder()(**inputs).last_hidden_state, mask, options["pooling"])


def retrieval(embeddings: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns accuracy@1 by "from-to", of embeddings (sentences, width) of the same sentences in several languages.

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
    """Returns the vectors with length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


def retrieval_table(accuracies: Mapping[str, Mapping[str, float]], codes: Sequence[str]) -> Table:
    """Makes a row for each language of the queries of one model; of several {name: accuracy} a row for each model."""
    means = {name: 100 * sum(accuracy.values()) / len(accuracy) for name, accuracy in accuracies.items()}
    first = next(iter(accuracies.values()))
    if len(accuracies) == 1:
        rows = [[a, *("" if a == b else f"{100 * first[f'{a}-{b}']:.1f}" for b in codes)] for a in codes]
        mean = next(iter(means.values()))
        return Table(["from / to", *map(Number, codes)], rows, "accuracy@1 in %", f"mean {mean:.1f}")
    rows = [
        [name, f"{means[name]:.1f}", *(f"{100 * accuracy[pair]:.1f}" for pair in first)]
        for name, accuracy in accuracies.items()
    ]
    return Table(["model", *map(Number, ("mean", *first))], rows, "accuracy@1 in %")
