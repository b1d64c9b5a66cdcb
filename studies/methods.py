"""Ways of training that have records of their own beside the systems'; their recipes are written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_ENCODER = "AutoModelForMaskedLM"


@dataclass(frozen=True)
class Method:
    """`system`: whose config it has; `auto_class`: which of the system's models; None: the whole one.

    `fused`: with the language model of the setup. `fields`: config fields beyond the setup's.
    """

    system: str = "transformer"
    auto_class: str | None = None
    fused: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)


def _of_thesis(joint: int) -> dict[str, Method]:
    """The methods of a task; joint: entries of the vocabulary that both sides share where an encoder changes sides."""
    shared = {"vocab_size": joint, "decoder_vocab_size": joint, "share_encoder_decoder_embeddings": True}
    alone = {"d_model": 1024, "decoder_ffn_dim": 4096, "norm_position": "post"}
    return {
        "lm": Method("lm", fields=alone),
        "fusion": Method("transformer-two-decoder-layers", fused=True),
        "encoder-cloze": Method(auto_class=_ENCODER, fields=shared),
        "pseudo-encoder": Method(fields=shared),
        "pretrained": Method(fields=shared),
        "multi-task": Method(),
        "back-translation": Method(),
    }


METHODS: dict[str, dict[str, Method]] = {
    "multi30k-deen": {"pretrained": Method(), "multi-task": Method(), "fusion": Method(fused=True)},
    "multi30k-de": {"encoder-cloze": Method(auto_class=_ENCODER)},
    "multi30k-en": {"lm": Method("lm"), "pseudo-encoder": Method()},
    "iwslt17-enit": _of_thesis(8000),
    "wmt16-roen": _of_thesis(19235),
    "wmt18-deen": _of_thesis(50000),
    "wmt18-zhen": _of_thesis(50000),
}
