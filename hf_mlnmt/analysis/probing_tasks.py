"""Probing tasks: sentences with a label each, in three parts; made from any raw text, without annotation.

References: Conneau et al. 2018, "What you can cram into a single $&!#* vector", section 2 (sentence length, word
content, bigram shift); thesis on joint attention, section 4.5.4.

| task | label | made how |
| --- | --- | --- |
| length | which of up to six groups of lengths, in words | about equally many training sentences a group |
| word-content | which of some words of middle frequency is in the sentence | sentences with just one of them |
| bigram-shift | whether two neighbouring words were swapped | in half of the sentences; not the first word |
| language | which language the sentence is in | equally many sentences of each |

Words are runs of letters; a sentence that stands in the text twice is taken once.

SentEval's probing files, those of Conneau et al.: one example a line, `tr`, `va` or `te`, a label and the sentence,
separated by tabs.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal, get_args

from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.errors import UserError

Part = Literal["train", "dev", "test"]
PARTS: tuple[Part, ...] = get_args(Part)
SIZES: tuple[int, int, int] = (100_000, 10_000, 10_000)
"""Of the parts, as in the papers; with less text eight, one and one tenth of it."""
_WORD = re.compile(r"[^\W\d_]+")
_FREQUENT = 100  # words that say too little: left out of word content
_FEWEST = 20  # sentences that a word of word content must be in


@dataclass(frozen=True)
class ProbingTask:
    """Sentences and their labels (indices into `classes`), by part."""

    name: str
    classes: list[str]
    texts: Mapping[Part, list[str]]
    labels: Mapping[Part, list[int]]

    @property
    def majority(self) -> float:
        """Returns the accuracy of always naming the test part's most frequent class."""
        return max(Counter(self.labels["test"]).values()) / len(self.labels["test"])


def build(name: str, examples: Mapping[Part, Sequence[tuple[str, str]]]) -> ProbingTask:
    """Makes a task from (label, text) by part; classes in alphabetical order, numbers by value.

    Raises: UserError for an empty part, one class only, or a class that training never sees.
    """
    if lacking := [part for part in PARTS if not examples.get(part)]:
        raise UserError(f"task {name}: no sentences for {', '.join(lacking)}. Give more text, or a complete file.")
    trained = {label for label, _ in examples["train"]}
    classes = sorted(trained, key=lambda label: label.zfill(9) if label.isdigit() else label)
    if len(classes) < 2:
        raise UserError(f"task {name}: every training sentence has the label {classes[0]!r}; expected at least two.")
    numbers = {label: number for number, label in enumerate(classes)}
    for part in PARTS:
        if unseen := sorted({label for label, _ in examples[part]} - trained):
            raise UserError(f"task {name}: label {unseen[0]!r} is in {part} and never in train.")
    texts = {part: [text for _, text in examples[part]] for part in PARTS}
    labels = {part: [numbers[label] for label, _ in examples[part]] for part in PARTS}
    return ProbingTask(name, classes, texts, labels)


def different(lines: Sequence[str]) -> list[str]:
    """Returns each line once, in alphabetical order, without empty ones."""
    return sorted({line.strip() for line in lines} - {""})


