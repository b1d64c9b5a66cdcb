"""Word alignment: links each word of a translation to a word of its source by the attention over the source.

References: Koehn and Knowles 2017, "Six Challenges for Neural Machine Translation", section 3.5 (from subwords to
words); Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models" (the mean over the heads of
the last layer but one aligns best in a model that was not taught to align).

Links are pairs (source word, target word), counted from 0; words are separated by white space. The attention weights of
a target word are the mean over its subwords, those of a source word the sum; each target word is linked to the source
word with the largest weight, the first of equals. Language codes, a model's prefixes and </s> are no words.

The attention is that of `alignment_head`: [layer, head] in a model's generation_config.json, both counted from 1, head
0 for the mean; else the mean over the heads of the last decoder layer but one. Where a layer attends to several encoder
layers, their mean is used; in a bridge model the product of the decoder's attention to the bridge's rows and the
bridge's attention over the source.

An `Aligner` links the words of given pairs. As a teacher it also aligns subwords of a student's tokenizer: a target
subword is linked to all subwords of the source word that the target subword's word is linked to. A text without spaces
is a single word, so its links teach nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.tokenizer import Tokenizers, decode, languages_of, own_copy
from hf_mlnmt.generation.translating.batches import Generated, attention_over_source, batches_by_tokens
from hf_mlnmt.search.cpu.int8 import Int8Linear

if TYPE_CHECKING:
    from hf_mlnmt.generation.translating.loading import Parts

BATCH_TOKENS = 2048
Ids = Sequence[int]
Link = tuple[int, int]
Words = Sequence[int | None]


def word_weights(weights: Tensor, source_words: Words, target_words: Words) -> Tensor:
    """Turns subword weights (..., target, source) into word weights (..., target words, source words), float64: sums
    over the subwords of a source word, means over those of a target word.

    source_words, target_words: number of the word that each subword belongs to, from 0; None for </s> and other marks.
    """
    from_source = _membership(source_words).to(weights.device)
    from_target = _membership(target_words).to(weights.device)
    summed = weights.double() @ from_source
    return (from_target / from_target.sum(0).clamp(min=1)).mT @ summed


def _membership(words: Words) -> Tensor:
    """Returns a matrix (subwords, words), float64: 1 where the subword is part of the word, else 0."""
    count = 1 + max((word for word in words if word is not None), default=-1)
    rows = [count if word is None else word for word in words]  # row `count`, for subwords of no word, is all zeros
    return torch.eye(count + 1, count, dtype=torch.float64)[rows]


def links(weights: Tensor) -> set[Link]:
    """Returns the links (source, target) of one layer and head, from word weights (target words, source words)."""
    return {(source, target) for target, source in enumerate(weights.argmax(-1).tolist())}


def to_pharaoh(aligned: Iterable[Link]) -> str:
    """Returns links in the Pharaoh format, `0-0 1-2`: source-target, ascending."""
    return " ".join(f"{source}-{target}" for source, target in sorted(aligned))


def word_links(weights: Tensor, source_words: Words, target_words: Words) -> tuple[Link, ...]:
    """Returns the links, ascending, of subword weights (target, source); a target word without a subword has none."""
    there = {word for word in target_words if word is not None}
    if all(word is None for word in source_words) or not there:
        return ()
    return tuple(sorted(link for link in links(word_weights(weights, source_words, target_words)) if link[1] in there))


def attending_copy(model: Any) -> Any:
    """Returns a copy of a model, which shares its weights and whose attention ("eager") can return attention weights.

    The model itself is not changed: other threads may be using it.
    """
    rounded = (part for part in model.modules() if isinstance(part, Int8Linear))
    shared = {id(part): part for part in chain(model.parameters(), model.buffers(), rounded)}
    attending: Any = copy.deepcopy(model, shared)
    attending.set_attn_implementation("eager")
    return attending


class SourceAttention:
    """Computes a model's attention over the source, by a copy of the model that shares its weights."""

    def __init__(self, model: Any, name: str = ""):
        """Raises: UserError for an `alignment_head` that the model does not have."""
        self.name = name or type(model).__name__
        self.chosen = getattr(model.generation_config, "alignment_head", None)
        self.model = attending_copy(model)

    @torch.inference_mode()
    def __call__(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, **options: Any) -> Tensor:
        """Returns the attention weights (rows, target, source); position i of target predicts the token after i.

        Shapes: input_ids, attention_mask (rows, source); decoder_input_ids (rows, target). options: of model.forward.
        Raises: UserError for a model that returns no attention over the source.
        """
        output = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            use_cache=False,
            output_attentions=True,
            return_dict=True,
            **options,
        )
        layers = getattr(output, "cross_attentions", None)
        if not layers or any(layer is None for layer in layers):
            raise UserError(f"alignments: {self.name} returns no attention over the source; leave them out.")
        layer, head = self._place(len(layers), layers[0].shape[-3])
        weights = layers[layer - 1]
        weights = weights.mean(-3) if head == 0 else weights[..., head - 1, :, :]
        weights = weights.mean(1) if weights.dim() == 4 else weights  # the mean over the encoder layers attended to
        if not hasattr(self.model.config, "bridge_heads"):
            return weights
        return weights @ self.model.get_encoder()(input_ids, attention_mask).bridge_attentions

    def _place(self, layers: int, heads: int) -> tuple[int, int]:
        if self.chosen is None:
            return max(layers - 1, 1), 0
        try:
            layer, head = map(int, self.chosen)
        except (TypeError, ValueError):
            layer = head = -1
        if not (1 <= layer <= layers and 0 <= head <= heads):
            raise UserError(
                f"{self.name}: alignment_head {self.chosen!r} in generation_config.json is not [layer, head] with a "
                f"layer from 1 to {layers} and a head from 1 to {heads}, or 0 for their mean."
            )
        return layer, head


