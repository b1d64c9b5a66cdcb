"""This package's baseline as Marian's own engine reads it: model.npz and v.yml."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from torch import Tensor


def write(model: Any, pieces: Sequence[str], folder: Path, forced: bool) -> None:
    """Lengths are forced by an output bias that keeps the end away until the limit.

    Marian's positions are tensor2tensor's, and its decoder begins with zeros: so must the model's.
    """
    arrays = {name: tensor.detach().float().numpy() for name, tensor in _tensors(model)}
    arrays = {name: array[None] if array.ndim == 1 else array for name, array in arrays.items()}
    if forced:
        arrays["decoder_ff_logit_out_b"][0, model.config.eos_token_id] = -1e4
    text = np.frombuffer((yaml.safe_dump(_settings(model.config)) + "\0").encode(), np.int8)
    np.savez(folder / "model.npz", **arrays, **{"special:model.yml": text})
    (folder / "v.yml").write_text("".join(f'"{piece}": {index}\n' for index, piece in enumerate(pieces)))


def _settings(config: Any) -> dict[str, Any]:
    return {
        "type": "transformer", "dim-emb": config.d_model, "dim-vocabs": [config.vocab_size] * 2,
        "enc-depth": config.encoder_layers, "dec-depth": config.decoder_layers,
        "transformer-heads": config.encoder_attention_heads, "transformer-dim-ffn": config.encoder_ffn_dim,
        "transformer-decoder-dim-ffn": config.decoder_ffn_dim, "transformer-ffn-depth": 2,
        "transformer-decoder-ffn-depth": 2, "transformer-ffn-activation": config.activation_function,
        "transformer-preprocess": "", "transformer-postprocess": "dan", "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "", "transformer-decoder-autoreg": "self-attention",
        "tied-embeddings-all": False, "tied-embeddings": False, "tied-embeddings-src": True,
        "transformer-tied-layers": [], "output-omit-bias": False, "skip": False, "dec-cell": "ssru",
        "version": "v1.12.42",
    }  # fmt: skip


def _tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    head = model.lm_head
    yield "Wemb", model.model.encoder.embed_tokens.weight
    yield "decoder_ff_logit_out_Wt", head.weight
    yield "decoder_ff_logit_out_b", head.weight.new_zeros(len(head.weight)) if head.bias is None else head.bias.clone()
    for side, stack in (("encoder", model.model.encoder), ("decoder", model.model.decoder)):
        for number, layer in enumerate(stack.layers, 1):
            name = f"{side}_l{number}"
            yield from _product(layer.self_attn.qkv_proj, f"{name}_self_", "qkv")
            yield from _product(layer.self_attn.out_proj, f"{name}_self_", "o")
            yield from _norm(layer.self_attn_sublayer.layer_norm, f"{name}_self_Wo")
            if side == "decoder":
                yield from _product(layer.source_attn.q_proj, f"{name}_context_", "q")
                yield from _product(layer.source_attn.kv_proj, f"{name}_context_", "kv")
                yield from _product(layer.source_attn.out_proj, f"{name}_context_", "o")
                yield from _norm(layer.source_attn_sublayer.layer_norm, f"{name}_context_Wo")
            yield from _product(layer.feed_forward.fc1, f"{name}_ffn_", "1")
            yield from _product(layer.feed_forward.fc2, f"{name}_ffn_", "2")
            yield from _norm(layer.feed_forward_sublayer.layer_norm, f"{name}_ffn_ffn")


def _product(linear: Any, name: str, letters: str) -> Iterator[tuple[str, Tensor]]:
    bias = linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
    for letter, weight, part in zip(letters, linear.weight.chunk(len(letters)), bias.chunk(len(letters)), strict=True):
        yield f"{name}W{letter}", weight.t().contiguous()
        yield f"{name}b{letter}", part.contiguous()


def _norm(norm: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}_ln_scale", norm.weight
    yield f"{name}_ln_bias", norm.bias
