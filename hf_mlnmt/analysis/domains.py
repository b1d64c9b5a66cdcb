"""Several test sets: every system on each of them, and how well language models predict their references.

Reference: thesis on monolingual data, table 4.37, whose columns are test sets of two domains, and section 4.4.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_mlnmt.analysis import figures
from hf_mlnmt.analysis.study import Study
from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.compare import compare
from hf_mlnmt.evaluation.perplexity import Perplexity
from hf_mlnmt.evaluation.scores import Lines

MEASURES = ("perplexity per subword", "perplexity per word", "bits per byte")


@dataclass(frozen=True)
class Domain:
    """Files of one domain: sources, and the references to them."""

    source: str
    references: tuple[str, ...]


def read_tests(arguments: Sequence[str]) -> dict[str, Domain]:
    """{name: Domain} of NAME=SOURCE,REFERENCE, with more references behind further commas.

    Raises: UserError for another form, and for a name given twice.
    """
    found: dict[str, Domain] = {}
    for argument in arguments:
        name, _, files = argument.partition("=")
        source, *references = files.split(",")
        if not (name and source and references and all(references)):
            raise UserError(f"--test {argument}: expected NAME=SOURCE,REFERENCE, as in news=news.en,news.de.")
        if name in found:
            raise UserError(f"--test {argument}: there are two test sets called {name!r}.")
        found[name] = Domain(source, tuple(references))
    return found


def domain_study(
    outputs: Mapping[str, Mapping[str, Lines]],
    references: Mapping[str, Sequence[Lines]],
    perplexities: Mapping[str, Mapping[str, Perplexity]] | None = None,
    **scoring: Any,
) -> Study:
    """A row for each test set, metric and system; and for each test set and language model.

    outputs: {test set: {system: lines}}, the baseline first. perplexities: {test set: {language model: Perplexity}}, of
    the first reference. scoring: as `compare` takes it, with one protocol. `difference` and p-values are against the
    baseline on the same test set, `sign` the mark of evaluation/significance.py.
    """
    study = Study("domains")
    panels: dict[str, dict[str, list[figures.Interval]]] = {}
    for test, of_systems in outputs.items():
        comparison = compare(of_systems, references[test], **scoring)
        ((protocol, all_scores),) = comparison.scores.items()
        for system, scores in all_scores.items():
            results = comparison.tests[protocol].get(system, {})
            for metric, one in scores.metrics.items():
                low, high = one.ci or (None, None)
                row = {"test": test, "sentences": scores.sentences, "system": system, "measure": metric}
                row |= {"value": one.score, "low": low, "high": high, "signature": one.signature}
                if metric in results:
                    row |= {**results[metric].to_dict(), "sign": comparison.marks(protocol, metric)[system]}
                study.rows.append(row)
                panels.setdefault(metric, {}).setdefault(system, []).append((one.score, low, high))
        for model, found in (perplexities or {}).get(test, {}).items():
            row = {"test": test, "sentences": found.sentences, "system": model}
            values = (found.per_subword, found.per_word, found.bits_per_byte)
            study.rows += [{**row, "measure": name, "value": value} for name, value in zip(MEASURES, values)]
    study.summary = _table(study.rows)
    names = [f"{test}\n({len(references[test][0]):,})" for test in outputs]
    study.figures["domains"] = figures.points(panels, names, "test set (sentences)", "score")
    return study


def _table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The thesis's form: a line for each system and measure, a column for each test set."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault((row["measure"], row["system"]), {"measure": row["measure"], "system": row["system"]})
        line[row["test"]] = f"{row['value']:.2f}{row.get('sign') or ''}"
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    return sorted(lines.values(), key=lambda line: measures.index(line["measure"]))
