"""The published folder: complete, clean, loading with and without the package; bad input loses nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import fresh
from helpers.model_folders import HOME, SENTENCES, pollute, small_model, some_results, write_model
from huggingface_hub import ModelCard
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, MarianConfig, MarianMTModel

from hf_mlnmt import TransformerConfig, TransformerForConditionalGeneration, UserError
from hf_mlnmt.common.files import write_json
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import save_tokenizers, train_tokenizer
from hf_mlnmt.hub import build_folder, check_folder, clean_generation_config

CODE = {"attention.py", "configuration.py", "layers.py", "loss.py", "transformer.py"}


def python_blocks(folder: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def check_examples(folder: Path, monkeypatch, capsys) -> None:
    """The card's examples for the package, by generate() and by the pipeline, print the same translation."""
    monkeypatch.chdir(folder.parent)
    plain, *_, pipeline = python_blocks(folder)
    exec(plain, {})
    exec(pipeline, {})
    first, second = capsys.readouterr().out.splitlines()
    assert first.strip() == second.strip() != ""


def run_without_package(code: str, cwd: Path, modules: Path) -> str:
    """Run code in a process that cannot import hf_mlnmt, offline."""
    environment = {**os.environ, "HF_MODULES_CACHE": str(modules), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    blocked = f"import sys; sys.modules['hf_mlnmt'] = None\n{code}"
    process = fresh.python("-c", blocked, cwd=cwd, env=environment)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


def test_folder_holds_everything_and_nothing_else(published):
    found = {path.name for path in published.iterdir()}
    data = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert found >= data | CODE | {"README.md", "results.json"}
    assert {name for name in found if not name.endswith(".py")} == data | {"README.md", "results.json"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_length": 20}, {"max_new_tokens": 63}),
        ({"max_length": 21}, {"max_new_tokens": 63}),
        ({"max_length": 40}, {"max_new_tokens": 39}),  # without the start token
        ({"num_beams": 4}, {"max_new_tokens": 63, "num_beams": 4, "length_penalty": 1.0}),
        ({"length_penalty": 0.6, "early_stopping": True}, {"max_new_tokens": 63}),  # which are for beams
        ({"reads_matches": True}, {"max_new_tokens": 63, "reads_matches": True}),
    ],
)
def test_what_is_kept_of_a_generation_config(settings, expected):
    kept = clean_generation_config(GenerationConfig(**settings), SimpleNamespace(max_position_embeddings=64))
    assert {name: value for name, value in kept.to_diff_dict().items() if name != "transformers_version"} == expected


def test_training_leftovers_are_gone_and_decoding_stays(published):
    assert json.loads((published / "config.json").read_text())["use_cache"] is True
    generation = json.loads((published / "generation_config.json").read_text())
    assert not generation.keys() & {"max_length", "top_k", "temperature"}
    assert (generation["num_beams"], generation["length_penalty"]) == (2, 1.1)
    assert generation["max_new_tokens"] == 63  # the model's longest, not Trainer's 20
    assert generation["decoder_start_token_id"] == 3


def test_a_tokenizer_does_not_say_how_it_was_loaded(published):
    assert not json.loads((published / "tokenizer_config.json").read_text()).keys() & {"is_local", "local_files_only"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps_per_second": float("nan")}, "steps_per_second: expected a number, not NaN"),
        ({"budget": {"steps": 1, "seconds": float("inf")}}, "budget.seconds: expected a number, not Infinity"),
    ],
)
def test_numbers_that_nobody_measured_are_refused(trained_folder, tmp_path, quick, changes, message):
    folder = shutil.copytree(trained_folder, tmp_path / "average")
    (folder / "results.json").write_text(json.dumps(some_results(**changes)))
    with pytest.raises(UserError, match=message):
        build_folder(folder, tmp_path / "out", licence="mit")
    assert not (tmp_path / "out").exists()


