"""The recurrent baseline of the attention bridge (the paper on inner attention, section 2.1)."""

from hf_mlnmt.zoo.entry import Architecture, System

RNN = Architecture("mlnmt-rnn", "rnn", "RNN", beyond="a BiLSTM encoder and an LSTM decoder with Luong's attention")

SYSTEMS = (
    System(
        "rnn",
        RNN,
        {"encoder_layers": 2, "decoder_layers": 2},
        "The attentive LSTM",
        "a BiLSTM encoder and an LSTM decoder with Luong's attention",
    ),
)
