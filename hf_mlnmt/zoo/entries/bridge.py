"""The attention bridge (the paper on inner attention, section 2), and the recurrent model that it is compared with."""

from hf_mlnmt.zoo.entry import Architecture, System

RNN = Architecture("mlnmt-rnn", "rnn", "RNN", beyond="a BiLSTM encoder and an LSTM decoder with Luong's attention")
BRIDGE = Architecture(
    "mlnmt-bridge", "bridge", "Bridge", beyond="an encoder or decoder for each language, and an attention bridge"
)

_FOUR = ["cs", "de", "en", "fr"]
# The penalty costs nearly half of BLEU and a quarter of retrieval at this size (docs/multilingual.md, chosen on val).
SETUP_FIELDS = {
    "multi30k-many": {
        "source_languages": _FOUR,
        "target_languages": _FOUR,
        "bridge_width": 256,
        "penalty_weight": 0.0,
    }
}

SYSTEMS = (
    System(
        "rnn",
        RNN,
        {"encoder_layers": 2, "decoder_layers": 2},
        "The attentive LSTM",
        "a BiLSTM encoder and an LSTM decoder with Luong's attention",
    ),
    System(
        "bridge-rnn",
        BRIDGE,
        {"encoder_layers": 2, "decoder_layers": 2, "coders": "rnn"},
        "The attention bridge",
        "LSTMs of many languages around one matrix of fixed size",
        setup_fields=SETUP_FIELDS,
    ),
    System(
        "bridge-transformer",
        BRIDGE,
        {"coders": "transformer"},
        "The attention bridge between Transformers",
        "Transformers of many languages around one matrix",
        setup_fields=SETUP_FIELDS,
    ),
)
