"""The configs and cards of what was trained here are what recipes and results say; their sizes what papers print."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from papers import LAYERS_READ, READERS, decoding_ratio, reported, scores, training_ratio
from records import card, config_of, main, recipe_of, results_of, stale, trained_here

from hf_mlnmt.evaluation.comparison import read_comparison
from hf_mlnmt.recipe.reading import find_recipe
from hf_mlnmt.reports.parameters import parameters_of_config
from hf_mlnmt.zoo.records import setups

ROOT = Path(__file__).resolve().parents[2]


def test_records_are_in_step():
    assert len(list(trained_here(ROOT))) > 30
    assert stale(ROOT) == {}, "run `make records`"


def test_seeds_come_from_the_records_own_results_or_else_from_the_sweep():
    long = ["transformer.multi30k-ende-long", *(f"transformer.multi30k-ende-long.seed{n}" for n in (2, 3, 4, 5))]
    assert [path.stem for path in results_of("multi30k-ende-long", "transformer", ROOT)] == long
    short = [f"m-10.multi30k-ende-short.seed{n}" for n in (1, 2)]
    assert [path.stem for path in results_of("multi30k-ende-short", "m-10", ROOT)] == short
    assert results_of("multi30k-ende", "m-10", ROOT) == [], "trained with other settings, for another comparison"
    assert results_of("multi30k-ende-long", "ms-123", ROOT) == [], "its name begins another's"


def test_a_card_says_how_it_was_trained_and_shows_its_comparisons():
    text = card("multi30k-ende-short", "m-10", ROOT)
    assert "hf-mlnmt train multi30k-ende-short --system m-10 --data DIR\n" in text
    assert text.count("| command | `hf-mlnmt train multi30k-ende-short --system m-10 --data ") == 2
    assert text.count("| optimizer steps a second | ") == 2
    section = text.split("## Side by side with other systems")[1].split("\n## ")[0]
    kept = read_comparison(ROOT / "results" / "multi30k-ende-short")
    found = kept.scores("m-10.multi30k-ende-short", "val", "cased", "BLEU")
    assert f"| val | cased | BLEU ↑ | {sum(found) / len(found):.2f} ± " in section
    assert "compared with `transformer.multi30k-ende-short`" in section
    base = card("multi30k-ende", "transformer", ROOT)
    assert "hf-mlnmt train multi30k-ende --data DIR\n" in base
    section = base.split("## Side by side")[1].split("\n## ")[0]
    assert "the baseline" in section
    assert "small budget" in section


def test_what_is_stale_and_what_should_not_be_there(tmp_path):
    name = "m-10.multi30k-ende-long.json"
    (tmp_path / "results").mkdir()
    shutil.copyfile(ROOT / "results" / name, tmp_path / "results" / name)
    files = [tmp_path / folder / "multi30k-ende-long" / "m-10" for folder in ("modeling", "model_cards")]
    config, page = files[0].with_suffix(".json"), files[1].with_suffix(".md")
    assert stale(tmp_path).keys() == {config, page}
    for path, text in stale(tmp_path).items():
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert stale(tmp_path) == {}
    page.write_text(page.read_text().replace("40.59", "99.99"))
    page.with_stem("ms-123").write_text("nobody trained it")
    unwanted = {path: text is None for path, text in stale(tmp_path).items()}
    assert unwanted == {page: False, page.with_stem("ms-123"): True}


def test_the_command(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("records.records_root", lambda: tmp_path)
    (tmp_path / "results").mkdir()
    page = tmp_path / "model_cards" / "demo-ende" / "transformer.md"
    page.parent.mkdir(parents=True)
    page.write_text("nobody trained it")
    assert main(["--check"]) == 1
    assert "stale: model_cards/demo-ende/transformer.md" in capsys.readouterr().err
    assert page.is_file()
    assert main([]) == 0
    assert not page.is_file()
    assert main(["--check"]) == 0


def test_every_reported_score_has_its_recipe():
    assert scores().keys() <= set(setups())
    for setup, rows in scores().items():
        for name, row in rows.items():
            if row.is_scored and not name.endswith("-top-6"):
                find_recipe(setup, name)


def test_recipes_of_the_thesis_on_monolingual_data():
    """A language model that stands alone has sizes of its own; what is pre-trained is trained before it is used."""
    for setup in ("iwslt17-enit", "wmt16-roen", "wmt18-deen", "wmt18-zhen"):
        lm = config_of(recipe_of(setup, "lm"))
        assert (lm.d_model, lm.decoder_ffn_dim, lm.decoder_layers, lm.norm_position) == (1024, 4096, 6, "post")
        encoder = config_of(recipe_of(setup, "encoder-cloze"))
        assert (encoder.d_model, encoder.encoder_ffn_dim, encoder.norm_position) == (512, 2048, "pre")
        assert recipe_of(setup, "pretrained").init_from == {
            "encoder": f"runs/encoder-cloze.{setup}/best",
            "all": f"runs/pseudo-encoder.{setup}/best",
        }
        rates = [recipe_of(setup, name).optimizer for name in ("pseudo-encoder", "lm")]
        assert [(rate.name, rate.learning_rate) for rate in rates] == [("adam", 1e-4), ("sgd", 1.0)]
    for setup, system in (("multi30k-deen", "fusion"), ("multi30k-de", "encoder-cloze"), ("multi30k-en", "lm")):
        assert recipe_of(setup, system).tokenizer.path == "runs/transformer.multi30k-deen/tokenizer"


def size_of(setup: str, system: str, **fields) -> float:
    """Millions of parameters, tied ones once."""
    return round(parameters_of_config(config_of(recipe_of(setup, system), **fields))["total"] / 1e6, 1)


@pytest.mark.parametrize("system", READERS)
def test_parameters_by_the_number_of_layers_read(system: str):
    """Table 3.4, to one unit of its last digit, with biases in the projections.

    Iter-S-Agg of six layers is 63.4 there, as of five, and 63.9 in table 3.2, which is what its equations give.
    """
    names = [*(f"{system}-top-{n}" for n in LAYERS_READ[:-1]), system]
    ours = [size_of("wmt14-ende", name, attention_bias=True) for name in names]
    printed = [scores()["wmt14-ende"][f"{system}-top-{n}"].parameters for n in LAYERS_READ]
    if system == "iter-s-agg":
        assert (printed.pop(), ours.pop()) == (63.4, 63.9)
    assert ours == pytest.approx(printed, abs=0.11)


@pytest.mark.parametrize("setup", ["iwslt17-enit", "wmt16-roen"])
def test_the_sizes_of_the_thesis_on_monolingual_data(setup: str):
    """Table 5.3, every number of it: how the members are built is thereby what the thesis built."""
    printed = {system: row.parameters for system, row in scores()[setup].items() if row.parameters and row.is_scored}
    assert len(printed) == 5
    assert {system: size_of(setup, system) for system in printed} == printed


def test_reported_numbers():
    assert reported("iter-c-agg.iwslt-esen").bleu == 40.31
    assert reported("s-agg.multi30k-ende") is None
    assert reported("nonesuch.wmt14-ende") is None
    assert reported("ms-14.iwslt-envi") is None, "its speed is printed, no score"
    assert [reported(f"full-dc.iwslt-{pair}").bleu for pair in ("vien", "enro")] == [29.70, 21.27]
    assert reported("both-embeddings.wmt18-zhen")[-3:] == (None, 22.2, 62.2)
    assert [reported(f"{system}.iwslt17-enit").bleu for system in ("fertility", "previous-weight")] == [30.0, None]
    assert reported("back-translation.wmt18-zhen").ter == 60.9
    # Thesis on joint attention, from the same tables.
    expected = {"s-agg": 0.97, "m-10": 0.71, "ms-1": 0.64, "ms-13-aif": 0.44, "enc-dc": 0.82, "transformer": 1.0}
    assert {system: round(training_ratio(system), 2) for system in expected} == expected
    assert training_ratio("ms-1+enc-dc") is None
    assert training_ratio("nonesuch") is None
    assert (round(decoding_ratio("ms-2-aif"), 2), round(decoding_ratio("ms-123-aif"), 2)) == (0.62, 0.35)
    assert decoding_ratio("enc-dc") is None
