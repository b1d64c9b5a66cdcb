"""What the sum over all translations, Z, of a fused model is approximated by, with gradients.

Reference: thesis on monolingual data, section 4.1.2: n-best lists, trellises, equations (4.5), (4.6).

Both ask the model for log q of tokens behind given histories, once, all in one batch (`rescore`); a score s is alpha
sum log p_TM + beta sum log p_LM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hf_mlnmt.search.trellis import END, Trellis

ELEMENTS = 1 << 26  # logits that are held for the backward pass; more are computed twice instead


class Asked(NamedTuple):
    """Tokens behind histories: which row of histories, behind how many of its tokens, which token; (asked,) each."""

    rows: Tensor
    places: Tensor
    tokens: Tensor


class Histories:
    """Rows of target tokens, each of a sentence; a history that another one begins with needs no row of its own."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.sentences: list[int] = []
        self._at: dict[tuple[int, tuple[int, ...]], int] = {}  # sentence and history -> row

    def add(self, sentence: int, histories: Sequence[tuple[int, ...]]) -> None:
        """All histories of a sentence."""
        for history in sorted(set(histories), key=len, reverse=True):
            if (sentence, history) not in self._at:
                for length in range(len(history) + 1):
                    self._at.setdefault((sentence, history[:length]), len(self.rows))
                self.rows.append(history)
                self.sentences.append(sentence)

    def row(self, sentence: int, history: tuple[int, ...]) -> int:
        """The row that begins with this history."""
        return self._at[sentence, history]

    def tensors(self, start: int, pad: int, device: Any) -> tuple[Tensor, Tensor]:
        """The decoder's input (rows, longest + 1), behind the start token; the sentence of every row (rows,)."""
        longest = max(map(len, self.rows))
        rows = [[start, *row, *[pad] * (longest - len(row))] for row in self.rows]
        return torch.tensor(rows, device=device), torch.tensor(self.sentences, device=device)


