"""Exports a folder that `pipeline("translation", FOLDER)` of @huggingface/transformers runs in a browser or in Node.

transformers.js does not know our classes, but runs any two graphs under the names of a class that it knows: config.json
has model_type "marian". Its decoder starts with a cache whose dynamic axes, except the batch, have length 0, and keeps
the first step's outputs `present.*.encoder.*` for all later steps. So the whole model is a single graph with one table
of embeddings, onnx/decoder_model_merged.onnx: it runs the encoder (onnx.py) in the first step, whose outputs come back
as inputs of later steps. onnx/encoder_model.onnx only turns source ids into floats. transformers.js has no beam search.
"""

import copy
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import AttributeProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, make_tensor_value_info, set_model_props
from onnx.numpy_helper import from_array, to_array
from onnxruntime.quantization import quantize_dynamic

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import write_json
from hf_mlnmt.common.model_folder import CONFIG, GENERATION_CONFIG, TOKENIZERS, token_ids
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.export import onnx as two_graphs
from hf_mlnmt.export.check import compare_graphs, ends_of
from hf_mlnmt.export.onnx_graphs import OnnxGraphs

GRAPHS = "onnx"
ENCODER, DECODER = "encoder_model", "decoder_model_merged"
ENDINGS = {"float32": "", "int8": "_quantized"}  # file names that transformers.js loads for dtype "fp32" and "q8"
_IDS, _MASK, _SOURCE, _LATER = "input_ids", "encoder_attention_mask", "encoder_hidden_states", "use_cache_branch"
_NEVER = -1e9
_SMALL = 64  # tables of fewer rows are not rounded to int8


def check_exportable(model: Any, tokenizers: Tokenizers) -> None:
    """Raises UserError for a model with two tokenizers, or one that needs text processing before tokenization."""
    name = type(model).__name__
    if not tokenizers.joint:
        raise UserError(
            f"{name}: source and target have tokenizers of their own, and transformers.js has one for both. Train with "
            "tokenizer.joint: true, or export to onnx and cut the text yourself."
        )
    if not all(side.identity for side in tokenizers.processing.values()):
        raise UserError(f"{name}: its text is processed (Moses), which no browser does. Train it on plain text.")


def write(model: Any, tokenizers: Tokenizers, folder: Path, dtypes: Sequence[str]) -> dict[str, Any]:
    """Writes graphs, configs and tokenizer into `folder`, runs the graphs and compares them with `model`.

    Returns: the differences, for export.json. Raises: UserError as `check_exportable` and `onnx.write`, and if the
    float32 graph computes something else than the model.
    """
    check_exportable(model, tokenizers)
    with tempfile.TemporaryDirectory() as scratch:
        two_graphs.write(model, Path(scratch))
        return pack(Path(scratch), model, tokenizers, folder, dtypes)


