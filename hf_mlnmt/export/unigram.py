"""Writes the vocabulary of a tokenizer as a SentencePiece model of kind unigram, which Firefox's engines read.

For a tokenizer of this package the model has </s> and <unk> first, then bytes and pieces; tokens that no text has
(<pad>, <s>, <mask>, language codes) are left out. The tokenizer's normalisation of white space, invisible and composed
characters becomes rules of SentencePiece. No piece joins letters with punctuation, so both cut a text alike.
"""

import functools
import io
import json
import tempfile
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import MarianTokenizer, PreTrainedTokenizerFast

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.convert.vocabularies import sentencepiece_message
from hf_mlnmt.data.subwords import BYTES, EOS, SPECIAL_TOKENS, UNK
from hf_mlnmt.data.words import without_invisible

_MULTIPLE = 8  # the engines need a vocabulary whose size is a multiple of this
_UNIGRAM = 1
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # SentencePiece's numbers for kinds of pieces
_BYTES = frozenset(BYTES)
_STAND_INS = range(0xF0000, 0xFFFFE)  # private characters that represent placeholders (data/subwords.py)


class Vocabulary(NamedTuple):
    """A SentencePiece model, and for each piece its id in the tokenizer (None for a piece that only pads the size)."""

    model: bytes
    ids: list[int | None]


def vocabulary_of(name: str, tokenizer: Any, target: bool = False) -> Vocabulary:
    """Makes the vocabulary of a tokenizer's source or target side. Raises: UserError, naming the tokenizer `name`, for
    BPE and other kinds."""
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
    model = sentencepiece_message(_specification(fallback))
    for token, score, kind in pieces:
        model.pieces.add(piece=token, score=score, type=kind)
    return Vocabulary(model.SerializeToString(), ids)


def _of_marian(name: str, tokenizer: MarianTokenizer, target: bool) -> Vocabulary:
    model = (tokenizer.spm_target if target else tokenizer.spm_source).serialized_model_proto()
    encoder = tokenizer.target_encoder if target and tokenizer.separate_vocabs else tokenizer.encoder
    message = sentencepiece_message(model)
    if message.trainer_spec.model_type != _UNIGRAM:
        raise _of_another_kind(name, "BPE, or words,")
    pieces = [entry.piece for entry in message.pieces]
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


@functools.cache
def _specification(byte_fallback: bool) -> bytes:
    """Trains a SentencePiece model with the normalisation rules of our tokenizers; returns it without its pieces."""
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
    made = sentencepiece_message(model.getvalue())
    del made.pieces[:]
    # This field alone of the normalizer's spec is kept: another one holds the path of a temporary file.
    characters = made.normalizer_spec.precompiled_charsmap
    made.ClearField("normalizer_spec")
    made.normalizer_spec.precompiled_charsmap = characters
    return made.SerializeToString()


def _hexadecimal(text: str) -> str:
    return " ".join(f"{ord(sign):X}" for sign in text)


def _normalisation() -> dict[str, str]:
    """Returns {text: the text that our tokenizers normalise it to} for all texts that they change."""
    # All characters of Unicode but surrogates and those of planes that are empty or for private use.
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1000)]))
    forms: set[str] = set()
    for sign, parts in zip(every, map(unicodedata.decomposition, every)):
        # A text may hold a character decomposed by one step or fully: of two marks one may stay joined to its letter.
        if parts and parts[0] != "<":
            stepped = "".join(chr(int(part, 16)) for part in parts.split())
            forms |= {sign, stepped, unicodedata.normalize("NFD", sign)}
    for syllable in map(chr, range(0xAC00, 0xD7A4)):  # Hangul: all letters apart, or the first two joined
        whole = unicodedata.normalize("NFD", syllable)
        forms |= {whole, unicodedata.normalize("NFC", whole[:2]) + whole[2:]}
    rules = {form: unicodedata.normalize("NFC", form) for form in forms}
    rules |= dict.fromkeys(set(every) - set(without_invisible(every)), "")
    rules |= dict.fromkeys([*filter(str.isspace, every), "▁"], " ")
    return {text: normal for text, normal in rules.items() if text != normal}


def check_cut(name: str, vocabulary: Vocabulary, texts: Sequence[str], encoded: Sequence[Any]) -> float:
    """Returns the share of texts that SentencePiece cuts as the tokenizer did; encoded: its ids of each text with </s>.
    Raises: UserError for a share below 98 %."""
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
