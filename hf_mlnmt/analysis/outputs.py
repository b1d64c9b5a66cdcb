"""What is wrong with translations that no score says: empty, copied, repeated, untranslated, in the wrong language.

Words are runs of letters (and digits) without case; a translation may be counted under several headings.

empty         no character but white space
copied        the words of the source, in its order, unlike the reference's
repeated      a phrase of 2 to 4 words twice in a row, or a word three times, and no such run in source or reference
untranslated  at least half of its words stand in the source and not in the reference
off target    in another language than the reference's, by `LanguageGuesser` (evaluation/language.py)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from hf_mlnmt.evaluation.scores import Lines, References, check_counts, reference_lists, score

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Runs of letters and digits, without case."""
    return _WORD.findall(text.casefold())


def is_copied(source: str, output: str, reference: str) -> bool:
    """The same words as the source, where the reference's are others."""
    return bool(words(output)) and words(output) == words(source) != words(reference)


def has_run(text: str) -> bool:
    """Whether a phrase of 2 to 4 words stands twice in a row, or one word three times."""
    found = words(text)
    for length in (1, 2, 3, 4):
        times = 3 if length == 1 else 2
        for start in range(len(found) - times * length + 1):
            phrase = found[start : start + length]
            if found[start : start + times * length] == phrase * times:
                return True
    return False


def is_repeated(source: str, output: str, reference: str) -> bool:
    """A run that neither source nor reference excuses."""
    return has_run(output) and not has_run(source) and not has_run(reference)


def is_untranslated(source: str, output: str, reference: str) -> bool:
    """At least half of the words are the source's and not the reference's."""
    found = words(output)
    left = [word for word in found if word in set(words(source)) - set(words(reference))]
    return bool(found) and 2 * len(left) >= len(found)


KINDS: dict[str, Callable[[str, str, str], bool]] = {
    "empty": lambda source, output, reference: not output.strip(),
    "copied": is_copied,
    "repeated": is_repeated,
    "untranslated": is_untranslated,
}


def output_statistics(
    sources: Lines,
    outputs: Lines,
    references: References,
    is_off_target: Callable[[str], bool] | None = None,
) -> dict[str, Any]:
    """Length ratio (output to reference, in sacreBLEU's tokens), and of each kind the share and the sentences, from 1.

    `is_off_target` says of a translation whether it is in a wrong language; without it that kind is left out. Of
    several references the first is compared with.
    """
    sets: list[Sequence[Any]] = reference_lists(references)  # type: ignore[assignment]
    check_counts(
        outputs, [*sets, sources], ["the output", *(f"reference {i + 1}" for i in range(len(sets))), "the source"]
    )
    kinds = dict(KINDS)
    if is_off_target is not None:
        kinds["off_target"] = lambda source, output, reference: is_off_target(output)
    found: dict[str, Any] = {"sentences": len(outputs)}
    found["length_ratio"] = score(outputs, references, metrics=["BLEU"], bootstrap=0).length_ratio
    for kind, is_so in kinds.items():
        lines = [
            number
            for number, (source, output, reference) in enumerate(zip(sources, outputs, sets[0], strict=True), start=1)
            if is_so(source, output, reference or "")
        ]
        found[kind] = {"share": len(lines) / len(outputs), "lines": lines}
    return found
