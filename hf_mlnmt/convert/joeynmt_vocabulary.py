"""What lies beside a checkpoint of JoeyNMT: src_vocab.txt, trg_vocab.txt, a SentencePiece model; as tokenizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_mlnmt.convert.marian_vocabulary import EOS, PAD, UNK, Side
from hf_mlnmt.convert.marian_vocabulary import tokenizers_of as with_sentencepiece
from hf_mlnmt.convert.words import Special, words_tokenizer
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError

_DEFAULTS = {"unk_token": UNK, "pad_token": PAD, "bos_token": "<s>", "eos_token": EOS}
_SIDES = ("src", "trg")


def special_tokens(path: Path, settings: Mapping[str, Any]) -> Special:
    """As config.yaml has them. Raises: UserError for prompts, which add to the embeddings."""
    symbols = (settings.get("data") or {}).get("special_symbols") or {}
    if symbols.get("sep_token"):
        raise UserError(f"{path}: data.special_symbols.sep_token: prompts are nothing that the baseline can compute.")
    names = {name: symbols.get(name) or default for name, default in _DEFAULTS.items()}
    return Special(names["pad_token"], names["bos_token"], names["eos_token"], names["unk_token"])


def read_vocabularies(path: Path, settings: Mapping[str, Any], special: Special) -> list[dict[str, int]]:
    """Token -> id for each side: the special tokens, language tags, then one token a line."""
    tags = list(((settings.get("data") or {}).get("special_symbols") or {}).get("lang_tags") or [])
    found = []
    for side in _SIDES:
        names = [f"{side}_vocab.txt", Path(str(side_settings(settings, side).get("voc_file") or "")).name]
        file = _beside(path, names)
        if file is None:
            raise UserError(f"{path}: the vocabulary {names[0]} is not beside it.")
        tokens = file.read_text(encoding="utf-8").split("\n")
        first = [special.unknown, special.pad, special.start, special.end, *tags]
        order = dict.fromkeys([*first, *(tokens[:-1] if tokens[-1] == "" else tokens)])
        found.append({token: index for index, token in enumerate(order)})
    if any(found[0][token] != found[1][token] for token in special):
        raise UserError(
            f"{path}: the special tokens have other numbers in the source's vocabulary than in the target's."
        )
    return found


def side_settings(settings: Mapping[str, Any], side: str) -> dict[str, Any]:
    """data.src or data.trg of version 2; of version 1, which names a language there, what stands in `data` itself."""
    data = settings.get("data") or {}
    found = data.get(side)
    if isinstance(found, dict):
        return found
    common = {name: data[name] for name in ("level", "lowercase") if name in data}
    return {**common, "lang": found, "voc_file": data.get(f"{side}_vocab"), "tokenizer_type": "subword-nmt"}


def tokenizers_of(
    path: Path, settings: Mapping[str, Any], vocabularies: Sequence[dict[str, int]], special: Special
) -> tuple[Tokenizers, list[str]]:
    """Tokenizers, and what a user must know of them."""
    sides = [side_settings(settings, side) for side in _SIDES]
    if odd := [side for side in sides if side.get("level") not in ("word", "bpe")]:
        raise UserError(f"{path}: data: level: {odd[0].get('level')}: word and bpe can be imported.")
    notes: list[str] = []
    pieces = [_sentencepiece(path, side) for side in sides]
    standard = (special.pad, special.end, special.unknown) == (PAD, EOS, UNK)
    if all(pieces) and standard:
        both = [Side(ids, file) for ids, file in zip(vocabularies, pieces, strict=True) if file]
        tokenizers = with_sentencepiece(both, vocabularies[0][special.pad])
    else:
        source, target = (words_tokenizer(ids, special) for ids in vocabularies)
        tokenizers = Tokenizers(source, source if vocabularies[0] == vocabularies[1] else target)
        notes += _how_to_cut(sides)
    tokenizers.processing = {
        name: TextProcessing(lowercase=bool(side.get("lowercase")))
        for name, side in zip(("source", "target"), sides, strict=True)
    }
    for name, side in zip(_SIDES, sides, strict=True):
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
        raise UserError(
            f"{path}: the SentencePiece model {Path(name).name}, which config.yaml names, is not beside it."
        )
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
