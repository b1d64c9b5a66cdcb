"""The baseline as a CTranslate2 model: its weights under CTranslate2's names, and the check that it computes the same.

Written for ctranslate2.specs.TransformerSpec revision 7. CTranslate2 runs a fixed set of architectures, written in C++;
of this zoo the baseline is one of them, in both norm positions, tied or not, with one vocabulary or two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError
from hf_mlnmt.export.check import LENGTH, Search, Sentences, check_scores, compare_searches
from hf_mlnmt.zoo.systems import architecture_of

DTYPES = ("float32", "float16", "int8")
_ACTIVATIONS = {
    "relu": "RELU", "gelu": "GELU", "gelu_new": "GELUTanh", "gelu_fast": "GELUTanh", "gelu_pytorch_tanh": "GELUTanh",
    "silu": "SWISH", "swish": "SWISH", "quick_gelu": "GELUSigmoid", "tanh": "Tanh", "sigmoid": "Sigmoid",
}  # fmt: skip


def exportable(model: Any) -> Any:
    """The baseline's model to export: this one, or multi-level supervision without its auxiliary decoders.

    Raises: UserError that says what CTranslate2 lacks.
    """
    config = model.config
    if getattr(config, "auxiliary_layers", None) and not config.information_fusion:
        model = model.drop_auxiliaries()  # the main decoder by itself: outputs do not change
        config = model.config
    if config.model_type != "mlnmt-transformer":
        architecture = architecture_of(config)
        lacks = architecture.beyond if architecture else "its parts beyond the baseline Transformer"
        raise UserError(
            f"{type(model).__name__} cannot be exported to CTranslate2, which lacks {lacks}. Use generate() or "
            "`hf-mlnmt translate`, which run every system, or export --to onnx."
        )
    if config.activation_function not in _ACTIVATIONS:
        raise UserError(
            f"activation_function={config.activation_function}: CTranslate2 lacks it, has {', '.join(_ACTIVATIONS)}. "
            "Export --to onnx."
        )
    if not isinstance(config.eos_token_id, int):
        raise UserError(f"eos_token_id={config.eos_token_id}: CTranslate2 takes one token. Export --to onnx.")
    return model


def write(model: Any, tokenizers: Tokenizers, folder: Path, dtype: str) -> None:
    """Save weights, vocabularies and CTranslate2's config.json into `folder`; `dtype` is one of DTYPES."""
    specification = _specification(model)
    config, target = specification.config, tokenizers.target
    specification.register_source_vocabulary(_vocabulary(tokenizers.source, model.config.vocab_size))
    vocabulary = _vocabulary(target, model.config.decoder_vocab_size, target=True)
    specification.register_target_vocabulary(vocabulary)
    config.decoder_start_token = vocabulary[model.config.decoder_start_token_id]
    config.eos_token = vocabulary[model.config.eos_token_id]
    config.bos_token = target.bos_token or config.decoder_start_token
    config.unk_token = target.unk_token or config.unk_token
    config.layer_norm_epsilon = model.model.encoder.layers[0].self_attn_sublayer.layer_norm.eps
    specification.validate()
    specification.optimize(quantization=dtype)
    specification.save(str(folder))


def _vocabulary(tokenizer: Any, rows: int, target: bool = False) -> list[str]:
    """A token for each row of the embeddings, in the order of the ids; others get a name of their own."""
    tokens = [f"<unused_{row}>" for row in range(rows)]
    # Marian's tokenizer may hold two vocabularies, and get_vocab gives the source's; M2M100's leaves languages out.
    separate = target and getattr(tokenizer, "separate_vocabs", False)
    known = tokenizer.target_encoder if separate else tokenizer.get_vocab()
    for token, index in {**known, **getattr(tokenizer, "lang_token_to_id", {})}.items():
        tokens[index] = token
    return tokens


