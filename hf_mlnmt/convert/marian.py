"""Imports Marian's checkpoints: model.npz, read without pickle, or model.bin, as Firefox has it in int8; with their
SentencePiece models or vocabularies.

Verified against the engine (pymarian 1.12.42). What its Transformer does that a reader of the paper would not expect:
positions of tensor2tensor from 0; layer norms with an epsilon of 1e-6; the decoder begins with a vector of zeros. For
that vector a token <pad> is added after both vocabularies; its embedding is zero, and its output bias so low that it is
never predicted.

An SSRU decoder (transformer-decoder-autoreg: rnn, dec-cell: ssru) makes a model of modeling/ssru.py.

For weights in int8, marian.json beside the model keeps what an export needs to write the same file again: settings,
multipliers and alphas; the shortlist is kept unchanged.

Pre-norm models are imported as Marian trains and scores them. Its own decoder computes other outputs: from the second
token on, its self-attention reads the states before their norm, but in training the normed ones.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import pair_in
from hf_mlnmt.convert.checkpoint import (
    FLAG,
    NEVER,
    OFF,
    Checkpoint,
    Move,
    Placement,
    Settings,
    baseline_config,
    generation_config,
    weights_of,
    yaml_of,
)
from hf_mlnmt.convert.marian_binary import ALPHA, SETTINGS, Item, read_items, read_shortlist, values_of
from hf_mlnmt.convert.vocabularies import EOS, Side, parts_beside, read_decoding, read_vocabularies, tokenizers_of
from hf_mlnmt.modeling import SSRUConfig, TransformerConfig

KEPT, SHORTLIST = "marian.json", "shortlist.s2t"  # files that an import may add to the folder
# Values of settings that the baseline can compute; others are refused.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-ffn-activation": ("swish", "relu", "gelu"),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-attention-mask": ("default",),
    **dict.fromkeys(("transformer-train-position-embeddings", "transformer-disable-position-embeddings"), OFF),
    **dict.fromkeys(("transformer-no-projection", "transformer-no-bias", "transformer-no-affine"), OFF),
    **dict.fromkeys(("transformer-pool", "right-left", "ulr"), OFF),
    **dict.fromkeys(("transformer-tied-layers", "input-types"), ([],)),
    **dict.fromkeys(("lemma-dim-emb", "factors-dim-emb"), (0,)),
    **dict.fromkeys(("tied-embeddings-all", "tied-embeddings", "tied-embeddings-src", "output-omit-bias"), FLAG),
}

# Values of further settings that an SSRU decoder can compute.
_SSRU: dict[str, tuple[Any, ...]] = {
    "dec-cell": ("ssru",),
    **dict.fromkeys(("transformer-rnn-projection", "layer-normalization"), OFF),
    "transformer-preprocess": ("",),  # "" is post-norm; SSRU in pre-norm was never compared with Marian
}


def read(path: Path) -> Checkpoint:
    """Makes a Checkpoint of a .npz or .bin file, or of the folder that has one, and of the files beside it.

    decoder.yml beside the file names the vocabularies, a .spm for each side, or a vocab.yml with the files source.spm
    and target.spm (OPUS-MT's releases), and has beams and length penalty. Without it the vocabularies are vocab.*.spm,
    or srcvocab.*.spm and trgvocab.*.spm (Firefox's); a shortlist lex.*.bin is checked and kept.

    Raises: UserError for missing or unreadable files, and for settings that the baseline lacks.
    """
    file = _model_file(path)
    tensors, settings, kept, said = (_load_npz if file.suffix == ".npz" else _load_binary)(file)
    _check(settings)
    decoding = read_decoding(file)
    sides = read_vocabularies(file, decoding["vocabs"])
    source, target = sizes = [len(side.ids) for side in sides]
    rows = {"Wemb": max(sizes), "encoder_Wemb": source, "decoder_Wemb": target}
    for name, count in rows.items():
        if name in tensors and len(tensors[name]) >= count + 8:  # Marian pads tables to a multiple of 8 rows
            raise UserError(
                f"{file}: {name} has {len(tensors[name]):,} rows, the vocabulary beside it {count:,} tokens: they are "
                "not of one model. Copy its own vocabulary."
            )
    notes = [
        f"{name} has {len(tensors[name])} rows, its vocabulary {count} tokens: those are kept"
        for name, count in rows.items()
        if name in tensors and len(tensors[name]) > count
    ]
    config = _config(file, tensors, settings, max(sizes), sides[1].ids[EOS])
    placement = _placement(file, tensors, settings, config, sizes)
    beams = decoding.get("beam-size") or 1
    # Both Marian and generate() divide scores by the length, end of sentence counted, to the power of the penalty.
    search = {"num_beams": beams, "length_penalty": float(decoding.get("normalize") or 0.0)} if beams > 1 else {}
    return Checkpoint(
        f"Marian {file.suffix.removeprefix('.')}",
        config,
        placement,
        tokenizers_of(sides, max(sizes), _languages(file, sides[0])),
        generation_config(config, **search),
        notes=[*said, *notes],
        files=_files(file, kept, sizes),
    )


def _model_file(path: Path) -> Path:
    if path.is_file():
        return path
    files = [file for file in sorted(path.iterdir()) if file.is_file() and file.suffix in (".npz", ".bin")]
    others = (".optimizer.npz", ".orig.npz")
    files = [file for file in files if not (file.name.endswith(others) or file.name.startswith("lex"))]
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise UserError(f"{path}: one .npz or .bin file is expected there, found {names}. Name the file itself.")
    return files[0]


def _languages(file: Path, side: Side) -> tuple[str, str] | None:
    """Returns the languages in a file's name, if its vocabulary's name has the same; None for model.base.bin."""
    pair = pair_in(file)
    return pair if pair and f".{''.join(pair)}." in side.cutter.name else None


def _files(file: Path, kept: dict[str, Any], sizes: Sequence[int]) -> dict[str, bytes]:
    """Returns further files for the model folder: the record of its int8 weights, and its shortlist, checked."""
    files = {KEPT: (json.dumps(kept, indent=1) + "\n").encode()} if kept else {}
    every = sorted(file.parent.glob("lex*.bin"))
    shortlists = next((found for part in parts_beside(file) if (found := [x for x in every if part in x.name])), [])
    if len(shortlists) > 1:
        names = ", ".join(path.name for path in shortlists)
        raise UserError(f"{file}: beside it lie {names}. Leave the shortlist that belongs to it.")
    for path in shortlists:
        read_shortlist(path, sizes)
        files[SHORTLIST] = path.read_bytes()
    return files


class _Loaded(NamedTuple):
    """A file's tensors and settings; for int8 weights also what is kept in marian.json, and notes."""

    tensors: dict[str, Tensor]
    settings: Settings
    kept: dict[str, Any] = {}
    notes: Sequence[str] = ()


def _load_binary(file: Path) -> _Loaded:
    items = {item.name: item for item in read_items(file)}
    if SETTINGS not in items:
        raise UserError(f"{file}: holds no {SETTINGS}, which Marian writes into every model. Is it one of Marian's?")
    text = items[SETTINGS].payload
    settings = _settings(file, text)
    notes = []
    del items[SETTINGS]
    alphas = {name: items.pop(name) for name in list(items) if name.endswith(ALPHA)}
    arrays = {name: values_of(item) for name, item in items.items()}
    multipliers = {name: float(multiplier) for name, (_, multiplier) in arrays.items() if multiplier is not None}
    tensors = weights_of(file, {name: torch.from_numpy(array) for name, (array, _) in arrays.items()})
    if not multipliers:
        return _Loaded(tensors, settings)
    if not alphas:
        notes.append("it has no alphas for inputs in int8: to export it again, calibrate it")
    elif missing := [name for name in multipliers if "Wemb" not in name and name + ALPHA not in alphas]:
        raise UserError(f"{file}: {missing[0]}{ALPHA} is missing, the alpha of a weight in int8. Copy it again.")
    kept: dict[str, Any] = {"settings": text.decode("utf-8", "replace"), "multipliers": multipliers}
    kept["alphas"] = {name: _alpha(file, item) for name, item in alphas.items()}
    return _Loaded(tensors, settings, kept, notes)


def _alpha(file: Path, item: Item) -> float:
    """Returns the number kept for an alpha: alpha itself, or, if its item is int8, the multiplier 127 / alpha."""
    values, multiplier = values_of(item)
    if item.shape != (1, 1) or not 0 < values[0, 0] < np.inf:
        raise UserError(f"{file}: {item.name} is no number above 0. Copy it again.")
    return float(values[0, 0] if multiplier is None else multiplier)


def _settings(file: Path, text: bytes) -> Settings:
    """Returns Marian's settings of the architecture from their text, which ends with zero bytes."""
    name = f"{file}: {SETTINGS}"
    return Settings(f"{name}: ", yaml_of(name, text.rstrip(b"\0").decode("utf-8", "replace")))


def _load_npz(file: Path) -> _Loaded:
    try:
        with np.load(file, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
    except Exception as error:  # NumPy raises exceptions of many kinds for a damaged file
        raise UserError(f"{file}: not a .npz file of plain numbers ({error}); nothing was imported.") from error
    if others := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise UserError(f"{file}: {others[0]} in it is no array. Give the file as Marian wrote it.")
    if SETTINGS not in arrays:
        raise UserError(f"{file}: holds no {SETTINGS}, which Marian writes into every model. Is it one of Marian's?")
    settings = _settings(file, arrays.pop(SETTINGS).astype(np.uint8).tobytes())
    if odd := [name for name, array in arrays.items() if array.dtype.kind != "f"]:
        raise UserError(f"{file}: {odd[0]} is {arrays[odd[0]].dtype}: import the model in float32, not a rounded one.")
    return _Loaded(weights_of(file, {name: torch.from_numpy(array) for name, array in arrays.items()}), settings)


def _check(settings: Settings) -> None:
    settings.check(_PLAIN)
    if settings.get("transformer-decoder-autoreg") == "rnn":
        Settings(f"{settings.where}transformer-decoder-autoreg rnn: ", {"dec-cell": "gru", **settings}).check(_SSRU)
    settings.text("transformer-postprocess-emb")
    names = [f"transformer-{name}" for name in ("preprocess", "postprocess", "postprocess-top")]
    styles = [set(settings.text(name)) - {"d"} for name in names]
    if styles not in ([set(), {"a", "n"}, set()], [{"n"}, {"a"}, {"n"}]):
        raise UserError(
            f"{settings.where}transformer-preprocess, -postprocess, -postprocess-top must be '', 'dan' and '' "
            "(post-norm) or 'n', 'da' and 'n' (pre-norm)."
        )


def _config(file: Path, tensors: Mapping[str, Tensor], settings: Settings, pad: int, end: int) -> TransformerConfig:
    settings.check_numbers(("dim-emb", "enc-depth", "dec-depth", "transformer-heads", "transformer-dim-ffn"), tensors)
    everywhere, decoder_width = settings.get("tied-embeddings-all", False), settings.get("transformer-decoder-dim-ffn")
    return baseline_config(
        str(file),
        (pad, None, end, pad),
        SSRUConfig if settings.get("transformer-decoder-autoreg") == "rnn" else TransformerConfig,
        vocab_size=pad + 1,
        d_model=settings["dim-emb"],
        layers=(settings["enc-depth"], settings["dec-depth"]),
        attention_heads=(settings["transformer-heads"],) * 2,
        ffn_dim=(settings["transformer-dim-ffn"], decoder_width or settings["transformer-dim-ffn"]),
        norm_position="pre" if "n" in settings.text("transformer-preprocess") else "post",
        activation_function=settings.get("transformer-ffn-activation", "swish"),
        layer_norm_eps=1e-6,
        normalize_embedding="n" in settings.text("transformer-postprocess-emb"),
        position_embedding="tensor2tensor",
        share_encoder_decoder_embeddings=everywhere or settings.get("tied-embeddings-src", False),
        tie_word_embeddings=everywhere or settings.get("tied-embeddings", False),
        output_bias=True,
    )


def _placement(
    file: Path, tensors: dict[str, Tensor], settings: Settings, config: TransformerConfig, sizes: Sequence[int]
) -> Placement:
    """Makes a Placement of all tensors; adds rows for <pad>, and any ids before it, to embeddings and output bias."""
    placement = Placement(str(file), tensors)
    joint = settings.get("tied-embeddings-all", False) or settings.get("tied-embeddings-src", False)
    source, target = ["Wemb"] * 2 if joint else ["encoder_Wemb", "decoder_Wemb"]
    output = target if config.tie_word_embeddings else "decoder_ff_logit_out_Wt"
    rows, omitted = config.vocab_size, settings.get("output-omit-bias", False)
    if omitted:
        placement.set("lm_head.bias", torch.zeros(sizes[1]), ())
    else:
        placement.move([Move("lm_head.bias", ("decoder_ff_logit_out_b",))])
    for ours, theirs, size in (
        ("model.encoder.embed_tokens.weight", source, sizes[0]),
        ("model.decoder.embed_tokens.weight", target, sizes[1]),
        ("lm_head.weight", output, sizes[1]),
    ):
        placement.move([Move(ours, (theirs,))])
        placement.state[ours] = _extended(placement, ours, size, rows, 0.0)
    placement.move(moves(config))
    for name, tensor in placement.state.items():  # Marian stores vectors as (1, d)
        placement.state[name] = tensor.flatten() if name.endswith((".bias", "norm.weight")) else tensor
    placement.state["lm_head.bias"] = _extended(placement, "lm_head.bias", sizes[1], rows, NEVER)
    return placement


def _extended(placement: Placement, name: str, size: int, rows: int, value: float) -> Tensor:
    """Returns a parameter's first `size` rows, then rows of `value` up to `rows`; later rows are dropped."""
    tensor = placement.state[name]
    if len(tensor) < size:
        raise UserError(
            f"{placement.where}: {', '.join(placement.origin[name])} has {len(tensor)} rows, the vocabulary {size}. "
            "They are not of one model."
        )
    return torch.cat([tensor[:size], tensor.new_full((rows - size, *tensor.shape[1:]), value)])


def moves(config: TransformerConfig) -> Iterator[Move]:
    """Yields a Move for each parameter but those of embeddings and output. Names of norms differ in pre-norm."""
    norm = "_ln_{}_pre" if config.norm_position == "pre" else "_ln_{}"
    for side, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        ours = f"model.{side}."
        if config.normalize_embedding:
            yield from _norm(f"{ours}embedding_norm", f"{side}_emb_ln_{{}}_pre")
        if config.norm_position == "pre":
            yield from _norm(f"{ours}layer_norm", f"{side}_top_ln_{{}}")
        for index in range(count):
            layer, theirs = f"{ours}layers.{index}.", f"{side}_l{index + 1}_"
            products = {"feed_forward.fc1": "ffn_ 1", "feed_forward.fc2": "ffn_ 2"}
            norms = {"feed_forward": "ffn_ffn"}
            if side == "decoder":
                products |= {"source_attn.q_proj": "context_ q", "source_attn.kv_proj": "context_ kv"}
                products["source_attn.out_proj"], norms["source_attn"] = "context_ o", "context_Wo"
            if side == "decoder" and isinstance(config, SSRUConfig):
                yield Move(f"{layer}self_attn.input_proj.weight", (f"{theirs}rnn_W",), transposed=True)
                products["self_attn.forget_proj"], norms["self_attn"] = "rnn_ f", "rnn_ffn"
            else:
                products |= {"self_attn.qkv_proj": "self_ qkv", "self_attn.out_proj": "self_ o"}
                norms["self_attn"] = "self_Wo"
            for module, names in products.items():
                prefix, which = names.split()
                for kind, letter in (("weight", "W"), ("bias", "b")):
                    tensors = tuple(f"{theirs}{prefix}{letter}{name}" for name in which)
                    yield Move(f"{layer}{module}.{kind}", tensors, transposed=True)
            for module, name in norms.items():
                yield from _norm(f"{layer}{module}_sublayer.layer_norm", f"{theirs}{name}{norm}")


def _norm(ours: str, theirs: str) -> Iterator[Move]:
    yield Move(f"{ours}.weight", (theirs.format("scale"),))
    yield Move(f"{ours}.bias", (theirs.format("bias"),))
