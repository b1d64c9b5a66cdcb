"""fairseq's Transformer (arch transformer...): checkpoint .pt with its settings, dict.*.txt beside it.

Not compared with fairseq itself, which was not at hand: Transformers' M2M100 and BART, which are ports of it, are the
reference of the tests. The layout is that of fairseq 0.9 to 0.12: `model` (tensors), and `args` (a Namespace) or `cfg`.
dict.*.txt, with the SentencePiece model that cut the text where there is one, become tokenizers.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_mlnmt.convert.checkpoint import (
    FAIRSEQ_DECODER,
    FAIRSEQ_ENCODER,
    FLAG,
    OFF,
    Checkpoint,
    Move,
    Placement,
    baseline_config,
    generation_config,
    need_whole_numbers,
    place_embeddings,
    refuse_others,
    stacks,
    weights_of,
)
from hf_mlnmt.convert.vocabularies import Side, Special, word_tokenizers
from hf_mlnmt.convert.vocabularies import tokenizers_of as with_sentencepiece
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError
from hf_mlnmt.modeling import TransformerConfig

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
START, PAD, EOS, UNK = range(4)
_MOST_POSITIONS = 1_000_000
_NOTE = (
    "fairseq's dictionaries do not say how text was cut into subwords: give text that is cut already, subwords "
    "separated by spaces; translations come out like that"
)


def read_dictionaries(path: Path, settings: Mapping[str, Any]) -> list[Side]:
    """Reads the source's and the target's: dict.<language>.txt, or the one dict.txt."""
    dictionaries = []
    for option in ("source_lang", "target_lang"):
        names = (f"dict.{settings.get(option)}.txt", "dict.txt")
        file = next((path.parent / name for name in names if (path.parent / name).is_file()), None)
        if file is None:
            raise UserError(f"{path}: the dictionary {' or '.join(names)} is not beside it.")
        spm = [*sorted(path.parent.glob("*.model")), *sorted(path.parent.glob("*.spm"))]
        if len(spm) > 1:
            raise UserError(f"{path}: several SentencePiece models lie beside it; leave the one that cut both sides.")
        dictionaries.append(Side(_read(file), spm[0] if spm else file))
    return dictionaries


def _read(file: Path) -> dict[str, int]:
    """Reads a token and its count from each line, which ends at \\n alone; four special tokens come first."""
    tokens = list(SPECIAL)
    try:
        lines = file.read_bytes().decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 ({error}). Give the dictionary that fairseq wrote.") from error
    for number, line in enumerate(lines, 1):
        token, _, count = line.removesuffix("\r").removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not token or not count.lstrip("-").isdigit():
            raise UserError(f"{file}, line {number}: a token and its count are expected, not {line!r}.")
        tokens.append(token)
    if len(set(tokens)) < len(tokens):
        raise UserError(f"{file}: a token stands there twice.")
    return {token: index for index, token in enumerate(tokens)}


def tokenizers_of(path: Path, sides: list[Side]) -> tuple[Tokenizers, list[str]]:
    """Returns tokenizers, and what a user must know of them."""
    if sides[0].spm.suffix in (".model", ".spm"):
        return with_sentencepiece(sides, PAD), []
    names = Special(pad=SPECIAL[PAD], start=SPECIAL[START], end=SPECIAL[EOS], unknown=SPECIAL[UNK])
    return word_tokenizers([side.ids for side in sides], names), [_NOTE]


# What the baseline cannot do, if it is set to anything else than these.
_PLAIN: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("adaptive_softmax_cutoff", "encoder_layers_to_keep", "decoder_layers_to_keep"), (None,)),
    **dict.fromkeys(("no_token_positional_embeddings", "no_cross_attention", "cross_self_attention"), OFF),
    **dict.fromkeys(("no_decoder_final_norm", "char_inputs"), OFF),
    **dict.fromkeys(("share_all_embeddings", "share_decoder_input_output_embed", "no_scale_embedding"), FLAG),
    **dict.fromkeys(("encoder_learned_pos", "encoder_normalize_before", "layernorm_embedding"), FLAG),
}


def read(path: Path, content: Mapping[str, Any]) -> Checkpoint:
    """Reads a file's content; the dictionaries lie beside it. Raises: UserError for what the baseline lacks."""
    settings = _settings(path, content)
    tensors = weights_of(f"{path}: model", content["model"])
    dictionaries, more = read_dictionaries(path, settings), []
    sizes = [len(each.ids) for each in dictionaries]
    if settings.get("share_all_embeddings") and dictionaries[0].ids != dictionaries[1].ids:
        raise UserError(f"{path}: its sides share their embeddings, but their dictionaries beside it differ.")
    for place, side in enumerate(("encoder", "decoder")):
        table = tensors.get(f"{side}.embed_tokens.weight")
        if table is not None and len(table) > sizes[place]:
            more.append(f"{side}.embed_tokens.weight has {len(table)} rows, its dictionary {sizes[place]} tokens")
            sizes[place] = len(table)
    config = _config(path, settings, sizes, tensors)
    placement = Placement(str(path), tensors)
    placement.move(stacks(config, FAIRSEQ_ENCODER, FAIRSEQ_DECODER))
    for side in ("encoder", "decoder"):
        placement.leave_out(f"{side}.version", "the version of fairseq's layout")
        placement.leave_out(f"{side}.embed_positions._float_tensor", "tells fairseq its device")
        if config.position_embedding == "learned":
            ours, theirs = f"model.{side}.positions.table", f"{side}.embed_positions.weight"
            placement.move([Move(ours, (theirs,))])
            placement.state[ours] = placement.state[ours][PAD + 1 :]  # without the rows of padding and before it
    earlier = "decoder.embed_out"  # what earlier versions call the output
    output = earlier if earlier in tensors else "decoder.output_projection.weight"
    place_embeddings(placement, config, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", output)
    tokenizers, notes = tokenizers_of(path, dictionaries)
    return Checkpoint(
        "fairseq", config, placement, tokenizers, generation_config(config, num_beams=5), notes=notes + more
    )


def _settings(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `args`, or cfg.model of later versions, as a mapping."""
    settings = content.get("args")
    if settings is None and isinstance(content.get("cfg"), Mapping):
        settings = content["cfg"].get("model")
    settings = vars(settings) if isinstance(settings, argparse.Namespace) else settings
    if not isinstance(settings, Mapping):
        raise UserError(f"{path}: holds neither args nor cfg.model, which say what the model is.")
    name = str(settings.get("arch") or settings.get("_name") or "")
    if not name.startswith(("transformer", "bart", "mbart")) or "lm" in name.split("_"):
        raise UserError(f"{path}: arch {name or 'unknown'}: of fairseq's models, its Transformers can be imported.")
    refuse_others(f"{path}: ", settings, _PLAIN)
    for option in ("embed_dim", "normalize_before", "learned_pos"):
        if settings.get(f"encoder_{option}") != settings.get(f"decoder_{option}"):
            raise UserError(f"{path}: encoder_{option} and decoder_{option} differ, which the baseline cannot do.")
    return dict(settings)


def _config(
    path: Path, settings: Mapping[str, Any], sizes: list[int], tensors: Mapping[str, Tensor]
) -> TransformerConfig:
    learned = bool(settings.get("encoder_learned_pos"))
    shared = bool(settings.get("share_all_embeddings"))
    names = ("layers", "attention_heads", "ffn_embed_dim")
    pairs = {name: (f"encoder_{name}", f"decoder_{name}") for name in names}
    needed = ["encoder_embed_dim", *(name for pair in pairs.values() for name in pair)]
    need_whole_numbers(f"{path}: its settings", settings, needed, tensors)
    layers, heads, widths = ((settings[first], settings[second]) for first, second in pairs.values())
    positions = [settings.get(f"max_{side}_positions") or 1024 for side in ("source", "target")]
    if odd := [value for value in positions if not (isinstance(value, int) and 0 < value <= _MOST_POSITIONS)]:
        raise UserError(f"{path}: max_source_positions or max_target_positions: {odd[0]!r:.60} is no length.")
    return baseline_config(
        str(path),
        vocab_size=sizes[0],
        decoder_vocab_size=sizes[1],
        d_model=settings["encoder_embed_dim"],
        layers=layers,
        attention_heads=heads,
        ffn_dim=widths,
        norm_position="pre" if settings.get("encoder_normalize_before") else "post",
        dropout=settings.get("dropout", 0.1),
        attention_dropout=settings.get("attention_dropout", 0.0),
        activation_dropout=settings.get("activation_dropout", 0.0) or settings.get("relu_dropout", 0.0),
        activation_function=settings.get("activation_fn", "relu"),
        attention_bias=True,
        scale_embedding=not settings.get("no_scale_embedding", False),
        normalize_embedding=bool(settings.get("layernorm_embedding", False)),
        position_embedding="learned" if learned else "tensor2tensor",
        position_offset=0 if learned else PAD + 1,
        max_position_embeddings=max(positions),
        share_encoder_decoder_embeddings=shared,
        tie_word_embeddings=shared or bool(settings.get("share_decoder_input_output_embed")),
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
    )
