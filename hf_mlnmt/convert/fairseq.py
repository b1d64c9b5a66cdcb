"""Imports fairseq's Transformers (arch transformer...): a checkpoint .pt with settings, and dict.*.txt beside it.

fairseq itself was not at hand to compare with: the tests' reference are Transformers' M2M100 and BART, ports of it. The
layout is that of fairseq 0.9 to 0.12: `model` (tensors), and `args` (a Namespace) or `cfg`. dict.*.txt, and the
SentencePiece model that cut the text if it lies there too, become tokenizers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.convert.checkpoint import (
    FAIRSEQ_DECODER,
    FAIRSEQ_ENCODER,
    FLAG,
    OFF,
    Checkpoint,
    Move,
    Placement,
    Settings,
    baseline_config,
    generation_config,
    stacks,
    weights_of,
)
from hf_mlnmt.convert.vocabularies import Special, cut_tokenizers, numbered
from hf_mlnmt.modeling import TransformerConfig

SPECIAL = Special(start="<s>", pad="<pad>", end="</s>", unknown="<unk>")
START, PAD, EOS = range(3)  # ids of the special tokens in every dictionary; <unk> has 3
_MOST_POSITIONS = 1_000_000
# Values of settings that the baseline can compute; others are refused.
_PLAIN: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("adaptive_softmax_cutoff", "encoder_layers_to_keep", "decoder_layers_to_keep"), (None,)),
    **dict.fromkeys(("no_token_positional_embeddings", "no_cross_attention", "cross_self_attention"), OFF),
    **dict.fromkeys(("no_decoder_final_norm", "char_inputs"), OFF),
    **dict.fromkeys(("share_all_embeddings", "share_decoder_input_output_embed", "no_scale_embedding"), FLAG),
    **dict.fromkeys(("encoder_learned_pos", "encoder_normalize_before", "layernorm_embedding"), FLAG),
}


def read(path: Path, content: Mapping[str, Any]) -> Checkpoint:
    """Makes a Checkpoint of the content of fairseq's file and of the dictionaries beside the file.

    Raises: UserError for missing dictionaries, and for settings that the baseline cannot compute.
    """
    settings = _settings(path, content)
    tensors = weights_of(f"{path}: model", content["model"])
    dictionaries, notes = _dictionaries(path, settings), []
    sizes = [len(ids) for ids in dictionaries]
    if settings.get("share_all_embeddings") and dictionaries[0] != dictionaries[1]:
        raise UserError(f"{path}: its sides share their embeddings, but their dictionaries beside it differ.")
    for place, side in enumerate(("encoder", "decoder")):
        table = tensors.get(f"{side}.embed_tokens.weight")
        if table is not None and len(table) > sizes[place]:
            notes.append(f"{side}.embed_tokens.weight has {len(table)} rows, its dictionary {sizes[place]} tokens")
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
            placement.state[ours] = placement.state[ours][PAD + 1 :]  # drops the rows for padding and for ids before it
    earlier = "decoder.embed_out"  # the output projection's name in earlier versions of fairseq
    output = earlier if earlier in tensors else "decoder.output_projection.weight"
    placement.move_embeddings(config, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", output)
    tokenizers, said = cut_tokenizers(path, dictionaries, SPECIAL)
    notes = [*said, *notes]
    return Checkpoint("fairseq", config, placement, tokenizers, generation_config(config, num_beams=5), notes=notes)


def _settings(path: Path, content: Mapping[str, Any]) -> Settings:
    """Returns the model's settings: `args` of a checkpoint, or `cfg.model` of later versions."""
    args = content.get("args")
    if args is None and isinstance(content.get("cfg"), Mapping):
        args = content["cfg"].get("model")
    settings = Settings(f"{path}: ", args)
    name = settings.text("arch", settings.text("_name"))
    if not name.startswith(("transformer", "bart", "mbart")) or "lm" in name.split("_"):
        raise UserError(f"{path}: arch {name or 'unknown'}: of fairseq's models, its Transformers can be imported.")
    settings.check(_PLAIN)
    for name in ("embed_dim", "normalize_before", "learned_pos"):
        settings.check_alike([name], *({name: settings.get(f"{side}_{name}")} for side in ("encoder", "decoder")))
    return settings


def _dictionaries(path: Path, settings: Settings) -> list[dict[str, int]]:
    """Reads the dictionaries of source and target: dict.<language>.txt, or one dict.txt for both."""
    sides = []
    for option in ("source_lang", "target_lang"):
        names = (f"dict.{settings.get(option)}.txt", "dict.txt")
        file = next((path.parent / name for name in names if (path.parent / name).is_file()), None)
        if file is None:
            raise UserError(f"{path}: the dictionary {' or '.join(names)} is not beside it.")
        sides.append(read_dictionary(file))
    return sides


def read_dictionary(file: Path) -> dict[str, int]:
    """Returns {token: id} of a dictionary: four special tokens, then those of its lines, each a token and its count.

    Raises: UserError for a file that is not UTF-8, or a line of another form. Lines end at \\n alone.
    """
    tokens = [SPECIAL.start, SPECIAL.pad, SPECIAL.end, SPECIAL.unknown]
    try:
        lines = file.read_bytes().decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 ({error}). Give the dictionary that fairseq wrote.") from error
    for number, line in enumerate(lines, 1):
        token, _, count = line.removesuffix("\r").removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not token or not count.lstrip("-").isdigit():
            raise UserError(f"{file}, line {number}: a token and its count are expected, not {line!r}.")
        tokens.append(token)
    return numbered(str(file), tokens)


def _config(path: Path, settings: Settings, sizes: list[int], tensors: Mapping[str, Tensor]) -> TransformerConfig:
    learned, shared = bool(settings.get("encoder_learned_pos")), bool(settings.get("share_all_embeddings"))
    names = [(f"encoder_{name}", f"decoder_{name}") for name in ("layers", "attention_heads", "ffn_embed_dim")]
    settings.check_numbers(["encoder_embed_dim", *(name for pair in names for name in pair)], tensors)
    layers, heads, widths = ((settings[encoder], settings[decoder]) for encoder, decoder in names)
    positions = [settings.get(f"max_{side}_positions") or 1024 for side in ("source", "target")]
    if odd := [value for value in positions if not (isinstance(value, int) and 0 < value <= _MOST_POSITIONS)]:
        raise UserError(f"{path}: max_source_positions or max_target_positions: {odd[0]!r:.60} is no length.")
    return baseline_config(
        str(path),
        (PAD, START, EOS, EOS),
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
        scale_embedding=not settings.get("no_scale_embedding", False),
        normalize_embedding=bool(settings.get("layernorm_embedding", False)),
        position_embedding="learned" if learned else "tensor2tensor",
        position_offset=0 if learned else PAD + 1,
        max_position_embeddings=max(positions),
        share_encoder_decoder_embeddings=shared,
        tie_word_embeddings=shared or bool(settings.get("share_decoder_input_output_embed")),
    )
