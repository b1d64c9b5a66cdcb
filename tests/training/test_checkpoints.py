"""Checkpoints: whole or absent, the right ones kept, broken ones passed over."""

from __future__ import annotations

import errno
import json
import shutil

import pytest
import torch
from helpers.training_helpers import dev_set, make, tiny_config, tiny_model
from safetensors.torch import load_file, save_file

from hf_mlnmt import UserError
from hf_mlnmt.data.tokenizer import save_tokenizers, train_tokenizer
from hf_mlnmt.evaluation.results import read_results
from hf_mlnmt.training import average_checkpoints, checkpoints

SAVING = {"save_strategy": "steps", "save_steps": 2, "max_steps": 10}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run with checkpoints 2, 4, ... 10."""
    folder = tmp_path_factory.mktemp("run")
    make(folder, **SAVING).train()
    return folder


@pytest.fixture
def copied(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


def test_the_last_and_the_best_are_kept(tmp_path):
    class Falling:
        """A dev set whose score is best at step 4."""

        dataset, objective = dev_set().dataset, None
        scores = iter([1.0, 9.0, 5.0, 5.0, 5.0])

        def evaluate(self, model, accelerator):
            return {"loss": 1.0, "bleu": next(self.scores)}

    best = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "bleu", "greater_is_better": True}
    trainer = make(tmp_path, dev=Falling(), save_total_limit=2, **best, **SAVING)
    trainer.train()
    assert [checkpoints.step_of(path) for path in checkpoints.checkpoints(tmp_path)] == [4, 8, 10]
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-4")
    assert not list(tmp_path.glob(".checkpoint*"))


def test_task_schedule_counts_scheduled_checkpoints_only(tmp_path):
    trainer = make(tmp_path, save_total_limit=2, **SAVING)
    trainer.state.save_steps, trainer.state.max_steps = 2, 9
    for step in (2, 3, 4, 5):
        (tmp_path / f"checkpoint-{step}").mkdir()
    trainer._rotate(tmp_path)
    assert [checkpoints.step_of(path) for path in checkpoints.checkpoints(tmp_path)] == [2, 4, 5]


@pytest.mark.parametrize(
    "content", ["[]", "null", "3", '"a"', "[" * 100_000, '{"model.safetensors": 3}', '{"a\\u0000": []}']
)
def test_a_manifest_that_is_none_is_told(copied, content):
    (copied / "checkpoint-10" / "complete.json").write_text(content)
    told = []
    assert checkpoints.last_good(copied, told.append) == copied / "checkpoint-8"
    assert "checkpoint-10" in told[0]


@pytest.mark.parametrize("what", ["shapes", "groups", "no state"])
def test_the_state_of_another_optimizer_is_refused_by_name(copied, what):
    path = copied / "checkpoint-8" / "optimizer.pt"
    state = torch.load(path, weights_only=True)
    if what == "shapes":
        state["state"][0]["exp_avg"] = torch.zeros(3, 5)
    elif what == "groups":
        state["param_groups"][0]["params"].pop()
    else:
        state = {"a": 1}
    torch.save(state, path)
    trainer = make(copied, **SAVING)
    with pytest.raises(UserError, match=r"checkpoint-8: its optimizer\.pt or scheduler\.pt does not fit this training"):
        trainer.train(resume_from_checkpoint=str(copied / "checkpoint-8"))


@pytest.mark.parametrize("damage", ["truncate", "flip", "missing", "no manifest", "garbled manifest", "empty folder"])
def test_a_broken_last_checkpoint_is_passed_over_and_told(copied, damage):
    last = copied / "checkpoint-10"
    weights = last / "model.safetensors"
    if damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "flip":
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    elif damage == "missing":
        (last / "optimizer.pt").unlink()
    elif damage == "no manifest":
        (last / "complete.json").unlink()
    elif damage == "garbled manifest":
        (last / "complete.json").write_text("{")
    else:
        shutil.rmtree(last)
        last.mkdir()
    told = []
    assert checkpoints.last_good(copied, told.append) == copied / "checkpoint-8"
    assert len(told) == 1
    assert "checkpoint-10" in told[0]


def test_no_checkpoint_at_all(tmp_path):
    assert checkpoints.last_good(tmp_path, print) is None


@pytest.mark.parametrize(
    ("config", "field"),
    [({"vocab_size": 50}, "vocab_size"), ({"d_model": 32}, "d_model"), ({"norm_position": "pre"}, "norm")],
)
def test_a_checkpoint_of_another_model_is_refused(run, tmp_path, config, field):
    trainer = make(tmp_path, tiny_model(**config), **SAVING)
    with pytest.raises(UserError, match=f"checkpoint-10: .*{field}.* of another architecture or vocabulary"):
        trainer.train(resume_from_checkpoint=str(run / "checkpoint-10"))


def test_dropout_is_no_architecture(run):
    checkpoints.check_same_model(run / "checkpoint-10", tiny_config(dropout=0.3))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
    ],
)
def test_a_full_disk_is_explained_and_earlier_checkpoints_stay(tmp_path, monkeypatch, error):
    trainer = make(tmp_path, **SAVING)
    real = torch.save

    def full(value, path, *args, **kwargs):
        if "checkpoint-4" in str(path):
            raise error
        real(value, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match="no space left"):
        trainer.train()
    assert [path.name for path in tmp_path.iterdir() if "checkpoint" in path.name] == ["checkpoint-2"]
    assert checkpoints.what_is_wrong(tmp_path / "checkpoint-2") is None


def test_another_error_while_saving_is_not_called_a_full_disk(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("something else")

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(RuntimeError, match="something else"):
        make(tmp_path, **SAVING).train()


def test_the_average_is_the_mean(run):
    from safetensors.torch import load_file

    paths = [run / "checkpoint-6", run / "checkpoint-8", run / "checkpoint-10"]
    states = [load_file(path / "model.safetensors") for path in paths]
    mean = average_checkpoints(paths)
    assert mean.keys() == states[0].keys()
    for name, tensor in mean.items():
        expected = sum(state[name].double() for state in states) / 3
        torch.testing.assert_close(tensor, expected.float(), rtol=0, atol=1e-8)
        assert tensor.dtype == torch.float32


def test_averages_of_different_models_are_refused(run, tmp_path):
    deeper = tmp_path / "deeper"
    tiny_model(encoder_layers=2).save_pretrained(deeper)
    with pytest.raises(UserError, match="in one and not in the other"):
        average_checkpoints([run / "checkpoint-10", deeper])
    with pytest.raises(UserError, match="no such folder"):
        average_checkpoints([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="no checkpoints"):
        average_checkpoints([])
    tensors = load_file(run / "checkpoint-10" / "model.safetensors")
    name = min(tensors)
    tensors[name].view(-1)[0] = float("nan")
    shutil.copy(run / "checkpoint-10" / "config.json", deeper)
    save_file(tensors, deeper / "model.safetensors")
    with pytest.raises(
        UserError, match=rf"deeper/model.safetensors: weights hold values that are not finite numbers \({name}\)"
    ):
        average_checkpoints([run / "checkpoint-10", deeper])
    (deeper / "model.safetensors").write_bytes(b"short")
    with pytest.raises(UserError, match="broken or half-written"):
        average_checkpoints([deeper])


@pytest.mark.parametrize(
    ("fields", "key"), [({"d_model": 32}, "d_model"), ({"tie_word_embeddings": False}, "tie_word_embeddings")]
)
def test_averages_of_folders_whose_configs_differ_are_refused(run, tmp_path, fields, key):
    other = shutil.copytree(run / "checkpoint-10", tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, **fields}))
    for paths in ([run / "checkpoint-8", other], [other, run / "checkpoint-8"]):
        with pytest.raises(UserError, match=rf"{paths[1].name}: {key} is .+ in its config\.json, but .+ in that of"):
            checkpoints.write_model(tmp_path / "mean", paths[-1], paths)
    assert not (tmp_path / "mean").exists()


def test_averages_of_opposite_directions_are_refused(run, tmp_path):
    for name, (source, target) in {"there": ("en", "de"), "back": ("de", "en")}.items():
        folder = shutil.copytree(run / "checkpoint-10", tmp_path / name)
        said = {"languages": {"source": source, "target": target}, "data": {"licence": "CC-BY-NC-4.0"}}
        (folder / "results.json").write_text(json.dumps(said))
    with pytest.raises(
        UserError, match=r"back: translates de to en, but .*there en to de. Only checkpoints of one dir"
    ):
        average_checkpoints([tmp_path / "there", run / "checkpoint-10", tmp_path / "back"])
    # What is made of both is of their direction, and of their data.
    there = checkpoints.write_model(
        tmp_path / "of-two", run / "checkpoint-10", [run / "checkpoint-10", tmp_path / "there"]
    )
    with pytest.raises(UserError, match=r"back: translates de to en, but .*of-two en to de"):
        average_checkpoints([there, tmp_path / "back"])
    assert read_results(there / "results.json").data == {"licence": "CC-BY-NC-4.0"}


def test_averages_of_folders_with_other_vocabularies_are_refused(tmp_path, tokenizer):
    other = train_tokenizer(["xa yo zi vu we"] * 5, vocab_size=len(tokenizer), byte_fallback=False)
    for name, each in (("a", tokenizer), ("b", tokenizer), ("c", other)):
        tiny_model(1).save_pretrained(tmp_path / name)
        save_tokenizers(tmp_path / name, each)
    a, b, c = (tmp_path / name for name in "abc")
    assert checkpoints.checkpoints_to_average([a, b], None) == [a, b]
    with pytest.raises(UserError, match=rf"{c}: its tokenizer is not that of {a}: .+ one vocabulary can be averaged"):
        checkpoints.checkpoints_to_average([a, b, c], None)


def test_last_n_of_a_run(copied):
    assert checkpoints.checkpoints_to_average([copied], 2) == [copied / "checkpoint-8", copied / "checkpoint-10"]
    (copied / "checkpoint-10" / "complete.json").unlink()
    assert checkpoints.checkpoints_to_average([copied], 2) == [copied / "checkpoint-6", copied / "checkpoint-8"]
    with pytest.raises(UserError, match="5 checkpoints asked for, 4 whole ones found"):
        checkpoints.checkpoints_to_average([copied], 5)