def test_no_path_of_the_machine_stays(published, trained_folder):
    for path in published.rglob("*"):
        content = path.read_bytes()
        for secret in (HOME, str(trained_folder), str(Path.home()) + "/", "/srv/runs"):
            assert secret.encode() not in content, path
    command = json.loads((published / "results.json").read_text())["command"]
    assert command == "hf-mlnmt train recipe.yaml --data toy --output first"


def test_codes_of_the_card_run_with_the_package(published, monkeypatch, capsys):
    check_examples(published, monkeypatch, capsys)


def test_code_of_the_card_runs_without_the_package(published, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(published.parent)
    plain, remote, _ = python_blocks(published)
    exec(plain, {})
    expected = capsys.readouterr().out
    base = "from transformers import AutoModel\nprint(type(AutoModel.from_pretrained(name, trust_remote_code=True)))"
    found, kind = run_without_package(remote + base, published.parent, tmp_path).strip().rsplit("\n", 1)
    assert found.strip() == expected.strip()
    assert "transformers_modules" in kind
    assert "TransformerModel" in kind


def test_the_curves_of_the_run_go_along(trained_folder, published, tmp_path, quick):
    """From the run's folder beside the card, which shows them by a relative link; again from a publication."""
    assert "curves.png" not in (published / "README.md").read_text()  # its run has none
    run = tmp_path / "run"
    shutil.copytree(trained_folder, run / "average")
    shutil.copytree(trained_folder, run / "other")
    (run / "curves.png").write_bytes(b"\x89PNG picture")
    built = build_folder(run / "average", tmp_path / "out" / "one", licence="mit").folder
    assert (built / "curves.png").read_bytes() == b"\x89PNG picture"
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (built / "README.md").read_text())
    assert pictures == ["curves.png"]
    again = build_folder(built, tmp_path / "out" / "two", licence="mit").folder
    assert (again / "curves.png").is_file()
    build_folder(run / "average", built, licence="mit")  # an earlier publication with a picture is replaced
    other = build_folder(run / "other", tmp_path / "out" / "three", licence="mit").folder
    assert not (other / "curves.png").exists()  # not the model of that run


def test_same_input_same_bytes(published, trained_folder, tmp_path, quick):
    again = build_folder(trained_folder, tmp_path / "toy-en-de", licence="cc-by-4.0").folder
    for path in published.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name


def test_publishing_leaves_later_saves_alone(published, tmp_path):
    """register_for_auto_class marks a class for the whole process: a training's checkpoints must not get code."""
    small_model(50).save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())


def test_a_publication_can_be_published_again(published, tmp_path, quick):
    again = build_folder(published, tmp_path / "again", licence="cc-by-4.0").folder
    assert (again / "config.json").read_bytes() == (published / "config.json").read_bytes()
    assert (again / "model.safetensors").read_bytes() == (published / "model.safetensors").read_bytes()


def test_separate_tokenizers_and_text_processing(tmp_path, monkeypatch, capsys, quick):
    source = train_tokenizer(SENTENCES, vocab_size=300)
    target = train_tokenizer([line.upper() for line in SENTENCES], vocab_size=320)
    assert len(source) != len(target)
    folder = tmp_path / "run" / "average"
    small_model(len(source), len(target)).save_pretrained(folder)
    processing = {"source": TextProcessing("en", moses=True, normalize=True, lowercase=True)}
    processing["target"] = TextProcessing("de", moses=True)
    save_tokenizers(folder, source, target, processing)
    built = build_folder(folder, tmp_path / "out" / "two", languages=("en", "de")).folder
    assert (built / "target_tokenizer" / "tokenizer.json").is_file()
    check_examples(built, monkeypatch, capsys)


def test_multilingual_card_names_and_uses_its_codes(tmp_path, monkeypatch, capsys, quick):
    folder = write_model(tmp_path / "run", languages=("de", "fr"))
    built = build_folder(folder, tmp_path / "out" / "many").folder
    card = (built / "README.md").read_text()
    assert "language:\n- de\n- fr\n" in card
    assert "into German (de), French (fr), named by the tokenizer's `tgt_lang`" in card
    assert 'tokenizer([text], tgt_lang="de", return_tensors' in card
    check_examples(built, monkeypatch, capsys)


