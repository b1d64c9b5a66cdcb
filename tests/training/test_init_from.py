"""Weights to begin with: which tensors come from where, what is told of them, what is refused."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_run import killed, run, same_weights, write_corpus, write_recipe
from helpers.training_helpers import tiny_config, tiny_model
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from hf_mlnmt import UserError, config_for
from hf_mlnmt.data.tokenizer import Tokenizers, save_tokenizers, train_tokenizer
from hf_mlnmt.training.init_from import initialise

pytestmark = pytest.mark.usefixtures("one_thread")
SEPARATE = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 40}


@pytest.fixture(scope="module")
def tokenizers(tokenizer: PreTrainedTokenizerFast) -> Tokenizers:
    return Tokenizers(tokenizer, tokenizer)


def write(folder: Path, tokenizers: Tokenizers, seed: int, **fields: Any) -> str:
    tiny_model(seed, **fields).save_pretrained(folder)
    tokenizers.save(folder)
    return folder.name


@pytest.fixture
def folders(tmp_path, tokenizers) -> Path:
    """Models a and b, and c with separate embeddings."""
    for name, seed, fields in (("a", 1, {}), ("b", 2, {}), ("c", 3, SEPARATE)):
        write(tmp_path / name, tokenizers, seed, **fields)
    return tmp_path


def origin(tensor: torch.Tensor, name: str, **fields: Any) -> int:
    """The seed of the model that a tensor is of."""
    (found,) = [seed for seed in range(4) if torch.equal(state_of(seed, tuple(fields.items()))[name], tensor)]
    return found


@functools.cache
def state_of(seed: int, fields: tuple[tuple[str, Any], ...]) -> dict[str, torch.Tensor]:
    return tiny_model(seed, **dict(fields)).state_dict()


def matrices(model) -> dict[str, torch.Tensor]:
    """What differs between seeds: norms and biases do not."""
    return {name: tensor for name, tensor in model.named_parameters() if tensor.dim() > 1}


def test_everything_is_from_pretrained(folders, tokenizers):
    model = tiny_model(0)
    account = initialise(model, {"all": "a"}, folders, tokenizers)
    assert all(torch.equal(tensor, tiny_model(1).state_dict()[name]) for name, tensor in model.state_dict().items())
    assert account.initialised == account.dropped == {}
    assert account.loaded == {name: list(tensor.shape) for name, tensor in model.named_parameters()}
    assert f"loaded       {len(account.loaded):>4} tensors, {model.num_parameters():,} numbers" in account.table()


@pytest.mark.parametrize(
    ("sources", "fields", "expected"),
    [
        ({"encoder": "a"}, {}, {"encoder": 1, "decoder": 0, "embeddings": 0}),
        ({"decoder": "b"}, {}, {"encoder": 0, "decoder": 2, "embeddings": 0}),
        ({"embeddings": "a"}, {}, {"encoder": 0, "decoder": 0, "embeddings": 1}),
        ({"encoder": "a", "all": "b"}, {}, {"encoder": 1, "decoder": 2, "embeddings": 2}),
        ({"encoder": "a", "decoder": "b", "embeddings": "b"}, {}, {"encoder": 1, "decoder": 2, "embeddings": 2}),
        # embeddings of its own belong to a side, unless told
        ({"encoder": "c"}, SEPARATE, {"encoder": 3, "decoder": 0, "source": 3, "target": 0}),
        ({"decoder": "c"}, SEPARATE, {"encoder": 0, "decoder": 3, "source": 0, "target": 3}),
        ({"embeddings": "c"}, SEPARATE, {"encoder": 0, "decoder": 0, "source": 3, "target": 3}),
    ],
)
def test_parts(folders, tokenizers, sources, fields, expected):
    model = tiny_model(0, **fields)
    account = initialise(model, sources, folders, tokenizers)
    for name, tensor in matrices(model).items():
        side = name.split(".")[1]
        part = side
        if "embed_tokens" in name:
            part = {"encoder": "source", "decoder": "target"}[side] if fields else "embeddings"
        assert origin(tensor, name, **fields) == expected[part], name
        assert (name in account.loaded) == (expected[part] != 0)
        assert (name in account.initialised) == (expected[part] == 0)


def test_an_output_of_its_own_is_the_decoders(tmp_path, tokenizers):
    fields = {"tie_word_embeddings": False}
    write(tmp_path / "untied", tokenizers, 1, **fields)
    for part, seed in (("decoder", 1), ("encoder", 0), ("embeddings", 1)):
        model = tiny_model(0, **fields)
        initialise(model, {part: "untied"}, tmp_path, tokenizers)
        assert origin(model.lm_head.weight, "lm_head.weight", **fields) == seed


def test_the_account_names_what_is_dropped_and_initialised(folders, tokenizers):
    sizes = {"d_model": 16, "vocab_size": 40, "encoder_layers": 2, "decoder_layers": 1}
    baseline, model = (
        AutoModelForSeq2SeqLM.from_config(config_for(system, "tiny", **sizes)) for system in ("transformer", "s-agg")
    )
    baseline.save_pretrained(folders / "a")
    account = initialise(model, {"encoder": "a"}, folders, tokenizers)
    new = {name for name in account.initialised if ".encoder." in name}
    assert new, "what the system has beyond the baseline"
    assert any("decoder" in name for name in account.dropped)
    assert not any("encoder.layers" in name for name in account.dropped)
    text = account.table()
    assert text.startswith("init_from: encoder of a\n")
    assert f"initialised  {len(account.initialised):>4} tensors" in text
    assert next(iter(account.dropped)) in text


@pytest.mark.parametrize("part", ["all", "encoder", "decoder", "embeddings"])
def test_one_table_there_fills_two_here(folders, tokenizers, part):
    """Two tables that begin alike compute what the one does."""
    model = tiny_model(0, **SEPARATE)
    account = initialise(model, {part: "a"}, folders, tokenizers)
    theirs = tiny_model(1).state_dict()
    for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"):
        taken = part in ("all", "embeddings") or part in name
        assert torch.equal(model.state_dict()[name], theirs[name]) == taken
        assert (name in account.loaded) == taken


def test_two_tables_there_are_not_one_here(folders, tokenizers):
    with pytest.raises(UserError, match="init_from: c: share_encoder_decoder_embeddings is False there and True here"):
        initialise(tiny_model(0), {"all": "c"}, folders, tokenizers)
    for part in ("encoder", "decoder"):  # a table of both sides is of neither
        account = initialise(tiny_model(0), {part: "c"}, folders, tokenizers)
        assert not any("embed_tokens" in name for name in account.loaded)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("fields", [{}, SEPARATE])
def test_a_folder_of_an_encoder_alone(folders, tokenizers, shared, fields):
    """It has one table, whatever its config says of a decoder's."""
    torch.manual_seed(5)
    config = tiny_config(share_encoder_decoder_embeddings=shared, decoder_vocab_size=40)
    encoder = AutoModelForMaskedLM.from_config(config)
    encoder.save_pretrained(folders / "e")
    tokenizers.save(folders / "e")
    for part in ("encoder", "all"):
        model = tiny_model(0, **fields)
        initialise(model, {part: "e"}, folders, tokenizers)
        theirs = encoder.model.encoder.state_dict()
        for name, tensor in model.model.encoder.state_dict().items():
            taken = "embed_tokens" not in name or fields or part == "all"
            assert torch.equal(tensor, theirs[name]) == bool(taken) or tensor.dim() == 1, name


