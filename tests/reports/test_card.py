"""The card: metadata the Hub can read, every number from results.json, protocols apart, nothing invented."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from helpers.model_folders import small_model, some_results
from huggingface_hub import ModelCard, parse_eval_result_entries
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_mlnmt import TransformerForConditionalGeneration
from hf_mlnmt.reports import Facts, build_card
from hf_mlnmt.reports.card import eval_results
from hf_mlnmt.reports.tables import MISSING
from hf_mlnmt.zoo.systems import config_for, find_system, list_systems

MODEL = small_model(50)


def facts(*results: dict[str, Any], **changes: Any) -> Facts:
    fields = {"name": "anna/toy", "config": MODEL.config, "model_class": type(MODEL), "results": list(results)}
    return Facts(**{**fields, "languages": ("en", "de"), "licence": "CC-BY-4.0", **changes})


def section(card: str, heading: str) -> str:
    return re.search(rf"\n## {heading}\n(.*?)(?=\n## |\Z)", card, re.DOTALL)[1]


def numbers(text: str) -> set[float]:
    return {float(number.replace(",", "")) for number in re.findall(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?", text)}


def numbers_in(value: Any) -> set[float]:
    """All numbers of a results file, as they are and rounded as the card rounds them."""
    if isinstance(value, dict):
        return set().union(*(numbers_in(item) for pair in value.items() for item in pair)) if value else set()
    if isinstance(value, list | tuple):
        return set().union(*map(numbers_in, value)) if value else set()
    if isinstance(value, str):
        return numbers(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {float(value), round(value, 2), round(value, 4)}
    return set()


def test_what_results_say_is_text_in_its_line():
    """No HTML, heading, link or end of a code span comes from a file into a card."""
    bad = "a`<script>x</script>\n# Heading\r\u2028<img src=x>[b](http://c)"
    said = some_results(command=bad, decoding={bad: bad}, versions={bad: bad}, budget={bad: bad})
    said["data"] |= {"name": bad, "licence": bad}
    said["data"]["train"][0]["corpus"] = {"files": {"source": bad}}
    body = build_card(facts(said)).split("---\n", 2)[2]
    outside = re.sub(r"```.*?```|`[^`\n]*`", "", body, flags=re.DOTALL)
    assert "Heading" in outside
    assert not re.search(r"<\w|\n# Heading|\]\(http://c", outside)
    assert not {"\r", "\u2028"} & set(body)


def test_metadata_is_what_the_hub_reads():
    data = ModelCard(build_card(facts(some_results()))).data.to_dict()
    assert data["language"] == ["en", "de"]
    assert data["license"] == "cc-by-4.0"
    assert (data["library_name"], data["pipeline_tag"]) == ("hf-mlnmt", "translation")
    assert data["tags"] == ["translation", "neural-machine-translation", "transformers", "mlnmt-transformer"]
    assert data["widget"] == [{"text": "A man rides a bicycle."}]
    assert data["metrics"] == ["sacrebleu", "ter", "bleu-classic", "ter-classic"]
    (model,) = data["model-index"]
    found = {
        (metric["type"], metric["value"], metric["args"]["signature"])
        for result in model["results"]
        for metric in result["metrics"]
    }
    assert found == {("sacrebleu", 31.23, "nrefs:1|tok:13a")}


def test_the_metadata_of_many_test_sets_and_seeds_leave_the_prose_in_reach():
    """Published models with a dozen directions had 1,489 lines of YAML before their first sentence."""
    results = some_results()
    results["scores"] = {f"test {number}": results["scores"]["test"] for number in range(20)}
    card = build_card(facts(results, {**results, "seed": 8}))
    assert card.splitlines().index("# anna/toy") < 66
    index = ModelCard(card).data.to_dict()["model-index"][0]["results"]
    assert [result["dataset"]["name"] for result in index] == list(results["scores"])
    assert [metric["args"]["seed"] for metric in index[3]["metrics"]] == [7, 8]


def test_protocols_stand_in_tables_of_their_own_with_labels():
    scores = section(build_card(facts(some_results())), "Scores")
    cased, classic = scores.split("### Protocol classic")
    assert "31.23" in cased
    assert "13a" in cased
    assert "37.68" not in cased
    assert "37.68" in classic.split("###")[0]
    assert "lower-cased, Moses-normalised and -tokenised" in classic
    assert "31.23" not in classic


@pytest.mark.parametrize("heading", ["Scores", "Training", "Training data"])
def test_every_number_is_in_the_results(heading):
    results = some_results()
    text = section(build_card(facts(results)), heading)
    assert numbers(text), "nothing was checked"
    assert numbers(text) - numbers_in(results) <= {95.0}  # "95 % interval"


def test_facts_of_training_are_all_there():
    card = build_card(facts(some_results()))
    training, data = section(card, "Training"), section(card, "Training data")
    for text in ("`hf-mlnmt train recipe.yaml", "| seed | 7 |", "steps 4,321", "6.543", "torch 2.13.0"):
        assert text in training
    assert f"| parameters | {MISSING} |" in training
    for text in ("Toy captions", "CC-BY-4.0", "`train.en.gz`", "kept 1,201", "empty side 33"):
        assert text in data
    assert "beams 2" in section(card, "Decoding")
    assert "vaswani2017attention" in section(card, "Architecture")
    assert "31.23" in section(card, "Scores")
    assert "one seed" in section(card, "Limitations")


def test_several_seeds_are_shown_one_by_one():
    first, second = some_results(), some_results(seed=8)
    second["scores"]["test"]["cased"]["BLEU"]["score"] = 32.5
    card = build_card(facts(first, second))
    scores = section(card, "Scores")
    assert "| test | 7 | BLEU ↑ | 31.23 |" in scores
    assert "| test | 8 | BLEU ↑ | 32.50 |" in scores
    assert "one seed" not in card


def test_without_results_nothing_is_claimed():
    card = build_card(facts(licence=None, languages=(None, None)))
    metadata = yaml.safe_load(card.split("---")[1])
    assert set(metadata) == {"library_name", "pipeline_tag", "tags"}
    assert f"Scores: {MISSING}." in card
    assert f"Training: {MISSING}." in card
    assert f"Licence of the weights: {MISSING}." in card
    assert f"Training data: {MISSING}. Its licence: {MISSING}." in card
    assert not numbers(section(card, "Scores"))


def test_hub_datasets_are_named_and_folders_are_not():
    train = [{"corpus": {"dataset": name}} for name in ("bentrevett/multi30k", "./local/set", "toy")]
    data = yaml.safe_load(build_card(facts(some_results(data={"name": "x", "train": train}))).split("---")[1])
    assert data["datasets"] == ["bentrevett/multi30k"]
    assert data["model-index"][0]["results"][0]["dataset"]["type"] == "bentrevett/multi30k"


def test_a_multilingual_card_lists_all_languages_and_each_test_sets_own():
    recipe = {"tokenizer": {"languages": ["de", "fr"]}}
    recipe["data"] = {"test": {"test": {"languages": {"source": "en", "target": "fr"}}}}
    data = yaml.safe_load(build_card(facts(some_results(recipe=recipe), codes=("de", "fr"))).split("---")[1])
    assert data["language"] == ["en", "de", "fr"]
    assert {each["task"]["name"] for each in data["model-index"][0]["results"]} == {"Translation English to French"}


def test_length_normalisation_of_ours_is_explained():
    card = build_card(facts(some_results(), generation={"num_beams": 5, "length_normalization": "gnmt"}))
    assert "`gnmt`, which only the package's pipeline and command do" in section(card, "Decoding")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(some_results())), json_values))
def test_odd_or_missing_keys_never_break_a_card(changes):
    results = {key: value for key, value in some_results().items() if key not in changes or changes[key] is not None}
    card = build_card(facts({**results, **changes}))
    assert yaml.safe_load(card.split("\n---\n")[0].removeprefix("---\n"))["library_name"] == "hf-mlnmt"


def test_a_synthetic_corpus_is_shown_with_how_it_was_made():
    results = some_results()
    manifest = {"direction": "back", "model": "runs/de-en/average", "method": {"name": "sampling", "seed": 1}}
    corpus = {"synthetic": "synthetic/news", "ratio": 2.0, "tag": "<bt>"}
    results["data"]["train"].append({"corpus": corpus, "read": 500, "kept": 400, "used": 300, "synthetic": manifest})
    card = build_card(facts(results))
    for text in (
        "`synthetic/news`",
        "back-translated by `runs/de-en/average` (name sampling, seed 1)",
        "ratio 2, tag &lt;bt>",
        "used 300",
    ):
        assert text in card


def test_a_card_begins_with_what_the_model_is_for_and_how_it_is_used():
    card = build_card(facts(some_results(), domain="image `captions`"))
    body = card.split("---\n", 2)[2]
    assert body.startswith(
        "\n# anna/toy\n\n**For image 'captions', and nothing else**: other text, everyday sentences too,"
    )
    assert re.findall(r"^## (.*)", body, re.MULTILINE)[:2] == ["How to use", "Architecture"]
    assert "**For text like its training data (Toy captions)**: other domains" in build_card(facts(some_results()))


def test_systems_whose_forward_adds_losses_say_what_loses_them():
    """Transformers' Trainer leaves them out with label smoothing, which a model cannot know."""
    for name in (*list_systems("translation"), "ms-2", "ms-13-aif", "ms-1+enc-dc", "m-10+enc-dc"):
        sizes = {"encoder_layers": 3, "decoder_layers": 3} if "rnn" in name else {}
        config, head = config_for(name, "tiny", **sizes), find_system(name).architecture.head_class
        card = build_card(facts(config=config, model_class=head))
        adds = head.supervise is not TransformerForConditionalGeneration.supervise
        assert ("leave `label_smoothing_factor` at 0" in section(card, "How to use")) == adds, name
    config = config_for("ms-1", "tiny", auxiliary_weight=0)
    assert "label_smoothing_factor" not in build_card(facts(config=config))


