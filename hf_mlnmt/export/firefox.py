"""Exports students for Firefox's engines (Bergamot, fxtranslate): int8 weights, SentencePiece vocabulary, shortlist.

Calibration translates sentences and scales each product by the mean of its largest inputs plus 1.1 deviations
(training/quantisation_aware.py). For a model that was imported from this format (convert/marian.py) the int8 numbers
of unchanged weights are written again.
"""

import copy
import json
import struct
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json
from hf_mlnmt.common.languages import base_language, direction_of
from hf_mlnmt.convert.checkpoint import NEVER
from hf_mlnmt.convert.importing import import_model
from hf_mlnmt.convert.marian import KEPT, SHORTLIST, moves
from hf_mlnmt.convert.marian_binary import (
    ALPHA,
    LISTED,
    SETTINGS,
    STEPS,
    Item,
    Shortlist,
    is_in_int8,
    plain,
    read_shortlist,
    rounded,
    shortlist_bytes,
    shortlist_of,
    to_bytes,
    values_of,
)
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.export.check import Sentences, check_scores, compare_searches, generate, log_probabilities
from hf_mlnmt.export.unigram import Vocabulary, check_cut, vocabulary_of
from hf_mlnmt.generation.translating.alignments import Aligner, SourceAttention
from hf_mlnmt.generation.translating.batches import Generated, attention_over_source, batches_by_tokens
from hf_mlnmt.generation.translating.loading import Parts
from hf_mlnmt.training.quantisation_aware import OUTPUT, calibrate, encoded, greedy, products

_FORM = {"settings": str, "multipliers": {...: float}, "alphas": {...: float}}
_BATCH_TOKENS = 2048
_INPUTS = 64
_ELEMENTS = 1 << 24  # largest number of products of two int8 numbers that `_saturated` holds at once


def exportable(model: Any, tokenizers: Tokenizers) -> Any:
    """Returns the model. Raises: UserError, naming what Firefox's engines lack, for a model that these cannot run."""
    config, name = model.config, type(model).__name__
    if getattr(config, "decoder_autoregression", "self-attention") != "ssru":
        raise UserError(
            f"{name} cannot be exported to Firefox's format: fxtranslate, one of its engines, knows no decoder but the "
            "SSRU, and refuses self-attention (missing weight decoder_l1_rnn_W). Train a student of system ssru."
        )
    wanted = {
        "norm_position": "post",
        "normalize_embedding": False,
        "layer_norm_eps": 1e-6,
        "position_embedding": "tensor2tensor",
        "position_offset": 0,
        "activation_function": "relu",
        "scale_embedding": True,
        "tie_word_embeddings": True,
        "decoder_attention_heads": config.encoder_attention_heads,
        "decoder_ffn_dim": config.encoder_ffn_dim,
    }
    for field, value in wanted.items():
        if (found := getattr(config, field)) != value:
            raise UserError(f"{field}={found!r}: cannot be exported to Firefox's format, which has {value!r} alone.")
    for field in ("d_model", "encoder_ffn_dim"):
        if (found := getattr(config, field)) % _INPUTS:
            raise UserError(f"{field}={found}: Firefox's engines multiply {_INPUTS} numbers at once; use a multiple.")
    if model.get_decoder().embed_tokens.weight[config.decoder_start_token_id].any():
        raise UserError(
            f"{name}: decoder_start_token_id: the vector that its decoder begins with is not zero, as in Firefox's "
            "engines. Train it with zeros there, as ssru begins."
        )
    if not all(side.identity for side in tokenizers.processing.values()):
        raise UserError(f"{name}: its text is processed (Moses), which no engine does. Train a student on plain text.")
    if codes := tokenizers.language_ids():
        raise UserError(f"{name}: is told its languages ({', '.join(codes)}). Train a student of one direction.")
    return model


class Asked(NamedTuple):
    """The files given to an export: sentences for calibration, a shortlist, text to make a shortlist from, and the
    folder of the model whose attention aligns that text's translations (None: the exported model's own)."""

    calibration: Path | None = None
    shortlist: Path | None = None
    shortlist_text: Path | None = None
    shortlist_teacher: Path | None = None


