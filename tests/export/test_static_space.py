"""A static Space: what its folder holds; and, with npm and Chromium, that it translates, also without a network."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.docs import ROOT, blocks, commands
from helpers.export_toys import joint_tokenizer, toy_model, write_folder
from helpers.model_folders import SENTENCES
from typer.testing import CliRunner

from hf_mlnmt.cli import app
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data import train_tokenizer
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.demo.grammar import sample_demo_corpus
from hf_mlnmt.export import static_space
from hf_mlnmt.export.static_space import LIBRARY, build_static_space
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.reports.facts import Facts

pytest.importorskip("onnxruntime", reason="pip install 'hf-mlnmt[export]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDED = {
    "@huggingface/transformers": {
        "package.json": json.dumps({"dependencies": {"onnxruntime-web": "1.2.3"}}),
        "LICENSE": "Apache",
        "dist/transformers.web.min.js": 'import*as a from"onnxruntime-web/webgpu";import{T}from"onnxruntime-common";',
    },
    "onnxruntime-web": {
        "package.json": json.dumps({"license": "MIT"}),
        "dist/ort.wasm.bundle.min.mjs": "export{};",
        "dist/ort-wasm-simd-threaded.wasm": "wasm",
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    tokenizers = joint_tokenizer()
    model = toy_model(tokenizers)
    return write_folder(tmp_path_factory.mktemp("model") / "toy", tokenizers, model)


def facts_of(folder: Path, **more: object) -> Facts:
    loaded = TranslationPipeline.from_pretrained(str(folder)).model
    known = {"languages": ("en", "de"), "domain": "image captions", "licence": "cc-by-4.0"}
    return Facts("me/toy", loaded.config, type(loaded), **{**known, "generation": {"max_source_tokens": 48}, **more})


def npm(command, **options):
    """Packs what a package of npm holds, as far as it is needed."""
    assert command[:2] == ["npm", "pack"]
    package = command[2].rpartition("@")[0]
    folder = Path(options["cwd"])
    for name, text in NEEDED[package].items():
        path = folder / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with tarfile.open(folder / "it.tgz", "w:gz") as archive:
        archive.add(folder / "package", "package")
    shutil.rmtree(folder / "package")


def exported(model, output, to, dtype):
    """Writes what an export does, in no time."""
    assert (to, dtype) == ("transformers.js", "int8")
    (output / "onnx").mkdir(parents=True)
    (output / "onnx" / "decoder_model_merged_quantized.onnx").write_bytes(b"x" * 1000)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(static_space.shutil, "which", lambda name: name)
    monkeypatch.setattr(
        static_space, "subprocess", SimpleNamespace(run=npm, SubprocessError=subprocess.SubprocessError)
    )
    monkeypatch.setattr(static_space, "export", exported)


def test_what_the_folder_holds(model, tmp_path, here):
    space = build_static_space(facts_of(model), model, tmp_path / "space", "me/try-toy")
    card = (space / "README.md").read_text()
    assert "sdk: static" in card
    assert "@huggingface/transformers 4.3.2 and onnxruntime-web 1.2.3" in card
    page = (space / "index.html").read_text()
    assert "English into German. For image captions, and nothing else" in page
    assert re.findall(r'id="(?:source|out)".* lang="(..)"', page) == ["en", "de"]
    assert "LONGEST = 48;" in (space / "worker.js").read_text()
    library = (space / "runtime" / "transformers.js").read_text()
    assert library.count('from"./ort.mjs"') == 2
    offline = (space / "offline.js").read_text()
    kept = json.loads(re.search(r"FILES = (\{.*\});", offline)[1])
    files = {path.relative_to(space).as_posix(): path.stat().st_size for path in space.rglob("*") if path.is_file()}
    unneeded = {"README.md", "offline.js", *(name for name in files if "LICENSE" in name)}
    assert kept == {"./": files["index.html"], **{name: files[name] for name in files.keys() - unneeded}}
    name = re.search(r'NAME = "(hf-mlnmt-\w+)";', offline)[1]
    again = build_static_space(facts_of(model, licence="mit"), model, space, "me/try-toy")
    assert name not in (again / "offline.js").read_text()  # another page: readers get it anew


def test_a_language_is_chosen_where_there_are_several(model, tmp_path, here):
    space = build_static_space(facts_of(model, codes=("de", "fr")), model, tmp_path / "space", "me/many")
    page = (space / "index.html").read_text()
    assert '<option value="fr">French</option>' in page
    assert json.loads(re.search(r"const tokens = (.*);", page)[1]) == {"de": "<2de>", "fr": "<2fr>"}


def test_refusals(model, tmp_path, here, monkeypatch):
    def fail(command, **options):
        raise subprocess.CalledProcessError(1, command, stderr="npm error code E404\nmore")

    with monkeypatch.context() as patch:
        patch.setattr(static_space.subprocess, "run", fail)
        with pytest.raises(UserError, match=r"^npm pack @huggingface/transformers@4\.3\.2: npm error code E404\.$"):
            build_static_space(facts_of(model), model, tmp_path / "space", "me/toy")
    assert not (tmp_path / "space").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(UserError, match="other"):
        build_static_space(facts_of(model), model, tmp_path / "other", "me/toy")
    monkeypatch.setattr(static_space.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=r"Install Node\.js"):
        build_static_space(facts_of(model), model, tmp_path / "space", "me/toy")


# The real thing: npm, Node and Chromium, and a model that has learnt: one of random weights writes bytes of no text

REAL = ROOT / "published" / "en-de"
TEXTS = [
    "Two dogs play with a red ball on the beach.",
    "A man in a blue shirt is standing on a ladder.",
    "Children.",
    "A woman is reading a book.",
]


class Unkept(http.server.SimpleHTTPRequestHandler):
    """Serves files that the browser's own cache may not keep: what is there without a network, the page has kept."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a folder while a block runs; gives its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Unkept, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.versions