def split(lines: Sequence[str], seed: int, sizes: Sequence[int] = SIZES) -> dict[Part, list[str]]:
    """Shuffles different lines into parts of at most these sizes; of shorter text in shares of 8, 1 and 1."""
    shuffled = different(lines)
    random.Random(seed).shuffle(shuffled)
    if len(shuffled) < sum(sizes):
        tenth = min(len(shuffled) // 10, *sizes[1:])
        sizes = (min(len(shuffled) - 2 * tenth, sizes[0]), tenth, tenth)
    return {part: shuffled[end - size : end] for part, end, size in zip(PARTS, accumulate(sizes), sizes, strict=True)}


def length_task(lines: Sequence[str], seed: int = 1, sizes: Sequence[int] = SIZES, groups: int = 6) -> ProbingTask:
    """Makes a task of surface information: the sentence's length in words, in groups."""
    parts = split(lines, seed, sizes)
    counts = sorted(len(_WORD.findall(line)) for line in parts["train"])
    borders = range(1, groups) if counts else ()
    starts = sorted({counts[len(counts) * group // groups] for group in borders} - set(counts[:1]))
    names = [f"under {starts[0]}", *(f"{start} and more" for start in starts)] if starts else ["all"]

    def label(line: str) -> str:
        return f"{bisect_right(starts, len(_WORD.findall(line)))}"

    task = build("length", {part: [(label(line), line) for line in parts[part]] for part in PARTS})
    return ProbingTask(task.name, [names[int(number)] for number in task.classes], task.texts, task.labels)


def word_content_task(
    lines: Sequence[str], seed: int = 1, sizes: Sequence[int] = SIZES, count: int = 100
) -> ProbingTask:
    """Makes a task of surface information: which of `count` words (1,000 in the paper) the sentence has.

    The words: after the 100 most frequent ones of the text the next that are in at least 20 sentences.
    Raises: UserError if there are fewer than two such words.
    """
    sets = {line: {word.lower() for word in _WORD.findall(line)} for line in different(lines)}
    frequency = Counter(word for words in sets.values() for word in words)
    ranked = sorted(frequency, key=lambda word: (-frequency[word], word))[_FREQUENT:]
    chosen = {word for word in ranked[:count] if frequency[word] >= _FEWEST}
    if len(chosen) < 2:
        raise UserError(
            f"task word-content: {len(chosen)} words beyond the {_FREQUENT} most frequent ones are in {_FEWEST} "
            "sentences or more; expected at least two. Give more text."
        )
    parts = split([line for line, words in sets.items() if len(words & chosen) == 1], seed, sizes)
    examples = {part: [((sets[line] & chosen).pop(), line) for line in parts[part]] for part in PARTS}
    trained = {word for word, _ in examples["train"]}
    return build("word-content", {part: [x for x in examples[part] if x[0] in trained] for part in PARTS})


def bigram_shift_task(lines: Sequence[str], seed: int = 1, sizes: Sequence[int] = SIZES) -> ProbingTask:
    """Makes a task of syntactic information: is the order of words as people write it?"""
    drawn = random.Random(seed)
    parts = split([line for line in lines if swappable(line)], seed, sizes)
    examples: dict[Part, list[tuple[str, str]]] = {}
    for part in PARTS:
        swapped = set(drawn.sample(range(len(parts[part])), len(parts[part]) // 2))
        examples[part] = [
            ("swapped", swap(line, drawn.choice(swappable(line)))) if i in swapped else ("original", line)
            for i, line in enumerate(parts[part])
        ]
    return build("bigram-shift", examples)


def swappable(line: str) -> list[tuple[int, int, int, int]]:
    """Finds two different neighbouring words (begin and end of each) with nothing but spaces in between."""
    spans = [match.span() for match in _WORD.finditer(line)][1:]
    return [
        (*first, *second)
        for first, second in pairwise(spans)
        if line[first[1] : second[0]].isspace() and line[slice(*first)].lower() != line[slice(*second)].lower()
    ]


def swap(line: str, place: tuple[int, int, int, int]) -> str:
    """Swaps the two words at `place`."""
    a, b, c, d = place
    return line[:a] + line[c:d] + line[b:c] + line[a:b] + line[d:]


def language_task(texts: Mapping[str, Sequence[str]], seed: int = 1, sizes: Sequence[int] = SIZES) -> ProbingTask:
    """Makes a task of {language: lines}: the language of a sentence; sizes are of all languages together.

    Raises: UserError with fewer than two languages.
    """
    if len(texts) < 2:
        known = ", ".join(texts) or "no language"
        raise UserError(f"task language: text of {known}; expected at least two languages, --text XX=FILE for each.")
    once = {language: different(lines) for language, lines in texts.items()}
    fewest = min(len(lines) for lines in once.values())
    examples: dict[Part, list[tuple[str, str]]] = {part: [] for part in PARTS}
    for language, lines in once.items():
        parts = split(random.Random(seed).sample(lines, fewest), seed, [size // len(texts) for size in sizes])
        for part in PARTS:
            examples[part] += [(language, line) for line in parts[part]]
    return build("language", examples)


SENTEVAL_PARTS: dict[str, Part] = {"tr": "train", "va": "dev", "te": "test"}
FILES: dict[str, str] = {
    "sentence_length": "SentLen",
    "word_content": "WC",
    "tree_depth": "TreeDepth",
    "bigram_shift": "BShift",
    "top_constituents": "TopConst",
    "past_present": "Tense",
    "subj_number": "SubjNum",
    "obj_number": "ObjNum",
    "odd_man_out": "SOMO",
    "coordination_inversion": "CoordInv",
}
"""File without its ending -> the task's usual name, in the order of the papers' tables."""


def read_task(path: str | Path) -> ProbingTask:
    """Reads a task from its file, plain or gz.

    Raises: UserError with file and line for a broken line; for a part without sentences, and for one class only.
    """
    path = Path(path)
    name = path.name.split(".")[0]
    examples: dict[Part, list[tuple[str, str]]] = {part: [] for part in SENTEVAL_PARTS.values()}
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("\t")
        if len(fields) != 3 or fields[0] not in SENTEVAL_PARTS or not fields[1].strip() or not fields[2].strip():
            raise UserError(
                f"{path}, line {number}: expected tr, va or te, a label and a sentence, separated by tabs; found "
                f"{len(fields)} fields, beginning with {line[:40]!r}."
            )
        examples[SENTEVAL_PARTS[fields[0]]].append((fields[1].strip(), fields[2].strip()))
    return build(FILES.get(name, name), examples)


def find_files(folder: str | Path) -> list[Path]:
    """Finds the tasks' files in a folder, in the order of the papers' tables. Raises: UserError if there is none."""
    paths = {path.name.split(".")[0]: path for path in sorted(Path(folder).glob("*"))}
    if not paths.keys() & FILES.keys():
        raise UserError(f"{folder}: none of SentEval's probing files there ({next(iter(FILES))}.txt ...).")
    return [paths[name] for name in FILES if name in paths]
