"""A whole training by recipe: what it leaves, and what it refuses; interruptions are in test_interruptions.py."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from helpers.tiny_run import UNSCORED, killed, run, same_weights, write_recipe
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_mlnmt import UserError
from hf_mlnmt.data.corpus import RawPairs
from hf_mlnmt.evaluation import Results
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.training import arguments, read_recipe, run_recipe
from hf_mlnmt.training.callbacks import EarlyStopping
from hf_mlnmt.training.folder import made_from
from hf_mlnmt.training.preparation import Preparation
from hf_mlnmt.training.run import Run, score_model

pytestmark = pytest.mark.usefixtures("one_thread")


def test_what_a_run_leaves(whole, data):
    folder, recipe, text = whole
    assert "pairs kept" in text
    results = json.loads((folder / "results.json").read_text())
    assert results["budget"]["steps"] == 20
    assert results["budget"]["target_tokens"] > 0
    assert results["seed"] == 1
    assert results["checkpoints"] == [12, 16, 20]
    assert set(results["scores"]["made_up"]) == {"cased", "classic"}
    assert results["scores"]["made_up"]["cased"]["BLEU"]["signature"]
    assert len(results["dev"]) == 5
    assert yaml.safe_load((folder / "recipe.yaml").read_text()) == read_recipe(recipe).to_dict()
    for name in ("best", "average"):
        model = AutoModelForSeq2SeqLM.from_pretrained(folder / name)
        assert model.config.use_cache is True
        assert model.num_parameters() == results["parameters"]
        assert AutoTokenizer.from_pretrained(folder / name)("ba do")["input_ids"][-1] == 1
        generation = json.loads((folder / name / "generation_config.json").read_text())
        assert (generation["num_beams"], generation["max_new_tokens"]) == (2, 20)
        read = AutoTokenizer.from_pretrained(folder / name)((data / "train.en").read_text().splitlines())["input_ids"]
        assert generation["max_source_tokens"] == max(map(len, read))
        assert not {"max_length", "top_k", "temperature"} & generation.keys()
        assert len((folder / "translations" / f"made_up.{name}.de").read_text().split("\n")) == 11
        assert json.loads((folder / name / "results.json").read_text())["system"] == "recipe"


def test_its_files_are_those_of_everybody(whole):
    """Weights too, which safetensors writes for the user alone: the umask says who may read."""
    os.umask(umask := os.umask(0))
    for path in [*whole[0].rglob("*.safetensors"), *whole[0].glob("*.json*")]:
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask, path


def test_it_learns(whole):
    dev = json.loads((whole[0] / "results.json").read_text())["dev"]
    assert dev[-1]["eval_loss"] < 0.8 * dev[0]["eval_loss"]


def test_dry_run_prints_and_leaves_nothing(data, tmp_path):
    recipe = write_recipe(tmp_path / "recipe.yaml")
    text = run(recipe, data, tmp_path / "run", dry_run=True)
    for part in (
        "training set       en-de: 120 pairs",
        "parameters",
        "padding",
        "steps              20",
        "memory",
        "time",
    ):
        assert part in text
    assert not (tmp_path / "run").exists()


def test_a_folder_that_no_languages_can_be_added_to_is_named_by_its_key(data, tmp_path):
    (tmp_path / "empty").mkdir()
    model = {"add_to": str(tmp_path / "empty")}
    with pytest.raises(UserError, match=r"recipe\.yaml: model\.add_to: .+empty: no tokenizer there"):
        run(write_recipe(tmp_path / "recipe.yaml", model=model, tokenizer={}), data, tmp_path / "run", dry_run=True)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"ACCELERATE_USE_FSDP": "true"}, "asks for FSDP, which trainings do not have here"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "asks for DEEPSPEED"),
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "asks for MEGATRON_LM"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, r"asks for bf16, and .*recipe\.yaml says float32 \(precision\.dtype"),
        ({"ACCELERATE_MIXED_PRECISION": "fp8"}, "asks for fp8"),
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1"}, "asks for several processes and has start"),
    ],
)
def test_what_a_launcher_asks_for_and_no_training_does_is_refused(data, tmp_path, monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message):
        run(write_recipe(tmp_path / "recipe.yaml"), data, tmp_path / "run", dry_run=True)
    assert not (tmp_path / "run").exists()


def test_what_launcher_and_recipe_agree_on_is_done(data, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    recipe = write_recipe(tmp_path / "recipe.yaml", precision={"dtype": "bf16"})
    assert "cpu in bf16" in run(recipe, data, tmp_path / "run", dry_run=True)


@pytest.mark.parametrize("name", ["fsdp", "deepspeed", "torch_compile", "save_only_model", "push_to_hub"])
def test_arguments_that_no_training_takes_are_refused(data, tmp_path, name):
    recipe = write_recipe(tmp_path / "recipe.yaml", arguments={name: "_" in name or "auto"})
    with pytest.raises(UserError, match=rf"recipe\.yaml: arguments\.{name}: "):
        run(recipe, data, tmp_path / "run", dry_run=True)


@pytest.mark.parametrize(
    ("dtype", "able", "used"), [("auto", True, "bf16"), ("auto", False, "float32"), ("bf16", False, "bf16")]
)
def test_bfloat16_where_the_machine_computes_in_it(dtype, able, used, data, tmp_path, monkeypatch):
    monkeypatch.setattr(arguments, "computes_bfloat16", lambda on_cpu: able)
    recipe = write_recipe(tmp_path / "recipe.yaml", precision={"dtype": dtype})
    text = run(recipe, data, tmp_path / "run", dry_run=True)
    assert f"batches on cpu in {used})" in text
    assert ("no instructions for bfloat16" in text) == (dtype == "bf16")


@pytest.mark.parametrize("on_cpu", [True, False])
def test_auto_asks_the_device_that_is_used(on_cpu, data, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: not on_cpu)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: on_cpu, raising=False)
    monkeypatch.setattr(arguments, "prefers_bfloat16", lambda: True)

    @dataclasses.dataclass
    class Unchecked(arguments.Arguments):
        def __post_init__(self):  # would look for the device
            pass

    monkeypatch.setattr(arguments, "Arguments", Unchecked)
    path = write_recipe(tmp_path / "recipe.yaml", precision={"dtype": "auto"}, arguments={"use_cpu": on_cpu})
    made = arguments.training_arguments(read_recipe(path), tmp_path)
    assert made.bf16 is True
    assert made.use_cpu is on_cpu
    monkeypatch.setattr(arguments, "prefers_bfloat16", lambda: False)
    assert arguments.training_arguments(read_recipe(path), tmp_path).bf16 is not on_cpu


def test_separate_vocabularies_processing_and_trackers(data, tmp_path):
    recipe = write_recipe(
        tmp_path / "recipe.yaml",
        tokenizer={
            "joint": False, "kind": "unigram", "vocab_size": 60, "byte_fallback": False,
            "processing": {"target": {"moses": True}},
        },
        budget={"epochs": 0.5},
        data={"test": {}},
        logging={"every": 2, "trackers": ["tensorboard"]},
        evaluation={"every": 3, "metrics": [], "best": "loss"},
        schedule={"name": "newbob", "warmup": 0, "patience": 1},
        optimizer={"name": "sgd", "learning_rate": 1.0},
    )  # fmt: skip
    run(recipe, data, tmp_path / "run")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run" / "best")
    assert model.config.share_encoder_decoder_embeddings is False
    assert (tmp_path / "run" / "best" / "target_tokenizer").is_dir()
    assert (tmp_path / "run" / "best" / "text_processing.json").is_file()
    assert list((tmp_path / "run" / "tracking").glob("events*"))
    assert arguments.TRACKING not in os.environ  # another run in this process has a folder of its own


def test_the_ends_of_the_cycles_are_averaged(data, tmp_path):
    """Warm restarts, interrupted or not: the last three of four ends, whenever the dev set is looked at."""
    recipe = write_recipe(
        tmp_path / "recipe.yaml",
        schedule={"name": "linear", "warmup": 3, "restarts": 3, "restart_steps": 4, "restart_factor": 0.5},
        evaluation={**UNSCORED, "every": 5},
        data={"test": {}},
        budget={"steps": 21},
        logging={"every": 1},
    )
    assert "4 cycles of the learning rate" in run(recipe, data, tmp_path / "dry", dry_run=True)
    run(recipe, data, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "results.json").read_text())["checkpoints"] == [13, 17, 21]
    state = json.loads((tmp_path / "run" / "checkpoints" / "checkpoint-21" / "trainer_state.json").read_text())
    rates = [line["learning_rate"] for line in state["log_history"] if "learning_rate" in line]
    assert rates[9:] == pytest.approx([0.005, 0.00375, 0.0025, 0.00125] * 3)
    evaluated = [line["step"] for line in state["log_history"] if "eval_loss" in line]
    assert evaluated == [5, 9, 10, 13, 15, 17, 20, 21]
    kept = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {f"checkpoint-{step}" for step in (13, 17, 21, state["best_global_step"])}
    # Begun again after the last cycle but one.
    again = killed(tmp_path / "run", tmp_path / "again", 21)
    run(recipe, data, again)
    assert same_weights(tmp_path / "run", again)


def test_cycles_that_do_not_fit_in_the_epochs(data, tmp_path):
    schedule = {"warmup": 3, "restarts": 3, "restart_steps": 400}
    recipe = write_recipe(tmp_path / "recipe.yaml", schedule=schedule, budget={"epochs": 2})
    with pytest.raises(UserError, match=r"recipe.yaml: schedule: restarts: 3 cycles of 400 steps .* do not fit"):
        run(recipe, data, tmp_path / "run", dry_run=True)


def test_early_stopping_by_hand():
    history = [{"eval_loss": value} for value in (3.0, 2.0, 2.5, 2.1)] + [{"loss": 1.0}]
    assert EarlyStopping("loss", False, 2).should_stop(history)
    assert not EarlyStopping("loss", False, 3).should_stop(history)
    assert not EarlyStopping("loss", True, 4).should_stop(history)
    assert not EarlyStopping("loss", False, 1).should_stop([])


def test_a_mixture_of_corpora(data, tmp_path):
    corpus = {"files": {"source": "train.en", "target": "train.de"}}
    recipe = read_recipe(write_recipe(tmp_path / "recipe.yaml", scores=False, budget={"steps": 4}))
    recipe = dataclasses.replace(
        recipe, data=dataclasses.replace(recipe.data, train=[corpus, {**corpus, "weight": 0.5}]), path=recipe.path
    )
    text = io.StringIO()
    results = run_recipe(recipe, data, tmp_path / "run", console=Console(file=text))
    assert [part["kept"] for part in results.data["train"]] == [120, 120]


def test_a_data_set_is_trained_on_that_streams(data, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    lines = [(folder / f"train.{side}").read_text().splitlines() for side in ("en", "de")]
    (folder / "set").mkdir()
    records = [json.dumps({"en": source, "de": target}) for source, target in zip(*lines)]
    (folder / "set" / "train.jsonl").write_text("\n".join(records))
    tokenizer = {"vocab_size": 80, "byte_fallback": False, "sample": 100}
    asked = {"data": {"train": {"dataset": "set", "streaming": True}}, "tokenizer": tokenizer}
    recipe = write_recipe(tmp_path / "recipe.yaml", budget={"steps": 2}, evaluation={"every": 2}, **asked)
    text = run(recipe, folder, tmp_path / "run")
    assert "from 100 of an unknown number of lines (tokenizer.sample)" in text
    kept = json.loads((tmp_path / "run" / "average" / "tokenizer_config.json").read_text())
    assert kept["trained_on"] == {"lines": 0, "sample": 100, "seed": 1}
    assert json.loads((tmp_path / "run" / "results.json").read_text())["data"]["train"][0]["kept"] == 120


def test_a_model_of_lower_cased_text_is_judged_without_case(tmp_path, data):
    """Else the best checkpoint would be chosen by the few words that have no capital."""
    scores = []
    for lowercase in (False, True):
        tokenizer = {"vocab_size": 120, "byte_fallback": False, "processing": {"target": {"lowercase": lowercase}}}
        recipe = write_recipe(tmp_path / "recipe.yaml", tokenizer=tokenizer)
        preparation = Preparation(read_recipe(recipe), data, tmp_path / str(lowercase), lambda text: None)
        (dev,) = preparation.dev_sets
        scores.append(dev.metrics[0]([line.upper() for line in dev.references], dev.references, None)["bleu"])
    assert scores[0] < 10
    assert scores[1] == pytest.approx(100)


def test_a_development_set_is_scored_in_the_tokens_of_its_language(tmp_path, data):
    """Else BLEU is 0 for a language without spaces, `best` is the first checkpoint, and patience ends the training."""
    recipe = write_recipe(tmp_path / "recipe.yaml", languages={"source": "en", "target": "zh"})
    data = Path(shutil.copytree(data, tmp_path / "data"))
    for path in data.glob("*.de"):
        path.rename(path.with_suffix(".zh"))
    preparation = Preparation(read_recipe(recipe), data, tmp_path / "run", lambda text: None)
    (dev,) = preparation.dev_sets
    assert dev.metrics[0](["今天天气很好。"], ["今天天气很好。"], None)["bleu"] == pytest.approx(100)


def test_a_test_set_of_another_language_is_scored_as_that_language(tmp_path, monkeypatch):
    """Of a model from English into German and French, the French one by the French tokeniser."""

    class Echo:
        def __call__(self, texts, target_language):
            return [f"{text} ({target_language})" for text in texts]

    monkeypatch.setattr(TranslationPipeline, "from_pretrained", lambda name, **options: Echo())
    tests = [RawPairs(code, ["a"], ["l'un"], code, code) for code in ("de", "fr")]
    run = SimpleNamespace(output=tmp_path, tell=print)
    scores = score_model(run, made_from(tmp_path), "average", tmp_path / "average", tests, Results("toy")).scores
    for code in ("de", "fr"):
        assert f"tok:moses-{code}" in scores[code]["classic"]["BLEU"]["signature"]
        assert (tmp_path / "translations" / f"{code}.average.{code}").read_text() == f"a ({code})\n"


def test_the_command_of_a_worker_of_ray_says_no_address(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["/ray/workers/default_worker.py", "--node-ip-address=10.0.0.1"])
    recipe = SimpleNamespace(path=Path("recipe.yaml"))
    processes = SimpleNamespace(num_processes=2)
    command = Run(recipe, tmp_path, tmp_path, Console(), processes).command
    assert command == "hf-mlnmt train recipe.yaml --processes 2"