def test_in_chromium_with_and_without_a_network(tmp_path):
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None or shutil.which("npm") is None:
        pytest.skip("needs Chromium and npm")
    space = build_static_space(facts_of(REAL), REAL, tmp_path / "space", "me/try-it")
    assert sum(path.stat().st_size for path in space.rglob("*") if path.is_file()) < 14e6
    expected = TranslationPipeline.from_pretrained(str(REAL))(TEXTS, num_beams=1)
    elsewhere: list[str] = []
    errors: list[str] = []

    def translates(window: Any, address: str) -> None:
        tab = window.new_page()
        tab.goto(address)
        api.expect(tab.locator("#loading")).to_be_hidden(timeout=120_000)
        for text, translation in zip(TEXTS, expected):
            tab.locator("#source").fill(text)
            api.expect(tab.locator("#out")).to_have_text(translation, timeout=60_000)
        assert tab.locator("#copy").is_visible()

    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        window = browser.new_context()
        window.on("weberror", lambda error: errors.append(str(error.error)))
        with served(space) as address:
            ours = (address, "data:", "blob:")
            window.on("request", lambda asked: None if asked.url.startswith(ours) else elsewhere.append(asked.url))
            translates(window, address)
        window.set_offline(True)
        translates(window, address)
        browser.close()
    assert not elsewhere
    assert not errors


@pytest.fixture(scope="module")
def node(tmp_path_factory) -> Path:
    """A folder in which Node finds transformers.js."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text("{}")
    quiet = {**os.environ, "ONNXRUNTIME_NODE_INSTALL": "skip"}
    subprocess.run(["npm", "install", "--silent", "@".join(LIBRARY)], cwd=folder, env=quiet, check=True, timeout=900)
    (folder / "run.mjs").write_text(
        'import { env, pipeline } from "@huggingface/transformers";\n'
        'env.allowRemoteModels = false; env.localModelPath = "./";\n'
        'const translator = await pipeline("translation", process.argv[2], { dtype: "fp32" });\n'
        "const texts = JSON.parse(process.argv[3]), alone = [];\n"
        "for (const text of texts) alone.push(...(await translator(text)));\n"
        "console.log(JSON.stringify([alone, await translator(texts)]));\n"
    )
    return folder


@pytest.mark.versions
@pytest.mark.parametrize("kind", ["published", "student"])
def test_in_node(kind, node, tmp_path):
    """pipeline("translation") gives generate()'s greedy outputs in float32, alone and in a batch."""
    from hf_mlnmt.export import export

    model, texts, how = REAL, TEXTS, {}
    if kind == "student":
        tokenizers = Tokenizers(*[train_tokenizer(SENTENCES, "unigram", 100, byte_fallback=False)] * 2)
        model, texts = write_folder(tmp_path / "model", tokenizers, toy_model(tokenizers, "ssru")), SENTENCES[:4]
        how = {"max_new_tokens": 63}
    export(model, node / kind, "transformers.js", dtype="float32")
    command = ["node", "run.mjs", kind, json.dumps(texts)]
    printed = subprocess.run(command, cwd=node, check=True, capture_output=True, text=True, timeout=300).stdout
    ours = TranslationPipeline.from_pretrained(str(model))(texts, num_beams=1, **how)
    assert len(set(ours)) > 2
    for found in json.loads(printed.splitlines()[-1]):
        assert [entry["translation_text"] for entry in found] == ours


# What makes the training of docs/browser.md small; the last of two options counts.
SMALL = (
    "budget.steps=4",
    "schedule.warmup=1",
    "evaluation={every: 4, metrics: [bleu]}",
    "checkpoints={keep: 1, average: 1}",
    "decoding={beams: 1, max_new_tokens: 8}",
    "tokenizer.vocab_size=400",
    "model.settings={d_model: 64, encoder_layers: 1, decoder_layers: 1, encoder_ffn_dim: 64, decoder_ffn_dim: 64}",
    "rounds.student.translate.method={name: beam, beams: 1}",
    "rounds.int8.recipe.budget.steps=2",
    "rounds.int8.recipe.schedule.warmup=1",
    "rounds.int8.recipe.evaluation.every=2",
    "precision.dtype=float32",
)


@pytest.mark.versions
@pytest.mark.usefixtures("quick", "one_thread")
def test_docs_browser_from_two_files_to_the_page(tmp_path, monkeypatch):
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    monkeypatch.chdir(tmp_path)
    Path("published").symlink_to(REAL.parent)
    for side, lines in zip(("en", "de"), zip(*sample_demo_corpus(sizes={"train": 260, "val": 0, "test": 0})["train"])):
        Path(f"train.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for block in blocks(ROOT / "docs" / "browser.md", "bash"):
        for command in commands(block):
            if command.words[0] == "hf-mlnmt":
                small = [f"--set={key}" for key in SMALL if command.words[1] == "train"]
                done = CliRunner().invoke(app, [*command.words[1:], *small])
                assert done.exit_code == 0, (command, done.output[-1500:], done.exception)
    for made in (
        "runs/tiny/firefox/model.ende.intgemm.alphas.bin",
        "runs/tiny/README.md",
        "tiny-js/onnx/encoder_model_quantized.onnx",
        "tiny/model.safetensors",
        "tiny-space/index.html",
    ):
        assert Path(made).is_file(), made
