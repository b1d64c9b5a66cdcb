"""The commands publish and describe: their options, outputs and exits."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import tomllib
from pathlib import Path

import pytest
from helpers.verbs import of_verbs
from huggingface_hub import ModelCard

from hf_mlnmt.cli.describe import describe
from hf_mlnmt.cli.publish import publish
from hf_mlnmt.common.errors import UserError

run, refused = of_verbs(publish, describe)
ROOT = Path(__file__).resolve().parents[2]


def test_publish_to_a_folder(trained_folder, tmp_path, quick):
    output = run("publish", trained_folder, "-o", tmp_path / "out", "--licence", "mit", "--from", "en", "--to", "de")
    assert "warning" not in output
    assert "license: mit" in (tmp_path / "out" / "README.md").read_text()


def test_publish_refuses_licences_and_warns_of_languages_that_the_hub_does_not_know(trained_folder, tmp_path, quick):
    out = tmp_path / "out"
    for licence in ("Apache2", "<script>", "other:", "other:<b>", "mit:mine"):
        assert f"licence {licence!r} is none of the names of the Hub" in refused(
            "publish", trained_folder, "-o", out, "--licence", licence
        )
    assert not out.exists()
    run("publish", trained_folder, "-o", out, "--licence", "other:Our-1.0", "--confirm-licence")
    assert "license: other\nlicense_name: our-1.0\n" in (out / "README.md").read_text()
    with pytest.raises(UserError, match="average: translates en to de, and a model of de to en is needed"):
        run("publish", trained_folder, "-o", out, "--licence", "mit", "--from", "de", "--to", "en")
    folder = shutil.copytree(trained_folder, tmp_path / "average")  # whose languages nothing says
    results = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps({**results, "languages": {}}))
    output = run("publish", folder, "-o", out, "--licence", "mit", "--from", "english", "--to", "de")
    assert "language 'english' is no code" in output
    assert "'de'" not in output
    for code, base, whole in (("pt-BR", "pt", "pt-BR"), ("fra_Latn", "fr", "fra-Latn")):
        assert "warning" not in run(
            "publish", folder, "-o", out, "--licence", "CC-BY-4.0", "--from", "en", "--to", code
        )
        metadata = ModelCard.load(out / "README.md").data.to_dict()
        assert (metadata["language"], metadata["language_bcp47"]) == (["en", base], [whole])  # the Hub refuses others


def test_publish_pushes_what_it_built(trained_folder, quick, monkeypatch):
    seen = {}

    def take(folder, repo_id, **options):
        seen.update(options, repo_id=repo_id, card=(folder / "README.md").read_text())
        return "https://hub.test/anna/toy"

    monkeypatch.setattr("hf_mlnmt.hub.upload.push", take)
    monkeypatch.setattr("hf_mlnmt.hub.upload.check_ready", lambda repo_id: None)
    assert "https://hub.test/anna/toy" in run("publish", trained_folder, "--push", "anna/toy", "--private")
    assert (seen["repo_id"], seen["private"]) == ("anna/toy", True)
    monkeypatch.setattr("hf_mlnmt.hub.upload.collect", lambda *how, **more: f"collected {how} {more}")
    output = run("publish", trained_folder, "--push", "anna/toy", "--private", "--collection", "MT")
    assert "collected ('MT', 'anna/toy') {'private': True}" in output
    assert 'name = "anna/toy"' in seen["card"]


def test_a_dry_run_lists_what_would_be_written_and_asked(trained_folder, tmp_path, quick, monkeypatch):
    monkeypatch.setattr("hf_mlnmt.hub.upload.push", lambda *how, **more: pytest.fail("uploaded"))
    monkeypatch.setattr("hf_mlnmt.hub.upload.collect", lambda *how, **more: pytest.fail("collected"))
    monkeypatch.chdir(tmp_path)
    asked = ("--private", "--space", "anna/try", "--collection", "MT", "--from", "en", "--to", "de")
    output = run("publish", trained_folder, "-o", "out", "--push", "anna/toy", *asked, "--dry-run")
    lines = dict(re.split(r" {2,}", line.strip(), maxsplit=1) for line in output.splitlines() if "  " in line.strip())
    assert lines["written to"] == "out"
    assert lines["uploaded to"] == "anna/toy; the repository, if new, is private"
    assert lines["not yet"].startswith("offline mode is on")
    assert (lines["space"], lines["collection"]) == ("anna/try, made if it is not there", "MT, made if it is not there")
    names = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "transformer.py"}
    assert names <= {name for name, text in lines.items() if text.endswith("bytes")}
    assert "nothing was written or uploaded; without --dry-run it is" in output
    assert not list(tmp_path.iterdir())
    for wrong in ("no slash/../x", "anna/", "a/b/c", "anna/my title", "/"):
        asked = ("--push", "anna/toy", "--collection", wrong, "--dry-run")
        assert f"--collection {wrong}: expected a title" in refused("publish", trained_folder, *asked)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    assert "is not empty and holds no model" in refused("publish", trained_folder, "-o", "out", "--dry-run")


def test_publish_refuses_before_it_works(trained_folder, tmp_path, monkeypatch):
    assert "nothing to do" in refused("publish", trained_folder)
    assert "add --push" in refused("publish", trained_folder, "-o", tmp_path / "out", "--private")
    assert "both" in refused("publish", trained_folder, "-o", tmp_path / "out", "--from", "en")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert "no Hugging Face token" in refused("publish", trained_folder, "-o", tmp_path / "out", "--push", "anna/toy")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr("hf_mlnmt.hub.publish._load", lambda source: pytest.fail("loaded"))
    assert "is a file" in refused("publish", trained_folder, "-o", tmp_path / "file")
    assert "file is not a folder" in refused("publish", trained_folder, "-o", tmp_path / "file" / "out")


def test_describe_prints_tables_and_json(published):
    assert "parameters" in run("describe", published)
    assert json.loads(run("describe", published, "--json"))["model_type"] == "mlnmt-transformer"


def test_a_job_trains_and_publishes_and_stops_at_an_error(monkeypatch):
    script = (ROOT / "hub" / "train_job.py").read_text("utf-8")
    header = re.search(r"^# /// script\n((?:# .*\n)+)# ///$", script, re.MULTILINE)[1]
    said = tomllib.loads(re.sub("^# ", "", header, flags=re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert said == {"requires-python": project["requires-python"], "dependencies": []}
    called, codes = [], iter([0, 0, 3])
    monkeypatch.setattr("subprocess.call", lambda words: (called.append(words[3:]), next(codes))[1])
    main = runpy.run_path(str(ROOT / "hub" / "train_job.py"))["main"]
    told = ["multi30k-ende", "--data", "/data", "--output", "/runs/first", "--seed", "2"]
    assert main([*told, "--push", "me/toy", "--licence", "mit"]) == 0
    train = ["train", "multi30k-ende", "--data", "/data", "--seed", "2", "--output", "/runs/first"]
    publish = ["publish", "/runs/first/average", "--push", "me/toy", "--licence", "mit"]
    assert called == [train, publish]
    assert main([*told, "--push", "me/toy"]) == 3
    assert called[2:] == [train]
