"""Runs the two graphs of an ONNX export (onnx.py) with NumPy and ONNX Runtime only: logits, greedy search.

`hf-mlnmt export` checks exports with it; it is also an example for programs in other languages.
"""

from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class OnnxGraphs:
    """Runs encoder.onnx and decoder.onnx of a folder."""

    def __init__(self, folder: str | Path, threads: int = 1):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(str(Path(folder) / name), options, providers=["CPUExecutionProvider"])
            for name in ("encoder.onnx", "decoder.onnx")
        )

    def start(self, input_ids: Array, attention_mask: Array) -> dict[str, Array]:
        """Runs the encoder; returns the decoder's constant inputs (source_*, attention_mask), and the first past_*."""
        names = [output.name for output in self.encoder.get_outputs()]
        states = self.encoder.run(names, {"input_ids": input_ids, "attention_mask": attention_mask})
        state = {"attention_mask": attention_mask, **dict(zip(names, states, strict=True))}
        open_axes = {"batch": len(input_ids), "source": input_ids.shape[1], "past": 0}
        for entry in self.decoder.get_inputs():
            if entry.name.startswith("past_"):
                state[entry.name] = np.zeros([open_axes.get(size, size) for size in entry.shape], np.float32)
        return state

    def step(self, tokens: Array, state: dict[str, Array]) -> Array:
        """Returns logits (batch, vocabulary) after the next target tokens (batch,); replaces past_* in `state`."""
        inputs = {entry.name: state[entry.name] for entry in self.decoder.get_inputs() if entry.name in state}
        logits, *present = self.decoder.run(None, {"decoder_input_ids": tokens[:, None], **inputs})
        for output, value in zip(self.decoder.get_outputs()[1:], present, strict=True):
            state[output.name.replace("present", "past")] = value
        return logits[:, -1]

    def greedy(self, input_ids: Array, attention_mask: Array, start: int, ends: list[int], length: int) -> Array:
        """Searches greedily until each row ended or has `length` ids; returns ids (batch, time) without start token."""
        state = self.start(input_ids, attention_mask)
        columns: list[Array] = []
        tokens = np.full(len(input_ids), start, np.int64)
        ended = np.zeros(len(input_ids), bool)
        while len(columns) < length and not ended.all():
            tokens = self.step(tokens, state).argmax(-1).astype(np.int64)
            columns.append(tokens)
            ended |= np.isin(tokens, ends)
        return np.stack(columns, axis=1)
