"""Synthetic corpora: pairs, manifest, filters, and no interruption that changes a byte of them."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.model_folders import SENTENCES
from helpers.toy_translators import best_of_lines
from sacrebleu.metrics import CHRF

from hf_mlnmt import UserError
from hf_mlnmt.data.corpus import find_synthetic, read_manifest
from hf_mlnmt.data.lines import problem_in
from hf_mlnmt.generation import TranslationCall, TranslationPipeline
from hf_mlnmt.generation.synthetic import methods
from hf_mlnmt.generation.synthetic.back_translation import Method, Settings, Watcher, back_translate, text_lines
from hf_mlnmt.generation.translating.journal import STATE, Journal

FREE = {"drop": (), "max_new_tokens": 20}
NAMES = ("source.txt", "target.txt", "manifest.json")


@pytest.fixture(autouse=True)
def loaded(monkeypatch, pipeline, one_thread):
    """The model is loaded once for all tests."""
    monkeypatch.setattr(TranslationPipeline, "from_pretrained", classmethod(lambda *_, **__: pipeline))


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def bytes_of(folder: Path) -> list[bytes]:
    assert sorted(path.name for path in folder.iterdir()) == sorted([".lock", *NAMES])
    return [(folder / name).read_bytes() for name in NAMES]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (Method("beam", beams=2), {"num_beams": 2}),
        (Method("greedy"), {"num_beams": 1}),
        (Method("sampling", seed=7), {"do_sample": True, "draws": "text", "seed": 7}),
        (Method("top-k", top_k=2, seed=7), {"do_sample": True, "draws": "text", "seed": 7, "top_k": 2}),
    ],
)
def test_pairs_are_what_the_model_says_in_the_order_of_the_text(folder, texts, pipeline, tmp_path, method, options):
    manifest = back_translate(folder, texts, tmp_path / "out", method, Settings(window=13, **FREE))
    read = list(text_lines(texts, "error"))
    expected = [each.text for each in best_of_lines(pipeline, read, 0, max_new_tokens=20, **options)]
    expected = [" ".join(out.splitlines()) for out in expected]
    pairs = [(out, line) for out, line in zip(expected, read) if line and not problem_in(out)]
    assert list(zip(*(lines_of(tmp_path / "out" / name) for name in NAMES[:2]))) == pairs
    assert manifest.pairs == len(pairs) > 100
    counts = manifest.content["counts"]
    assert counts["dropped"].pop("empty or unreadable line of the text") == 1
    assert (counts["read"], counts["kept"], sum(counts["dropped"].values())) == (141, len(pairs), 140 - len(pairs))
    assert manifest.content["method"] == method.to_dict()


def test_of_all_beams_that_is_kept_which_is_nearest_to_what_people_wrote(folder, texts, pipeline, tmp_path):
    settings = Settings(limit=17, window=5, **FREE)
    lists = pipeline(SENTENCES[:17], num_beams=3, num_return_sequences=3, max_new_tokens=20)
    people = tmp_path / "people.en"
    people.write_text("".join(f"{ranked[i % 3].text}\n" for i, ranked in enumerate(lists)) + "\n" * (71 - 17))
    settings = replace(settings, references=(str(people),))
    back_translate(folder, texts[:1], tmp_path / "near", Method("beam", beams=3), settings, forward=True)
    outputs = lines_of(tmp_path / "near" / "target.txt")
    assert outputs != [" ".join(ranked[0].text.split()) for ranked in lists]
    for output, ranked, wanted in zip(outputs, lists, lines_of(people)):
        scores = [CHRF().sentence_score(each.text, [wanted]).score for each in ranked]
        assert output == ranked[scores.index(max(scores))].text
    for method, references, message in (
        (Method("greedy"), people, "choose among the beams"),
        (Method("beam"), texts[0].with_name("few"), r"few: has 1 lines and .* line i is to be"),
    ):
        texts[0].with_name("few").write_text("one\n")
        with pytest.raises(UserError, match=message):
            back_translate(folder, texts[:1], tmp_path / "out", method, Settings(references=(str(references),)))


def test_what_a_reverse_model_finds_unlikely_goes(folder, texts, pipeline, tmp_path):
    """A twentieth of each window, by the mean of its subwords' log probabilities."""
    settings = Settings(limit=40, window=20, reverse=str(folder), **FREE)
    manifest = back_translate(folder, texts, tmp_path / "out", Method("greedy"), settings, forward=True)
    assert manifest.content["counts"]["dropped"] == {"unlikely": 2}
    read = list(text_lines(texts, "error"))[:40]
    written = [" ".join(text.split()) for text in pipeline(read, num_beams=1, max_new_tokens=20)]
    losses = []
    for line, output in zip(read, written):
        tokenizers = pipeline.parts.tokenizers
        (source,), (target,) = tokenizers.encode_source([output]), tokenizers.encode_target([line])
        ids, labels = (torch.tensor(x[None].tolist()) for x in (source, target))
        losses.append(pipeline.model(input_ids=ids, labels=labels).loss.item())
    worst = {max(range(first, first + 20), key=losses.__getitem__) for first in (0, 20)}
    assert lines_of(tmp_path / "out" / "source.txt") == [line for i, line in enumerate(read) if i not in worst]


