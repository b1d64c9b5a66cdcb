"""Imports MarianMT, M2M100, NLLB, BART and mBART of Transformers: loads them by their classes, moves each tensor.

`KNOWN` has the config fields that are fixed by the architecture. Marian, BART and mBART have an output bias for each
token, which is zero in the last two; tables of learned positions begin with two unused rows.

Departs: layers dropped at random in training (`encoder_layerdrop`) are not known here. M2M100 and NLLB count a source's
positions without its padding: with padding on the right, as their tokenizers put it, that is the same.
"""

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json
from hf_mlnmt.common.model_folder import (
    CONFIG,
    GENERATION_CONFIG,
    check_tokens,
    fetch_small_files,
    open_weights,
    read_config,
)
from hf_mlnmt.convert.checkpoint import (
    FAIRSEQ_DECODER,
    FAIRSEQ_ENCODER,
    Checkpoint,
    Move,
    Placement,
    Settings,
    baseline_config,
    listed,
    reason_of,
    stacks,
    weights_of,
)
from hf_mlnmt.convert.checkpoint import load as read_pickle
from hf_mlnmt.data.tokenizer import load_tokenizers
from hf_mlnmt.modeling import TransformerConfig

KNOWN: dict[str, dict[str, Any]] = {
    "marian": {"position_embedding": "halves", "norm_position": "post"},
    "m2m_100": {"position_embedding": "tensor2tensor", "position_offset": 2, "norm_position": "pre"},
    "bart": {"position_embedding": "learned", "norm_position": "post", "normalize_embedding": True},
    "mbart": {"position_embedding": "learned", "norm_position": "pre", "normalize_embedding": True},
}
# Tensors of earlier versions of Transformers that are not needed: a layout's version, and sines, computed anew.
_LEFT_OVER = re.compile(r"(^|\.)(encoder|decoder)\.(version|embed_positions\.(weights|_float_tensor))$")
# Fields with the same name and meaning in Transformers' configs and in ours.
SAME = (
    "vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads",
    "encoder_ffn_dim", "decoder_ffn_dim", "dropout", "attention_dropout", "activation_dropout", "activation_function",
    "scale_embedding", "max_position_embeddings", "init_std", "tie_word_embeddings",
)  # fmt: skip


def read(name: str, options: dict[str, Any]) -> Checkpoint:
    """Reads a model and its tokenizers, of a folder or Hub name. Raises: UserError as `load` and `load_tokenizers`."""
    model, left_over = load(name, **options)
    config = config_of(name, model)
    stored = getattr(model.config, "dtype", None)  # the type of the weights in the file
    return Checkpoint(
        model.config.model_type,
        config,
        placement_of(model, config, name),
        load_tokenizers(fetch_small_files(name, **options)),
        model.generation_config,
        original=model,
        dtype=str(stored or torch.float32).removeprefix("torch."),
        notes=[f"left out, as nothing reads it: {listed(left_over)}"] if left_over else [],
    )


