"""Multi-layer multi-head attention. BLEU, parameters, steps/s: thesis on joint attention, tables 3.2 and 3.3."""

from hf_mlnmt.zoo.entry import Architecture, Reported, System

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
        {
            "wmt14-ende": Reported(28.80, 92.7, 2.66),
            "iwslt-envi": Reported(30.88),
            "iwslt-esen": Reported(40.99),
        },
    ),
    System(
        "m-01",
        MULTI_LAYER_ATTENTION,
        {"multi_layer_attention": "M-01"},
        "M-01",
        "each decoder layer attends to all encoder layers, weights shared, contexts summed",
        {"wmt14-ende": Reported(28.54, 84.9, 2.74), "iwslt-envi": Reported(31.07)},
    ),
    System(
        "m-10",
        MULTI_LAYER_ATTENTION,
        {"multi_layer_attention": "M-10"},
        "M-10",
        "each decoder layer attends to every encoder layer, contexts concatenated",
        {"wmt14-ende": Reported(29.08, 92.7, 2.59), "iwslt-envi": Reported(30.71)},
    ),
    System(
        "m-11",
        MULTI_LAYER_ATTENTION,
        {"multi_layer_attention": "M-11"},
        "M-11",
        "each decoder layer attends to every encoder layer, contexts summed",
        {"wmt14-ende": Reported(28.51, 84.9, 2.70), "iwslt-envi": Reported(30.78)},
    ),
)
