"""Translates the texts of a call: cuts texts into pieces, searches batches of pieces, joins the results, warns."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from hf_mlnmt.common.languages import direction_of
from hf_mlnmt.data.directions import code_tokens
from hf_mlnmt.data.words import is_visible
from hf_mlnmt.generation.translating.batches import batches_by_tokens
from hf_mlnmt.generation.translating.casing import Written, in_sentence_case, may_be
from hf_mlnmt.generation.translating.hypotheses import Candidate, Hypothesis
from hf_mlnmt.generation.translating.options import OF_TEXTS, DecodingOptions
from hf_mlnmt.generation.translating.searching import BatchSearch, Pending
from hf_mlnmt.generation.translating.segments import (
    CutText,
    EncodedPiece,
    TextPiece,
    check_characters,
    join,
    sentences_of,
)
from hf_mlnmt.generation.translating.watching import Watch
from hf_mlnmt.zoo.systems import positions_of

if TYPE_CHECKING:
    from hf_mlnmt.generation.translating.pipeline import TranslationPipeline

logger = logging.getLogger(__name__)
PART = 128  # texts that a second thread cuts and encodes before it pauses for the thread that searches


class TranslationCall(BatchSearch):
    """Translates the texts of a call: cuts them into pieces, searches batches of pieces, joins the results.

    `translate` does all three steps; a server calls them one by one: `cut`, `search` and `together`.
    """

    def __init__(self, pipeline: TranslationPipeline, options: DecodingOptions, first_line: int = 1) -> None:
        super().__init__(pipeline, options, first_line)
        self.empty = Hypothesis("", 0.0, 0.0, 0, alignment=() if options.alignments else None)
        self.codes = tuple(code_tokens(self.parts.source))
        self.watch = Watch(self) if options.is_watched else None
        self.doubtful: list[tuple[int, tuple[str, ...]]] = []  # (number of a line, its translation's warnings)
        self.unfinished = 0
        self.typed_codes: list[int] = []  # numbers of lines that begin with a language code, for a warning
        self.of_several: list[int] = []  # numbers of lines of several sentences, for a warning

    @cached_property
    def languages(self) -> tuple[str | None, str | None]:
        """Returns source and target code: as the options tell, else as model folder or tokenizer say; None: unknown."""
        of_tokenizer = [getattr(self.parts.source, f"{side}_lang", None) for side in ("source", "target")]
        said = (direction_of(self.name) if self.name else None) or of_tokenizer
        return self.options.told[0] or said[0], self.options.told[1] or said[1]

    def translate_groups(
        self, groups: Iterable[Sequence[str]], update: Callable[[int], Any], done: int = 0, read_ahead: bool = False
    ) -> Iterator[tuple[int, Sequence[str], list[list[Hypothesis]]]]:
        """Yields (line of the first text, texts, n-best list of each text) of each group; then calls `report`.

        The first `done` texts, whole groups of them, are skipped. read_ahead: on a GPU, encode the next group during
        the search of a group, and decode a group's results during the search of the next.
        """
        if self.options.seed is not None:
            torch.manual_seed(self.options.seed)
        yield from self._translated(_numbered(groups, done), update, read_ahead and self.ahead)
        self.report()

    def translate(self, texts: Sequence[str], first_line: int, update: Callable[[int], Any]) -> list[list[Hypothesis]]:
        """Returns n hypotheses for each text, best first; after each batch calls `update` with its number of texts."""
        ((_, _, results),) = self._translated([(first_line, texts)], update)
        return results

    def _translated(
        self, groups: Iterable[tuple[int, Sequence[str]]], update: Callable[[int], Any], read_ahead: bool = False
    ) -> Iterator[tuple[int, Sequence[str], list[list[Hypothesis]]]]:
        with ThreadPoolExecutor(1) if self.ahead else nullcontext() as beside:
            cut = ((line, texts, self._cutting(texts, line, beside)) for line, texts in groups)
            found = (
                self._searched_group(line, texts, pieces(), update, beside)
                for line, texts, pieces in (_one_ahead(cut) if read_ahead else cut)
            )
            for read in _one_ahead(found) if read_ahead else found:
                yield read()

    def _cutting(self, texts: Sequence[str], first_line: int, beside: Any) -> Callable[[], list[CutText]]:
        """Returns a function that returns the cut texts; with an executor `beside`, cutting begins at once in there."""
        if not beside:
            return partial(self.cut, texts, first_line)

        def cut_in_parts() -> list[CutText]:
            cut: list[CutText] = []
            for start in range(0, len(texts), PART):
                cut += self.cut(texts[start : start + PART], first_line + start)
                time.sleep(1e-4)
            return cut

        return beside.submit(cut_in_parts).result

    def _searched_group(
        self, line: int, texts: Sequence[str], cut: Sequence[CutText], update: Callable[[int], Any], beside: Any
    ) -> Callable[[], tuple[int, Sequence[str], list[list[Hypothesis]]]]:
        """Searches all pieces of a group in batches; returns a function that waits for its results."""
        pieces = [piece for text in cut for piece in text.inputs]
        searched: list[tuple[list[EncodedPiece], Pending]] = []
        lengths = [len(piece.ids) for piece in pieces]
        for batch in batches_by_tokens(lengths, self.options.batch_tokens, self.most, self.ahead):
            chosen = [pieces[i] for i in batch]
            searched.append((chosen, self.search(chosen, beside=beside)))
            update(sum(piece.number == 0 for piece in chosen))  # a text is counted with its first piece

        def read() -> tuple[int, Sequence[str], list[list[Hypothesis]]]:
            ranked = (each for chosen, found in searched for each in zip(chosen, found.result(), strict=True))
            found = {(piece.line, piece.number): hypotheses for piece, hypotheses in ranked}
            of_texts = ({piece.number: found[text.line, piece.number] for piece in text.inputs} for text in cut)
            return line, texts, [self.together(text, of_text) for text, of_text in zip(cut, of_texts)]

        return read

    def cut(self, texts: Sequence[str], first_line: int) -> list[CutText]:
        """Cuts texts into pieces and encodes these. Raises: UserError for an object that is no valid text."""
        sentences = self.options.split == "sentences"
        read, written = self._in_sentence_case(texts, first_line)
        pieces, ids = self.encoder.segments(read, self.options.split_long, first_line, sentences)
        places = ((line, *each) for line, of_text in enumerate(pieces, first_line) for each in enumerate(of_text))
        every = [EncodedPiece(own, line, n, piece.text) for own, (line, n, piece) in zip(ids, places, strict=True)]
        cut, encoded = [], iter(self.constraints.with_kept(every))
        for line, (text, of_text) in enumerate(zip(texts, pieces), first_line):
            if not sentences and any(len(sentences_of(piece)) > 1 for piece in of_text):
                self.of_several.append(line)
            if text.lstrip().startswith(self.codes):
                self.typed_codes.append(line)
            self.constraints.check_pieces(line, len(of_text))
            own = written[line - first_line] or [None] * (1 + len(of_text))
            # For each piece the number, from 0, of the line of its text in which it stands.
            numbers = accumulate(("\n" in piece.space for piece in of_text[:-1]), initial=0)
            hows = [own[number] for number, _ in zip(numbers, of_text)]
            inputs = [next(encoded)._replace(pieces=len(of_text), written=how) for how in hows]
            # No search for a piece that has no token of its own (stray control characters) or no visible character.
            searched = [piece for piece in inputs if len(piece.ids) > self.encoder.overhead and is_visible(piece.text)]
            cut.append(CutText(line, of_text, searched))
        if self.memory is None:
            return cut
        free = [not any(self.constraints.of_line(name, text.line) for name in OF_TEXTS) for text in cut]
        return self.memory.with_matches(texts, cut, free)

    def _in_sentence_case(self, texts: Sequence[str], first_line: int) -> tuple[list[str], list[list[Written | None]]]:
        """Returns the texts as they are read, and how the lines were written of those with one in sentence case."""
        for line, text in enumerate(texts, first_line):
            check_characters(text, f"line {line}")
        read, written = list(texts), [list[Written | None]() for _ in texts]
        overhead, keep = self.encoder.overhead, self.constraints.keep
        auto = self.options.case == "auto" and not self.options.alternatives
        for number in (number for number, text in enumerate(texts) if auto and may_be(text)):
            if not any(self.constraints.of_line(name, first_line + number) for name in OF_TEXTS):
                read[number], written[number] = in_sentence_case(
                    texts[number],
                    lambda forms: [length - overhead for length in self.encoder.lengths(forms)],
                    self.languages[0],
                    lambda text: [(part.start, part.end) for part in keep([text])[0]] if keep else [],
                )
        return read, written

    def search(self, inputs: Sequence[EncodedPiece], between: Any = None, beside: Any = None) -> Pending:
        """Searches a batch of pieces, and once more those whose translation is probably wrong (watching.py)."""
        found = super().search(inputs, between, beside)
        # Where a memory knows some pieces, this method is called once more with the others alone, and watches those.
        if self.watch is None or any(piece.known is not None for piece in inputs):
            return found
        return Pending(partial(self.watch, inputs, found.result, between))

    def forget_lines(self) -> None:
        """Forgets the lines that `report` would warn of."""
        self.typed_codes.clear()
        self.of_several.clear()
        self.doubtful.clear()
        self.constraints.put_back.clear()
        self.encoder.in_parts.clear()

    def together(self, text: CutText, of_pieces: Mapping[int, list[Hypothesis]]) -> list[Hypothesis]:
        """Returns a text's n-best list: hypothesis i joins hypothesis i of every piece; sorted by score."""
        ranks = [of_pieces.get(number, [self.empty] * self.count) for number in range(len(text.pieces))]
        for piece in (piece for piece in text.inputs if piece.written):
            put_back = partial(piece.written.put_back, language=self.languages[1])  # type: ignore[union-attr]
            ranks[piece.number] = [replace(each, text=put_back(each.text)) for each in ranks[piece.number]]
        whole = self.whole(text, ranks) if len(ranks) > 1 else (ranks or [[self.empty] * self.count])[0]
        self.unfinished += sum(not hypothesis.finished for hypothesis in whole)
        self.doubtful += [(text.line, whole[0].warnings)] if whole[0].warnings else []
        if text.origin is None:
            return whole
        return [replace(hypothesis, origin=text.origin, match=text.match) for hypothesis in whole]

    def whole(self, text: CutText, ranks: list[list[Hypothesis]]) -> list[Hypothesis]:
        """Returns a text's n-best list, hypothesis i joined from hypotheses i of its pieces; sorted by score."""
        whole = []
        for ranked in zip(*ranks, strict=True):
            joined_text = join([hypothesis.text for hypothesis in ranked], text.pieces)
            length = sum(hypothesis.length for hypothesis in ranked)
            total = sum(hypothesis.log_probability for hypothesis in ranked)
            new = self._hypothesis(joined_text, total, length, all(hypothesis.finished for hypothesis in ranked))
            if warnings := dict.fromkeys(name for hypothesis in ranked for name in hypothesis.warnings):
                new = replace(new, warnings=tuple(warnings))
            if self.chooser:
                new = replace(new, score=self.chooser.of_text([best.score for best in ranked if best.length]))
            if features := [each.features for each in ranked if isinstance(each, Candidate)]:
                new = Candidate(**vars(new), features=tuple(map(sum, zip(*features))))
            new = replace(new, alignment=_joined_alignment(ranked, text.pieces)) if self.options.alignments else new
            whole.append(self._sure(new, ranked) if self.options.confidence else new)
        return sorted(whole, key=lambda hypothesis: -hypothesis.score)

    def _sure(self, new: Hypothesis, ranked: Sequence[Hypothesis]) -> Hypothesis:
        """Returns a text's translation with the least confidence of its pieces and the confidences of all words."""
        sure = [piece.confidence for piece in ranked if piece.confidence is not None]
        words = [number for piece in ranked for number in piece.word_confidences or ()]
        return replace(new, confidence=min(sure, default=None), word_confidences=tuple(words))

    def summary(self) -> dict[str, Any]:
        """Returns counts for JSON: translations cut at the length limit, probably wrong ones for each kind of warning;
        with a translation memory also segments and words for each band of matches."""
        doubtful = Counter(name for _, names in self.doubtful for name in names)
        found: dict[str, Any] = {"cut": self.unfinished, "doubtful": dict(doubtful)}
        return found if self.memory is None else found | {"memory": self.memory.bands.to_dict()}

    def report(self) -> None:
        """Warns once about language codes in the text, lines of several sentences, terms, and the length limit."""
        shown = _counts(name for _, name in sorted(self.constraints.unmet))
        for lines, what, hint in (
            (
                self.typed_codes,
                "source lines that begin with a language code",
                "a code in the text does not choose the language, target_language does",
            ),
            (
                self.of_several,
                "lines that hold several sentences",
                "a model of single sentences may leave all but one out; split='sentences' (--split sentences) "
                "translates each",
            ),
            (
                self.encoder.in_parts,
                f"lines with a sentence that is longer than the {self.encoder.limit} tokens the model reads at once",
                "it is translated in parts, cut at commas, between words or characters",
            ),
            (
                self.constraints.put_back,
                "lines with a part that the search did not keep, or the vocabulary cannot spell",
                "it was put in where the alignment says",
            ),
            (
                sorted(line for line, _ in self.constraints.unmet),
                "terms that are not met",
                f"{shown}: they cannot be spelt, or found no place",
            ),
            (
                [line for line, _ in self.doubtful],
                "translations that are probably wrong",
                f"{_counts(name for _, names in self.doubtful for name in names)}: --doubtful FILE writes them; what "
                "each is: docs/decoding.md",
            ),
        ):
            if lines:
                logger.warning("%s: %d, the first is line %d; %s", what, len(lines), lines[0], hint)
        if self.memory is not None:
            bands = ", ".join(f"{name}: {one} ({two})" for name, one, two, _ in self.memory.bands.rows())
            logger.warning("segments (words) by their matches in the memory: %s", bands)
        if self.watch and self.watch.again:
            logger.info("searched once more, as what was found was probably wrong: %d", self.watch.again)
        if self.unfinished:
            more = self.longest < (positions_of(self.parts.model.config) or math.inf) - 1
            remedy = "raise max_new_tokens" if more else "the model has no more positions"
            logger.warning(
                "translations that reached the length limit and are cut there: %d; %s", self.unfinished, remedy
            )


