"""Training speed of the attentive LSTM (rnn): with and without input feeding, beside a plain loop over nn.LSTMCell.

The plain model is written as a tutorial would: nn.LSTM as encoder, nn.LSTMCell for every decoder layer, attention with
its own products at every position, logits of the whole batch and cross-entropy. Same sizes, same batch, forward and
backward; rounds are interleaved (A B C A B C ...) in one process, and ratios of their medians are what counts.

    python benchmarks/recurrent.py --output benchmarks/results/recurrent-training-cpu.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from hf_mlnmt import config_for
from hf_mlnmt.modeling import RNNForConditionalGeneration


class PlainModel(nn.Module):
    """The same computation as `rnn`, as it is usually written."""

    def __init__(self, vocabulary: int, width: int, layers: int = 2):
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width // 2, layers, batch_first=True, bidirectional=True)
        self.cells = nn.ModuleList([nn.LSTMCell(2 * width if i == 0 else width, width) for i in range(layers)])
        self.score, self.combine = nn.Linear(width, width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def forward(self, source: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy."""
        memory, (hidden, cell) = self.encoder(self.source(source))
        start = [torch.cat([x[0::2], x[1::2]], dim=-1).unbind(0) for x in (hidden, cell)]
        states = list(zip(*start))
        fed, found = torch.zeros_like(states[0][0]), []
        shifted = torch.cat([torch.full_like(labels[:, :1], 3), labels[:, :-1]], dim=1)
        for embedded in self.target(shifted).unbind(1):
            inputs = torch.cat([embedded, fed], dim=-1)
            for index, layer in enumerate(self.cells):
                states[index] = layer(inputs, states[index])
                inputs = states[index][0]
            weights = torch.softmax(torch.bmm(memory, self.score(inputs).unsqueeze(2)), dim=1)
            context = (weights * memory).sum(1)
            fed = torch.tanh(self.combine(torch.cat([context, inputs], dim=-1)))
            found.append(fed)
        return nn.functional.cross_entropy(self.output(torch.stack(found, 1)).flatten(0, 1), labels.flatten())


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--sentences", type=int, default=48)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    shape = arguments.sentences, arguments.length
    source, labels = (torch.randint(4, arguments.vocabulary, shape) for _ in range(2))
    sizes = {"d_model": arguments.width, "vocab_size": arguments.vocabulary, "dropout": 0.0}
    sizes |= {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    models: dict[str, nn.Module] = {"plain loop": PlainModel(arguments.vocabulary, arguments.width)}
    for name, feeding in (("rnn", True), ("rnn without input feeding", False)):
        config = config_for("rnn", "small", **sizes, input_feeding=feeding)
        models[name] = RNNForConditionalGeneration(config).train()
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for round_ in range(arguments.rounds + 1):  # the first is not counted
        for name, model in models.items():
            start = time.perf_counter()
            if isinstance(model, PlainModel):
                loss = model(source, labels)
            else:
                loss = model(input_ids=source, labels=labels, loss_only=True).loss
            loss.backward()
            model.zero_grad()
            if round_:
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    found = {
        "schema": "hf_mlnmt.benchmark/1",
        "what": "seconds of a training step, forward and backward",
        "settings": {key: value for key, value in vars(arguments).items() if key != "output"},
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "seconds": seconds,
        "times as fast as the plain loop": {name: medians["plain loop"] / value for name, value in medians.items()},
    }
    print(json.dumps(found["times as fast as the plain loop"], indent=2))
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
