"""Batches of token ids: cut by a budget of tokens, padded, translated by generate(), and scored.

Log probabilities come from one more forward pass over the finished translations: Transformers returns those of the
search only together with the scores of the whole vocabulary at every step (gigabytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import eq
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.memory import GIB, memory_of_machine
from hf_mlnmt.generation.translating.options import OF_TEXTS, longest_translation

if TYPE_CHECKING:
    from hf_mlnmt.generation.translating.alignments import SourceAttention
    from hf_mlnmt.generation.translating.loading import Parts

_ELEMENTS = 1 << 25  # logits held at once: 128 MiB in float32


def batches_by_tokens(
    lengths: Sequence[int], batch_tokens: int, most: int | None = None, powers: bool = False
) -> list[list[int]]:
    """Cuts sequences into batches; returns the indices of each batch.

    A batch has at most `batch_tokens` tokens, padding included, and at most `most` sequences, but at least one. The
    longest sequences come first, so that a batch too large for the memory fails at once, not after an hour. `powers`:
    every batch but the last has 2^k sequences, so that there are few sizes of batches.
    """
    order, batches, start = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)), [], 0
    while start < len(order):
        size = min(max(batch_tokens // max(lengths[order[start]], 1), 1), len(order) if most is None else most)
        size = 1 << size.bit_length() - 1 if powers else size
        batches.append(order[start : start + size])
        start += size
    return batches


def sentences_that_fit(width: int, model: Any) -> int:
    """Returns how many sentences, each with `width` beams or draws, can be searched at once in half of the memory.

    Counts the memory of the scores of all beams, thrice while they are compared, and of the table of ancestors of each
    beam. Raises: UserError if not even one sentence fits.
    """
    of_sentence = 4 * width * (3 * _vocabulary(model) + 4 * width)  # bytes
    there = memory_of_machine(model.device.type == "cpu")
    if of_sentence > there / 2:
        raise UserError(
            f"num_beams, or num_return_sequences, of {width:,}: one sentence alone takes {of_sentence / GIB:,.1f} GiB, "
            f"of {there / GIB:,.1f} that this machine has. Use fewer; 5 to 10 beams are usual."
        )
    return int(there / 2 // of_sentence)


def pad(
    sequences: Sequence[Sequence[int]], pad_token_id: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Pads sequences on the right; returns token ids and attention mask, both (batch, longest)."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    ids = torch.full(mask.shape, pad_token_id)
    ids[mask] = torch.tensor([*chain.from_iterable(sequences)], dtype=torch.long)
    ids, mask = torch.stack([ids, mask.long()]).to(device).unbind()
    return ids, mask


def arguments_of_texts(arguments: dict[str, Any], numbers: Sequence[int], draws: int = 1) -> dict[str, Any]:
    """Returns generate()'s arguments for the texts with these numbers (from 0), cut from its arguments for all texts.

    An argument with a row for each text (`rows_by_text`) is cut to the rows of these texts, in their order;
    `prefix_allowed_tokens_fn` is called with the number of the text instead of the row's. `draws`: how many rows
    generate() has for each text.

    Raises: UserError where a text has no row.
    """
    chosen = dict(arguments)
    for name in rows_by_text(arguments):
        rows = arguments[name]
        if (most := max(numbers, default=-1)) >= len(rows):
            raise UserError(f"{name}: {len(rows)} rows, but there is a text {most + 1}: give one row for each text.")
        chosen[name] = rows[list(numbers)] if isinstance(rows, Tensor) else [rows[number] for number in numbers]
    if (allowed := arguments.get("prefix_allowed_tokens_fn")) is not None:
        chosen["prefix_allowed_tokens_fn"] = lambda row, ids: allowed(numbers[row // draws], ids)
    return chosen


def rows_by_text(arguments: dict[str, Any]) -> list[str]:
    """Returns the names of the arguments of generate(), and of the pipeline, that have a row for each text."""
    named = (*OF_TEXTS, "decoder_start_token_id")
    return [
        name
        for name, value in arguments.items()
        if (isinstance(value, Tensor) and value.dim() > (0 if name in named else 1))
        or (name in named and isinstance(value, list | tuple))
    ]


class Generated(NamedTuple):
    """A translation: all generated ids, a forced first id and the end of sentence included, and its ln P.

    `of_ids`: ln P of each id, 0 for a forced id. Without scores `log_probability` is 0 and `of_ids` empty.
    """

    ids: list[int]
    log_probability: float
    of_ids: Sequence[float] = ()


def runs_alone(model: Any) -> bool:
    """Returns whether the model's device computes asynchronously (a GPU), and is faster if batches have few sizes."""
    return model.device.type != "cpu"


