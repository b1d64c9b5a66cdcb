"""Fine-tuned models of Transformers' own classes: the steps of its Seq2SeqTrainer, languages told, the same folder."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers import fresh
from helpers.foreign_translators import every_family
from helpers.tiny_run import run, write_recipe
from helpers.toy_translators import SENTENCES
from peft import PeftModel
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    modeling_utils,
)

from hf_mlnmt import UserError
from hf_mlnmt.data.encoded import Encoded
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.hub import publish

pytestmark = pytest.mark.usefixtures("one_thread")
PAIRS = 24
STEPS = 3
LANGUAGES = {
    "marian": ("en", "fra"),
    "m2m100": ("en", "de"),
    "nllb": ("eng_Latn", "deu_Latn"),
    "mbart": ("en_XX", "de_DE"),
    "mbart50": ("en_XX", "de_DE"),
    "t5": ("en", "de"),
    "madlad": ("en", "de"),
}
EACH = {"every": STEPS, "best": "mean_bleu"}
FILES = {"files": {"source": "sources.txt", "target": "targets.txt"}}
IN_FRONT = {"marian": ">>fra<< ", "t5": "translate English to German: ", "madlad": "<2de> "}


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> Path:
    """A folder of each family, and 24 pairs, all of one batch."""
    folder = tmp_path_factory.mktemp("bases")
    for name, (tokenizer, model) in every_family(folder, (">>de<<", ">>fra<<")).items():
        for key in ("encoder_layerdrop", "decoder_layerdrop", "attention_dropout"):
            setattr(model.config, key, 0.0)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    for name, first in (("sources", 0), ("targets", PAIRS)):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in SENTENCES[first : first + PAIRS]))
    return folder


def fine_tune(folder: Path, family: str, output: Path, **changes: Any) -> Path:
    source, target = LANGUAGES[family]
    settings: dict[str, Any] = {
        "languages": {"source": source, "target": target},
        "data": {"train": FILES, "dev": FILES, "test": {}, "max_length": 60},
        "init_from": family,
        "model": {},
        "tokenizer": {"path": family},
        "label_smoothing": 0.0,
        "batch": {"tokens": 100_000},
        "optimizer": {"name": "adamw", "learning_rate": 0.01, "eps": 1e-8, "betas": [0.9, 0.98], "clip": 1.0},
        "schedule": {"name": "constant", "warmup": 0},
        "budget": {"steps": STEPS},
        "evaluation": {"every": STEPS},
        "checkpoints": {"keep": 1, "average": 1},
        "logging": {"every": 1},
    }
    run(write_recipe(output.with_suffix(".yaml"), **(settings | changes)), folder, output)
    return output


def stock(folder: Path, family: str, output: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of stock Transformers, which is told the languages as its documentation says."""
    tokenizer = AutoTokenizer.from_pretrained(folder / family)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / family)
    if family == "marian":  # from_pretrained forgets that its sinusoids are fixed, and stock Transformers trains them
        for side in (model.model.encoder, model.model.decoder):
            side.embed_positions.requires_grad_(False)
    if hasattr(tokenizer, "src_lang"):
        tokenizer.src_lang, tokenizer.tgt_lang = LANGUAGES[family]
    sources, targets = ((folder / f"{name}.txt").read_text().splitlines() for name in ("sources", "targets"))
    sources = [IN_FRONT.get(family, "") + text for text in sources]
    rows = tokenizer(sources, text_target=targets)
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            output_dir=str(output),
            per_device_train_batch_size=PAIRS,
            max_steps=STEPS,
            learning_rate=0.01,
            adam_beta2=0.98,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        ),
        train_dataset=[{name: rows[name][number] for name in ("input_ids", "labels")} for number in range(PAIRS)],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], model.state_dict()