def test_what_is_in_the_language_of_the_text_goes(folder, texts, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(methods, "is_of_another", lambda output, *of: asked.append(of) or len(asked) % 2 == 0)
    settings = Settings(limit=6, drop=("language",), max_new_tokens=20)
    with pytest.raises(UserError, match="say --from and --to"):
        back_translate(folder, texts, tmp_path / "out", Method("greedy"), settings)
    settings = replace(settings, source_language="en-GB", target_language="de")
    manifest = back_translate(folder, texts, tmp_path / "out", Method("greedy"), settings)
    assert set(asked) == {("de", "en")}, "outputs, texts"
    assert manifest.content["counts"]["dropped"] == {"language": 3}


def test_forward_limit_and_noise(folder, texts, pipeline, tmp_path):
    settings = Settings(limit=17, **FREE)
    back_translate(folder, texts, tmp_path / "forward", Method("beam", beams=2), settings, forward=True, tag="<bt>")
    method = Method("noised", beams=2, seed=4)
    manifest = back_translate(folder, texts, tmp_path / "noised", method, settings)
    sources, outputs = (lines_of(tmp_path / "forward" / name) for name in NAMES[:2])
    assert sources == SENTENCES[:17]
    assert lines_of(tmp_path / "noised" / "source.txt") == [method.change(out, i) for i, out in enumerate(outputs)]
    assert (read_manifest(tmp_path / "forward").tag, manifest.tag) == ("<bt>", None)
    assert manifest.content["direction"] == "back"


def test_copied_needs_no_model(texts, tmp_path):
    manifest = back_translate(None, texts, tmp_path / "out", Method("copied"), Settings(drop=("duplicate",)))
    assert lines_of(tmp_path / "out" / "source.txt") == lines_of(tmp_path / "out" / "target.txt")
    assert manifest.content["model"] is None
    assert manifest.content["counts"]["found"]["copied"] == 140
    assert manifest.content["counts"]["dropped"]["duplicate"] == 10
    with pytest.raises(UserError, match="a model is needed by every method but 'copied'"):
        back_translate(None, texts, tmp_path / "other", Method("beam"))


def test_killed_at_ten_moments_it_ends_with_the_same_bytes(folder, texts, tmp_path):
    """SIGKILL after times that are drawn, each start going on from what the one before left.

    They are parts of the time of a whole run: the shorter of two, as the first one may wait for what the others find.
    """
    method = Method("sampling")
    settings = Settings(limit=45, window=3, drop=("duplicate", "long"), max_ratio=1.2, max_new_tokens=20)
    times = []
    for name in ("first", "whole"):
        before = time.monotonic()
        back_translate(folder, texts, tmp_path / name, method, settings)
        times.append(time.monotonic() - before)
    seconds = min(times)
    output, draw, kills = tmp_path / "killed", random.Random(1), 0
    while kills < 10 and not (output / "manifest.json").exists():
        child = os.fork()
        if not child:
            try:
                back_translate(folder, texts, output, method, settings)
            finally:
                os._exit(0)
        time.sleep(draw.uniform(0.01, seconds / 4))
        os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert kills, "it was never interrupted"
    back_translate(folder, texts, output, method, settings)
    assert bytes_of(output) == bytes_of(tmp_path / "whole")


def test_interrupted_between_any_two_writes(folder, texts, tmp_path, monkeypatch):
    """What is written is written in steps; an error before each of them stands for a kill there."""
    settings, method = Settings(window=80, drop=("duplicate",), max_new_tokens=8), Method("greedy")
    whole = tmp_path / "whole"
    assert back_translate(folder, texts, whole, method, settings).content["counts"]["dropped"]["duplicate"] >= 10

    def breaking(function, moments):
        def wrapper(*arguments, **options):
            if next(moments) == 0:
                raise RuntimeError("killed")
            return function(*arguments, **options)

        return wrapper

    for moment in range(20):
        out, moments = tmp_path / f"out{moment}", itertools.count(-moment)
        with monkeypatch.context() as patch:
            for place, name in ((os, "fsync"), (os, "replace"), (Path, "unlink")):
                patch.setattr(place, name, breaking(getattr(place, name), moments))
            with contextlib.suppress(RuntimeError):
                back_translate(folder, texts, out, method, settings)
        back_translate(folder, texts, out, method, settings)
        assert bytes_of(out) == bytes_of(whole), moment


@pytest.mark.parametrize("side", ["source.txt.part", "target.txt.part"])
def test_what_was_changed_while_it_was_stopped_is_refused(texts, tmp_path, monkeypatch, side):
    append, out = Journal.append, tmp_path / "Out"
    settings = Settings(window=13)

    def stopping(self, pairs, lines, **progress):
        append(self, pairs, lines, **progress)
        if lines >= 39:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Journal, "append", stopping)
        back_translate(None, texts, out, Method("copied"), settings)
    written = (out / side).read_bytes()
    for damaged, message in ((written.replace(b"a", b"e", 1), "changed since"), (written[:-1], "shorter than")):
        (out / side).write_bytes(damaged)
        with pytest.raises(UserError, match=f"{side}: {message} .* [Dd]elete the folder {out} and begin again"):
            back_translate(None, texts, out, Method("copied"), settings)
    (out / side).write_bytes(written)
    state = (out / STATE).read_text()
    for key, value in (("lines", -5), ("lines", 10**9), ("lines", 26), ("lines", 40), ("counts", {})):
        content = json.loads(state)
        content["progress"][key] = value
        (out / STATE).write_text(json.dumps(content))
        with pytest.raises(UserError, match=f"{STATE}: .* [Dd]elete the folder {out} and begin again"):
            back_translate(None, texts, out, Method("copied"), settings)
    (out / STATE).write_text(state)
    (out / side).write_bytes(written + b"half a line")
    assert back_translate(None, texts, out, Method("copied"), settings).pairs > 100
    assert lines_of(out / side.removesuffix(".part")) == lines_of(out / "source.txt")


