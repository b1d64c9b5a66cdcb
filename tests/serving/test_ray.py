"""Ray Data and Ray Serve with two workers, in one small Ray."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.docs import ROOT, blocks
from helpers.processes import free_port
from helpers.tiny_run import write_corpus, write_recipe
from helpers.toy_translators import SENTENCES, bpe, our_model

from hf_mlnmt import UserError
from hf_mlnmt.generation import Translate, TranslationPipeline

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("fastapi", reason="fastapi is not installed")
TEXTS = SENTENCES[:9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("served"), bpe()
    tokenizer.save_pretrained(folder)
    our_model(len(tokenizer)).save_pretrained(folder)
    (folder / "results.json").write_text(json.dumps({"languages": {"source": "en", "target": "de"}}))
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    return TranslationPipeline.from_pretrained(str(folder), device="cpu")(TEXTS)


@pytest.fixture(scope="module")
def small_ray():
    import ray

    ray.init(num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def test_ray_data_with_two_workers(small_ray, folder, expected):
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = [{"id": number, "text": text} for number, text in enumerate([*TEXTS, "", None])]
    dataset = ray.data.from_items(rows, override_num_blocks=2)
    translated = dataset.map_batches(
        Translate,
        fn_constructor_args=[str(folder)],
        fn_constructor_kwargs={"device": "cpu"},
        batch_size=4,
        compute=ray.data.ActorPoolStrategy(size=2),
    )
    rows = sorted(translated.take_all(), key=lambda row: row["id"])
    assert [row["translation"] for row in rows] == [*expected, "", None]
    assert [row["text"] for row in rows] == [*TEXTS, "", None]


def test_ray_serve_with_two_replicas(small_ray, folder, expected, monkeypatch, tmp_path):
    from ray import serve

    from hf_mlnmt.serving.ray import app

    monkeypatch.chdir(folder.parent)  # the name of a folder need not be whole
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(app({"models": f"en-de={folder.name}", "replicas": "2", "cpus": "0.5"}), name="translate")

    def ask(text):
        body = json.dumps({"q": text, "source": "en", "target": "de"}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/translate", body, {"Content-Type": "application/json"}
        )
        return json.load(urllib.request.urlopen(request, timeout=60))["translatedText"]

    with ThreadPoolExecutor(8) as clients:
        assert list(clients.map(ask, TEXTS * 2)) == expected * 2
    status = serve.status().applications["translate"].deployments["translate"]
    assert status.replica_states == {"RUNNING": 2}
    serve.shutdown()


def test_ray_train_with_two_workers(small_ray, tmp_path):
    """The lines of docs/scale.md, on a small recipe and without GPUs."""
    from ray.train import RunConfig

    data, recipe = write_corpus(tmp_path / "data"), write_recipe(tmp_path / "recipe.yaml", budget={"steps": 4})
    (block,) = blocks(ROOT / "docs" / "scale.md", "python")
    text = block.text.replace("recipe.yaml", str(recipe)).replace("/data/run", str(tmp_path / "run"))
    text = text.replace('"/data"', f'"{data}"').replace("use_gpu=True)", "use_gpu=False), run_config=stored")
    exec(compile(text, "docs/scale.md", "exec"), {"stored": RunConfig(storage_path=str(tmp_path / "ray"))})
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["budget"]["processes"] == 2
    assert results["command"] == f"hf-mlnmt train {recipe} --processes 2", "not the addresses of Ray's cluster"


def test_settings_from_arguments(folder, monkeypatch):
    from hf_mlnmt.serving.ray import Settings

    monkeypatch.chdir(folder.parent)
    models = f"owner/name,{folder.name},en-de={folder.name}"
    settings = Settings.of({"models": models, "max_wait": "0.01", "replicas": 4})
    assert settings.models == ("owner/name", str(folder), f"en-de={folder}")
    assert (settings.replicas, settings.max_wait, settings.batch_tokens) == (4, 0.01, 4096)
    assert Settings.of({"models": ["a", "b"]}).models == ("a", "b")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no model: say models=FOLDER"),
        ({"model": "a"}, "serve run.*: model: unknown key .did you mean 'models'"),
        ({"models": "a", "replicas": "two"}, "serve run.*: replicas: expected a whole number, not 'two'"),
        ({"models": "a", "replicas": 0}, "replicas: 0 is not a number from 1"),
        ({"models": "a", "max_wait": "inf"}, "max_wait: inf is not a number from 0 to 60 seconds"),
        ({"models": "a", "cpus": "nan"}, "cpus: nan is not a number"),
    ],
    ids=["none", "name", "kind", "size", "wait", "cpus"],
)
def test_settings_that_cannot_be_are_refused(arguments, message):
    from hf_mlnmt.serving.ray import Settings

    with pytest.raises(UserError, match=message):
        Settings.of(arguments)
