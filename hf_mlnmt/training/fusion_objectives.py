"""Objectives of a fused model (modeling/fusion.py): they train its translation models; its language models are frozen.

Reference: thesis on monolingual data, section 4.1, equations (4.1), (4.5), (4.6), (4.14).

| objective | loss of a sentence |
| --- | --- |
| FusionSymbol | - sum_i log q(e_i) / sum_v q(v) |
| FusionNBest | log Z - s(e), Z the sum of q over an n-best list |
| FusionTrellis | log Z - s(e), Z the sum of q over a beam search with recombination |

s(e) = log q(e) = alpha sum log p_TM + beta sum log p_LM, not divided by the length. Both parts of (4.14) are logged:
log_q and log_z; the thesis finds that the loss falls through log_z alone. Start from a converged translation model.
Departs: a model in evaluation mode finds the lists; it scores them in training mode, with dropout, as all targets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hf_mlnmt.modeling.loss import divisor
from hf_mlnmt.recipe.schema import NBestSettings, TrellisSettings
from hf_mlnmt.search.decoder import SourceBatch
from hf_mlnmt.search.decoders import FusedDecoder
from hf_mlnmt.search.recombination import END, Trellis, build_trellis
from hf_mlnmt.training.objectives import (
    IGNORED,
    Batch,
    Example,
    Ingredients,
    Losses,
    Need,
    Objective,
    Translation,
    evaluating,
    unwrap,
)

ELEMENTS = 1 << 26  # most logits that are computed at once; of several parts the backward pass computes each again


class Asked(NamedTuple):
    """Tokens to score, as tensors (asked,): row of `Histories`, number of tokens before the token there, its id."""

    rows: Tensor
    places: Tensor
    tokens: Tensor


class Histories:
    """Rows of target tokens, one for each history (tokens so far) of a sentence that is no prefix of another one."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.sentences: list[int] = []
        self.row_of: dict[tuple[int, tuple[int, ...]], int] = {}  # sentence and history -> a row that begins with it

    def add(self, sentence: int, histories: Sequence[tuple[int, ...]]) -> None:
        """Adds rows for histories of a sentence, the longest first, so that prefixes share a row."""
        for history in sorted(set(histories), key=len, reverse=True):
            if (sentence, history) not in self.row_of:
                for length in range(len(history) + 1):
                    self.row_of.setdefault((sentence, history[:length]), len(self.rows))
                self.rows.append(history)
                self.sentences.append(sentence)

    def tensors(self, start: int, pad: int, device: Any) -> tuple[Tensor, Tensor]:
        """Returns the decoder's input, start token first, (rows, longest + 1), and each row's sentence (rows,)."""
        longest = max(map(len, self.rows))
        rows = [[start, *row, *[pad] * (longest - len(row))] for row in self.rows]
        return torch.tensor(rows, device=device), torch.tensor(self.sentences, device=device)


