"""Layer aggregation. Reported: thesis on joint attention, tables 3.2 and 3.3; `transparent`: PBML 115."""

from hf_mlnmt.zoo.entry import Architecture, Reported, System

AGGREGATION = Architecture(
    "mlnmt-aggregation",
    "aggregation",
    "Aggregation",
    beyond="a decoder that reads several of the encoder's layers (it hands over the last one only)",
    encoder_heads=True,
    over_dual_context=Architecture(
        "mlnmt-dual-context-aggregation",
        "combinations",
        "DualContextAggregation",
        beyond="a decoder that reads several of the encoder's layers, and the dual contextual module",
        encoder_heads=True,
    ),
)

SYSTEMS = (
    System(
        "s-agg",
        AGGREGATION,
        {"aggregation": "S-Agg"},
        "S-Agg",
        "the decoder reads a learnt sum of all encoder layers",
        {"wmt14-ende": Reported(28.24, 62.8, 3.55), "iwslt-envi": Reported(30.91)},
    ),
    System(
        "iter-s-agg",
        AGGREGATION,
        {"aggregation": "Iter-S-Agg"},
        "Iter-S-Agg",
        "the decoder reads encoder layers that were summed one after the other",
        {"wmt14-ende": Reported(28.29, 63.9, 3.52), "iwslt-envi": Reported(31.01)},
    ),
    System(
        "c-agg",
        AGGREGATION,
        {"aggregation": "C-Agg"},
        "C-Agg",
        "the decoder reads all encoder layers merged by one feed-forward network",
        {"wmt14-ende": Reported(28.17, 68.6, 3.38), "iwslt-envi": Reported(31.03)},
    ),
    System(
        "iter-c-agg",
        AGGREGATION,
        {"aggregation": "Iter-C-Agg"},
        "Iter-C-Agg",
        "the decoder reads encoder layers merged two by two by feed-forward networks",
        {
            "wmt14-ende": Reported(28.81, 77.0, 3.11),
            "iwslt-envi": Reported(31.13),
            "iwslt-esen": Reported(40.31),
        },
    ),
    System(
        "transparent",
        AGGREGATION,
        {"aggregation": "Transparent"},
        "Transparent attention",
        "each decoder layer reads its own weighted sum of the encoder layers",
        {"wmt14-ende": Reported(28.48, 61.2, 3.53), "iwslt-envi": Reported(31.16)},
    ),
)