def pack(
    traced: Path, model: Any, tokenizers: Tokenizers, folder: Path, dtypes: Sequence[str]
) -> dict[str, dict[str, Any] | float]:
    """Writes all files of `folder` from the two graphs in `traced`, runs them; arguments and returns: as `write`."""
    (folder / GRAPHS).mkdir()
    for dtype in dtypes:
        encoder, decoder = (onnx.load(traced / name) for name in (two_graphs.ENCODER, two_graphs.DECODER))
        onnx.save(_ids_as_numbers(encoder), folder / GRAPHS / f"{ENCODER}{ENDINGS[dtype]}.onnx")
        if dtype == "int8":
            encoder, decoder = _graph_in_int8(encoder), _graph_in_int8(decoder)
        merged, layers = _merged(encoder, decoder, model)
        onnx.save(merged, folder / GRAPHS / f"{DECODER}{ENDINGS[dtype]}.onnx")
    config, tokens = model.config, {**token_ids(model.config), "pad_token_id": model.config.pad_token_id or 0}
    write_json(
        folder / CONFIG,
        {
            "architectures": ["MarianMTModel"],
            "model_type": "marian",
            "is_encoder_decoder": True,
            "decoder_layers": layers,  # transformers.js names the cached states from this count: two a layer
            "encoder_layers": layers,
            "decoder_attention_heads": 1,
            "encoder_attention_heads": 1,
            "d_model": config.d_model,
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.max_position_embeddings,
            **tokens,
        },
    )
    longest = model.generation_config.max_new_tokens or 256
    write_json(folder / GENERATION_CONFIG, {**tokens, "max_new_tokens": longest, "num_beams": 1, "do_sample": False})
    tokenizer: Any = tokenizers.source
    tokenizer.backend_tokenizer.save(str(folder / TOKENIZERS[0]))
    special = {key: str(value) for key, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    limits = {"model_max_length": config.max_position_embeddings, "clean_up_tokenization_spaces": False}
    write_json(folder / TOKENIZERS[1], {"tokenizer_class": "PreTrainedTokenizerFast", **special, **limits})
    found = {
        dtype: compare_graphs(Driver(folder, dtype), model, tokenizers, strict=dtype == "float32") for dtype in dtypes
    }
    return {f"{name}, {dtype}": value for dtype, values in found.items() for name, value in values.items()}


def _place(kind: str, prefix: str, index: int) -> str:
    """Returns the name that transformers.js gives to state number `index`: a key and a value for each layer."""
    return f"{prefix}.{index // 2}.{kind}.{('key', 'value')[index % 2]}"


def _ids_as_numbers(encoder: Any) -> Any:
    """Returns the graph that transformers.js runs as encoder: ids (batch, source) as floats (batch, source, 1)."""
    axes = _constant("axes", [2])
    nodes = [
        make_node("Cast", [_IDS], ["numbers"], to=TensorProto.FLOAT),
        make_node("Unsqueeze", ["numbers", "axes"], ["last_hidden_state"]),
    ]
    given = make_tensor_value_info(_IDS, TensorProto.INT64, ["batch_size", "source"])
    made = make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch_size", "source", 1])
    return _model(encoder, make_graph(nodes, "ids", [given], [made], [axes]))


def _model(like: Any, graph: Any) -> Any:
    return make_model(graph, opset_imports=like.opset_import, ir_version=like.ir_version)


def _merged(encoder: Any, decoder: Any, model: Any) -> tuple[Any, int]:
    """Merges both graphs into one; returns it and the number of layers for config.json, which is half of the states."""
    types = {value.name: value.type for value in chain(decoder.graph.output, decoder.graph.input)}
    for value in encoder.graph.output:  # dynamic axes get the names that they have in the decoder's inputs
        value.type.CopyFrom(types[value.name])
    past = [name for name in types if name.startswith("past_")]
    fixed = [value.name for value in encoder.graph.output]  # states that the first step computes and later steps read
    constants = {"axis": np.array([2]), "one": np.array([1])}
    nodes: list[Any] = []

    renamed = {"decoder_input_ids": _IDS, "attention_mask": _MASK, "logits": "model_logits"}
    for index, name in enumerate(past):
        renamed[name] = given = _place("decoder", "past_key_values", index)
        renamed[name.replace("past_", "present_")] = _place("decoder", "present", index)
        axes = types[name].tensor_type.shape.dim
        for axis in [axis for axis, size in enumerate(axes) if size.dim_param == "source"]:
            renamed[name] = f"{given}/padded"
            nodes += _padded(given, renamed[name], axis, len(axes), constants)
    states = [_place("encoder", "present", index) for index in range(len(fixed))]
    kept = [_place("encoder", "past_key_values", index) for index in range(len(fixed))]
    _prefix(decoder.graph, "decode/", renamed | dict(zip(fixed, states, strict=True)))
    _prefix(encoder.graph, "encode/", {"attention_mask": _MASK, _IDS: "source_ids"})

    first = [
        make_node("Squeeze", [_SOURCE, "axis"], ["source_numbers"]),
        make_node("Cast", ["source_numbers"], ["source_ids"], to=TensorProto.INT64),
        *encoder.graph.node,
    ]
    tensors = _once([*first, *decoder.graph.node], [*encoder.graph.initializer, *decoder.graph.initializer])
    later = [make_node("Identity", [name], [f"{name}/again"]) for name in kept]
    given_back = [_value(f"{name}/again", types[source]) for name, source in zip(kept, fixed, strict=True)]
    branches = {
        "then_branch": make_graph(later, "later", [], given_back),
        "else_branch": make_graph(first, "first", [], list(encoder.graph.output)),
    }
    nodes += [make_node("If", [_LATER], states, **branches), *decoder.graph.node]
    growing = [
        (_place("decoder", "past_key_values", index), axis)
        for index, name in enumerate(past)
        for axis, size in enumerate(types[name].tensor_type.shape.dim)
        if size.dim_param == "past"
    ]
    vocabulary = types["logits"].tensor_type.shape.dim[2].dim_value
    nodes += _ended(model, vocabulary, growing[0] if growing else None, constants)

    inputs = [_value(_IDS, types["decoder_input_ids"])]
    inputs.append(make_tensor_value_info(_MASK, TensorProto.INT64, ["batch_size", "source"]))
    inputs.append(make_tensor_value_info(_SOURCE, TensorProto.FLOAT, ["batch_size", "source", 1]))
    inputs.append(make_tensor_value_info(_LATER, TensorProto.BOOL, [1]))
    # Dynamic axes of the cache have length 0 at first, so their names differ from those of other inputs.
    inputs += [_value(_place("decoder", "past_key_values", n), types[name], "past ") for n, name in enumerate(past)]
    inputs += [_value(name, types[source], "kept ") for name, source in zip(kept, fixed, strict=True)]
    outputs = [_value("logits", types["logits"])]
    presents = [name.replace("past_", "present_") for name in past]
    outputs += [_value(renamed[name], types[name]) for name in presents]
    outputs += [_value(name, types[source]) for name, source in zip(states, fixed, strict=True)]
    tensors += [_constant(name, values) for name, values in constants.items()]
    graph = make_graph(nodes, "translation", inputs, outputs, tensors)
    return _model(decoder, graph), (max(len(past), len(fixed)) + 1) // 2


def _prefix(graph: Any, prefix: str, renamed: dict[str, str]) -> None:
    """Renames the values of a graph: a name in `renamed` to its new name, all others by adding a prefix."""

    def new(name: str) -> str:
        return name and renamed.get(name, prefix + name)

    for value in chain(graph.input, graph.output, graph.initializer):
        value.name = new(value.name)
    del graph.value_info[:]
    for node in graph.node:
        node.name = node.name and prefix + node.name
        node.input[:] = map(new, node.input)
        node.output[:] = map(new, node.output)
        for inner in _inner(node):
            _prefix(inner, prefix, renamed)


def _inner(node: Any) -> list[Any]:
    """Returns the graphs inside of a node: the branches of an If, the body of a Loop."""
    return [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]


def _value(name: str, kind: Any, axes: str = "") -> Any:
    """Returns an input or output of a graph; renames axis `batch` to batch_size, puts `axes` before names of others."""
    value = ValueInfoProto(name=name, type=kind)
    for size in value.type.tensor_type.shape.dim:
        if size.dim_param:
            size.dim_param = "batch_size" if size.dim_param == "batch" else f"{axes}{size.dim_param}"
    return value


def _constant(name: str, values: Any) -> Any:
    return from_array(np.ascontiguousarray(values), name)


def _padded(name: str, output: str, axis: int, rank: int, constants: dict[str, Any]) -> list[Any]:
    """Returns the nodes that pad a state with zeros along `axis` to the length of the source."""
    before, after = f"{output}/before", f"{output}/after"
    constants |= {before: np.zeros(rank + axis, np.int64), after: np.zeros(rank - axis - 1, np.int64)}
    found, wanted, missing, pads = (f"{output}/{part}" for part in ("found", "wanted", "missing", "pads"))
    return [
        make_node("Shape", [name], [found], start=axis, end=axis + 1),
        make_node("Shape", [_MASK], [wanted], start=1, end=2),
        make_node("Sub", [wanted, found], [missing]),
        make_node("Concat", [before, missing, after], [pads], axis=0),
        make_node("Pad", [name, pads], [output]),
    ]


def _ended(model: Any, vocabulary: int, grows: tuple[str, int] | None, constants: dict[str, Any]) -> list[Any]:
    """Returns the nodes that predict the end token after an end token, or where the model has no more positions.

    They are needed because transformers.js continues, for 256 steps by default, until all sentences of a batch end in
    the same step. grows: (a state, its axis whose length is the number of translated tokens); None without one.
    """
    ends = ends_of(model)
    row = np.full((1, 1, vocabulary), _NEVER, np.float32)
    row[..., ends[0]] = 0
    # If the start token is an end token, inputs are compared with -1, so that the first step does not count as ended.
    tokens = [-1] if model.config.decoder_start_token_id in ends else ends
    constants |= {"ends": np.array(tokens, np.int64), "after_the_end": row}
    nodes = [
        make_node("Equal", [_IDS, "ends"], ["is_end"]),  # of ids (batch, 1) and end tokens (ends,)
        make_node("Cast", ["is_end"], ["is_end/number"], to=TensorProto.INT32),
        make_node("ReduceMax", ["is_end/number", "one"], ["ended/number"], keepdims=1),
        make_node("Cast", ["ended/number"], ["ended"], to=TensorProto.BOOL),
    ]
    if grows:
        name, axis = grows
        constants["longest"] = np.array([model.config.max_position_embeddings - 1])
        nodes += [
            make_node("Shape", [name], ["length"], start=axis, end=axis + 1),
            make_node("GreaterOrEqual", ["length", "longest"], ["is_long"]),
            make_node("Or", ["ended", "is_long"], ["over"]),
        ]
    return [
        *nodes,
        make_node("Unsqueeze", ["over" if grows else "ended", "axis"], ["over/row"]),
        make_node("Where", ["over/row", "after_the_end", "model_logits"], ["logits"]),
    ]


def _once(nodes: list[Any], tensors: list[Any]) -> list[Any]:
    """Returns the tensors without duplicates, and makes nodes that read a duplicate read the tensor that is kept."""
    kept: dict[Any, Any] = {}
    names: dict[str, str] = {}
    for tensor in tensors:
        key = (tensor.data_type, tuple(tensor.dims), hashlib.sha256(to_array(tensor).tobytes()).digest())
        names[tensor.name] = kept.setdefault(key, tensor).name
    for node in _all(nodes):
        node.input[:] = [names.get(name, name) for name in node.input]
    return list(kept.values())


def _all(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        for inner in _inner(node):
            yield from _all(inner.node)


# Rounding


def _graph_in_int8(model: Any) -> Any:
    """Returns a graph whose matrices are in 8 bits, with a scale for each column of a product and each row of a table.

    Inputs of products are rounded in each run (DynamicQuantizeLinear). A table of embeddings that is also the output
    projection stays one table: its rows are looked up, and the logits are the table times the states.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path, given = Path(scratch) / "int8.onnx", copy.deepcopy(model)
        set_model_props(given, {"onnx.quant.pre_process": "onnxruntime.quant"})  # else ONNX Runtime warns
        ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
        stacked = [node.name for node in model.graph.node if node.op_type == "MatMul" and ranks.get(node.input[1]) != 2]
        kinds = {"op_types_to_quantize": ["MatMul"], "nodes_to_exclude": stacked}
        quantize_dynamic(given, path, per_channel=True, **kinds)
        rounded = onnx.load(path)
    graph = rounded.graph
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    replaced: dict[str, list[Any]] = {}  # {output of a node: nodes that replace this node}
    for tensor in [tensor for tensor in graph.initializer if _is_table(tensor, readers)]:
        graph.initializer.remove(tensor)
        values, name = to_array(tensor), tensor.name
        scales = np.maximum(np.abs(values).max(1, keepdims=True), 1e-12).astype(np.float32) / 127
        graph.initializer.extend(
            [
                _constant(f"{name}/table", (np.rint(values / scales) + 128).astype(np.uint8)),
                _constant(f"{name}/scales", scales),
                _constant(f"{name}/zero", np.array(128, np.uint8)),
                _constant(f"{name}/unit", np.array(1, np.float32)),
            ]
        )
        for node in readers[name]:
            if node.op_type == "Gather":
                replaced[node.output[0]] = _looked_up(name, node)
            else:
                replaced[node.output[0]] = []
                for product in readers[node.output[0]]:
                    replaced[product.output[0]] = _multiplied(name, product)
    nodes = [new for node in graph.node for new in replaced.get(node.output[0], [node])]
    graph.initializer.append(_constant("middle", np.array([1])))
    del graph.node[:]
    graph.node.extend(nodes)
    return rounded


def _is_table(tensor: Any, readers: dict[str, list[Any]]) -> bool:
    """Returns whether a tensor of _SMALL rows or more is only read by Gather of rows, or by MatMul after Transpose."""

    def fits(node: Any) -> bool:
        if node.op_type == "Gather":
            return bool(node.input[0] == tensor.name) and not any(at.name == "axis" and at.i for at in node.attribute)
        return node.op_type == "Transpose" and all(reader.op_type == "MatMul" for reader in readers[node.output[0]])

    return len(tensor.dims) == 2 and tensor.dims[0] >= _SMALL and all(map(fits, readers.get(tensor.name, [])))


def _looked_up(table: str, node: Any) -> list[Any]:
    ids, output = node.input[1], node.output[0]
    rows, scales, numbers = (f"{output}/{part}" for part in ("rows", "scales", "numbers"))
    return [
        make_node("Gather", [f"{table}/table", ids], [rows]),
        make_node("Gather", [f"{table}/scales", ids], [scales]),
        make_node("DequantizeLinear", [rows, f"{table}/unit", f"{table}/zero"], [numbers]),
        make_node("Mul", [numbers, scales], [output]),
    ]


def _multiplied(table: str, product: Any) -> list[Any]:
    """Returns the nodes that multiply x (batch, 1, inputs) by the transposed table, as table times transposed x."""
    output = product.output[0]
    names = ("flat", "whole", "scale", "zero", "turned", "sums", "floats", "by_row", "scaled", "by_token")
    flat, whole, scale, zero, turned, sums, floats, by_row, scaled, by_token = (f"{output}/{name}" for name in names)
    return [
        make_node("Squeeze", [product.input[0], "middle"], [flat]),
        make_node("DynamicQuantizeLinear", [flat], [whole, scale, zero]),
        make_node("Transpose", [whole], [turned], perm=[1, 0]),
        make_node("MatMulInteger", [f"{table}/table", turned, f"{table}/zero", zero], [sums]),
        make_node("Cast", [sums], [floats], to=TensorProto.FLOAT),
        make_node("Mul", [floats, f"{table}/scales"], [by_row]),
        make_node("Mul", [by_row, scale], [scaled]),
        make_node("Transpose", [scaled], [by_token], perm=[1, 0]),
        make_node("Unsqueeze", [by_token, "middle"], [output]),
    ]


# The check


class Driver(OnnxGraphs):
    """Runs the merged graph of a folder step by step as transformers.js does."""

    def __init__(self, folder: Path, dtype: str):
        path = folder / GRAPHS / f"{DECODER}{ENDINGS[dtype]}.onnx"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.outputs = [output.name for output in self.session.get_outputs()]

    def start(self, input_ids: Any, attention_mask: Any) -> dict[str, Any]:
        """Returns the inputs of the first step, without its tokens: states whose dynamic axes have length 0."""
        state = {_MASK: attention_mask, _SOURCE: input_ids[..., None].astype(np.float32), _LATER: np.array([False])}
        for entry in self.session.get_inputs():
            if entry.name.startswith("past"):
                sizes = [len(input_ids) if size == "batch_size" else size for size in entry.shape]
                state[entry.name] = np.zeros([size if isinstance(size, int) else 0 for size in sizes], np.float32)
        return state

    def step(self, tokens: Any, state: dict[str, Any]) -> Any:
        """Returns logits (batch, vocabulary) after tokens (batch,); writes the new states to `state`."""
        results = dict(zip(self.outputs, self.session.run(None, {_IDS: tokens[:, None], **state}), strict=True))
        first = not state[_LATER][0]
        for name, value in results.items():
            if name.startswith("present") and (first or "encoder" not in name):
                state[name.replace("present", "past_key_values")] = value
        state[_LATER] = np.array([True])
        return results["logits"][:, -1]
