"""Imports Eole's Transformer: a folder with config.json, vocab.json and model.00.safetensors.

What its Transformer does that a reader of the paper would not expect: pre-norm always; no biases in attention and
feed-forward unless add_qkvbias and add_ffnbias say so; a bias for each token of the output; the source has no end of
sentence. config.json has only the options that were set. Verified against Eole 0.6.4; versions from 0.2 on have the
same layout and the same epsilon of norms, 1e-5, which their files do not record.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json
from hf_mlnmt.convert.checkpoint import (
    FLAG,
    OFF,
    Checkpoint,
    Move,
    Placement,
    Settings,
    baseline_config,
    generation_config,
    layer_parts,
    load_safetensors,
    stacks,
)
from hf_mlnmt.convert.vocabularies import Special, cut_tokenizers, numbered
from hf_mlnmt.modeling import TransformerConfig

WEIGHTS = "model.[0-9][0-9].safetensors"
SPECIAL = Special(pad="<blank>", start="<s>", end="</s>", unknown="<unk>")
_POSITIONS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "tensor2tensor"}
_LENGTH = 5000  # rows of every table of positions
# Values of options, of the whole model or of one side, that the baseline can compute, the first the default; others
# are refused.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "architecture": ("transformer", "custom"),
    "encoder_layer_style": ("standard",),
    **dict.fromkeys(("encoder_type", "decoder_type"), ("transformer",)),
    "position_encoding_type": tuple(_POSITIONS),
    "mlp_activation_fn": ("relu", "gelu"),
    "layer_norm": ("standard",),
    "generator_function": ("softmax",),
    "generator_bias": (True, False),
    "final_encoder_layer_norm": (True,),
    **dict.fromkeys(("normalize", "embedding_layer_norm", "query_norm", "key_norm", "ffn_layernorm"), OFF),
    **dict.fromkeys(("q_gating", "add_estimator", "multiquery", "parallel_residual", "copy_attn"), OFF),
    "lora_embedding": OFF,
    **dict.fromkeys(("position_shift", "num_mtp_heads", "num_experts", "n_src_feats", "sliding_window"), (0,)),
    **dict.fromkeys(("max_relative_positions", "relative_positions_buckets"), (0,)),
    **dict.fromkeys(("heads_kv", "head_dim", "attn_scaling", "layer_types"), (None,)),
    **dict.fromkeys(("lora_layers", "quant_layers"), ([], None)),
    **dict.fromkeys(("share_embeddings", "share_decoder_embeddings", "add_qkvbias"), FLAG),
}
# Options that encoder and decoder must have alike.
_ALIKE = (
    *("hidden_size", "heads", "transformer_ff", "mlp_activation_fn", "layer_norm", "norm_eps"),
    *("add_qkvbias", "add_ffnbias"),
)
_PRODUCTS = "linear_query linear_keys linear_values final_linear"
_NORMS, _FEED_FORWARD = ("input_layernorm", "post_attention_layernorm"), ("mlp.gate_up_proj", "mlp.down_proj")
_ENCODER = layer_parts("self_attn", _PRODUCTS, _NORMS, _FEED_FORWARD)
_DECODER = layer_parts("self_attn", _PRODUCTS, (*_NORMS, "precontext_layernorm"), _FEED_FORWARD, "context_attn")


def read(folder: Path) -> Checkpoint:
    """Reads a folder. Raises: UserError for missing files, and for what the baseline cannot compute."""
    for name in ("config.json", "vocab.json"):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: a model of Eole; its {name} is not there.")
    content, vocabulary = (Settings(f"{folder}: {x}: ", read_json(folder / x)) for x in ("config.json", "vocab.json"))
    ours = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    vocabulary.below("specials").check({name: (token,) for name, token in ours.items()})
    tensors: dict[str, Tensor] = {}
    for file in sorted(file for file in folder.glob(WEIGHTS) if file.is_file()):
        tensors |= load_safetensors(file)
    if vocabulary.get("src_feats"):
        raise UserError(f"{vocabulary.where}src_feats: features of words are nothing that the baseline can compute.")
    sides = [numbered(f"{vocabulary.where}{side}", vocabulary.texts(side), SPECIAL) for side in ("src", "tgt")]
    start = vocabulary.get("decoder_start_token") or SPECIAL.start
    if not isinstance(start, str) or start not in sides[1]:
        raise UserError(f"{folder}: decoder_start_token: {start!r} is not in the target's vocabulary.")
    config = _config(content, sides, start, tensors)
    never = [[config.pad_token_id], [config.bos_token_id]]
    tokenizers, notes = cut_tokenizers(folder, sides, SPECIAL, _cutters(content), ends=(False, True))
    return Checkpoint(
        "eole",
        config,
        _placement(folder, tensors, config),
        tokenizers,
        generation_config(config, num_beams=5, bad_words_ids=never),  # 5: Eole's default
        notes=notes,
    )


def _config(
    content: Settings, sides: Sequence[dict[str, int]], start: str, tensors: Mapping[str, Tensor]
) -> TransformerConfig:
    model, training = content.below("model"), content.below("training")
    common = {name: value for name, value in model.items() if not isinstance(value, dict)}
    layers = [Settings(f"{model.where}{side}.", common | model.below(side)) for side in ("encoder", "decoder")]
    encoder, decoder = layers
    for own in layers:
        own.check(_PLAIN)
    model.check_alike(_ALIKE, encoder, decoder)
    encoder.check({"add_final_linear_bias": (encoder.get("add_qkvbias", False),)})
    for own in layers:
        own.check_numbers(("layers", "heads", "transformer_ff", "hidden_size"), tensors)
    embeddings = model.below("embeddings")
    embeddings.check(_PLAIN)
    return baseline_config(
        content.where.rstrip(": "),
        (sides[1][SPECIAL.pad], sides[1][SPECIAL.start], sides[1][SPECIAL.end], sides[1][start]),
        vocab_size=len(sides[0]),
        decoder_vocab_size=len(sides[1]),
        d_model=encoder["hidden_size"],
        layers=(encoder["layers"], decoder["layers"]),
        attention_heads=(encoder["heads"],) * 2,
        ffn_dim=(encoder["transformer_ff"],) * 2,
        norm_position="pre",
        dropout=_rate(training.get("dropout")),
        attention_dropout=_rate(training.get("attention_dropout")),
        activation_dropout=_rate(training.get("dropout")),
        activation_function=encoder.get("mlp_activation_fn", "relu"),
        attention_bias=bool(encoder.get("add_qkvbias")),
        layer_norm_eps=encoder.get("norm_eps", 1e-5),
        position_embedding=_POSITIONS[embeddings.get("position_encoding_type", "SinusoidalInterleaved")],
        max_position_embeddings=_LENGTH,
        share_encoder_decoder_embeddings=bool(model.get("share_embeddings")),
        tie_word_embeddings=bool(model.get("share_decoder_embeddings")),
        output_bias=True,
    )


def _rate(value: Any) -> float:
    """Returns a rate of dropout, of a list of rates the last one; Eole's default is 0.1."""
    return 0.1 if value is None or value == [] else value[-1] if isinstance(value, list) else value


