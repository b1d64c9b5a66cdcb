"""The dual contextual module. BLEU, parameters, steps/s: thesis on joint attention, tables 5.2 and 5.3."""

from hf_mlnmt.zoo.entry import Architecture, Reported, System

DUAL_CONTEXT = Architecture(
    "mlnmt-dual-context",
    "dual_context",
    "DualContext",
    beyond="the dual contextual module (a convolution and a second attention in each layer)",
    encoder_heads=True,
)
# Table 5.1: a smaller feed-forward sublayer in the IWSLT setups, also under another family's decoder.
SETUP_FIELDS = {
    setup: {"encoder_ffn_dim": 512, "decoder_ffn_dim": 512} for setup in ("iwslt-envi", "iwslt-esen", "iwslt-deen")
}

SYSTEMS = (
    System(
        "enc-dc",
        DUAL_CONTEXT,
        {"dual_context": "Enc-DC"},
        "Enc-DC",
        "the encoder attends to the sentence and to its local context",
        {"wmt14-ende": Reported(29.26, 73.9, 3.01), "iwslt-envi": Reported(31.28)},
        SETUP_FIELDS,
    ),
    System(
        "dec-dc",
        DUAL_CONTEXT,
        {"dual_context": "Dec-DC"},
        "Dec-DC",
        "the decoder attends to the target prefix and to its local context",
        {"wmt14-ende": Reported(28.86, 73.9, 3.08), "iwslt-envi": Reported(31.24)},
        SETUP_FIELDS,
    ),
    System(
        "full-dc",
        DUAL_CONTEXT,
        {"dual_context": "Full-DC"},
        "Full-DC",
        "encoder and decoder attend to their sentence and to its local context",
        {"wmt14-ende": Reported(29.11, 86.5, 2.53)},
        SETUP_FIELDS,
    ),
)