def _specification(model: Any) -> Any:
    from ctranslate2.specs import TransformerSpec, common_spec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    config = model.config
    options = {
        "pre_norm": config.norm_position == "pre",
        "activation": common_spec.Activation[_ACTIVATIONS[config.activation_function]],
        "layernorm_embedding": config.normalize_embedding,
    }
    encoder = TransformerEncoderSpec(config.encoder_layers, config.encoder_attention_heads, **options)
    decoder = TransformerDecoderSpec(config.decoder_layers, config.decoder_attention_heads, **options)
    _stack(encoder, encoder.embeddings[0], model.model.encoder)
    _stack(decoder, decoder.embeddings, model.model.decoder)
    for specification, layer in zip(decoder.layer, model.model.decoder.layers, strict=True):
        attention = layer.source_attn
        _attention(specification.attention, attention.q_proj, attention.kv_proj, attention.out_proj)
        _norm(specification.attention.layer_norm, layer.source_attn_sublayer)
    _linear(decoder.projection, model.lm_head)
    return TransformerSpec(encoder, decoder)


def _stack(specification: Any, embeddings: Any, stack: Any) -> None:
    """What encoder and decoder share. CTranslate2 knows one kind of positions, so the table itself goes along."""
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
        _norm(attention.layer_norm, layer.self_attn_sublayer)
        _linear(layer_specification.ffn.linear_0, layer.feed_forward.fc1)
        _linear(layer_specification.ffn.linear_1, layer.feed_forward.fc2)
        _norm(layer_specification.ffn.layer_norm, layer.feed_forward_sublayer)


def _attention(specification: Any, *projections: nn.Module) -> None:
    for linear, projection in zip(specification.linear, projections, strict=True):
        _linear(linear, projection)


def _linear(specification: Any, module: Any) -> None:
    specification.weight = _array(module.weight)
    if module.bias is not None:
        specification.bias = _array(module.bias)


def _norm(specification: Any, sublayer: Any) -> None:
    _layer_norm(specification, sublayer.layer_norm)


def _layer_norm(specification: Any, module: Any) -> None:
    specification.gamma, specification.beta = _array(module.weight), _array(module.bias)


def _array(tensor: torch.Tensor) -> Any:
    # A copy: CTranslate2 rounds to int8 in place, which must not reach the model.
    return tensor.detach().float().cpu().clone().numpy()


def check(folder: Path, model: Any, tokenizers: Tokenizers, dtype: str) -> dict[str, Any]:
    """Load the folder and compare with `model`: log probabilities of given targets, greedy and beam search.

    Returns: what was found, for the record. Raises: UserError if float32 differs; rounded weights are reported only.
    """
    import ctranslate2

    # A CPU has no float16 arithmetic: the rounded weights, computed in float32.
    compute_type = "int8" if dtype == "int8" else "float32"
    threads = torch.get_num_threads()  # of the whole process: CTranslate2 would set its own number for PyTorch too
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type=compute_type, intra_threads=threads)
    sentences = Sentences.of(model, tokenizers)
    pieces = _vocabulary(tokenizers.source, model.config.vocab_size)
    sources = [[pieces[index] for index in ids] for ids in sentences.sources]
    vocabulary = _vocabulary(tokenizers.target, model.config.decoder_vocab_size, target=True)
    # CTranslate2 adds the start token, and scores the end of sentence after each target by itself.
    targets = [[vocabulary[index] for index in ids[1:-1]] for ids in sentences.targets]
    scores = [torch.tensor(result.log_probs) for result in translator.score_batch(sources, targets)]
    difference = check_scores(scores, model, sentences, strict=dtype == "float32")
    ids = {token: index for index, token in enumerate(vocabulary)}

    def search(beams: int) -> list[list[int]]:
        lengths = {"min_decoding_length": 0, "max_decoding_length": LENGTH}  # its own least length is 1
        results = translator.translate_batch(sources, beam_size=beams, return_end_token=True, **lengths)
        return [[ids[token] for token in result.hypotheses[0]] for result in results]

    searches = [Search(name, beams, search(beams)) for name, beams in (("greedy", 1), ("beam 4", 4))]
    agreement = compare_searches(model, sentences.sources, searches, strict=dtype == "float32")
    return {"largest_difference_of_log_probabilities": difference, **agreement}