def words_of_source(tokenizer: Any, ids: Sequence[int], prefix: str, processed: str, text: str) -> list[int | None]:
    """Returns for each id of a model's input the number of the word of `text` that it is part of, or None.

    Args:
        ids: the model's input; ids before the tokens of the text (language codes) or after them (</s>) are of no word.
        prefix: text that was put before `processed`. processed: `text` after text processing, as it was tokenized.
    """
    tokenizer = own_copy(tokenizer)
    whole = prefix + processed
    if tokenizer.is_fast:
        if type(tokenizer) is PreTrainedTokenizerFast:
            tokenizer.backend_tokenizer.encode_special_tokens = True  # the model's input was cut with this setting
        encoded = tokenizer(whole, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
        spans, special = encoded["offset_mapping"], encoded["special_tokens_mask"]
        tokens = encoded["input_ids"]
        before = [0, *accumulate(int(not character.isspace()) for character in whole)]
        starts = [
            None if mark or before[end] == before[begin] else before[begin]
            for (begin, end), mark in zip(spans, special, strict=True)
        ]
    else:
        pieces = [piece.replace("\u2581", "") for piece in tokenizer.tokenize(whole)]
        tokens = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(whole))
        sums = [0, *accumulate(len(piece) for piece in pieces)]
        starts = [at if piece else None for at, piece in zip(sums, pieces)]
        whole = "".join(pieces)
    visible = len("".join(prefix.split()))
    starts = [None if at is None or at < visible else at - visible for at in starts]
    words = words_at(starts, "".join(whole.split())[visible:], text)
    for lead in range(len(ids)):  # how many language tokens come before the text's tokens
        if list(ids[lead : lead + len(tokens)]) == list(tokens):
            return [*[None] * lead, *words, *[None] * (len(ids) - lead - len(tokens))]
    kept = zip(ids, tokens, words)  # the text was cut at the length limit, so `tokens` is longer than its part of `ids`
    return [word if given == token else None for given, token, word in kept] + [None] * (len(ids) - len(tokens))


def words_of_target(tokenizer: Any, ids: Sequence[int], text: str) -> list[int | None]:
    """Returns for each generated id the number of the word of `text`, the finished translation, that it belongs to.

    A token begins where the decoded text of all ids before it ends, U+FFFD not counted: this character stands for a
    character of which only some bytes are decoded yet.
    """
    decoded = ["".join(tokenizer.decode(ids[:end], skip_special_tokens=True).split()) for end in range(len(ids) + 1)]
    sizes = [len(part.rstrip("\ufffd")) for part in decoded]
    starts = [sizes[i] if decoded[i + 1] != decoded[i] else None for i in range(len(ids))]
    return words_at(starts, decoded[-1], text)