def test_a_model_of_transformers_own_needs_no_code(tmp_path, quick):
    tokenizer = train_tokenizer(SENTENCES, vocab_size=300)
    sizes = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 3, "forced_eos_token_id": 1}
    model = MarianMTModel(MarianConfig(vocab_size=len(tokenizer), d_model=16, **sizes, **special))
    model.save_pretrained(tmp_path / "marian")
    save_tokenizers(tmp_path / "marian", tokenizer)
    built = build_folder(tmp_path / "marian", tmp_path / "out").folder
    card = (built / "README.md").read_text()
    assert not list(built.glob("*.py"))
    assert "trust_remote_code" not in card
    assert "Citation: not recorded" in card
    assert AutoModelForSeq2SeqLM.from_pretrained(built).config.model_type == "marian"


def test_weights_are_those_of_the_model(published, trained_folder):
    before, after = (AutoModelForSeq2SeqLM.from_pretrained(folder) for folder in (trained_folder, published))
    batch = AutoTokenizer.from_pretrained(published)(SENTENCES[:2], return_tensors="pt", padding=True)
    target = torch.tensor([[3, 40, 41]] * 2)
    assert torch.equal(
        before(**batch, decoder_input_ids=target).logits, after(**batch, decoder_input_ids=target).logits
    )


def test_weights_are_stored_in_half_the_bits_and_computed_with_as_before(trained_folder, tmp_path, quick):
    built = build_folder(trained_folder, tmp_path / "half", licence="mit", dtype="bfloat16").folder
    before, after = (AutoModelForSeq2SeqLM.from_pretrained(folder) for folder in (trained_folder, built))
    assert after.dtype == torch.float32
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(old.bfloat16().float(), new)
    size = (trained_folder / "model.safetensors").stat().st_size
    assert (built / "model.safetensors").stat().st_size < 0.6 * size  # tied weights are stored once
    assert "rounded to bfloat16" in (built / "README.md").read_text()


def test_weights_too_large_for_a_type_are_refused(trained_folder, tmp_path, quick):
    model = AutoModelForSeq2SeqLM.from_pretrained(trained_folder)
    folder = shutil.copytree(trained_folder, tmp_path / "large")
    with torch.no_grad():
        model.model.encoder.layers[0].self_attn.out_proj.weight[0, 0] = 1e5
    model.save_pretrained(folder)
    with pytest.raises(UserError, match=r"out_proj.* has values that float16 does not hold"):
        build_folder(folder, tmp_path / "half", licence="mit", dtype="float16")
    assert not (tmp_path / "half").exists()


# What is refused


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("training_args.bin", b"PK\x03\x04", "pickle"),
        ("state.dat", b"\x80\x04\x95", "pickle"),
        ("weights.dat", b"PK\x03\x04", "pickle"),
        ("notes.txt", b"see /home/anna/runs/1", "/home/anna"),
        ("notes.md", f"cd {Path.home()}/x/y".encode() if len(Path.home().parts) > 2 else b"/Users/anna/x", "paths of"),
        ("log.txt", b"HF_TOKEN=hf_" + b"a" * 34, "token"),
        ("model-2.safetensors", b"\x10\0\0\0\0\0\0\0{", "half-written"),
        ("generation_config.json", b'{"max_length": 20, "max_new_tokens": 20}', "max_length=20"),
        ("generation_config.json", b'{"pad_token_id": 0}', "no max_new_tokens"),
        ("config.json", b'{"use_cache": false}', "use_cache"),
        ("README.md", b"# no metadata\n", "YAML"),
    ],
)
def test_folder_check_names_what_must_not_go_out(published, tmp_path, name, content, problem):
    copy = shutil.copytree(published, tmp_path / "copy")
    check_folder(copy)
    (copy / name).write_bytes(content)
    with pytest.raises(UserError, match=problem) as error:
        check_folder(copy)
    assert name in str(error.value)