@pytest.mark.skipif(os.name == "nt", reason="no such limits")
def test_a_file_that_cannot_grow_is_named_and_the_same_command_goes_on(tmp_path, monkeypatch):
    import resource

    text, out = tmp_path / "text", tmp_path / "out"
    text.write_text("".join(f"line {number} of a text\n" for number in range(2000)), encoding="utf-8")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"source.txt.part: cannot be written \(File too large\)"):
            back_translate(None, [text], out, Method("copied"), Settings(window=500))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with monkeypatch.context() as patched, pytest.raises(UserError, match=r"source.txt.part: no space left"):
        patched.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        back_translate(None, [text], out, Method("copied"), Settings(window=500))
    assert back_translate(None, [text], out, Method("copied"), Settings(window=500)).pairs == 2000
    assert (out / "target.txt").read_bytes() == text.read_bytes()


def test_finished_it_does_nothing(folder, texts, tmp_path, monkeypatch):
    back_translate(folder, texts, tmp_path / "out", Method("greedy"), Settings(**FREE))
    monkeypatch.setattr(TranslationCall, "translate", None)
    told: list[str] = []
    back_translate(folder, texts, tmp_path / "out", Method("greedy"), Settings(**FREE), watcher=Watcher(told.append))
    assert "is finished, and nothing changed since: 140 pairs" in told[-1]


@pytest.mark.parametrize("finished", [True, False])
def test_another_model_text_or_method_is_refused(folder, texts, tmp_path, monkeypatch, finished):
    """What changed is named, and nothing is lost."""
    output, copies = tmp_path / "out", [shutil.copy(path, tmp_path) for path in texts]
    model = shutil.copytree(folder, tmp_path / "model")
    with monkeypatch.context() as patch:
        if not finished:
            patch.setattr(Journal, "append", lambda *arguments, **more: 1 / 0)
        try:
            back_translate(model, copies, output, Method("greedy"), Settings(**FREE))
        except ZeroDivisionError:
            assert not finished
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    config = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps({**config, "length_penalty": 2.0}))
    with pytest.raises(UserError, match=r"model's generation_config.json has another content") as caught:
        back_translate(model, copies[:1], output, Method("sampling"), Settings(**FREE, limit=5), tag="<bt>")
    state = "finished" if finished else "not finished"
    for expected in (f"({state})", "text: 2 file(s) -> 1", "tag: None -> <bt>", "limit: None -> 5",
                     "method, name: greedy -> sampling", "method, seed: None -> 1"):  # fmt: skip
        assert expected in str(caught.value)
    Path(copies[0]).write_text("other\n")
    with pytest.raises(UserError, match=r"first.txt: its content changed \(71 lines -> 1\)"):
        back_translate(folder, copies, output, Method("greedy"), Settings(**FREE))
    assert before == {path.name: path.read_bytes() for path in output.iterdir()}


