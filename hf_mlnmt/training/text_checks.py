"""Signs that a training text is not in the language that the recipe says, seen before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.text import Overlap, TextSpec, read_text, word_overlap
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.generation.synthetic_methods import FEWEST, LINES, SHORT_PIECES, bytes_per_piece

FOREIGN = (
    0.2  # of the running words; of 200 lines two languages share some 5 to 15 in 100, two domains of one 40 and more
)
SMALLEST = 2000  # entries of a tokenizer; a smaller one cuts its own languages into short pieces too

Known = Mapping[str, Sequence[tuple[str, list[str]]]]
"""language -> texts that are said to be in it, each with its name."""


def doubts_about_texts(
    texts: Mapping[str, TextSpec],
    others: Sequence[CorpusSpec | TextSpec],
    root: Path,
    tokenizers: Tokenizers | None,
) -> Iterator[str]:
    """Warnings with their evidence: words that a text shares with the recipe's other corpora, pieces of a tokenizer.

    Args:
        texts: key of the recipe -> training text of one language, which its spec names.
        others: the recipe's pairs, and its development and test sets.
        tokenizers: of tokenizer.path; those that are trained here learn from the very text.
    """
    known = _known(others, root) if texts else {}
    for key, spec in texts.items():
        lines = [line for line in islice(read_text(spec, root), LINES) if line.split()]
        language = spec.language or ""
        if len(lines) < FEWEST:
            continue
        own, there = _most_alike(lines, known.get(language, ()))
        found = {other: _most_alike(lines, given) for other, given in known.items() if other != language}
        other = max(found, key=lambda name: found[name][0].share, default="")
        signs = []
        if other and found[other][0].share > max(own.share, FOREIGN):
            signs.append(f"{found[other][0]} stand in {found[other][1]}, which is '{other}'")
        if there and (signs or own.share < FOREIGN):
            signs.append(f"{own} in {there}, which is '{language}'")
        tokenizer = getattr(tokenizers, spec.side or "source", None)
        learnt = tokenizer is not None and len(tokenizer) >= SMALLEST
        if learnt and (size := bytes_per_piece(tokenizer, lines)) < SHORT_PIECES:
            signs.append(f"the tokenizer cuts them into pieces of {size:.1f} bytes")
        if signs:
            yield f"{key}: is it in '{language}'? Of its first {len(lines)} lines {' and '.join(signs)}."


def _known(specs: Sequence[CorpusSpec | TextSpec], root: Path) -> dict[str, list[tuple[str, list[str]]]]:
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for spec in specs:
        if isinstance(spec, TextSpec):
            sides = {spec.language or "": list(islice(read_text(spec, root), LINES))}
        else:
            pairs = list(islice(read_pairs(spec, root), LINES))
            languages = spec.languages or {}
            sides = {languages.get(side, ""): [pair[place] for pair in pairs] for place, side in enumerate(_SIDES)}
        for language, lines in sides.items():
            if language:
                found.setdefault(language, []).append((str(spec), lines))
    return found


_SIDES = ("source", "target")


def _most_alike(lines: Sequence[str], known: Sequence[tuple[str, list[str]]]) -> tuple[Overlap, str]:
    """The largest share of the lines' words that one of the known texts has, and its name."""
    overlaps = [(word_overlap(lines, others), name) for name, others in known]
    return max(overlaps, key=lambda pair: pair[0].share, default=(Overlap(0.0, ()), ""))
