"""What is wrong with translations that no score says: empty, copied, repeated, untranslated, in the wrong language.

Words are runs of letters (and digits) without case; a translation may be counted under several headings.

empty         no character but white space
copied        the words of the source, in its order, unlike the reference's
repeated      a phrase of 2 to 4 words twice in a row, or a word three times, and no such run in source or reference
untranslated  at least half of its words stand in the source and not in the reference
off target    in another language than the reference's, by `LanguageGuesser` (evaluation/language.py)

The sentences that two systems translate most differently in quality: the largest differences of sentence chrF.

BLEU and chrF by the length of the source sentence.

References: thesis on joint attention, sections 3.5.1, 4.5.1 and 5.6.4; "Every Layer Counts", PBML 115, section 7.1.

| set | groups of source lengths |
| --- | --- |
| wmt | under 10, 10 to 19, 20 to 29, 30 to 39, 40 to 49, 50 and more |
| iwslt | 1 to 10, 11 to 20, 21 to 30, 31 to 40, over 40 |

Departs: the texts print 10-20, 20-30, so that 20 would be in two groups; here it is in the second.

Studies of translations: scores by source length, statistics of faults, the largest differences of two systems.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from hf_mlnmt.analysis import figures
from hf_mlnmt.analysis.study import Study
from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation import ProtocolName
from hf_mlnmt.evaluation.language import LanguageGuesser
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


def sentence_scores(outputs: Lines, references: References) -> list[float]:
    """chrF of each sentence (0 to 100), sacreBLEU's, against all of its references."""
    from sacrebleu.metrics import CHRF

    sets = reference_lists(references)
    check_counts(outputs, sets)
    metric = CHRF()
    found = []
    for index, output in enumerate(outputs):
        given: Sequence[Any] = [lines[index] for lines in sets if lines[index] is not None]
        found.append(float(metric.sentence_score(output, list(given)).score))
    return found


def largest_differences(
    sources: Lines, baseline: Lines, system: Lines, references: References, count: int = 20
) -> list[dict[str, Any]]:
    """Up to `count` sentences where `system` gains most over `baseline`, and as many where it loses most.

    Each with its line (from 1), both scores, the difference (system - baseline) and all texts, from the largest gain to
    the largest loss. Sentences of the same score are left out. Raises: UserError for different numbers of lines.
    """
    sets = reference_lists(references)
    check_counts(system, [baseline, sources], ["the system", "the baseline", "the source"])
    if count < 1:
        raise UserError(f"{count} sentences: expected at least 1.")
    before, after = sentence_scores(baseline, references), sentence_scores(system, references)
    ordered = sorted(range(len(sources)), key=lambda i: (before[i] - after[i], i))
    gains = [i for i in ordered if after[i] > before[i]][:count]
    losses = [i for i in ordered if after[i] < before[i]][-count:]
    return [
        {
            "line": i + 1,
            "difference": after[i] - before[i],
            "baseline_chrF": before[i],
            "system_chrF": after[i],
            "source": sources[i],
            "baseline": baseline[i],
            "system": system[i],
            "reference": sets[0][i],
        }
        for i in [*gains, *losses]
    ]


SETS: dict[str, list[int]] = {"wmt": [10, 20, 30, 40, 50], "iwslt": [11, 21, 31, 41]}
"""The smallest length of every group but the first."""


def read_starts(text: str) -> list[int]:
    """A name of SETS, or the smallest length of every group but the first: 15,30 is under 15, 15 to 29, 30 and more."""
    if text in SETS:
        return SETS[text]
    try:
        starts = [int(field) for field in text.split(",")]
    except ValueError:
        starts = []
    if not starts or starts != sorted(set(starts)) or starts[0] < 1:
        raise UserError(f"groups {text!r}: expected {', '.join(SETS)}, or ascending lengths such as 10,20,30.")
    return starts


def group_names(starts: Sequence[int]) -> list[str]:
    """`<10`, `10-19`, ..., `50+`."""
    inner = [f"{low}-{high - 1}" if high - low > 1 else f"{low}" for low, high in pairwise(starts)]
    return [f"<{starts[0]}", *inner, f"{starts[-1]}+"]


