"""The zoo's entries: what they say, whose classes they name, which names they have."""

from __future__ import annotations

import pytest

from hf_mlnmt import UserError, config_for
from hf_mlnmt.reports.facts import citation_of
from hf_mlnmt.zoo.systems import FUSION, SYSTEMS, architecture_of, architectures, find_system, list_systems


@pytest.mark.parametrize("entry", SYSTEMS.values(), ids=lambda entry: entry.name)
def test_every_entry_says_what_it_is_and_builds_a_config(entry):
    assert 0 < len(entry.title) + len(entry.clause) < 100
    assert set(entry.fields) <= set(entry.architecture.config_class.__dataclass_fields__)
    assert str(citation_of(entry.architecture.head_class)).startswith("@")


def test_architectures_are_the_classes_own():
    for architecture in architectures():
        assert architecture.config_class.model_type == architecture.model_type
        if architecture is not FUSION:  # which has no model without output projection
            assert architecture.head_class.model_class is architecture.base_class
        assert architecture_of(architecture.config_class()) is architecture


def test_multi_level_supervision_of_any_layers():
    assert (find_system("ms-2").title, find_system("ms-2").clause) == (
        "MS-2",
        "an auxiliary decoder on encoder layer 2, in training only",
    )
    assert (
        find_system("ms-123-aif").clause == "auxiliary decoders on encoder layers 1, 2 and 3, read by the main decoder"
    )
    assert find_system("ms-24-aif").fields == {"auxiliary_layers": [2, 4], "information_fusion": True}
    assert [name for name in list_systems() if name.startswith("ms-")] == ["ms-1", "ms-123", "ms-1-aif", "ms-123-aif"]


def test_a_config_may_be_changed_without_the_entry():
    config_for("ms-1").auxiliary_layers.append(2)
    assert config_for("ms-1").auxiliary_layers == [1]


def test_variants_are_no_systems():
    with pytest.raises(UserError, match="'transformer-deep' is unknown"):
        config_for("transformer-deep")
