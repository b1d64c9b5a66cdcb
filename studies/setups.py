"""The setups that the project keeps records of: what all systems of one experiment share.

A record's name is <system>.<setup>, the setup's <corpus>-<source><target>.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from papers import BASELINE, systems_scored

from hf_mlnmt.zoo.entries.bridge import BRIDGE, RNN
from hf_mlnmt.zoo.systems import find_system, list_systems


@dataclass(frozen=True)
class Setup:
    """`corpus` and `direction` as the recipes' first lines say them; `fields`: config fields beyond the shape's.

    `systems`: those that have a record, by their names in the zoo. Other records are of methods.py.
    """

    corpus: str
    direction: str
    shape: str
    fields: Mapping[str, Any]
    systems: tuple[str, ...]


_SIZED = ("transformer-wide", "transformer-deep")
# What is trained like the baseline; the systems of the attention bridge have settings of their own.
_ALL = tuple(name for name in list_systems("translation") if find_system(name).architecture not in (RNN, BRIDGE))


def _pre_norm(corpus: str, direction: str, name: str, vocab_size: int, separate: bool, dropout: float) -> Setup:
    """A setup of the base shape with its norms before the sublayers; separate: a vocabulary for each side."""
    fields = {"vocab_size": vocab_size, "norm_position": "pre", "dropout": dropout}
    if separate:
        fields |= {"decoder_vocab_size": vocab_size, "share_encoder_decoder_embeddings": False}
    return Setup(corpus, direction, "base", fields, systems_scored(name))


SETUPS: dict[str, Setup] = {
    "multi30k-ende": Setup(
        "Multi30k", "English-German", "tiny", {"vocab_size": 8000}, (*_ALL, "transformer-pre-norm", *_SIZED)
    ),
    # The settings of the best score, for the baseline and what is best after the short recipe: two systems of one
    # family, and m-10 of another, which is no different from ms-123 on val and half the work.
    "multi30k-ende-long": Setup(
        "Multi30k",
        "English-German",
        "tiny",
        {"vocab_size": 10000, "norm_position": "pre", "dropout": 0.2},
        (BASELINE, "m-10", "ms-123", "ms-123-aif"),
    ),
    # What all systems are compared with: the settings of the long recipe, as much work as a few epochs are.
    "multi30k-ende-short": Setup(
        "Multi30k",
        "English-German",
        "tiny",
        {"vocab_size": 10000, "norm_position": "pre"},
        (*_ALL, *_SIZED),
    ),
    # Text of one language (docs/monolingual.md): a baseline, what is pre-trained for it, and what is made of both.
    "multi30k-deen": Setup(
        "Multi30k",
        "German-English",
        "tiny",
        {"vocab_size": 10000, "norm_position": "pre"},
        (BASELINE,),
    ),
    "multi30k-de": Setup(
        "Multi30k",
        "German",
        "tiny",
        {"vocab_size": 10000, "norm_position": "pre"},
        (),
    ),
    "multi30k-en": Setup(
        "Multi30k",
        "English",
        "tiny",
        {"vocab_size": 10000, "norm_position": "pre"},
        (),
    ),
    # Twelve directions and four copies, by a token before the source or by modules of each language.
    "multi30k-many": Setup(
        "Multi30k",
        "four languages",
        "tiny",
        {"vocab_size": 10000, "norm_position": "pre"},
        (BASELINE, "bridge-rnn", "bridge-transformer"),
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
    # The thesis on monolingual data (section 4.4.1). 8k merges a side and 20k joint ones; these numbers of entries are
    # what all of its parameter counts fit (table 5.3).
    "iwslt17-enit": _pre_norm("IWSLT'17", "English-Italian", "iwslt17-enit", 7775, separate=True, dropout=0.3),
    "wmt16-roen": _pre_norm("WMT'16", "Romanian-English", "wmt16-roen", 19235, separate=False, dropout=0.2),
    "wmt18-deen": _pre_norm("WMT'18", "German-English", "wmt18-deen", 50000, separate=True, dropout=0.1),
    "wmt18-zhen": _pre_norm("WMT'18", "Chinese-English", "wmt18-zhen", 50000, separate=True, dropout=0.1),
}
