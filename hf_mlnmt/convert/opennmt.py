"""Imports OpenNMT-py 3's Transformer: a .pt with tensors, vocabularies as lists and options (a Namespace).

What its Transformer does that a reader of the paper would not expect: pre-norm always; no biases in attention and
feed-forward unless add_qkvbias and add_ffnbias say so; a bias for each token of the output; the source has no end of
sentence. Verified against OpenNMT-py 3.5.1.

Eole is its successor: config.json, vocab.json and model.00.safetensors in a folder (`read_eole`). Its options are the
same by other names, and config.json has only those that were set. Verified against Eole 0.6.4; versions from 0.2 on
have the same layout and the same epsilon of norms, 1e-5, which their files do not record.
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
    Parts,
    Placement,
    Settings,
    baseline_config,
    generation_config,
    layer_parts,
    load_safetensors,
    stacks,
    weights_of,
)
from hf_mlnmt.convert.vocabularies import Special, cut_tokenizers, numbered
from hf_mlnmt.modeling import TransformerConfig

SPECIAL = Special(pad="<blank>", start="<s>", end="</s>", unknown="<unk>")
_POSITIONS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "tensor2tensor"}
_LENGTH = 5000  # rows of every table of positions in OpenNMT-py and Eole
# Values of settings that the baseline can compute, the first the default; others are refused.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "model_task": ("seq2seq",),
    "model_type": ("text",),
    **dict.fromkeys(("encoder_type", "decoder_type"), ("transformer",)),
    "position_encoding_type": tuple(_POSITIONS),
    "pos_ffn_activation_fn": ("relu", "gelu"),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "layer_norm": ("standard",),
    "generator_function": ("softmax",),
    **dict.fromkeys(("max_relative_positions", "relative_positions_buckets", "sliding_window"), (0,)),
    **dict.fromkeys(("num_kv", "num_experts", "n_src_feats"), (0,)),
    **dict.fromkeys(("multiquery", "parallel_residual", "copy_attn", "lora_embedding"), OFF),
    **dict.fromkeys(("lora_layers", "quant_layers"), ([], None)),
    **dict.fromkeys(("share_embeddings", "share_decoder_embeddings", "add_qkvbias"), FLAG),
}
_PRODUCTS = "linear_query linear_keys linear_values final_linear"
_FEED_FORWARD = ("feed_forward.w_1", "feed_forward.w_2")
_NORMS = ("layer_norm_1", "feed_forward.layer_norm", "layer_norm_2")
_PARTS = [
    layer_parts("self_attn", _PRODUCTS, ("layer_norm", "feed_forward.layer_norm"), _FEED_FORWARD),
    layer_parts("self_attn", _PRODUCTS, _NORMS, _FEED_FORWARD, "context_attn"),
]


def read(path: Path, content: Mapping[str, Any]) -> Checkpoint:
    """Makes a Checkpoint of the content of OpenNMT-py's file. Raises: UserError for options that we cannot compute."""
    settings = Settings(f"{path}: ", content["opt"])
    settings.check({"position_encoding": (True, None)})
    tensors = _tensors(path, content)
    if any(name.startswith("generator.0.") for name in tensors):  # a training begun in version 2
        tensors = {name.replace("generator.0.", "generator."): value for name, value in tensors.items()}
    checkpoint = build("opennmt-py", str(path), settings, tensors, Settings(f"{path}: vocab: ", content["vocab"]))
    for side in ("encoder", "decoder"):
        checkpoint.placement.leave_out_sines(f"{side}.embeddings.make_embedding.pe.pe", checkpoint.config)
    names = [f"{side}.embeddings.make_embedding.emb_luts.0.weight" for side in ("encoder", "decoder")]
    layers = ("encoder.transformer", "decoder.transformer_layers")
    place(checkpoint, names, _PARTS, layers, bool(settings.get("share_embeddings")))
    return checkpoint


