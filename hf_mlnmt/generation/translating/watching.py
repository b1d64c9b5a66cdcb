"""Watches translations: marks those that are probably wrong, has them searched once more, and keeps the better one.

| warning | what is seen | searched again |
| --- | --- | --- |
| loop | an n-gram that comes again and again, and does not in the source | without repeated n-grams |
| omission | far fewer characters or sentences, or a run of source words without a link | longer ones preferred |
| length | more than twice as many characters as usual | without repeated n-grams |
| copy | most of the source's words, between two languages | without the source's n-grams |
| lost | placeholders, addresses, codes and numbers above 12 that are not there | with other beams |

A piece of several sentences is searched again sentence by sentence, one of which much is left out in parts of up to
PART tokens. What is seen depends on source and translation alone, not on other texts: batches and resumed files have
the same translations.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hf_mlnmt.common.languages import base_language
from hf_mlnmt.data.placeholders import lost
from hf_mlnmt.generation.translating.hypotheses import Hypothesis
from hf_mlnmt.generation.translating.options import CONSTRAINTS
from hf_mlnmt.generation.translating.segments import (
    CutText,
    EncodedPiece,
    TextPiece,
    sentences_of,
    split_sentences,
    split_to_fit,
)

if TYPE_CHECKING:
    from hf_mlnmt.generation.translating.alignments import Link
    from hf_mlnmt.generation.translating.call import TranslationCall

RATIO = "length_ratio"  # key of a generation config: characters of translations divided by those of sources
LONGEST_UNIT = 12  # most words, or characters of a script without spaces, of an n-gram that a loop repeats
LONG_WORD = 24  # words of more characters than this are searched for loops inside of them
FEWEST_WORDS = 3  # a source with fewer words in small letters may be a name, which may be copied
PART = 40  # tokens
SMALL = 12  # a number up to this may be written as a word
_SIGNS = re.compile(r"[\d_%{<$@:!]|\w\.\w")  # a text without a match holds no placeholder, address, code or number
_IDEOGRAPHS = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_SYLLABLES = re.compile(r"[\u3040-\u30ff\uac00-\ud7af]")
# Words with spaces or marks of a sentence around them: those of paths, tags and identifiers are no words of a language.
_WORDS = re.compile(r"(?:(?<=[\s\"'(«»„“‘¿¡])|^)[^\W\d_]{2,}(?=[\s.,;:!?…\"')«»”’]|$)(?![.:]\S)")


def warnings_of(
    source: str, hypothesis: Hypothesis, two_languages: bool = False, ratio: float | None = None
) -> tuple[str, ...]:
    """Returns the names of the faults that a translation probably has, by the table above.

    two_languages: whether source and target language are known to differ. ratio: the model's own, if it is known.
    """
    found, text = [], hypothesis.text
    if is_loop(source, text):
        found.append("loop")
    size, usual = size_of(text), size_of(source) * (ratio or 1.0)
    far = (size - usual) / math.sqrt(usual or 1.0)  # about in standard deviations of lengths (Gale and Church 1993)
    if hypothesis.finished and (
        (far < (-2.8 if ratio else -3.4) and size < (0.58 if ratio else 0.52) * usual)
        or (size < 0.75 * usual and len(split_sentences(text)) < len(split_sentences(source)))
        or (hypothesis.alignment is not None and is_unvisited(source, hypothesis.alignment))
    ):
        found.append("omission")
    if far > 6 and size > 2 * usual:
        found.append("length")
    if two_languages and is_copy(source, text):
        found.append("copy")
    if _SIGNS.search(source) and any(not part.isdigit() or int(part) > SMALL for part in lost(source, text)):
        found.append("lost")
    return tuple(found)


def size_of(text: str) -> int:
    """Counts the characters of a text: an ideograph as 3, a kana or hangul as 2, for an alphabet needs so many."""
    if text.isascii():
        return len(text)
    return len(text) + 2 * len(_IDEOGRAPHS.findall(text)) + len(_SYLLABLES.findall(text))


def is_loop(source: str, text: str) -> bool:
    """Returns whether a translation repeats an n-gram more often than its source repeats one."""
    words = text.split()
    if len(words) - len(set(words)) >= 2:
        times, of_source = repeats(words), source.split()
        if times > 2 and times > repeats(of_source) + 1:
            return True
        most, of_source_most = _most_frequent(words), _most_frequent(of_source)
        if most > max(3, of_source_most + 1) and 9 * most >= len(words):
            return True
    longest = max(words, key=len, default="")
    if size_of(longest) > LONG_WORD:
        times = repeats(longest)
        return times > 4 and times > repeats(max(source.split(), key=len, default="")) + 1
    return False


def repeats(parts: Sequence[str]) -> int:
    """Returns the largest number of times that an n-gram of up to LONGEST_UNIT parts comes in a row."""
    best = 1
    for unit in range(1, min(LONGEST_UNIT, len(parts) // 2) + 1):
        run = 0
        for same in map(str.__eq__, parts[unit:], parts):
            run = run + 1 if same else 0
            if run >= unit * best:
                best = run // unit + 1
    return best


def _most_frequent(words: Sequence[str]) -> int:
    return max(Counter(zip(words, words[1:], words[2:])).values(), default=0)


def is_unvisited(source: str, links: Sequence[Link]) -> bool:
    """Returns whether a run of source words, at least 6 and a quarter of all, is linked to no translated word."""
    visited, words = {i for i, _ in links}, len(source.split())
    ends = sorted({-1, *visited, words})
    return max(end - begin - 1 for begin, end in pairwise(ends)) >= max(6, words / 4)


def is_copy(source: str, text: str) -> bool:
    """Returns whether a translation repeats 4/5 of its source's words in small letters, or a source without case."""
    if not source.isascii() and not any(map(str.islower, source)):  # taken as a script without case
        return len(source) > LONG_WORD / 2 and source.strip() in text
    there = set(_WORDS.findall(text))
    words = [word for word in _WORDS.findall(source) if word.islower()]
    return len(words) >= FEWEST_WORDS and sum(word in there for word in words) >= 0.8 * len(words)


