"""The dual contextual module."""

from hf_mlnmt.zoo.entry import Architecture, System

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


SYSTEMS = (
    System(
        "enc-dc",
        DUAL_CONTEXT,
        {"dual_context": "Enc-DC"},
        "Enc-DC",
        "the encoder attends to the sentence and to its local context",
        SETUP_FIELDS,
    ),
    System(
        "dec-dc",
        DUAL_CONTEXT,
        {"dual_context": "Dec-DC"},
        "Dec-DC",
        "the decoder attends to the target prefix and to its local context",
        SETUP_FIELDS,
    ),
    System(
        "full-dc",
        DUAL_CONTEXT,
        {"dual_context": "Full-DC"},
        "Full-DC",
        "encoder and decoder attend to their sentence and to its local context",
        SETUP_FIELDS,
    ),
)
