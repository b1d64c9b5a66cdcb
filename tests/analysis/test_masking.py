"""Masking: which parts each family can do without, and that a variant is what generate() makes of it."""

from __future__ import annotations

import pytest

from hf_mlnmt.analysis.masking import WHOLE, Variant, rows, translations, variants
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import score
from hf_mlnmt.evaluation.scores import count_sentences
from hf_mlnmt.evaluation.significance import compare_seeds
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating.loading import load

SOURCES = ["A dog sees the red house.", "Two women ride.", "A man."]
OPTIONS = {"num_beams": 1, "max_new_tokens": 12, "min_new_tokens": 6, "no_repeat_ngram_size": 1}


@pytest.mark.parametrize(
    ("system", "names"),
    [
        ("s-agg", ["layer 1", "layer 2"]),
        ("transparent", ["embeddings", "layer 1", "layer 2"]),
        ("m-10", ["layer 1", "layer 2"]),
        ("ms-1", ["decoder on layer 1"]),
        (
            "ms-123-aif",
            ["auxiliary 1", "auxiliary 2", "auxiliary 3", "all auxiliaries"]
            + [f"decoder on layer {layer}" for layer in (1, 2, 3)],
        ),
        ("ms-1-aif", ["auxiliary 1", "decoder on layer 1"]),
    ],
)
def test_what_can_be_left_out(folders, system, names):
    assert [variant.name for variant in variants(load(str(folders(system))).model)] == names


def test_only_the_collected_layers_are_counted(folders):
    model = load(str(folders("s-agg"))).model
    model.config.collected_layers = 1
    assert [variant.name for variant in variants(model)] == ["layer 2"]


def test_a_variant_is_generate_with_its_mask(folders):
    parts = load(str(folders("m-10")))
    chosen = variants(parts.model)
    found = translations(parts, SOURCES, chosen, **OPTIONS)
    plain = TranslationPipeline(parts)
    assert found[WHOLE] == plain(SOURCES, **OPTIONS)
    assert found["layer 1"] == plain(SOURCES, **OPTIONS, layer_mask=[0.0, 1.0])
    assert found["layer 2"] == plain(SOURCES, **OPTIONS, layer_mask=[1.0, 0.0])
    assert len({tuple(lines) for lines in found.values()}) == 3


def test_auxiliaries_and_their_decoders(folders):
    parts = load(str(folders("ms-123-aif")))
    found = translations(parts, SOURCES, variants(parts.model), **OPTIONS)
    plain = TranslationPipeline(parts)
    assert found["auxiliary 2"] == plain(SOURCES, **OPTIONS, auxiliary_mask=[1.0, 0.0, 1.0])
    assert found["all auxiliaries"] == plain(SOURCES, **OPTIONS, auxiliary_mask=[0.0] * 3)
    single = TranslationPipeline(parts._replace(model=parts.model.auxiliary_translator(3)))
    assert found["decoder on layer 3"] == single(SOURCES, **OPTIONS)
    assert len({tuple(lines) for lines in found.values()}) == 8


def test_rows_are_scores_and_paired_tests():
    references = ["the dog sees a red house", "two women ride on the street", "a man and a dog here"] * 40
    worse = [line.replace("dog", "cat") for line in references]
    chosen = [Variant("layers", "layer 1", {}), Variant("layers", "layer 2", {})]
    outputs = {WHOLE: references, "layer 1": worse, "layer 2": references}
    found = rows(outputs, chosen, references, bootstrap=200, trials=100, seed=7)
    whole, layer = (count_sentences(outputs[name], references)["BLEU"] for name in (WHOLE, "layer 1"))
    tested = compare_seeds("BLEU", [whole], [layer], bootstrap=200, trials=100, seed=7)
    assert [row["without"] for row in found] == [WHOLE, "layer 1", "layer 2"]
    assert found[1]["BLEU"] == round(score(worse, references, metrics=["BLEU"], bootstrap=0)["BLEU"], 4) < 100
    assert found[1]["difference"] == pytest.approx(found[1]["BLEU"] - 100, abs=1e-4)
    assert found[1]["approximate_randomisation"] == tested["approximate_randomisation"] < 0.01
    assert [row["sign"] for row in found] == ["", "‡", ""]  # no difference, no sign


def test_refusals(folders):
    plain, supervised = (load(str(folders(system))).model for system in ("transformer", "ms-1"))
    with pytest.raises(
        UserError, match=r"collects no encoder layers.*no auxiliary information fusion.*no auxiliary dec"
    ):
        variants(plain)
    with pytest.raises(UserError, match="has no auxiliary information fusion"):
        variants(supervised, ["auxiliaries", "decoders"])
    assert [variant.auxiliary for variant in variants(supervised, ["decoders"])] == [1]
