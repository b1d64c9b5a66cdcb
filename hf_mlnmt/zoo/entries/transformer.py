"""The baseline, and what it is compared with: itself with other sizes or with its layer norms elsewhere."""

from hf_mlnmt.zoo.entry import Architecture, Reported, System

TRANSFORMER = Architecture("mlnmt-transformer", "transformer", "Transformer", encoder_heads=True)

SYSTEMS = (
    System(
        "transformer",
        TRANSFORMER,
        {},
        "The Transformer",
        "the baseline of all",
        # Thesis on joint attention, tables 3.2, 4.6a with 4.1, 4.3, 4.2.
        {
            "wmt14-ende": Reported(28.37, 61.2, 3.66),
            "iwslt-envi": Reported(30.58, 12.8, 8.58, 298.96),
            "iwslt-esen": Reported(39.80),
            "iwslt-deen": Reported(34.53),
            # Table 5.3.
            "iwslt-vien": Reported(29.03),
            "iwslt-enes": Reported(37.90),
            "iwslt-fren": Reported(32.85),
            "iwslt-enfr": Reported(33.15),
            "iwslt-roen": Reported(26.66),
            "iwslt-enro": Reported(20.91),
            # Thesis on monolingual data, tables 5.6 (test), 4.5 (dev), 5.3 (parameters), 4.32 and those after it.
            "iwslt17-enit": Reported(29.6, 52.1, ter=52.0, dev_bleu=28.1, dev_ter=54.0),
            "wmt16-roen": Reported(34.1, 54.0, ter=47.4, dev_bleu=35.7, dev_ter=45.3),
            "wmt18-deen": Reported(33.6, ter=48.0, dev_bleu=32.7, dev_ter=48.6),
            "wmt18-zhen": Reported(23.0, ter=61.9, dev_bleu=22.2, dev_ter=62.4),
        },
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
        {"wmt14-ende": Reported(28.49, 86.5, 2.95)},
        {"wmt14-ende": {"encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096}},  # B1; "4098" in the text
    ),
    System(
        "transformer-deep",
        TRANSFORMER,
        {"encoder_layers": 7, "decoder_layers": 7},
        "The deeper Transformer",
        "the baseline with more layers a side",
        {"wmt14-ende": Reported(28.59, 90.7, 2.60)},
        {"wmt14-ende": {"encoder_layers": 10, "decoder_layers": 10}},  # B2
    ),
    System(
        "transformer-two-decoder-layers",
        TRANSFORMER,
        {"decoder_layers": 2},
        "The Transformer with two decoder layers",
        "the baseline of language model fusion",
        # Thesis on monolingual data, table 4.5.
        {
            "iwslt17-enit": Reported(dev_bleu=26.9, dev_ter=55.0),
            "wmt16-roen": Reported(dev_bleu=33.0, dev_ter=48.1),
            "wmt18-deen": Reported(dev_bleu=32.0, dev_ter=48.7),
            "wmt18-zhen": Reported(dev_bleu=21.6, dev_ter=62.3),
        },
    ),
)
