"""Label-smoothed cross-entropy, with the output projection inside: the training loss of every model.

Reference: Szegedy et al. 2016, "Rethinking the Inception Architecture", section 7; thesis on joint attention, s. 3.3.

(1) loss = sum over target positions of  lse(z) - (1 - eps) z_y - eps mean_v z_v,   z = h E^T + b

That is (1 - eps) times the negative log-likelihood plus eps times the cross-entropy with the uniform distribution
(as Trainer's LabelSmoother). Identities used: mean_v z_v = h . mean_v E_v needs no pass over the vocabulary; the
gradient of (1) by z is softmax(z) - (1 - eps) 1_y - eps / V, and its last term gives rank-one gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .fused import kernels_for
from .linear import matrix_of, multiply, product_dtype, runs_ahead

ROWS = 256  # target positions projected at once on a CPU: their logits stay in its cache, whatever the batch
LOGITS = 1 << 29  # bytes of the logits of as many positions as are projected at once elsewhere, in few launches


def projected_cross_entropy(
    states: Tensor, weight: Tensor, labels: Tensor, label_smoothing: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """Computes equation 1, summed over positions whose label is not -100; no (positions, vocabulary) tensor is kept.

    Args:
        states: (..., d_model), what the output projection reads.
        weight: (vocabulary, d_model), the output projection.
        labels: (...), int64; -100 marks positions that count nothing.
        label_smoothing: eps in [0, 1).
        bias: (vocabulary,), of the output projection, or None.

    Returns: a float32 (float64 for float64 states) scalar.
    """
    states, labels = states.flatten(0, -2), labels.flatten()
    if torch.compiler.is_compiling():  # a graph has fixed shapes: keep every position and weigh it
        return cross_entropy(nn.functional.linear(states, weight, bias), labels, label_smoothing)
    dtype, kernels = product_dtype(states), kernels_for(states) if torch.is_grad_enabled() else None
    if runs_ahead(states):  # to leave positions out it would wait: they count 0 instead
        each = dtype.itemsize / 2 if kernels else torch.promote_types(states.dtype, torch.float32).itemsize
        rows = max(1, int(LOGITS / (weight.shape[0] * each)))
    else:
        real, rows = labels != -100, ROWS
        states, labels = states[real], labels[real]
    states, weight, bias = states.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if kernels:
        return _InKernels.apply(kernels, states.contiguous(), weight, bias, labels, label_smoothing, rows)
    return _ProjectedCrossEntropy.apply(states, weight, bias, labels, label_smoothing, rows)


def head_cross_entropy(
    head: nn.Module, states: Tensor, labels: Tensor, label_smoothing: float = 0.0, logits: Tensor | None = None
) -> Tensor:
    """Computes equation 1 by an output projection, `head`; from its `logits` if they are there for every position."""
    if logits is not None and logits.shape[:-1] == labels.shape:
        return cross_entropy(logits, labels, label_smoothing)
    weight, bias = matrix_of(head, states)
    return projected_cross_entropy(states, weight, labels, label_smoothing, bias)


def divisor(labels: Tensor, items: int | Tensor | None) -> int | Tensor:
    """Returns `items`, by which a sum over target tokens is divided, or how many labels are not -100; at least 1."""
    items = (labels != -100).sum() if items is None else items
    return items.clamp(min=1) if isinstance(items, Tensor) else max(items, 1)


def following_labels(labels: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Returns the label that every position of a causal model predicts, (batch, time): the next one; nothing (-100) at
    the end and behind a token that the mask (batch, time) hides."""
    if labels is None:
        return None
    following = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    if mask is None or mask.shape != labels.shape:
        return following
    return torch.where(mask == 0, -100, following)


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Computes equation 1 from logits (..., vocabulary), summed over the positions whose label is not -100."""
    real = labels != -100
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    target = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    loss = logits.logsumexp(-1) - (1.0 - label_smoothing) * target
    if label_smoothing:
        loss = loss - label_smoothing * logits.mean(-1)
    return torch.where(real, loss, 0.0).sum()


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Equation 1 with its gradients computed on the way forward, so many `rows` (positions) at a time."""

    @staticmethod
    def forward(
        ctx, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float, rows: int
    ) -> Tensor:
        needs_gradient = any(ctx.needs_input_grad[:3])
        exact = torch.promote_types(states.dtype, torch.float32)
        gradient = torch.zeros_like(states), torch.zeros_like(weight, dtype=exact)
        by_bias = None if bias is None else torch.zeros_like(bias, dtype=exact)
        total = torch.zeros((), dtype=exact, device=states.device)
        counts = (labels != -100).unsqueeze(1) if runs_ahead(states) else None  # None: every label does
        buffer: Any = None  # of the logits, for all chunks
        for start in range(0, states.shape[0], rows):
            inside = slice(start, start + rows)
            chunk, target = states[inside], labels[inside].clamp(min=0).unsqueeze(1)
            logits = multiply(chunk, weight, "forward")
            if logits is None:
                buffer = states.new_empty(min(rows, states.shape[0]), weight.shape[0]) if buffer is None else buffer
                logits = torch.mm(chunk, weight.t(), out=buffer[: chunk.shape[0]]).to(exact)
            if bias is not None:
                logits += bias
            chosen = logits.gather(1, target)
            largest = logits.amax(1, keepdim=True)
            probabilities = torch.softmax(logits, 1, out=logits)
            # The largest probability is at least 1 / V, so its logarithm is safe where that of the target's is not.
            lse = largest - probabilities.amax(1, keepdim=True).log()
            losses = lse - (1.0 - label_smoothing) * chosen
            total += (losses if counts is None else torch.where(counts[inside], losses, 0.0)).sum()
            if needs_gradient:
                probabilities.scatter_add_(1, target, probabilities.new_full(target.shape, label_smoothing - 1.0))
                if counts is not None:
                    probabilities.masked_fill_(~counts[inside], 0.0)
                if by_bias is not None:
                    by_bias += probabilities.sum(0)
                by_logits = probabilities.to(weight.dtype)
                by_chunk = multiply(by_logits, weight.t(), "by_states")
                if by_chunk is None:
                    torch.mm(by_logits, weight, out=gradient[0][inside])
                else:
                    gradient[0][inside] = by_chunk
                if weight.dtype == exact:
                    gradient[1].addmm_(by_logits.t(), chunk)
                else:  # products in half precision, their sum over the chunks not
                    gradient[1].add_(by_logits.t() @ chunk)
                del by_logits
            del logits, probabilities  # the next chunk's take their place
        if label_smoothing:  # eps mean_v z_v = eps h . mean_v E_v, and its gradients
            mean_weight, read = weight.to(exact).mean(0), states.to(exact)
            sum_states = (read if counts is None else torch.where(counts, read, 0.0)).sum(0)
            by_state = (label_smoothing * mean_weight).to(states.dtype)
            total -= label_smoothing * (mean_weight @ sum_states)
            gradient[0].sub_(by_state if counts is None else by_state * counts)
            gradient[1].sub_(label_smoothing / weight.shape[0] * sum_states)
            if bias is not None and by_bias is not None:
                items = states.shape[0] if counts is None else counts.sum().to(exact)
                total -= label_smoothing * items * bias.to(exact).mean()
                by_bias.sub_(label_smoothing * items / weight.shape[0])
        if needs_gradient:
            ctx.save_for_backward(*gradient, by_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        by_states, by_weight, by_bias = ctx.saved_tensors
        by_bias = None if by_bias is None else by_bias * gradient
        return by_states * gradient.to(by_states.dtype), by_weight * gradient, by_bias, None, None, None


class _InKernels(torch.autograd.Function):
    """Equation 1 by the kernel of training_triton.py, which reads the logits of `rows` positions in their own type and
    leaves their gradient in their place. The weight gets rows of zeros up to a multiple of 64: products of other sizes
    cuBLAS computes by kernels that take three times as long."""

    @staticmethod
    def forward(
        ctx,
        kernels: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        rows: int,
    ) -> Tensor:
        vocabulary, needed = weight.shape[0], any(ctx.needs_input_grad[1:4])
        weight = nn.functional.pad(weight, (0, 0, 0, -vocabulary % 64))
        losses = torch.empty(len(states), dtype=torch.float32, device=states.device)
        buffer = states.new_empty(min(rows, len(states)), len(weight))
        by_states, by_weight, by_bias = torch.empty_like(states), None, None
        for start in range(0, len(states), rows):
            inside = slice(start, start + rows)
            logits = torch.mm(states[inside], weight.t(), out=buffer[: len(states) - start])
            kernels["loss_in_place"](logits[:, :vocabulary], bias, labels[inside], losses[inside], smoothing, needed)
            if needed:  # products in half precision, their sum over the chunks not
                torch.mm(logits, weight, out=by_states[inside])
                product = logits.t() @ states[inside]
                by_weight = product if by_weight is None else by_weight.float().add_(product)
                if bias is not None:
                    added = logits[:, :vocabulary].sum(0, dtype=torch.float32)
                    by_bias = added if by_bias is None else by_bias.add_(added)
        if needed:
            assert by_weight is not None
            ctx.save_for_backward(by_states, by_weight[:vocabulary], by_bias)
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        return None, *[None if x is None else x * gradient.to(x.dtype) for x in ctx.saved_tensors], None, None, None