@torch.inference_mode()
def generate(
    parts: Parts, sequences: Sequence[Sequence[int]], arguments: dict[str, Any], skipped: int, scored: bool
) -> list[list[Generated]]:
    """Searches by model.generate(); returns `num_return_sequences` translations of each sequence of ids, best first.

    arguments: of generate(). skipped: how many first tokens are forced. scored: compute log probabilities too.
    """
    model, count = parts.model, arguments["num_return_sequences"]
    pad_id, number = parts.source.pad_token_id, len(sequences)
    # A logits processor or a function of allowed tokens may have a rule for each row: no rows are added then.
    asking = arguments.get("logits_processor") or arguments.get("prefix_allowed_tokens_fn")
    if runs_alone(model) and not asking and not rows_by_text(arguments):
        more = (1 << (number - 1).bit_length()) - number  # rows to add, up to 2^k, so that batches have few sizes
        sequences = [*sequences, *[sequences[-1]] * more]
    input_ids, mask = pad(sequences, 0 if pad_id is None else pad_id, model.device)
    output = model.generate(input_ids=input_ids, attention_mask=mask, **arguments)
    output = getattr(output, "sequences", output)[: number * count]
    there = output.cpu()  # waits for a GPU; if not `scored`, for the only time
    lengths = generated_lengths(there, model.generation_config.eos_token_id)
    logs: Any = there.new_zeros(len(there), 0, dtype=torch.float32)
    if scored:
        ends_forced = model.generation_config.forced_eos_token_id is not None
        forced = (bool(skipped), longest_translation(model, arguments) if ends_forced else None)
        given = input_ids[:number], mask[:number], output, lengths.to(output.device)
        logs = log_probabilities(model, *given, *forced, **_scales(arguments)).cpu()
    rows = zip(there.tolist(), lengths.tolist(), logs.sum(1).tolist(), logs.tolist(), strict=True)
    translations = [Generated(row[1 : 1 + length], total, of_ids[:length]) for row, length, total, of_ids in rows]
    return [translations[i : i + count] for i in range(0, len(translations), count)]


def first_tokens(model: Any, arguments: dict[str, Any], sentences: int) -> list[int]:
    """Returns the token with which generate(), called with these arguments, starts the decoder of each sentence."""
    start = arguments.get("decoder_start_token_id")
    start = model.generation_config.decoder_start_token_id if start is None else start
    starts = [start] * sentences if isinstance(start, int) else [int(token) for token in start]
    prompts = arguments.get("decoder_input_ids")
    given = starts if prompts is None else prompts[:, 0].tolist()
    # generate() puts the start token before the prompts if none of the prompts begins with it.
    return given if any(map(eq, given, starts)) else starts


def token_logs_of(
    parts: Parts, sequences: Sequence[Sequence[int]], rows: Sequence[Generated], arguments: dict[str, Any], skipped: int
) -> Tensor:
    """Computes ln P (rows, T) of tokens of translations: rows[i] is one of sequences[i]. arguments: generate()'s."""
    pad_id, device = parts.source.pad_token_id or 0, parts.model.device
    firsts = first_tokens(parts.model, arguments, len(rows))
    targets, _ = pad([[first, *row.ids] for first, row in zip(firsts, rows, strict=True)], pad_id, device)
    lengths = torch.tensor([len(row.ids) for row in rows], device=device)
    return log_probabilities(
        parts.model, *pad(sequences, pad_id, device), targets, lengths, bool(skipped), **_scales(arguments)
    )


