"""Trains (see subwords.py), saves, loads and checks the tokenizers of a model folder; encodes and decodes by them."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.files import atomic_path
from hf_mlnmt.common.made_from import Digest
from hf_mlnmt.common.model_folder import (
    CONFIG,
    LANGUAGE_TOKENIZERS,
    TARGET_TOKENIZER,
    TEXT_PROCESSING,
    TOKENIZERS,
    fetch_small_files,
    first_line,
    note_tokenizers,
    read_part,
    trusted,
)
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.data.encoded import Rows
from hf_mlnmt.data.filters import FilterReport
from hf_mlnmt.data.processing import Side, TextProcessing, cut, load_processing, save_processing
from hf_mlnmt.data.subwords import BYTES, MASK, code_of, train_tokenizer
from hf_mlnmt.data.tables import side_by_side
from hf_mlnmt.data.words import joined, without_invisible, words
from hf_mlnmt.modeling.tokenization import PARTS, POINTER, TranslationTokenizer, languages_of

log = logging.getLogger(__name__)
_BATCH = 1000
_ROUNDED = 128
EXPECTS = "expects_text"  # key in tokenizer_config.json: how text must be cut before a tokenizer of words reads it


@dataclass
class Tokenizers:
    """The tokenizers of both sides: `target` is `source` when the vocabulary is joint.

    `processing` has the keys "source" and "target": what is done to text before `encode` and undone after decoding.
    `each`: language -> its tokenizer, where every language has its own (`of_languages`); `between` then returns those
    of two languages. `tell`: returns those of two languages for a model that is told its languages (directions.py);
    `front`: the ids before every source that tell it.
    """

    source: PreTrainedTokenizerBase
    target: PreTrainedTokenizerBase
    processing: dict[str, TextProcessing] = field(default_factory=dict)
    each: dict[str, PreTrainedTokenizerBase] = field(default_factory=dict)
    tell: Callable[[Tokenizers, str | None, str | None], Tokenizers] | None = None
    front: tuple[int, ...] = ()

    @classmethod
    def of_languages(cls, each: dict[str, PreTrainedTokenizerBase]) -> Tokenizers:
        """Returns Tokenizers with one for each language; `source` and `target`, asked for special tokens, are the first
        language's."""
        first = next(iter(each.values()))
        return cls(first, first, each=dict(each))

    def between(self, source: str | None, target: str | None) -> Tokenizers:
        """Returns the tokenizers to use for two languages: those of these languages if every language has its own, what
        `tell` returns if the model is told its languages, else this object.

        Raises: UserError for a language without one, or without a code, listing those there are.
        """
        if self.tell is not None:
            return self.tell(self, source, target)
        if not self.each:
            return self
        for language in (source, target):
            if language not in self.each:
                raise UserError(f"language {language}: there is no tokenizer of it, only of {', '.join(self.each)}.")
        return Tokenizers(self.each[str(source)], self.each[str(target)], self.processing)

    def __post_init__(self) -> None:
        self.processing = {side: self.processing.get(side) or TextProcessing() for side in ("source", "target")}

    @property
    def joint(self) -> bool:
        """Returns whether both sides share one vocabulary."""
        return self.source is self.target and not self.each

    def distinct(self) -> list[PreTrainedTokenizerBase]:
        """Returns every tokenizer, once."""
        every = (self.source, self.target, *self.each.values())
        return list({id(tokenizer): tokenizer for tokenizer in every}.values())

    def by_name(self) -> dict[str, PreTrainedTokenizerBase]:
        """Returns {language, or "source" or "target": tokenizer}; a joint tokenizer is named "source" only."""
        sides = {"source": self.source} if self.joint else {"source": self.source, "target": self.target}
        return self.each or sides

    def told(self) -> dict[str, Any]:
        """Returns how sources tell the languages, for digests: ids before each source, codes set on the tokenizers."""
        codes = [getattr(self.source, name, None) for name in ("src_lang", "tgt_lang")]
        return ({"front": list(self.front)} if self.front else {}) | ({"codes": codes} if any(codes) else {})

    def language_ids(self) -> dict[str, int]:
        """Returns {language: the id of its code} of the source's tokenizer; {} if it has no language codes."""
        languages = [] if self.each else languages_of(self.source)
        ids: Any = self.source.convert_tokens_to_ids([code_of(language) for language in languages])
        return dict(zip(languages, ids, strict=True))

    def sizes(self) -> dict[str, int]:
        """Returns {language: vocabulary size} where each language has its own tokenizer, else {}."""
        return {language: len(tokenizer) for language, tokenizer in self.each.items()}

    def save(self, folder: str | Path, code: bool = False) -> None:
        """Writes tokenizers and processing into a model folder; `code`: also the Python code of the tokenizer's class.
        Sets model_max_length to the model's max_position_embeddings, if config.json has them."""
        longest = read_part(Path(folder), CONFIG).get("max_position_embeddings")
        for tokenizer in self.distinct():
            tokenizer.model_max_length = longest or tokenizer.model_max_length
        if not self.each:
            save_tokenizers(folder, self.source, None if self.joint else self.target, self.processing, code)
        for language, tokenizer in self.each.items():
            _save(Path(folder) / LANGUAGE_TOKENIZERS / language, tokenizer)
        named = self.by_name()
        note_tokenizers(Path(folder), {name: {"size": size_of(t), "digest": digest_of(t)} for name, t in named.items()})

    def encode_source(
        self, texts: Sequence[str], language: str | None = None, tag: str | None = None
    ) -> list[np.ndarray]:
        """Encodes raw source texts to int32 ids with </s>; puts the `tag` and the code of `language` (the target's)
        before them, if given."""
        return list(Rows(*self._side("source", self.source, self._front(language, tag))(texts)))

    def encode_target(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes raw target texts to int32 ids with </s>, as labels."""
        return list(Rows(*self._side("target", self.target)(texts)))

    def sides(self, language: str | None = None, tag: str | None = None) -> dict[str, Side]:
        """Returns {"source": Side, "target": Side}, which encode raw texts as `encode_source` and `encode_target`."""
        source = self._side("source", self.source, self._front(language, tag))
        return {"source": source, "target": self._side("target", self.target)}

    def _side(self, side: str, tokenizer: Any, front: Sequence[int] = ()) -> Side:
        how: Any = partial(encode, tokenizer, target=side == "target")
        if type(tokenizer) is PreTrainedTokenizerFast:  # encodes by the tokenizers library alone
            how = partial(cut, own_copy(tokenizer).backend_tokenizer)
        return Side(self.processing[side], how, tuple(front))

    def _front(self, language: str | None, tag: str | None) -> list[int]:
        if tag is not None and tag not in self.source.get_added_vocab():
            raise UserError(
                f"tag {tag}: the tokenizer has no such token. Train one that has: tokenizer: {{tags: ['{tag}']}} in "
                "the recipe (and no tokenizer.path)."
            )
        front = [tag] if tag is not None else []
        front += [language_code(language, self.source)] if language is not None else []
        ids: Any = self.source.convert_tokens_to_ids(front)
        return [*ids, *self.front]

    def decode_target(self, ids: Any) -> list[str]:
        """Decodes a batch of generated ids to raw texts: decodes the ids, then undoes the text processing."""
        undo = self.processing["target"].undo
        return [undo(text) for text in self.target.batch_decode(ids, skip_special_tokens=True)]


def size_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns the largest id of a tokenizer's entries plus 1."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def digest_of(tokenizer: PreTrainedTokenizerBase, size: int | None = None) -> str:
    """Returns a digest of the entries below `size` (None: all), of the text that each stands for, and of the ids that
    this text is cut into: it depends on merges and decoder, not on how a release writes tokenizer.json."""
    size = size_of(tokenizer) if size is None else size
    entries = sorted((number, token) for token, number in tokenizer.get_vocab().items() if number < size)
    digest = Digest().value(entries)
    tokenizer = own_copy(tokenizer)
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        backend = tokenizer.backend_tokenizer
        texts = backend.decode_batch([[number] for number, _ in entries], skip_special_tokens=False)
        cut = backend.encode_batch_fast(texts, add_special_tokens=False)
        digest.value([texts, [encoding.ids for encoding in cut]])
    return digest.hex()


def identity_of(tokenizer: Any, around: bool = True) -> str:
    """Returns a text to compare tokenizers by: if it is equal, they return the same ids; without `around`, the same but
    for tokens that they add around a text."""
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        text = tokenizer.backend_tokenizer.to_str()
        return text if around else json.dumps({**json.loads(text), "post_processor": None}, sort_keys=True)
    return json.dumps([type(tokenizer).__name__, tokenizer.get_vocab()], sort_keys=True)


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], target: bool = False) -> list[np.ndarray]:
    """Encodes texts to int32 ids, with the tokens that the tokenizer adds (</s>). Invisible characters are dropped; no
    text is truncated.

    With a tokenizer of ours, a "</s>" or "<2de>" that stands in the text is text, not the token.
    Another model's tokenizer is called as it is, with `text_target` for targets. Nothing is set on the tokenizer, and
    what it was called with before counts nothing.
    """
    tokenizer, texts = own_copy(tokenizer), [without_invisible(text) for text in texts]
    if type(tokenizer) is PreTrainedTokenizerFast:
        return [np.array(ids, np.int32) for ids in cut(tokenizer.backend_tokenizer, texts)]
    # Composes characters (NFC), unless the tokenizer is a byte-level BPE, which has U+0120 in its vocabulary.
    if tokenizer.convert_tokens_to_ids("\u0120") in (None, tokenizer.unk_token_id):
        texts = joined(texts, tokenizer.get_vocab)
    options = {"text_target": texts} if target else {"text": texts}
    return [np.array(ids, np.int32) for ids in tokenizer(**options, truncation=False, verbose=False)["input_ids"]]


def decode(tokenizer: PreTrainedTokenizerBase, sequences: Sequence[list[int]]) -> list[str]:
    """Decodes sequences of ids to texts without special tokens; a fast tokenizer decodes all of them in one call."""
    plain = type(tokenizer) is PreTrainedTokenizerFast and "decode" not in vars(tokenizer)
    if plain and not tokenizer.clean_up_tokenization_spaces:
        return tokenizer.backend_tokenizer.decode_batch(sequences, skip_special_tokens=True)
    decode_one: Any = tokenizer.decode
    return [decode_one(ids, skip_special_tokens=True) for ids in sequences]


def own_copy(tokenizer: Any, kind: type | None = None) -> Any:
    """Copies a tokenizer without padding and truncation; attributes set on the copy (src_lang) stay its own.

    The vocabulary, which is large, is shared. `kind`: its class; default: the other's.
    """
    copy: Any = object.__new__(kind or type(tokenizer))  # copy.copy would read some tokenizers' files anew
    vars(copy).update(vars(tokenizer), init_kwargs=dict(tokenizer.init_kwargs))
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        copy._tokenizer = _backend_of_its_own(tokenizer.backend_tokenizer)
    return copy


def _backend_of_its_own(backend: Any) -> Any:
    copy = Backend(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        setattr(copy, part, getattr(backend, part))
    added = backend.get_added_tokens_decoder()
    for special, tokens in groupby(added.values(), key=lambda token: token.special):
        (copy.add_special_tokens if special else copy.add_tokens)(list(tokens))
    if copy.get_added_tokens_decoder() != added:  # other ids, as some between them are missing
        copy = Backend.from_str(backend.to_str())
        copy.no_padding()
        copy.no_truncation()
    return copy


def language_code(language: str, tokenizer: PreTrainedTokenizerBase | None = None) -> str:
    """Returns the code token of a language: "de" -> "<2de>". Raises: UserError if the `tokenizer` given lacks it."""
    code = code_of(language)
    if tokenizer is not None and code not in tokenizer.get_added_vocab():
        known = languages_of(tokenizer)
        has = f"it has {', '.join(known)}{suggest(language, known)}" if known else "it has no language codes at all"
        raise UserError(f"language '{language}': the tokenizer lacks it; {has}. Name one of these, or train a new one.")
    return code


def check_whole(tokenizers: Tokenizers, placeholders: Iterable[str]) -> None:
    """Raises UserError if a tokenizer cuts one of the placeholders, or if text processing before it changes one."""
    for token in placeholders:
        for tokenizer in tokenizers.distinct():
            texts = {processing.apply(f"x {token}") for processing in tokenizers.processing.values()}
            ends = [ids[~np.isin(ids, tokenizer.all_special_ids)][-1:].tolist() for ids in encode(tokenizer, [*texts])]
            if any(text.strip() != token for text in decode(tokenizer, ends)):
                raise UserError(
                    f"data.placeholders: {token}: the tokenizer does not leave it whole. Train one (no "
                    "tokenizer.path), without Moses' tokens or lower case (tokenizer.processing)."
                )


def save_tokenizers(
    folder: str | Path,
    source: PreTrainedTokenizerBase,
    target: PreTrainedTokenizerBase | None = None,
    processing: dict[str, TextProcessing] | None = None,
    code: bool = False,
) -> None:
    """Writes tokenizers and text processing into a model folder, whose other files stay.

    `source` (or the joint one) lies in the folder itself, `target` in target_tokenizer/. Files of an earlier call that
    no longer apply are removed. `code`: also what Transformers loads a TranslationTokenizer by without this package.
    """
    folder = Path(folder)
    other = None if target is source else target
    processed = not all(side.identity for side in (processing or {}).values())
    if type(source) is PreTrainedTokenizerFast and (processed or other is not None or languages_of(source)):
        source = own_copy(source, TranslationTokenizer)
        source.target_tokenizer, source.text_processing = other, None
        if processed:
            source.text_processing = {side: asdict(settings) for side, settings in (processing or {}).items()}
        if code:
            source.init_kwargs["auto_map"] = POINTER
    _save(folder, source)
    if other is None:
        shutil.rmtree(folder / TARGET_TOKENIZER, ignore_errors=True)
    else:
        _save(folder / TARGET_TOKENIZER, other)
    save_processing(folder, processing)


def _save(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        tokenizer.save_pretrained(temporary)
        for file in sorted(path for path in Path(temporary).rglob("*") if path.is_file()):
            with atomic_path(folder / file.relative_to(temporary)) as path:
                shutil.copyfile(file, path)


def load_tokenizers(folder: str | Path, trust_remote_code: bool = False) -> Tokenizers:
    """Loads the tokenizers and text processing of a folder or Hub name; a single tokenizer is used for both sides.

    Raises UserError when there is none, when a file is broken, or when config.json says that the model has another.
    """
    folder = fetch_small_files(folder)
    tokenizers = _load_all(folder, trust_remote_code or trusted())
    kept = read_part(folder, CONFIG).get("tokenizers") or {}
    for name, tokenizer in tokenizers.by_name().items():
        if name in kept and digest_of(tokenizer, kept[name]["size"]) != kept[name]["digest"]:
            raise UserError(
                f"{folder}: its tokenizer ({name}, {size_of(tokenizer):,} entries) is not the one that the model was "
                f"saved with ({kept[name]['size']:,} entries): the same ids would mean other words. Copy that one "
                f"here; or, if the model was trained anew with this one, take 'tokenizers' out of {CONFIG}."
            )
    return tokenizers


def _load_all(folder: Path, trust_remote_code: bool) -> Tokenizers:
    if folders := sorted(path for path in (folder / LANGUAGE_TOKENIZERS).glob("*") if path.is_dir()):
        return Tokenizers.of_languages({path.name: _load(path, trust_remote_code) for path in folders})
    source, other = _load(folder, trust_remote_code), folder / TARGET_TOKENIZER
    for part in read_part(folder, "tokenizer_config.json").get(PARTS) or ():
        if not (folder / part).exists():
            raise UserError(f"{folder}: its tokenizer has {part}, which is not there: copy it from the original.")
    return Tokenizers(source, _load(other, trust_remote_code) if other.is_dir() else source, load_processing(folder))


def _load(folder: Path, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    here = (path for pattern in ("*token*", "*.spm", "*.model", "vocab*") for path in folder.glob(pattern))
    if not any(path.is_file() for path in here):
        raise UserError(
            f"{folder}: no tokenizer there (tokenizer.json). Give a model folder, or train one: hf-mlnmt tokenizer."
        )
    try:
        # Gives an empty config, since the config class in the folder's code would differ from this package's.
        how = {"config": PreTrainedConfig()} if trust_remote_code and read_part(folder, CONFIG).get("auto_map") else {}
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code, **how)
        ours = hasattr(tokenizer, "text_processing")  # a TranslationTokenizer of this package or of published code
        tokenizer = own_copy(tokenizer, PreTrainedTokenizerFast if ours else None)
        # Drops the options that it was loaded with, which Transformers would save otherwise.
        for name in ("is_local", "local_files_only", *([PARTS, "auto_map"] if ours else [])):
            tokenizer.init_kwargs.pop(name, None)
        tokenizer("\uffff")  # fails now if the vocabulary has no entry for unknown characters
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # Rust panics or raises Exception; a missing file is a TypeError
        for name in TOKENIZERS:
            read_part(folder, name)  # raises a UserError that names file and key
        why = "a file of it is missing" if isinstance(error, TypeError) else first_line(error)
        if "trust_remote_code" in str(error):  # an argument of from_pretrained in Transformers' message
            why = "it is made by code in this folder, which is run with --trust-remote-code alone"
        if not any(path for name in ("tokenizer.json", "*.spm", "*.model", "vocab*") for path in folder.glob(name)):
            why = "tokenizer.json is missing, and so is any other file with a vocabulary"
        raise UserError(
            f"{folder}: the tokenizer cannot be loaded ({why}). Give a model folder or a Hub name."
        ) from error
    return tokenizer


@dataclass
class Statistics:
    """Counts of a text: lines, words (`words.words`), subwords, unknown subwords, bytes; subwords of the longest line.

    Special tokens (</s>) are not counted.
    """

    lines: int = 0
    words: int = 0
    subwords: int = 0
    unknown: int = 0
    bytes: int = 0
    longest: int = 0


def statistics(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Statistics:
    """Counts the words, subwords, unknown subwords and byte subwords of `texts`, an iterable of lines."""
    counts, vocabulary, lines = Statistics(), tokenizer.get_vocab(), iter(texts)
    byte_ids = np.array([vocabulary[byte] for byte in BYTES if byte in vocabulary], np.int32)
    special = np.array(list({*tokenizer.all_special_ids} - {tokenizer.unk_token_id}), np.int32)
    while batch := list(islice(lines, _BATCH)):
        for text, ids in zip(batch, encode(tokenizer, batch), strict=True):
            ids = ids[~np.isin(ids, special)]
            counts.lines += 1
            counts.words += len(words(text))
            counts.subwords += len(ids)
            counts.unknown += int((ids == tokenizer.unk_token_id).sum())
            counts.bytes += int(np.isin(ids, byte_ids).sum())
            counts.longest = max(counts.longest, len(ids))
    return counts


def with_mask(tokenizers: Tokenizers) -> Tokenizers:
    """Adds <mask> to every tokenizer that has none; returns the tokenizers."""
    for tokenizer in tokenizers.distinct():
        if tokenizer.mask_token_id is None:
            tokenizer.add_special_tokens({"mask_token": MASK})
    return tokenizers


def check_vocabulary(name: str, config: Any, source: Any, target: Any) -> None:
    """Raises: UserError when a tokenizer has more entries than the model of this config has embeddings, or if
    there is one tokenizer for a model with two vocabularies."""
    _check_size(f"{name}: the source tokenizer", source, config.vocab_size)
    rows = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    if target is not source:
        _check_size(f"{name}: the target tokenizer", target, rows)
    elif rows != config.vocab_size and not getattr(source, "separate_vocabs", False):
        raise UserError(
            f"{name}: the model has two vocabularies, of {config.vocab_size} and {rows} entries, but there is one "
            f"tokenizer. Copy {TARGET_TOKENIZER}/ and {TEXT_PROCESSING}, if there is one, from where the model was "
            "trained."
        )


def check_languages(name: str, config: Any, each: Mapping[str, Any]) -> None:
    """Raises: UserError unless every language of a model has a tokenizer of its own that fits its embeddings."""
    sizes = getattr(config, "vocab_sizes", None)
    if sizes is None:
        raise UserError(f"{name}: has a tokenizer for each language, and a model of one vocabulary. {_OF_TWO_MODELS}")
    for language in config.languages:
        if language not in each:
            raise UserError(f"{name}: there is no tokenizer of {language}, only of {', '.join(each)}. Copy it there.")
        _check_size(f"{name}: the tokenizer of {language}", each[language], sizes[language])


def _check_size(which: str, tokenizer: Any, rows: int) -> None:
    entries = size_of(tokenizer)
    if entries > rows:
        raise UserError(f"{which} has {entries} entries, the model {rows} embeddings. {_OF_TWO_MODELS}")
    if -(-entries // _ROUNDED) * _ROUNDED < rows:  # embeddings are rounded up to a multiple of _ROUNDED
        log.warning("%s has %d entries, the model %d embeddings. %s", which, entries, rows, _OF_TWO_MODELS)


_OF_TWO_MODELS = "They are not of one model: train or download both together."


# Functions that test or set the tokens that a tokenizer adds: </s> after a text, or <s> before it


def begin_texts(folder: str | Path) -> None:
    """Makes the tokenizer in a language model's folder put <s> before a text and nothing after it, so that `generate`
    and a text-generation pipeline continue the text. Of two tokenizers, the target's is the model's.

    A tokenizer of another kind than ours stays as it is.
    """
    folder = Path(folder)
    own = folder / TARGET_TOKENIZER if (folder / TARGET_TOKENIZER).is_dir() else folder
    tokenizer = AutoTokenizer.from_pretrained(own)
    if _is_ours(tokenizer):
        _surround(tokenizer, f"{tokenizer.bos_token} $A", tokenizer.bos_token, tokenizer.bos_token_id)
        save_tokenizers(folder, tokenizer, None, load_processing(folder))


def read_masks(folder: str | Path) -> None:
    """Sets the tokenizer in an encoder's folder to read <mask> in a text as the mask token, for fill-mask pipelines."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.split_special_tokens = False
    tokenizer.save_pretrained(folder)


def ending(tokenizers: Tokenizers) -> Tokenizers:
    """Makes tokenizers that `begin_texts` changed put </s> after every text again; returns the tokenizers."""
    for tokenizer in tokenizers.distinct():
        if _is_ours(tokenizer) and begins_texts(tokenizer):
            _surround(tokenizer, f"$A {tokenizer.eos_token}", tokenizer.eos_token, tokenizer.eos_token_id)
    return tokenizers


def with_end(tokenizers: Tokenizers, name: str, tell: Callable[[str], None], told: bool = False) -> Tokenizers:
    """Makes tokenizers that add no token to a text put </s> after it, with a note by `tell`; returns the tokenizers.

    told: whether the training tells the model languages, by the codes of its own tokenizer.

    Raises: UserError for one that has no </s>, or puts other tokens around a text and no </s>.
    """
    for tokenizer in tokenizers.distinct():
        if told and hasattr(tokenizer, "src_lang"):
            continue  # such a tokenizer adds codes and </s>
        check_untold(tokenizer, name)
        around = [*encode(tokenizer, [""])[0], *encode(tokenizer, [""], target=True)[0]]
        if tokenizer.eos_token_id is None:
            raise UserError(f"{name}: the tokenizer has no eos_token: name one in its tokenizer_config.json.")
        if tokenizer.eos_token_id in around:
            continue
        if around or not _is_ours(tokenizer):
            raise UserError(
                f"{name}: the tokenizer puts no {tokenizer.eos_token} (eos_token) behind a text, so that a model would "
                "never learn to stop. Mend post_processor in tokenizer.json ($A, then that token)."
            )
        _surround(tokenizer, f"$A {tokenizer.eos_token}", tokenizer.eos_token, tokenizer.eos_token_id)
        tell(f"{name}: the tokenizer puts no {tokenizer.eos_token} behind a text: it is added")
    return tokenizers


def check_untold(tokenizer: Any, name: str) -> None:
    """Raises UserError for a tokenizer that adds language codes to a text, which only its own model reads (M2M100)."""
    if hasattr(tokenizer, "src_lang"):
        raise UserError(
            f"{name}: its tokenizer puts codes of languages around a text, as its own model alone reads them (M2M100, "
            "NLLB, mBART). Begin with that model, not imported (init_from, without model.system), or train a tokenizer."
        )


def begins_texts(tokenizer: Any) -> bool:
    """Returns whether a tokenizer puts <s> before a text and nothing after it."""
    return bool(tokenizer("")["input_ids"] == [tokenizer.bos_token_id])


def _is_ours(tokenizer: Any) -> bool:
    return type(tokenizer) is PreTrainedTokenizerFast and None not in (tokenizer.bos_token_id, tokenizer.eos_token_id)


def _surround(tokenizer: Any, template: str, token: str, number: int) -> None:
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=template, pair=f"{template} {template.replace('$A', '$B')}", special_tokens=[(token, number)]
    )