def _cutters(content: Settings) -> list[str]:
    """Returns the names of the files that cut the text of source and target; "" where the options name none."""
    named: dict[str, str] = {}
    for part in (content, content.below("training")):
        for step in (part.get("transforms_configs") or {}).values():
            named |= {name: file for name, file in (step or {}).items() if file}
    return [Path(str(named.get(f"{side}_subword_model", ""))).name for side in ("src", "tgt")]


def _placement(folder: Path, tensors: dict[str, Tensor], config: TransformerConfig) -> Placement:
    """Makes a Placement of all tensors; biases of the feed-forward sublayer that were not saved are zero."""
    placement = Placement(str(folder), tensors)
    layers = ("encoder.transformer_layers", "decoder.transformer_layers")
    for move in stacks(config, _ENCODER, _DECODER, layers=layers, bias=config.attention_bias):
        if move.ours.endswith(("fc1.bias", "fc2.bias")) and move.theirs[0] not in tensors:
            weight = placement.state[move.ours.removesuffix("bias") + "weight"]
            placement.set(move.ours, torch.zeros(len(weight)), ())
        else:
            placement.move([move])
    source, target = "src_emb.embeddings.weight", "tgt_emb.embeddings.weight"
    if config.share_encoder_decoder_embeddings and target not in tensors:  # a shared one is saved once
        target = source
    placement.move_embeddings(config, source, target, "generator.weight")
    if "generator.bias" in tensors:
        placement.move([Move("lm_head.bias", ("generator.bias",))])
    else:
        placement.set("lm_head.bias", torch.zeros(len(placement.state["lm_head.weight"])), ())
    for side in ("src", "tgt"):
        placement.leave_out_sines(f"{side}_emb.pe.pe", config)
    for name, tensor in tensors.items():
        if name.endswith(".layer_scalar") and bool((tensor == 1).all()):
            placement.leave_out(name, "a factor of one")
    return placement
