"""A student of a teacher: the recipe that is written, its rounds interrupted and gone on with, and what is refused."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from dataclasses import replace

import pytest
import yaml
from helpers.export_toys import toy_model, write_folder
from helpers.model_folders import SENTENCES
from helpers.tiny_run import write_corpus
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM

from hf_mlnmt import UserError
from hf_mlnmt.data.corpus import read_manifest
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer
from hf_mlnmt.generation.synthetic.methods import USUAL
from hf_mlnmt.generation.translating.journal import Journal
from hf_mlnmt.training import TwoFiles, run, students, train_pair
from hf_mlnmt.training.callbacks import DrawCurves, ShowProgress
from hf_mlnmt.training.quantisation_aware import RoundedProducts

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = (
    "model.settings={d_model: 64, encoder_layers: 1, decoder_layers: 1, encoder_ffn_dim: 64, decoder_ffn_dim: 64}",
    "tokenizer={kind: unigram, vocab_size: 90, byte_fallback: false}",
    "budget.steps=6",
    "schedule.warmup=1",
    "evaluation={every: 3, metrics: [], best: loss}",
    "checkpoints={keep: 1, average: 1}",
    "decoding={beams: 1, max_new_tokens: 8}",
    "precision.dtype=float32",
    "rounds.student.translate.settings.drop=[]",
    "rounds.student.translate.settings.max_new_tokens=8",
    "rounds.student.translate.method={name: beam, beams: 2}",
    "rounds.int8.recipe.budget.steps=2",
    "rounds.int8.recipe.schedule.warmup=1",
    "rounds.int8.recipe.evaluation.every=2",
)
FILES = TwoFiles(("train.en", "train.de"), dev=("val.en", "val.de"), text="mono.en", student="student-tiny")


@pytest.fixture
def taught(tmp_path, monkeypatch):
    """A teacher with random weights, which says its direction, pairs, and text of which a line is in the dev set."""
    monkeypatch.setattr(students, "find_spec", lambda name: None)
    monkeypatch.setattr(DrawCurves, "draw", lambda *_: None)
    data = write_corpus(tmp_path / "data", {"train": 280, "val": 8})
    (data / "mono.en").write_text("ba do ki lu\n" + (data / "val.en").read_text())
    texts = lines_of(data / "train.en") + lines_of(data / "train.de")
    tokenizers = Tokenizers(*[train_tokenizer(texts, "bpe", 90, (), False)] * 2)
    folder = write_folder(tmp_path / "teacher", tokenizers, toy_model(tokenizers))
    (folder / "results.json").write_text(json.dumps({"languages": {"source": "en", "target": "de"}}))
    return data, folder


def lines_of(file):
    return file.read_text().splitlines()


def teach(taught, output, settings=(), dry_run=False, **asked):
    data, folder = taught
    console = Console(file=io.StringIO(), width=200)
    files = replace(FILES, **{"teachers": (str(folder),), **asked})
    results = train_pair(files, data, output, (*TINY, *settings), None, dry_run, console)
    return results, console.file.getvalue()


def test_from_a_teacher_to_int8_also_when_every_stage_is_cut_off(taught, tmp_path, monkeypatch):
    output, show = tmp_path / "run", ShowProgress.on_step_end
    computed: Counter = Counter()

    def cut(*arguments, **named):
        raise RuntimeError("power cut")

    def counted(owner, name):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: computed.update([name]) or real(*given))

    counted(RoundedProducts, "computing")
    counted(run, "calibrate")

    def cut_training(name, step):
        def stop(self, args, state, control, **kwargs):
            if f"/{name}/" in args.output_dir and state.global_step == step:
                cut()
            show(self, args, state, control, **kwargs)

        return stop

    both = (str(taught[1]), str(taught[1]))
    for owner, name, replacement in (
        (Journal, "append", cut),
        (ShowProgress, "on_step_end", cut_training("student", 5)),
        (ShowProgress, "on_step_end", cut_training("int8", 1)),
    ):
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
            patch.setattr(owner, name, replacement)
            teach(taught, output, teachers=both)
    results, said = teach(taught, output, teachers=both)
    assert "languages of translations are not looked at" in said
    assert f"--shortlist-teacher {output}/pair/teacher" in said
    assert computed == {"calibrate": 2, "computing": 3}, "of the step that was cut off, and of two more"
    assert said.count("is finished, and nothing changed since") == 2
    assert list(results) == ["student", "int8"]
    settings = AutoModelForSeq2SeqLM.from_pretrained(output / "int8" / "average").generation_config
    assert settings.alignment_head == [1, 1]
    manifest = read_manifest(output / "student.synthetic")
    count = len(lines_of(output / "pair" / "train.en")) + 1
    assert manifest.content["counts"]["read"] == count, "the text is without the development set"
    assert lines_of(output / "student.synthetic" / "source.txt")[-1] == "ba do ki lu"
    recipe = yaml.safe_load((output / "int8" / "recipe.yaml").read_text())
    assert recipe["data"]["train"] == [{"synthetic": str(output / "student.synthetic")}]
    assert recipe["init_from"] == recipe["tokenizer"]["path"] == str(output / "student" / "average")
    with pytest.raises(UserError, match=r"holds another training \(old -> new\):\n  teachers: .*"):
        teach(taught, output)


def test_teachers_and_students_that_cannot_be(taught, tmp_path):
    other = shutil.copytree(taught[1], tmp_path / "other")
    (other / "results.json").write_text(json.dumps({"languages": {"source": "de", "target": "en"}}))
    codes = Tokenizers(*[train_tokenizer(SENTENCES, vocab_size=300, languages=["fr", "it"])] * 2)
    several = str(write_folder(tmp_path / "several", codes, toy_model(codes)))
    teacher = str(taught[1])
    for asked, message in (
        ({"reverse": teacher}, r"--reverse .*: translates en to de, and a model of de to en is needed"),
        ({"teachers": (str(other),)}, "translates de to en, and a model of en to de is needed"),
        ({"teachers": (several,)}, "knows fr, it, and not de"),
        ({"teachers": (teacher, several)}, "knows fr, it, and not de"),
        ({"student": "student-small"}, "--student student-small: unknown.*student-self-attention"),
        ({"init_from": "x"}, "--init-from: a student begins with nothing"),
        ({"text": "mono.de"}, "With --student it is of the source language"),
        ({"teachers": ("./nowhere",)}, "no such folder"),
    ):
        with pytest.raises(UserError, match=message):
            teach(taught, tmp_path / "run", **asked)
        assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"^train.en-de.student-tiny.yaml: .*nonesuch is no earlier round"):
        teach(taught, tmp_path / "run", ["rounds.third={after: nonesuch}"], dry_run=True)


def test_what_a_teacher_is_told_and_what_is_dropped(taught, tmp_path, monkeypatch):
    """Of a model of many languages the direction; languages are looked at where they are known, by py3langid."""
    codes = Tokenizers(*[train_tokenizer(SENTENCES, vocab_size=300, languages=["en", "de"])] * 2)
    several = write_folder(tmp_path / "several", codes, toy_model(codes))
    silent = shutil.copytree(taught[1], tmp_path / "silent", ignore=shutil.ignore_patterns("results.json"))
    back = shutil.copytree(silent, tmp_path / "back")
    found: list[dict] = []

    def planned(content, shape, teachers, translate, *sizes):
        found.append(translate["settings"])
        raise RuntimeError("planned")

    monkeypatch.setattr(students, "student_rounds", planned)
    told = {"source_language": "en", "target_language": "de"}
    for teacher, reverse, installed, more, languages in (
        (taught[1], None, True, ["language"], {}),
        (taught[1], str(back), False, ["unlikely"], {}),
        (several, str(back), True, ["unlikely", "language"], told),
        (silent, None, True, [], {}),
    ):
        monkeypatch.setattr(students, "find_spec", lambda name, found=installed: found and name == "py3langid")
        with pytest.raises(RuntimeError, match="planned"):
            teach(taught, tmp_path / "run", teachers=(str(teacher),), reverse=reverse)
        settings = found.pop()
        assert settings["drop"] == [*USUAL, *more]
        assert (settings["reverse"], settings["references"]) == (reverse, [str(tmp_path / "run" / "pair" / "train.de")])
        assert {key: settings[key] for key in settings if key.endswith("_language")} == languages
