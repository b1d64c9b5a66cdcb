"""Lexical constraints as token ids and as logits processors: prefixes, terms, phrases, next words.

Each token spells bytes: those of its piece, with the mark of a word's beginning (U+2581) as a space; in byte-level BPE
those that its characters stand for; in byte fallback one byte. A prefix fixes the tokens of all its words but the last;
the last word may be spelt by any tokens, also longer ones: "Ein Ma" can be continued by "Mann" though "Ma" is no token
of "Mann". A term's translation is the tokens that it has in the middle of a sentence, so that it begins at a word's
beginning; the word may be longer ("Kern", "Kerns"). The same holds for a phrase that a translation must have; a phrase
that it must not have is compared byte by byte.
"""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.generation.logits_process import LogitsProcessor

from hf_mlnmt.common.errors import OptionError
from hf_mlnmt.data.directions import code_tokens
from hf_mlnmt.data.subwords import BYTES
from hf_mlnmt.data.tokenizer import encode, own_copy
from hf_mlnmt.data.words import is_unspaced
from hf_mlnmt.generation.translating.options import CONTROL

Phrases = tuple[tuple[str, ...], ...]  # for each phrase a tuple of its alternatives


def phrases_of(given: Any, what: str) -> Phrases:
    """Reads the phrases of a text from a string with tabs between phrases and ||| between alternatives, or from a list
    of phrases, strings or lists of alternatives. Raises: UserError for another object, and for an empty phrase."""
    parts = given.split("\t") if isinstance(given, str) else given
    phrases = []
    for part in parts if isinstance(parts, list | tuple) else [None]:
        alternatives = part.split("|||") if isinstance(part, str) else part
        if not isinstance(alternatives, list | tuple) or not all(isinstance(text, str) for text in alternatives):
            raise OptionError(f"{what}: {given!r} is no text, and no list of phrases.")
        if not alternatives or not all(text.strip() and not CONTROL.search(text) for text in alternatives):
            raise OptionError(
                f"{what}: {given!r} has an empty phrase or alternative, or a control character; leave it out."
            )
        phrases.append(tuple(map(_in_one_form, alternatives)))
    return tuple(phrases)


def _in_one_form(text: str) -> str:
    """Returns a text in Unicode form NFC with single spaces for all white space."""
    return unicodedata.normalize("NFC", " ".join(text.split()))


class Asked(NamedTuple):
    """Demands that a translation begin with the tokens `ids`, then with any tokens whose bytes begin with `rest`."""

    ids: list[int]
    rest: bytes