def test_what_is_refused(folders, tokenizers, tmp_path):
    def refuse(message: str, sources: dict[str, str], model=None, own: Tokenizers = tokenizers) -> None:
        with pytest.raises(UserError, match=message):
            initialise(model or tiny_model(0), sources, folders, own, "r.yaml")

    refuse(r"r.yaml: init_from: nowhere is neither a folder nor to be had from the Hub", {"all": "nowhere"})
    other = train_tokenizer(["nu li"] * 5, vocab_size=30, byte_fallback=False)
    refuse(
        r"init_from: a: its source tokenizer is not this training's .* Take that one: tokenizer.path: .*a$",
        {"all": "a"},
        own=Tokenizers(other, other),
    )
    refuse("target tokenizer is not", {"embeddings": "a"}, own=Tokenizers(tokenizers.source, other))
    refuse("source tokenizer is not", {"encoder": "c"}, tiny_model(0, **SEPARATE), own=Tokenizers(other, other))
    initialise(tiny_model(0), {"encoder": "a"}, folders, Tokenizers(other, other))  # whose table is the decoder's too
    refuse(
        r"init_from: a: encoder_attention_heads is 2 there and 4 here",
        {"all": "a"},
        tiny_model(encoder_attention_heads=4),
    )
    refuse(r"init_from.encoder: a: encoder_ffn_dim is 32 there", {"encoder": "a"}, tiny_model(encoder_ffn_dim=64))
    initialise(tiny_model(0, encoder_ffn_dim=64), {"decoder": "a"}, folders, tokenizers)
    refuse(
        "embed_tokens.weight has the shape .40, 16. there and .44, 16. here", {"all": "a"}, tiny_model(vocab_size=44)
    )
    (folders / "b" / "model.safetensors").unlink()
    refuse("b: no weights at all", {"all": "b"})
    shutil.rmtree(folders / "c")
    (folders / "c").mkdir()
    save_tokenizers(folders / "c", tokenizers.source)
    refuse("config.json cannot be read", {"all": "c"})


