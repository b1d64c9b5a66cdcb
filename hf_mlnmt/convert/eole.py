"""Eole's Transformer, the successor of OpenNMT-py's: config.json, vocab.json and model.00.safetensors in a folder.

Its options are OpenNMT-py's under other names, and config.json has only those that were set. Verified against Eole
0.6.4; versions from 0.2 on have the same layout and the same epsilon of norms, 1e-5, which they do not write down.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json
from hf_mlnmt.convert.checkpoint import OFF, Checkpoint, Settings, layer_parts, load_safetensors
from hf_mlnmt.convert.opennmt import SPECIAL, build, place

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
    content, vocabulary = (Settings(f"{folder}: {x}: ", read_json(folder / x)) for x in ("config.json", "vocab.json"))
    settings = _settings(content)
    ours = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    vocabulary.below("specials").check({name: (token,) for name, token in ours.items()})
    tensors: dict[str, Tensor] = {}
    for file in sorted(file for file in folder.glob(WEIGHTS) if file.is_file()):
        tensors |= load_safetensors(file)
    checkpoint = build("eole", str(folder), settings, tensors, vocabulary)
    embeddings = ["src_emb.embeddings.weight", "tgt_emb.embeddings.weight"]
    stacks, shared = [f"{side}.transformer_layers" for side in ("encoder", "decoder")], settings["share_embeddings"]
    for side in ("src", "tgt"):
        checkpoint.placement.leave_out_sines(f"{side}_emb.pe.pe", checkpoint.config)
    place(checkpoint, embeddings, _PARTS, stacks, bool(shared))
    for name, tensor in tensors.items():
        if name.endswith(".layer_scalar") and bool((tensor == 1).all()):
            checkpoint.placement.leave_out(name, "a factor of one")
    return checkpoint


def _settings(content: Settings) -> Settings:
    """Returns the settings in OpenNMT-py's names. Raises: UserError for what the baseline lacks and OpenNMT-py too."""
    model, training = content.below("model"), content.below("training")
    encoder, decoder, embeddings = parts = [model.below(name) for name in ("encoder", "decoder", "embeddings")]
    for part in (model, *parts):
        part.check(_PLAIN)
    common = {name: value for name, value in model.items() if not isinstance(value, dict)}
    sides = {"encoder": common | encoder, "decoder": common | decoder}
    model.check_alike(_ALIKE, *sides.values())
    ours = {"norm_eps": 1e-5, **sides["encoder"]}  # the default
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
