"""Slots of a decoder's cache that hold, beside keys and values, the last inputs of a causal convolution.

Importing this file registers them with Transformers' caches: `DynamicCache(config=...)` and `StaticCache(config=...)`
make one for every decoder layer whose type is "mlnmt_convolution"; they follow the beams and, the dynamic one, the
drafts of assisted decoding.
"""

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, StaticLayer


def windows(extended: Tensor, length: int) -> Tensor:
    """The window of each of the last `length` positions, its inputs side by side: (batch, length, f d_model)."""
    kernel = extended.shape[1] - length + 1
    return torch.cat([extended[:, i : i + length] for i in range(kernel)], dim=-1)


class ConvolutionState:
    """What an attention asks of its slot, whichever kind it is: the slots of a search answer in their own way."""

    def extend(self, inputs: Tensor, kept: int) -> Tensor:
        """Inputs (batch, time, d_model) behind the `kept` before them, zeros where the sentence begins."""
        raise NotImplementedError

    def windows(self, inputs: Tensor, kept: int) -> Tensor:
        """Inputs (batch, time, d_model), each behind the `kept` before it: (batch, time, (kept + 1) d_model)."""
        return windows(self.extend(inputs, kept), inputs.shape[1])

    def real_positions(self, real: Tensor | None) -> Tensor | None:
        """Which of the new positions are not padding, (batch, time): those that the mask names. None: all."""
        return real


class ConvolutionCacheLayer(ConvolutionState, DynamicLayer):
    """A decoder layer's keys and values, and `window`: the convolution's last inputs, (batch, f - 1, d_model).

    While recording (`activate_past_recording`, assisted decoding) the window keeps all inputs: `crop` can drop some.
    """

    _layer_type = "mlnmt_convolution"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.window: Tensor | None = None
        self.kept = 0  # f - 1
        self.record_past = False

    def extend(self, inputs: Tensor, kept: int) -> Tensor:
        if self.window is None:
            self.window, self.kept = inputs.new_zeros(inputs.shape[0], kept, inputs.shape[2]), kept
        extended = torch.cat([self.window, inputs], dim=1)
        self.window = extended if self.record_past else extended[:, -kept:]
        return extended[:, -kept - inputs.shape[1] :]

    def activate_past_recording(self):
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        if self.window is None or (tokens_to_remove == 0 and not self.record_past):
            return
        end = self.window.shape[1] + tokens_to_remove
        if self.get_seq_length() == 0:
            self.window = None
        elif end < self.kept:
            raise RuntimeError(
                f"crop({tokens_to_remove}): the inputs of the convolution before that are no longer there; "
                "call activate_past_recording() on the cache before the steps that may be taken back"
            )
        else:
            self.window = self.window[:, end - self.kept : end]

    def reset(self) -> None:
        super().reset()
        self.window = None

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        if self.window is not None:
            self.window = self.window.index_select(0, beam_idx.to(self.window.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        if self.window is not None:
            self.window = self.window.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        if self.window is not None:
            self.window = self.window[indices]

    def offload(self):
        super().offload()
        if self.window is not None:
            self.window = self.window.to("cpu", non_blocking=True)

    def prefetch(self):
        super().prefetch()
        if self.window is not None:
            self.window = self.window.to(self.device, non_blocking=True)


class StaticConvolutionCacheLayer(ConvolutionState, StaticLayer):
    """The same with keys and values of a fixed size, changed in place (torch.compile)."""

    _layer_type = "mlnmt_convolution"

    is_croppable = False  # nothing that was written over can be put back

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.window: Tensor | None = None

    def extend(self, inputs: Tensor, kept: int) -> Tensor:
        if self.window is None:
            self.window = inputs.new_zeros(inputs.shape[0], kept, inputs.shape[2])
            if not torch.compiler.is_compiling():
                torch._dynamo.mark_static_address(self.window)
        extended = torch.cat([self.window, inputs], dim=1)
        self.window.copy_(extended[:, -kept:])
        return extended

    def reset(self) -> None:
        super().reset()
        if self.window is not None:
            self.window.zero_()

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        if self.window is not None:
            self.window = self.window.index_select(0, beam_idx.to(self.window.device))