def test_what_it_was_made_of_and_what_that_cost_stand_in_the_metadata():
    emissions = {"emissions": 12.5, "source": "codecarbon"}
    made_of = {"base_models": ("anna/base",), "relation": "finetune", "datasets": ("anna/toy-captions",)}
    data = ModelCard(build_card(facts(some_results(), emissions=emissions, **made_of))).data.to_dict()
    assert (data["base_model"], data["base_model_relation"]) == (["anna/base"], "finetune")
    assert data["co2_eq_emissions"] == emissions
    assert data["datasets"] == ["anna/toy-captions"]


def test_each_test_set_of_the_hub_has_a_file_of_its_first_score():
    results = some_results()
    results["scores"]["val"] = results["scores"]["test"]
    results["recipe"] = {"data": {"test": {"val": {"dataset": "bob/val"}, "test": {"path": "x"}}}}
    files = eval_results(facts(results, datasets=("anna/toy-captions",)))
    entries = {name: parse_eval_result_entries(yaml.safe_load(text)) for name, text in files.items()}
    assert {name: (entry.dataset_id, entry.task_id, entry.value) for name, (entry,) in entries.items()} == {
        "test.yaml": ("anna/toy-captions", "test", 31.23),
        "val.yaml": ("bob/val", "val", 31.23),
    }
    assert entries["val.yaml"][0].source_url == "https://huggingface.co/anna/toy/blob/main/results.json"
    assert entries["val.yaml"][0].notes == "BLEU, protocol cased, nrefs:1|tok:13a"
    assert eval_results(facts(some_results())) == {}
    # Two test sets of one data set stay two in the index, too.
    index = ModelCard(build_card(facts(results, datasets=("anna/toy-captions",)))).data.to_dict()["model-index"]
    assert [result["dataset"]["name"] for result in index[0]["results"]] == ["test", "val"]