def group_indices(lengths: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    """The sentences of each group."""
    groups: list[list[int]] = [[] for _ in range(len(starts) + 1)]
    for index, length in enumerate(lengths):
        groups[bisect_right(starts, length)].append(index)
    return groups


def scores_by_length(
    systems: Mapping[str, Lines],
    references: References,
    lengths: Sequence[int],
    starts: Sequence[int],
    *,
    protocol: ProtocolName = "cased",
    language: str | None = None,
    metrics: Sequence[str] = ("BLEU", "chrF"),
    bootstrap: int = 1000,
    seed: int = 12345,
) -> list[dict[str, Any]]:
    """One row for each system, group and metric: count of sentences, score, 95 % interval.

    lengths: of each source sentence, in the unit that the groups are meant for. An empty group has no score.
    """
    sets = reference_lists(references)
    for name, lines in systems.items():
        check_counts(
            lines, [*sets, list(map(str, lengths))], [name, *(f"reference {i + 1}" for i in range(len(sets))), "source"]
        )
    found = []
    for group, indices in zip(group_names(starts), group_indices(lengths, starts), strict=True):
        chosen = [[lines[i] for i in indices] for lines in sets]
        for name, lines in systems.items():
            how: Any = {"protocol": protocol, "language": language, "metrics": metrics, "seed": seed}
            # Of one sentence all resamples are the same.
            resamples = bootstrap if len(indices) > 1 else 0
            scores = score([lines[i] for i in indices], chosen, bootstrap=resamples, **how) if indices else None
            for metric in metrics:
                value = scores.metrics[metric] if scores else None  # type: ignore[index]
                low, high = (value.ci if value else None) or (None, None)
                found.append(
                    {
                        "system": name,
                        "source_length": group,
                        "sentences": len(indices),
                        "metric": metric,
                        "score": value.score if value else None,
                        "low": low,
                        "high": high,
                    }
                )
    return found


METRICS = ("BLEU", "chrF")
TARGET = "the reference's"


def source_lengths(sources: Lines, model: str | None = None) -> list[int]:
    """Length of each source: in subwords of a model's tokenizer without </s>, or in words between white space."""
    if model is None:
        return [len(line.split()) for line in sources]
    from hf_mlnmt.data.tokenizer import encode, load_tokenizers

    loaded = load_tokenizers(model)
    processing = loaded.processing.get("source")
    texts = [processing.apply(line) if processing else line for line in sources]
    own = len(encode(loaded.source, [""])[0])
    return [len(ids) - own for ids in encode(loaded.source, texts)]


def length_study(
    systems: Mapping[str, Lines],
    references: Sequence[Lines],
    lengths: Sequence[int],
    starts: Sequence[int],
    unit: str,
    **scoring: Any,
) -> Study:
    """BLEU and chrF of each group, points with intervals; the count of sentences stands below each group's name.

    A group that no sentence is in has its rows, and no place in the figure.
    """
    study = Study("lengths")
    study.rows = scores_by_length(systems, references, lengths, starts, metrics=METRICS, **scoring)
    names = group_names(starts)
    counts = [len(group) for group in group_indices(lengths, starts)]
    panels: dict[str, dict[str, list[figures.Interval]]] = {metric: {} for metric in METRICS}
    for row in study.rows:
        panels[row["metric"]].setdefault(row["system"], []).append((row["score"], row["low"], row["high"]))
    for metric, lines in panels.items():
        for system, values in lines.items():
            scores = {name: "" if value is None else f"{value:.2f}" for name, (value, _, _) in zip(names, values)}
            study.summary.append({"system": system, "metric": metric, **scores})
    study.summary.append({"system": "sentences", "metric": "", **dict(zip(names, map(str, counts)))})
    drawn = [index for index, count in enumerate(counts) if count]
    labels = [f"{names[index]}\n({counts[index]:,})" for index in drawn]
    panels = {m: {s: [values[i] for i in drawn] for s, values in lines.items()} for m, lines in panels.items()}
    study.figures["lengths"] = figures.points(panels, labels, f"source length in {unit} (sentences)", "score")
    return study


def statistics_study(
    systems: Mapping[str, Lines],
    sources: Lines,
    references: Sequence[Lines],
    languages: Mapping[str, Lines] | None = None,
) -> Study:
    """Shares of faulty outputs, with the lines. The language is guessed from source and references themselves, and
    from text of further `languages`; an output of no word, or where the two sides have the same, is not guessed."""
    study = Study("statistics")
    guess = LanguageGuesser({"the source's": sources, TARGET: references[0], **(languages or {})})
    panels: dict[str, list[tuple[str, float, str]]] = {}
    for name, lines in systems.items():
        found = output_statistics(sources, lines, references, guess.others(lines, TARGET).__contains__)
        kinds = {kind: value for kind, value in found.items() if isinstance(value, dict)}
        study.rows += [
            {"system": name, "kind": kind, "share": value["share"], "lines": " ".join(map(str, value["lines"]))}
            for kind, value in kinds.items()
        ]
        study.rows.append({"system": name, "kind": "length_ratio", "share": found["length_ratio"]})
        shares = {kind.replace("_", " "): f"{100 * value['share']:.2f} %" for kind, value in kinds.items()}
        study.summary.append({"system": name, "length ratio": round(found["length_ratio"], 3), **shares})
        title = f"{name}: length ratio {found['length_ratio']:.3f}"
        panels[title] = [(kind.replace("_", " "), 100 * value["share"], "") for kind, value in kinds.items()]
    study.figures["statistics"] = figures.bars(panels, "outputs (%)")
    return study


def difference_study(systems: Mapping[str, Lines], sources: Lines, references: Sequence[Lines], count: int) -> Study:
    """Every system but the first against the first: texts as rows, and where the differences lie as bars."""
    study = Study("differences")
    baseline, *others = systems
    panels = {}
    for name in others:
        found = largest_differences(sources, systems[baseline], systems[name], references, count)
        study.rows += [{"system_name": name, "baseline_name": baseline, **row} for row in found]
        study.summary += [
            {
                "system": name,
                "line": row["line"],
                "chrF": f"{row['difference']:+.1f}",
                baseline: row["baseline"],
                "other": row["system"],
            }
            for row in [*found[:3], *found[-3:]]
        ]
        panels[f"{name} less {baseline}"] = [(f"line {row['line']}", row["difference"], "") for row in found]
    study.figures["differences"] = figures.bars(panels, "difference of chrF", changes=True)
    return study
