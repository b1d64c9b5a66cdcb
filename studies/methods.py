"""Ways of training that have records of their own beside the systems'; their recipes are written by hand.

Scores: thesis on monolingual data, tables 4.32 to 4.35 (back-translation at 1:10, 1:10, 1:5 and 1:1; what two tables
print differently is as printed there), fusion: 4.18, trained with 12-best lists on two decoder layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_mlnmt.zoo.entry import Reported

_ENCODER = "AutoModelForMaskedLM"


@dataclass(frozen=True)
class Method:
    """`system`: whose config it has; `auto_class`: which of the system's models; None: the whole one.

    `fused`: with the language model of the setup. `fields`: config fields beyond the setup's. `reported`: what the
    paper prints of it.
    """

    system: str = "transformer"
    auto_class: str | None = None
    fused: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    reported: Reported | None = None


def _of_thesis(
    joint: int, back_translation: Reported, pretrained: Reported, multi_task: Reported, fusion: Reported | None = None
) -> dict[str, Method]:
    """The methods of a task; joint: entries of the vocabulary that both sides share where an encoder changes sides."""
    shared = {"vocab_size": joint, "decoder_vocab_size": joint, "share_encoder_decoder_embeddings": True}
    alone = {"d_model": 1024, "decoder_ffn_dim": 4096, "norm_position": "post"}
    return {
        "lm": Method("lm", fields=alone),
        "fusion": Method("transformer-two-decoder-layers", fused=True, reported=fusion),
        "encoder-cloze": Method(auto_class=_ENCODER, fields=shared),
        "pseudo-encoder": Method(fields=shared),
        "pretrained": Method(fields=shared, reported=pretrained),
        "multi-task": Method(reported=multi_task),
        "back-translation": Method(reported=back_translation),
    }


METHODS: dict[str, dict[str, Method]] = {
    "multi30k-deen": {"pretrained": Method(), "multi-task": Method(), "fusion": Method(fused=True)},
    "multi30k-de": {"encoder-cloze": Method(auto_class=_ENCODER)},
    "multi30k-en": {"lm": Method("lm"), "pseudo-encoder": Method()},
    "iwslt17-enit": _of_thesis(
        8000,
        Reported(31.4, ter=50.5, dev_bleu=29.9, dev_ter=52.5),
        Reported(31.3, ter=50.3, dev_bleu=29.6, dev_ter=52.5),
        Reported(30.5, ter=50.8, dev_bleu=29.0, dev_ter=52.8),
        Reported(dev_bleu=27.2, dev_ter=55.2),
    ),
    "wmt16-roen": _of_thesis(
        19235,
        Reported(36.8, ter=45.2, dev_bleu=37.9, dev_ter=43.9),
        Reported(35.4, ter=46.5, dev_bleu=37.1, dev_ter=44.5),
        Reported(34.6, ter=47.2, dev_bleu=36.0, dev_ter=45.2),
        Reported(dev_bleu=33.6, dev_ter=48.3),
    ),
    "wmt18-deen": _of_thesis(
        50000,
        Reported(36.6, ter=44.8, dev_bleu=35.1, dev_ter=45.8),
        Reported(34.1, ter=47.5, dev_bleu=33.1, dev_ter=48.1),
        Reported(34.1, ter=47.9, dev_bleu=33.1, dev_ter=48.4),
        Reported(dev_bleu=33.1, dev_ter=49.0),
    ),
    "wmt18-zhen": _of_thesis(
        50000,
        Reported(24.2, ter=60.9, dev_bleu=23.0, dev_ter=61.3),
        Reported(23.3, ter=61.1, dev_bleu=22.1, dev_ter=62.2),
        Reported(23.7, ter=61.1, dev_bleu=22.6, dev_ter=61.7),
    ),
}
