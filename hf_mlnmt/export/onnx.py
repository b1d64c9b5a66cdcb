"""Any system as two ONNX graphs: encoder.onnx, once for each batch, and decoder.onnx, once for each step of the search.

encoder.onnx: input_ids, attention_mask (batch, source) -> source_*: the keys and values of the decoder's attention over
the source, and what else the decoder reads. decoder.onnx: decoder_input_ids (batch, 1), attention_mask, source_*,
past_* -> logits (batch, 1, vocabulary), present_*: what the next step takes as past_*. Before the first step past_* are
zeros of the shape that the graph names, its axis `past` of length 0. Where beams move, past_* move with them.

Both are traced by torch.onnx.export from the modules in states.py. optimum's exporters are for Transformers 4;
those of Transformers itself are not in every release that this package takes.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError
from hf_mlnmt.export.check import (
    LENGTH,
    Search,
    Sentences,
    check_scores,
    compare_searches,
    ends_of,
    of_tokens,
    pad,
    until_end,
)
from hf_mlnmt.export.states import Decode, Encode, Sample, Sizes

ENCODER, DECODER = "encoder.onnx", "decoder.onnx"
_TRACED, _OTHER = Sizes(3, 11, 5), Sizes(2, 7, 4)  # two samples: an axis is open where their shapes differ


@torch.no_grad()
def write(model: Any, folder: Path) -> None:
    """Trace and save both graphs into `folder`. Raises: UserError with the reason if PyTorch cannot trace the model."""
    model = copy.deepcopy(model).eval().float()
    if model._can_set_attn_implementation():  # written out: no operator that only some runtimes have, and always a mask
        model.set_attn_implementation("eager")
    sample, other = Sample(model, _TRACED), Sample(model, _OTHER)
    source = [f"source_{index}" for index in range(len(sample.source))]
    past = [f"past_{index}" for index in range(len(sample.past))]
    past_axes, text = _axes(sample.past, other.past), {0: "batch", 1: "source"}
    used = _trace(
        Decode(model, sample),
        (sample.decoder_input_ids, sample.attention_mask, sample.source, sample.past),
        ({0: "batch"}, text, _axes(sample.source, other.source), past_axes),
        ["decoder_input_ids", "attention_mask", *source, *past],
        ["logits", *(name.replace("past", "present") for name in past)],
        folder / DECODER,
    )
    wanted = [index for index, name in enumerate(source) if name in used]
    _trace(
        Encode(model, sample, past_axes, wanted),
        (sample.input_ids, sample.attention_mask),
        (text, text),
        ["input_ids", "attention_mask"],
        [source[index] for index in wanted],
        folder / ENCODER,
    )


def _axes(states: list[Tensor], others: list[Tensor]) -> list[dict[int, str]]:
    """The names of the open axes of each tensor."""
    names = {(getattr(_TRACED, name), getattr(_OTHER, name)): name for name in Sizes._fields}
    return [
        {axis: names[sizes] for axis, sizes in enumerate(zip(a.shape, b.shape, strict=True)) if sizes[0] != sizes[1]}
        for a, b in zip(states, others, strict=True)
    ]


def _trace(
    module: Any, inputs: tuple[Any, ...], axes: Any, names: list[str], outputs: list[str], path: Path
) -> set[str]:
    """Save the module as a graph; returns the names of the inputs that it reads, the others are left out."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module, inputs, dynamic_shapes=axes, input_names=names, output_names=outputs, dynamo=True, verbose=False
            )
        assert program is not None
        graph = program.model.graph
        for node in graph.all_nodes():
            node.metadata_props.clear()  # stack traces, with paths of this machine
        for value in [value for value in graph.inputs if not value.uses()]:
            graph.inputs.remove(value)
        program.save(path, external_data=False)
    except Exception as error:  # the tracer has many kinds; the innermost says why
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
        raise UserError(f"{path.stem} of {type(module.model).__name__} cannot be exported to ONNX: {reason}") from error
    return {str(value.name) for value in graph.inputs}


def check(folder: Path, model: Any, tokenizers: Tokenizers) -> dict[str, Any]:
    """Run the graphs and compare with `model`: log probabilities of given targets, and greedy search.

    Returns: what was found, for the record. Raises: UserError if they differ.
    """
    from hf_mlnmt.export.onnx_graphs import OnnxGraphs

    graphs, sentences = OnnxGraphs(folder), Sentences.of(model, tokenizers)
    start, padding = model.config.decoder_start_token_id, model.config.pad_token_id or 0
    input_ids, mask = (tensor.numpy() for tensor in pad(sentences.sources, padding))
    given = pad(sentences.targets, padding)[0][:, :-1]
    state = graphs.start(input_ids, mask)
    logits = torch.stack([torch.from_numpy(graphs.step(tokens.numpy(), state)) for tokens in given.unbind(1)], dim=1)
    difference = check_scores(of_tokens(logits, sentences.targets), model, sentences, strict=True)
    rows = graphs.greedy(input_ids, mask, start, ends_of(model), LENGTH).tolist()
    greedy = Search("greedy", 1, [until_end(row, ends_of(model)) for row in rows])
    found = compare_searches(model, sentences.sources, [greedy], strict=True)
    return {"largest_difference_of_log_probabilities": difference, **found}
