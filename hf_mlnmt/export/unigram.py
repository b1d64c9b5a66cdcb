"""The vocabulary of a tokenizer as a SentencePiece model of kind unigram, which is what Firefox's engines read.

A tokenizer of ours gets </s> and <unk> in front, then its bytes and pieces; what text is never made of (<pad>, <s>,
<mask>, codes of languages) is left out. Its normalisation becomes rules of SentencePiece: white space, what nobody
sees, and Unicode's composed characters. No piece joins letters with punctuation, so nothing else cuts its text.
"""

import functools
import io
import json
import struct
import sys
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import MarianTokenizer, PreTrainedTokenizerFast

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.subwords import BYTES, EOS, SPECIAL_TOKENS, UNK
from hf_mlnmt.data.words import without_invisible

_MULTIPLE = 8  # of entries, which the engines multiply by at once
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of SentencePiece's files
_MODEL_TYPE, _CHARACTERS = 3, 2  # of the last two
_UNIGRAM = 1
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # kinds of pieces
_BYTES = frozenset(BYTES)
_STAND_INS = range(0xF0000, 0xFFFFE)  # for placeholders (data/subwords.py)


class Vocabulary(NamedTuple):
    """A SentencePiece model, and for each of its pieces the id in the tokenizer; None for one that fills it up."""

    model: bytes
    ids: list[int | None]


def vocabulary_of(name: str, tokenizer: Any, target: bool = False) -> Vocabulary:
    """Makes the vocabulary of a side. Raises: UserError for BPE and other kinds, calling the tokenizer `name`."""
    if isinstance(tokenizer, MarianTokenizer):
        return _of_marian(name, tokenizer, target)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise _of_another_kind(name, type(tokenizer).__name__)
    content = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    if content["type"] != "Unigram":
        raise _of_another_kind(name, content["type"])
    entries, fallback = content["vocab"], content["byte_fallback"]
    if any(ord(sign) in _STAND_INS for token, _ in entries for sign in token):
        raise UserError(f"{name}: has placeholders that are kept whole (tokenizer.keep), which Firefox's engines lack.")
    left_out = {*SPECIAL_TOKENS, *tokenizer.get_added_vocab()}
    ids: list[int | None] = [tokenizer.eos_token_id, tokenizer.unk_token_id]
    pieces = [(EOS, 0.0, _CONTROL), (UNK, 0.0, _UNKNOWN)]
    for index, (token, score) in enumerate(entries):
        if token not in left_out:
            ids.append(index)
            pieces.append((token, score, _BYTE if fallback and token in _BYTES else _NORMAL))
    for number in range(-len(pieces) % _MULTIPLE):
        ids.append(None)
        pieces.append((f"<unused{number}>", 0.0, _CONTROL))
    return Vocabulary(b"".join(_piece(*each) for each in pieces) + _specification(fallback), ids)


def _of_marian(name: str, tokenizer: MarianTokenizer, target: bool) -> Vocabulary:
    model = (tokenizer.spm_target if target else tokenizer.spm_source).serialized_model_proto()
    encoder = tokenizer.target_encoder if target and tokenizer.separate_vocabs else tokenizer.encoder
    fields = list(_fields(model))
    if any(dict(_fields(value)).get(_MODEL_TYPE, _UNIGRAM) != _UNIGRAM for field, value in fields if field == _TRAINER):
        raise _of_another_kind(name, "BPE, or words,")
    pieces = [dict(_fields(value))[1].decode() for field, value in fields if field == _PIECES]
    if missing := [piece for piece in pieces if piece not in encoder]:
        raise UserError(
            f"{name}: its vocabulary lacks {len(missing)} pieces of its SentencePiece model, as {missing[0]!r}: an "
            "engine that reads that model alone would number others otherwise."
        )
    return Vocabulary(model, [encoder[piece] for piece in pieces])


def _of_another_kind(name: str, kind: str) -> UserError:
    return UserError(
        f"{name}: is of kind {kind}, which Firefox's engines cut otherwise than it was trained. Train a student with a "
        "unigram one: in its recipe, tokenizer: {kind: unigram}."
    )


