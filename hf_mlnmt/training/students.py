"""The recipe of a student: rounds that translate with its teachers, train on the translations, train further in int8.

References: Kim and Rush 2016, "Sequence-Level Knowledge Distillation"; of the sizes and of int8: Kim et al. 2019, "From
Research to Production and Back". `train_pair` (pair.py) calls `plan` and runs the rounds; the objective is in
distillation.py, the engines' format in export/firefox.py.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.languages import check_direction, direction_of
from hf_mlnmt.common.model_folder import check_name, fetch_small_files
from hf_mlnmt.data.corpus import FILES
from hf_mlnmt.data.directions import language_codes, told_of
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.tokenizer import load_tokenizers
from hf_mlnmt.data.words import words
from hf_mlnmt.generation.synthetic.methods import USUAL, Method
from hf_mlnmt.generation.translating.fusing import fuse_folders
from hf_mlnmt.recipe import sizes

if TYPE_CHECKING:
    from hf_mlnmt.training.pair import TwoFiles

STUDENT, INT8 = "student", "int8"  # names of the rounds of a student
# a student's shape -> the system that has it
STUDENTS = {"student-tiny": "ssru", "student-base": "ssru", "student-self-attention": "transformer"}
TEACHER = "teacher"  # folder of several teachers fused into one model
WINDOW = 512  # lines that are translated between two writes, and lost at most if translating is interrupted


def plan(
    content: dict[str, Any],
    asked: TwoFiles,
    data: Path,
    folders: tuple[Path, Path],
    texts: list[str],
    machine: sizes.Machine,
) -> list[str]:
    """Checks and fuses the teachers, adds a student's keys and rounds to a recipe's content; returns what was chosen.

    folders: where files are written now, and where they will be when the recipe is run. texts: the files that are
    translated; the targets of the first are known. Raises: UserError for teachers of other directions or languages.
    """
    source, target = asked.languages
    told = [_check_teacher(name, source, target) for name in asked.teachers]
    if asked.reverse:
        check_direction(asked.reverse, (target, source), f"--reverse {asked.reverse}")
    lines: list[str] = []
    teacher = there = asked.teachers[0]
    if len(asked.teachers) > 1:
        there, teacher = (str(place / TEACHER) for place in folders)
        fuse_folders(list(asked.teachers), there, lines.append, normalization="symbol")
    drop = [*USUAL, *(["unlikely"] if asked.reverse else [])]
    if find_spec("py3langid") and (told[0] or direction_of(fetch_small_files(there))):
        drop.append("language")
    else:
        lines.append(
            "languages of translations are not looked at: that needs py3langid (pip install 'hf-mlnmt[serve]') and "
            "a teacher whose languages are known"
        )
    references = [content["data"]["train"]["files"]["target"]]
    translate = {
        "model": teacher,
        "text": texts,
        "forward": True,
        "method": Method("beam").to_dict(),
        "settings": {"drop": drop, "references": references, "reverse": asked.reverse, "window": WINDOW, **told[0]},
    }
    making, held = folders
    files = [data / text for text in texts]
    counts = [
        len(words(line)) + 1
        for file in files
        for line in read_lines(making / file.name if file.parent == held else file)
    ]
    corpus = sizes.Measured(len(counts), sum(counts))
    lines += student_rounds(content, str(asked.student), list(asked.teachers), translate, corpus, machine)
    if INT8 in content["rounds"]:
        run, dev = folders[1].parent, data / content["data"]["dev"]["files"]["source"]
        lines.append(
            f"Firefox's engines, when it is trained: hf-mlnmt export {run / INT8}/average -o {run}/firefox "
            f"--format firefox --calibrate {dev} --shortlist-text {run}/{STUDENT}.synthetic/{FILES['source']} "
            f"--shortlist-teacher {teacher}"
        )
    return lines


def student_rounds(
    content: dict[str, Any],
    shape: str,
    teachers: list[str],
    translate: dict[str, Any],
    corpus: sizes.Measured,
    machine: sizes.Machine,
) -> list[str]:
    """Adds a student's keys and rounds to a recipe's content; returns what was chosen, in words. UserError for an
    unknown shape.

    teachers: for the objective. translate: keys of the synthetic corpus. corpus: the size of all translated text.
    """
    if shape not in STUDENTS:
        raise UserError(f"--student {shape}: unknown{suggest(shape, STUDENTS)}; known: {', '.join(STUDENTS)}.")
    chosen, system = sizes.choose(corpus, machine)[0], STUDENTS[shape]
    steps = chosen["budget"]["steps"]
    last, keep = max(1, steps // 8), {"keep": 4, "average": 4}
    content |= {name: chosen[name] for name in ("batch", "precision", "evaluation")}
    content |= {
        "model": {"system": system, "shape": shape},
        "objective": {"name": "distillation", "teacher": teachers, "alignment": 0.1},
        "tokenizer": {**chosen["tokenizer"], "kind": "unigram", "keep": ["digits"]},
        "optimizer": {"name": "adamw", "learning_rate": 2.0e-3, "weight_decay": 0.1},
        "schedule": {"name": "cosine", "warmup": max(1, min(1000, steps // 5))},
        "budget": {"steps": steps},
        "evaluation": {**chosen["evaluation"], "every": max(1, steps // 8)},
        "checkpoints": keep,
        "rounds": {STUDENT: {"alone": True, "translate": translate}},
    }
    lines = [
        f"student: {system}, {shape} shape, {content['tokenizer']['vocab_size']:,} unigram subwords, a size as for "
        f"{corpus.pairs:,} pairs; not measured at this size",
        f"objective: cross-entropy on the teacher's translations (Kim and Rush 2016), and 0.1 of guided alignment by "
        f"the attention of {teachers[0]} (Chen et al. 2016)",
        f"steps: {steps:,} with learning rate 0.002, cosine",
    ]
    if system == "ssru":
        tuning = {
            "precision": {"int8": True, "dtype": "float32"},
            "optimizer": {"learning_rate": 2.0e-4},
            "schedule": {"name": "cosine", "warmup": max(1, last // 10)},
            "budget": {"steps": last},
            "evaluation": {"every": max(1, last // 4)},
        }
        content["rounds"][INT8] = {"after": STUDENT, "recipe": tuning}
        lines.append(f"int8: {last:,} steps more, rounded in the forward pass as the engines round, at a tenth of that")
    return lines


def _check_teacher(name: str, source: str, target: str) -> dict[str, str]:
    """Returns the language options of a teacher's pipeline. Raises: UserError for a teacher of other languages."""
    check_name(name)
    small = fetch_small_files(name)
    check_direction(small, (source, target), f"--teacher {name}", "It would teach another language.")
    tokenizers = load_tokenizers(small)
    known = list(tokenizers.each) or language_codes(tokenizers.source)
    if known and target not in known:
        raise UserError(f"--teacher {name}: knows {', '.join(known)}, and not {target}. Give one that does.")
    return told_of(small, source, target)