def write(parts: Parts, source: Path, folder: Path, asked: Asked) -> dict[str, Any]:
    """Writes all files of the engine into `folder`, and compares the written model with generate().

    source: the folder that the model was loaded from. Returns: the differences, for export.json.
    Raises: UserError as `exportable` and `vocabulary_of`, for bad files in `asked`, and without a calibration.
    """
    model, tokenizers = exportable(parts.model, parts.tokenizers), parts.tokenizers
    kept = read_json(source / KEPT, _FORM)
    pair = "".join(map(base_language, direction_of(source) or ()))
    ending = f".{pair}" if pair else ""
    sides = [vocabulary_of(f"{source}: the tokenizer", tokenizers.source)]
    sides.append(vocabulary_of(f"{source}: the target's tokenizer", tokenizers.target, target=True))
    shared = sides[0] == sides[1]
    tensors = dict(_tensors(model, sides))
    multipliers = _unchanged(tensors, kept.get("multipliers", {}))
    unchanged = bool(kept) and multipliers == kept["multipliers"]
    texts = _texts(asked.calibration) if asked.calibration else []
    shortlist = _shortlist(parts, source, sides, asked)
    if texts:
        check_cut(f"{source}: the tokenizer", sides[0], texts, tokenizers.encode_source(texts))
        alphas = _named(calibrated(parts, texts), shared and "Wemb" in tensors)
    elif unchanged and kept["alphas"]:
        alphas = kept["alphas"]
    else:
        raise UserError(
            f"{source}: int8 needs to know how large the inputs of its products become: give some hundred sentences of "
            "the source, one a line, as --calibrate FILE."
        )
    items = [
        rounded(name, values, multipliers.get(name)) if is_in_int8(name, values.shape) else plain(name, values)
        for name, values in tensors.items()
    ]
    items += [_alpha(name, value) for name, value in alphas.items()]
    settings = (kept["settings"] if unchanged else _settings(model.config, sides, "Wemb" in tensors)).encode()
    items.append(Item(SETTINGS, "int8", (len(settings),), settings))
    (folder / f"model{ending}.intgemm.alphas.bin").write_bytes(to_bytes(items))
    names = ["vocab", "vocab"] if shared else ["srcvocab", "trgvocab"]
    for name, side in zip(names, sides, strict=True):
        (folder / f"{name}{ending}.spm").write_bytes(side.model)
    if shortlist is not None:
        (folder / f"lex.{LISTED}.{LISTED}{ending}.s2t.bin").write_bytes(shortlist)
    return check(folder / f"model{ending}.intgemm.alphas.bin", model, tokenizers, sides)


def _texts(file: Path) -> list[str]:
    texts = [line for line in read_lines(file) if line.strip()]
    if not texts:
        raise UserError(f"{file}: every line is empty. Give a file with one sentence of the source a line.")
    return texts


# Weights


