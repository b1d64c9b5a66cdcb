"""Writes links between words that are surely each other's translations, by which a model's alignment head is chosen.

    python -m studies.software.links FOLDER dev en de -o dev.links
    hf-mlnmt analyse attention MODEL -s FOLDER/dev.en -w alignments --target FOLDER/dev.de --gold dev.links \
        --sample 0 -o links

FOLDER is what `python -m studies.software` wrote. Linked are words that stand once in each sentence and are equal, or
each other's best by the Dice coefficient over every third pair of the training text, from .4. Only some words have
links, so error rates are high, and tell only which head is better.
"""

import argparse
from collections import Counter
from pathlib import Path

LEAST = 0.4  # the least Dice coefficient of a pair of words
FEWEST = 5  # and the fewest sentences that have both words
EVERY = 3  # one in so many pairs of sentences is counted
LONGEST = 900  # words times words of a pair of sentences, from which on it is left out


def words_of(path: Path) -> list[list[str]]:
    """Returns the words of each line, without signs around them and case."""
    return [
        [word.strip('.,;:!?"()„“»«').lower() for word in line.split()] for line in path.read_text("utf-8").split("\n")
    ]


def translations(folder: Path, codes: list[str], wanted: list[set[str]]) -> set[tuple[str, str]]:
    """Returns the pairs of wanted words that are each other's best by Dice over the training text."""
    alone, together = [Counter[str](), Counter[str]()], Counter[tuple[str, str]]()
    for pair in list(zip(*(words_of(folder / f"train.{code}") for code in codes)))[::EVERY]:
        known = [set(words) & some for words, some in zip(pair, wanted)]
        for counts, words in zip(alone, known):
            counts.update(words)
        if len(known[0]) * len(known[1]) < LONGEST:
            together.update((one, other) for one in known[0] for other in known[1])
    best = [dict[str, tuple[float, str]](), dict[str, tuple[float, str]]()]
    for pair, count in together.items():
        dice = 2 * count / (alone[0][pair[0]] + alone[1][pair[1]])
        if count >= FEWEST and dice >= LEAST:
            for side in (0, 1):
                best[side][pair[side]] = max(best[side].get(pair[side], (0.0, "")), (dice, pair[1 - side]))
    return {(one, other) for one, (_, other) in best[0].items() if best[1][other][1] == one}


def main() -> None:
    """Writes a line of links a pair."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("set")
    parser.add_argument("languages", nargs=2, metavar="CODE")
    parser.add_argument("-o", "--output", type=Path, required=True)
    asked = parser.parse_args()
    sides = [words_of(asked.folder / f"{asked.set}.{code}") for code in asked.languages]
    wanted = [{word for words in side for word in words if word} for side in sides]
    sure, lines = translations(asked.folder, asked.languages, wanted), []
    for pair in zip(*sides):
        once = [{word: k for k, word in enumerate(words) if word and words.count(word) == 1} for words in pair]
        found = (
            (k, n) for one, k in once[0].items() for other, n in once[1].items() if one == other or (one, other) in sure
        )
        lines.append(" ".join(f"{k}-{n}" for k, n in sorted(found)))
    asked.output.write_text("\n".join(lines), "utf-8")


if __name__ == "__main__":
    main()
