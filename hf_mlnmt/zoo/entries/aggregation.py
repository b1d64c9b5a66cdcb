"""Layer aggregation."""

from hf_mlnmt.zoo.entry import Architecture, System

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
    ),
    System(
        "iter-s-agg",
        AGGREGATION,
        {"aggregation": "Iter-S-Agg"},
        "Iter-S-Agg",
        "the decoder reads encoder layers that were summed one after the other",
    ),
    System(
        "c-agg",
        AGGREGATION,
        {"aggregation": "C-Agg"},
        "C-Agg",
        "the decoder reads all encoder layers merged by one feed-forward network",
    ),
    System(
        "iter-c-agg",
        AGGREGATION,
        {"aggregation": "Iter-C-Agg"},
        "Iter-C-Agg",
        "the decoder reads encoder layers merged two by two by feed-forward networks",
    ),
    System(
        "transparent",
        AGGREGATION,
        {"aggregation": "Transparent"},
        "Transparent attention",
        "each decoder layer reads its own weighted sum of the encoder layers",
    ),
)