def beginning(plain, *more: str) -> list[str]:
    average = plain[0] / "average"
    return [f"init_from={average}", f"tokenizer={{path: {average}}}", "budget.steps=8", *more]


@pytest.mark.parametrize("config_of_its_own", [True, False])
def test_a_run_begins_with_them(plain, data, tmp_path, config_of_its_own):
    """At a learning rate of nearly 0 what comes out is what went in."""
    folder, recipe = plain
    settings = beginning(plain, "optimizer.learning_rate=1e-30", *([] if config_of_its_own else ["model={}"]))
    assert "init_from: all of" in run(recipe, data, tmp_path / "still", settings=settings)
    assert load_same(tmp_path / "still" / "average", folder / "average")
    results = json.loads((tmp_path / "still" / "results.json").read_text())
    assert results["init_from"] == json.loads((tmp_path / "still" / "init_from.json").read_text())
    assert results["init_from"]["sources"] == {"all": str(folder / "average")}
    assert results["init_from"]["loaded"]


def test_a_run_that_goes_on_does_not_begin_with_them_again(plain, data, tmp_path):
    folder, recipe = plain
    settings = beginning(plain, "model={}")
    run(recipe, data, tmp_path / "one", settings=settings)
    before = json.loads((tmp_path / "one" / "results.json").read_text())["init_from"]
    again = killed(tmp_path / "one", tmp_path / "again", 8)
    text = run(recipe, data, again, settings=settings)
    assert "going on from" in text
    assert "init_from: all of" not in text
    assert same_weights(tmp_path / "one", again)
    assert json.loads((again / "results.json").read_text())["init_from"] == before
    assert not load_same(again / "average", folder / "average")


def load_same(left: Path, right: Path) -> bool:
    one, other = (load_file(folder / "model.safetensors") for folder in (left, right))
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_folder_of_a_run_is_no_model(whole, data, tmp_path):
    recipe = write_recipe(tmp_path / "recipe.yaml")
    with pytest.raises(UserError, match=r"recipe.yaml: init_from: .*It is a run's folder; give .*average or .*best"):
        run(recipe, data, tmp_path / "run", settings=[f"init_from={whole[0]}"], dry_run=True)


def test_weights_of_another_direction_are_said(tmp_path):
    """They may be wanted."""
    data = write_corpus(tmp_path / "data")
    recipe = write_recipe(tmp_path / "recipe.yaml", scores=False, budget={"steps": 1})
    run(recipe, data, tmp_path / "there")
    average = tmp_path / "there" / "average"
    for target in ("en", "de"):
        languages = {"source": "de", "target": "en"} if target == "en" else {"source": "en", "target": "de"}
        content = json.loads((average / "results.json").read_text())
        (average / "results.json").write_text(json.dumps({**content, "languages": languages}))
        changes = {"init_from": str(average), "tokenizer": {"path": str(average)}}
        run(
            write_recipe(tmp_path / "again.yaml", scores=False, budget={"steps": 1}, **changes), data, tmp_path / target
        )
        notes = json.loads((tmp_path / target / "init_from.json").read_text())["notes"]
        assert notes == ([f"{average} translates de to en, this training en to de"] if target == "en" else [])