# Functions of the command that trains tokenizers (hf-mlnmt tokenizer)

Sides = Mapping[str, Sequence[Path]]
REMEDY = "Mend the file, or leave such lines out: --bad-lines drop."


class LineReader:
    """Reads the lines of files; with `drop` leaves bad lines out and counts them in `dropped`, by file."""

    def __init__(self, drop: bool) -> None:
        self.drop, self.dropped = drop, dict[Path, FilterReport]()

    def __call__(self, path: Path) -> Iterator[str]:
        """Yields the lines of a file. Raises UserError at a bad one unless they are dropped."""
        self.dropped[path] = FilterReport()
        return (line for (line,) in side_by_side([path], self.drop, self.dropped[path], REMEDY))


def sides_of(
    files: Sequence[Path] | None, source: Sequence[Path] | None, target: Sequence[Path] | None, needs_sides: bool
) -> dict[str, list[Path]]:
    """Returns {"source": files, "target": files} from a command's options; files without sides count as source.

    Raises UserError where there is no text, or text is given twice, or separate vocabularies or processing need sides.
    """
    if bool(files) == bool(source or target) or bool(source) != bool(target):
        raise UserError("No text, or too much: give either FILES, or --source FILE and --target FILE.")
    if files and needs_sides:
        raise UserError(
            "--separate, --moses, --normalize and --lowercase need to know the sides: --source and --target."
        )
    return {"source": list(files or source or ()), "target": list(target or ())}


