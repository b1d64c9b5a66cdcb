"""SentEval's probing files: one example a line, `tr`, `va` or `te`, a label and the sentence, separated by tabs.

Reference: Conneau et al. 2018, "What you can cram into a single $&!#* vector"; the files of its repository.
"""

from __future__ import annotations

from pathlib import Path

from hf_mlnmt.analysis.probing_tasks import Part, ProbingTask, build
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.errors import UserError

PARTS: dict[str, Part] = {"tr": "train", "va": "dev", "te": "test"}
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
    """One task from its file, plain or gz.

    Raises: UserError with file and line for a broken line; for a part without sentences, and for one class only.
    """
    path = Path(path)
    name = path.name.split(".")[0]
    examples: dict[Part, list[tuple[str, str]]] = {part: [] for part in PARTS.values()}
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("\t")
        if len(fields) != 3 or fields[0] not in PARTS or not fields[1].strip() or not fields[2].strip():
            raise UserError(
                f"{path}, line {number}: expected tr, va or te, a label and a sentence, separated by tabs; found "
                f"{len(fields)} fields, beginning with {line[:40]!r}."
            )
        examples[PARTS[fields[0]]].append((fields[1].strip(), fields[2].strip()))
    return build(FILES.get(name, name), examples)


def find_files(folder: str | Path) -> list[Path]:
    """The tasks' files in a folder, in the order of the papers' tables. Raises: UserError if there is none."""
    known = list(FILES)
    found = [path for path in Path(folder).glob("*") if path.name.split(".")[0] in known]
    if not found:
        raise UserError(f"{folder}: none of SentEval's probing files there ({known[0]}.txt ...).")
    return sorted(found, key=lambda path: known.index(path.name.split(".")[0]))
