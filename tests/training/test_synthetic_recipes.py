"""Recipes with synthetic corpora, and turned round: whole runs, resumed exactly; mistakes are found beforehand."""

from __future__ import annotations

import json
import shutil

import pytest
from helpers.synthetic_corpora import write_synthetic
from helpers.tiny_run import run, same_weights, write_corpus, write_recipe

from hf_mlnmt import UserError
from hf_mlnmt.data.tokenizer import load_tokenizers
from hf_mlnmt.training import read_recipe
from hf_mlnmt.training.callbacks import ShowProgress

pytestmark = pytest.mark.usefixtures("one_thread")
TAGGED = {"vocab_size": 120, "byte_fallback": False, "tags": ["<bt>"]}


def with_synthetic(path, settings=None, **changes):
    """A recipe on the parallel corpus and the synthetic one at 1:1.5."""
    corpora = [{"files": {"source": "train.en", "target": "train.de"}}]
    corpora.append({"synthetic": "bt", "ratio": 1.5, **(settings or {})})
    return write_recipe(path, **{"data": {"train": corpora}, "tokenizer": TAGGED, **changes})


@pytest.fixture
def corpus(data, tmp_path):
    """Data with a synthetic corpus of 200 pairs, tagged."""
    folder = shutil.copytree(data, tmp_path / "data")
    lines = (write_corpus(tmp_path / "more", {"train": 200}) / "train.de").read_text().splitlines()
    write_synthetic(folder / "bt", lines, tag="<bt>")
    return folder


def test_interrupted_it_ends_with_the_same_weights_and_tells_what_it_saw(corpus, tmp_path, monkeypatch):
    recipe = with_synthetic(tmp_path / "recipe.yaml", scores=False)
    run(recipe, corpus, tmp_path / "whole")
    train = json.loads((tmp_path / "whole" / "results.json").read_text())["data"]["train"]
    assert [part["kept"] for part in train] == [120, 200]
    assert train[1]["used"] == 180
    assert train[1]["synthetic"]["method"] == {"name": "copied"}
    tokenizer = load_tokenizers(tmp_path / "whole" / "average").source
    assert tokenizer.convert_tokens_to_ids("<bt>") == 5
    show = ShowProgress.on_step_end

    def stop(self, args, state, control, **kwargs):
        if state.global_step == 14:
            raise RuntimeError("power cut")
        show(self, args, state, control, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(ShowProgress, "on_step_end", stop)
        with pytest.raises(RuntimeError, match="power cut"):
            run(recipe, corpus, tmp_path / "cut")
    assert "going on from" in run(recipe, corpus, tmp_path / "cut")
    assert same_weights(tmp_path / "whole", tmp_path / "cut")


def test_a_dry_run_counts_what_an_epoch_shows(corpus, tmp_path):
    text = run(with_synthetic(tmp_path / "recipe.yaml"), corpus, tmp_path / "run", dry_run=True)
    assert "300 pairs of 2 corpora, of which an epoch shows 360" in text


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        ({"ratio": 2}, {}, r"ratio 2 needs 240 synthetic pairs to 120 parallel ones, and 200 are left"),
        ({}, {"tokenizer": {"vocab_size": 120}}, r"no token <bt>.* add tokenizer: \{tags: \['<bt>'\]\}"),
        ({"synthetic": "nothing"}, {}, "nothing: no synthetic corpus there"),
        ({"weight": 2.0}, {}, "data.train: ratio and weight both say"),
        ({"ratio": 0}, {}, "ratio 0 is for a synthetic corpus, and above 0"),
    ],
)
def test_mistakes_are_found_by_a_dry_run(corpus, tmp_path, settings, changes, message):
    with pytest.raises(UserError, match=message):
        run(with_synthetic(tmp_path / "recipe.yaml", settings, **changes), corpus, tmp_path / "run", dry_run=True)


def test_a_back_translation_of_nothing_is_named(corpus, tmp_path):
    write_synthetic(corpus / "none", ["ba"])
    content = json.loads((corpus / "none" / "manifest.json").read_text())
    content["pairs"]["lines"] = 0
    (corpus / "none" / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"none: of .* translations none is left"):
        run(with_synthetic(tmp_path / "recipe.yaml", {"synthetic": "none", "ratio": 1}), corpus, tmp_path / "run")


def test_a_manifest_whose_files_changed_is_refused(corpus, tmp_path):
    with (corpus / "bt" / "source.txt").open("a") as file:
        file.write("more\n")
    with pytest.raises(UserError, match=r"files changed since it was written: source.txt: has"):
        run(with_synthetic(tmp_path / "recipe.yaml"), corpus, tmp_path / "run")


def test_a_recipe_turned_round_is_the_one_written_for_the_other_direction(data, tmp_path):
    """The same weights as with the files named the other way; extended and turned by one key."""
    sides = {part: {"files": {"source": f"{name}.de", "target": f"{name}.en"}}
             for part, name in {"train": "train", "dev": "val"}.items()}  # fmt: skip
    sides["test"] = {"made_up": {"files": {"source": "test.de", "target": "test.en"}}}
    languages = {"source": "de", "target": "en"}
    by_hand = write_recipe(tmp_path / "by_hand.yaml", data=sides, languages=languages, budget={"steps": 4})
    write_recipe(tmp_path / "base.yaml", budget={"steps": 4})
    (tmp_path / "turned.yaml").write_text("extends: base.yaml\nreverse: true\n")
    turned = read_recipe(tmp_path / "turned.yaml")
    assert (turned.reverse, turned.languages.source, turned.data.train["reverse"]) == (False, "de", True)
    run(by_hand, data, tmp_path / "one")
    run(tmp_path / "turned.yaml", data, tmp_path / "other")
    assert same_weights(tmp_path / "one", tmp_path / "other")
    scores = [json.loads((tmp_path / name / "results.json").read_text())["scores"] for name in ("one", "other")]
    assert scores[0] == scores[1]
    twice = read_recipe(tmp_path / "turned.yaml", ["reverse=false"])
    assert twice.languages.source == "en"
