"""A published model that is trained on or saved again, by whomever, can be loaded without the package again."""

from __future__ import annotations

import json
import os

import pytest
import torch
from helpers import fresh
from helpers.export_toys import joint_tokenizer, toy_model, write_folder
from helpers.fused_folders import gpt2
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_mlnmt.generation.translating.fusing import fuse_folders
from hf_mlnmt.hub import build_folder
from hf_mlnmt.modeling.upkeep import copy_code

SYSTEMS = ("transformer", "s-agg+enc-dc")
IDS = [[5, 6, 7, 1], [9, 8, 4, 1]]

# Loads every folder by its own code, and saves and loads the first again, as somebody would who has no hf_mlnmt.
WITHOUT_THE_PACKAGE = f"""
import json, sys, torch
sys.modules["hf_mlnmt"] = None
from transformers import AutoModel, AutoModelForSeq2SeqLM
ids = torch.tensor({IDS})
def logits(folder):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules"), type(model)
    AutoModel.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        return model, model(input_ids=ids, decoder_input_ids=ids).logits.tolist()
found = {{}}
for folder in sys.argv[1:]:
    model, found[folder] = logits(folder)
again = sys.argv[1] + "-again"
model, _ = logits(sys.argv[1])
model.save_pretrained(again)
found[again] = logits(again)[1]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """{folder: logits} of models that were published, loaded with the package, trained for a step and saved."""
    root, expected = tmp_path_factory.mktemp("saved"), {}
    ids = torch.tensor(IDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hf_mlnmt.hub.publish.check_loading", lambda *arguments: None)
        for number, system in enumerate(SYSTEMS):
            tokenizers = joint_tokenizer()
            folder = write_folder(root / f"trained{number}", tokenizers, toy_model(tokenizers, system))
            build_folder(folder, root / f"published{number}")
            model = AutoModelForSeq2SeqLM.from_pretrained(root / f"published{number}")
            options = {"max_steps": 1, "save_steps": 1, "report_to": "none", "use_cpu": True, "disable_tqdm": True}
            data = [{"input_ids": row, "labels": row} for row in IDS]
            out = root / f"fine{number}"
            trainer = Seq2SeqTrainer(model, Seq2SeqTrainingArguments(str(out), **options), train_dataset=data)
            trainer.train()
            trainer.save_model(str(out / "final"))
            model.eval()
            with torch.no_grad():
                logits = model(input_ids=ids, decoder_input_ids=ids).logits
            expected |= {str(out / name): logits for name in ("final", "checkpoint-1")}
    return expected


def test_what_a_trainer_saves_loads_without_the_package(saved, tmp_path):
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    done = fresh.python("-c", WITHOUT_THE_PACKAGE, *saved, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    first = next(iter(saved))
    for folder, expected in {**saved, f"{first}-again": saved[first]}.items():
        torch.testing.assert_close(torch.tensor(found[folder]), expected, atol=1e-5, rtol=1e-5)


def test_a_fused_model_is_saved_again_with_its_members_code(tmp_path, monkeypatch):
    """Loaded by remote code from a folder, whose members' code lies there and not beside the fused model's."""
    monkeypatch.setattr("hf_mlnmt.hub.publish.check_loading", lambda *arguments: None)
    tokenizers = joint_tokenizer()
    rnn = write_folder(tmp_path / "rnn", tokenizers, toy_model(tokenizers, "rnn", decoder_layers=2))
    members = [rnn, write_folder(tmp_path / "lm", tokenizers, gpt2(len(tokenizers.target)))]
    build_folder(fuse_folders(members, tmp_path / "fused", lambda text: None), tmp_path / "published")
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    code = WITHOUT_THE_PACKAGE.replace("    AutoModel.from_pretrained(folder, trust_remote_code=True)\n", "")
    done = fresh.python("-c", code, str(tmp_path / "published"), env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    once, again = json.loads(done.stdout).values()
    assert once == again


def test_other_ways_to_save(saved, tmp_path):
    folder = next(iter(saved))
    AutoConfig.from_pretrained(folder).save_pretrained(tmp_path / "config")
    AutoModel.from_pretrained(folder).save_pretrained(tmp_path / "base")
    for name in ("config", "base"):
        pointers = json.loads((tmp_path / name / "config.json").read_text())["auto_map"]
        assert {f"{value.split('.')[0]}.py" for value in pointers.values()} == {"configuration.py", "transformer.py"}
        assert (tmp_path / name / "transformer.py").is_file()
        assert (tmp_path / name / "layers.py").is_file()


def test_pointers_to_the_hub_are_no_longer_needed(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("from .c import x\n" if name == "a" else "")
    (tmp_path / "c.py").write_text("x = 1\n")
    pointers = {
        "AutoConfig": "owner/name--a.Config",
        "AutoModel": "a.Model",
        "AutoTokenizer": ["owner/name--t.T", None],
    }
    pointers["AutoModelForSeq2SeqLM"] = "owner/name--elsewhere.Model"
    found = copy_code(pointers, tmp_path, tmp_path / "out")
    assert found == {**pointers, "AutoConfig": "a.Config"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.py", "c.py"]


def test_a_model_that_was_never_published_is_saved_without_code(tmp_path):
    toy_model(joint_tokenizer()).save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())
