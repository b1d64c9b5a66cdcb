"""Eole's Transformer, the successor of OpenNMT-py's: config.json, vocab.json and model.00.safetensors in a folder.

Its options are OpenNMT-py's under other names, and config.json has only those that were set. Verified against Eole
0.6.4; versions from 0.2 on have the same layout and the same epsilon of norms, 1e-5, which they do not write down.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_mlnmt.convert.checkpoint import (
    OFF,
    Checkpoint,
    layer_parts,
    leave_out_sines,
    load_safetensors,
    refuse_others,
    section,
)
from hf_mlnmt.convert.opennmt import SPECIAL, build, place, vocabularies_of
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import read_json

WEIGHTS = "model.[0-9][0-9].safetensors"
# Options of the whole model, and of encoder and decoder, that the baseline cannot do if they are anything else.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "architecture": ("transformer", "custom"),
    "encoder_layer_style": ("standard",),
    "generator_bias": (True, False),
    "final_encoder_layer_norm": (True,),
    **dict.fromkeys(("normalize", "embedding_layer_norm", "query_norm", "key_norm", "ffn_layernorm"), OFF),
    **dict.fromkeys(("q_gating", "add_estimator"), OFF),
    **dict.fromkeys(("position_shift", "num_mtp_heads"), (0,)),
    **dict.fromkeys(("heads_kv", "head_dim", "attn_scaling", "layer_types"), (None,)),
}
_PRODUCTS = "linear_query linear_keys linear_values final_linear"
_NORMS, _FEED_FORWARD = ("input_layernorm", "post_attention_layernorm"), ("mlp.gate_up_proj", "mlp.down_proj")
_PARTS = [
    layer_parts("self_attn", _PRODUCTS, _NORMS, _FEED_FORWARD),
    layer_parts("self_attn", _PRODUCTS, (*_NORMS, "precontext_layernorm"), _FEED_FORWARD, "context_attn"),
]
# What encoder and decoder must have alike.
_ALIKE = ("heads", "transformer_ff", "mlp_activation_fn", "layer_norm", "norm_eps", "add_qkvbias", "add_ffnbias")


def read(folder: Path) -> Checkpoint:
    """Reads the folder. Raises: UserError for what is not there, and for what the baseline cannot compute."""
    for name in ("config.json", "vocab.json"):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: a model of Eole; its {name} is not there.")
    content, vocabulary = (read_json(folder / name) for name in ("config.json", "vocab.json"))
    settings = _settings(folder, content)
    specials = section(f"{folder}: vocab.json", vocabulary, "specials")
    ours = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    if other := [f"{name}: {specials[name]!r}" for name in ours if specials.get(name, ours[name]) != ours[name]]:
        raise UserError(f"{folder}: vocab.json: specials: {', '.join(other)}: {', '.join(SPECIAL)} can be imported.")
    sides = vocabularies_of(folder / "vocab.json", vocabulary)
    tensors: dict[str, Tensor] = {}
    for file in sorted(file for file in folder.glob(WEIGHTS) if file.is_file()):
        tensors |= load_safetensors(file)
    checkpoint = build("eole", str(folder), settings, tensors, sides, vocabulary.get("decoder_start_token"))
    embeddings = ["src_emb.embeddings.weight", "tgt_emb.embeddings.weight"]
    stacks, shared = [f"{side}.transformer_layers" for side in ("encoder", "decoder")], settings["share_embeddings"]
    for side in ("src", "tgt"):
        leave_out_sines(checkpoint.placement, f"{side}_emb.pe.pe", checkpoint.config)
    place(checkpoint, embeddings, _PARTS, stacks, bool(shared))
    for name, tensor in tensors.items():
        if name.endswith(".layer_scalar") and bool((tensor == 1).all()):
            checkpoint.placement.leave_out(name, "a factor of one")
    checkpoint.notes.append(
        "text is not cut here: give text that is cut already as the training data was, subwords separated by spaces; "
        "translations come out like that"
    )
    return checkpoint


def _settings(folder: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings in OpenNMT-py's names. Raises: UserError for what the baseline lacks and OpenNMT-py too."""
    model = content.get("model")
    parts = [model.get(name) if isinstance(model, dict) else None for name in ("encoder", "decoder", "embeddings")]
    if not isinstance(model, dict) or not all(isinstance(part, dict) for part in parts):
        raise UserError(f"{folder}: config.json: model, with encoder, decoder and embeddings below it, is expected.")
    encoder, decoder, embeddings = ({**part} for part in parts if part is not None)
    for where, part in {"": model, "encoder.": encoder, "decoder.": decoder, "embeddings.": embeddings}.items():
        refuse_others(f"{folder}: config.json: model.{where}", part, _PLAIN)
    common = {name: value for name, value in model.items() if not isinstance(value, dict)}
    sides = {"encoder": {**common, **encoder}, "decoder": {**common, **decoder}}
    for name in _ALIKE:
        first, second = (side.get(name) for side in sides.values())
        if first != second:
            raise UserError(f"{folder}: config.json: {name} is {first} in the encoder, {second} in the decoder.")
    training = section(f"{folder}: config.json", content, "training")
    ours = {**sides["encoder"], "norm_eps": sides["encoder"].get("norm_eps", 1e-5)}  # the default
    ours["pos_ffn_activation_fn"] = ours.get("mlp_activation_fn", "relu")
    if ours.get("add_final_linear_bias", ours.get("add_qkvbias", False)) != ours.get("add_qkvbias", False):
        raise UserError(f"{folder}: config.json: add_final_linear_bias must be as add_qkvbias.")
    for name in ("dropout", "attention_dropout"):
        ours[name] = training.get(name)
    for side, short in (("encoder", "enc"), ("decoder", "dec")):
        ours[f"{short}_layers"], ours[f"{short}_hid_size"] = (sides[side].get(n) for n in ("layers", "hidden_size"))
    ours["position_encoding_type"] = embeddings.get("position_encoding_type", "SinusoidalInterleaved")
    types = {f"{side}_type": sides[side].get(f"{side}_type") for side in sides}
    shared = {name: model.get(name, False) for name in ("share_embeddings", "share_decoder_embeddings")}
    return {**ours, **types, **shared, "generator_function": model.get("generator_function", "softmax")}
