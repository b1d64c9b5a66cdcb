"""Imports JoeyNMT's Transformer: a .ckpt, and beside it config.yaml and both vocabularies, as training writes them.

Verified against JoeyNMT 2.3.0. Layer norms have an epsilon of 1e-6, the output has no bias, positions are the paper's.
`tied_embeddings` alone shares both sides' embeddings and not the output, as share_encoder_decoder_embeddings does.
src_vocab.txt, trg_vocab.txt and a SentencePiece model beside the checkpoint become tokenizers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import GenerationConfig

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.convert.checkpoint import (
    FLAG,
    Checkpoint,
    Placement,
    Settings,
    baseline_config,
    generation_config,
    layer_parts,
    stacks,
    weights_of,
    yaml_of,
)
from hf_mlnmt.convert.vocabularies import BOS, EOS, PAD, UNK, Special, cut_tokenizers
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.modeling import TransformerConfig

_LANGUAGES, _SIDES = ("src", "trg"), ("encoder", "decoder")
_PRODUCTS = "q_layer k_layer v_layer output_layer"
_FEED_FORWARD = ("feed_forward.pwff_layer.0", "feed_forward.pwff_layer.3")
_NORMS = ("x_layer_norm", "feed_forward.layer_norm", "dec_layer_norm")
_ENCODER = layer_parts("src_src_att", _PRODUCTS, ("layer_norm", "feed_forward.layer_norm"), _FEED_FORWARD)
_DECODER = layer_parts("trg_trg_att", _PRODUCTS, _NORMS, _FEED_FORWARD, "src_trg_att")
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "tanh": "tanh"}
_PLAIN = {"type": ("transformer",), "alpha": (1.0,), "activation": tuple(_ACTIVATIONS)}
_POSITIONS = 5000  # rows of every table of positions in JoeyNMT


def read(path: Path, content: Mapping[str, Any]) -> Checkpoint:
    """Makes a Checkpoint of a file's content, and of config.yaml and the vocabularies beside the file.

    Raises: UserError for missing files, and for settings that the baseline cannot compute, with field and value.
    """
    tensors = weights_of(f"{path}: model_state", content["model_state"])
    if (file := _beside(path, "config.yaml")) is None:
        raise UserError(f"{path}: a checkpoint of JoeyNMT; the config.yaml that training put beside it is not there.")
    settings = Settings(f"{file}: ", yaml_of(file, file.read_bytes()))
    model, sides = settings.below("model"), [settings.below("data", side) for side in _LANGUAGES]
    special, vocabularies = _vocabularies(path, settings.below("data", "special_symbols"), sides)
    config = _config(path, model, tensors, vocabularies, special)
    placement = Placement(str(path), tensors)
    placement.move(stacks(config, _ENCODER, _DECODER))
    placement.move_embeddings(config, "src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight")
    for side in _SIDES:
        placement.leave_out_sines(f"{side}.pe.pe", config)
    tokenizers, notes = _tokenizers(path, sides, vocabularies, special)
    return Checkpoint("joeynmt", config, placement, tokenizers, _generation_config(settings, config), notes=notes)


def _beside(path: Path, *names: str) -> Path | None:
    folders = (path.resolve().parent, path.parent)  # best.ckpt is a link: looks beside its target first
    return next((folder / name for name in names if name for folder in folders if (folder / name).is_file()), None)


def _vocabularies(path: Path, symbols: Settings, sides: Sequence[Settings]) -> tuple[Special, list[dict[str, int]]]:
    """Reads the special tokens, and {token: id} of each side: special tokens, language tags, then one token a line."""
    if symbols.get("sep_token"):
        raise UserError(f"{symbols.where}sep_token: prompts are nothing that the baseline can compute.")
    defaults = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS, "unk_token": UNK}
    special = Special(*(symbols.text(name, default) for name, default in defaults.items()))
    vocabularies = []
    for language, side in zip(_LANGUAGES, sides, strict=True):
        file = _beside(path, f"{language}_vocab.txt", Path(side.text("voc_file")).name)
        if file is None:
            raise UserError(f"{path}: the vocabulary {language}_vocab.txt is not beside it.")
        tokens = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        first = [special.unknown, special.pad, special.start, special.end, *symbols.texts("lang_tags")]
        vocabularies.append({token: index for index, token in enumerate(dict.fromkeys([*first, *tokens]))})
    if any(vocabularies[0][token] != vocabularies[1][token] for token in special):
        raise UserError(f"{path}: the special tokens have different numbers in the two vocabularies.")
    return special, vocabularies


def _tokenizers(
    path: Path, sides: Sequence[Settings], vocabularies: Sequence[dict[str, int]], special: Special
) -> tuple[Tokenizers, list[str]]:
    """Returns tokenizers, and what a user must know of them."""
    for side in sides:
        if (level := side.get("level")) not in ("word", "bpe"):
            raise UserError(f"{side.where}level: {level}: word and bpe can be imported.")
    cutters = [side.below("tokenizer_cfg") for side in sides]
    by = [Path(cutter.text("codes", cutter.text("model_file"))).name for cutter in cutters]
    parts = "words" if all(side["level"] == "word" for side in sides) else "subwords"
    tokenizers, notes = cut_tokenizers(path, vocabularies, special, by, parts=parts)
    lowercase = [TextProcessing(lowercase=bool(side.get("lowercase"))) for side in sides]
    tokenizers.processing = dict(zip(("source", "target"), lowercase, strict=True))
    for side in sides:
        asked = {"normalize": side.get("normalize"), "pretokenizer": side.below("tokenizer_cfg").get("pretokenizer")}
        for step in [step for step, how in asked.items() if how and how != "none"]:
            notes.append(f"{side.where.split(': ')[-1]}{step} is not done here: give text that it was done to")
    return tokenizers, notes


def _config(
    path: Path,
    model: Settings,
    tensors: Mapping[str, Tensor],
    vocabularies: Sequence[Mapping[str, int]],
    special: Special,
) -> TransformerConfig:
    sides = encoder, decoder = model.below("encoder"), model.below("decoder")
    for side in sides:
        Settings(side.where, {"type": "recurrent", **side}).check(_PLAIN)  # JoeyNMT's default type is recurrent
        side.check_numbers(("hidden_size", "ff_size", "num_layers", "num_heads"), tensors)
        side.below("embeddings").check({"scale": FLAG})
    model.check(dict.fromkeys(("tied_embeddings", "tied_softmax"), FLAG))
    plain = {"activation": "relu"}
    model.check_alike(("hidden_size", "activation", "layer_norm"), plain | encoder, plain | decoder)
    scales = [{"embeddings.scale": bool(side.below("embeddings").get("scale"))} for side in sides]
    if not model.get("tied_embeddings"):
        model.check_alike(scales[0], *scales)
    if (norm := encoder.get("layer_norm")) not in ("pre", "post"):
        raise UserError(
            f"{path}: its config.yaml does not say model.encoder.layer_norm and model.decoder.layer_norm, and the "
            "versions of JoeyNMT mean different things by that. Write `layer_norm: post` (2.0) or `pre` (1) into it."
        )
    dropout, tied = encoder.get("dropout", 0.1), bool(model.get("tied_softmax"))
    pad, start, end = (vocabularies[1][token] for token in special[:3])
    return baseline_config(
        str(path),
        (pad, start, end, start),
        vocab_size=len(vocabularies[0]),
        decoder_vocab_size=len(vocabularies[1]),
        d_model=encoder["hidden_size"],
        layers=(encoder["num_layers"], decoder["num_layers"]),
        attention_heads=(encoder["num_heads"], decoder["num_heads"]),
        ffn_dim=(encoder["ff_size"], decoder["ff_size"]),
        norm_position=norm,
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        activation_function=_ACTIVATIONS[encoder.get("activation", "relu")],
        layer_norm_eps=1e-6,
        scale_embedding=scales[0]["embeddings.scale"],
        max_position_embeddings=_POSITIONS,
        share_encoder_decoder_embeddings=bool(model.get("tied_embeddings")),
        tie_word_embeddings=tied,
    )


def _generation_config(settings: Settings, config: TransformerConfig) -> GenerationConfig:
    """Returns JoeyNMT's search: never <s> or <pad>, scores divided by ((5 + length) / 6)^beam_alpha."""
    testing = settings.below("testing") or settings.below("test")
    penalty = "beam_alpha" if "beam_alpha" in testing else "alpha"
    testing.check_search("beam_size", penalty)
    beams, alpha = testing.get("beam_size") or 1, testing.get(penalty)
    search: dict[str, Any] = {}
    if beams > 1:
        search = {"num_beams": beams, "length_penalty": max(float(alpha or 0), 0.0), "length_normalization": "gnmt"}
    return generation_config(config, bad_words_ids=[[config.pad_token_id], [config.bos_token_id]], **search)
