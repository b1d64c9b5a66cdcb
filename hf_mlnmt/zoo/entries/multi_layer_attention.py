"""Multi-layer multi-head attention."""

from hf_mlnmt.zoo.entry import Architecture, System

MULTI_LAYER_ATTENTION = Architecture(
    "mlnmt-multi-layer-attention",
    "multi_layer_attention",
    "MultiLayerAttention",
    beyond="attention over several of the encoder's layers",
    encoder_heads=True,
    over_dual_context=Architecture(
        "mlnmt-dual-context-multi-layer",
        "combinations",
        "DualContextMultiLayer",
        beyond="attention over several of the encoder's layers, and the dual contextual module",
        encoder_heads=True,
    ),
)

SYSTEMS = (
    System(
        "m-00",
        MULTI_LAYER_ATTENTION,
        {"multi_layer_attention": "M-00"},
        "M-00",
        "each decoder layer attends to all encoder layers, weights shared, contexts concatenated",
    ),
    System(
        "m-01",
        MULTI_LAYER_ATTENTION,
        {"multi_layer_attention": "M-01"},
        "M-01",
        "each decoder layer attends to all encoder layers, weights shared, contexts summed",
    ),
    System(
        "m-10",
        MULTI_LAYER_ATTENTION,
        {"multi_layer_attention": "M-10"},
        "M-10",
        "each decoder layer attends to every encoder layer, contexts concatenated",
    ),
    System(
        "m-11",
        MULTI_LAYER_ATTENTION,
        {"multi_layer_attention": "M-11"},
        "M-11",
        "each decoder layer attends to every encoder layer, contexts summed",
    ),
)
