"""Whole runs on text of one language: a language model, an encoder, multi-task; resumed, transferred, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from helpers import tiny_run
from helpers.tiny_run import killed, run, same_weights, write_recipe
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from hf_mlnmt import UserError
from hf_mlnmt.training import read_recipe
from hf_mlnmt.training.dev import Alone, DevSet
from hf_mlnmt.training.preparation import RecipeCorpora

pytestmark = pytest.mark.usefixtures("one_thread")
PAIRS = {"files": {"source": "train.en", "target": "train.de"}}
ENGLISH = {"train": {"path": "train.en"}, "dev": {"path": "val.en"}, "test": {"made_up": {"path": "test.en"}}}
GERMAN = {"train": {"path": "train.de"}, "dev": {"path": "val.de"}, "test": {"made_up": {"path": "test.de"}}}
LM = {"system": "lm", "shape": "tiny", "settings": {"d_model": 16, "decoder_layers": 1, "decoder_ffn_dim": 32}}
DE = {"source": "de", "target": "de"}
CLOZE = {"name": "encoder-cloze", "distorted": 0.4}
EVALUATION = {"every": 4, "metrics": []}
UNSCORED = {"evaluation": tiny_run.UNSCORED, "data": {"test": {}}}


def recipe_of(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    return write_recipe(folder / "recipe.yaml", **{"evaluation": EVALUATION, **changes})


@pytest.fixture(scope="module")
def language_model(data, tmp_path_factory) -> Path:
    """The folder of a run of lm."""
    folder = tmp_path_factory.mktemp("lm")
    recipe = recipe_of(folder, objective="decoder-lm", data=GERMAN, languages=DE, model=LM,
                       schedule={"name": "newbob", "warmup": 3, "factor": 0.9, "patience": 4})  # fmt: skip
    text = run(recipe, data, folder / "run")
    assert "DecoderOnlyForCausalLM" in text
    assert "bits per byte" in text
    return folder


def test_a_language_model_is_trained_from_text(language_model, data, tmp_path):
    folder = language_model / "run"
    results = json.loads((folder / "results.json").read_text())
    assert [line for line in results["dev"] if "eval_perplexity" in line]
    assert results["dev"][-1]["eval_perplexity"] < results["dev"][0]["eval_perplexity"]
    assert results["perplexity"]["made_up"]["per_subword"] > 1
    assert results["recipe"]["evaluation"]["best"] == "loss"
    for name in ("best", "average"):
        model, told = AutoModelForCausalLM.from_pretrained(folder / name, output_loading_info=True)
        assert not any(told.values())
        assert model.num_parameters() == results["parameters"]
        tokenizer = AutoTokenizer.from_pretrained(folder / name)
        prompt = tokenizer("baab", return_tensors="pt")
        assert prompt["input_ids"][0, 0] == tokenizer.bos_token_id
        assert prompt["input_ids"][0, -1] != tokenizer.eos_token_id
        out = model.generate(**prompt, max_new_tokens=3)
        assert out[:, : prompt["input_ids"].shape[1]].equal(prompt["input_ids"])
    state = json.loads((folder / "checkpoints" / "checkpoint-20" / "trainer_state.json").read_text())
    assert state["best_metric"] == min(line["eval_loss"] for line in results["dev"])
    again = killed(folder, tmp_path / "again", 20, 16)
    assert "going on from" in run(language_model / "recipe.yaml", data, again)
    assert same_weights(folder, again)


def test_an_encoder_is_pretrained_and_its_folder_is_a_model(data, tmp_path):
    """encoder-cloze and encoder-lm alone; taken apart by init_from."""
    tokenizer = None
    for objective, head, kind in (
        (CLOZE, AutoModelForMaskedLM, "TransformerForMaskedLM"),
        ("encoder-lm", AutoModelForCausalLM, "TransformerForCausalLM"),
    ):
        name = objective if isinstance(objective, str) else objective["name"]
        changes: dict[str, Any] = {} if tokenizer is None else {"tokenizer": {"path": str(tokenizer)}}
        recipe = recipe_of(tmp_path / name, objective=objective, data=ENGLISH, **changes)
        folder = tmp_path / name / "run"
        with mock.patch.object(DevSet, "evaluate", autospec=True, side_effect=DevSet.evaluate) as measured:
            assert kind in run(recipe, data, folder)
        alone = isinstance(
            measured.call_args.args[2], Alone
        )  # of several processes one scores when the others are gone
        assert alone == (objective is CLOZE)
        tokenizer = tokenizer or folder / "tokenizer"
        model, told = head.from_pretrained(folder / "average", output_loading_info=True)
        assert not any(told.values())
        assert not [key for key in model.state_dict() if "decoder" in key]
        # The encoder begins a translation model; W_proj is dropped, the decoder initialised.
        sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
        sources = {"encoder": str(folder / "average"), "embeddings": str(folder / "average")}
        translation = recipe_of(
            tmp_path / f"{name}-transfer",
            init_from=sources,
            model={"system": "transformer", "shape": "tiny", "settings": sizes},
            tokenizer={"path": str(tokenizer)},
            budget={"steps": 2},
            **UNSCORED,
        )
        told = run(translation, data, tmp_path / f"{name}-transfer" / "run")
        assert "init_from: encoder of" in told
        account = json.loads((tmp_path / f"{name}-transfer" / "run" / "results.json").read_text())["init_from"]
        assert any("encoder.layers" in key for key in account["loaded"])
        assert [key for key in account["dropped"] if key.endswith("projection.weight")]
        assert all("decoder" in key for key in account["initialised"])


def test_the_decoder_begins_with_a_language_model(language_model, data, tmp_path):
    """Its layers but for the attention over the source; and all of a folder is what from_pretrained gives."""
    average = language_model / "run" / "average"
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    recipe = recipe_of(
        tmp_path,
        init_from={"decoder": str(average), "embeddings": str(average)},
        tokenizer={"path": str(average)},
        model={"system": "transformer", "shape": "tiny", "settings": sizes},
        budget={"steps": 2},
        **UNSCORED,
    )
    run(recipe, data, tmp_path / "run")
    account = json.loads((tmp_path / "run" / "results.json").read_text())["init_from"]
    stored = {key for key in load_file(average / "model.safetensors") if "embed" not in key}
    assert stored <= account["loaded"].keys()
    assert not account["dropped"]
    assert all("encoder" in key or "source_attn" in key for key in account["initialised"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "average")
    assert tokenizer("baab")["input_ids"][-1] == tokenizer.eos_token_id, "a translation model's ends a text again"


def test_models_that_cannot_be_trained_so_are_refused_before_anything_is_made(data, tmp_path):
    for number, (changes, message) in enumerate(
        [
            ({"objective": "encoder-cloze", "data": GERMAN, "languages": DE, "model": LM}, "needs an encoder, which"),
            ({"model": LM, "evaluation": {"every": 4}}, "does not translate: give text"),
            (
                {"objective": "decoder-lm", "data": GERMAN, "languages": DE,
                 "model": {"system": "ms-1-aif", "shape": "tiny"}},
                "information_fusion",
            ),
            (
                {"objective": "pseudo-encoder", "data": GERMAN, "languages": DE,
                 "tokenizer": {"vocab_size": 120, "byte_fallback": False, "joint": False}},
                "tokenizer.joint",
            ),
        ]
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            run(recipe_of(tmp_path / str(number), **changes), data, tmp_path / str(number) / "run")
        assert not (tmp_path / str(number) / "run" / "data").exists()


@pytest.mark.parametrize(
    ("objective", "side", "language"),
    [
        ("encoder-lm", "source", "de"),
        ("encoder-cloze", "source", "de"),
        ("decoder-lm", "target", "en"),
        ("pseudo-encoder", "target", "en"),
    ],
)
def test_whose_vocabulary_a_text_gets(tmp_path, objective, side, language):
    """Text that names neither language nor side is of the side whose words the objective predicts."""
    languages = {"source": "de", "target": "en"}
    pairs = {"files": {"source": "train.de", "target": "train.en"}}
    tasks = {"translation": {"data": pairs}, "text": {"data": {"path": "text"}, "objective": objective}}
    data = {"train": None, "dev": pairs}
    keys = {"evaluation": {"every": 4, "best": "loss"}, "tasks": tasks, "languages": languages}
    recipe = read_recipe(recipe_of(tmp_path, data=data, **keys))
    (text,) = RecipeCorpora(recipe, tmp_path).tasks[-1].texts
    assert (text.side, text.language) == (side, language)
