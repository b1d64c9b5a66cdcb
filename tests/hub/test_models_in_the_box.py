"""The models in published/: whole, small, with a card, and what README shows of one is what it translates."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries
from huggingface_hub.utils import validate_repo_id
from transformers import AutoTokenizer

from hf_mlnmt.data.tokenizer import load_tokenizers
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.hub import check_folder
from hf_mlnmt.recipe.schema import LICENCES
from hf_mlnmt.reports.tables import show

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "published").glob("*/config.json"))
# Setup -> licence of the weights, and the only texts that the card says a model is for.
KINDS = {"multi30k": ("cc-by-nc-sa-4.0", "image captions")}
KINDS |= {"software": ("gpl-3.0", "the text of programs, their manuals and descriptions")}
A_WEIGHT, BESIDE = 2, 1_200_000  # bytes of a weight in bfloat16, and of all that lies beside the weights
# What the Hub's specification of a model card (modelcard.md in huggingface/hub-docs) has, and its types.
METADATA = {
    "base_model": list,
    "base_model_relation": str,
    "co2_eq_emissions": dict,
    "datasets": list,
    "language": list,
}
METADATA |= {"library_name": str, "license": str, "metrics": list, "model-index": list, "pipeline_tag": str}
METADATA |= {"tags": list, "widget": list}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_is_whole_and_small(folder: Path):
    check_folder(folder, folder, folder)
    assert {"README.md", "curves.png", "results.json", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    card, results = ModelCard.load(folder / "README.md"), json.loads((folder / "results.json").read_text("utf-8"))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size <= A_WEIGHT * results["parameters"] + BESIDE
    words = results["command"].split()
    setup = words[words.index("train") + 1]
    assert (
        ROOT / "training" / setup / "base.yaml"
    ).is_file() or setup == "software-fr/recipe.yaml"  # its corpus has it
    licence, texts = KINDS[setup.partition("-")[0]]
    assert card.data.license == licence
    assert f"# {folder.name}\n\n**For {texts}, and nothing else**" in str(card)
    assert sum(len(path.read_text("utf-8").splitlines()) for path in folder.glob("*.py")) <= 1800  # no kernels
    for scores in results["scores"].values():
        for protocol in scores.values():
            assert all(score["signature"] for score in protocol.values())
    if begun := results["recipe"].get("init_from"):
        assert f"| begins with the weights of | {show(begun)} |" in str(card)


def test_the_first_example_of_the_readme_prints_what_it_says():
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[1]
    told = re.search(r'from_pretrained\("([^"]+)".*tokenizer\(\["(.+?)"\].*# \[\'(.+)\'\]', block, re.DOTALL)
    translate = TranslationPipeline.from_pretrained(str(ROOT / told[1]))
    assert translate(told[2], num_beams=5, length_penalty=1.0) == told[3]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_metadata_of_a_card_is_what_the_hub_takes(folder: Path):
    card = ModelCard.load(folder / "README.md", ignore_metadata_errors=False)
    data = card.data.to_dict()
    assert all(type(value) is METADATA[key] for key, value in data.items())
    assert data["license"] in LICENCES
    assert all(validate_repo_id(name) is None for name in data.get("datasets", ()))
    assert all(re.fullmatch("[a-z]{2,3}", code) for code in data["language"])
    assert (data["pipeline_tag"], "translation" in data["tags"]) == ("translation", True)
    tests = {test for test, *_ in read_scores(folder)}
    assert {result.dataset_name for result in card.data.eval_results} == tests
    entry = (ROOT / "hub" / "README.md").read_text("utf-8")
    assert f'"{data["library_name"]}": {{' in entry
    files = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in (folder / ".eval_results").glob("*")}
    # Of four languages those two that the data set of the Hub holds.
    held = [test for test in tests if "datasets" in data or test.endswith((".en-de", ".de-en"))]
    assert set(files) == {f"{test}.yaml" for test in held}
    assert files or "software" in folder.name  # whose test sets no data set of the Hub holds
    for file, content in files.items():
        (found,) = parse_eval_result_entries(content)
        assert set(content[0]) <= {"dataset", "value", "date", "source", "notes", "verifyToken"}
        assert (found.dataset_id, f"{found.task_id}.yaml") == ("bentrevett/multi30k", file)
        assert found.value == read_scores(folder)[found.task_id, "cased", "BLEU"]


def read_scores(folder: Path) -> dict[tuple[str, str, str], float]:
    tests = json.loads((folder / "results.json").read_text("utf-8"))["scores"].items()
    each = ((test, name, scores) for test, protocols in tests for name, scores in protocols.items())
    return {
        (test, name, metric): round(one["score"], 2) for test, name, scores in each for metric, one in scores.items()
    }


def test_the_snippet_that_the_hub_shows_translates(capsys):
    block = (ROOT / "hub" / "README.md").read_text("utf-8")
    snippet = re.search(r"=> \[\n\t`(.*?)`,\n\]", block, re.DOTALL)[1]
    exec(snippet.replace("${model.id}", str(ROOT / "published" / "en-de")), {})
    assert capsys.readouterr().out == "Ein Mann fährt Fahrrad.\n"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_tokenizer_config_and_card_say_one_length(folder: Path):
    length = AutoTokenizer.from_pretrained(folder).model_max_length
    assert length == json.loads((folder / "config.json").read_text("utf-8"))["max_position_embeddings"]
    assert f"hold at most {length:,} subwords each" in (folder / "README.md").read_text("utf-8")


@pytest.mark.parametrize(("name", "size"), [("en-de-firefox", 8_000_000), ("software-en-de-firefox", 15_000_000)])
def test_the_files_for_engines_translate_as_their_card_says(name, size, monkeypatch, capsys):
    pytest.importorskip("fxtranslate")
    monkeypatch.chdir(ROOT)
    folder = Path("published", name)
    card = (folder / "README.md").read_text("utf-8")
    block = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
    exec(block, {})
    assert f"# {capsys.readouterr().out}" in block
    assert sum(path.stat().st_size for path in folder.iterdir()) < size
    licence, texts = KINDS["software" if "software" in name else "multi30k"]
    assert f"license: {licence}" in card
    assert f"**For {texts}, and nothing else**" in card


def test_scores_of_files_for_engines_are_those_of_their_card():
    card = (ROOT / "published/en-de-firefox/README.md").read_text("utf-8")
    row = re.search(r"\| these files, .*\| ([\d.]+) / [\d.]+ \| ([\d.]+) / [\d.]+ \|", card)
    for test, score in zip(("val", "test_2016_flickr"), row.groups(), strict=True):
        content = yaml.safe_load((ROOT / f"published/en-de-firefox/.eval_results/{test}.yaml").read_text("utf-8"))
        (found,) = parse_eval_result_entries(content)
        assert (found.dataset_id, found.task_id, found.value) == ("bentrevett/multi30k", test, float(score))


TOKENS_IN_TEXTS = ("</s> a <pad> dog", "<mask>", "<bt> a", "<unk></s>", "plain")


@pytest.mark.parametrize("name", ["en-de", "de-en", "en-de-student"])
def test_a_token_in_a_text_is_text_to_both(name):
    """To AutoTokenizer, with which others train, and to this package."""
    stock, ours = AutoTokenizer.from_pretrained(ROOT / "published" / name), load_tokenizers(ROOT / "published" / name)
    for text in TOKENS_IN_TEXTS:
        assert stock(text)["input_ids"] == ours.encode_source([text])[0].tolist()
        assert stock(text)["input_ids"].count(stock.eos_token_id) == 1


@pytest.mark.parametrize("remote", [False, True])
def test_only_the_code_in_front_of_a_text_is_a_token(remote):
    """By a typed code and by tgt_lang; also in the published code."""
    folder = ROOT / "published" / "many"
    stock, ours = AutoTokenizer.from_pretrained(folder, trust_remote_code=remote), load_tokenizers(folder)
    texts = [*TOKENS_IN_TEXTS, "a <2de> b", "<s>x<2cs></s>"]
    into = {code: [ids.tolist() for ids in ours.encode_source(texts, code)] for code in ("cs", "fr")}
    assert stock(texts, tgt_lang="cs")["input_ids"] == into["cs"]
    assert stock([f"<2cs> {text}" for text in texts])["input_ids"] == into["cs"]
    assert stock([f"<2fr> {texts[0]}", f" <2cs>{texts[1]}"])["input_ids"] == [into["fr"][0], into["cs"][1]]
    assert stock(f"<2cs> {texts[0]}", add_special_tokens=False)["input_ids"] == into["cs"][0][:-1]
    assert stock([[f"<2cs> {texts[0]}"]], is_split_into_words=True)["input_ids"] == into["cs"][:1]
    labels = [ids.tolist() for ids in ours.encode_target([*texts, "<2fr> a"])]
    assert stock(text_target=[*texts, "<2fr> a"])["input_ids"] == labels
    assert stock("</s>", tgt_lang="cs", split_special_tokens=False)["input_ids"][1:] == [stock.eos_token_id] * 2
