"""The baseline as a CTranslate2 model: its weights under CTranslate2's names, its two vocabularies, a cache.

Written for ctranslate2.specs.TransformerSpec revision 7: of this zoo CTranslate2 has the baseline, in both norm
positions, tied or not, with one vocabulary or two.

Converted models are kept in the user's cache (`files.cache_folder`), made once for the same weights and vocabularies,
by one process at a time. `ctranslate2/<hash>-<dtype>/` holds the model and entry.json: the versions that made it, and
size and CRC-32 of every file. What does not fit its entry.json, or was made by other versions, is made anew.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.files import atomic_folder, cache_folder, size_and_crc, write_json
from hf_mlnmt.made_from import Digest
from hf_mlnmt.zoo.systems import architecture_of

ACTIVATIONS = {
    "relu": "RELU", "gelu": "GELU", "gelu_new": "GELUTanh", "gelu_fast": "GELUTanh", "gelu_pytorch_tanh": "GELUTanh",
    "silu": "SWISH", "swish": "SWISH", "quick_gelu": "GELUSigmoid", "tanh": "Tanh", "sigmoid": "Sigmoid",
}  # fmt: skip


def single_decoder(model: Any) -> Any:
    """Returns this model, or multi-level supervision without its auxiliary decoders, which computes the same."""
    config = model.config
    if getattr(config, "auxiliary_layers", None) and not config.information_fusion:
        return model.drop_auxiliaries()
    return model


def lacks(model: Any) -> str | None:
    """Returns what CTranslate2 lacks for this model; None if it is one that can be written."""
    config = model.config
    if config.model_type != "mlnmt-transformer":
        architecture = architecture_of(config)
        return architecture.beyond if architecture else "its parts beyond the baseline Transformer"
    if config.activation_function not in ACTIVATIONS:
        return f"activation_function={config.activation_function}; it has {', '.join(ACTIVATIONS)}"
    if not isinstance(config.eos_token_id, int):
        return f"several ends of a sentence, eos_token_id={config.eos_token_id}"
    return None


def write(model: Any, tokenizers: Tokenizers, folder: Path, dtype: str) -> None:
    """Saves weights, vocabularies and CTranslate2's config.json into `folder`.

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
    """Returns a token for each row of either side's embeddings, in the order of the ids; some are made up."""
    source, target = tokenizers.source, tokenizers.target
    # Marian's tokenizer may hold two vocabularies, and get_vocab gives the source's; M2M100's leaves languages out.
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
    """Fills what encoder and decoder share. CTranslate2 knows one kind of positions, so the table itself goes along."""
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
    # A copy: CTranslate2 rounds to int8 in place, which must not reach the model.
    return tensor.detach().float().cpu().clone().numpy()


ENTRY = "entry.json"
LAYOUT = 1  # to be raised when this file writes something else


def content_hash(model: Any, vocabularies: Sequence[Sequence[str]]) -> str:
    """Hashes what a converted model is made of: the config, every weight, the tokens of both sides."""
    settings = {name: value for name, value in model.config.to_dict().items() if not name.startswith(("_", "transf"))}
    return Digest().value([settings, *vocabularies]).weights(model.state_dict()).hex()


@contextmanager
def entry(name: str, build: Callable[[Path], None], tell: Callable[[str], None]) -> Iterator[Path]:
    """Yields the folder of this name in the cache; `build` fills it if it is not there, damaged or of other versions.

    Nobody else changes it while the context lasts. Raises: OSError or UserError where nothing can be written.
    """
    from filelock import FileLock

    folder = cache_folder() / "ctranslate2" / name
    locks = folder.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"{name}.lock"):
        try:
            whole = json.loads((folder / ENTRY).read_text(encoding="utf-8")) == _record(folder)
        except (OSError, ValueError):
            whole = False
        if not whole:
            tell(f"{'making it again' if folder.exists() else 'made once'}, kept in {folder.parent}")
            with atomic_folder(folder) as new:
                build(new)
                write_json(new / ENTRY, _record(new))
        yield folder


def _record(folder: Path) -> dict[str, Any]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ENTRY)
    return {
        "schema": "hf_mlnmt.generation.ctranslate2_search/1",
        "layout": LAYOUT,
        "ctranslate2": importlib.metadata.version("ctranslate2"),
        "files": {path.relative_to(folder).as_posix(): size_and_crc(path) for path in files},
    }
