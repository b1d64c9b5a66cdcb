"""Extended cross-attention, the thesis on monolingual data's chapter 5.

Dev BLEU and TER: tables 5.2, 5.4 and 5.5; test: 5.6, which does not say of which key-value member it is; parameters:
5.3, whose "previous context" is by head as a query and of all heads as key and value, by the numbers.
"""

from hf_mlnmt.zoo.entry import Architecture, Reported, System

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
        {
            "iwslt17-enit": Reported(dev_bleu=27.0, dev_ter=55.2),
            "wmt16-roen": Reported(dev_bleu=35.7, dev_ter=45.5),
            "wmt18-deen": Reported(dev_bleu=32.5, dev_ter=48.5),
            "wmt18-zhen": Reported(dev_bleu=22.1, dev_ter=62.6),
        },
    ),
    System(
        "target-embedding",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "target-embedding"},
        "Target embedding",
        "attention over the source also sees the last target word's embedding",
        {
            "iwslt17-enit": Reported(29.8, 53.6, ter=51.9, dev_bleu=28.0, dev_ter=53.8),
            "wmt16-roen": Reported(34.2, 55.5, ter=47.3, dev_bleu=35.9, dev_ter=45.2),
            "wmt18-deen": Reported(33.3, ter=48.3, dev_bleu=32.5, dev_ter=48.9),
            "wmt18-zhen": Reported(dev_bleu=22.3, dev_ter=62.3),
        },
    ),
    System(
        "both-embeddings",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "both-embeddings"},
        "Both embeddings",
        "attention over the source also sees embeddings of source and target words",
        {
            "iwslt17-enit": Reported(dev_bleu=26.0, dev_ter=55.9),
            "wmt16-roen": Reported(dev_bleu=35.6, dev_ter=45.6),
            "wmt18-deen": Reported(dev_bleu=32.5, dev_ter=49.1),
            "wmt18-zhen": Reported(dev_bleu=22.2, dev_ter=62.2),
        },
    ),
    System(
        "previous-context-head",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "previous-context-head"},
        "Previous context, by head",
        "source attention sees each head's last context vector",
        {
            "iwslt17-enit": Reported(parameters=52.3, dev_bleu=28.3, dev_ter=53.8),
            "wmt16-roen": Reported(parameters=54.1, dev_bleu=36.3, dev_ter=45.2),
        },
    ),
    System(
        "previous-context-full",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "previous-context-full"},
        "Previous context, of all heads",
        "source attention sees its last context vector",
        {
            "iwslt17-enit": Reported(dev_bleu=28.4, dev_ter=53.9),
            "wmt16-roen": Reported(dev_bleu=35.8, dev_ter=45.4),
        },
    ),
    System(
        "previous-weight",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "previous-weight"},
        "Previous weight",
        "attention over the source sees its last weights",
        {
            "iwslt17-enit": Reported(dev_bleu=28.3, dev_ter=53.9),
            "wmt16-roen": Reported(dev_bleu=36.0, dev_ter=45.3),
        },
    ),
    System(
        "accumulated-weight",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "accumulated-weight"},
        "Accumulated weight",
        "attention over the source sees the sum of its weights so far",
        {
            "iwslt17-enit": Reported(parameters=52.1, dev_bleu=28.1, dev_ter=53.9),
            "wmt16-roen": Reported(parameters=54.0, dev_bleu=36.0, dev_ter=45.1),
        },
    ),
    System(
        "fertility",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "fertility"},
        "Fertility",
        "attention over the source sees how much of each word it has used up",
        {
            "iwslt17-enit": Reported(30.0, ter=51.6, dev_bleu=28.2, dev_ter=53.8),
            "wmt16-roen": Reported(34.4, ter=47.1, dev_bleu=36.2, dev_ter=45.1),
        },
    ),
    System(
        "key-value-head",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "key-value-head"},
        "Key-value context, by head",
        "source attention may choose each head's last context vector",
        {
            "iwslt17-enit": Reported(dev_bleu=28.2, dev_ter=53.8),
            "wmt16-roen": Reported(dev_bleu=36.1, dev_ter=45.2),
        },
    ),
    System(
        "key-value-full",
        EXTENDED_CROSS_ATTENTION,
        {"cross_attention": "key-value-full"},
        "Key-value context, of all heads",
        "source attention may choose its last context vector",
        {
            "iwslt17-enit": Reported(parameters=55.2, dev_bleu=28.2, dev_ter=53.6),
            "wmt16-roen": Reported(parameters=57.1, dev_bleu=36.0, dev_ter=45.3),
        },
    ),
)
