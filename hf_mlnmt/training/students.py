"""A student from its teachers, in one command: what it will cost, translations, training, int8, the engine, scores.

| stage | what it leaves in the folder of the run | by itself |
| --- | --- | --- |
| plan | pair/, with student.json, teacher/ (several, fused), text.*, recipe.yaml | `train --pair`, `model fuse` |
| translate | student.synthetic/ | `back-translate --forward`, a round's `translate` |
| train | student/ | `train recipe.yaml`, objective `distillation` |
| int8 | int8/ | a round with `after` and `precision.int8` |
| export | firefox/ | `export --format firefox --calibrate --shortlist-text --shortlist-teacher` |
| score | students.json, README.md | `evaluate`, `analyse attention --what alignments` |

References: Kim and Rush 2016, "Sequence-Level Knowledge Distillation"; of the sizes and of int8: Kim et al. 2019, "From
Research to Production and Back". Stopped at any moment, the same call goes on.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from hf_mlnmt.analysis.source_attention import GoldAlignment, alignment_error_rate
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json, write_json, write_text
from hf_mlnmt.common.languages import base_language, check_direction, check_language, direction_of
from hf_mlnmt.common.made_from import differences, digest
from hf_mlnmt.common.model_folder import CARD, CONFIG, check_name, fetch_small_files
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.convert.importing import import_model
from hf_mlnmt.convert.marian import KEPT
from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.filters import PairFilter
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.synthetic import FILES, read_manifest
from hf_mlnmt.data.text import TextSpec, read_text
from hf_mlnmt.data.tokenizer import languages_of, load_tokenizers
from hf_mlnmt.data.words import words
from hf_mlnmt.evaluation import Results
from hf_mlnmt.evaluation.scores import score
from hf_mlnmt.export.exporting import RECORD, export
from hf_mlnmt.export.firefox import as_engine
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.synthetic.back_translation import Watcher
from hf_mlnmt.generation.synthetic.journal import identity_of_model
from hf_mlnmt.generation.synthetic.methods import USUAL, Counts, Judge, Method, doubts_about_language
from hf_mlnmt.generation.translating.alignments import Aligner
from hf_mlnmt.generation.translating.fusing import fuse_folders
from hf_mlnmt.generation.translating.loading import Parts
from hf_mlnmt.recipe import sizes
from hf_mlnmt.recipe.sizes import INT8, STUDENT, Machine, Measured
from hf_mlnmt.training import TwoFiles, folder, train_pair
from hf_mlnmt.training.pair import HELD, unknown, write_columns
from hf_mlnmt.training.processes import join_group
from hf_mlnmt.training.sweep import duration
from hf_mlnmt.zoo.systems import config_for

PLAN, TEACHER, ENGINE, ROWS = "student.json", "teacher", "firefox", "students.json"
SAMPLE = 64  # lines that the teacher translates to be timed
WINDOW = 512  # lines that an interruption may cost
SHORTLIST_LINES = 50_000
COMPARED = 500  # pairs of the development set whose alignments are compared
METHOD = Method("beam")


def train_student(
    asked: TwoFiles,
    shape: str,
    teachers: Sequence[str],
    data: str | Path = ".",
    output: str | Path | None = None,
    settings: Sequence[str] = (),
    seed: int | None = None,
    dry_run: bool = False,
    console: Console | None = None,
    watcher: Watcher | None = None,
    reverse: str | None = None,
) -> dict[str, Any] | None:
    """Trains a student of some teachers on their translations, and writes it for Firefox's engines.

    Args:
        asked: as of `train_pair`; its `text` is of the source language, and translated too.
        shape: student-tiny, student-base or student-self-attention (which those engines do not run).
        teachers: folders or Hub names; several, of one vocabulary, translate as one.
        reverse: a model of the other direction: the translations that it finds unlikely are left out.

    Returns: the rows of the card, by name; None after a dry run and on other processes than the main one.
    Raises: UserError as `train_pair`, and for teachers of other directions or languages.
    """
    if asked.init_from:
        raise UserError("--init-from: a student begins with nothing; its teacher is --teacher. Leave it out.")
    console, name = console or Console(stderr=True), f"{replace(asked, text=None).name}.{shape}"
    output = Path(output or Path("runs") / (name if seed is None else f"{name}.seed{seed}"))
    student = Student(asked, shape, list(teachers), reverse, Path(data), console)
    pair = replace(asked, text=None)
    results = train_pair(pair, data, output, settings, seed, dry_run, console, watcher, extend=student.plan)
    return student.finish(output, results) if isinstance(results, dict) else None


@dataclass
class Student:
    """A student that is asked for; `content`: of its recipe, once it is planned."""

    asked: TwoFiles
    shape: str
    teachers: list[str]
    reverse: str | None
    data: Path
    console: Console
    content: dict[str, Any] = field(default_factory=dict)

    def tell(self, text: str) -> None:
        """Prints a line."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @property
    def languages(self) -> tuple[str, str]:
        """Returns source and target."""
        return self.content["languages"]["source"], self.content["languages"]["target"]

    # The plan

    def plan(
        self, content: dict[str, Any], home: Path, said: list[str], check: Callable[[dict[str, Any]], Any]
    ) -> list[str]:
        """Makes the rounds of a recipe's content, in the folder `home`; returns what is said of them, and the cost.

        said: of the corpus, and of choices that are no student's. check: of the content, before its cost is measured.
        """
        self.content, kept = content, home / HELD / PLAN
        asking = {"student": self.shape, "teachers": self.teachers, "reverse": self.reverse, "text": self.asked.text}
        if kept.is_file():
            before = read_json(kept, {"asked": dict, "content": dict, "lines": list})
            if (changed := differences(before["asked"], asking)) and folder.has_begun(home):
                listed = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in changed.items())
                raise UserError(f"{home}: this folder holds another student ({listed}). Choose another --output.")
            if not changed:
                content |= before["content"]
                return before["lines"]
        told = [self._check_teacher(name) for name in self.teachers]
        if self.reverse:
            check_direction(self.reverse, self.languages[::-1], f"--reverse {self.reverse}")
        teacher = self.teachers[0]
        if len(self.teachers) > 1:
            teacher = str(home / TEACHER)
            if not (home / TEACHER / CONFIG).is_file():
                fuse_folders(self.teachers, teacher, self.tell, normalization="symbol")
        texts, references = self._texts(content, home)
        size, sample = self._measured(texts)
        drop = [*USUAL, *(["unlikely"] if self.reverse else [])]
        looks = bool(find_spec("py3langid") and (told[0] or direction_of(fetch_small_files(teacher))))
        drop += ["language"] if looks else []
        translate = {
            "model": teacher,
            "text": texts,
            "forward": True,
            "method": METHOD.to_dict(),
            "settings": {"drop": drop, "references": references, "reverse": self.reverse, "window": WINDOW, **told[0]},
        }
        machine = Machine(torch.accelerator.is_available(), join_group().num_processes)
        lines = [line for line in said if line.startswith(("corpus", "dropped", "development set", "training:"))]
        lines += sizes.for_student(content, self.shape, self.teachers, translate, size, machine)
        check(content)
        if not looks:
            lines.append(
                "languages of translations are not looked at: that needs py3langid (pip install 'hf-mlnmt[serve]') and "
                "a teacher whose languages are known"
            )
        lines += self._cost(teacher, told[0], size, sample)
        names = ("model", "objective", "tokenizer", "batch", "optimizer", "schedule", "budget", "precision")
        planned = {name: content[name] for name in (*names, "evaluation", "checkpoints", "rounds")}
        write_json(kept, {"asked": asking, "content": planned, "lines": lines})
        return lines

    def _check_teacher(self, name: str) -> dict[str, str]:
        """Returns what a teacher is told of the languages. Raises: UserError for one of others."""
        check_name(name)
        small, (source, target) = fetch_small_files(name), self.languages
        check_direction(small, (source, target), f"--teacher {name}", "It would teach another language.")
        tokenizers = load_tokenizers(small)
        known = list(tokenizers.each) or languages_of(tokenizers.source)
        if not known:
            return {}
        if target not in known:
            raise UserError(f"--teacher {name}: knows {', '.join(known)}, and not {target}. Give one that does.")
        return {"source_language": source, "target_language": target}

    def _texts(self, content: dict[str, Any], home: Path) -> tuple[list[str], list[str]]:
        """Returns the files that are translated, and those of what people wrote for the first of them."""
        train, dev = content["data"]["train"]["files"], content["data"]["dev"]
        texts, (source, _) = [train["source"]], self.languages
        if self.asked.text:
            check_language(self.asked.text, source, "--text is read as", "With --student it is of the source language.")
            known = ({pair[0].strip() for pair in read_pairs(CorpusSpec(**dev), self.data)},)
            spec = TextSpec(self.asked.text, language=source)
            spoken = PairFilter(**sizes.FILTERS)(read_text(spec, self.data))
            file = home.absolute() / f"text.{source}"
            write_columns([str(file)], unknown(((line,) for line in spoken), known, {"left": 0, "known": 0}))
            texts.append(str(file))
        return texts, [train["target"]]

    def _measured(self, texts: list[str]) -> tuple[Measured, list[str]]:
        """Returns how many lines and words are translated, and the first lines."""
        lines = count = 0
        sample: list[str] = []
        for file in texts:
            for line in read_lines(self.data / file):
                lines, count = lines + 1, count + len(words(line)) + 1
                if len(sample) < SAMPLE and line.strip():
                    sample.append(line)
        return Measured(lines, count), sample

    def _cost(self, teacher: str, told: dict[str, str], size: Measured, sample: list[str]) -> list[str]:
        """Translates some lines and trains some steps; returns what all of it will take."""
        pipeline, count = TranslationPipeline.from_pretrained(teacher), size.words
        begin = time.perf_counter()
        decoding = METHOD.decoding().with_keywords(told)
        found = pipeline.translate_lines(sample, decoding=decoding)
        speed = sum(len(words(line)) + 1 for line in sample) / (time.perf_counter() - begin)
        judge = Judge(USUAL, 3.0, Counts())
        for line, each in zip(sample, found, strict=True):
            judge.keeps(line, each.text, each.finished, each.text)
        written = [each.text for each in found]
        doubts = doubts_about_language(sample, written, judge.spoilt, pipeline.parts.source)
        rounds, total = self.content["rounds"], self.content["budget"]["steps"]
        total += rounds[INT8]["recipe"]["budget"]["steps"] if INT8 in rounds else 0
        step, parameters = seconds_of_step(self.content, count / max(1, size.pairs))
        # A word is 14 bytes of text on both sides, and 3 subwords of 4 bytes; of each round there are five checkpoints'
        # weights and two moments, and two models.
        disk = (14 + 12) * count + len(rounds) * parameters * 4 * (5 * 3 + 2)
        return [
            f"teacher: {speed:,.0f} words/s ({len(sample)} lines, {METHOD.beams} beams, {pipeline.model.device}); "
            f"{count:,} words: about {duration(count / speed)}",
            f"training: {total:,} steps of {step:.2f} s: about {duration(total * step)}, and evaluations",
            f"disk: about {disk / 1e6:,.0f} MB",
            *(f"warning: {doubt}" for doubt in doubts),
        ]

    # What is left when it is trained

    def finish(self, output: Path, results: dict[str, Results]) -> dict[str, Any]:
        """Exports, scores and writes the card; what is unchanged is not done again."""
        teacher = self.content["rounds"][STUDENT]["translate"]["model"]
        trained = output / STUDENT / "average"
        systems: dict[str, Callable[[], Any]] = {
            "teacher": lambda: TranslationPipeline.from_pretrained(teacher, device="cpu"),
            "student": lambda: TranslationPipeline.from_pretrained(str(trained), device="cpu"),
        }
        folders = {"teacher": Path(fetch_small_files(teacher)), "student": trained}
        if INT8 in results:
            self._export(output, teacher)
            folders["int8"] = output / ENGINE
            systems["int8"] = lambda: engine_of(output / ENGINE)
            if find_spec("fxtranslate"):
                folders["int8, by fxtranslate"] = output / ENGINE
                systems["int8, by fxtranslate"] = lambda: fxtranslate_of(output / ENGINE)
        else:
            folders["int8"] = trained
            systems["int8"] = lambda: TranslationPipeline.from_pretrained(str(trained), device="cpu", dtype="int8")
        made, kept = folder.made_from(output), read_json(output / ROWS) if (output / ROWS).is_file() else {}
        tests = self.content["data"]["test"] or {"dev": self.content["data"]["dev"]}
        pairs = {name: list(read_pairs(CorpusSpec(**spec), self.data)) for name, spec in tests.items()}
        rows = {}
        for name, load in systems.items():
            made_of = digest(identity_of_model(str(folders[name]))["files"], _bytes(folders[name]), pairs)
            if name not in kept or not made.same(f"row/{name}", made_of):
                self.tell(f"scoring {name}")
                kept[name] = {"bytes": _bytes(folders[name]), **self._row(load(), pairs)}
                if name == "student":
                    kept[name] |= self._aligned(teacher, str(trained))
                write_json(output / ROWS, kept)
                made.note(f"row/{name}", made_of)
            rows[name] = kept[name]
        self._write_card(output, rows)
        return rows

    def _export(self, output: Path, teacher: str) -> None:
        model, dev = output / INT8 / "average", self.data / self.content["data"]["dev"]["files"]["source"]
        made, made_of = folder.made_from(output), digest(identity_of_model(str(model))["files"])
        if (output / ENGINE / RECORD).is_file() and made.same(ENGINE, made_of):
            return
        with tempfile.TemporaryDirectory() as scratch:
            text = Path(scratch) / "text"
            lines = read_lines(output / f"{STUDENT}.synthetic" / FILES["source"])
            text.write_text("".join(f"{line}\n" for line in islice(lines, SHORTLIST_LINES)), encoding="utf-8")
            options = {"calibration": dev, "shortlist_text": text, "shortlist_teacher": teacher}
            export(model, output / ENGINE, "firefox", **options, tell=self.tell)
        made.note(ENGINE, made_of)

    def _row(self, translate: Any, pairs: dict[str, list[tuple[str, str]]]) -> dict[str, Any]:
        """Returns scores of each test set and words of the source a second, on one thread."""
        scores, seconds, count, threads = {}, 0.0, 0, torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for name, test in pairs.items():
                sources, references = map(list, zip(*test))
                begin = time.perf_counter()
                outputs = [" ".join(text.split()) for text in translate(sources)]
                seconds += time.perf_counter() - begin
                count += sum(len(words(line)) + 1 for line in sources)
                found = score(outputs, references, language=self.languages[1], metrics=["BLEU", "chrF"], bootstrap=0)
                scores[name] = {metric: round(value.score, 2) for metric, value in found.metrics.items()}
        finally:
            torch.set_num_threads(threads)
        return {"scores": scores, "words_per_second": round(count / seconds, 1)}

    def _aligned(self, teacher: str, student: str) -> dict[str, float]:
        """Returns the alignment error rate of the student's attention, the teacher's taken as right."""
        spec = CorpusSpec(**self.content["data"]["dev"])
        sources, targets = map(list, zip(*islice(read_pairs(spec, self.data), COMPARED)))
        sides = (Aligner.of(name, self.languages[1]).links(sources, targets) for name in (teacher, student))
        right, found = (list(map(set, side)) for side in sides)
        if not any(right):
            return {}
        return {
            "alignment_error_rate": round(
                alignment_error_rate(found, [GoldAlignment(frozenset(x), frozenset(x)) for x in right]), 4
            )
        }

    def _write_card(self, output: Path, rows: dict[str, Any]) -> None:
        tests = list(next(iter(rows.values()))["scores"])
        columns = [Number(f"{metric}, {test}") for test in tests for metric in ("BLEU", "chrF")]
        cells = [
            [
                name,
                *(f"{row['scores'][test][metric]:.1f}" for test in tests for metric in ("BLEU", "chrF")),
                f"{row['bytes'] / 1e6:.1f}",
                f"{row['words_per_second']:,.0f}",
            ]
            for name, row in rows.items()
        ]
        table = Table(["", *columns, Number("MB"), Number("words/s, one thread")], cells, "students")
        counts = read_manifest(output / f"{STUDENT}.synthetic").content["counts"]
        dropped = ", ".join(f"{reason} {number:,}" for reason, number in counts["dropped"].items()) or "none"
        error = rows["student"].get("alignment_error_rate")
        lines = [
            f"# {self.shape}, {'-'.join(map(base_language, self.languages))}",
            table.markdown(),
            f"Teacher: {', '.join(self.teachers)}, which translated {counts['read']:,} lines; dropped: {dropped}.",
            *(
                [
                    f"Alignment error rate of the student's attention: {error:.1%}, the teacher's taken as right, on "
                    "the development set's pairs; no alignment was made by people."
                ]
                if error is not None
                else []
            ),
            "Words/s are of this machine, whatever else it did. The engine's own search is greedy.",
        ]
        write_text(output / CARD, "\n\n".join(lines) + "\n")
        self.console.print(table)
        self.tell(f"card: {output / CARD}" + (f"; for Firefox's engines: {output / ENGINE}" if INT8 in rows else ""))


