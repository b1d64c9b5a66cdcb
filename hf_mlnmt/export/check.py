"""Checks exported models: compares their log probabilities and translations of some sentences with our model's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.model_folder import token_ids
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.export.onnx_graphs import OnnxGraphs
from hf_mlnmt.generation.translating.batches import pad
from hf_mlnmt.hub.check_reload import TEXTS

LENGTH = 32
_TOLERANCE = 1e-3
_REPORT = "Nothing was exported. Report this, with the versions of the packages."


class Sentences(NamedTuple):
    """Sentences for the check of an exported model: source ids with end token, target ids with start and end token.

    The first `texts` sources are text, the others and all targets random tokens.
    """

    sources: list[list[int]]
    targets: list[list[int]]
    texts: int

    @classmethod
    def of(cls, model: Any, tokenizers: Tokenizers, count: int = 4) -> Sentences:
        """Makes `count` sources of text, `count` of random tokens of several lengths, and a random target for each."""
        config, generator = model.config, torch.Generator().manual_seed(1)
        start, ends = config.decoder_start_token_id, ends_of(model)
        longest = min(config.max_position_embeddings - 2, 40)

        def draw(rows: int, length: int) -> list[int]:
            ids = torch.randint(rows, (min(longest, length),), generator=generator).tolist()
            special = {config.pad_token_id, config.bos_token_id, start, *ends}
            return [index for index in ids if index not in special] or [rows - 1]

        texts = [[*ids.tolist()[:-1][:longest], ends[0]] for ids in tokenizers.encode_source(TEXTS[:count])]
        # len() of a Marian tokenizer with two vocabularies is the source's; decoder_vocab_size bounds the target's.
        rows = min(len(tokenizers.target), config.decoder_vocab_size)
        drawn = [[*draw(len(tokenizers.source), 3 + 7 * n), ends[0]] for n in range(count)]
        targets = [draw(rows, 2 + 3 * n) for n in range(len(texts) + count)]
        return cls(texts + drawn, [[start, *target, ends[0]] for target in targets], len(texts))


def ends_of(model: Any) -> list[int]:
    """Returns the ids of the model's end tokens."""
    ends = model.config.eos_token_id
    return ends if isinstance(ends, list) else [ends]


@torch.no_grad()
def log_probabilities(model: Any, sources: list[list[int]], targets: list[list[int]]) -> list[Tensor]:
    """Computes the model's log probability of each token of the targets except the first, the start token."""
    padding = model.config.pad_token_id or 0
    input_ids, mask = pad(sources, padding)
    given = pad(targets, padding)[0][:, :-1]
    return of_tokens(model(input_ids=input_ids, attention_mask=mask, decoder_input_ids=given).logits, targets)


def of_tokens(logits: Tensor, targets: list[list[int]]) -> list[Tensor]:
    """Computes, of logits (batch, time, vocabulary), the log probability of each target token except the first."""
    wanted = pad(targets, 0)[0][:, 1:, None]
    scores = logits.float().log_softmax(-1).gather(2, wanted).squeeze(2)
    return [row[: len(target) - 1] for row, target in zip(scores, targets, strict=True)]


def check_scores(scores: list[Tensor], model: Any, sentences: Sentences, strict: bool) -> float:
    """Returns the largest absolute difference between `scores` and the model's log probabilities. Raises: UserError if
    `strict` and the difference is above 0.001."""
    expected = log_probabilities(model, sentences.sources, sentences.targets)
    difference = max((a - b).abs().max().item() for a, b in zip(scores, expected, strict=True))
    if strict and not difference <= _TOLERANCE:
        raise UserError(f"the exported model's log probabilities differ by {difference:g} from ours. {_REPORT}")
    return difference


@torch.no_grad()
def generate(model: Any, sources: list[list[int]], beams: int) -> list[list[int]]:
    """Searches by generate() without the model's own settings except its special tokens; returns ids with end token."""
    config = model.config
    settings = GenerationConfig(
        num_beams=beams,
        do_sample=False,
        max_new_tokens=LENGTH,
        early_stopping=beams > 1,
        **{**token_ids(config), "pad_token_id": config.pad_token_id or 0},
    )
    input_ids, mask = pad(sources, config.pad_token_id or 0)
    before, model.generation_config = model.generation_config, settings  # so that it fills no unset ones
    try:
        output = model.generate(input_ids=input_ids, attention_mask=mask)
    finally:
        model.generation_config = before
    return [until_end(row, ends_of(model)) for row in output[:, 1:].tolist()]