@pytest.mark.parametrize("family", LANGUAGES)
def test_its_steps_are_those_of_stock_transformers(bases, tmp_path, family):
    losses, weights = stock(bases, family, tmp_path / "stock")
    output = fine_tune(bases, family, tmp_path / "ours")
    logged = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([entry["loss"] for entry in logged if "loss" in entry], losses, rtol=1e-4)
    ours = AutoModelForSeq2SeqLM.from_pretrained(output / "average")
    for name, tensor in ours.state_dict().items():
        if name.endswith("k_proj.bias"):
            continue  # it adds the same to a whole row of scores: its gradient is rounding, which Adam enlarges
        torch.testing.assert_close(tensor, weights[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("family", LANGUAGES)
def test_the_result_is_what_came_in(bases, tmp_path, family):
    """Class, config, tokenizer; and it translates as it was taught, told the same languages."""
    output = fine_tune(bases, family, tmp_path / "run")
    before, after = (AutoModelForSeq2SeqLM.from_pretrained(path) for path in (bases / family, output / "average"))
    assert type(after) is type(before)
    left_out = {"dtype", "tokenizers", "transformers_version", "_name_or_path"}
    configs = [{k: v for k, v in model.config.to_dict().items() if k not in left_out} for model in (before, after)]
    assert configs[1] == configs[0]
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (bases / family, output / "average")]
    assert type(tokenizers[1]) is type(tokenizers[0])
    assert tokenizers[1].get_vocab() == tokenizers[0].get_vocab()
    assert tokenizers[1](SENTENCES[:5]).input_ids == tokenizers[0](SENTENCES[:5]).input_ids


@pytest.mark.parametrize(
    ("family", "target", "message"),
    [
        ("nllb", "de", r"target_language: unknown code 'de' \(did you mean 'deu_Latn'\?\)"),
        ("nllb", "fr", r"unknown code 'fr' \(did you mean 'fra_Latn'\?\)"),
        ("m2m100", "deu", r"unknown code 'deu' \(did you mean 'de'\?\)"),
        ("mbart50", "es", r"unknown code 'es' \(did you mean 'es_XX'\?\)"),
        ("mbart50", "de", r"unknown code 'de' \(did you mean 'de_DE'\?\)"),
        ("marian", "fr", r"unknown code 'fr' \(did you mean 'fra'\?\)"),
        ("madlad", "fr", r"unknown code 'fr' \(did you mean 'fra'\?\)"),
        ("t5", "fr", "was not taught 'en' to 'fr'; it knows: en_to_de"),
    ],
)
def test_a_code_that_the_model_lacks(bases, tmp_path, family, target, message):
    languages = {"source": LANGUAGES[family][0], "target": target}
    with pytest.raises(UserError, match=message):
        fine_tune(bases, family, tmp_path / "run", languages=languages)


def test_what_is_kept_is_the_base_models_own_translation(bases, tmp_path):
    """A tenth of the batches; started again with the same arguments it is finished, with others it says so."""
    keep = {"text": "sources.txt", "share": 0.25, "languages": {"source": "eng_Latn", "target": "fra_Latn"}}
    shutil.copytree(bases / "nllb", bases / "short")
    settings = GenerationConfig.from_pretrained(bases / "short")
    settings.max_new_tokens, settings.forced_eos_token_id = 6, 2  # random weights do not end by themselves
    settings.save_pretrained(bases / "short")
    changes = {"init_from": "short", "tokenizer": {"path": "short"}, "budget": {"steps": 8}, "evaluation": {"every": 8}}
    output = fine_tune(bases, "nllb", tmp_path / "run", keep=keep, **changes)
    kept = {side: (output / "kept" / f"{side}.txt") for side in ("source", "target")}
    base = TranslationPipeline.from_pretrained(str(bases / "short"))
    sources = kept["source"].read_text().splitlines()
    assert set(sources) <= set(SENTENCES[:PAIRS])
    there = base(sources, num_beams=5, source_language="eng_Latn", target_language="fra_Latn")
    assert kept["target"].read_text().splitlines() == there
    trained = yaml.safe_load((output / "recipe.yaml").read_text())
    assert {name: task["share"] for name, task in trained["tasks"].items()} == {"translation": 1, "kept": 1 / 3}
    assert trained["tasks"]["kept"]["languages"] == keep["languages"]
    shutil.rmtree(bases / "short")
    assert "is finished" in run(tmp_path / "run.yaml", bases, output)
    encoded = sorted(path.name for path in (output / "data").iterdir())
    assert encoded == ["dev", "kept.0", "translation.0"]


@pytest.mark.parametrize("family", ["mbart", "t5"])
def test_frozen_embeddings_stay_and_all_else_is_trained(bases, family, tmp_path):
    output = fine_tune(bases, family, tmp_path / "run", freeze="embeddings")
    before, after = (AutoModelForSeq2SeqLM.from_pretrained(path) for path in (bases / family, output / "average"))
    tables = {id(model.get_input_embeddings().weight) for model in (before, before.get_encoder(), before.get_decoder())}
    others = dict(after.named_parameters())
    same = {name for name, weight in before.named_parameters() if torch.equal(weight, others[name])}
    frozen = {name for name, weight in before.named_parameters() if id(weight) in tables}
    assert frozen <= same
    trained = {name for name in others if name.endswith(("q.weight", "q_proj.weight"))}
    assert trained
    assert not trained & same


def test_several_pairs_both_ways(bases, tmp_path):
    """Each batch tells its own languages: the labels begin with the target's code, the sources with their own."""
    pairs = {"en-de": ("eng_Latn", "deu_Latn"), "fr-en": ("fra_Latn", "eng_Latn")}
    tasks = {}
    for name, (source, target) in pairs.items():
        tasks[name] = {"data": FILES, "languages": {"source": source, "target": target}, "dev": FILES}
    output = tmp_path / "run"
    fine_tune(bases, "nllb", output, tasks=tasks, data={"train": None, "dev": None, "test": {}}, evaluation=EACH)
    tokenizer = AutoTokenizer.from_pretrained(bases / "nllb")
    for name, languages in pairs.items():
        tokenizer.src_lang, tokenizer.tgt_lang = languages
        rows = tokenizer(SENTENCES[:PAIRS], text_target=SENTENCES[PAIRS : 2 * PAIRS])
        encoded = Encoded(output / "data" / f"{name}.0")
        assert [encoded[number]["input_ids"].tolist() for number in range(PAIRS)] == rows["input_ids"]
        assert [encoded[number]["labels"].tolist() for number in range(PAIRS)] == rows["labels"]


def test_in_half_precision_and_with_layers_computed_twice(bases, tmp_path, monkeypatch):
    """Computed twice a layer adds gradients in another order at most; bf16 has eight bits: near, and not the same."""
    calls, checkpoint, losses = [], modeling_utils.checkpoint, {}
    monkeypatch.setattr(modeling_utils, "checkpoint", lambda *a, **b: (calls.append(1), checkpoint(*a, **b))[1])
    for name, precision in {
        "float32": {},
        "bf16": {"dtype": "bf16"},
        "twice": {"gradient_checkpointing": True},
    }.items():
        assert not calls
        output = fine_tune(bases, "nllb", tmp_path / name, precision=precision)
        logged = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        losses[name] = [entry["loss"] for entry in logged if "loss" in entry]
    assert len(calls) == STEPS * 2  # layers
    np.testing.assert_allclose(losses["twice"], losses["float32"], rtol=1e-4)
    assert losses["bf16"] != losses["float32"]
    np.testing.assert_allclose(losses["bf16"], losses["float32"], rtol=2**-6)


@pytest.mark.parametrize("family", ["marian", "nllb", "t5"])
def test_lora_is_what_it_is_merged_into(bases, tmp_path, family):
    output = fine_tune(bases, family, tmp_path / "run", adapter={"r": 2})
    merged = AutoModelForSeq2SeqLM.from_pretrained(output / "average")
    base = AutoModelForSeq2SeqLM.from_pretrained(bases / family)
    assert type(merged) is type(base)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    apart = PeftModel.from_pretrained(base, output / "average" / "adapter").merge_and_unload().state_dict()
    changed = 0
    for name, tensor in merged.state_dict().items():
        torch.testing.assert_close(tensor, apart[name], msg=name)
        changed += not torch.equal(tensor, before[name])
    assert changed >= 12


def test_it_loads_and_translates_without_the_package(bases, tmp_path):
    """In a process that cannot import it: the same text as here."""
    output = fine_tune(bases, "nllb", tmp_path / "run")
    code = f"""
import sys
sys.modules["hf_mlnmt"] = None
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({str(output / "average")!r}, src_lang="eng_Latn")
model = AutoModelForSeq2SeqLM.from_pretrained({str(output / "average")!r})
ids = model.generate(
    **tokenizer({SENTENCES[0]!r}, return_tensors="pt"), forced_bos_token_id=tokenizer.convert_tokens_to_ids("deu_Latn")
)
print(tokenizer.batch_decode(ids, skip_special_tokens=True)[0])
"""
    done = fresh.python("-c", code)
    assert not done.returncode, done.stderr
    here = TranslationPipeline.from_pretrained(str(output / "average"))
    assert done.stdout.strip() == here(SENTENCES[0], source_language="eng_Latn", target_language="deu_Latn").strip()


@pytest.mark.parametrize("family", ["marian", "nllb", "t5"])
def test_its_card_tells_the_languages_and_keeps_the_licence(bases, tmp_path, monkeypatch, family):
    """The card's code runs without the package and translates as the pipeline does; CC-BY-NC is not given away."""
    source, target = LANGUAGES[family]
    folder = shutil.copytree(bases / family, tmp_path / "average")
    monkeypatch.setattr(publish, "check_loading", lambda *given: None)
    given = {"languages": LANGUAGES[family], "licence": "apache-2.0"}
    for bases_told, source_told in ((["facebook/nllb-200-distilled-600M"], "anna/one"), ([], "facebook/nllb-200-1.3B")):
        (folder / "import.json").write_text(json.dumps({"source": source_told}))  # as `model trim` writes it
        with pytest.raises(UserError, match="asks for non-commercial use"):
            publish.build_folder(folder, tmp_path / "out", **given, base_models=bases_told)
    (folder / "import.json").unlink()
    publish.build_folder(folder, tmp_path / "out", **given, base_models=["anna/one"])
    code = (tmp_path / "out" / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    done = fresh.python("-c", f"import sys; sys.modules['hf_mlnmt'] = None\n{code}")
    assert not done.returncode, done.stderr
    here = TranslationPipeline.from_pretrained(str(folder))
    there = here(re.search(r'^text = "(.*)"$', code, re.MULTILINE)[1], source_language=source, target_language=target)
    assert done.stdout.strip() == there.strip()
    codes = getattr(here.parts.source, "src_lang", None)
    assert codes is None or f'src_lang="{source}"' in code