def _tensors(path: Path, content: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the tensors of the file, or of the .safetensors beside it if the weights were saved there."""
    if "model" in content:
        generator = weights_of(f"{path}: generator", content.get("generator") or {})
        named = {f"generator.{name}": tensor for name, tensor in generator.items()}
        return weights_of(f"{path}: model", content["model"]) | named
    file = path.with_suffix(".safetensors")
    if not file.is_file():
        raise UserError(f"{path}: holds no weights, and {file.name} is not beside it.")
    return load_safetensors(file)


def build(name: str, path: str, settings: Settings, tensors: dict[str, Tensor], vocabulary: Settings) -> Checkpoint:
    """Makes a Checkpoint of options, tensors and vocabularies; `place` then moves the tensors.

    Raises: UserError for an option that the baseline cannot compute, word features, or an unknown decoder_start_token.
    """
    settings.check(_PLAIN)
    if vocabulary.get("src_feats"):
        raise UserError(f"{vocabulary.where}src_feats: features of words are nothing that the baseline can compute.")
    sides = [numbered(f"{vocabulary.where}{side}", vocabulary.texts(side), SPECIAL) for side in ("src", "tgt")]
    start = vocabulary.get("decoder_start_token") or SPECIAL.start
    if not isinstance(start, str) or start not in sides[1]:
        raise UserError(f"{path}: decoder_start_token: {start!r} is not in the target's vocabulary.")
    config = _config(path, settings, sides, start, tensors)
    never = [[config.pad_token_id], [config.bos_token_id]]
    generation = generation_config(config, num_beams=5, bad_words_ids=never)  # 5 beams: both toolkits' default
    by = [Path(settings.text(f"{side}_subword_model")).name for side in ("src", "tgt")]
    tokenizers, notes = cut_tokenizers(Path(path), sides, SPECIAL, by, ends=(False, True))
    return Checkpoint(name, config, Placement(path, tensors), tokenizers, generation, notes=notes)


def _config(
    path: str, settings: Settings, sides: Sequence[dict[str, int]], start: str, tensors: Mapping[str, Tensor]
) -> TransformerConfig:
    needed = ("enc_layers", "dec_layers", "heads", "transformer_ff", "enc_hid_size", "dec_hid_size")
    settings.check_numbers(needed, tensors)
    settings.check_alike(["hid_size"], *({"hid_size": settings[f"{side}_hid_size"]} for side in ("enc", "dec")))
    tied = bool(settings.get("share_decoder_embeddings"))
    return baseline_config(
        path,
        (sides[1][SPECIAL.pad], sides[1][SPECIAL.start], sides[1][SPECIAL.end], sides[1][start]),
        vocab_size=len(sides[0]),
        decoder_vocab_size=len(sides[1]),
        d_model=settings["enc_hid_size"],
        layers=(settings["enc_layers"], settings["dec_layers"]),
        attention_heads=(settings["heads"], settings["heads"]),
        ffn_dim=(settings["transformer_ff"], settings["transformer_ff"]),
        norm_position="pre",
        dropout=_rate(settings.get("dropout"), 0.1),
        attention_dropout=_rate(settings.get("attention_dropout"), 0.1),
        activation_dropout=_rate(settings.get("dropout"), 0.1),
        activation_function=settings.get("pos_ffn_activation_fn", "relu"),
        attention_bias=bool(settings.get("add_qkvbias")),
        layer_norm_eps=settings.get("norm_eps", 1e-6),
        position_embedding=_POSITIONS[settings.get("position_encoding_type", "SinusoidalInterleaved")],
        max_position_embeddings=_LENGTH,
        share_encoder_decoder_embeddings=bool(settings.get("share_embeddings")),
        tie_word_embeddings=tied,
        output_bias=True,
    )


def _rate(value: Any, default: float) -> float:
    """Returns a rate of dropout, of a list of rates the last one."""
    return default if value is None or value == [] else value[-1] if isinstance(value, list) else value


def place(
    checkpoint: Checkpoint, embeddings: Sequence[str], parts: Sequence[Parts], layers: tuple[str, str], shared: bool
) -> None:
    """Moves all tensors to parameters of ours; sets biases of the feed-forward sublayer that were not saved to zero.

    Args:
        embeddings, parts, layers: (source side's, target side's) names of the embedding, of a layer's modules, and of
            the list of layers.
        shared: whether both sides have one embedding.
    """
    config, placement = checkpoint.config, checkpoint.placement
    encoder, decoder = embeddings
    for move in stacks(config, parts[0], parts[1], layers=layers, bias=config.attention_bias):
        if move.ours.endswith(("fc1.bias", "fc2.bias")) and move.theirs[0] not in placement.tensors:
            weight = placement.state[move.ours.removesuffix("bias") + "weight"]
            placement.set(move.ours, torch.zeros(len(weight)), ())
        else:
            placement.move([move])
    if shared and not {encoder, decoder} <= placement.tensors.keys():  # some versions save a shared table once
        encoder = decoder = encoder if encoder in placement.tensors else decoder
    placement.move_embeddings(config, encoder, decoder, "generator.weight")
    if "generator.bias" in placement.tensors:
        placement.move([Move("lm_head.bias", ("generator.bias",))])
    else:
        placement.set("lm_head.bias", torch.zeros(len(placement.state["lm_head.weight"])), ())


# Eole

EOLE_WEIGHTS = "model.[0-9][0-9].safetensors"
# Values of options, of the whole model or of one side, that the baseline can compute; others are refused.
_EOLE_PLAIN: dict[str, tuple[Any, ...]] = {
    "architecture": ("transformer", "custom"),
    "encoder_layer_style": ("standard",),
    "generator_bias": (True, False),
    "final_encoder_layer_norm": (True,),
    **dict.fromkeys(("normalize", "embedding_layer_norm", "query_norm", "key_norm", "ffn_layernorm"), OFF),
    **dict.fromkeys(("q_gating", "add_estimator"), OFF),
    **dict.fromkeys(("position_shift", "num_mtp_heads"), (0,)),
    **dict.fromkeys(("heads_kv", "head_dim", "attn_scaling", "layer_types"), (None,)),
}
_EOLE_NORMS, _EOLE_FEED_FORWARD = ("input_layernorm", "post_attention_layernorm"), ("mlp.gate_up_proj", "mlp.down_proj")
_EOLE_PARTS = [
    layer_parts("self_attn", _PRODUCTS, _EOLE_NORMS, _EOLE_FEED_FORWARD),
    layer_parts("self_attn", _PRODUCTS, (*_EOLE_NORMS, "precontext_layernorm"), _EOLE_FEED_FORWARD, "context_attn"),
]
# Options that encoder and decoder must have alike.
_ALIKE = ("heads", "transformer_ff", "mlp_activation_fn", "layer_norm", "norm_eps", "add_qkvbias", "add_ffnbias")


def read_eole(folder: Path) -> Checkpoint:
    """Makes a Checkpoint of a folder of Eole. Raises: UserError for missing files or options we cannot compute."""
    for name in ("config.json", "vocab.json"):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: a model of Eole; its {name} is not there.")
    content, vocabulary = (Settings(f"{folder}: {x}: ", read_json(folder / x)) for x in ("config.json", "vocab.json"))
    settings = _eole_settings(content)
    ours = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    vocabulary.below("specials").check({name: (token,) for name, token in ours.items()})
    tensors: dict[str, Tensor] = {}
    for file in sorted(file for file in folder.glob(EOLE_WEIGHTS) if file.is_file()):
        tensors |= load_safetensors(file)
    checkpoint = build("eole", str(folder), settings, tensors, vocabulary)
    embeddings = ["src_emb.embeddings.weight", "tgt_emb.embeddings.weight"]
    for side in ("src", "tgt"):
        checkpoint.placement.leave_out_sines(f"{side}_emb.pe.pe", checkpoint.config)
    layers = ("encoder.transformer_layers", "decoder.transformer_layers")
    place(checkpoint, embeddings, _EOLE_PARTS, layers, bool(settings["share_embeddings"]))
    for name, tensor in tensors.items():
        if name.endswith(".layer_scalar") and bool((tensor == 1).all()):
            checkpoint.placement.leave_out(name, "a factor of one")
    return checkpoint


def _eole_settings(content: Settings) -> Settings:
    """Returns Eole's settings by OpenNMT-py's names. UserError for those that the baseline cannot compute."""
    model, training = content.below("model"), content.below("training")
    encoder, decoder, embeddings = parts = [model.below(name) for name in ("encoder", "decoder", "embeddings")]
    for part in (model, *parts):
        part.check(_EOLE_PLAIN)
    common = {name: value for name, value in model.items() if not isinstance(value, dict)}
    sides = {"encoder": common | encoder, "decoder": common | decoder}
    model.check_alike(_ALIKE, *sides.values())
    ours = {"norm_eps": 1e-5, **sides["encoder"]}  # Eole's default of norm_eps
    ours["pos_ffn_activation_fn"] = ours.get("mlp_activation_fn", "relu")
    Settings(model.where, ours).check({"add_final_linear_bias": (ours.get("add_qkvbias", False),)})
    ours |= {name: training.get(name) for name in ("dropout", "attention_dropout")}
    for side, own in sides.items():
        ours |= {f"{side[:3]}_layers": own.get("layers"), f"{side[:3]}_hid_size": own.get("hidden_size")}
        ours[f"{side}_type"] = own.get(f"{side}_type")
    ours["position_encoding_type"] = embeddings.get("position_encoding_type", "SinusoidalInterleaved")
    for step in (each for part in (content, training) for each in (part.get("transforms_configs") or {}).values()):
        ours |= {name: step[name] for name in ("src_subword_model", "tgt_subword_model") if step and step.get(name)}
    defaults = {"share_embeddings": False, "share_decoder_embeddings": False, "generator_function": "softmax"}
    return Settings(content.where, ours | {name: model.get(name, default) for name, default in defaults.items()})
