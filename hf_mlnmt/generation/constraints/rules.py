"""Makes logits processors and constraints for the search of each piece from the options of a call.

Options: prefixes, glossary terms, phrases that translations must or must not have, parts of the source to be kept.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hf_mlnmt.common.errors import OptionError
from hf_mlnmt.data.placeholders import Kept, Part, replaced
from hf_mlnmt.data.tokenizer import decode
from hf_mlnmt.generation.constraints.lexical_constraints import (
    Asked,
    Demand,
    ForbiddenPhrases,
    PrefixProcessor,
    Terms,
    WholeParts,
    as_word,
    constraints_of,
    is_met,
    phrases_of,
    spelling_of,
)
from hf_mlnmt.generation.constraints.linked import KeptPart, Linked, filled
from hf_mlnmt.generation.translating.hypotheses import Hypothesis
from hf_mlnmt.generation.translating.options import OF_TEXTS, DecodingOptions
from hf_mlnmt.generation.translating.segments import EncodedPiece, TextEncoder, sentences_of, split_lines
from hf_mlnmt.search.rules import Constraints

if TYPE_CHECKING:
    from hf_mlnmt.generation.translating.loading import Parts

logger = logging.getLogger(__name__)


class TextConstraints:
    """Makes demands on each piece's translation, and rules (logits processors, constraints) for its search.

    Args:
        first_line: number of the first text. first: tokens that are forced before a translation (a language code).
        ends: ids of end tokens. longest: the largest number of tokens that are generated.
    """

    def __init__(
        self,
        options: DecodingOptions,
        parts: Parts,
        encoder: TextEncoder,
        first_line: int,
        first: list[int],
        ends: set[int],
        longest: int,
    ) -> None:
        self.options, self.encoder, self.first_line = options, encoder, first_line
        self.first, self.skipped, self.ends, self.longest = first, len(first), ends, longest
        self.target, self.processing = parts.target, parts.target_processing
        self.keep = Kept(options.keep) if options.keep else None
        known = getattr(parts.model.generation_config, "placeholders", None) or {}
        # {pattern of kept parts: the token that stood for such parts in the model's training data}
        self.placeholders = {pattern: token for token, pattern in known.items()}
        self.put_back: list[int] = []  # numbers of lines with a part that was inserted after the search
        self.unmet: list[tuple[int, str]] = []  # (number of a line, term or phrase that its translation lacks)

    @property
    def spelling(self) -> Any:
        """Returns the bytes of the target tokenizer's tokens, made at the first use."""
        return spelling_of(self.target)

    @cached_property
    def terms(self) -> Terms | None:
        """Returns the glossary; None without the option `terms`."""
        options = self.options
        if not options.terms:
            return None
        assert isinstance(options.terms, dict)  # DecodingOptions has read a file into a dict
        return Terms(options.terms, options.terms_ignore_case, self.spelling, self.processing)

    def of_line(self, name: str, line: int) -> Any:
        """Returns a line's value of an option of OF_TEXTS, "" for none. Raises: OptionError for too short a list."""
        given, number = getattr(self.options, name), line - self.first_line
        if given is None or isinstance(given, str):
            return given or ""
        if number >= len(given):
            raise OptionError(f"{name}: {len(given)} given, but there is a text {number + 1}: give one for each.")
        return given[number] or ""

    def check_pieces(self, line: int, pieces: int) -> None:
        """Raises UserError where a line has several pieces and an option is for one of them, but does not name it."""
        if pieces < 2:
            return
        if self.of_line("force_phrases", line):
            raise OptionError(
                f"force_phrases of line {line}: its {pieces} sentences or parts are translated one by one, and none of "
                "them is named: give a sentence a line, or split='long' (--split long)."
            )
        if self.options.alternatives:
            raise OptionError(f"alternatives of line {line}: it has {pieces} sentences or parts: give one of them.")
        prefix = self.of_line("target_prefix", line)
        if isinstance(prefix, str) and sum(len(sentences_of(piece)) for piece in split_lines(prefix)) > 1:
            raise OptionError(
                f"target_prefix of line {line}: holds several sentences, and the line's {pieces} sentences "
                "or parts are translated one by one: give what the first one's translation begins with."
            )

    # Kept parts of the source

    def with_kept(self, inputs: list[EncodedPiece]) -> list[EncodedPiece]:
        """Returns the pieces with their kept parts, which are replaced by the model's placeholders if it has any."""
        if self.keep is None:
            return inputs
        marked: list[EncodedPiece] = []
        for piece, parts in zip(inputs, self.keep([piece.text for piece in inputs]), strict=True):
            given = self.of_line("bad_phrases", piece.line)
            bad = [text for each in phrases_of(given, "bad_phrases") for text in each] if given else []
            kept = [part for part in parts if not any(re.search(as_word(text), part.text) for text in bad)]
            if len(kept) < len(parts):
                logger.warning("line %d: a part is not kept, for it has a phrase that must not be there", piece.line)
            # An option of this line may name a part, or begin one: then no placeholder replaces its text.
            given = "".join(str(self.of_line(name, piece.line)) for name in OF_TEXTS)
            tokens = ("" if part.text[0] in given else self._token_of(part, piece.text) for part in kept)
            kept = [part._replace(token=token) for part, token in zip(kept, tokens)]
            ids = piece.ids
            if (text := replaced(piece.text, kept)) != piece.text:
                (ids,) = self.encoder([text])
                if self.encoder.limit is not None and len(ids) > self.encoder.limit:
                    kept, ids = [part._replace(token="") for part in kept], piece.ids
                    text = replaced(piece.text, kept)
            shown = tuple(self._kept_part(part, piece.text) for part in kept)
            marked.append(piece._replace(ids=ids, source=piece.text, text=text, kept=shown))
        return marked

    def _token_of(self, part: Part, text: str) -> str:
        """Returns the model's placeholder for a part; "" if the model has none for the part's pattern, if the text has
        the placeholder itself, or the part is several words."""
        token = self.placeholders.get(part.pattern, "")
        return "" if token in text or len(part.text.split()) > 1 else token

    def _kept_part(self, part: Part, source: str) -> KeptPart:
        text = part.token or part.text
        joined = part.start > 0 and not source[part.start - 1].isspace()
        ids = self.spelling.inside(text, self.processing, joined)
        if ids and not part.token:
            text = self.processing.undo(decode(self.spelling.tokenizer, ids[:1])[0]).strip()
        return KeptPart(part, text, ids)

    def is_unclear(self, piece: EncodedPiece, hypotheses: Sequence[Hypothesis]) -> bool:
        """Returns whether an alignment is needed to place a piece's kept parts: one placeholder stands for several
        different parts, or a translation lacks a part."""
        if len({each.part.text for each in piece.kept}) > len(_times(piece)):
            return True
        return any(filled(piece.source, each.text, piece.kept, ())[1] for each in hypotheses)

    def with_parts(self, piece: EncodedPiece, hypothesis: Hypothesis) -> Hypothesis:
        """Returns a hypothesis whose placeholders are replaced by the kept parts; inserts missing parts by its
        alignment."""
        if not piece.kept:
            return hypothesis
        text, missing = filled(piece.source, hypothesis.text, piece.kept, hypothesis.alignment or ())
        new = replace(hypothesis, text=text)
        if missing:
            self.put_back.append(piece.line)
            linked, own = Linked(piece.source, text, hypothesis.alignment), {each.part.text for each in piece.kept}
            places = [(each.part.text, each.part.start, each.part.end) for each in piece.kept]
            before = linked.put_back(missing, places, lambda word: [(part, 0, 0) for part in own if part in word])
            sure = hypothesis.word_confidences
            if sure is not None and len(before) == len(linked.target.split()):
                sure = tuple(1.0 if was is None else sure[was] for was in before)
            new = replace(new, text=linked.target, alignment=linked.links, word_confidences=sure)
        return new if self.options.alignments else replace(new, alignment=None)

    # Demands on a translation

    def demands(self, piece: EncodedPiece) -> list[Demand]:
        """Returns what the translation of a piece must have: terms, phrases, and kept parts that can be spelt."""
        terms = self.terms.of(piece.text) if self.terms else {}
        demands = {name: Demand(name, ids) for name, ids in {**terms, **self._forced(piece)}.items()}
        # Of equal parts the one with the most tokenizations: those of a part that is joined to what stands before it.
        spelt = {each.shown: each.ids for each in sorted(piece.kept, key=lambda each: len(each.ids)) if each.ids}
        return [*demands.values(), *(Demand(shown, ids, _times(piece)[shown]) for shown, ids in spelt.items())]

    def _forced(self, piece: EncodedPiece) -> dict[str, list[list[int]]]:
        """Returns {phrase: tokenizations of its alternatives} for the phrases that a piece's translation must have."""
        if not (given := self.of_line("force_phrases", piece.line)):
            return {}
        return {
            " or ".join(each): [ids for text in each for ids in self.spelling.inside(text, self.processing)]
            for each in phrases_of(given, f"force_phrases of line {piece.line}")
        }

    def unmet_of(self, piece: EncodedPiece, demands: Sequence[Demand], translation: str) -> list[tuple[int, str]]:
        """Returns (line, name) of each term and phrase that the translation of a piece lacks."""
        terms = {each.name: map(self._shown, each.ids) for each in demands if each.name not in _times(piece)}
        return [(piece.line, name) for name in terms if not is_met(translation, terms[name])]

    def _shown(self, ids: Sequence[int]) -> str:
        """Decodes tokens to text and undoes the text processing, as for a finished translation."""
        return self.processing.undo(self.spelling.spelt(ids).decode(errors="replace").strip())

    # Logits processors and constraints of a search

    def rules(self, inputs: Sequence[EncodedPiece], demands: Sequence[Sequence[Demand]] | None) -> list[Any]:
        """Returns the logits processors and constraints of a batch's search; demands: of each piece, None: search
        without demands."""
        rules: list[Any] = [*self._prefixes(inputs), *self.forbidden(inputs)]
        if demands is not None:
            rules.append(Constraints([constraints_of(each) for each in demands]))
        if any(piece.kept for piece in inputs):
            counts = list(map(_times, inputs))
            rules.append(WholeParts(self.spelling, counts, self.ends, self.skipped, self.longest))
        return rules

    def beginning(self, piece: EncodedPiece) -> Asked:
        """Returns the beginning that a piece's translation must have: the piece's `begins`, else the line's
        target_prefix (a string is for the first piece, a tuple has an entry for each piece). Raises: UserError for a
        target_prefix that is as long as the longest translation."""
        where, given = f"target_prefix of line {piece.line}", self.of_line("target_prefix", piece.line)
        of_pieces = [given] if isinstance(given, str) else given
        text = of_pieces[piece.number] if piece.number < len(of_pieces) else ""
        asked = piece.begins or self.spelling.prefix(text, self.processing, where)
        needed = len(asked.ids) + bool(asked.rest)
        if needed + self.skipped >= self.longest and piece.begins is None:
            raise OptionError(f"{where}: takes {needed} tokens and more, of {self.longest}: raise max_new_tokens.")
        return asked

    def _prefixes(self, inputs: Sequence[EncodedPiece]) -> list[PrefixProcessor]:
        if self.options.target_prefix is None and not self.options.alternatives:
            return []
        asked = [self.beginning(piece) for piece in inputs]
        ends = [token for token in self.ends if token is not None] if self.options.alternatives else []
        return [PrefixProcessor(self.spelling, asked, self.skipped, ends)] if any(map(any, asked)) else []

    def forbidden(self, inputs: Sequence[EncodedPiece]) -> list[ForbiddenPhrases]:
        """Returns the logits processor that forbids the bad phrases, in a list; an empty list if there are none.

        Raises: UserError where a phrase that a line's translation must have holds a bad phrase.
        """
        lines = [piece.line for piece in inputs]
        given = [self.of_line("bad_phrases", line) for line in lines] if self.options.bad_phrases else []
        of_terms = [self.terms.forbidden(piece.text) if self.terms else [] for piece in inputs]
        if not any(given) and not any(of_terms):
            return []
        given = given or [""] * len(inputs)
        phrases = [
            [text for each in phrases_of(text, f"bad_phrases of line {line}") for text in each] if text else []
            for line, text in zip(lines, given, strict=True)
        ]
        for line, bad in zip(lines, phrases, strict=True):
            for each in phrases_of(self.of_line("force_phrases", line) or [], "force_phrases") if bad else ():
                if all(any(re.search(as_word(text), form) for text in bad) for form in each):
                    what = f"force_phrases of line {line}: {each[0]!r} has what must not be there (bad_phrases)"
                    raise OptionError(f"{what}. Leave one of the two out.")
        phrases = [[*bad, *more] for bad, more in zip(phrases, of_terms)]
        return [ForbiddenPhrases(self.spelling, phrases, self.ends, self.skipped, self.longest)]


def _times(piece: EncodedPiece) -> Counter[str]:
    """Counts how often each kept part (as `shown`) must be in the translation of a piece."""
    return Counter(each.shown for each in piece.kept)