class Spelling:
    """Maps each target token to the bytes that it adds to a text (special tokens add none), and texts to tokens."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = own_copy(tokenizer)
        tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        added = tokenizer.added_tokens_decoder.items()
        self.special = {*tokenizer.all_special_ids, *(number for number, token in added if token.special)}
        self.special |= set(tokenizer.convert_tokens_to_ids(code_tokens(tokenizer)))
        single = {token: bytes([number]) for number, token in enumerate(BYTES)}
        beginnings = [sum(str(token).startswith(mark) for token in tokens) for mark in "\u2581\u0120"]
        if beginnings[1] > beginnings[0]:
            values = {character: number for number, character in bytes_to_unicode().items()}
            spelt = [bytes(values.get(letter, 63) for letter in token or "") for token in tokens]
        else:
            spelt = [single.get(token) or (token or "").replace("\u2581", " ").encode() for token in tokens]
        for number, token in enumerate(tokens):  # a private character stands for a placeholder (data/subwords.py)
            if token and token[-1] >= "\U000f0000":
                spelt[number] = (" " * token.startswith("\u2581") + tokenizer.decode([number]).strip()).encode()
        self.bytes = [b"" if number in self.special else of_token for number, of_token in enumerate(spelt)]
        self.ordered = sorted((of_token, number) for number, of_token in enumerate(self.bytes) if of_token)
        self.known: dict[bytes, list[int]] = {b"": []}

    @cached_property
    def going_on(self) -> Tensor:
        """Returns the tokens that can continue a word: their first character is a letter or digit of a script with
        spaces, or "_", or their first byte is not the first one of a character."""
        firsts = [(of_token.decode("utf-8", "replace")[0], number) for of_token, number in self.ordered]
        letters = ((first, number) for first, number in firsts if first.isalnum() or first in "_\ufffd")
        return torch.tensor([number for first, number in letters if not is_unspaced(first)], dtype=torch.long)

    @cached_property
    def plain(self) -> list[tuple[bytes, int]]:
        """Returns, sorted, (what the function `plain` makes of the token's bytes, token) of all tokens with bytes."""
        return sorted((plain(of_token), number) for of_token, number in self.ordered)

    @cached_property
    def apart(self) -> list[int]:
        """Returns the tokens that end a word before them: their first byte is of no letter or digit."""
        return [number for of_token, number in self.plain if not _goes_on(of_token[0])]

    @cached_property
    def _joined(self) -> bytes:
        return b"\0".join(of_token for of_token, _ in self.plain)

    def beginning_with(self, beginnings: Iterable[bytes], inside: bytes) -> list[tuple[bytes, int]]:
        """Returns the entries of the property `plain` whose bytes begin with one of `beginnings`, or hold `inside`."""
        found = [each for each in self.plain if inside in each[0]] if inside in self._joined else []
        return found + [each for beginning in beginnings for each in _beginning_with(self.plain, beginning)]

    def ids(self, text: str) -> list[int]:
        """Tokenizes a text of the target side, without special tokens except the unknown one."""
        if not text:
            return []
        if getattr(self.tokenizer, "tgt_lang", "") is None:  # the tokenizer needs some target language
            self.tokenizer.tgt_lang = self.tokenizer.src_lang
        (ids,) = encode(self.tokenizer, [text], target=True)
        return [token for token in ids.tolist() if token not in self.special or token == self.tokenizer.unk_token_id]

    def spelt(self, ids: Sequence[int]) -> bytes:
        """Returns the bytes that tokens add to a text; ids beyond the tokenizer's vocabulary add none."""
        return b"".join(self.bytes[token] for token in ids if token < len(self.bytes))

    def continuing(self, rest: bytes) -> list[int]:
        """Returns the tokens that can come next where the text must continue with `rest` (not empty): tokens whose
        bytes begin with `rest`, and tokens with which `rest` begins if further tokens can spell the remaining bytes."""
        if rest not in self.known:
            allowed = [number for _, number in _beginning_with(self.ordered, rest)]
            for end in range(1, len(rest)):
                if parts := self.exactly(rest[:end]):
                    allowed += parts if self.continuing(rest[end:]) else []
            self.known[rest] = allowed
        return self.known[rest]

    def exactly(self, spelt: bytes) -> list[int]:
        """Returns the tokens with exactly these bytes; for one byte maybe both a piece and a byte of byte fallback."""
        first = bisect.bisect_left(self.ordered, (spelt,))
        return [number for of_token, number in self.ordered[first : first + 3] if of_token == spelt]

    def prefix(self, text: str, processing: Any, where: str) -> Asked:
        """Returns how a translation must begin so that it has the prefix `text`; white space at the prefix's end ends
        its last word. Raises: UserError where the vocabulary cannot spell the prefix."""
        words = processing.apply(text).split()
        if not words:
            return Asked([], b"")
        whole = self.ids(" ".join(words))
        if self.tokenizer.unk_token_id in whole:
            raise OptionError(
                f"{where}: {text!r} has characters that are not in the model's vocabulary; leave them out."
            )
        if text[-1:].isspace():
            return Asked(whole, b" ")
        before, spelt = self.ids(" ".join(words[:-1])), self.spelt(whole)
        if not spelt.startswith(self.spelt(before)):
            before = []
        rest = spelt[len(self.spelt(before)) :]
        return Asked(before, rest) if self.continuing(rest) else Asked(whole, b"")

    def inside(self, text: str, processing: Any, joined: bool = False) -> list[list[int]]:
        """Returns the tokenizations of a text in the middle of a sentence, after a space; if `joined`, or in scripts
        without spaces, also without the space. [] where the vocabulary cannot spell the text."""
        shown = " ".join(processing.apply(text).split())
        ids = self.ids(shown)
        if ids and not self.spelt(ids).startswith(b" ") and self.spelt(self.ids(f" {shown}")).startswith(b" "):
            ids = self.ids(f" {shown}")  # this tokenizer puts no space before the first word of a text
        if not ids or self.tokenizer.unk_token_id in ids:
            return []
        ways, first = [ids], self.bytes[ids[0]]
        if (joined or is_unspaced(text)) and first.startswith(b" "):
            beginnings = [[token] for token in self.exactly(first[1:])] if first != b" " else [[]]
            ways += [[*beginning, *ids[1:]] for beginning in beginnings]
        return list(filter(None, ways))


def _beginning_with(ordered: list[tuple[bytes, int]], beginning: bytes) -> list[tuple[bytes, int]]:
    """Returns the entries of a sorted list of (bytes of a token, token) whose bytes begin with `beginning`."""
    first = bisect.bisect_left(ordered, (beginning,))
    return ordered[first : bisect.bisect_right(ordered, beginning, first, key=lambda each: each[0][: len(beginning)])]


_SPELLINGS: WeakKeyDictionary[Any, Spelling] = WeakKeyDictionary()


def spelling_of(tokenizer: Any) -> Spelling:
    """Returns the Spelling of a tokenizer; makes it at the first call."""
    if tokenizer not in _SPELLINGS:
        _SPELLINGS[tokenizer] = Spelling(tokenizer)
    return _SPELLINGS[tokenizer]


class Demand(NamedTuple):
    """A text that a translation must have `times` times: its name, and the token ids of each of its alternatives."""

    name: str
    ids: list[list[int]]
    times: int = 1


def constraints_of(demands: Iterable[Demand]) -> list[tuple[tuple[int, ...], ...]]:
    """Returns a search's constraints, each a tuple of alternative token sequences: each demand `times` times; equal
    demands count once, with the largest `times`."""
    times: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for demand in demands:
        if demand.ids:
            times |= Counter({tuple(map(tuple, demand.ids)): demand.times})
    return list(times.elements())


class Terms:
    """A glossary: finds its terms in a text; token ids of their translations, and what these must not have."""

    def __init__(self, terms: Mapping[str, Any], ignore_case: bool, spelling: Spelling, processing: Any):
        self.fold: Callable[[str], str] = str.casefold if ignore_case else str
        self.spelling, self.processing = spelling, processing
        self.targets: dict[str, list[str]] = {}
        self.bad: dict[str, list[str]] = {}
        for source, targets in terms.items():
            term, parts = self.fold(_in_one_form(source)), targets if isinstance(targets, Mapping) else {"use": targets}
            self.targets.setdefault(term, []).extend(parts["use"])
            self.bad.setdefault(term, []).extend(map(_in_one_form, parts.get("not", ())))

    def of(self, text: str) -> dict[str, list[list[int]]]:
        """Returns {term: tokenizations of its translations} for the terms that a text has."""
        return {
            term: [ids for target in self.targets[term] for ids in self.spelling.inside(target, self.processing)]
            for term in self.found(text)
            if self.targets[term]
        }

    def forbidden(self, text: str) -> list[str]:
        """Returns the words and phrases that the glossary forbids in the translation of a text, by the terms in it."""
        return [bad for term in self.found(text) for bad in self.bad[term]]

    def found(self, text: str) -> list[str]:
        """Returns the terms that a text has as words, in its order; of terms that overlap the first, the longest."""
        text = self.fold(_in_one_form(text))
        there = sorted((term for term in self.targets if term in text), key=lambda term: (-len(term), term))
        matches = re.finditer("|".join(f"({as_word(term)})" for term in there), text) if there else ()
        return list(dict.fromkeys(there[match.lastindex - 1] for match in matches if match.lastindex))


def as_word(term: str, ends: bool = True) -> str:
    """Returns a regular expression that finds a term as a word; in a script without spaces anywhere.

    ends: a word boundary must follow the term too; False: the word may be longer than the term.
    """
    if is_unspaced(term):
        return re.escape(term)
    before = r"(?<!\w)" if re.match(r"\w", term[0]) else ""
    behind = r"(?!\w)" if ends and re.match(r"\w", term[-1]) else ""
    return before + re.escape(term) + behind


def is_met(translation: str, targets: Iterable[str]) -> bool:
    """Returns whether a translation has one of `targets` at a word's beginning."""
    return any(re.search(as_word(target, ends=False), translation) for target in targets if target)


def times_in(ids: Sequence[int], phrases: Iterable[Sequence[int]]) -> int:
    """Counts the positions in `ids` at which one of the phrases, given as token ids, ends."""
    endings = {tuple(phrase) for phrase in phrases if phrase}
    return sum(any(tuple(ids[max(0, end - len(e)) : end]) == e for e in endings) for end in range(1, 1 + len(ids)))


class RowRule(LogitsProcessor):
    """Base class of logits processors with a demand of its own for each sentence's translation.

    Args:
        rows: the demand for each sentence; `begin` repeats it for each row (beam) of the search.
        forced: how many tokens are generated before a translation begins. ends: ids of end tokens.
    """

    def __init__(self, spelling: Spelling, rows: Sequence[Any], forced: int, ends: Iterable[int] = ()) -> None:
        self.spelling, self.rows, self.forced, self.ends = spelling, list(rows), forced, list(ends)
        self.start: int | None = None  # length of a row before its translation begins

    def begin(self, input_ids: Tensor) -> int:
        """Returns how many ids a row has before its translation; the first call repeats each demand for all its beams.

        input_ids: (rows, length).
        """
        if self.start is None:
            rows, length = input_ids.shape
            self.start = length + (self.forced if length == 1 else 0)
            self.rows = [asked for asked in self.rows for _ in range(rows // len(self.rows))]
        return self.start

    def keep_rows(self, rows: Tensor) -> None:
        """Keeps the demands of these rows alone, when the search drops sentences that have ended."""
        self.rows = [self.rows[row] for row in rows.tolist()]


class PrefixProcessor(RowRule):
    """Logits processor that makes translations begin with their prefixes: sets the scores of all other tokens to -inf.

    Where earlier processors forbade all tokens that a prefix allows, these get score 0.
    """

    def __init__(self, spelling: Spelling, prefixes: Sequence[Asked], forced: int, ends: Iterable[int] = ()):
        """prefixes: one for each sentence. ends: tokens that may follow a last word instead of the space after it."""
        super().__init__(spelling, prefixes, forced, ends)
        self.most = max(len(asked.ids) + len(asked.rest) for asked in prefixes)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns scores (rows, vocabulary), -inf for tokens against the prefix; input_ids: (rows, length)."""
        start = self.begin(input_ids)
        if not start <= input_ids.shape[1] < start + self.most:
            return scores
        scores = scores.clone()
        for row, (asked, tokens) in enumerate(zip(self.rows, input_ids[:, start:].tolist(), strict=True)):
            allowed = self.allowed(asked, tokens)
            if allowed is not None:
                kept = scores[row, allowed]
                scores[row] = -torch.inf
                scores[row, allowed] = kept if kept.isfinite().any() or kept.isposinf().any() else 0.0
        return scores

    def allowed(self, asked: Asked, tokens: list[int]) -> list[int] | None:
        """Returns the tokens that may follow `tokens`, the translation so far; None: all tokens may."""
        if len(tokens) < len(asked.ids):
            return [asked.ids[len(tokens)]]
        spelt = self.spelling.spelt(tokens[len(asked.ids) :])
        if len(spelt) >= len(asked.rest) or not asked.rest.startswith(spelt):
            return None
        continuing = self.spelling.continuing(asked.rest[len(spelt) :])
        return [*continuing, *self.ends] if asked.rest == b" " else continuing


class NextWords(RowRule):
    """Logits processor, applied after `PrefixProcessor`, with which a beam search finds the likeliest next words.

    All tokens that end a word (those that begin with white space, in a script without spaces all tokens, and end
    tokens) are merged into one end token with the sum of their probabilities. So each hypothesis is one word. The sum
    of its scores is ln P(word | prefix) where the prefix ends with a whole word; where the prefix ends inside of a
    word, it is ln P of the completed word given the words before.
    """

    def __init__(self, spelling: Spelling, prefixes: Sequence[Asked], forced: int, ends: Sequence[int]):
        """Arguments: as of `PrefixProcessor`; ends[0] is the token into which all that end a word are merged."""
        super().__init__(spelling, prefixes, forced, ends)
        self.spaced, self.whole, self.silent = (torch.empty(0, dtype=torch.bool) for _ in range(3))

    def _sort_tokens(self, scores: Tensor) -> None:
        self.spaced, self.whole, self.silent = scores.new_zeros(3, scores.shape[1], dtype=torch.bool)
        self.silent |= True
        for spelt, token in self.spelling.ordered:
            self.spaced[token], self.silent[token] = spelt[:1].isspace(), False
            self.whole[token] = not 0x80 <= spelt[0] < 0xC0  # the token's first byte begins a character
        self.spaced[self.ends] = self.whole[self.ends] = True

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns ln P (rows, vocabulary) of tokens that continue the word, and of its end in ends[0], -inf elsewhere;
        input_ids: (rows, length)."""
        if self.start is None:
            self._sort_tokens(scores)
        start = self.begin(input_ids)
        if input_ids.shape[1] < start:
            return scores
        new = scores.log_softmax(-1)
        for row, (asked, tokens) in enumerate(zip(self.rows, input_ids[:, start:].tolist(), strict=True)):
            if len(tokens) < len(asked.ids):
                continue
            spelt = self.spelling.spelt(tokens[len(asked.ids) :])
            if asked.rest.strip() and len(spelt) < len(asked.rest):
                new[row] = scores[row]  # ln P among all tokens, not only among those that the prefix allows
            word = self.word(asked, spelt)
            closing = self.whole if word and is_unspaced(word) else self.spaced
            ends = word is not None or (not spelt and asked.rest.isspace())  # the prefix may be the whole translation
            end = new[row, closing if word else self.ends].logsumexp(0) if ends else -torch.inf
            new[row].masked_fill_(closing if word or spelt else self.silent, -torch.inf)
            new[row].masked_fill_(self.silent, -torch.inf)[self.ends[0]] = end
        return new

    def word(self, asked: Asked, spelt: bytes) -> str | None:
        """Returns the word in `spelt`, the bytes after `asked.ids`; None while they are no word yet."""
        if len(spelt) < len(asked.rest):
            return None
        beyond = is_unspaced(asked.rest.decode(errors="replace"))
        try:
            return (spelt[len(asked.rest) :] if beyond else spelt).decode().strip() or None
        except UnicodeDecodeError:
            return None


class ForbiddenPhrases(RowRule):
    """Logits processor that forbids phrases as whole words, by whatever tokens they are spelt.

    Phrases are matched byte by byte (Knuth, Morris and Pratt 1977): the state is how many bytes of a phrase the row's
    text ends with. The tokens that would complete the phrase, with a word boundary after it, are found once for each
    state. In scripts without spaces a phrase is forbidden inside of words, too.
    """

    def __init__(
        self, spelling: Spelling, phrases: Sequence[Sequence[str]], ends: Iterable[int], forced: int, longest: int
    ):
        """phrases: those of each sentence. longest: the largest number of tokens that are generated."""
        super().__init__(spelling, [[Pattern.of(text) for text in of_text] for of_text in phrases], forced, ends)
        self.longest = longest
        self.known: dict[tuple[Pattern, int, bool], Tensor] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Sets the scores (rows, vocabulary) of tokens that complete a phrase to -inf, in place, and returns all;
        input_ids: (rows, length)."""
        start = self.begin(input_ids)
        last = input_ids.shape[1] - start + self.forced + 1 >= self.longest
        for row, (phrases, tokens) in enumerate(zip(self.rows, input_ids[:, start:].tolist(), strict=True)):
            text = plain(b" " + self.spelling.spelt(tokens).lstrip()) if phrases else b""
            for some in self.forbidden_by(phrases, text, last):
                scores[row, some] = -torch.inf
        return scores

    def forbidden_by(self, phrases: Sequence[Any], text: bytes, last: bool) -> list[Tensor]:
        """Returns for each of a row's phrases the tokens that it forbids after the text so far."""
        return [self.completing(each, text, last) for each in phrases]

    def completing(self, pattern: Pattern, text: bytes, last: bool) -> Tensor:
        """Returns the tokens that would complete a phrase after a text; last: no further token will be generated."""
        state, whole = pattern.follow(0, text[-len(pattern.text) - 1 :]) or 0, len(pattern.text)
        if (pattern, state, last) not in self.known:
            complete = (None, whole) if last else (None,)
            begun = (pattern.text[:size] for size in range(1, state + 1))
            rests = {pattern.text[len(end) :] for end in begun if pattern.text[:state].endswith(end)} - {b""}
            likely = self.spelling.beginning_with(rests, pattern.text.lstrip())
            found = [number for of_token, number in likely if pattern.follow(state, of_token) in complete]
            found += [*self.spelling.apart, *self.ends] if state == whole else []
            self.known[pattern, state, last] = torch.tensor(found, dtype=torch.long)
        return self.known[pattern, state, last]


class WholePart(NamedTuple):
    """A kept part of the source as bytes, and how often a translation must have it, alone or in another kept part.

    `there` finds the part; `end` finds it at the end of a text, also with a sign (as "." or "-") after it that could
    join it to further characters.
    """

    pattern: Pattern
    times: int
    there: re.Pattern[bytes]
    end: re.Pattern[bytes]

    @classmethod
    def of(cls, part: str, counts: Mapping[str, int]) -> WholePart:
        """Makes the rule for one kept part of a source. counts: {kept part: how often the source has it}."""
        found = rb"(?<![\w\x80-\xff])" * part[0].isalnum() + re.escape(plain(part.encode()))
        there = re.compile(found + rb"(?![\w\x80-\xff])" * part[-1].isalnum())
        times = sum(number * len(there.findall(plain(other.encode()))) for other, number in counts.items())
        joining = rb"([.,:/]?)\Z" if part[-1].isdigit() else rb"([.,:/@#?&=_-]?)\Z"
        pattern = Pattern(plain((" " * part[0].isalnum() + part).encode()), part[-1].isalnum())
        return cls(pattern, times, there, re.compile(found + joining))


class WholeParts(ForbiddenPhrases):
    """Logits processor that forbids letters and digits right after a kept part, and a kept part more often than the
    source has it."""

    def __init__(
        self, spelling: Spelling, parts: Sequence[Mapping[str, int]], ends: Iterable[int], forced: int, longest: int
    ):
        """parts: of each sentence {kept part: how often the source has it}. Other arguments: as of ForbiddenPhrases."""
        super().__init__(spelling, [], ends, forced, longest)
        self.rows = [[WholePart.of(part, counts) for part in counts] for counts in parts]

    def forbidden_by(self, phrases: Sequence[WholePart], text: bytes, last: bool) -> list[Tensor]:
        found = []
        for part in phrases:
            more = len(part.there.findall(text)) - part.times
            at = part.end.search(text) if part.pattern.as_word else None
            if more > 0 or (more == 0 and (at is None or at[1])):
                found.append(self.completing(part.pattern, text, last))
            if at and more <= 0 and not any(at[0] in other.pattern.text for other in phrases if other is not part):
                found.append(self.spelling.going_on)
        return found


class Pattern(NamedTuple):
    """The bytes of a phrase, with a space before a word; as_word: a word boundary must follow the phrase."""

    text: bytes
    as_word: bool

    @classmethod
    def of(cls, phrase: str) -> Pattern:
        unspaced = is_unspaced(phrase)
        return cls(plain((phrase if unspaced else f" {phrase}").encode()), not unspaced)

    def follow(self, state: int, spelt: bytes) -> int | None:
        """Reads further bytes of a text; returns how many bytes of the phrase the text ends with, None once the phrase
        is complete.

        state: how many bytes of the phrase the text before `spelt` ends with.
        """
        for byte in spelt:
            goes_on = _goes_on(byte)
            if state == len(self.text) and not goes_on:
                return None
            seen = self.text[:state] + bytes([byte])
            sizes = range(min(len(seen), len(self.text)), -1, -1)
            state = next(size for size in sizes if seen.endswith(self.text[:size]))
            if not self.as_word and state == len(self.text):
                return None
            if self.text.startswith(b" ") and not state and not goes_on:
                state = 1  # a byte of no letter or digit counts as the space before a phrase
        return state


def _goes_on(byte: int) -> bool:
    return byte >= 128 or chr(byte).isalnum()


def plain(spelt: bytes) -> bytes:
    """Replaces quotes, dashes and spaces beyond ASCII by spaces."""
    return re.sub(rb"\xe2\x80[\x80-\xbf]|\xc2[\xa0-\xbf]", b" ", spelt)
