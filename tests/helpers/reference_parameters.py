"""A model's parameters under the names of tests/reference/transformer.py."""

from __future__ import annotations

import torch


def named(linear, parts: int = 1):
    """(W, b) of a Linear, or of each of the `parts` that it stacks."""
    biases = linear.bias.chunk(parts) if linear.bias is not None else [None] * parts
    return list(zip(linear.weight.chunk(parts), biases))


def attention_of(module) -> dict:
    if hasattr(module, "qkv_proj"):
        query, key, value = named(module.qkv_proj, 3)
    else:
        (query,), (key, value) = named(module.q_proj), named(module.kv_proj, 2)
    return {"query": query, "key": key, "value": value, "output": named(module.out_proj)[0]}


def norm_of(norm):
    return (norm.weight, norm.bias) if isinstance(norm, torch.nn.LayerNorm) else None


def layer_of(layer) -> dict:
    found = {
        "self": attention_of(layer.self_attn),
        "self_norm": norm_of(layer.self_attn_sublayer.layer_norm),
        "feed_forward": [named(layer.feed_forward.fc1)[0], named(layer.feed_forward.fc2)[0]],
        "feed_forward_norm": norm_of(layer.feed_forward_sublayer.layer_norm),
    }
    if hasattr(layer, "source_attn"):
        found["source"] = attention_of(layer.source_attn)
        found["source_norm"] = norm_of(layer.source_attn_sublayer.layer_norm)
    return found


def decoder_parameters(model) -> dict:
    """The part of `parameters_of` that a language model has."""
    decoder = model.model.decoder
    return {
        "target_embedding": decoder.embed_tokens.weight,
        "projection": model.lm_head.weight,
        "decoder": [layer_of(layer) for layer in decoder.layers],
        "decoder_norm": norm_of(decoder.layer_norm),
    }


def parameters_of(model) -> dict:
    """The model's own parameters under the reference's names, so that gradients of the reference land on them."""
    encoder = model.get_encoder()
    return {
        **decoder_parameters(model),
        "source_embedding": encoder.embed_tokens.weight,
        "encoder": [layer_of(layer) for layer in encoder.layers],
        "encoder_norm": norm_of(encoder.layer_norm),
    }
