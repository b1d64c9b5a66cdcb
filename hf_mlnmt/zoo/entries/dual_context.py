"""The dual contextual module. BLEU, parameters, steps/s: thesis on joint attention, tables 5.2 and 5.3."""

from hf_mlnmt.zoo.entry import Architecture, Reported, System

DUAL_CONTEXT = Architecture(
    "mlnmt-dual-context",
    "dual_context",
    "DualContext",
    beyond="the dual contextual module (a convolution and a second attention in each layer)",
    encoder_heads=True,
)
_DIRECTIONS = tuple(f"iwslt-{pair}" for pair in ("vien", "envi", "esen", "enes", "fren", "enfr", "roen", "enro"))
# Table 5.1: a smaller feed-forward sublayer in the IWSLT setups, also under another family's decoder.
SETUP_FIELDS = {setup: {"encoder_ffn_dim": 512, "decoder_ffn_dim": 512} for setup in ("iwslt-deen", *_DIRECTIONS)}


def _reported(wmt: Reported, *scores: float) -> dict[str, Reported]:
    """Of WMT'14, and of the eight directions (table 5.3)."""
    return {"wmt14-ende": wmt, **dict(zip(_DIRECTIONS, map(Reported, scores), strict=True))}


SYSTEMS = (
    System(
        "enc-dc",
        DUAL_CONTEXT,
        {"dual_context": "Enc-DC"},
        "Enc-DC",
        "the encoder attends to the sentence and to its local context",
        _reported(Reported(29.26, 73.9, 3.01), 29.42, 31.28, 40.18, 38.59, 33.35, 33.94, 27.15, 21.20),
        SETUP_FIELDS,
    ),
    System(
        "dec-dc",
        DUAL_CONTEXT,
        {"dual_context": "Dec-DC"},
        "Dec-DC",
        "the decoder attends to the target prefix and to its local context",
        _reported(Reported(28.86, 73.9, 3.08), 29.20, 31.24, 39.96, 38.28, 33.15, 33.43, 26.81, 21.22),
        SETUP_FIELDS,
    ),
    System(
        "full-dc",
        DUAL_CONTEXT,
        {"dual_context": "Full-DC"},
        "Full-DC",
        "encoder and decoder attend to their sentence and to its local context",
        _reported(Reported(29.11, 86.5, 2.53), 29.70, 31.10, 40.15, 38.10, 33.42, 33.60, 27.14, 21.27),
        SETUP_FIELDS,
    ),
)
