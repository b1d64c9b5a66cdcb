"""JoeyNMT's Transformer: a .ckpt, and beside it config.yaml and both vocabularies, as training leaves them.

| in config.yaml | the baseline |
| --- | --- |
| layer_norm: pre or post (version 1: always pre) | norm_position |
| tied_embeddings and tied_softmax | one embedding for everything |
| tied_softmax alone | the output is the target embedding |
| embeddings.scale | scale_embedding |

Verified against JoeyNMT 2.3.0. Layer norms have an epsilon of 1e-6, the output has no bias, positions are the paper's.
`tied_embeddings` alone shares the embeddings of both sides and not the output: here they are two with the same numbers.
src_vocab.txt, trg_vocab.txt and a SentencePiece model beside the checkpoint become tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import GenerationConfig

from hf_mlnmt.convert.checkpoint import (
    FLAG,
    Checkpoint,
    Placement,
    baseline_config,
    generation_config,
    layer_parts,
    leave_out_sines,
    need_search,
    need_whole_numbers,
    place_embeddings,
    refuse_others,
    section,
    stacks,
    texts,
    weights_of,
    yaml_of,
)
from hf_mlnmt.convert.vocabularies import EOS, PAD, UNK, Side, Special, word_tokenizers
from hf_mlnmt.convert.vocabularies import tokenizers_of as with_sentencepiece
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError
from hf_mlnmt.modeling import TransformerConfig

_DEFAULTS = {"unk_token": UNK, "pad_token": PAD, "bos_token": "<s>", "eos_token": EOS}
_LANGUAGES = ("src", "trg")
_PRODUCTS = "q_layer k_layer v_layer output_layer"
_FEED_FORWARD = ("feed_forward.pwff_layer.0", "feed_forward.pwff_layer.3")
_NORMS = ("x_layer_norm", "feed_forward.layer_norm", "dec_layer_norm")
_ENCODER = layer_parts("src_src_att", _PRODUCTS, ("layer_norm", "feed_forward.layer_norm"), _FEED_FORWARD)
_DECODER = layer_parts("trg_trg_att", _PRODUCTS, _NORMS, _FEED_FORWARD, "src_trg_att")


def special_tokens(path: Path, settings: Mapping[str, Any]) -> Special:
    """Returns those of config.yaml. Raises: UserError for prompts, which add to the embeddings."""
    symbols = (settings.get("data") or {}).get("special_symbols") or {}
    if symbols.get("sep_token"):
        raise UserError(f"{path}: data.special_symbols.sep_token: prompts are nothing that the baseline can compute.")
    names = {name: symbols.get(name) or default for name, default in _DEFAULTS.items()}
    return Special(names["pad_token"], names["bos_token"], names["eos_token"], names["unk_token"])


def read_vocabularies(path: Path, settings: Mapping[str, Any], special: Special) -> list[dict[str, int]]:
    """Reads token -> id for each side: the special tokens, language tags, then one token a line."""
    tags = list(((settings.get("data") or {}).get("special_symbols") or {}).get("lang_tags") or [])
    vocabularies = []
    for side in _LANGUAGES:
        names = [f"{side}_vocab.txt", Path(str(side_settings(settings, side).get("voc_file") or "")).name]
        file = _beside(path, names)
        if file is None:
            raise UserError(f"{path}: the vocabulary {names[0]} is not beside it.")
        tokens = file.read_text(encoding="utf-8").split("\n")
        first = [special.unknown, special.pad, special.start, special.end, *tags]
        order = dict.fromkeys([*first, *(tokens[:-1] if tokens[-1] == "" else tokens)])
        vocabularies.append({token: index for index, token in enumerate(order)})
    if any(vocabularies[0][token] != vocabularies[1][token] for token in special):
        raise UserError(f"{path}: the special tokens have different numbers in the two vocabularies.")
    return vocabularies


def side_settings(settings: Mapping[str, Any], side: str) -> dict[str, Any]:
    """Returns data.src or data.trg; of version 1, which names a language there, what stands in `data` itself."""
    data = settings.get("data") or {}
    named = data.get(side)
    if isinstance(named, dict):
        return named
    common = {name: data[name] for name in ("level", "lowercase") if name in data}
    return {**common, "lang": named, "voc_file": data.get(f"{side}_vocab"), "tokenizer_type": "subword-nmt"}


def tokenizers_of(
    path: Path, settings: Mapping[str, Any], vocabularies: Sequence[dict[str, int]], special: Special
) -> tuple[Tokenizers, list[str]]:
    """Returns tokenizers, and what a user must know of them."""
    sides = [side_settings(settings, side) for side in _LANGUAGES]
    if odd := [side for side in sides if side.get("level") not in ("word", "bpe")]:
        raise UserError(f"{path}: data: level: {odd[0].get('level')}: word and bpe can be imported.")
    notes: list[str] = []
    pieces = [_sentencepiece(path, side) for side in sides]
    standard = (special.pad, special.end, special.unknown) == (PAD, EOS, UNK)
    if all(pieces) and standard:
        both = [Side(ids, file) for ids, file in zip(vocabularies, pieces, strict=True) if file]
        tokenizers = with_sentencepiece(both, vocabularies[0][special.pad])
    else:
        tokenizers = word_tokenizers(vocabularies, special)
        notes += _how_to_cut(sides)
    tokenizers.processing = {
        name: TextProcessing(lowercase=bool(side.get("lowercase")))
        for name, side in zip(("source", "target"), sides, strict=True)
    }
    for name, side in zip(_LANGUAGES, sides, strict=True):
        steps = [step for step in ("normalize",) if side.get(step)]
        steps += ["pretokenizer"] if (side.get("tokenizer_cfg") or {}).get("pretokenizer", "none") != "none" else []
        notes += [
            f"data.{name} asks for {step}, which is not done here: give text that it was done to" for step in steps
        ]
    return tokenizers, notes


def _sentencepiece(path: Path, side: Mapping[str, Any]) -> Path | None:
    kind = side.get("tokenizer_type", side.get("bpe_type", "sentencepiece"))
    name = (side.get("tokenizer_cfg") or {}).get("model_file")
    if side.get("level") != "bpe" or kind != "sentencepiece" or not name:
        return None
    file = _beside(path, [Path(name).name])
    if file is None:
        raise UserError(f"{path}: the SentencePiece model {Path(name).name} of config.yaml is not beside it.")
    return file


def _how_to_cut(sides: Sequence[Mapping[str, Any]]) -> list[str]:
    if all(side.get("level") == "word" for side in sides):
        return ["tokens are what spaces separate, as in training: give text that is tokenised like the training data"]
    codes = {Path(str((side.get("tokenizer_cfg") or {}).get("codes") or "the codes")).name for side in sides}
    return [
        "text is not cut into subwords here: give text that subword-nmt apply-bpe has cut "
        f"({', '.join(sorted(codes))}), subwords separated by spaces; translations come out like that"
    ]


def _beside(path: Path, names: Sequence[str]) -> Path | None:
    folders = (path.parent, path.resolve().parent)
    return next((folder / name for name in names if name for folder in folders if (folder / name).is_file()), None)


_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "tanh": "tanh"}
_SIDES = ("encoder", "decoder")
_POSITIONS = 5000  # of every table of JoeyNMT's


def read(path: Path, content: Mapping[str, Any]) -> Checkpoint:
    """Reads a file's content; config.yaml and vocabularies lie beside it.

    Raises: UserError for what is not there, and for what the baseline cannot compute, by its field and value.
    """
    tensors = weights_of(f"{path}: model_state", content["model_state"])
    settings = _settings(path, tensors)
    special = special_tokens(path, settings)
    vocabularies = read_vocabularies(path, settings, special)
    config = _config(path, settings, tensors, vocabularies[0], vocabularies[1], special)
    placement = Placement(str(path), tensors)
    placement.move(stacks(config, _ENCODER, _DECODER))
    place_embeddings(placement, config, "src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight")
    for side in _SIDES:
        leave_out_sines(placement, f"{side}.pe.pe", config)
    tokenizers, notes = tokenizers_of(path, settings, vocabularies, special)
    if settings["model"].get("tied_embeddings") and not config.share_encoder_decoder_embeddings:
        notes.append("tied_embeddings without tied_softmax: the two embeddings are equal, and trained each by itself")
    return Checkpoint("joeynmt", config, placement, tokenizers, _generation_config(settings, config), notes=notes)


def _settings(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    file = path.resolve().parent / "config.yaml"  # best.ckpt is a link
    if not file.is_file():
        file = path.with_name("config.yaml")
    if not file.is_file():
        raise UserError(f"{path}: a checkpoint of JoeyNMT; the config.yaml that training put beside it is not there.")
    settings = yaml_of(file, file.read_bytes())
    model = settings.get("model") if isinstance(settings, dict) else None
    if not isinstance(model, dict) or not all(isinstance(model.get(side), dict) for side in _SIDES):
        raise UserError(f"{file}: model, with encoder and decoder below it, is missing.")
    for side in _SIDES:
        _check(file, f"model.{side}", model[side], tensors)
    refuse_others(f"{file}: model.", model, dict.fromkeys(("tied_embeddings", "tied_softmax"), FLAG))
    for name, default in (("hidden_size", None), ("activation", "relu"), ("layer_norm", None)):
        values = [model[side].get(name, default) for side in _SIDES]
        if values[0] != values[1]:
            raise UserError(f"{file}: model: {name} is {values[0]} in the encoder, {values[1]} in the decoder.")
    if not model.get("tied_embeddings") and len({_scale(model[side]) for side in _SIDES}) > 1:
        raise UserError(f"{file}: model: embeddings.scale differs between encoder and decoder.")
    for name in ("testing", "test"):
        for penalty in ("beam_alpha", "alpha"):
            need_search(f"{file}: {name}", section(str(file), settings, name), "beam_size", penalty)
    where = f"{file}: data.special_symbols"
    symbols = section(f"{file}: data", section(str(file), settings, "data"), "special_symbols")
    texts(where, symbols, "lang_tags")
    if odd := [name for name in _DEFAULTS if not isinstance(symbols.get(name) or "", str)]:
        raise UserError(f"{where}: {odd[0]}: a text is expected, not {symbols[odd[0]]!r:.60}.")
    for side in _LANGUAGES:
        section(f"{file}: data.{side}", side_settings(settings, side), "tokenizer_cfg")
    return settings


def _check(file: Path, where: str, side: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raises UserError for settings of one side that the baseline lacks."""
    plain = {"type": ("transformer",), "alpha": (1.0,), "activation": tuple(_ACTIVATIONS)}
    refuse_others(f"{file}: {where}.", {"type": "recurrent", **side}, plain)  # what is meant where no type is named
    need_whole_numbers(f"{file}: {where}", side, ("hidden_size", "ff_size", "num_layers", "num_heads"), tensors)
    if not isinstance(side.get("embeddings"), dict):
        raise UserError(f"{file}: {where} says nothing of embeddings.")
    refuse_others(f"{file}: {where}.embeddings.", side["embeddings"], {"scale": FLAG})


