"""The baseline, and what it is compared with: itself with other sizes or with its layer norms elsewhere."""

from hf_mlnmt.zoo.entry import Architecture, System

TRANSFORMER = Architecture("mlnmt-transformer", "transformer", "Transformer", encoder_heads=True)

SYSTEMS = (
    System(
        "transformer",
        TRANSFORMER,
        {},
        "The Transformer",
        "the baseline of all",
    ),
)

# Records that are the baseline with other fields; those of sizes are meant for the tiny shape, and by setup_fields for
# the base shape.
VARIANTS = (
    System(
        "transformer-pre-norm",
        TRANSFORMER,
        {"norm_position": "pre"},
        "The pre-norm Transformer",
        "the baseline of extended cross-attention",
    ),
    # Baselines of about the size of the larger systems, as B1 and B2 of the thesis on joint attention (table 3.4).
    System(
        "transformer-wide",
        TRANSFORMER,
        {"encoder_ffn_dim": 512, "decoder_ffn_dim": 512},
        "The wider Transformer",
        "the baseline with twice the feed-forward width",
        {"wmt14-ende": {"encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096}},  # B1; "4098" in the text
    ),
    System(
        "transformer-deep",
        TRANSFORMER,
        {"encoder_layers": 7, "decoder_layers": 7},
        "The deeper Transformer",
        "the baseline with more layers a side",
        {"wmt14-ende": {"encoder_layers": 10, "decoder_layers": 10}},  # B2
    ),
    System(
        "transformer-two-decoder-layers",
        TRANSFORMER,
        {"decoder_layers": 2},
        "The Transformer with two decoder layers",
        "the baseline of language model fusion",
    ),
)