def rescore(model: Any, encoded: Any, mask: Tensor, ids: Tensor, sentences: Tensor, asked: Asked) -> Tensor:
    """log q of the tokens that are asked for: (asked,), with gradients.

    Args:
        model: a fused model with sequence-level normalization.
        encoded, mask: of every sentence, what the encoders gave, and which source positions are real.
        ids: (rows, longest), decoder inputs. sentences: (rows,), whose translation each is.
    """

    def scores(first: int, last: int) -> Tensor:
        own = sentences[first:last]
        part = type(encoded)(**{name: one.index_select(0, own) for name, one in encoded.items()})
        inputs = {"encoder_outputs": part, "attention_mask": mask[own], "decoder_input_ids": ids[first:last]}
        logits = model(**inputs, use_cache=False).logits
        here = (asked.rows >= first) & (asked.rows < last)
        return logits[asked.rows[here] - first, asked.places[here], asked.tokens[here]]

    size = max(1, ELEMENTS // (ids.shape[1] * (model.config.decoder_vocab_size or 1)))
    steps = [(first, min(first + size, len(ids))) for first in range(0, len(ids), size)]
    if len(steps) == 1:
        found = scores(*steps[0])
    else:
        found = torch.cat([checkpoint(scores, *step, use_reentrant=False) for step in steps])
    order = torch.cat([((asked.rows >= first) & (asked.rows < last)).nonzero()[:, 0] for first, last in steps])
    return model.config.alpha * torch.empty_like(found).index_put((order,), found)


def log_sums(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """log of the sum of exp(values) in each group: values (n,), groups (n,) -> (count,); -inf of an empty one."""
    highest = values.new_full((count,), -torch.inf).scatter_reduce(0, groups, values.detach(), "amax")
    shift = highest.masked_fill(highest == -torch.inf, 0.0)
    sums = values.new_zeros(count).index_add(0, groups, (values - shift[groups]).exp())
    empty = sums == 0
    return torch.where(empty, -torch.inf, sums.masked_fill(empty, 1.0).log() + shift)


# n-best lists


def with_references(rows: Tensor, labels: Tensor, ends: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """n-best lists that hold the reference, once, which of their rows count, and which row is the reference.

    Args:
        rows: (sentences, n, longest), best first, without start token, padded behind an end token.
        labels: (sentences, longest of them), ending with an end token, -100 behind it.

    Returns: rows (sentences, n, longest) with -100 behind the end; (sentences, n), True for what has ended, the first
        time that it is there; and (sentences,). The reference takes the place of the worst where it was not found; what
        has not ended is worse than what has.
    """
    is_end = torch.isin(rows, torch.tensor(list(ends), device=rows.device))
    ended = is_end.any(-1)
    rows = rows.masked_fill(is_end.cumsum(-1) - is_end.long() > 0, -100)  # what stands behind an end
    longest = max(rows.shape[2], labels.shape[1])
    rows = torch.nn.functional.pad(rows, (0, longest - rows.shape[2]), value=-100)
    labels = torch.nn.functional.pad(labels, (0, longest - labels.shape[1]), value=-100)
    # What a search that found fewer than n fills its list with looks like a translation of no token.
    twice = (rows.unsqueeze(2) == rows.unsqueeze(1)).all(-1).tril(-1).any(-1)
    ended &= ~twice
    same = (rows == labels.unsqueeze(1)).all(-1) & ~twice  # (sentences, n)
    worst = torch.where((~ended).any(1), (~ended).long().argmax(1), rows.shape[1] - 1)
    place = torch.where(same.any(1), same.long().argmax(1), worst)
    index = torch.arange(len(rows), device=rows.device)
    rows, ended = rows.clone(), ended.clone()
    rows[index, place], ended[index, place] = labels, True
    return rows, ended, place


def n_best_sums(model: Any, encoded: Any, mask: Tensor, rows: Tensor, counted: Tensor) -> Tensor:
    """log Z over the rows that count, and s of every row: (sentences,), (sentences, n) as one (sentences, 1 + n)."""
    sentences, n, _ = rows.shape
    flat = rows.flatten(0, 1)
    real = (flat != -100).nonzero()
    ids = model.prepare_decoder_input_ids_from_labels(flat)
    asked = Asked(real[:, 0], real[:, 1], flat[real[:, 0], real[:, 1]])
    owners = torch.arange(sentences, device=rows.device).repeat_interleave(n)
    tokens = rescore(model, encoded, mask, ids, owners, asked)
    sums = tokens.new_zeros(len(flat)).index_add(0, asked.rows, tokens).view(sentences, n)
    log_z = sums.masked_fill(~counted, -torch.inf).logsumexp(1, keepdim=True)
    return torch.cat([log_z, sums], dim=1)


# Trellises


def trellis_sums(
    model: Any, encoded: Any, mask: Tensor, trellises: Sequence[Trellis], references: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """log Z and the references' s, (sentences,) each; a reference whose path was pruned is added to Z."""
    histories, device = Histories(), mask.device
    paths = [tuple(reference) for reference in references]
    for sentence, (trellis, path) in enumerate(zip(trellises, paths)):
        histories.add(sentence, [path[:-1], *(history for nodes in trellis.nodes for history in nodes)])
    asked: list[tuple[int, int, int]] = []
    for sentence, path in enumerate(paths):
        row = histories.row(sentence, path[:-1])
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
    """The arcs of all sentences between two steps: numbers (arcs,) each."""

    parents: list[int]
    asked: list[int]  # which of the scores
    children: list[int]
    nodes: int  # of the step that they go to
    ended_parents: list[int]
    ended_asked: list[int]
    ended_sentences: list[int]


def _levels(trellises: Sequence[Trellis], histories: Histories, asked: list[tuple[int, int, int]]) -> list[_Level]:
    """The arcs by step, their nodes numbered over all sentences; what they ask is added to `asked`."""
    levels = []
    for level in range(max(len(trellis.arcs) for trellis in trellises)):
        found = _Level([], [], [], sum(_count(trellis, level + 1) for trellis in trellises), [], [], [])
        first = following = 0
        for sentence, trellis in enumerate(trellises):
            for parent, token, child in trellis.arcs[level] if level < len(trellis.arcs) else []:
                row = histories.row(sentence, trellis.nodes[level][parent])
                if child == END:
                    found.ended_parents.append(first + parent)
                    found.ended_asked.append(len(asked))
                    found.ended_sentences.append(sentence)
                else:
                    found.parents.append(first + parent)
                    found.asked.append(len(asked))
                    found.children.append(following + child)
                asked.append((row, level, token))
            first, following = first + _count(trellis, level), following + _count(trellis, level + 1)
        levels.append(found)
    return levels


def _count(trellis: Trellis, level: int) -> int:
    return len(trellis.nodes[level]) if level < len(trellis.nodes) else 0


def _forward(levels: Sequence[_Level], scores: Tensor, sentences: int, device: Any) -> Tensor:
    """log Z (sentences,): Q of every node is the sum over its arcs of Q of their parents times q of their tokens."""

    def numbers(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    sums = scores.new_zeros(sentences)  # log Q of the roots
    ended, owners = [], []
    for level in levels:
        ended.append(sums[numbers(level.ended_parents)] + scores[numbers(level.ended_asked)])
        owners.append(numbers(level.ended_sentences))
        sums = log_sums(
            sums[numbers(level.parents)] + scores[numbers(level.asked)], numbers(level.children), level.nodes
        )
    return log_sums(torch.cat(ended), torch.cat(owners), sentences)