def seconds_of_step(content: dict[str, Any], length: float) -> tuple[float, int]:
    """Returns seconds of a step of a recipe's model, on random tokens in sentences of so many words, and its size."""
    from transformers import AutoModelForSeq2SeqLM

    from hf_mlnmt.training import Translation

    model, batch = content["model"], content["batch"]
    config = config_for(model["system"], model["shape"], vocab_size=content["tokenizer"]["vocab_size"])
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    network = AutoModelForSeq2SeqLM.from_config(config).to(device).train()
    width = max(4, round(length * sizes.SUBWORDS_PER_WORD))
    ids = torch.randint(5, config.vocab_size, (max(1, batch["tokens"] // width), width), device=device)
    inputs, times = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}, []
    for _ in range(3):
        begin = time.perf_counter()
        Translation(0, 0.1).loss(network, inputs)[0].backward()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times) * batch.get("accumulate", 1), sum(each.numel() for each in network.parameters())


def engine_of(exported: Path) -> Callable[[list[str]], list[str]]:
    """Returns what translates with an exported folder, greedily, its products computed as the engines do."""
    with tempfile.TemporaryDirectory() as scratch:
        imported = import_model(next(exported.glob("model*.bin")), Path(scratch) / "again")
        kept = json.loads((Path(scratch) / "again" / KEPT).read_text())
    pipeline = TranslationPipeline(Parts(as_engine(imported.model, kept), imported.tokenizers))
    return lambda texts: pipeline(texts, num_beams=1)


def fxtranslate_of(exported: Path) -> Callable[[list[str]], list[str]]:
    """Returns what translates with an exported folder by the engine fxtranslate, with the shortlist."""
    import fxtranslate

    def content(*patterns: str) -> bytes:
        return next(path for pattern in patterns for path in exported.glob(pattern)).read_bytes()

    engine = fxtranslate.Translator(
        model=content("model*.bin"),
        src_vocab=content("vocab*", "srcvocab*"),
        trg_vocab=content("vocab*", "trgvocab*"),
        shortlist=content("lex*"),
    )
    return lambda texts: [engine.translate(text) if text.strip() else "" for text in texts]


def _bytes(model: Path) -> int:
    """Returns the size of a model's weights, or of all files of an engine's folder but the record."""
    files = list(model.glob("*.safetensors")) or [path for path in model.iterdir() if path.name != RECORD]
    return sum(path.stat().st_size for path in files if path.is_file())
