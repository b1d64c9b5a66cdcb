"""The records of all tasks are what the zoo's configs say, and the papers' numbers have their records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_mlnmt import config_for
from hf_mlnmt.training import read_recipe
from hf_mlnmt.zoo.published import PUBLISHED, decoding_ratio, published, training_ratio
from hf_mlnmt.zoo.records import stems
from hf_mlnmt.zoo.systems import list_systems
from hf_mlnmt.zoo.tasks import BASELINE, TASKS, recipe_text, record_config_of, record_json, summary, write_records

ROOT = Path(__file__).resolve().parents[2]
RECORDS = [stem.split(".", 1) for stem in stems(ROOT) if stem.split(".", 1)[1] in TASKS]


@pytest.mark.parametrize(("system", "task"), RECORDS)
def test_a_record_is_its_systems_config(system: str, task: str):
    content = json.loads((ROOT / "modeling" / f"{system}.{task}.json").read_text(encoding="utf-8"))
    assert content == record_json(system, task), "run hf_mlnmt.zoo.tasks.write_records()"
    text = (ROOT / "training" / f"{system}.{task}.yaml").read_text(encoding="utf-8")
    if system != BASELINE:
        assert text == recipe_text(system, task), "run hf_mlnmt.zoo.tasks.write_records()"
    assert max(map(len, text.splitlines())) <= 120


def test_every_published_number_has_its_record():
    for task, systems in PUBLISHED.items():
        assert {f"{system}.{task}" for system in systems} <= set(stems(ROOT))


@pytest.mark.parametrize("task", TASKS)
def test_recipe_and_config_have_one_vocabulary(task: str):
    assert (
        read_recipe(ROOT / "training" / f"{BASELINE}.{task}.yaml").tokenizer.vocab_size
        == (TASKS[task].fields["vocab_size"])
    )


def test_a_record_reads_back_as_config_for_makes_it(tmp_path):
    paths = write_records(["iwslt-deen"], tmp_path)
    assert sorted(path.name for path in paths) == [
        "ms-2-aif.iwslt-deen.json", "ms-2-aif.iwslt-deen.yaml", "transformer.iwslt-deen.json",
    ]  # fmt: skip
    from transformers import AutoConfig

    read = AutoConfig.from_pretrained(tmp_path / "modeling" / "ms-2-aif.iwslt-deen.json")
    made = config_for("ms-2-aif", "small", vocab_size=31000)
    own = {"architectures": None, "_name_or_path": None}
    assert {**read.to_dict(), **own} == {**made.to_dict(), **own}


def test_dual_context_is_narrower_on_the_small_tasks():
    assert record_config_of("enc-dc", "iwslt-envi").encoder_ffn_dim == 512
    assert record_config_of("m-00", "iwslt-envi").encoder_ffn_dim == 1024
    assert record_config_of("enc-dc", "wmt14-ende").encoder_ffn_dim == 2048


@pytest.mark.parametrize("system", list_systems())
def test_every_system_has_a_summary(system: str):
    name, clause = summary(system)
    assert len(name) + len(clause) < 100


def test_summaries_of_multi_level_supervision():
    assert summary("ms-2") == ("MS-2", "an auxiliary decoder on encoder layer 2, in training only")
    assert summary("ms-123-aif")[1] == "auxiliary decoders on encoder layers 1, 2 and 3, read by the main decoder"


def test_published_numbers():
    assert published("iter-c-agg.iwslt-esen").bleu == 40.31
    assert published("s-agg.multi30k-ende") is None
    assert published("nonesuch.wmt14-ende") is None
    # performance.md, from the same tables
    expected = {"s-agg": 0.97, "iter-c-agg": 0.85, "m-10": 0.71, "ms-1": 0.64, "ms-3-aif": 0.63, "ms-123": 0.36}
    expected |= {"ms-13-aif": 0.44, "enc-dc": 0.82, "full-dc": 0.69, "transformer": 1.0}
    assert {system: round(training_ratio(system), 2) for system in expected} == expected
    assert training_ratio("ms-1+enc-dc") is None
    assert (round(decoding_ratio("ms-2-aif"), 2), round(decoding_ratio("ms-123-aif"), 2)) == (0.62, 0.35)
    assert decoding_ratio("enc-dc") is None
