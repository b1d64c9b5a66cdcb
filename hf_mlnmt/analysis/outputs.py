"""Studies of translations: faults, scores by source length, largest differences; scores of several test sets.

Faults of translations that scores do not show (`KINDS`); words are runs of letters and digits without case
(data/words.py), and a translation may have several faults. BLEU and chrF by the length of the source sentence. The
sentences for which two systems differ most in sentence chrF.

Departs: the texts print groups of lengths as 10-20, 20-30, so that 20 would be in two; here it is in the second.

References: thesis on joint attention, sections 3.5.1, 4.5.1 and 5.6.4; "Every Layer Counts", PBML 115, section 7.1;
thesis on monolingual data, table 4.37, whose columns are test sets of two domains, and section 4.4.6.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.words import is_unspaced, spoken, terms, words
from hf_mlnmt.evaluation import figures
from hf_mlnmt.evaluation.comparison import Comparison
from hf_mlnmt.evaluation.figures import Study
from hf_mlnmt.evaluation.outputs import SystemRun, Texts
from hf_mlnmt.evaluation.results import languages_of_test
from hf_mlnmt.evaluation.scores import (
    Lines,
    MetricName,
    References,
    check_counts,
    count_sentences,
    reference_lists,
    score,
    scores_of_sums,
    with_arrow,
)
from hf_mlnmt.reports.matrix import LanguageGuesser

if TYPE_CHECKING:
    from hf_mlnmt.evaluation.perplexity import Perplexity


def is_copied(source: str, output: str, reference: str) -> bool:
    """Returns whether the output has the same words as the source, and the reference has others."""
    read, written, given = (spoken(text.casefold()) for text in (source, output, reference))
    return bool(written) and written == read != given


def has_run(text: str) -> bool:
    """Returns whether a text has a phrase of 2 to 4 words twice in a row, or a word three times.

    In text without spaces, where two or three letters twice may be a word: 4 to 16 twice, or 1 to 3 four times.
    """
    said = spoken(text.casefold())
    runs = ((1, 4), (2, 4), (3, 4), *((length, 2) for length in range(4, 17)))
    for length, times in runs if is_unspaced(text) else ((1, 3), (2, 2), (3, 2), (4, 2)):
        for start in range(len(said) - times * length + 1):
            if said[start : start + times * length] == said[start : start + length] * times:
                return True
    return False


def is_repeated(source: str, output: str, reference: str) -> bool:
    """Returns whether the output repeats words (`has_run`), and neither source nor reference does."""
    return has_run(output) and not has_run(source) and not has_run(reference)


def is_untranslated(source: str, output: str, reference: str) -> bool:
    """Returns whether at least half of the output's words are in the source and not in the reference."""
    read, written, given = (terms(text.casefold()) for text in (source, output, reference))
    kept = set(read) - set(given)
    return bool(written) and 2 * sum(word in kept for word in written) >= len(written)


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
    language: str | None = None,
) -> dict[str, Any]:
    """Returns the number of sentences, the length ratio (output to reference, in sacreBLEU's tokens), and for each
    fault its share and lines (from 1).

    is_off_target: tells whether a translation is in a wrong language; None: this fault is left out. Of several
    references the first is used for faults. language: the target's, as of score().
    """
    first = reference_lists(references)[0]
    kinds = dict(KINDS)
    if is_off_target is not None:
        kinds["off_target"] = lambda source, output, reference: is_off_target(output)
    statistics: dict[str, Any] = {"sentences": len(outputs)}
    how: Any = {"metrics": ["BLEU"], "bootstrap": 0, "language": language}
    statistics["length_ratio"] = score(outputs, references, **how).length_ratio
    for kind, is_so in kinds.items():
        lines = [
            number
            for number, (source, output, reference) in enumerate(zip(sources, outputs, first, strict=True), start=1)
            if is_so(source, output, reference or "")
        ]
        statistics[kind] = {"share": len(lines) / len(outputs), "lines": lines}
    return statistics


def sentence_scores(outputs: Lines, references: References) -> list[float]:
    """Returns sacreBLEU's chrF of each sentence (0 to 100) against all of its references."""
    counts = count_sentences(outputs, references, metrics=["chrF"])["chrF"]
    return [float(score) for score in scores_of_sums("chrF", counts)]


METRICS: tuple[MetricName, ...] = ("BLEU", "chrF")
SETS: dict[str, list[int]] = {"wmt": [10, 20, 30, 40, 50], "iwslt": [11, 21, 31, 41]}
"""Name -> the smallest length of each group but the first."""