@torch.inference_mode()
def attention_over_source(
    attention: SourceAttention,
    parts: Parts,
    sequences: Sequence[Sequence[int]],
    rows: Sequence[Sequence[Generated]],
    arguments: dict[str, Any],
) -> list[list[Tensor]]:
    """Computes the attention (generated tokens, source), on the CPU, of each translation in `rows` of each sequence.

    arguments: those of generate(), for the decoder's start tokens and the scales of a fused model.
    """
    model = parts.model
    firsts = first_tokens(model, arguments, len(rows))
    targets = [[first, *each.ids[:-1]] for first, row in zip(firsts, rows, strict=True) for each in row]
    of_target = [sequence for sequence, row in zip(sequences, rows, strict=True) for _ in row]
    pad_id = parts.source.pad_token_id or 0
    weights: list[Tensor] = []
    longest = max(map(len, targets), default=0) * (_vocabulary(model) + 32 * max(map(len, sequences)))
    size = max(1, _ELEMENTS // max(longest, 1))
    for begin in range(0, len(targets), size):
        sources, part = of_target[begin : begin + size], targets[begin : begin + size]
        decoder_input_ids, _ = pad(part, pad_id, model.device)
        batch = attention(*pad(sources, pad_id, model.device), decoder_input_ids, **_scales(arguments)).float().cpu()
        weights += [each[: len(target), : len(source)] for each, target, source in zip(batch, part, sources)]
    each = iter(weights)
    return [[next(each) for _ in row] for row in rows]


def _scales(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in ("alpha", "beta") if name in arguments}


@torch.inference_mode()
def negative_logs(
    model: Any, targets: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None = None
) -> Tensor:
    """Computes -ln P of each text, float64 (texts,), by a translation model given `sources`, else a language model."""
    config = model.config
    names = ("decoder_start_token_id", "bos_token_id", "eos_token_id")
    start = next(value for name in names if isinstance(value := getattr(config, name, None), int))
    fill = config.pad_token_id if config.pad_token_id is not None else 0
    labels, real = pad(targets, fill, model.device)
    prefix = labels.roll(1, 1)
    prefix[:, 0] = start
    if sources is None:
        logits = model(input_ids=prefix, attention_mask=real, use_cache=False).logits
    else:
        read, mask = pad(sources, fill, model.device)
        logits = model(input_ids=read, attention_mask=mask, decoder_input_ids=prefix, use_cache=False).logits
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logs = logits.logsumexp(2) - logits.gather(2, labels[:, :, None])[:, :, 0]
    return logs.where(real > 0, 0.0).double().sum(1)


def generated_lengths(sequences: Tensor, eos_token_id: int | list[int] | None) -> Tensor:
    """Counts the generated tokens of each row up to its end of sentence, which is counted; sequences: (rows, 1 + T),
    each after a start token."""
    ends = torch.as_tensor([] if eos_token_id is None else eos_token_id, device=sequences.device).reshape(-1)
    ended = torch.isin(sequences[:, 1:], ends)
    if not ended.shape[1]:  # no hypothesis of the batch meets its constraints: nothing was generated
        return ended.sum(1)
    first = ended.int().argmax(dim=1) + 1
    return torch.where(ended.any(dim=1), first, ended.shape[1])


@torch.inference_mode()
def log_probabilities(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    sequences: Tensor,
    lengths: Tensor,
    forced_first: bool = False,
    forced_last: int | None = None,
    **options: Any,
) -> Tensor:
    """Computes ln P of the tokens of each translation: (batch * n, T), float32, 0 after its end.

    For a model whose logits are the scores that a search adds up (`logits_are_scores`) the logits are returned instead.

    Args:
        sequences: (batch * n, 1 + T), n rows for each source, as generate() returns them.
        forced_first: 0 for the first generated token (a forced language code), as in the search.
        forced_last: length of a translation at which its last token, a forced end of sentence, has 0.
        options: of the model's forward: alpha and beta of a fused model.
    """
    n = len(sequences) // len(input_ids)
    rows = max(1, _ELEMENTS // (max(sequences.shape[1] - 1, 1) * _vocabulary(model)))
    found = []
    for start in range(0, len(sequences), rows):
        part = slice(start, start + rows)
        sources = torch.arange(len(sequences), device=input_ids.device)[part] // n
        targets = sequences[part, 1:]
        logits = model(
            input_ids=input_ids[sources],
            attention_mask=attention_mask[sources],
            decoder_input_ids=sequences[part, :-1],
            use_cache=False,
            **options,
        ).logits.float()
        logs = logits.gather(2, targets[:, :, None])[:, :, 0]
        if not getattr(model, "logits_are_scores", False):  # normalise the logits of other models
            logs = logs - logits.logsumexp(dim=2)
        positions = torch.arange(targets.shape[1], device=targets.device)
        counted = (positions < lengths[part, None]) & (positions >= int(forced_first))
        if forced_last is not None:
            counted &= positions < forced_last - 1
        found.append(logs.where(counted, 0.0))
    return torch.cat(found)


def _vocabulary(model: Any) -> int:
    return getattr(model.config, "decoder_vocab_size", None) or model.config.vocab_size
