"""Trains a BPE or unigram tokenizer that AutoTokenizer loads without this package.

What normalisation does (and so what decoding cannot bring back): Unicode NFC; every run of white space (tabs, newlines,
no-break and other Unicode spaces) and of U+2581, the mark of a word's beginning, becomes one space; none is kept at the
ends. With byte fallback everything else comes back as it was; without it, characters never seen in training are <unk>.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.words import cut_into_pieces, without_invisible

log = logging.getLogger(__name__)
PAD, EOS, UNK, BOS, MASK = SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>", "<s>", "<mask>")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
MAX_LENGTH = 1024  # model_max_length; a tokenizer saved with a model gets the model's max_position_embeddings
DIGITS = "digits"  # the value in train_tokenizer's `keep` that makes each digit a piece
_MOST = 10**6
_ORDINARY = 256  # up to so many different characters, rare ones are never left out
_DECIMALS = 5  # a unigram's scores are rounded to so many decimals, because sums depend on their order
_RARE = 3  # characters that occur fewer times get no entry where there are too many characters
# Pieces never join letters or digits with punctuation, so "house." and "house" share one.
_PUNCTUATION = r"▁?[^▁\p{L}\p{M}\p{N}]+"

Kind = Literal["bpe", "unigram"]


def train_tokenizer(
    texts: Iterable[str] | Callable[[], Iterable[str]],
    kind: Kind = "bpe",
    vocab_size: int = 8000,
    languages: Sequence[str] = (),
    byte_fallback: bool = True,
    alphabet_limit: int | None = None,
    progress: bool = False,
    tags: Sequence[str] = (),
    keep: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """Trains a tokenizer on lines of text: an iterable, or a function that returns one at each call. Lines are not held
    in memory, but for those of an iterator for a unigram with `alphabet_limit`.

    `vocab_size` counts everything: 5 special tokens, a code `<2xx>` for each of `languages`, the 256 bytes when
    `byte_fallback`, the alphabet and the learnt pieces; less comes out when the text is too small for more.
    `alphabet_limit` keeps only the most frequent characters, the rest becomes bytes or <unk>. Unless told, where bytes
    stand in for the rest and characters would fill more than an eighth of the vocabulary, the rare ones are left out;
    for that the text is read twice, so that of an iterator, which is read once, all stay.
    `keep` are placeholders, as {name}, that are never cut; "digits" makes each digit a piece of its own.
    `tags` are further tokens of which text is never made, such as <bt>.
    Ids: <pad> 0, </s> 1, <unk> 2, <s> 3, <mask> 4, then language codes, then tags. "text" is encoded as "text </s>".
    The same text gives the same tokenizer each time, however many threads learn it.
    Raises UserError when there is no text or the vocabulary cannot hold the alphabet.
    """
    codes = [*map(code_of, languages), *dict.fromkeys(tags)]
    reserved = [*SPECIAL_TOKENS, *codes, *(BYTES if byte_fallback else [])]
    _check(kind, languages, tags, keep, [*SPECIAL_TOKENS, *codes])
    _check_sizes(vocab_size, alphabet_limit, len(reserved), byte_fallback)
    asked = _Asked(vocab_size, reserved, byte_fallback, alphabet_limit, keep, progress)
    backend = _backend(_learn(kind, texts, asked), [*SPECIAL_TOKENS, *codes], keep)
    size = backend.get_vocab_size()
    if size > vocab_size:
        raise UserError(f"vocab_size: {vocab_size} cannot hold the {size} entries: take as many, or an alphabet_limit.")
    if size < 0.9 * vocab_size:
        log.warning("vocab_size: %s entries were asked for, and this text gives %s.", f"{vocab_size:,}", f"{size:,}")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        bos_token=BOS,
        mask_token=MASK,
        extra_special_tokens=codes,
        split_special_tokens=True,  # "</s>" in a text is read as text, not as the token
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def _check(
    kind: str, languages: Sequence[str], tags: Sequence[str], keep: Sequence[str], special: Sequence[str]
) -> None:
    if kind not in ("bpe", "unigram"):
        raise UserError(f"kind: '{kind}' is not known; choose 'bpe' or 'unigram'.")
    for name, value in {"languages": languages, "tags": tags, "keep": keep}.items():
        if isinstance(value, str):
            raise UserError(f"{name}: expected a list, not {value!r}.")
    if len(set(languages)) < len(languages):
        raise UserError(f"languages: {', '.join(languages)} names one twice; name each once.")
    for tag in tags:
        if not re.fullmatch(r"<[A-Za-z][\w-]*>", tag) or tag in SPECIAL_TOKENS:
            raise UserError(f"tags: {tag!r} cannot be one: letters and digits between < and > are expected, as <bt>.")
    for name in keep:
        if not re.fullmatch(r"[^\s▁]{1,100}", name) or name in special or name != unicodedata.normalize("NFC", name):
            raise UserError(f"keep: {name!r} cannot be kept whole: expected a placeholder, as {{name}}, or digits.")


def _check_sizes(vocab_size: int, alphabet_limit: int | None, reserved: int, byte_fallback: bool) -> None:
    if vocab_size <= reserved:
        raise UserError(
            f"vocab_size: {vocab_size} leaves no room beside {reserved} reserved entries (special tokens, language "
            f"codes{', 256 bytes' if byte_fallback else ''}); take at least {reserved + 100}"
            f"{', or switch byte_fallback off' if byte_fallback else ''}."
        )
    for name, value in {"vocab_size": vocab_size, "alphabet_limit": alphabet_limit or 0}.items():
        if value > _MOST:  # the tokenizers library allocates memory for every entry, or aborts the process
            raise UserError(f"{name}: {value} is more than a million, the most that a tokenizer has here.")


def _learn(kind: Kind, texts: Iterable[str] | Callable[[], Iterable[str]], asked: _Asked) -> Any:
    """Trains a model of subwords; where there are too many characters, again without the rare ones."""
    train = _train_bpe if kind == "bpe" else _train_unigram
    once = not callable(texts) and iter(texts) is texts
    read = texts if callable(texts) else texts.__iter__
    limit, most = asked.limit, None  # most: with more characters, training restarts without the rare ones
    if limit is not None and kind == "unigram":
        read, most = list(read()).__iter__ if once else read, 0
    elif limit is None and asked.byte_fallback and not once:
        most = max(_ORDINARY, asked.size // 8)

    def again() -> Iterator[str]:
        lines = map(without_invisible, read())
        first = list(itertools.islice(lines, 1000))
        if problem := cut_into_pieces(first):
            log.warning("the text of the tokenizer: %s", problem)
        return itertools.chain(first, lines)

    counts: Counter[str] = Counter()
    try:
        return train(_some(_counted(again(), counts, most)), asked)
    except _Crowded:
        ranks = sorted(counts, key=lambda character: (-counts[character], character))[:limit]
        least = max(_RARE, counts.total() // (32 * asked.size)) if limit is None else 0
        frequent = {character for character in ranks if counts[character] >= least}
        rare = dict.fromkeys(map(ord, counts.keys() - frequent), " ")
        return train(_some(line.translate(rare) for line in again()), asked)


def code_of(language: str) -> str:
    """Returns the code token of a language: "de" -> "<2de>". Raises: UserError for a name that cannot be a code."""
    if not re.fullmatch(r"[A-Za-z0-9]+([_-][A-Za-z0-9]+)*", language):
        raise UserError(
            f"language '{language}': a code of letters, digits, '-' and '_' is expected, such as de or pt-BR."
        )
    return f"<2{language}>"


class _Crowded(Exception):
    """Raised when there are more characters than a vocabulary should hold."""


def _counted(texts: Iterable[str], counts: Counter[str], most: int | None) -> Iterator[str]:
    """Yields the texts; raises _Crowded at their end when they have more than `most` characters, which are counted."""
    for text in texts:
        if most is not None:
            counts.update(text)
        yield text
    if most is not None and len(counts) > most:
        raise _Crowded


def _stand_ins(keep: Sequence[str]) -> dict[str, str]:
    """Returns {placeholder: character of plane 15, which no text has, that stands for it in the tokenizer}."""
    names = sorted({name for name in keep if name != DIGITS}, key=lambda name: (-len(name), name))
    return {name: chr(0xF0000 + number) for number, name in enumerate(names)}


def _some(texts: Iterable[str]) -> Iterator[str]:
    """Returns the texts that are not empty. Raises UserError when there is none."""
    iterator = (text for text in texts if text.strip())
    first = next(iterator, None)
    if first is None:
        raise UserError("No text to train a tokenizer on: every line is empty. Check the files.")
    return itertools.chain([first], iterator)


def _prepare(model: Any, keep: Sequence[str]) -> Tokenizer:
    backend = Tokenizer(model)
    kept = [normalizers.Replace(name, sign) for name, sign in _stand_ins(keep).items()]
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"[\s▁]+"), " "), normalizers.Strip(), *kept]
    )
    alone = [r"▁?[\x{F0000}-\x{FFFFD}]"] * bool(kept) + [r"▁?\p{N}"] * (DIGITS in keep) + [_PUNCTUATION]
    # "always": a text after a language code begins with the mark of a word, too.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="always"),
            *(pre_tokenizers.Split(Regex(each), "isolated") for each in alone),
        ]
    )
    return backend


def _backend(model: Any, special: list[str], keep: Sequence[str]) -> Tokenizer:
    """Returns the finished tokenizer: normaliser, pre-tokenizer, model, end of sentence, decoder."""
    backend = _prepare(model, keep)
    backend.add_special_tokens(special)
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, SPECIAL_TOKENS.index(EOS))]
    )
    kept = [decoders.Replace(sign, name) for name, sign in _stand_ins(keep).items()]
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0), *kept]
    )
    return backend


class _Asked(NamedTuple):
    """The settings that a subword model is trained with; `reserved`: entries before those that are learnt."""

    size: int
    reserved: list[str]
    byte_fallback: bool
    limit: int | None
    keep: Sequence[str]
    progress: bool


def _train_bpe(texts: Iterable[str], asked: _Asked) -> Any:
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer

    trained = _prepare(BPE(unk_token=UNK), asked.keep)
    limit: dict[str, Any] = {} if asked.limit is None else {"limit_alphabet": asked.limit}
    trainer = BpeTrainer(
        vocab_size=asked.size,
        special_tokens=asked.reserved,
        min_frequency=2,
        initial_alphabet=list(_stand_ins(asked.keep).values()),
        show_progress=asked.progress,
        **limit,
    )  # type: ignore[call-arg]
    trained.train_from_iterator(texts, trainer)
    learnt = json.loads(trained.to_str())["model"]
    # Builds the model anew: bytes, if they were special tokens, would be skipped in decoding and found in raw text.
    merges = [tuple(merge) for merge in learnt["merges"]]
    return BPE(learnt["vocab"], merges, unk_token=UNK, byte_fallback=asked.byte_fallback, fuse_unk=False)


def _train_unigram(texts: Iterable[str], asked: _Asked) -> Any:
    from tokenizers.models import Unigram
    from tokenizers.trainers import UnigramTrainer

    trained = _prepare(Unigram(), asked.keep)
    trainer = UnigramTrainer(
        vocab_size=asked.size - len(asked.reserved) + 1,
        special_tokens=[UNK],
        unk_token=UNK,
        initial_alphabet=list(_stand_ins(asked.keep).values()),
        show_progress=asked.progress,
    )  # type: ignore[call-arg]
    try:
        trained.train_from_iterator(texts, trainer)
    except BaseException as error:  # a panic in Rust is a BaseException, no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit, UserError, _Crowded)):
            raise
        raise UserError(
            f"Unigram training failed ({error}); the text may be too small: add text or take 'bpe'."
        ) from error
    learnt = json.loads(trained.to_str())["model"]["vocab"]
    pieces = _in_one_order({piece: round(score, _DECIMALS) for piece, score in learnt if piece != UNK})
    # Reserved entries may have any score: no text is cut into them, since the pre-tokenizer cuts it at "<" and ">".
    vocabulary = [(token, 0.0) for token in asked.reserved] + pieces
    return Unigram(vocabulary, unk_id=SPECIAL_TOKENS.index(UNK), byte_fallback=asked.byte_fallback)


def _in_one_order(scores: dict[str, float]) -> list[tuple[str, float]]:
    """Returns the pieces of a unigram model with their scores, highest first, the same at each training.

    The trainer adds numbers up in the order of a hash table, and in that order gives scores to characters that it would
    leave out (the least score, and a ten thousandth more for each). So the caller rounds scores, and the least scores
    of single characters are given to these in the order of Unicode.
    """
    least = min(scores.values(), default=0.0)
    single = sorted(piece for piece in scores if len(piece) == 1)
    rare = [piece for piece in single if scores[piece] <= least + len(single) * 1e-4]
    scores |= zip(rare, sorted(scores[piece] for piece in rare))
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
