"""Running models on sentences for analyses: drawing a sample, batches, passes of the encoder or the whole model.

Padding is on the right; `real` tensors are False at padding. Sources end with the tokenizer's </s>, which counts as a
position; the decoder's input begins with its start token.
All systems of an analysis read the same sample.
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

    indices: of the batch's sentences among the given ones. source: token ids (batch, source). labels: (batch, target),
    -100 at padding. source_real, target_real: False at padding. labels and target_real are None for an encoder's pass.
    """

    indices: list[int]
    source: Tensor
    source_real: Tensor
    output: Any
    labels: Tensor | None = None
    target_real: Tensor | None = None


def between(systems: Systems, source_language: str | None, target_language: str | None) -> Systems:
    """Replaces each system that has modules for each language by its model of the two given languages. Raises:
    UserError for a missing or unknown language."""
    pairs = dict(systems)
    for name, parts in systems.items():
        if has_modules(parts.model):
            pair = pair_of(parts.model, source_language, target_language, name)
            languages = pair.config.source_languages[0], pair.config.target_languages[0]
            pairs[name] = parts.of(*languages)._replace(model=pair)
    return pairs


def encode_sources(
    parts: Parts, texts: Sequence[str], source_language: str | None = None, target_language: str | None = None
) -> list[list[int]]:
    """Returns the token ids of each text, after text processing and with language marks and special tokens. Raises:
    UserError for an empty text, or one that is too long for the model."""
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
    """Returns the indices of texts that are neither empty nor too long for the model."""
    encoder, limit = _encoder(parts, source_language, target_language)
    return [index for index, ids in enumerate(encoder(list(texts))) if encoder.overhead < len(ids) <= limit]


def _encoder(parts: Parts, source_language: str | None, target_language: str | None) -> tuple[TextEncoder, float]:
    """Returns a `TextEncoder` for texts of these languages, and the most tokens of the model's input."""
    parts = parts.of(source_language)
    told = Direction()  # no language marks if the model has modules: the languages select these
    if not has_modules(parts.model):
        told = direction(parts.model, parts.source, source_language, target_language)
    encoder = TextEncoder(parts.tokenizers, told)
    return encoder, source_limit(parts.model, parts.source, None) or float("inf")


def encode_targets(parts: Parts, texts: Sequence[str]) -> list[list[int]]:
    """Returns the token ids of each translation, with </s> at the end. Raises: UserError for an empty one."""
    if empty := [number for number, text in enumerate(texts, start=1) if not text.strip()]:
        raise UserError(f"translation {empty[0]} is empty: leave its sentence out of what is to be analysed.")
    return [ids.tolist() for ids in parts.tokenizers.encode_target(texts)]


def attending(parts: Parts) -> Parts:
    """Returns `parts` with a copy of their model whose attention returns its weights."""
    return parts._replace(model=attending_copy(parts.model))


@torch.no_grad()
def encoder_passes(parts: Parts, sources: Sequence[Sequence[int]], **options: Any) -> Iterator[Pass]:
    """Runs the encoder on all sources in batches, longest first, and yields each `Pass`; options: of its forward."""
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
    """Runs the whole model on all sources and their targets in batches, longest source first, and yields each `Pass`.

    targets: token ids; None: the model's own translations by `num_beams`. options: of forward.
    """
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
    """Translates by beam search, greedy with one beam; returns token ids (batch, target) with </s>, then -100."""
    limit = min(2 * ids.shape[1] + 20, (getattr(model.config, "max_position_embeddings", None) or 513) - 1)
    rows = model.generate(
        input_ids=ids, attention_mask=mask, num_beams=num_beams, do_sample=False, max_new_tokens=limit
    )
    lengths = generated_lengths(rows, model.generation_config.eos_token_id)
    behind = torch.arange(rows.shape[1] - 1, device=rows.device) >= lengths[:, None]
    return rows[:, 1:].masked_fill(behind, -100)


def subwords(tokenizer: Any, ids: Sequence[int] | Tensor) -> list[str]:
    """Returns the tokens of one sentence as texts, with _ for SentencePiece's mark of a word's beginning."""
    tokens = tokenizer.convert_ids_to_tokens(ids.tolist() if isinstance(ids, Tensor) else list(ids))
    return [token.replace("\u2581", "_") for token in tokens]


def words_of(tokenizer: Any, processing: Any, ids: Sequence[int], text: str) -> list[int | None]:
    """Returns for each token id of a text the number of its word, from 0; None for language marks and </s>."""
    return words_of_source(tokenizer, ids, "", processing.apply(text) if processing else text, text)


def source_batches(parts: Parts, sources: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Yields indices, token ids and mask of batches of sources, longest first. Raises: UserError without sources."""
    if not sources:
        raise UserError("there are no sentences to analyse.")
    pad_id = parts.source.pad_token_id or 0
    for indices in batches_by_tokens([len(ids) for ids in sources], BATCH_TOKENS):
        ids, mask = pad([sources[i] for i in indices], pad_id, parts.model.device)
        yield indices, ids, mask


@dataclass(frozen=True)
class Sample:
    """Sampled sentences, translations if given, line numbers in the file (from 1), number of unusable sentences."""

    sources: list[str]
    targets: list[str] | None
    lines: list[int]
    left_out: int
    languages: tuple[str | None, str | None] = (None, None)

    def source_ids(self, parts: Parts) -> list[list[int]]:
        """Returns the token ids of the sources by a system's tokenizer."""
        return encode_sources(parts, self.sources, *self.languages)

    def target_ids(self, parts: Parts) -> list[list[int]] | None:
        """Returns the token ids of the given translations; None if none are given: the system's own are read."""
        return None if self.targets is None else encode_targets(parts, self.targets)

    def settings(self) -> dict[str, Any]:
        """Returns the sample's description for the results file."""
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
    """Draws `size` (None: all) of the sentences that are neither empty nor too long for any system, and keeps their
    order. Raises: UserError for different numbers of lines, or if no sentence is usable."""
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
    usable = sorted(fit)
    chosen = usable if size is None or size >= len(usable) else sorted(random.Random(seed).sample(usable, size))
    return Sample(
        [sources[i] for i in chosen],
        None if targets is None else [targets[i] for i in chosen],
        [i + 1 for i in chosen],
        len(sources) - len(fit),
        languages,
    )