def words_at(starts: Sequence[int | None], surface: str, text: str) -> list[int | None]:
    """Returns for each token the number of the word of `text` in which it begins; None where it has no beginning.

    surface: the characters of all tokens without white space; `text` may differ in a few (Moses tokenization): then
    the longest common parts of both are matched. starts: the number of characters of `surface` before each token, or
    None for a token without characters of its own.
    """
    word_of = [number for number, word in enumerate(text.split()) for _ in word]
    shown = "".join(text.split())
    places = list(range(len(surface)))
    if len(surface) != len(shown):
        places, last = [], 0
        for first, there, size in SequenceMatcher(None, surface, shown, autojunk=False).get_matching_blocks():
            places += [last] * (first - len(places)) + list(range(there, there + size))
            last = there + size
    return [
        None if at is None or at >= len(places) or not word_of else word_of[min(places[at], len(word_of) - 1)]
        for at in starts
    ]


class Aligner:
    """Aligns the words of given pairs of source and target by a translation model's attention."""

    def __init__(self, parts: Parts, name: str = "", language: str | None = None):
        """language: of the targets, for a model that needs the code. Raises: UserError as `SourceAttention`."""
        self.parts, self.attention = parts, SourceAttention(parts.model, name)
        self.language = language if languages_of(parts.source) else None

    @classmethod
    def of(cls, name: str, language: str | None = None) -> Self:
        """Returns an aligner by a model that is loaded; of a fused model by its first. Raises: UserError as `load`."""
        from hf_mlnmt.generation.translating.loading import load

        parts = load(name, device="cpu", fast=True)
        return cls(parts._replace(model=getattr(parts.model, "translation_models", [parts.model])[0]), name, language)

    def to(self, device: Any) -> None:
        """Moves the model to a device."""
        self.attention.model.to(device)
        self.parts.model.to(device)

    def links(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[Link, ...]]:
        """Returns the links (source word, target word) of each pair of texts."""
        parts, longest = self.parts, getattr(self.parts.model.config, "max_position_embeddings", None)
        inputs = [ids.tolist()[:longest] for ids in parts.tokenizers.encode_source(sources, self.language)]
        outputs = [ids.tolist()[:longest] for ids in parts.tokenizers.encode_target(targets)]
        found: list[tuple[Link, ...]] = [()] * len(sources)
        for batch in batches_by_tokens(list(map(len, inputs)), BATCH_TOKENS):
            rows = [[Generated(outputs[index], 0.0)] for index in batch]
            weights = attention_over_source(self.attention, parts, [inputs[index] for index in batch], rows, {})
            for index, (matrix,) in zip(batch, weights, strict=True):
                processed = parts.source_processing.apply(sources[index])
                read = words_of_source(parts.source, inputs[index], "", processed, sources[index])
                written = words_of_target(parts.target, _without_end(parts.target, outputs[index]), targets[index])
                found[index] = word_links(matrix[: len(written)], read, written)
        return found

    def of_subwords(self, tokenizers: Tokenizers, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[Tensor]:
        """Returns for each pair of id sequences, of `tokenizers`, which ids are linked: bool (target, source)."""
        texts = [
            [tokenizers.processing[side].undo(text) for text in decode(tokenizer, [list(ids) for ids in several])]
            for side, tokenizer, several in (
                ("source", tokenizers.source, sources),
                ("target", tokenizers.target, targets),
            )
        ]
        linked = []
        for source, target, *of_texts, links in zip(sources, targets, *texts, self.links(*texts), strict=True):
            sides = [(tokenizers.target, target, of_texts[1]), (tokenizers.source, source, of_texts[0])]
            rows, columns = (_members(*side) for side in sides)
            matrix = torch.zeros(rows.shape[1], columns.shape[1], dtype=torch.bool)
            for i, j in links:
                if i < columns.shape[1] and j < rows.shape[1]:
                    matrix[j, i] = True
            linked.append((rows.float() @ matrix.float() @ columns.float().t()).bool())
        return linked


def _members(tokenizer: Any, ids: Ids, text: str) -> Tensor:
    """Returns a matrix, bool (ids, words), that is True where the id is part of the word."""
    kept = _without_end(tokenizer, ids)
    words = [*words_of_target(tokenizer, kept, text), *[None] * (len(ids) - len(kept))]
    members = torch.zeros(len(ids), len(text.split()), dtype=torch.bool)
    for row, word in enumerate(words):
        if word is not None:
            members[row, word] = True
    return members


def _without_end(tokenizer: Any, ids: Ids) -> list[int]:
    return list(ids[:-1]) if len(ids) and ids[-1] == tokenizer.eos_token_id else list(ids)
