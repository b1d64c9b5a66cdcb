"""The setups that the project keeps records of: what all systems of one experiment share.

A record's name is <system>.<setup>, the setup's <corpus>-<source><target>.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_mlnmt.zoo.entries.bridge import BRIDGE, RNN
from hf_mlnmt.zoo.papers import BASELINE, systems_scored
from hf_mlnmt.zoo.systems import VARIANTS, find_system, list_systems


@dataclass(frozen=True)
class Setup:
    """`corpus` and `direction` as the recipes' first lines say them; `fields`: config fields beyond the shape's.

    `systems`: those that have a record, by their names in the zoo.
    """

    corpus: str
    direction: str
    shape: str
    fields: Mapping[str, Any]
    systems: tuple[str, ...]


# What is trained like the baseline; the systems of the attention bridge have settings of their own.
_ALL = tuple(name for name in list_systems("translation") if find_system(name).architecture not in (RNN, BRIDGE))

SETUPS: dict[str, Setup] = {
    "multi30k-ende": Setup("Multi30k", "English-German", "tiny", {"vocab_size": 8000}, (*_ALL, *VARIANTS)),
    # The settings of the best score. Systems are compared with the other setup's recipe, which is less work.
    "multi30k-ende-long": Setup(
        "Multi30k", "English-German", "tiny", {"vocab_size": 10000, "norm_position": "pre", "dropout": 0.2}, (BASELINE,)
    ),
    # What all systems are compared with: the settings of the long recipe, as much work as a few epochs are.
    "multi30k-ende-short": Setup(
        "Multi30k",
        "English-German",
        "tiny",
        {"vocab_size": 10000, "norm_position": "pre"},
        (*_ALL, "transformer-wide", "transformer-deep"),
    ),
    # Twelve directions and four copies, by a token before the source or by modules of each language.
    "multi30k-many": Setup(
        "Multi30k", "four languages", "tiny", {"vocab_size": 10000}, (BASELINE, "bridge-rnn", "bridge-transformer")
    ),
    # 32k merges; 33.4k entries is what the papers' parameter counts fit.
    "wmt14-ende": Setup("WMT'14", "English-German", "base", {"vocab_size": 33400}, systems_scored("wmt14-ende")),
    "iwslt-envi": Setup("IWSLT'15", "English-Vietnamese", "small", {"vocab_size": 21200}, systems_scored("iwslt-envi")),
    "iwslt-esen": Setup("IWSLT'14", "Spanish-English", "small", {"vocab_size": 34000}, systems_scored("iwslt-esen")),
    "iwslt-vien": Setup("IWSLT'15", "Vietnamese-English", "small", {"vocab_size": 21200}, systems_scored("iwslt-vien")),
    "iwslt-enes": Setup("IWSLT'14", "English-Spanish", "small", {"vocab_size": 34000}, systems_scored("iwslt-enes")),
    "iwslt-fren": Setup("IWSLT'15", "French-English", "small", {"vocab_size": 31000}, systems_scored("iwslt-fren")),
    "iwslt-enfr": Setup("IWSLT'15", "English-French", "small", {"vocab_size": 31000}, systems_scored("iwslt-enfr")),
    "iwslt-roen": Setup("IWSLT'14", "Romanian-English", "small", {"vocab_size": 32000}, systems_scored("iwslt-roen")),
    "iwslt-enro": Setup("IWSLT'14", "English-Romanian", "small", {"vocab_size": 32000}, systems_scored("iwslt-enro")),
    "iwslt-deen": Setup("IWSLT'14", "German-English", "small", {"vocab_size": 31000}, systems_scored("iwslt-deen")),
}