def _tensors(model: Any, sides: Sequence[Vocabulary]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (Marian's name, array) of our parameters in Marian's shapes; embeddings have rows by `sides`."""
    config, state = model.config, {name: tensor.float().cpu() for name, tensor in model.state_dict().items()}
    for ours, theirs, transposed in moves(config):
        if ours in state:
            chunks = state[ours].chunk(len(theirs))
        else:  # Marian's attention always has biases: 0 for those that ours lacks
            chunks = [torch.zeros(config.d_model)] * len(theirs)
        for name, part in zip(theirs, chunks, strict=True):
            matrix = part[None] if part.dim() == 1 else part.t() if transposed else part
            yield name, matrix.contiguous().numpy()
    names = {"encoder_Wemb": "model.encoder.embed_tokens.weight", "decoder_Wemb": "model.decoder.embed_tokens.weight"}
    if config.share_encoder_decoder_embeddings and sides[0] == sides[1]:
        names = {"Wemb": names["encoder_Wemb"]}
    for (name, ours), side in zip(names.items(), sides):
        yield name, _rows(state[ours], side, 0.0).numpy()
    bias = state.get("lm_head.bias", torch.zeros(config.decoder_vocab_size))
    yield "decoder_ff_logit_out_b", _rows(bias, sides[1], NEVER)[None].numpy()


def _rows(tensor: Tensor, side: Vocabulary, value: float) -> Tensor:
    """Returns a row for each piece of a vocabulary: the tensor's row of its id; without an id, of values `value`."""
    rows = tensor[[index or 0 for index in side.ids]]
    rows[[index is None for index in side.ids]] = value
    return rows


def _unchanged(tensors: Mapping[str, np.ndarray], multipliers: Mapping[str, float]) -> dict[str, float]:
    """Returns the multipliers of weights that did not change since the import: rounding gives the same values again."""

    def again(name: str) -> np.ndarray:
        return values_of(rounded(name, tensors[name], multipliers[name]))[0]

    same = (name for name in multipliers if name in tensors and np.array_equal(tensors[name], again(name)))
    return {name: multipliers[name] for name in same}


def _alpha(name: str, value: float) -> Item:
    """Returns an item of the file with an alpha; for an embedding a number in int8 with `value` as its multiplier."""
    if "Wemb" in name:
        return Item(name, "intgemm8", (1, 1), struct.pack("<bf", STEPS, value))
    return plain(name, np.array([[value]], np.float32))


def _named(alphas: Mapping[str, float], tied: bool) -> dict[str, float]:
    """Returns {item's name: value for `_alpha`}; alphas: {weight's name, "" for the output projection: alpha}."""
    output = alphas[""]
    named = {f"{name}{ALPHA}": alpha for name, alpha in alphas.items() if name}
    named |= {f"{'' if tied else 'decoder_'}Wemb{ALPHA}": float(np.float32(STEPS) / np.float32(output))}
    return named | ({f"none{ALPHA}": output} if tied else {})


def _settings(config: Any, sides: Sequence[Vocabulary], tied_all: bool) -> str:
    """Returns the YAML text, ended by a zero character, from which the engines and Marian read the architecture."""
    settings = {
        "type": "transformer",
        "dim-vocabs": [len(side.ids) for side in sides],
        "dim-emb": config.d_model,
        "enc-depth": config.encoder_layers,
        "dec-depth": config.decoder_layers,
        "transformer-heads": config.encoder_attention_heads,
        "transformer-dim-ffn": config.encoder_ffn_dim,
        "transformer-ffn-depth": 2,
        "transformer-ffn-activation": "relu",
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-decoder-autoreg": "rnn",
        "dec-cell": "ssru",
        "tied-embeddings-all": tied_all,
        "tied-embeddings": not tied_all,
        "layer-normalization": False,
    }
    return yaml.safe_dump(settings, sort_keys=False) + "\0"


# Scales of int8 inputs


def calibrated(parts: Parts, texts: Sequence[str]) -> dict[str, float]:
    """Translates texts to measure the inputs of every product; returns {name of Marian's matrix, "" for the output
    projection: alpha, by which the inputs are multiplied before they are rounded to int8}."""
    alphas = calibrate(parts, texts)
    matrices = [*products(parts.model.config), (OUTPUT, ("",))]
    return {each: alphas[name] for name, theirs in matrices for each in theirs}


# Shortlists


def _shortlist(parts: Parts, source: Path, sides: Sequence[Vocabulary], asked: Asked) -> bytes | None:
    if asked.shortlist_text:
        texts, teacher = _texts(asked.shortlist_text), asked.shortlist_teacher
        aligner = None if teacher is None else Aligner.of(str(teacher), str((direction_of(source) or ("", ""))[1]))
        return shortlist_bytes(lexical_shortlist(parts, texts, sides, aligner))
    file = asked.shortlist or source / SHORTLIST
    if not asked.shortlist and not file.is_file():
        return None
    try:
        read_shortlist(file, [len(side.ids) for side in sides])
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}). Check the path.") from error
    return file.read_bytes()


def lexical_shortlist(
    parts: Parts, texts: Sequence[str], sides: Sequence[Vocabulary], aligner: Aligner | None = None
) -> Shortlist:
    """Makes a lexical shortlist from the model's greedy translations of texts: lists for each source subword the target
    subwords whose attention to it (with an aligner: links to it), summed over all texts, is largest."""
    attention = SourceAttention(parts.model)
    rows = [{index: row for row, index in enumerate(side.ids) if index is not None} for side in sides]
    sources = encoded(parts, texts)
    translations = greedy(parts, sources)
    read: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for batch in batches_by_tokens(list(map(len, sources)), _BATCH_TOKENS):
        inputs, outputs = ([ids[index] for index in batch] for ids in (sources, translations))
        if aligner is None:
            each = [[Generated(ids, 0.0)] for ids in outputs]
            weights = [matrix for (matrix,) in attention_over_source(attention, parts, inputs, each, {})]
        else:
            weights = [linked.float() for linked in aligner.of_subwords(parts.tokenizers, inputs, outputs)]
        for source, target, matrix in zip(inputs, outputs, weights, strict=True):
            for token, row in zip(target, matrix.tolist(), strict=True):
                for index, weight in zip(source, row, strict=True):
                    if weight and index in rows[0] and token in rows[1]:
                        read[rows[0][index]][rows[1][token]] += weight
    return shortlist_of(read, len(sides[0].ids))


# The check


