"""Our parameters in the words of other toolkits: a table of names for each, made into moves for account.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hf_mlnmt.convert.account import Move

Parts = Mapping[str, Sequence[str]]
"""A module of ours -> the modules of theirs whose rows it stacks."""

# fairseq's names, which BART, mBART, Marian and M2M100 in Transformers took over.
FAIRSEQ_ENCODER: Parts = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.out_proj": ("self_attn.out_proj",),
    "self_attn_sublayer.layer_norm": ("self_attn_layer_norm",),
    "feed_forward.fc1": ("fc1",),
    "feed_forward.fc2": ("fc2",),
    "feed_forward_sublayer.layer_norm": ("final_layer_norm",),
}
FAIRSEQ_DECODER: Parts = {
    **FAIRSEQ_ENCODER,
    "source_attn.q_proj": ("encoder_attn.q_proj",),
    "source_attn.kv_proj": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "source_attn.out_proj": ("encoder_attn.out_proj",),
    "source_attn_sublayer.layer_norm": ("encoder_attn_layer_norm",),
}
JOEYNMT_ENCODER: Parts = {
    "self_attn.qkv_proj": ("src_src_att.q_layer", "src_src_att.k_layer", "src_src_att.v_layer"),
    "self_attn.out_proj": ("src_src_att.output_layer",),
    "self_attn_sublayer.layer_norm": ("layer_norm",),
    "feed_forward.fc1": ("feed_forward.pwff_layer.0",),
    "feed_forward.fc2": ("feed_forward.pwff_layer.3",),
    "feed_forward_sublayer.layer_norm": ("feed_forward.layer_norm",),
}
JOEYNMT_DECODER: Parts = {
    **JOEYNMT_ENCODER,
    "self_attn.qkv_proj": ("trg_trg_att.q_layer", "trg_trg_att.k_layer", "trg_trg_att.v_layer"),
    "self_attn.out_proj": ("trg_trg_att.output_layer",),
    "self_attn_sublayer.layer_norm": ("x_layer_norm",),
    "source_attn.q_proj": ("src_trg_att.q_layer",),
    "source_attn.kv_proj": ("src_trg_att.k_layer", "src_trg_att.v_layer"),
    "source_attn.out_proj": ("src_trg_att.output_layer",),
    "source_attn_sublayer.layer_norm": ("dec_layer_norm",),
}
OPENNMT_ENCODER: Parts = {
    "self_attn.qkv_proj": ("self_attn.linear_query", "self_attn.linear_keys", "self_attn.linear_values"),
    "self_attn.out_proj": ("self_attn.final_linear",),
    "self_attn_sublayer.layer_norm": ("layer_norm",),
    "feed_forward.fc1": ("feed_forward.w_1",),
    "feed_forward.fc2": ("feed_forward.w_2",),
    "feed_forward_sublayer.layer_norm": ("feed_forward.layer_norm",),
}
OPENNMT_DECODER: Parts = {
    **OPENNMT_ENCODER,
    "self_attn_sublayer.layer_norm": ("layer_norm_1",),
    "source_attn.q_proj": ("context_attn.linear_query",),
    "source_attn.kv_proj": ("context_attn.linear_keys", "context_attn.linear_values"),
    "source_attn.out_proj": ("context_attn.final_linear",),
    "source_attn_sublayer.layer_norm": ("layer_norm_2",),
}
EOLE_ENCODER: Parts = {
    **OPENNMT_ENCODER,
    "self_attn_sublayer.layer_norm": ("input_layernorm",),
    "feed_forward.fc1": ("mlp.gate_up_proj",),
    "feed_forward.fc2": ("mlp.down_proj",),
    "feed_forward_sublayer.layer_norm": ("post_attention_layernorm",),
}
EOLE_DECODER: Parts = {
    **OPENNMT_DECODER,
    **EOLE_ENCODER,
    "source_attn_sublayer.layer_norm": ("precontext_layernorm",),
}


def modules(parts: Parts, ours: str, theirs: str, bias: bool = True) -> Iterator[Move]:
    """Moves of the weights and biases of modules whose names begin with `ours` and `theirs`."""
    for module, names in parts.items():
        yield Move(f"{ours}{module}.weight", tuple(f"{theirs}{name}.weight" for name in names))
        if bias or "attn." not in module:  # norms and the feed-forward sublayer always have biases
            yield Move(f"{ours}{module}.bias", tuple(f"{theirs}{name}.bias" for name in names))


def layers(parts: Parts, side: str, count: int, theirs: str, bias: bool = True) -> Iterator[Move]:
    """Moves of all layers of one side, "encoder" or "decoder"; `theirs` has a place for the layer's number."""
    for index in range(count):
        yield from modules(parts, f"model.{side}.layers.{index}.", theirs.format(index), bias)