def read_starts(text: str) -> list[int]:
    """Returns the smallest length of each group but the first, from a name of SETS or from text: "15,30" for <15, 15 to
    29, 30 and more. Raises: UserError for another text."""
    if text in SETS:
        return SETS[text]
    try:
        starts = [int(field) for field in text.split(",")]
    except ValueError:
        starts = []
    if not starts or starts != sorted(set(starts)) or starts[0] < 1:
        raise UserError(f"groups {text!r}: expected {', '.join(SETS)}, or ascending lengths such as 10,20,30.")
    return starts


def groups_of(lengths: Sequence[int], starts: Sequence[int]) -> dict[str, list[int]]:
    """Returns {name: indices of the sentences, from 0} of groups of lengths: `<10`, `10-19`, ..., `50+`."""
    inner = [f"{low}-{high - 1}" if high - low > 1 else f"{low}" for low, high in pairwise(starts)]
    groups: dict[str, list[int]] = {name: [] for name in (f"<{starts[0]}", *inner, f"{starts[-1]}+")}
    members = list(groups.values())
    for index, length in enumerate(lengths):
        members[bisect_right(starts, length)].append(index)
    return groups


def scores_by_length(
    systems: Mapping[str, Lines],
    references: References,
    lengths: Sequence[int],
    starts: Sequence[int],
    *,
    bootstrap: int = 1000,
    **scoring: Any,
) -> list[dict[str, Any]]:
    """Returns a row for each system, group and metric: number of sentences, score, 95 % interval.

    lengths: of each source sentence, in the unit of `starts`. An empty group has no score. scoring: for score().
    """
    sets, rows = reference_lists(references), []
    for group, indices in groups_of(lengths, starts).items():
        chosen = [[lines[i] for i in indices] for lines in sets]
        for name, lines in systems.items():
            # A single sentence gets no interval: all its resamples are equal.
            resamples = bootstrap if len(indices) > 1 else 0
            how: Any = {**scoring, "metrics": METRICS, "bootstrap": resamples}
            found = score([lines[i] for i in indices], chosen, **how).metrics if indices else {}
            for metric in METRICS:
                value = found.get(metric)
                low, high = (value and value.ci) or (None, None)
                row = {"system": name, "source_length": group, "sentences": len(indices), "metric": metric}
                rows.append({**row, "score": value and value.score, "low": low, "high": high})
    return rows


SOURCE, TARGET = "the source's", "the reference's"
SHOWN = 20


def source_lengths(sources: Lines, model: str | None = None) -> list[int]:
    """Returns each source's length in subwords of a model's tokenizer without </s>; without a model in words."""
    if model is None:
        return [len(words(line)) for line in sources]
    from hf_mlnmt.data.tokenizer import encode, load_tokenizers

    loaded = load_tokenizers(model)
    processing = loaded.processing.get("source")
    texts = [processing.apply(line) if processing else line for line in sources]
    own = len(encode(loaded.source, [""])[0])
    return [len(ids) - own for ids in encode(loaded.source, texts)]


@dataclass(frozen=True)
class OutputAnalysis:
    """The translations of one test set, {system: lines}, the baseline first, with chrF of each sentence and studies."""

    outputs: Mapping[str, Lines]
    references: Lines
    sources: Lines | None
    chrf: Mapping[str, Sequence[float]]
    studies: list[Study]


def analyse_outputs(
    outputs: Mapping[str, Lines],
    references: Sequence[Lines],
    sources: Lines | None,
    starts: Sequence[int],
    tokenizer: str | None = None,
    languages: Mapping[str, Lines] | None = None,
    shown: int = SHOWN,
    **scoring: Any,
) -> OutputAnalysis:
    """Analyses one run of each system: scores by length and faults if sources are given, and the largest differences.

    Args:
        sources: None if they are not known.
        starts: smallest lengths of groups, see read_starts(), in words, or in source subwords of model `tokenizer`.
        languages: language -> text, of further languages in which outputs may be by mistake. An output's language is
            guessed by these texts, sources and references; not without words, nor where source and reference are equal.
        shown: how many sentences with the largest gains, and as many with losses, to list for each system; 0: none.
        scoring: protocol, language, bootstrap and seed of the scores by length.
    Raises: UserError for different numbers of outputs, references and sources.
    """
    chrf = {name: sentence_scores(lines, references) for name, lines in outputs.items()}
    studies: list[Study] = []
    if sources is not None:
        check_counts(sources, references[:1], ["sources", "references"])
        lengths = scores_by_length(outputs, references, source_lengths(sources, tokenizer), starts, **scoring)
        guess = LanguageGuesser({SOURCE: sources, TARGET: references[0], **(languages or {})})
        language = scoring.get("language")
        statistics = {
            name: output_statistics(sources, lines, references, guess.others(lines, TARGET).__contains__, language)
            for name, lines in outputs.items()
        }
        studies += [_length_study(lengths, "subwords" if tokenizer else "words"), _statistics_study(statistics)]
    if len(outputs) > 1 and shown:
        studies.append(_difference_study(outputs, chrf, references[0], sources, shown))
    return OutputAnalysis(outputs, references[0], sources, chrf, studies)