class EngineLinear(nn.Module):
    """Replaces an nn.Linear: computes x W^T + b in int8 as Firefox's engines do.

    Inputs are rounded to -127..127, and shifted by 127 for instructions that multiply unsigned by signed numbers.
    `saturated`: pairs of neighbouring products are added in 16 bits, which may saturate, as in fxtranslate on x86 where
    the number of inputs is a multiple of 32; else sums are exact.
    """

    def __init__(self, linear: nn.Linear, parts: Sequence[tuple[Tensor, float, float]], saturated: bool):
        """parts: for each block of outputs int8 weights (outputs, inputs), their multiplier, alpha of the inputs."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.saturated = saturated and linear.in_features % 32 == 0
        bias = torch.zeros(linear.out_features) if linear.bias is None else linear.bias.detach().float()
        self.parts: list[tuple[float, Tensor, Tensor, Tensor, Tensor]] = []
        for (steps, multiplier, alpha), shift in zip(parts, bias.split([len(x) for x, *_ in parts]), strict=True):
            scale = 1 / (torch.tensor(alpha) * torch.tensor(multiplier))
            shifted = STEPS * steps.sum(1, dtype=torch.int32)
            numbers = steps.int() if self.saturated else steps.t()
            self.parts.append((alpha, numbers, shifted, scale, shift - scale * shifted.float()))

    def forward(self, states: Tensor) -> Tensor:
        """Multiplies states (..., inputs), float32, by the int8 weights and adds b: (..., outputs)."""
        rows, products = states.reshape(-1, self.in_features), []
        for alpha, numbers, shifted, scale, bias in self.parts:
            inputs = (rows * alpha).round().clamp(-STEPS, STEPS)
            if self.saturated:
                sums = _saturated(inputs.int() + STEPS, numbers)
            else:
                sums = torch._int_mm(inputs.to(torch.int8), numbers) + shifted
            products.append(scale * sums.float() + bias)
        return torch.cat(products, -1).view(*states.shape[:-1], -1)


def _saturated(rows: Tensor, steps: Tensor) -> Tensor:
    """Multiplies (rows, inputs) by the transposed (outputs, inputs); sums of two products saturate at 16 bits."""
    found = [
        torch.addcmul(part[:, None, ::2] * steps[:, ::2], part[:, None, 1::2], steps[:, 1::2])
        .clamp_(-(2**15), 2**15 - 1)
        .sum(2, dtype=torch.int32)
        for part in rows.split(max(1, _ELEMENTS // steps.numel()))
    ]
    return torch.cat(found)


def as_engine(model: Any, kept: Mapping[str, Any], saturated: bool = False) -> Any:
    """Copies an imported model with `EngineLinear` instead of its linear layers; kept: the content of marian.json."""
    multipliers, state = kept["multipliers"], model.state_dict()
    output = "Wemb" if "Wemb" in multipliers else "decoder_Wemb"
    alphas = {name.removesuffix(ALPHA): alpha for name, alpha in kept["alphas"].items()}
    alphas[output] = alphas["none"] if "none" in alphas else STEPS / alphas[output]
    memo: dict[int, nn.Module] = {}
    for layer, theirs in [*products(model.config), (OUTPUT, (output,))]:
        matrices = dict(zip(theirs, state[f"{layer}.weight"].chunk(len(theirs)), strict=True))
        parts = [
            ((matrix * multipliers[name]).round().to(torch.int8), multipliers[name], alphas[name])
            for name, matrix in matrices.items()
        ]
        linear: Any = model.get_submodule(layer)
        memo[id(linear)] = EngineLinear(linear, parts, saturated)
    return copy.deepcopy(model, memo)


def check(file: Path, model: Any, tokenizers: Tokenizers, sides: Sequence[Vocabulary]) -> dict[str, Any]:
    """Imports the written file, computes in int8 as the engines, and compares with `model`; returns the differences.

    Raises: UserError if the file cannot be imported.
    """
    with tempfile.TemporaryDirectory() as scratch:
        theirs = import_model(file, Path(scratch) / "again").model
        kept = json.loads((Path(scratch) / "again" / KEPT).read_text())
    to_engine = [{index: row for row, index in enumerate(side.ids) if index is not None} for side in sides]
    start, sentences = theirs.config.decoder_start_token_id, Sentences.of(model, tokenizers)
    # Tokens without a row in the engine (<mask>) are in no text: the last piece replaces them.
    last = [max(rows, key=rows.__getitem__) for rows in to_engine]
    sources = [[x if x in to_engine[0] else last[0] for x in ids] for ids in sentences.sources]
    targets = [[ids[0], *[x if x in to_engine[1] else last[1] for x in ids[1:]]] for ids in sentences.targets]
    sentences = Sentences(sources, targets, sentences.texts)
    given = [[to_engine[0][index] for index in ids] for ids in sources]
    expected = [[start, *[to_engine[1][index] for index in ids[1:]]] for ids in targets]
    report: dict[str, Any] = {}
    for name, saturated in (("", False), ("saturated, ", True)):
        engine = as_engine(theirs, kept, saturated)
        found: list[list[Any]] = [[sides[1].ids[row] for row in rows] for rows in generate(engine, given, 1)]
        scores = log_probabilities(engine, given, expected)
        report[f"{name}largest_difference_of_log_probabilities"] = check_scores(scores, model, sentences, strict=False)
        agreement = compare_searches(model, sentences, {1: found}, strict=False)
        report |= {f"{name}{each}": value for each, value in agreement.items()}
    return report