def until_end(ids: list[int], ends: list[int]) -> list[int]:
    """Returns ids up to the first end token, which is included."""
    return ids[: 1 + next((place for place, index in enumerate(ids) if index in ends), len(ids))]


def compare(
    model: Any,
    tokenizers: Tokenizers,
    scores: Callable[[list[list[int]], list[list[int]]], list[Tensor]],
    search: Callable[[list[list[int]], int], list[list[int]]],
    widths: Sequence[int] = (1, 4),
    strict: bool = True,
) -> dict[str, Any]:
    """Compares an exported model with `model` on some sentences; returns the differences, for export.json.

    Args:
        scores: function of sources and targets: log probabilities of the target tokens except the first.
        search: function of sources and beams: ids without start, with end token; called for each beam size of `widths`.
        strict: raise UserError for differences above rounding, instead of only returning them.
    """
    sentences = Sentences.of(model, tokenizers)
    difference = check_scores(scores(sentences.sources, sentences.targets), model, sentences, strict)
    searches = {beams: search(sentences.sources, beams) for beams in widths}
    agreement = compare_searches(model, sentences, searches, strict)
    return {"largest_difference_of_log_probabilities": difference, **agreement}


def compare_graphs(graphs: OnnxGraphs, model: Any, tokenizers: Tokenizers, strict: bool = True) -> dict[str, Any]:
    """Compares ONNX graphs with `model` by `compare`: log probabilities of given targets, and greedy search."""
    padding, start, ends = model.config.pad_token_id or 0, model.config.decoder_start_token_id, ends_of(model)

    def scores(sources: list[list[int]], targets: list[list[int]]) -> list[Tensor]:
        state = graphs.start(*(tensor.numpy() for tensor in pad(sources, padding)))
        steps = pad(targets, padding)[0][:, :-1].unbind(1)
        return of_tokens(torch.stack([torch.from_numpy(graphs.step(ids.numpy(), state)) for ids in steps], 1), targets)

    def search(sources: list[list[int]], beams: int) -> list[list[int]]:
        ids, mask = (tensor.numpy() for tensor in pad(sources, padding))
        return [until_end(row, ends) for row in graphs.greedy(ids, mask, start, ends, LENGTH).tolist()]

    return compare(model, tokenizers, scores, search, widths=[1], strict=strict)


def compare_searches(
    model: Any, sentences: Sentences, searches: Mapping[int, list[list[int]]], strict: bool
) -> dict[str, Any]:
    """Returns for each search the share of texts with the same translation as by generate(), and of equal tokens.

    Random sources have many translations with nearly the same score, among which rounding decides: they are checked if
    `strict`, and not counted in the shares.

    Raises: UserError if `strict` and a translation differs, unless both have the same score (a tie).
    """
    report: dict[str, Any] = {}
    for beams, outputs in searches.items():
        name = "greedy" if beams == 1 else f"beam {beams}"
        pairs = list(zip(outputs, generate(model, sentences.sources, beams), strict=True))
        counted = pairs[: sentences.texts]
        same = sum(sum(a == b for a, b in zip(*pair)) for pair in counted)
        report[name] = {
            "same_sentences": round(sum(a == b for a, b in counted) / len(counted), 4),
            "same_tokens": round(same / max(1, sum(max(map(len, pair)) for pair in counted)), 4),
        }
        for source, (theirs, ours) in zip(sentences.sources, pairs, strict=True):
            if strict and theirs != ours and not _tied(model, source, theirs, ours):
                raise UserError(f"{name} search gives {theirs} for {source}, generate() gives {ours}. {_REPORT}")
    return report


def _tied(model: Any, source: list[int], *translations: list[int]) -> bool:
    """Returns whether both translations of a source have the same mean log probability, up to rounding."""
    start = model.config.decoder_start_token_id
    theirs, ours = (log_probabilities(model, [source], [[start, *ids]])[0].mean().item() for ids in translations)
    return abs(theirs - ours) <= _TOLERANCE
