"""Training steps as CUDA graphs: forward and backward of a batch are one launch from the second of its shape on.

The first batch of a shape runs call by call: that warms up what a capture must not do, and is watched for reads of the
card's values, which no graph can hold. Gradients are copied, or added, to tensors that all graphs have in common, as
they have the memory of what is computed on the way. Random numbers are torch's own: a replay draws those that the calls
would have drawn.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from hf_mlnmt.common.model_folder import first_line
from hf_mlnmt.training.objectives import Losses

logger = logging.getLogger(__name__)

READS = 3  # batches that read a value, after which a task is no longer captured: the first may only prepare something


class CapturedSteps:
    """Runs forward and backward of batches: call by call, and as a graph from the second batch of a shape on.

    Args:
        run: forward and backward of a batch, (inputs, items) -> detached losses; gradients are added to `.grad`. What
            is no tensor in `inputs` belongs to the shape, as the name of the task.
        parameters: those that get gradients.
        several: whether an optimizer step may have several batches.
    """

    def __init__(self, run: Callable[..., Losses], parameters: Iterable[nn.Parameter], several: bool) -> None:
        self.run, self.several = run, several
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.gradients: list[Tensor] = []  # of all graphs, beside `parameters`
        self._pool: Any = None
        self._steps: dict[Any, CapturedStep | None] = {}  # of the shapes that were there once
        self._reads: dict[Any, int] = {}
        self._captures = True

    def __call__(self, inputs: dict[str, Any], items: Tensor) -> Losses:
        """Runs forward and backward of a batch; returns losses that no later batch changes."""
        kind = tuple(value for value in inputs.values() if not torch.is_tensor(value))
        shape = kind, tuple((name, each.shape, each.dtype) for name, each in inputs.items() if torch.is_tensor(each))
        if step := self._steps.get(shape):
            return step(inputs, items)
        if not self._captures or self._reads.get(kind, 0) == READS:
            return self.run(inputs, items)
        if shape in self._steps:
            return self._captured(shape, inputs, items)
        with reads_of_values() as places:
            losses = self.run(inputs, items)
        if not places:
            self._steps[shape] = None
        else:
            self._reads[kind] = self._reads.get(kind, 0) + 1
            if self._reads[kind] == READS:
                logger.warning(
                    "training: batches of %s go call by call, not as CUDA graphs: a value is read from the card (%s)",
                    ", ".join(map(str, kind)),
                    places[-1],
                )
        return losses

    def _captured(self, shape: Any, inputs: dict[str, Any], items: Tensor) -> Losses:
        """Captures a shape and runs it so, or call by call where it cannot be captured, which is said once."""
        if not self.gradients:
            self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        before = [parameter.grad for parameter in self.parameters]
        step = CapturedStep(self, inputs, items)
        why: str | None = None
        try:
            step.graph = record(step.body, self._pool)
        except torch.OutOfMemoryError:
            why = "the card has no memory left for another shape"
        except RuntimeError as error:
            why = first_line(error)
            self._steps.clear()  # older graphs would use the random generator that the failed capture left behind
        for parameter, gradient in zip(self.parameters, before):
            parameter.grad = gradient
        if why is None:
            self._pool, self._steps[shape] = step.graph.pool(), step
            return step(inputs, items)
        self._captures = False
        logger.warning("training: from here on new shapes go call by call, not as CUDA graphs: %s", why)
        return self.run(inputs, items)


class CapturedStep:
    """Holds the graph of forward and backward for one shape, with the tensors that it reads and writes."""

    graph: Any

    def __init__(self, steps: CapturedSteps, inputs: dict[str, Any], items: Tensor) -> None:
        device = steps.parameters[0].device
        self.steps, self.items = steps, items.to(device, copy=True)
        self.inputs = {
            name: value.to(device, copy=True) if torch.is_tensor(value) else value for name, value in inputs.items()
        }
        self.reached: list[tuple[nn.Parameter, Tensor]] = []  # by the loss, with their gradients
        self.losses: Losses

    def body(self) -> None:
        """Runs forward and backward; a capture records the calls of this function."""
        steps = self.steps
        for parameter in steps.parameters:
            parameter.grad = None
        self.losses = steps.run(self.inputs, self.items)
        self.reached = [pair for pair in zip(steps.parameters, steps.gradients) if pair[0].grad is not None]
        gradients: list[Any] = [parameter.grad for parameter, _ in self.reached]
        (torch._foreach_add_ if steps.several else torch._foreach_copy_)(
            [total for _, total in self.reached], gradients
        )
        for parameter in steps.parameters:
            parameter.grad = None  # its memory is free for what comes next

    def __call__(self, inputs: dict[str, Any], items: Tensor) -> Losses:
        """Runs the graph on a batch; its gradients are added to those that are there."""
        for name, value in inputs.items():
            if torch.is_tensor(value):
                self.inputs[name].copy_(value, non_blocking=True)
        self.items.copy_(items, non_blocking=True)
        steps = self.steps
        before: list[Any] = [parameter.grad for parameter in steps.parameters]
        if steps.several:
            there = [pair for pair in zip(steps.gradients, before) if pair[1] is not None and pair[0] is not pair[1]]
            if empty := [total for total, gradient in zip(steps.gradients, before) if gradient is None]:
                torch._foreach_zero_(empty)
            if there:  # from a batch that ran call by call
                torch._foreach_copy_([total for total, _ in there], [gradient for _, gradient in there])
        self.graph.replay()
        for parameter, gradient in zip(steps.parameters, before):
            parameter.grad = gradient
        for parameter, total in self.reached:
            parameter.grad = total
        loss, parts = self.losses
        return loss.clone(), {name: part.clone() for name, part in parts.items()}


def is_cuda(device: torch.device) -> bool:
    """Returns whether the device is a GPU that computes asynchronously and can capture graphs."""
    return device.type == "cuda"


def record(body: Callable[[], None], pool: Any) -> Any:
    """Returns a CUDA graph of what `body` launches, forward and backward, on the current device; its memory is in the
    pool of other graphs, none of which runs at the same time.

    Raises: RuntimeError where that cannot be captured; torch.OutOfMemoryError, after which other graphs still work.
    """
    try:
        return _record(body, pool)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()  # of what ran call by call
    return _record(body, pool)


def _record(body: Callable[[], None], pool: Any) -> Any:
    graph, device = torch.cuda.CUDAGraph(), torch.cuda.current_device()
    stream, generator = _STREAMS.setdefault(device, torch.cuda.Stream()), torch.cuda.default_generators[device]
    pool, spare = torch.cuda.graph_pool_handle() if pool is None else pool, generator.clone_state()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        # Not torch.cuda.graph, which empties the allocator's cache before: that costs more than the capture.
        with torch.cuda.stream(stream):
            # Another thread makes batches meanwhile, and pins their memory.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                body()
            finally:
                graph.capture_end()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        # torch leaves generator and allocator as in the middle of a capture that broke off: later draws would raise,
        # and memory would not be given back.
        generator.graphsafe_set_state(spare)
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(device, pool)
            torch._C._cuda_releasePool(device, pool)
        raise RuntimeError(first_line(error.__context__ or error)) from error
    return graph


_STREAMS: dict[int, Any] = {}  # one for each device: libraries keep a workspace for each stream


@contextmanager
def reads_of_values() -> Iterator[list[str]]:
    """Lists the places in the code, "file:line", where a block waits for the card to read a value from it."""
    places: list[str] = []
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    for each in seen:
        if "synchronizing CUDA" in str(each.message):
            places.append(f"{each.filename}:{each.lineno}")
        elif "Synchronization debug mode" not in str(each.message):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
