"""Extended cross-attention, the thesis on monolingual data's chapter 5."""

from hf_mlnmt.zoo.entry import Architecture, System

EXTENDED_CROSS_ATTENTION = Architecture(
    "mlnmt-extended-cross-attention",
    "extended_cross_attention",
    "ExtendedCrossAttention",
    beyond="attention over the source that reads embeddings or its own earlier decisions",
    encoder_heads=True,
)

SYSTEMS = (
    System(
        "source-embedding",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "source-embedding"},
        "Source embedding",
        "attention over the source also sees the source words' embeddings",
    ),
    System(
        "target-embedding",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "target-embedding"},
        "Target embedding",
        "attention over the source also sees the last target word's embedding",
    ),
    System(
        "both-embeddings",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "both-embeddings"},
        "Both embeddings",
        "attention over the source also sees embeddings of source and target words",
    ),
    System(
        "previous-context-head",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "previous-context-head"},
        "Previous context, by head",
        "source attention sees each head's last context vector",
    ),
    System(
        "previous-context-full",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "previous-context-full"},
        "Previous context, of all heads",
        "source attention sees its last context vector",
    ),
    System(
        "previous-weight",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "previous-weight"},
        "Previous weight",
        "attention over the source sees its last weights",
    ),
    System(
        "accumulated-weight",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "accumulated-weight"},
        "Accumulated weight",
        "attention over the source sees the sum of its weights so far",
    ),
    System(
        "fertility",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "fertility"},
        "Fertility",
        "attention over the source sees how much of each word it has used up",
    ),
    System(
        "key-value-head",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "key-value-head"},
        "Key-value context, by head",
        "source attention may choose each head's last context vector",
    ),
    System(
        "key-value-full",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "key-value-full"},
        "Key-value context, of all heads",
        "source attention may choose its last context vector",
    ),
)
