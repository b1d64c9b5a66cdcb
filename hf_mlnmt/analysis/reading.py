"""Sentences through a model: a sample with a seed, batches, the encoder alone or the whole model, attention weights.

Padding is on the right; `real` tensors say which positions are not padding. Sources end with what the tokenizer puts
there (</s>), which counts as a position; the decoder's input begins with its start token.
Every system that an analysis looks at gets the same sample.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.directions import Direction, direction, has_modules, pair_of
from hf_mlnmt.evaluation.scores import check_counts
from hf_mlnmt.generation.translating.alignments import attending_copy, words_of_source
from hf_mlnmt.generation.translating.batches import batches_by_tokens, generated_lengths, pad
from hf_mlnmt.generation.translating.loading import Parts
from hf_mlnmt.generation.translating.segments import TextEncoder, source_limit

BATCH_TOKENS = 4096
Systems = Mapping[str, Parts]
"""The systems of a study by their names."""


@dataclass(frozen=True)
class Pass:
    """A batch and the model's output for it.

    `indices`: which of the given sentences these are. `source` (batch, source) and `source_real`; `labels` (batch,
    target), -100 at padding, and `target_real`, None where the encoder ran alone.
    """

    indices: list[int]
    source: Tensor
    source_real: Tensor
    output: Any
    labels: Tensor | None = None
    target_real: Tensor | None = None


def between(systems: Systems, source_language: str | None, target_language: str | None) -> Systems:
    """Returns the systems; one with modules for each language is replaced by its model of these two languages.

    Raises: UserError with the languages that there are, when one is lacking or unknown.
    """
    pairs = dict(systems)
    for name, parts in systems.items():
        if has_modules(parts.model):
            pair = pair_of(parts.model, source_language, target_language, name)
            languages = pair.config.source_languages[0], pair.config.target_languages[0]
            pairs[name] = parts.of(*languages)._replace(model=pair)
    return pairs


def sample_indices(count: int, size: int | None, seed: int) -> list[int]:
    """Draws `size` of 0 .. count - 1 without repetition, ascending; all if there are no more, or size is None."""
    if size is None or size >= count:
        return list(range(count))
    if size < 1:
        raise UserError(f"sample of {size} sentences: expected at least 1.")
    return sorted(random.Random(seed).sample(range(count), size))


def encode_sources(
    parts: Parts, texts: Sequence[str], source_language: str | None = None, target_language: str | None = None
) -> list[list[int]]:
    """Returns the token ids of each text as the model reads it: text processing, language marks, special tokens.

    Raises: UserError for an empty text, or one that is longer than the model takes; `usable_indices` leaves those out.
    """
    encoder, limit = _encoder(parts, source_language, target_language)
    sequences = encoder(list(texts))
    for number, ids in enumerate(sequences, start=1):
        if len(ids) <= encoder.overhead:
            raise UserError(f"sentence {number} is empty: leave it out of what is to be analysed.")
        if len(ids) > limit:
            raise UserError(f"sentence {number} has {len(ids)} subwords, the model takes {limit}: leave it out.")
    return sequences


def usable_indices(
    parts: Parts, texts: Sequence[str], source_language: str | None = None, target_language: str | None = None
) -> list[int]:
    """Returns the indices of texts that are neither empty nor longer than the model takes."""
    encoder, limit = _encoder(parts, source_language, target_language)
    return [index for index, ids in enumerate(encoder(list(texts))) if encoder.overhead < len(ids) <= limit]


def _encoder(parts: Parts, source_language: str | None, target_language: str | None) -> tuple[TextEncoder, float]:
    """Returns the encoder of texts of these languages, and the longest input that the model takes."""
    parts = parts.of(source_language)
    told = Direction()  # of a model with modules the languages choose modules, and no marks in the text
    if not has_modules(parts.model):
        told = direction(parts.model, parts.source, source_language, target_language)
    encoder = TextEncoder(parts.tokenizers, told)
    return encoder, source_limit(parts.model, parts.source, None) or float("inf")


def encode_targets(parts: Parts, texts: Sequence[str]) -> list[list[int]]:
    """Returns the token ids of each translation, the closing </s> included. Raises: UserError for an empty one."""
    if empty := [number for number, text in enumerate(texts, start=1) if not text.strip()]:
        raise UserError(f"translation {empty[0]} is empty: leave its sentence out of what is to be analysed.")
    return [ids.tolist() for ids in parts.tokenizers.encode_target(texts)]


def attending(parts: Parts) -> Parts:
    """Returns the parts with a copy of the model that returns the weights of its attention."""
    return parts._replace(model=attending_copy(parts.model))


@torch.no_grad()
def encoder_passes(parts: Parts, sources: Sequence[Sequence[int]], **options: Any) -> Iterator[Pass]:
    """Yields the encoder alone over all sources, longest first; `options` go to it (output_attentions=True ...)."""
    for indices, ids, mask in source_batches(parts, sources):
        output = parts.model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True, **options)
        yield Pass(indices, ids, mask.bool(), output)


@torch.no_grad()
def forced_passes(
    parts: Parts,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]] | None = None,
    num_beams: int = 1,
    **options: Any,
) -> Iterator[Pass]:
    """Yields the whole model over all pairs, longest source first; without `targets` over its own translations."""
    model = parts.model
    for indices, ids, mask in source_batches(parts, sources):
        if targets is None:
            labels = own_translations(model, ids, mask, num_beams)
        else:
            filled, real = pad([targets[i] for i in indices], 0, model.device)
            labels = filled.masked_fill(real == 0, -100)
        shifted = model.prepare_decoder_input_ids_from_labels(labels)
        output = model(
            input_ids=ids, attention_mask=mask, decoder_input_ids=shifted, use_cache=False, return_dict=True, **options
        )
        yield Pass(indices, ids, mask.bool(), output, labels, labels != -100)


@torch.no_grad()
def own_translations(model: Any, ids: Tensor, mask: Tensor, num_beams: int = 1) -> Tensor:
    """Returns the model's own translations, greedy with one beam, (batch, target): </s> included, -100 behind it."""
    limit = min(2 * ids.shape[1] + 20, (getattr(model.config, "max_position_embeddings", None) or 513) - 1)
    rows = model.generate(
        input_ids=ids, attention_mask=mask, num_beams=num_beams, do_sample=False, max_new_tokens=limit
    )
    lengths = generated_lengths(rows, model.generation_config.eos_token_id)
    behind = torch.arange(rows.shape[1] - 1, device=rows.device) >= lengths[:, None]
    return rows[:, 1:].masked_fill(behind, -100)