def _counts(given: Iterable[str]) -> str:
    """Returns the 20 most frequent names, with their counts above 1."""
    counted = Counter(given).most_common()
    names = [f"{name} ({count})" if count > 1 else name for name, count in counted[:20]]
    return ", ".join([*names, "..."] if len(counted) > 20 else names)


def _joined_alignment(ranked: Sequence[Hypothesis], pieces: Sequence[TextPiece]) -> tuple[tuple[int, int], ...]:
    """Returns the alignment of a text from those of its pieces, words numbered through the whole text."""
    texts, before, found = [best.text for best in ranked], "", list[tuple[int, int]]()
    for number, (best, piece) in enumerate(zip(ranked, pieces, strict=True)):
        target = join([*texts[:number], ""], pieces[: number + 1])
        # The numbers of the words with which the piece's source and translation begin.
        first, second = (len(f"{text}x".split()) - 1 for text in (before, target))
        found += [(i + first, j + second) for i, j in best.alignment or ()]
        before += piece.text + piece.space
    return tuple(sorted(found))


def _numbered(groups: Iterable[Sequence[str]], done: int) -> Iterator[tuple[int, Sequence[str]]]:
    """Yields (line of the first text, texts) of each group; skips the first `done` texts."""
    line = 1
    for texts in groups:
        if line + len(texts) - 1 > done:
            yield line, texts
        line += len(texts)


def _one_ahead(items: Iterable[Any]) -> Iterator[Any]:
    """Yields each item after the next item was made; where making the next fails, yields the item, then raises."""
    before: list[Any] = []
    try:
        for item in items:
            yield from before
            before = [item]
    except (Exception, KeyboardInterrupt):
        yield from before
        raise
    yield from before
