"""The study of masking: several systems, each with its parts left out, as rows, bars and translations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hf_mlnmt.analysis import figures
from hf_mlnmt.analysis.masking import WHOLE, Question, rows, translations, variants
from hf_mlnmt.analysis.studies import Systems
from hf_mlnmt.analysis.study import Study, named
from hf_mlnmt.analysis.writing import file_name
from hf_mlnmt.errors import UserError


def masking_study(
    systems: Systems,
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    questions: Sequence[Question] | None,
    decoding: dict[str, Any],
    tell: Callable[[str], None] = lambda text: None,
    **scoring: Any,
) -> Study:
    """`questions`: None for all that each system has; `scoring`: protocol, language, bootstrap, trials, seed.

    Raises: UserError if a question makes no sense for a system; all are asked before anything is translated.
    """
    chosen = {}
    for name, parts in systems.items():
        try:
            chosen[name] = variants(parts.model, questions)
        except UserError as error:
            raise named(name, error) from error
    study, panels = Study("masking"), {}
    for name, parts in systems.items():
        tell(f"{name}: {1 + len(chosen[name])} translations of {len(sources)} sentences")
        outputs = translations(parts, sources, chosen[name], **decoding)
        for what, lines in outputs.items():
            text = "".join(line.replace("\n", " ") + "\n" for line in lines)
            study.texts[f"translations/{file_name(f'{name}.{what}')}.txt"] = text
        found = [{"system": name, **row} for row in rows(outputs, chosen[name], references, **scoring)]
        study.rows += found
        study.summary += [
            {
                "system": name,
                "without": row["without"] if row["question"] != "decoders" else f"only the {row['without']}",
                "BLEU": round(row["BLEU"], 2),
                "difference": "" if row["without"] == WHOLE else f"{row['difference']:+.2f}{row['sign']}",
            }
            for row in found
        ]
        bars = [(row["without"], row["difference"], row["sign"]) for row in found if row["without"] != WHOLE]
        panels[f"{name}: {found[0]['BLEU']:.2f} BLEU"] = bars
    study.figures["masking"] = figures.bars(panels, "change of BLEU", changes=True)
    return study