def analyses_of(
    comparison: Comparison, runs: Sequence[Any], texts: Mapping[Path, Mapping[str, Texts]], **about: Any
) -> dict[str, OutputAnalysis]:
    """Returns {test set: analysis of the first run of each system whose translations are known}.

    texts: {origin of a run: its test sets}. about: arguments of `analyse_outputs` but protocol and language.
    """
    here = {run.name: run for run in reversed(runs) if isinstance(run, SystemRun) and run.outputs}
    firsts = {name: here[name] for name in comparison.runs if name in here}
    analyses = {}
    for test, protocols in comparison.first["scores"].items() if firsts else ():
        known = next(iter(texts[run.origin][test] for run in firsts.values()))
        outputs = {name: run.outputs[test] for name, run in firsts.items()}
        how = {"protocol": next(iter(protocols)), "language": languages_of_test(comparison.first, test)["target"]}
        analyses[test] = analyse_outputs(outputs, known.references, known.sources, **how, **about)
    return analyses


def sentences_of(analyses: Mapping[str, OutputAnalysis]) -> dict[str, Any] | None:
    """Returns all test sets' sentences with outputs and chrF, as columns for `html_page`; None without analyses."""
    if not analyses:
        return None
    known = list(analyses.values())
    systems = list(known[0].outputs)
    suffixes = {test: f", {test}" if len(analyses) > 1 else "" for test in analyses}
    lines = [f"line {n}{suffixes[test]}" for test in analyses for n, _ in enumerate(analyses[test].references, 1)]
    sources = [line for analysis in known for line in analysis.sources or ()]
    return {
        "systems": systems,
        "line": lines,
        "source": sources if len(sources) == len(lines) else None,
        "reference": [line for analysis in known for line in analysis.references],
        "outputs": {name: [line for analysis in known for line in analysis.outputs[name]] for name in systems},
        "chrf": {name: [round(score, 1) for analysis in known for score in analysis.chrf[name]] for name in systems},
    }


def _length_study(rows: Sequence[dict[str, Any]], unit: str) -> Study:
    """Makes the study of scores by length: BLEU and chrF of each group with intervals and number of sentences.

    A group without sentences has rows, but is not drawn.
    """
    counts = {row["source_length"]: row["sentences"] for row in rows}
    labels = {group: f"{group}\n({count:,})" for group, count in counts.items() if count}
    study = Study("lengths", rows=list(rows))
    numbers = [{**row, "group": row["source_length"], "value": row["score"]} for row in rows]
    _show_scores(study, numbers, labels, f"source length in {unit} (sentences)")
    study.summary.append({"system": "sentences", "metric": "", **{name: str(count) for name, count in counts.items()}})
    return study


def _show_scores(study: Study, rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str], x_label: str) -> None:
    """Sets summary, figure and note: a line for each metric and system, a column for each group of sentences.

    rows: with metric, system, group and value; with `low` and `high` they are drawn, if their group has a label.
    """
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    panels: dict[str, dict[str, list[figures.Interval]]] = {}
    for row in rows:
        metric, system, value = row["metric"], row["system"], row["value"]
        line = lines.setdefault((metric, system), {"system": system, "metric": metric})
        line[row["group"]] = "" if value is None else f"{value:.2f}{row.get('sign') or ''}"
        if "low" in row and row["group"] in labels:
            drawn = panels.setdefault(with_arrow(metric), {}).setdefault(system, [])
            drawn.append((value, row["low"], row["high"]))
    order = list(dict.fromkeys(row["metric"] for row in rows))
    study.summary = sorted(lines.values(), key=lambda line: order.index(line["metric"]))
    study.figures[study.stem] = figures.points(panels, list(labels.values()), x_label, "score")
    study.note = "Bars: 95 % intervals of resampled sentences; ↑ higher is better, ↓ lower is better."