def _piece(token: str, score: float, kind: int) -> bytes:
    """Returns a piece as a SentencePiece model has it: its text, score and kind are fields 1, 2 and 3."""
    return _part(_PIECES, _part(1, token.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + _varint(kind))


def _part(field: int, content: bytes) -> bytes:
    """Returns a field of protocol buffers that holds bytes."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


@functools.cache
def _specification(byte_fallback: bool) -> bytes:
    """Returns what a SentencePiece model says beside its pieces, of one that is trained on nothing with our rules."""
    import sentencepiece

    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as scratch:
        rules = Path(scratch) / "rules.tsv"
        lines = (f"{_hexadecimal(text)}\t{_hexadecimal(normal)}\n" for text, normal in _normalisation().items())
        rules.write_text("".join(lines))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a"]),
            model_writer=model,
            vocab_size=264,
            hard_vocab_limit=False,
            byte_fallback=byte_fallback,
            bos_id=-1,
            eos_id=0,
            unk_id=1,
            pad_id=-1,
            normalization_rule_tsv=str(rules),
            minloglevel=2,
        )
    parts = dict(_fields(model.getvalue()))
    characters = dict(_fields(parts[_NORMALIZER]))[_CHARACTERS]  # beside them stands the path of the rules
    return _part(_TRAINER, parts[_TRAINER]) + _part(_NORMALIZER, _part(_CHARACTERS, characters))


def _hexadecimal(text: str) -> str:
    return " ".join(f"{ord(sign):X}" for sign in text)


def _normalisation() -> dict[str, str]:
    """Returns which runs of characters our tokenizers read as which others."""
    every = "".join(chr(number) for number in range(sys.maxunicode + 1) if not 0xD800 <= number < 0xE000)
    forms: set[str] = set()
    for sign in every:
        parts = unicodedata.decomposition(sign)
        if parts and not parts.startswith("<"):  # one step and all: an e with two marks has one in between
            stepped = "".join(chr(int(part, 16)) for part in parts.split())
            forms |= {sign, stepped, unicodedata.normalize("NFD", sign)}
        elif "\uac00" <= sign <= "\ud7a3":  # a Korean syllable, or its first two letters joined and the third
            whole = unicodedata.normalize("NFD", sign)
            forms |= {whole, unicodedata.normalize("NFC", whole[:2]) + whole[2:]}
    rules = {form: unicodedata.normalize("NFC", form) for form in forms}
    rules |= dict.fromkeys(set(every) - set(without_invisible(every)), "")
    rules |= dict.fromkeys([*filter(str.isspace, every), "▁"], " ")
    return {text: normal for text, normal in rules.items() if text != normal}


def _varint(number: int) -> bytes:
    """Returns a number as protocol buffers have it: 7 bits a byte, the lowest first."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields number and value of each field of a message in protocol buffers: whole numbers, or bytes of any other."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while message[at] > 127:
            value |= (message[at] & 127) << shift
            at, shift = at + 1, shift + 7
        at += 1
        return value | message[at - 1] << shift

    while at < len(message):
        key = number()
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            yield key >> 3, number()
            continue
        size = number() if size is None else size
        yield key >> 3, message[at : at + size]
        at += size


def check_cut(name: str, vocabulary: Vocabulary, texts: Sequence[str], encoded: Sequence[Any]) -> float:
    """Returns the share of texts that the vocabulary cuts as they are `encoded` (ids with </s>). Raises: UserError
    where it is less than 98 %."""
    import sentencepiece

    engine = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
    cut = [[vocabulary.ids[piece] for piece in pieces] for pieces in engine.encode(list(texts))]
    same = sum(ours[:-1].tolist() == theirs for ours, theirs in zip(encoded, cut, strict=True)) / len(texts)
    if same < 0.98:
        raise UserError(
            f"{name}: of the texts SentencePiece cuts {1 - same:.1%} otherwise than this tokenizer, so the engine "
            "would read other subwords. Train the student with a tokenizer of ours: tokenizer: {kind: unigram}."
        )
    return round(same, 4)
