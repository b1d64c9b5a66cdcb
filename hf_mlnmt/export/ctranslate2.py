"""Writes models in CTranslate2's format, and searches and scores with CTranslate2, to export models and check exports.

The format is ctranslate2.specs.TransformerSpec revision 7. Of this package's models it can express the baseline alone:
either norm position, embeddings tied or not, one vocabulary or two.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.zoo.systems import system_of

logger = logging.getLogger(__name__)

ACTIVATIONS = {
    "relu": "RELU", "gelu": "GELU", "gelu_new": "GELUTanh", "gelu_fast": "GELUTanh", "gelu_pytorch_tanh": "GELUTanh",
    "silu": "SWISH", "swish": "SWISH", "quick_gelu": "GELUSigmoid", "tanh": "Tanh", "sigmoid": "Sigmoid",
}  # fmt: skip


def single_decoder(model: Any) -> Any:
    """Returns the model; one of multi-level supervision without its auxiliary decoders, which change no output."""
    config = model.config
    if getattr(config, "auxiliary_layers", None) and not config.information_fusion:
        return model.drop_auxiliaries()
    return model


def lacks(model: Any) -> str | None:
    """Returns what CTranslate2 lacks for computing this model, in words; None if the model can be written."""
    config = model.config
    if config.model_type != "mlnmt-transformer":
        system = system_of(config)
        return f"{system.title}: {system.clause}" if system else "its parts beyond the baseline Transformer"
    if config.activation_function not in ACTIVATIONS:
        return f"activation_function={config.activation_function}; it has {', '.join(ACTIVATIONS)}"
    if not isinstance(config.eos_token_id, int):
        return f"several ends of a sentence, eos_token_id={config.eos_token_id}"
    return None


def write(model: Any, tokenizers: Tokenizers, folder: Path, dtype: str) -> None:
    """Writes the model's weights and vocabularies and CTranslate2's config.json into `folder`.

    dtype: how the weights are kept: float32, float16, bfloat16 or int8.
    """
    specification = _specification(model)
    config, target = specification.config, tokenizers.target
    pieces, vocabulary = vocabularies_of(model, tokenizers)
    specification.register_source_vocabulary(pieces)
    specification.register_target_vocabulary(vocabulary)
    config.decoder_start_token = vocabulary[model.config.decoder_start_token_id]
    config.eos_token = vocabulary[model.config.eos_token_id]
    config.bos_token = target.bos_token or config.decoder_start_token
    config.unk_token = target.unk_token or config.unk_token
    config.layer_norm_epsilon = model.model.encoder.layers[0].self_attn_sublayer.layer_norm.eps
    specification.validate()
    specification.optimize(quantization=dtype)
    specification.save(str(folder))


def vocabularies_of(model: Any, tokenizers: Tokenizers) -> list[list[str]]:
    """Returns for source and target the token of each row of the embeddings; a row without a token: "<unused_ROW>"."""
    source, target = tokenizers.source, tokenizers.target
    # A Marian tokenizer may hold two vocabularies: its get_vocab returns the source's. M2M100's omits language tokens.
    written = target.target_encoder if getattr(target, "separate_vocabs", False) else target.get_vocab()
    sides = []
    for rows, known, tokenizer in (
        (model.config.vocab_size, source.get_vocab(), source),
        (model.config.decoder_vocab_size, written, target),
    ):
        tokens = {index: token for token, index in {**known, **getattr(tokenizer, "lang_token_to_id", {})}.items()}
        sides.append([tokens.get(row, f"<unused_{row}>") for row in range(rows)])
    return sides


def _specification(model: Any) -> Any:
    from ctranslate2.specs import TransformerSpec, common_spec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    config = model.config
    options = {
        "pre_norm": config.norm_position == "pre",
        "activation": common_spec.Activation[ACTIVATIONS[config.activation_function]],
        "layernorm_embedding": config.normalize_embedding,
    }
    encoder = TransformerEncoderSpec(config.encoder_layers, config.encoder_attention_heads, **options)
    decoder = TransformerDecoderSpec(config.decoder_layers, config.decoder_attention_heads, **options)
    _stack(encoder, encoder.embeddings[0], model.model.encoder)
    _stack(decoder, decoder.embeddings, model.model.decoder)
    for specification, layer in zip(decoder.layer, model.model.decoder.layers, strict=True):
        attention = layer.source_attn
        _attention(specification.attention, attention.q_proj, attention.kv_proj, attention.out_proj)
        _layer_norm(specification.attention.layer_norm, layer.source_attn_sublayer.layer_norm)
    _linear(decoder.projection, model.lm_head)
    return TransformerSpec(encoder, decoder)


def _stack(specification: Any, embeddings: Any, stack: Any) -> None:
    """Copies embeddings, positions, self-attention and feed-forward layers of an encoder or decoder into its
    specification; positions as a table, since CTranslate2 computes sinusoids of one kind only."""
    embeddings.weight = _array(stack.embed_tokens.weight)
    specification.scale_embeddings = float(stack.embed_scale)
    specification.position_encodings.encodings = _array(stack.positions.table)
    if specification.pre_norm:
        _layer_norm(specification.layer_norm, stack.layer_norm)
    if isinstance(stack.embedding_norm, nn.LayerNorm):
        _layer_norm(specification.layernorm_embedding, stack.embedding_norm)
    for layer_specification, layer in zip(specification.layer, stack.layers, strict=True):
        attention = layer_specification.self_attention
        _attention(attention, layer.self_attn.qkv_proj, layer.self_attn.out_proj)
        _layer_norm(attention.layer_norm, layer.self_attn_sublayer.layer_norm)
        _linear(layer_specification.ffn.linear_0, layer.feed_forward.fc1)
        _linear(layer_specification.ffn.linear_1, layer.feed_forward.fc2)
        _layer_norm(layer_specification.ffn.layer_norm, layer.feed_forward_sublayer.layer_norm)


def _attention(specification: Any, *projections: nn.Module) -> None:
    for linear, projection in zip(specification.linear, projections, strict=True):
        _linear(linear, projection)


def _linear(specification: Any, module: Any) -> None:
    specification.weight = _array(module.weight)
    if module.bias is not None:
        specification.bias = _array(module.bias)


def _layer_norm(specification: Any, module: Any) -> None:
    specification.gamma, specification.beta = _array(module.weight), _array(module.bias)


def _array(tensor: torch.Tensor) -> Any:
    # A copy, because CTranslate2 rounds to int8 in place and the model's own weights must not change.
    return tensor.detach().float().cpu().clone().numpy()


class Translator:
    """Searches and scores with a converted model; dtype: that of its weights and matrix products."""

    def __init__(self, folder: Path, model: Any, tokenizers: Tokenizers, dtype: str):
        """Loads the folder that `write` made of `model`. Raises: RuntimeError where CTranslate2 cannot load it."""
        import ctranslate2

        self.pieces, self.tokens = vocabularies_of(model, tokenizers)
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        self.end, device = model.config.eos_token_id, model.device
        # The number of threads holds for the whole process: left alone, CTranslate2 would change PyTorch's too.
        where = {"device": device.type, "device_index": device.index or 0, "intra_threads": torch.get_num_threads()}
        self.engine: Any = ctranslate2.Translator(str(folder), compute_type=dtype, **where)

    def search(self, sources: Sequence[Sequence[int]], beams: int, limit: int) -> list[list[int]]:
        """Returns the ids of the best translation of each source, end of sentence included, at most `limit` tokens."""
        results = self.engine.translate_batch(
            self._pieces_of(sources),
            beam_size=beams,
            return_end_token=True,
            max_input_length=0,
            max_decoding_length=limit,
            min_decoding_length=0,
        )
        return [[self.ids[token] for token in result.hypotheses[0]] for result in results]

    def log_probabilities(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Returns ln P of every token of the targets; targets: ids as `search` returns them."""
        # Without the end tokens, which score_batch adds.
        tokens = [[self.tokens[index] for index in ids if index != self.end] for ids in targets]
        results = self.engine.score_batch(self._pieces_of(sources), tokens, max_input_length=0)
        return [result.log_probs[: len(ids)] for ids, result in zip(targets, results, strict=True)]

    def _pieces_of(self, sources: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self.pieces[index] for index in ids] for ids in sources]