def subwords(tokenizer: Any, ids: Sequence[int] | Tensor) -> list[str]:
    """Returns the tokens of one sentence as text; the mark of a word's beginning is written _."""
    tokens = tokenizer.convert_ids_to_tokens(ids.tolist() if isinstance(ids, Tensor) else list(ids))
    return [token.replace("\u2581", "_") for token in tokens]


def check_place(layer: int | None, head: int | None, layers: int, heads: int) -> None:
    """Raises UserError unless layer and head, counted from 1, are among a model's; None: none is asked for."""
    for option, number, count in (("layer", layer, layers), ("head", head, heads)):
        if number is not None and not 1 <= number <= count:
            raise UserError(f"--{option} {number}: this model has 1 to {count}.")


def words_of(tokenizer: Any, processing: Any, ids: Sequence[int], text: str) -> list[int | None]:
    """Returns the word of a text, from 0, that each of its token ids belongs to; None for language marks and </s>."""
    return words_of_source(tokenizer, ids, "", processing.apply(text) if processing else text, text)


def source_batches(parts: Parts, sources: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Yields indices, token ids and mask of batches of sources of similar lengths, the longest first.

    Raises: UserError if there is none.
    """
    if not sources:
        raise UserError("there are no sentences to analyse.")
    pad_id = parts.source.pad_token_id or 0
    for indices in batches_by_tokens([len(ids) for ids in sources], BATCH_TOKENS):
        ids, mask = pad([sources[i] for i in indices], pad_id, parts.model.device)
        yield indices, ids, mask


@dataclass(frozen=True)
class Sample:
    """Sentences, their translations if these were given, their lines in the file (from 1), how many were left out."""

    sources: list[str]
    targets: list[str] | None
    lines: list[int]
    left_out: int
    languages: tuple[str | None, str | None] = (None, None)

    def source_ids(self, parts: Parts) -> list[list[int]]:
        """Returns the token ids of the sources, as this system reads them."""
        return encode_sources(parts, self.sources, *self.languages)

    def target_ids(self, parts: Parts) -> list[list[int]] | None:
        """Returns the token ids of the translations; None: the system's own are to be read."""
        return None if self.targets is None else encode_targets(parts, self.targets)

    def settings(self) -> dict[str, Any]:
        """Returns the settings of the sample for the results file."""
        own = "own, greedy" if self.targets is None else "given"
        return {"sentences": len(self.sources), "left_out": self.left_out, "translations": own, "lines": self.lines}


def draw_sample(
    systems: Systems,
    sources: Sequence[str],
    targets: Sequence[str] | None = None,
    size: int | None = 1000,
    seed: int = 1,
    languages: tuple[str | None, str | None] = (None, None),
) -> Sample:
    """Draws `size` of the sentences that every system can take (None: all): not empty, and not too long.

    Raises: UserError for different numbers of lines, or when no sentence is left.
    """
    if targets is not None:
        check_counts(targets, [sources], ["the translations", "the source"])
    fit = set(range(len(sources)))
    for parts in systems.values():
        fit &= set(usable_indices(parts, sources, *languages))
        if targets is not None:
            limit = getattr(parts.model.config, "max_position_embeddings", None) or float("inf")
            filled = [i for i in sorted(fit) if targets[i].strip()]
            encoded = encode_targets(parts, [targets[i] for i in filled]) if filled else []
            fit = {i for i, ids in zip(filled, encoded, strict=True) if len(ids) <= limit}
    if not fit:
        raise UserError("no sentence can be used: all are empty, or longer than the model takes.")
    kept = sorted(fit)
    chosen = [kept[i] for i in sample_indices(len(kept), size, seed)]
    return Sample(
        [sources[i] for i in chosen],
        None if targets is None else [targets[i] for i in chosen],
        [i + 1 for i in chosen],
        len(sources) - len(fit),
        languages,
    )