def processing_of(
    source_language: str | None, target_language: str | None, moses: bool, normalize: bool, lowercase: bool
) -> dict[str, TextProcessing]:
    """Returns {side: its text processing} from a command's options.

    Raises: UserError for Moses' processing without languages, and for languages without any processing.
    """
    named = {"source": source_language, "target": target_language}
    if (moses or normalize) and not all(named.values()):
        raise UserError("--moses and --normalize depend on the language: give --from and --to.")
    if any(named.values()) and not (moses or normalize or lowercase):
        raise UserError(
            "--from and --to are for --moses and --normalize: add one of these, or leave them out. The "
            "languages of a multilingual model are --languages."
        )
    return {side: TextProcessing(language or "en", moses, normalize, lowercase) for side, language in named.items()}


def train_on_files(
    sides: Sides, read: LineReader, processing: Mapping[str, TextProcessing], separate: bool, **options: Any
) -> Tokenizers:
    """Trains one tokenizer of both sides' processed text, or one for each side. `options`: train_tokenizer's."""

    def train(*names: str) -> Any:
        def texts() -> Iterator[str]:
            return (processing[name].apply(line) for name in names for path in sides[name] for line in read(path))

        if not any(map(str.strip, texts())):
            paths = ", ".join(str(path) for name in names for path in sides[name])
            raise UserError(f"{paths}: every line is empty, and a tokenizer needs text. Check the files.")
        return train_tokenizer(texts, **options)

    if separate:
        return Tokenizers(train("source"), train("target"), dict(processing))
    joint = train("source", "target")
    return Tokenizers(joint, joint, dict(processing))


def report_table(trained: Tokenizers, sides: Sides, check: Sequence[Path], read: LineReader, title: str) -> Table:
    """Returns a table with a row for each file: sizes, subwords a word, rates of <unk> and bytes, the longest line."""
    numbers = ("vocabulary", "lines", "words", "subwords", "subwords/word", "<unk>", "bytes", "longest")
    rows: list[list[str]] = []
    read_of = [(side, path) for side, paths in sides.items() for path in paths]
    read_of += [(side, path) for path in check for side in (("source",) if trained.joint else ("source", "target"))]
    for side, path in read_of:
        subword = trained.source if side == "source" else trained.target
        counts = statistics(subword, map(trained.processing[side].apply, read(path)))
        name = str(path) if trained.joint else f"{path} ({side})"
        counted = [f"{number:,}" for number in (len(subword), counts.lines, counts.words, counts.subwords)]
        subwords = max(counts.subwords, 1)
        rates = [f"{counts.unknown / subwords:.3%}", f"{counts.bytes / subwords:.3%}"]
        rows.append([name, *counted, f"{counts.subwords / max(counts.words, 1):.3f}", *rates, f"{counts.longest:,}"])
    return Table(["text", *map(Number, numbers)], rows, title)
