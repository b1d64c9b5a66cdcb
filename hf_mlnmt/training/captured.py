"""Training steps as CUDA graphs: from a shape's second batch on, forward and backward are launched as one graph.

The first batch of a shape runs kernel by kernel: it does the set-up that a capture must not do, and shows whether a
value is read from the GPU, which no graph can hold. Gradients are copied, or added, to tensors that all graphs share,
as they share the memory of intermediate results. Random numbers are torch's own: a replay draws those that the step
would have drawn without a graph. `TranslationTrainer.captures` says which trainings have graphs.
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

READS = 3  # a task is not captured after this many batches that read a value from the GPU; a first one may be a set-up


class CapturedSteps:
    """Runs forward and backward of batches: the first of a shape kernel by kernel, later ones as a CUDA graph.

    Args:
        run: forward and backward of a batch, (inputs, items) -> detached losses; gradients are added to `.grad`.
            Entries of `inputs` that are no tensors, such as the task's name, count as part of the shape.
        parameters: of the model; those that need gradients are used.
        several: whether an optimizer step may have several batches.
    """

    def __init__(self, run: Callable[..., Losses], parameters: Iterable[nn.Parameter], several: bool) -> None:
        self.run, self.several = run, several
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.gradients: list[Tensor] = []  # the gradients that all graphs write, in the order of `parameters`
        self._pool: Any = None
        self._steps: dict[Any, CapturedStep | None] = {}  # shape -> its graph; None after its first batch
        self._reads: dict[Any, int] = {}
        self._captures = True

    def __call__(self, inputs: dict[str, Any], items: Tensor) -> Losses:
        """Runs forward and backward of a batch; returns losses that later batches do not overwrite."""
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
        """Captures a graph for a shape and runs it; if that fails, warns, captures no more and runs without graph."""
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
        self.reached: list[tuple[nn.Parameter, Tensor]] = []  # parameters that the loss depends on, and their gradients
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
            parameter.grad = None  # frees the gradient's memory for later kernels

    def __call__(self, inputs: dict[str, Any], items: Tensor) -> Losses:
        """Runs the graph on a batch and adds the gradients to `.grad`; returns copies of the losses."""
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
            if there:  # gradients of batches of this step that ran without a graph
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
    """Captures the kernels that `body` launches on the current device; returns them as a CUDA graph, whose memory is
    from `pool`, which graphs that never run at the same time share.

    Raises: RuntimeError where capturing fails; torch.OutOfMemoryError, after which other graphs still work.
    """
    try:
        return _record(body, pool)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()  # frees cached memory of steps without a graph
    return _record(body, pool)


def _record(body: Callable[[], None], pool: Any) -> Any:
    graph, device = torch.cuda.CUDAGraph(), torch.cuda.current_device()
    stream, generator = _STREAMS.setdefault(device, torch.cuda.Stream()), torch.cuda.default_generators[device]
    pool, spare = torch.cuda.graph_pool_handle() if pool is None else pool, generator.clone_state()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        # Not torch.cuda.graph, which empties the allocator's cache before: that costs more than the capture.
        with torch.cuda.stream(stream):
            # thread_local: another thread makes batches meanwhile, and pins their memory.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                body()
            finally:
                graph.capture_end()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        # After a failed capture torch leaves generator and allocator in the state of a capture: later draws would
        # raise, and memory would not be given back.
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
