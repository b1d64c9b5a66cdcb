"""Studies of translations: scores by source length, statistics of faults, the largest differences of two systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_mlnmt.analysis import figures
from hf_mlnmt.analysis.differences import largest_differences
from hf_mlnmt.analysis.lengths import group_indices, group_names, scores_by_length
from hf_mlnmt.analysis.outputs import output_statistics
from hf_mlnmt.analysis.study import Study
from hf_mlnmt.evaluation.language import LanguageGuesser
from hf_mlnmt.evaluation.scores import Lines

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