def _statistics_study(by_system: Mapping[str, Mapping[str, Any]]) -> Study:
    """Makes the study of faults: draws the share of each fault; rows also have the faulty lines' numbers."""
    study = Study("statistics")
    panels: dict[str, list[tuple[str, float, str]]] = {}
    for name, statistics in by_system.items():
        ratio = statistics["length_ratio"]
        kinds = [(kind, value) for kind, value in statistics.items() if isinstance(value, Mapping)]
        study.rows += [
            {"system": name, "kind": kind, "share": value["share"], "lines": " ".join(map(str, value["lines"]))}
            for kind, value in kinds
        ]
        study.rows.append({"system": name, "kind": "length_ratio", "share": ratio})
        bars = [(kind.replace("_", " "), 100 * value["share"], "") for kind, value in kinds]
        text = {kind: f"{share:.2f} %" for kind, share, _ in bars}
        study.summary.append({"system": name, "length ratio": round(ratio, 3), **text})
        panels[f"{name}: length ratio {ratio:.3f}"] = bars
    study.figures["statistics"] = figures.bars(panels, "faulty outputs (%), lower is better")
    return study


def _difference_study(
    outputs: Mapping[str, Lines],
    chrf: Mapping[str, Sequence[float]],
    references: Lines,
    sources: Lines | None,
    count: int,
) -> Study:
    """Makes the study of the sentences where each system gains most chrF over the first, and where it loses most.

    Rows have the texts, largest gains first, largest losses last; sentences of equal score are left out.
    """
    study, panels = Study("differences"), {}
    baseline, *others = outputs
    before = chrf[baseline]
    for name in others:
        after = chrf[name]
        ordered = sorted(range(len(after)), key=lambda i: (before[i] - after[i], i))
        gains = [i for i in ordered if after[i] > before[i]][:count]
        losses = [i for i in ordered if after[i] < before[i]][-count:]
        rows = [
            {
                "system_name": name,
                "baseline_name": baseline,
                "line": i + 1,
                "difference": after[i] - before[i],
                "baseline_chrF": before[i],
                "system_chrF": after[i],
                "source": sources[i] if sources is not None else None,
                "baseline": outputs[baseline][i],
                "system": outputs[name][i],
                "reference": references[i],
            }
            for i in [*gains, *losses]
        ]
        study.rows += rows
        for row in [*rows[:3], *rows[-3:]]:
            line = {"system": name, "line": row["line"], "chrF": f"{row['difference']:+.1f}"}
            study.summary.append({**line, baseline: row["baseline"], "other": row["system"]})
        panels[f"{name} less {baseline}"] = [(f"line {row['line']}", float(row["difference"] or 0), "") for row in rows]
    study.figures["differences"] = figures.bars(panels, "difference of chrF ↑", changes=True)
    return study


MEASURES = ("perplexity per subword", "perplexity per word", "bits per byte")


def domain_study(
    comparison: Comparison, protocol: str, perplexities: Mapping[str, Mapping[str, Perplexity]] | None = None
) -> Study:
    """Makes a study of scores on several test sets: a row for each test set, metric and system; and for each test set,
    measure of perplexity and language model.

    The summary has a line for each system and measure, a column for each test set, as in the thesis. `difference` and
    p-values are against the baseline on the same test set, `sign` is † or ‡ (evaluation/significance.py).

    perplexities: {test set: {language model: Perplexity}}, of the first reference.
    """
    study, counted = Study("domains"), {}
    for test in comparison.first["scores"]:
        counted[test] = comparison.counted(comparison.baseline, test, protocol).get("sentences")
        for metric in comparison.metrics(test, protocol):
            for system, runs in comparison.runs.items():
                value, low, high = comparison.interval(system, test, protocol, metric)
                row = {"test": test, "sentences": counted[test], "system": system, "measure": metric}
                signature = next(iter(runs.values()))["scores"][test][protocol][metric].get("signature", "")
                row |= {"value": value, "low": low, "high": high, "signature": signature}
                if tested := comparison.tested(system, test, protocol, metric):
                    row |= {**tested, "sign": comparison.mark(system, test, protocol, metric)}
                study.rows.append(row)
        for model, perplexity in (perplexities or {}).get(test, {}).items():
            row = {"test": test, "sentences": perplexity.sentences, "system": model}
            values = (perplexity.per_subword, perplexity.per_word, perplexity.bits_per_byte)
            study.rows += [{**row, "measure": name, "value": value} for name, value in zip(MEASURES, values)]
    labels = {test: f"{test}\n({count:,})" if count else test for test, count in counted.items()}
    numbers = [{**row, "group": row["test"], "metric": row["measure"]} for row in study.rows]
    _show_scores(study, numbers, labels, "test set (sentences)")
    study.summary = [{"measure": line.pop("metric"), **line} for line in study.summary]
    return study