def test_a_manifest_whose_files_changed_is_refused(folder, texts, tmp_path):
    output = tmp_path / "out"
    back_translate(folder, texts, output, Method("greedy"), Settings(**FREE))
    kept = (output / "source.txt").read_bytes()
    (output / "source.txt").write_bytes(kept[:-2] + b"\x21\n")
    (output / "target.txt").unlink()
    with pytest.raises(UserError, match=r"source\.txt: its SHA-256 is .* target\.txt: is missing"):
        read_manifest(output)
    (output / "source.txt").write_bytes(kept + b"x\n")
    with pytest.raises(UserError, match=r"source.txt: has [\d,]+ bytes, [\d,]+ expected"):
        back_translate(folder, texts, output, Method("greedy"), Settings(**FREE))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("pairs", {"lines": "many"}, 'pairs.lines: expected a whole number, not "many"|pairs.source: is not there'),
        ("text", [3], "text.0: expected a JSON object, not 3"),
        ("model", {"name": 1, "files": {}}, "model.name: expected a text, not 1"),
        ("tag", [None], r"tag: expected a text, not \[null\]"),
        (
            "counts",
            {"read": 1, "kept": 1, "found": {"long": "x"}, "dropped": {}},
            "counts.found.long: expected a whole",
        ),
    ],
)
def test_a_manifest_whose_values_are_of_other_types(texts, tmp_path, key, value, message):
    output = tmp_path / "out"
    back_translate(None, texts, output, Method("copied"))
    content = json.loads((output / "manifest.json").read_text())
    (output / "manifest.json").write_text(json.dumps({**content, key: value}))
    for read in (read_manifest, lambda path: back_translate(None, texts, path, Method("copied"))):
        with pytest.raises(UserError, match=rf"manifest\.json: ({message})"):
            read(output)


@pytest.mark.parametrize("text", ["null", "{}", '{"about": [], "progress": {}}', '{"about"'])
def test_a_state_that_is_none(folder, texts, tmp_path, text):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "state.json").write_text(text)
    with pytest.raises(UserError, match=r"state\.json: .* delete the folder .* and begin again"):
        back_translate(folder, texts, tmp_path / "out", Method("greedy"), Settings(**FREE))


def test_what_is_no_synthetic_corpus(tmp_path, texts):
    with pytest.raises(UserError, match=r"no synthetic corpus there .* hf-mlnmt back-translate"):
        find_synthetic("nothing", tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match="not a manifest of a synthetic corpus"):
        read_manifest(find_synthetic(tmp_path))
    with pytest.raises(UserError, match="holds other things"):
        back_translate(None, texts, texts[0].parent, Method("copied"))


def test_bad_lines_are_found_before_anything_is_translated(folder, tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b"fine\nnot \xff fine\nfine too\n")
    with pytest.raises(UserError, match=r"text, line 2: invalid UTF-8 .* bad_lines drop"):
        back_translate(folder, [text], tmp_path / "out", Method("greedy"), Settings(**FREE))
    assert not (tmp_path / "out" / "state.json").exists()
    manifest = back_translate(folder, [text], tmp_path / "out", Method("greedy"), Settings(bad_lines="drop", **FREE))
    assert lines_of(tmp_path / "out" / "target.txt") == ["fine", "fine too"]
    assert manifest.content["counts"]["dropped"] == {"empty or unreadable line of the text": 1}


def test_text_that_the_model_does_not_read_is_refused(folder, tmp_path):
    model = shutil.copytree(folder, tmp_path / "model")
    (model / "results.json").write_text(json.dumps({"languages": {"source": "de", "target": "en"}}))
    (tmp_path / "news.en").write_text("A man.\n")
    with pytest.raises(
        UserError, match=r"news.en: its name says en, but .*model translates from de. Give files of the model's"
    ):
        back_translate(model, [tmp_path / "news.en"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
