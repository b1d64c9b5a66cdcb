"""A tokenizer of many languages, of two vocabularies, or with text processing, usable as any tokenizer of Transformers.

Of many languages: `tgt_lang` ("fr") puts the code of the target language (<2fr>) before every source, as NLLB's does;
it can be set, given at loading or in a call, and is saved. `src_lang` is not passed to the model, which recognizes the
source language, and only compared with `tgt_lang`. A source without a code, whose target language the model chooses,
and one with its own language as target, which the model copies, cause a warning once and no error: labels and lengths
are made by the same call as sources. With `split_special_tokens`, with which our tokenizers are saved, a "</s>" or a
code inside a text is text; only codes in front of a source, typed or of `tgt_lang`, are tokens.

Of two vocabularies: source texts are tokenized with the source's, `text_target` with the target's; ids are decoded with
the target's unless `use_source_tokenizer` is given, as with Marian's. A saved folder has everything that hf_mlnmt
reads. Text processing (Moses) is only stored beside the vocabularies: hf_mlnmt applies it, this tokenizer does not.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from tokenizers.normalizers import Replace, Sequence
from tokenizers.processors import TemplateProcessing
from transformers import BatchEncoding, PreTrainedTokenizerFast
from transformers.utils import cached_file, logging

FOLDER = "target_tokenizer"
PROCESSING = "text_processing.json"
# Of tokenizer_config.json: the key of a list of further files; the value of `auto_map` that names this class.
PARTS, POINTER = "parts", {"AutoTokenizer": [None, "tokenization.TranslationTokenizer"]}
_CODE = re.compile(r"\s*<2([\w-]+)>")
_APART = "\U0010ffff"  # a noncharacter: put into a text's "</s>", so that it is no special token
logger = logging.get_logger(__name__)


def languages_of(tokenizer: Any) -> list[str]:
    """Returns the languages for which a tokenizer has codes (<2fr>), in the order of their ids."""
    added = sorted(tokenizer.get_added_vocab().items(), key=lambda item: item[1])
    return [match[1] for token, _ in added if (match := _CODE.fullmatch(token))]


class TranslationTokenizer(PreTrainedTokenizerFast):
    """The tokenizer of source texts, which also holds that of target texts, `target_tokenizer` (None: this one), and
    `text_processing` (side -> settings)."""

    target_tokenizer: Any = None
    text_processing: dict[str, Any] | None = None
    _src_lang: str | None = None  # public names would make Transformers take it for NLLB's
    _tgt_lang: str | None = None
    _of_target = False

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name: Any, *inputs: Any, **options: Any
    ) -> "TranslationTokenizer":
        """Loads the tokenizer from a folder or by a Hub name; `src_lang` and `tgt_lang` replace the saved languages."""
        tokenizer = super().from_pretrained(name, *inputs, **options)  # an __init__ would change how it loads
        tokenizer.src_lang, tokenizer.tgt_lang = map(tokenizer.init_kwargs.get, ("src_lang", "tgt_lang"))
        of_the_hub = ("revision", "token", "cache_dir", "local_files_only", "subfolder")
        where = {key: options[key] for key in of_the_hub if options.get(key) is not None}
        missing = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
        if cached_file(name, f"{FOLDER}/tokenizer.json", **where, **missing) is not None:
            where_target = {**where, "subfolder": os.path.join(where.get("subfolder", ""), FOLDER)}
            tokenizer.target_tokenizer = PreTrainedTokenizerFast.from_pretrained(name, **where_target)
        if (file := cached_file(name, PROCESSING, **where, **missing)) is not None:
            with open(file, encoding="utf-8") as stream:
                tokenizer.text_processing = json.load(stream)
        return tokenizer

    @property
    def src_lang(self) -> str | None:
        """Returns the language of the source texts: any name, as it is only compared with `tgt_lang`."""
        return self._src_lang

    @src_lang.setter
    def src_lang(self, language: str | None) -> None:
        self._src_lang = language

    @property
    def tgt_lang(self) -> str | None:
        """Returns the language to translate into; setting one for which there is no code raises ValueError."""
        return self._tgt_lang

    @tgt_lang.setter
    def tgt_lang(self, language: str | None) -> None:
        if language is not None and language not in languages_of(self):
            has = ", ".join(languages_of(self)) or "no language codes: it is of one pair of languages"
            raise ValueError(f"tgt_lang {language!r}: the tokenizer lacks it; it has {has}.")
        self._tgt_lang = language

    def save_pretrained(self, save_directory: Any, *arguments: Any, **options: Any) -> tuple[str, ...]:
        """Saves both tokenizers, the target's in a subfolder, and text processing; where the tokenizer was loaded with
        a pointer to its code (`auto_map`), the code too."""
        os.makedirs(save_directory, exist_ok=True)
        files: list[str] = []
        if self.target_tokenizer is not None:
            files += self.target_tokenizer.save_pretrained(os.path.join(save_directory, FOLDER))
        if self.text_processing is not None:
            files.append(os.path.join(save_directory, PROCESSING))
            with open(files[-1], "w", encoding="utf-8") as stream:
                json.dump(self.text_processing, stream, indent=2, ensure_ascii=False)
        there = {FOLDER: self.target_tokenizer, PROCESSING: self.text_processing}
        parts = [part for part, content in there.items() if content is not None]
        said = {"src_lang": self.src_lang, "tgt_lang": self.tgt_lang, PARTS: parts}
        kept = {key: value for key, value in self.init_kwargs.items() if key not in said}
        self.init_kwargs = kept | {key: value for key, value in said.items() if value}
        if "auto_map" in kept:
            self.init_kwargs["auto_map"] = POINTER
            files.append(os.path.join(save_directory, os.path.basename(__file__)))
            shutil.copyfile(__file__, files[-1])
        return (*super().save_pretrained(save_directory, *arguments, **options), *files)

    def __call__(  # type: ignore[override]
        self,
        text: Any = None,
        text_pair: Any = None,
        text_target: Any = None,
        text_pair_target: Any = None,
        *,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **options: Any,
    ) -> BatchEncoding:
        """Encodes texts as Transformers' tokenizers do; labels are the target's ids. Languages hold for this call."""
        kept = self.src_lang, self.tgt_lang
        self.src_lang, self.tgt_lang = src_lang or self.src_lang, tgt_lang or self.tgt_lang
        try:
            if text_target is None or self.target_tokenizer is None:
                return super().__call__(text, text_pair, text_target, text_pair_target, **options)
            targets = self.target_tokenizer(text_target, text_pair_target, **options)
            if text is None:
                return targets
            encoded = super().__call__(text, text_pair, **options)
        finally:
            self.src_lang, self.tgt_lang = kept
        encoded["labels"] = targets["input_ids"]
        return encoded

    def _switch_to_input_mode(self) -> None:
        self._of_target = False

    def _switch_to_target_mode(self) -> None:
        self._of_target = True

    def _encode_plus(
        self, text: Any, text_pair: Any = None, add_special_tokens: bool = True, *arguments: Any, **options: Any
    ) -> Any:
        known = isinstance(text, str | list | tuple)  # Transformers raises an error for other types
        backend, encode = cast(Any, self._tokenizer), cast(Any, super()._encode_plus)
        if self._of_target or not known or not languages_of(self):
            return encode(text, text_pair, add_special_tokens, *arguments, **options)
        if add_special_tokens:
            self._check(text, options)
        asked, options["split_special_tokens"] = options.get("split_special_tokens"), False
        as_text = self.split_special_tokens if asked is None else asked
        kept = backend.normalizer
        texts = [self._told_apart(each) if as_text else each for each in (text, text_pair)]
        if texts != [text, text_pair]:
            backend.normalizer = Sequence([Replace(_APART, ""), *([kept] if kept else [])])
        try:
            with self._code_in_front(add_special_tokens):
                return encode(*texts, add_special_tokens, *arguments, **options)
        finally:
            if texts != [text, text_pair]:
                backend.normalizer = kept

    def _told_apart(self, text: Any) -> Any:
        """Returns text with a separator inside each special token but the codes in front, so that none is recognized;
        the normalizer removes the separators."""
        if not isinstance(text, str):
            return text if text is None else type(text)(map(self._told_apart, text))
        tokens = {token for token in self.all_special_tokens if token in text}
        if not tokens:
            return text
        codes = "|".join(re.escape(f"<2{language}>") for language in languages_of(self))
        begin = re.match(rf"(?:\s*(?:{codes}))*", text).end()  # type: ignore[union-attr]
        inside = re.sub(
            "|".join(map(re.escape, tokens)), lambda token: token[0][0] + _APART + token[0][1:], text[begin:]
        )
        return text[:begin] + inside

    def _check(self, text: Any, options: dict[str, Any]) -> None:
        """Raises ValueError for a text with a code where `tgt_lang` is set; warns once where there is neither, and
        where the target language is the source's."""
        texts = [text] if isinstance(text, str) else list(text)
        if options.get("is_split_into_words") and texts and isinstance(texts[0], str):
            texts = [texts]
        starts = [each if isinstance(each, str) else str(each[0]) if each else "" for each in texts]
        codes = [match[1] if (match := _CODE.match(start)) else None for start in starts]
        own = [code if code in languages_of(self) else None for code in codes]
        if self.tgt_lang and any(own):
            raise ValueError(
                f"a text begins with <2{next(filter(None, own))}>, and tgt_lang is {self.tgt_lang}: leave one of them "
                "out (tgt_lang = None)."
            )
        named = ", ".join(languages_of(self))
        if not self.tgt_lang and not all(own):
            self._warn(
                f"No language to translate into is named, so the model chooses one by itself. Set tgt_lang, to one of "
                f"{named}: tokenizer.tgt_lang = {languages_of(self)[0]!r}, or tokenizer(texts, tgt_lang=...).",
                options,
            )
        for language in {self.tgt_lang, *own} - {None}:
            if language == self.src_lang:
                self._warn(f"Source and target language are {language}: the model copies. It has {named}.", options)

    def _warn(self, message: str, options: dict[str, Any]) -> None:
        if options.get("verbose", True) and not self.deprecation_warnings.get(message):
            self.deprecation_warnings[message] = True
            logger.warning(message)

    @contextmanager
    def _code_in_front(self, told: bool) -> Iterator[None]:
        """Puts the code of `tgt_lang` before every text inside the with block, if `told`; saved files have no trace."""
        backend: Any = self._tokenizer
        template = backend.post_processor
        if self.tgt_lang and told:
            code, end = f"<2{self.tgt_lang}>", self.eos_token
            backend.post_processor = TemplateProcessing(
                single=f"{code} $A {end}",
                pair=f"{code} $A {end} $B {end}",
                special_tokens=[(token, self.convert_tokens_to_ids(token)) for token in (code, end)],
            )
        try:
            yield
        finally:
            backend.post_processor = template

    def decode(self, token_ids: Any, *arguments: Any, use_source_tokenizer: bool = False, **options: Any) -> Any:
        """Decodes ids of the target's vocabulary, or with `use_source_tokenizer` of the source's, to text."""
        if self.target_tokenizer is None or use_source_tokenizer:
            return super().decode(token_ids, *arguments, **options)
        return self.target_tokenizer.decode(token_ids, *arguments, **options)