def load(name: str, **options: Any) -> tuple[Any, list[str]]:
    """Loads a model as Transformers does; returns it, and the names of tensors in the checkpoint that nothing reads.

    Raises: UserError for a missing or damaged model, another architecture, a pickle of more than weights, or a
        checkpoint that does not have exactly the model's tensors.
    """
    from transformers import AutoModelForSeq2SeqLM

    folder = fetch_small_files(name, **options)
    config = read_config(folder)
    if config.model_type not in KNOWN:
        raise UserError(
            f"{name}: a model of type {config.model_type} cannot be imported, as the baseline computes other things. "
            f"Importable: {', '.join(KNOWN)} (OPUS-MT, M2M100 and NLLB, BART, mBART and mBART-50). TranslationPipeline "
            "runs others as they are."
        )
    search = folder / (GENERATION_CONFIG if (folder / GENERATION_CONFIG).is_file() else CONFIG)
    Settings(f"{search}: ", read_json(search)).check_search("num_beams", "length_penalty")
    stored = config.dtype
    try:
        model, info = AutoModelForSeq2SeqLM.from_pretrained(
            name, config=config, dtype=torch.float32, output_loading_info=True, **options
        )
        model.config.dtype = stored
    except Exception as error:  # PyTorch, safetensors and Transformers raise many kinds of exceptions here
        for pickle in _pickles(folder):
            read_pickle(pickle)  # raises UserError that says what is wrong with the file
        raise UserError(f"{name}: its config or weights cannot be loaded: {reason_of(error)}") from error
    unexpected = set(map(str, info.get("unexpected_keys") or ()))
    known = {name for name in unexpected if _LEFT_OVER.search(name)}
    info["unexpected_keys"] = unexpected - known
    for key, problem in (("missing_keys", "lacks"), ("unexpected_keys", "has"), ("mismatched_keys", "has misshapen")):
        if names := sorted(map(str, info.get(key) or ())):
            raise UserError(f"{name}: the checkpoint {problem} tensors: {listed(names)}. Nothing was imported.")
    with ExitStack() as stack:
        for pickle in _pickles(folder):
            weights = read_pickle(pickle).items()
            weights_of(pickle, {key: tensor for key, tensor in weights if not _LEFT_OVER.search(key)})
        if not _pickles(folder):
            open_weights(folder, stack)
    check_tokens(f"{name}: {GENERATION_CONFIG} or {CONFIG}", model.config, model.generation_config)
    return model.eval(), sorted(known)


def _pickles(folder: Path) -> list[Path]:
    """Returns the pickles of weights that Transformers loads where there is no .safetensors file."""
    return [] if any(folder.glob("*.safetensors")) else sorted(folder.glob("pytorch_model*.bin"))


def config_of(name: str, model: Any) -> TransformerConfig:
    """Returns the baseline's config for a model of Transformers. Raises: UserError without one </s> and <pad>."""
    theirs = model.config
    if not isinstance(theirs.eos_token_id, int) or theirs.pad_token_id is None:
        raise UserError(
            f"{name}: config.json: eos_token_id={theirs.eos_token_id}, pad_token_id={theirs.pad_token_id}: "
            "each must be one token."
        )
    check_tokens(f"{name}: {CONFIG}", theirs, theirs)
    # Without a decoder_start_token_id (mBART of 25 languages) generate() begins with <s>, or with a language's code.
    start = theirs.bos_token_id if theirs.decoder_start_token_id is None else theirs.decoder_start_token_id
    bias = getattr(model, "final_logits_bias", None)
    return baseline_config(
        name,
        (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id, start),
        **{name: getattr(theirs, name) for name in SAME},
        **KNOWN[theirs.model_type],
        decoder_vocab_size=getattr(theirs, "decoder_vocab_size", None) or theirs.vocab_size,
        # Transformers shares the two embeddings only if tie_word_embeddings is set too.
        share_encoder_decoder_embeddings=theirs.tie_word_embeddings
        and getattr(theirs, "share_encoder_decoder_embeddings", True),
        output_bias=bias is not None and bool(bias.any()),
    )


def placement_of(model: Any, config: TransformerConfig, where: str) -> Placement:
    """Returns a Placement in which all tensors of a model of Transformers are moved or left out."""
    placement = Placement(where, model.state_dict())
    same = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    placement.move(Move(name, (name,)) for name in same)
    placement.move(stacks(config, FAIRSEQ_ENCODER, FAIRSEQ_DECODER, "model."))
    if config.output_bias:
        placement.set("lm_head.bias", placement.tensors["final_logits_bias"].flatten(), ["final_logits_bias"])
    placement.leave_out("final_logits_bias", "all zero")
    shared = "model.encoder.embed_tokens.weight"
    if config.tie_word_embeddings:
        placement.leave_out_copy("model.shared.weight", shared)
    placement.leave_out("model.shared.weight", "nothing reads it: the embeddings are not tied")
    for side in ("encoder", "decoder"):
        positions = f"model.{side}.embed_positions.weight"
        if config.position_embedding == "learned":
            placement.set(
                f"model.{side}.positions.table", placement.tensors[positions][2:], [positions]
            )  # without the two unused rows in front
        else:
            placement.leave_out_sines(positions, config)
    return placement