def test_what_is_built_is_checked(trained_folder, tmp_path, monkeypatch):
    def refuse(*folders):
        raise UserError("must not go out")

    monkeypatch.setattr("hf_mlnmt.hub.publish.check_folder", refuse)
    with pytest.raises(UserError, match="must not go out"):
        build_folder(trained_folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_folder_check_refuses_links_and_missing_files(published, tmp_path):
    copy = shutil.copytree(published, tmp_path / "copy")
    (copy / "results.json").unlink()
    (copy / "results.json").symlink_to(published / "results.json")
    (copy / "model.safetensors").unlink()
    with pytest.raises(UserError, match="a link") as error:
        check_folder(copy)
    assert "no weights" in str(error.value)


def test_existing_folders_of_the_user_are_never_replaced(trained_folder, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"thesis\.tex"):
        build_folder(trained_folder, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    for target in (trained_folder, trained_folder / "inside", trained_folder.parent):
        with pytest.raises(UserError, match="in or around"):
            build_folder(trained_folder, target)


def test_an_earlier_publication_is_replaced_only_when_the_new_one_is_good(
    published, trained_folder, tmp_path, monkeypatch
):
    target = shutil.copytree(published, tmp_path / "toy")

    def refuse(*arguments):
        raise UserError("does not load")

    monkeypatch.setattr("hf_mlnmt.hub.publish.check_loading", refuse)
    with pytest.raises(UserError, match="does not load"):
        build_folder(trained_folder, target)
    assert (target / "README.md").read_bytes() == (published / "README.md").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]
    monkeypatch.setattr("hf_mlnmt.hub.publish.check_loading", lambda *arguments: None)
    build_folder(trained_folder, target)
    assert "\n# toy\n" in (target / "README.md").read_text()


def test_sources_that_are_no_model(trained_folder, tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        build_folder(tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(UserError, match=r"run's folder; give .*average"):
        build_folder(trained_folder.parent, tmp_path / "out")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    shutil.copyfile(trained_folder / "config.json", pickled / "config.json")
    (pickled / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match="a pickle"):
        build_folder(pickled, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wrong_vocabulary_and_other_models_results(trained_folder, tmp_path, quick):
    folder = shutil.copytree(trained_folder, tmp_path / "run")
    (folder / "results.json").write_text(json.dumps(some_results(parameters=999)))
    (warning,) = build_folder(folder, tmp_path / "out", licence="mit").warnings
    assert "says 999 parameters" in warning
    TransformerForConditionalGeneration(
        TransformerConfig(vocab_size=20, d_model=16, encoder_layers=1, decoder_layers=1)
    ).save_pretrained(folder)
    with pytest.raises(UserError, match="20 embeddings"):
        build_folder(folder, tmp_path / "other")


def test_what_is_missing_is_told(tmp_path, quick):
    folder = write_model(tmp_path / "run")
    pollute(folder)
    warnings = build_folder(folder, tmp_path / "out").warnings
    assert len(warnings) == 3
    assert "no results file" in warnings[0]
    assert "licence" in warnings[1]
    assert "languages" in warnings[2]


@pytest.mark.parametrize(
    ("data", "licence", "lacks"),
    [
        ("CC-BY-NC-SA-4.0", "cc-by-4.0", "non-commercial use, share-alike"),
        ("CC-BY-NC-SA-4.0", "cc-by-sa-4.0", "non-commercial use"),
        ("cc-by-nc-4.0", "apache-2.0", "non-commercial use"),
        ("gpl-3.0", "mit", "share-alike"),
        ("cc-by-nd-4.0", "cc-by-4.0", "no derivatives"),
        ("mit", "cc0-1.0", "attribution"),
        ("gemma", "mit", "what is not known here"),
        ("cc-by-4.0", "other:Our-1", "what is not known here"),
        ("CC-BY-NC-SA-4.0", "cc-by-nc-sa-4.0", None),
        ("cc-by-4.0", "cc-by-nc-sa-4.0", None),
        ("cc0-1.0", "mit", None),
        ("gemma", "gemma", None),
        (None, "mit", None),
    ],
)
def test_a_licence_that_gives_more_than_that_of_the_data_asks(trained_folder, tmp_path, quick, data, licence, lacks):
    folder = shutil.copytree(trained_folder, tmp_path / "average")
    results = some_results()
    results["data"]["licence"] = data
    (folder / "results.json").write_text(json.dumps(results))
    if lacks:
        with pytest.raises(UserError, match=f"asks for {lacks}.*--confirm-licence"):
            build_folder(folder, tmp_path / "out", licence=licence)
    if lacks in (None, "no derivatives"):
        built = build_folder(folder, tmp_path / "out", licence=licence, confirm_licence=lacks is not None)
        assert built.facts.licence == licence


def test_the_licences_of_the_models_that_one_began_with_count(trained_folder, tmp_path, quick, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, begun in (("base", None), ("middle", "base"), ("last", {"encoder": "middle"})):
        shutil.copytree(trained_folder, tmp_path / name)
        (tmp_path / name / "results.json").write_text(json.dumps(some_results(recipe={"init_from": begun})))
    build_folder("last", "out", licence="cc-by-4.0")
    (tmp_path / "base" / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    with pytest.raises(UserError, match=r"cc-by-nc-4\.0 of base/README\.md does, which asks for non-commercial use"):
        build_folder("last", "out", licence="cc-by-4.0")


def test_what_a_model_was_made_of_is_named_where_the_hub_knows_it(trained_folder, tmp_path, quick, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(trained_folder, tmp_path / "run" / "average"))
    results = json.loads((folder / "results.json").read_text())
    (tmp_path / "run" / "checkpoints").mkdir()
    rows = "emissions,country_name,gpu_model,cpu_model\n0.001,Ireland,,AMD\n0.002,Ireland,,AMD\n"
    (tmp_path / "run" / "checkpoints" / "emissions.csv").write_text(rows)
    (tmp_path / "runs" / "mine").mkdir(parents=True)

    def metadata(*given: str, **content: Any) -> dict[str, Any]:
        (folder / "results.json").write_text(json.dumps({**results, **content}))
        built = build_folder(folder, tmp_path / "out", base_models=given).folder
        return ModelCard.load(built / "README.md").data.to_dict()

    tuned = metadata(recipe={"init_from": {"encoder": "anna/base", "decoder": "runs/mine"}})
    assert (tuned["base_model"], tuned["base_model_relation"]) == (["anna/base"], "finetune")
    assert tuned["co2_eq_emissions"] == {
        **{"emissions": 3.0, "source": "codecarbon"},
        **{"geographical_location": "Ireland", "hardware_used": "AMD"},
    }
    merged = metadata(made_of=["anna/one", "bob/two"])
    assert (merged["base_model"], merged["base_model_relation"]) == (["anna/one", "bob/two"], "merge")
    taught = metadata(data={"train": [{"synthetic": {"model": "anna/teacher"}}]})
    assert (taught["base_model"], "base_model_relation" in taught) == (["anna/teacher"], False)
    assert metadata("bob/own", recipe={"init_from": "runs/mine"})["base_model"] == ["bob/own"]
    assert "base_model" not in metadata()
    for wrong in ("no such name", "../x", "a/b/c", "/tmp/x", "a..b/c"):
        with pytest.raises(UserError, match="no name on the Hub"):
            metadata("bob/own", wrong)
    write_json(folder / "import.json", {"source": "Helsinki-NLP/opus-mt-en-de"})
    assert metadata()["base_model"] == ["Helsinki-NLP/opus-mt-en-de"]
    (tmp_path / "run" / "checkpoints" / "emissions.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"emissions.csv: no column emissions of numbers"):
        metadata()