def rescore(model: Any, encoded: Any, mask: Tensor, ids: Tensor, sentences: Tensor, asked: Asked) -> Tensor:
    """Returns log q, the score given source and earlier target tokens, of the tokens `asked`: (asked,), with gradients.

    encoded, mask: the encoders' output and the mask of real source positions, of every sentence. ids: (rows, longest),
    decoder inputs. sentences: (rows,), the sentence that each row translates.
    """

    def scores(first: int, last: int) -> Tensor:
        own = sentences[first:last]
        part = type(encoded)(**{name: states.index_select(0, own) for name, states in encoded.items()})
        inputs = {"encoder_outputs": part, "attention_mask": mask[own], "decoder_input_ids": ids[first:last]}
        logits = model(**inputs, use_cache=False).logits
        here = (asked.rows >= first) & (asked.rows < last)
        return logits[asked.rows[here] - first, asked.places[here], asked.tokens[here]]

    size = max(1, ELEMENTS // (ids.shape[1] * (model.config.decoder_vocab_size or 1)))
    steps = [(first, min(first + size, len(ids))) for first in range(0, len(ids), size)]
    if len(steps) == 1:
        values = scores(*steps[0])
    else:
        values = torch.cat([checkpoint(scores, *step, use_reentrant=False) for step in steps])
    order = torch.cat([((asked.rows >= first) & (asked.rows < last)).nonzero()[:, 0] for first, last in steps])
    return model.config.alpha * torch.empty_like(values).index_put((order,), values)


def log_sums(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Returns log sum exp(values) of each group: values, groups (n,) -> (count,); -inf for a group without values."""
    highest = values.new_full((count,), -torch.inf).scatter_reduce(0, groups, values.detach(), "amax")
    shift = highest.masked_fill(highest == -torch.inf, 0.0)
    sums = values.new_zeros(count).index_add(0, groups, (values - shift[groups]).exp())
    empty = sums == 0
    return torch.where(empty, -torch.inf, sums.masked_fill(empty, 1.0).log() + shift)


def with_references(rows: Tensor, labels: Tensor, ends: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Puts each reference into its n-best list, in place of the worst row where the search did not find it.

    rows: (sentences, n, longest), best first, without start token, padded after an end token. labels: (sentences,
    longest of them). Returns the rows, with -100 after the end; a mask (sentences, n) of those that have ended and
    repeat no earlier row; and the number of the reference's row, (sentences,).
    """
    is_end = torch.isin(rows, torch.tensor(list(ends), device=rows.device))
    ended = is_end.any(-1)
    rows = rows.masked_fill(is_end.cumsum(-1) - is_end.long() > 0, IGNORED)  # -100 after the first end token
    longest = max(rows.shape[2], labels.shape[1])
    rows = torch.nn.functional.pad(rows, (0, longest - rows.shape[2]), value=IGNORED)
    labels = torch.nn.functional.pad(labels, (0, longest - labels.shape[1]), value=IGNORED)
    # A search that found fewer than n translations fills its list with padding, which looks like empty translations.
    twice = (rows.unsqueeze(2) == rows.unsqueeze(1)).all(-1).tril(-1).any(-1)
    ended &= ~twice
    same = (rows == labels.unsqueeze(1)).all(-1) & ~twice  # whether a row is the reference: (sentences, n)
    worst = torch.where((~ended).any(1), (~ended).long().argmax(1), rows.shape[1] - 1)
    place = torch.where(same.any(1), same.long().argmax(1), worst)
    index = torch.arange(len(rows), device=rows.device)
    rows, ended = rows.clone(), ended.clone()
    rows[index, place], ended[index, place] = labels, True
    return rows, ended, place


def n_best_sums(model: Any, encoded: Any, mask: Tensor, rows: Tensor, counted: Tensor) -> Tensor:
    """Returns log Z over the rows that `counted` marks, then the score s of each row: (sentences, 1 + n)."""
    sentences, n, _ = rows.shape
    flat = rows.flatten(0, 1)
    real = (flat != IGNORED).nonzero()
    ids = model.prepare_decoder_input_ids_from_labels(flat)
    asked = Asked(real[:, 0], real[:, 1], flat[real[:, 0], real[:, 1]])
    owners = torch.arange(sentences, device=rows.device).repeat_interleave(n)
    tokens = rescore(model, encoded, mask, ids, owners, asked)
    sums = tokens.new_zeros(len(flat)).index_add(0, asked.rows, tokens).view(sentences, n)
    log_z = sums.masked_fill(~counted, -torch.inf).logsumexp(1, keepdim=True)
    return torch.cat([log_z, sums], dim=1)


def trellis_sums(
    model: Any, encoded: Any, mask: Tensor, trellises: Sequence[Trellis], references: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Returns log Z and the references' s, (sentences,) each; a reference whose path was pruned is added to Z."""
    histories, device = Histories(), mask.device
    paths = [tuple(reference) for reference in references]
    for sentence, (trellis, path) in enumerate(zip(trellises, paths)):
        histories.add(sentence, [path[:-1], *(history for nodes in trellis.nodes for history in nodes)])
    asked: list[tuple[int, int, int]] = []
    for sentence, path in enumerate(paths):
        row = histories.row_of[sentence, path[:-1]]
        asked += [(row, place, token) for place, token in enumerate(path)]
    levels = _levels(trellises, histories, asked)
    numbers = torch.tensor(sorted(range(len(asked)), key=lambda i: asked[i][0]), device=device)
    columns = torch.tensor(asked, device=device)[numbers].unbind(1)
    start, pad = model.config.decoder_start_token_id, model.config.pad_token_id or 0
    scores = rescore(model, encoded, mask, *histories.tensors(start, pad, device), Asked(*columns))
    scores = torch.empty_like(scores).index_put((numbers,), scores)
    lengths = torch.tensor([len(path) for path in paths], device=device)
    owners = torch.arange(len(paths), device=device).repeat_interleave(lengths)
    reference = scores.new_zeros(len(paths)).index_add(0, owners, scores[: len(owners)])
    log_z = _forward(levels, scores, len(paths), device)
    missing = torch.tensor([not trellis.has(list(path)) for trellis, path in zip(trellises, paths)], device=device)
    return torch.where(missing, torch.logaddexp(log_z, reference), log_z), reference


class _Level(NamedTuple):
    """The arcs of all sentences between two steps: (parent node, index of the score, child or, at an end, sentence)."""

    arcs: list[tuple[int, int, int]]
    ending: list[tuple[int, int, int]]
    nodes: int  # number of nodes in the step that the arcs lead to


def _levels(trellises: Sequence[Trellis], histories: Histories, asked: list[tuple[int, int, int]]) -> list[_Level]:
    """Returns the arcs by step, nodes numbered over all sentences; adds (row, place, token) of each to `asked`."""
    levels = []
    for step in range(max(len(trellis.arcs) for trellis in trellises)):
        level = _Level([], [], sum(_count(trellis, step + 1) for trellis in trellises))
        first = following = 0
        for sentence, trellis in enumerate(trellises):
            for parent, token, child in trellis.arcs[step] if step < len(trellis.arcs) else []:
                if child == END:
                    level.ending.append((first + parent, len(asked), sentence))
                else:
                    level.arcs.append((first + parent, len(asked), following + child))
                asked.append((histories.row_of[sentence, trellis.nodes[step][parent]], step, token))
            first, following = first + _count(trellis, step), following + _count(trellis, step + 1)
        levels.append(level)
    return levels


def _count(trellis: Trellis, level: int) -> int:
    return len(trellis.nodes[level]) if level < len(trellis.nodes) else 0


def _forward(levels: Sequence[_Level], scores: Tensor, sentences: int, device: Any) -> Tensor:
    """Returns log Z (sentences,): Q of a node is the sum over its arcs of the parent's Q times the token's q."""

    def along(arcs: list[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
        parents, asked, ends = torch.tensor(arcs, dtype=torch.long, device=device).view(-1, 3).unbind(1)
        return sums[parents] + scores[asked], ends

    sums, ending = scores.new_zeros(sentences), []  # log Q = 0 of each sentence's root
    for level in levels:
        ending.append(along(level.ending))
        sums = log_sums(*along(level.arcs), level.nodes)
    values, owners = map(torch.cat, zip(*ending))
    return log_sums(values, owners, sentences)


FUSED = Need("a fused model (hf-mlnmt model fuse)", lambda model: hasattr(model, "factors"))
SEQUENCE = Need(
    'sequence-level normalization (normalization="sequence" of the fused model)',
    lambda model: getattr(getattr(model, "config", None), "normalization", None) == "sequence",
)


def _of_fused(kind: Any, settings: Any, given: Ingredients) -> Any:
    given.smoothing(settings)
    return kind(pad_token_id=given.model.config.pad_token_id, **vars(settings))


@dataclass
class FusionSymbol(Translation):
    """Cross-entropy of the renormalised product (4.1), whatever the model's `normalization`; the cheapest to train."""

    needs = (*Translation.needs, FUSED)
    of = classmethod(_of_fused)


@dataclass
class FusionSequence(Objective):
    """The base of FusionNBest and FusionTrellis: the loss log Z - s (4.5), with log Z and s from `sums`."""

    translates: ClassVar[bool] = True
    needs = (FUSED, SEQUENCE)
    pad_token_id: int
    of = classmethod(_of_fused)

    def collate(self, examples: Sequence[Example]) -> Batch:
        return Translation(self.pad_token_id).collate(examples)

    def loss(self, model: nn.Module, batch: Batch, num_items_in_batch: Tensor | int | None = None) -> Losses:
        """Sums log Z - s over sentences, divided by `num_items_in_batch` target tokens; parts log_q and log_z."""
        labels = batch["labels"]
        real = (labels != IGNORED).any(1)  # rows without labels fill the batch up to its shape
        log_z, reference = self.sums(unwrap(model), {name: tensor[real] for name, tensor in batch.items()})
        items = divisor(labels, num_items_in_batch)
        parts = {"log_q": reference.sum() / items, "log_z": log_z.sum() / items}
        return parts["log_z"] - parts["log_q"], parts

    @abstractmethod
    def sums(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns log Z and s of the reference: (sentences,) each, with gradients."""


@dataclass
class FusionNBest(NBestSettings, FusionSequence):
    """log Z - s (4.5), Z the sum over an n-best list of a beam search, which is run anew after `reuse` uses.

    The reference replaces the worst hypothesis if it was not found. The thesis has both values of `found_by`, 4.4.2.
    """

    kept: dict[tuple[tuple[int, ...], ...], tuple[Tensor, int]] = field(default_factory=dict, repr=False)

    def sums(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        source, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
        rows, counted, place = with_references(self.lists(model, batch), labels, ends_of(model))
        encoded = model.get_encoder()(source, mask)
        sums = n_best_sums(model, encoded, mask, rows, counted)
        return sums[:, 0], sums[:, 1:].gather(1, place.unsqueeze(1))[:, 0]

    def lists(self, model: Any, batch: Batch) -> Tensor:
        """Returns the hypotheses of every sentence (sentences, n, longest), kept from earlier steps or new."""
        if self.reuse == 1:
            return self.search(model, batch)
        real = (batch["attention_mask"] != 0, batch["labels"] != IGNORED)  # padding is left out of the keys of `kept`
        rows_of_pairs = zip(batch["input_ids"], batch["labels"], *real)
        keys = [
            (tuple(source[is_source].tolist()), tuple(labels[is_label].tolist()))
            for source, labels, is_source, is_label in rows_of_pairs
        ]
        missing = [i for i, key in enumerate(keys) if self.kept.get(key, (None, self.reuse))[1] >= self.reuse]
        if missing:
            hypotheses = self.search(model, {name: tensor[missing] for name, tensor in batch.items()})
            self.kept |= {keys[i]: (row.cpu(), 0) for i, row in zip(missing, hypotheses)}
        rows = []
        for key in keys:
            row, uses = self.kept[key]
            self.kept[key] = row, uses + 1
            rows.append(row.T)  # (longest, n): pad_sequence pads the first dimension
        fill = model.config.pad_token_id or 0
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)
        return padded.transpose(1, 2).to(batch["input_ids"].device)

    def search(self, model: Any, batch: Batch) -> Tensor:
        """Searches n hypotheses of each sentence: (sentences, n, longest), best first, without start token."""
        options: dict[str, Any] = {"num_beams": self.n, "num_return_sequences": self.n, "do_sample": False}
        options |= {"length_penalty": self.length_penalty, "max_new_tokens": limit(self.max_length, batch["labels"])}
        if self.found_by == "translation":
            options["beta"] = 0.0
        with evaluating(model):
            hypotheses = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], **options)
        hypotheses = getattr(hypotheses, "sequences", hypotheses)[:, 1:]
        return hypotheses.view(len(batch["labels"]), self.n, -1)


@dataclass
class FusionTrellis(TrellisSettings, FusionSequence):
    """log Z - s (4.5), Z over the trellis of a beam search with recombination; the reference is added where pruned."""

    def sums(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        source, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
        with evaluating(model):
            outputs = SourceBatch.take(model.get_encoder()(source, mask), mask, 1)
            prompt = source.new_full((len(source), 1), model.config.decoder_start_token_id)
            longest, ends = limit(self.max_length, labels), ends_of(model)
            decoder = FusedDecoder(model, {})
            trellises = build_trellis(decoder, outputs, prompt, ends, self.beams, self.k, longest, self.tolerance)
        references = [row[row != IGNORED].tolist() for row in labels]
        return trellis_sums(model, model.get_encoder()(source, mask), mask, trellises, references)


def limit(max_length: int | None, labels: Tensor) -> int:
    """Returns the most tokens of a hypothesis: `max_length`, or for None twice the longest reference and 10 more."""
    return 2 * int((labels != IGNORED).sum(1).max()) + 10 if max_length is None else max_length


def ends_of(model: Any) -> list[int]:
    ends = model.generation_config.eos_token_id
    ends = model.config.eos_token_id if ends is None else ends
    return list(ends) if isinstance(ends, list | tuple) else [ends]