class Watch:
    """Marks translations of a call that are probably wrong, and searches their pieces once more; `again` counts these.

    `watch(inputs, found, between)` returns the hypotheses of the pieces `inputs`, which `found` returns, the better
    ones of marked pieces; those that are still marked have `warnings`.
    """

    def __init__(self, call: TranslationCall) -> None:
        self.call, self.again = call, 0
        self.ratio = getattr(call.parts.model.generation_config, RATIO, None)
        self.two_languages = len({base_language(str(code)) for code in call.languages if code}) == 2

    def __call__(
        self, inputs: Sequence[EncodedPiece], found: Callable[[], list[list[Hypothesis]]], between: Any
    ) -> list[list[Hypothesis]]:
        results = found()
        ways, marked = defaultdict[str, list[int]](list), dict[int, tuple[str, ...]]()
        for i, (piece, ranked) in enumerate(zip(inputs, results, strict=True)):
            if names := self.warnings(piece, ranked[0]):
                marked[i] = names
                ways["parts" if len(self.parts(piece, names)) > 1 else names[0]].append(i)
        if marked:
            results, self.again = list(results), self.again + len(marked)
        for way, numbers in ways.items():
            second = self._searched(way, [inputs[i] for i in numbers], [marked[i] for i in numbers], between)
            for place, i in enumerate(numbers):
                best, names = results[i][0], marked[i]
                if second and len(after := self.warnings(inputs[i], second[place])) < len(names):
                    best, names = second[place], after
                results[i] = [replace(best, warnings=names)]
        return results

    def warnings(self, piece: EncodedPiece, hypothesis: Hypothesis) -> tuple[str, ...]:
        """Returns the names of the faults that a piece's translation probably has."""
        return warnings_of(piece.source or piece.text, hypothesis, self.two_languages, self.ratio)

    def parts(self, piece: EncodedPiece, names: Sequence[str]) -> list[TextPiece]:
        """Returns the parts of a piece that are searched one by one; [] where constraints hold for the whole piece."""
        if any(getattr(self.call.options, name) for name in (*CONSTRAINTS, "bad_phrases")):
            return []
        sentences = sentences_of(TextPiece(piece.text, ""))
        if len(sentences) == 1 and "omission" in names and len(piece.ids) > PART:
            return split_to_fit(piece.text, PART, self.call.encoder.lengths)
        return sentences

    def _searched(
        self, way: str, pieces: list[EncodedPiece], names: list[tuple[str, ...]], between: Any
    ) -> list[Hypothesis]:
        """Searches pieces in the way of a warning; returns the translation of each, none where that cannot be done."""
        with suppress(ValueError):  # where the model or an option forbids the changed arguments
            if way != "parts":
                return [best[0] for best in self._call(way).search(pieces, between).result()]
            cut = [self.parts(piece, of_piece) for piece, of_piece in zip(pieces, names, strict=True)]
            ids = iter(self.call.encoder([part.text for parts in cut for part in parts]))
            parts = [p._replace(ids=next(ids), text=part.text) for p, of_p in zip(pieces, cut) for part in of_p]
            each = iter(self._call("").search(parts, between).result())
            return [self.call.whole(CutText(0, of_p, []), [next(each) for _ in of_p])[0] for of_p in cut]
        return []

    def _call(self, way: str) -> Any:
        """Returns a copy of the call that is not watched, with the arguments of generate() for a warning."""
        call, options = copy.copy(self.call), self.call.options
        call.watch, call.constraints = None, copy.copy(call.constraints)
        call.constraints.unmet, call.constraints.put_back = [], []
        call.arguments = arguments = dict(call.arguments)
        beams = arguments["num_beams"]
        if way and options.recombine is None and not arguments.get("num_beam_groups"):
            arguments["num_beams"] = 2 * beams if way == "lost" else beams + 1
            arguments["length_penalty"] = call.penalty
        if way in ("loop", "length"):
            arguments["no_repeat_ngram_size"] = 3
        elif way == "omission" and "length_penalty" in arguments:
            arguments["length_penalty"] = replace(call.penalty, exponent=min(call.penalty.exponent + 1, 10.0))
        elif way == "copy" and call.parts.source is call.parts.target:
            arguments["encoder_no_repeat_ngram_size"] = 3
        return call
