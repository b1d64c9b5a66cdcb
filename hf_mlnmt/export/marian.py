"""Exports the baseline as MarianMTModel of Transformers: imported OPUS-MT models back, or models of our own.

Marian's layers are the baseline's, post-norm. Its position embeddings have sines in the first half of the dimensions;
for a model in which sines and cosines alternate the dimensions of all tensors are permuted, which changes no output.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.model_folder import TOKEN_IDS
from hf_mlnmt.convert.checkpoint import FAIRSEQ_DECODER, FAIRSEQ_ENCODER, stacks
from hf_mlnmt.convert.huggingface import SAME
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.export.check import compare, generate, log_probabilities


def exportable(model: Any) -> Any:
    """Returns the model. Raises: UserError, naming what MarianMTModel lacks, for a model that it cannot express."""
    config = model.config
    if config.model_type != "mlnmt-transformer":
        raise UserError(f"{type(model).__name__} cannot be exported to Marian, which has the baseline's layers alone.")
    wanted = {
        "norm_position": ("post",),
        "normalize_embedding": (False,),
        "layer_norm_eps": (1e-5,),
        "position_embedding": ("halves", "interleaved"),
        "position_offset": (0,),
    }
    for name, values in wanted.items():
        if (value := getattr(config, name)) not in values:
            raise UserError(f"{name}={value!r}: cannot be exported to Marian, which has {name}={values[0]!r} alone.")
    return model


def write(model: Any, folder: Path) -> None:
    """Writes config and weights of a MarianMTModel into `folder`. Raises: UserError as `exportable`."""
    config = exportable(model).config
    fields = {name: getattr(config, name) for name in (*SAME, *TOKEN_IDS, "decoder_vocab_size")}
    theirs = MarianConfig(
        **{**fields, "init_std": config.init_std or 0.02},
        # If embeddings and output projection are not tied, neither model shares embeddings between encoder and decoder.
        share_encoder_decoder_embeddings=config.share_encoder_decoder_embeddings and config.tie_word_embeddings,
        forced_eos_token_id=None,
    )
    marian = MarianMTModel(theirs)
    state = marian.state_dict()
    for name, tensor in _tensors(model).items():
        state[name].copy_(tensor)
    marian.to(model.dtype).save_pretrained(folder)


def _tensors(model: Any) -> dict[str, Tensor]:
    """Returns {Marian's name: tensor} of our parameters."""
    ours = in_halves(model) if model.config.position_embedding == "interleaved" else model.state_dict()
    same = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    tensors = {name: ours[name] for name in same}
    tensors["final_logits_bias"] = ours.get("lm_head.bias", torch.zeros(()))
    for move in stacks(model.config, FAIRSEQ_ENCODER, FAIRSEQ_DECODER, "model."):
        if move.ours in ours:
            tensors |= zip(move.theirs, ours[move.ours].chunk(len(move.theirs)), strict=True)
        else:  # our attention has no biases, Marian's always has: its bias becomes 0
            tensors |= dict.fromkeys(move.theirs, torch.zeros(()))
    return tensors


def in_halves(model: Any) -> dict[str, Tensor]:
    """Returns the parameters with d_model in the order 0, 2 ... 1, 3 ...: sines of positions first, then cosines."""
    order = torch.cat([torch.arange(first, model.config.d_model, 2) for first in (0, 1)])
    permuted = {}
    for name, tensor in model.state_dict().items():
        module = name.split(".")[-2]
        if module in ("layer_norm", "out_proj", "fc2"):  # rows are dimensions of d_model
            tensor = tensor[order]
        if tensor.dim() == 2 and module not in ("out_proj", "fc2"):  # columns are dimensions of d_model
            tensor = tensor[:, order]
        permuted[name] = tensor
    return permuted


def check(folder: Path, model: Any, tokenizers: Tokenizers) -> dict[str, Any]:
    """Loads the folder as MarianMTModel and compares log probabilities, greedy and beam search with those of `model`.

    Returns: the differences, for export.json. Raises: UserError if anything differs by more than rounding.
    """
    marian = MarianMTModel.from_pretrained(folder, dtype=model.dtype).eval()
    return compare(model, tokenizers, partial(log_probabilities, marian), partial(generate, marian))