def _scale(side: Mapping[str, Any]) -> bool:
    return bool(side["embeddings"].get("scale", False))


def _norm_position(path: Path, model: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Returns "pre" or "post". Where the config is silent, norms behind the stacks say that it is of version 1."""
    known = model["encoder"].get("layer_norm") or ("pre" if "decoder.layer_norm.weight" in tensors else None)
    if known not in ("pre", "post"):
        raise UserError(
            f"{path}: its config.yaml does not say model.encoder.layer_norm and model.decoder.layer_norm, and the "
            "versions of JoeyNMT mean different things by that. Write `layer_norm: post` (2.0) or `pre` into it."
        )
    return known


def _config(
    path: Path,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    source: Mapping[str, int],
    target: Mapping[str, int],
    special: Special,
) -> TransformerConfig:
    model = settings["model"]
    encoder, decoder = (model[side] for side in _SIDES)
    dropout = encoder.get("dropout", 0.1)
    tied = bool(model.get("tied_softmax"))
    return baseline_config(
        str(path),
        vocab_size=len(source),
        decoder_vocab_size=len(target),
        d_model=encoder["hidden_size"],
        layers=(encoder["num_layers"], decoder["num_layers"]),
        attention_heads=(encoder["num_heads"], decoder["num_heads"]),
        ffn_dim=(encoder["ff_size"], decoder["ff_size"]),
        norm_position=_norm_position(path, model, tensors),
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        activation_function=_ACTIVATIONS[encoder.get("activation", "relu")],
        attention_bias=True,
        layer_norm_eps=1e-6,
        scale_embedding=_scale(encoder),
        max_position_embeddings=_POSITIONS,
        share_encoder_decoder_embeddings=tied and bool(model.get("tied_embeddings")),
        tie_word_embeddings=tied,
        pad_token_id=target[special.pad],
        bos_token_id=target[special.start],
        eos_token_id=target[special.end],
        decoder_start_token_id=target[special.start],
    )


def _generation_config(settings: Mapping[str, Any], config: TransformerConfig) -> GenerationConfig:
    """Returns its search, which never says <s> and <pad>, and divides by ((5 + length) / 6)^beam_alpha."""
    testing = settings.get("testing") or settings.get("test") or {}
    beams, alpha = testing.get("beam_size") or 1, testing.get("beam_alpha", testing.get("alpha"))
    search: dict[str, Any] = {}
    if beams > 1:
        search = {"num_beams": beams, "length_penalty": max(float(alpha or 0), 0.0), "length_normalization": "gnmt"}
    return generation_config(config, bad_words_ids=[[config.pad_token_id], [config.bos_token_id]], **search)
