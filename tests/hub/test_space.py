"""A Space: what its folder holds, that its app starts with the package and without it, how it is uploaded."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from helpers import fresh
from helpers.model_folders import SENTENCES, write_model
from helpers.verbs import of_verbs

from hf_mlnmt import UserError, __version__
from hf_mlnmt.cli.publish import publish
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.hub import build_folder, build_space, push
from hf_mlnmt.hub.publish import GRADIO

ROOT = Path(__file__).resolve().parents[2]
HIDDEN = "import runpy, sys; sys.modules['hf_mlnmt'] = None; runpy.run_path('app.py')"
# As it is set at first.
PAGE = ["A man.", "en", "de", -1, -1, [], None, None, 5, 0, "", "", "", [], None, None, None, None, {}]
run, refused = of_verbs(publish)


@pytest.fixture(scope="module")
def folders(trained_folder, tmp_path_factory) -> Path:
    """Where the model's folder is, toy, and its Space's, toy-space: as the command writes them."""
    place = tmp_path_factory.mktemp("space")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hf_mlnmt.hub.publish.check_loading", lambda *arguments: None)
        asked = [trained_folder, "-o", place / "toy", "--space", "anna/try-toy", "--licence", "cc-by-4.0"]
        assert f"its Space in {place / 'toy-space'}" in run(*asked).replace("\n", "")
    return place


def head_of(readme: Path) -> dict[str, Any]:
    return yaml.safe_load(readme.read_text().split("---")[1])


def test_what_a_space_holds(folders):
    space = folders / "toy-space"
    assert {path.name for path in space.iterdir()} == {"README.md", "app.py", "requirements.txt"}
    head = head_of(space / "README.md")
    assert (head["sdk"], head["sdk_version"], head["app_file"]) == ("gradio", GRADIO, "app.py")
    assert (head["license"], head["title"]) == ("cc-by-4.0", "try-toy")
    assert "models" not in head  # of a folder: the Hub would look for a model of that name
    lines = (space / "requirements.txt").read_text().splitlines()
    assert lines[2] == f"hf-mlnmt[serve]=={__version__}"
    assert lines[1].startswith("torch==2.")
    assert "+" not in lines[1]
    assert "[anna/try-toy](https://huggingface.co/spaces/anna/try-toy)" in (folders / "toy" / "README.md").read_text()


def test_links_both_ways_on_the_hub(trained_folder, tmp_path, quick, monkeypatch):
    sent = {}

    def take(folder: Path, repo_id: str, **options: Any) -> str:
        sent[repo_id] = options, (folder / "README.md").read_text()
        return f"https://hub.test/{repo_id}"

    monkeypatch.setattr("hf_mlnmt.hub.upload.push", take)
    monkeypatch.setattr("hf_mlnmt.hub.upload.check_ready", lambda repo_id: None)
    asked = [trained_folder, "--push", "anna/toy", "--space", "anna/try-toy", "--private", "--licence", "other:Our-1"]
    asked.append("--confirm-licence")
    assert "https://hub.test/anna/try-toy" in run(*asked)
    options, card = sent["anna/toy"]
    assert "https://huggingface.co/spaces/anna/try-toy" in card
    assert "space" not in options
    options, card = sent["anna/try-toy"]
    assert (options["space"], options["private"]) == (True, True)
    assert "https://huggingface.co/anna/toy" in card
    head = yaml.safe_load(card.split("---")[1])
    assert (head["models"], head["license"], head["license_name"]) == (["anna/toy"], "other", "our-1")


def test_uploading_makes_a_space(folders):
    class Hub:
        endpoint, calls = "https://hub.test", []

        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                self.calls.append((name, options))
                return {"name": "anna"} if name == "whoami" else ["README.md", "app.py", "requirements.txt"]

            return call

    hub = Hub()
    assert push(folders / "toy-space", "anna/try", space=True, api=hub) == "https://hub.test/spaces/anna/try"
    asked = dict(hub.calls)
    assert (asked["create_repo"]["repo_type"], asked["create_repo"]["space_sdk"]) == ("space", "gradio")
    assert asked["upload_folder"]["repo_type"] == asked["list_repo_files"]["repo_type"] == "space"


def test_what_is_refused(trained_folder, folders, tmp_path, quick):
    assert "--space anna: expected owner/name" in refused(trained_folder, "-o", tmp_path / "out", "--space", "anna")
    (tmp_path / "out-space").mkdir()
    (tmp_path / "out-space" / "thesis.txt").write_text("mine")
    assert "holds 'thesis.txt'" in refused(trained_folder, "-o", tmp_path / "out", "--space", "anna/try")
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out-space" / "thesis.txt").read_text() == "mine"
    shutil.copytree(trained_folder, tmp_path / "silent", ignore=shutil.ignore_patterns("results.json"))
    facts = build_folder(tmp_path / "silent", tmp_path / "published").facts
    with pytest.raises(UserError, match="Say --from and --to"):
        build_space(facts, tmp_path / "space", "anna/try")
    assert not (tmp_path / "space").exists()


def test_the_code_for_several_languages_runs(tmp_path, quick):
    folder = write_model(tmp_path / "run", languages=("de", "fr"))
    facts = build_folder(folder, tmp_path / "model", licence="mit").facts
    code = (build_space(facts, tmp_path / "space", "anna/try") / "app.py").read_text()
    assert "tokenizer([text], tgt_lang=language, return_tensors" in code
    assert 'gradio.Dropdown(["de", "fr"], value="de"' in code
    compile(code, "app.py", "exec")


def test_a_space_has_the_tested_gradio():
    assert f"gradio=={GRADIO}\n" in (ROOT / "constraints.txt").read_text()


@pytest.fixture(scope="module")
def started(folders, tmp_path_factory) -> Iterator[dict[str, str]]:
    """Addresses of the app in two processes, one of which cannot import the package."""
    pytest.importorskip("gradio", reason="needs the extra serve")
    environment = {
        **os.environ,
        **{"MODEL": str(folders / "toy"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        **{"HF_MODULES_CACHE": str(tmp_path_factory.mktemp("modules"))},
    }
    processes, addresses = [], {}
    for name, command in (("package", ["app.py"]), ("remote code", ["-c", HIDDEN])):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment |= {"GRADIO_SERVER_PORT": str(port), "GRADIO_SERVER_NAME": "127.0.0.1"}
        log = (folders / f"{name}.log").open("w")
        how = {"stdout": log, "stderr": log, "level": "serving" if name == "package" else "torch"}
        run = fresh.Popen([sys.executable, *command], environment, folders / "toy-space", **how)
        processes.append(run)
        addresses[name] = f"http://127.0.0.1:{port}"
    yield addresses
    for run in processes:
        run.terminate()
        run.wait(20)


def ask(address: str, data: list[Any], seconds: float = 120.0) -> list[Any]:
    """What the first function of a gradio app answers, asked as a browser does."""
    end = time.monotonic() + seconds
    body = json.dumps({"data": data, "fn_index": 0, "session_hash": "test"}).encode()
    while True:
        try:
            urlopen(Request(f"{address}/gradio_api/queue/join", body, {"Content-Type": "application/json"})).close()
            break
        except OSError:
            assert time.monotonic() < end, "the app did not start"
            time.sleep(0.2)
    with urlopen(f"{address}/gradio_api/queue/data?session_hash=test", timeout=seconds) as events:
        for line in events:
            if line.startswith(b"data:") and (event := json.loads(line[5:]))["msg"] == "process_completed":
                assert event["success"], event
                return event["output"]["data"]
    raise AssertionError("no answer")


def test_the_app_translates_by_the_package(started, folders):
    text = SENTENCES[0]
    expected = TranslationPipeline.from_pretrained(str(folders / "toy"))(text)
    shown = ask(started["package"], [text, *PAGE[1:]])[0]
    (best,) = re.findall(r'class="best"[^>]*>(.*?)</div>', shown, re.DOTALL)
    assert html.unescape(re.sub("<[^>]*>", "", best)) == expected  # each word is a button


def test_the_app_translates_by_the_code_beside_the_weights(started, folders):
    text = SENTENCES[0]
    assert ask(started["remote code"], [text]) == [TranslationPipeline.from_pretrained(str(folders / "toy"))(text)]
    assert ask(started["remote code"], [" \n"]) == [""]
    (long,) = ask(started["remote code"], ["dog " * 300])  # more than the model's positions
    assert long
    assert ask(started["remote code"], [f"{text} {text}"])[0].count(ask(started["remote code"], [text])[0]) == 2


@pytest.mark.parametrize("name", ["package", "remote code"])
def test_nothing_is_uploaded_to_a_space(started, name):
    ask(started[name], {"package": PAGE, "remote code": ["A man."]}[name])
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nmany bytes\r\n--x--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    with pytest.raises(HTTPError):
        urlopen(Request(f"{started[name]}/gradio_api/upload", body, kind))
