"""Training speed of the attentive LSTM (rnn), with and without input feeding, beside plain loops of the same sizes.

The plain models are written as a tutorial would: nn.LSTM as encoder, at every decoder position nn.LSTM (JoeyNMT too)
or an nn.LSTMCell a layer, attention with its own products at every position, logits of the whole batch and
cross-entropy. JoeyNMT's own modules run too where they can be imported
(`pip install --no-deps joeynmt subword-nmt "importlib_metadata<8"`).

Same sizes, same batch, forward and backward; rounds are interleaved (A B C A B C ...) in one process, and ratios of
their medians are what counts. Measured are whole steps, and decoders alone: from encoder states to attentional states,
without the output projection and the loss, which are the same products in all models. `arithmetic` counts the
multiplications of a step, by part: where the vocabulary has a large share no recurrence makes a step much faster.

    python benchmarks/recurrent.py --output benchmarks/results/recurrent-training-cpu.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import parse
from torch import Tensor, nn

from hf_mlnmt import config_for
from hf_mlnmt.common.files import write_json
from hf_mlnmt.modeling import RNNForConditionalGeneration

LAYERS = 2


class PlainModel(nn.Module):
    """The same computation as `rnn`, as it is usually written: `cells` nn.LSTM or nn.LSTMCell, called at a position."""

    def __init__(self, vocabulary: int, width: int, cells: type[nn.Module]):
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width // 2, LAYERS, batch_first=True, bidirectional=True)
        if cells is nn.LSTM:
            self.cells: Any = nn.LSTM(2 * width, width, LAYERS, batch_first=True)
        else:
            self.cells = nn.ModuleList([nn.LSTMCell(2 * width if i == 0 else width, width) for i in range(LAYERS)])
        self.score, self.combine = nn.Linear(width, width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def encode(self, source: Tensor) -> tuple[Tensor, ...]:
        """States, and the last h and c of every layer, (layers, batch, width) each."""
        memory, ends = self.encoder(self.source(source))
        return memory, *(torch.cat([x[0::2], x[1::2]], dim=-1) for x in ends)

    def decode(self, encoded: tuple[Tensor, ...], labels: Tensor) -> Tensor:
        """Attentional states."""
        memory, hidden, cell = encoded
        states = list(zip(hidden, cell))
        fed, found = torch.zeros_like(hidden[0]), []
        for embedded in self.target(shifted(labels)).unbind(1):
            inputs = torch.cat([embedded, fed], dim=-1)
            if isinstance(self.cells, nn.LSTM):
                inputs, (hidden, cell) = self.cells(inputs.unsqueeze(1), (hidden, cell))
                inputs = inputs.squeeze(1)
            else:
                for index, layer in enumerate(self.cells):
                    states[index] = layer(inputs, states[index])
                    inputs = states[index][0]
            weights = torch.softmax(torch.bmm(memory, self.score(inputs).unsqueeze(2)), dim=1)
            context = (weights * memory).sum(1)
            fed = torch.tanh(self.combine(torch.cat([context, inputs], dim=-1)))
            found.append(fed)
        return torch.stack(found, 1)

    def forward(self, source: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy."""
        logits = self.output(self.decode(self.encode(source), labels))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class JoeyModel(PlainModel):
    """The same of JoeyNMT's encoder and decoder."""

    def __init__(self, vocabulary: int, width: int):
        from joeynmt.decoders import RecurrentDecoder
        from joeynmt.encoders import RecurrentEncoder

        nn.Module.__init__(self)
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        sizes = {"rnn_type": "lstm", "emb_size": width, "num_layers": LAYERS}
        self.encoder = RecurrentEncoder(hidden_size=width // 2, **sizes)
        self.decoder = RecurrentDecoder(
            hidden_size=width,
            encoder=self.encoder,
            attention="luong",
            vocab_size=vocabulary,
            init_hidden="last",
            **sizes,
        )
        self.output = nn.Identity()

    def encode(self, source: Tensor) -> tuple[Tensor, ...]:
        """States, and the last h of the last layer."""
        lengths = torch.full(source.shape[:1], source.shape[1])
        return self.encoder(self.source(source), lengths, torch.ones_like(source, dtype=torch.bool).unsqueeze(1))

    def decode(self, encoded: tuple[Tensor, ...], labels: Tensor) -> Tensor:
        """Logits: there is no call of JoeyNMT's that ends before them."""
        mask = torch.ones(labels.shape[0], 1, encoded[0].shape[1], dtype=torch.bool)
        return self.decoder(self.target(shifted(labels)), *encoded, mask, labels.shape[1])[0]


def shifted(labels: Tensor) -> Tensor:
    """What the decoder reads."""
    return torch.cat([torch.full_like(labels[:, :1], 3), labels[:, :-1]], dim=1)


def programs(arguments: argparse.Namespace, width: int) -> dict[str, dict[str, Callable[[], Tensor]]]:
    """Part ("step", "decoder") -> name -> what computes a scalar."""
    vocabulary = arguments.vocabulary
    shape = arguments.sentences, arguments.length
    source, labels = (torch.randint(4, vocabulary, shape) for _ in range(2))
    plain: dict[str, Any] = {
        "plain loop, nn.LSTM": PlainModel(vocabulary, width, nn.LSTM),
        "plain loop, nn.LSTMCell": PlainModel(vocabulary, width, nn.LSTMCell),
    }
    try:
        plain["JoeyNMT"] = JoeyModel(vocabulary, width)
    except ImportError as missing:
        print(f"JoeyNMT: not measured ({missing})")
    found: dict[str, dict[str, Any]] = {"step": {}, "decoder": {}}
    for name, model in plain.items():
        found["step"][name] = lambda model=model: model(source, labels)
        if name != "JoeyNMT":
            encoded = tuple(x.detach().requires_grad_() for x in model.encode(source))
            found["decoder"][name] = lambda model=model, encoded=encoded: model.decode(encoded, labels).sum()
    sizes: dict[str, Any] = {"d_model": width, "vocab_size": vocabulary, "dropout": 0.0, "tie_word_embeddings": False}
    for name, feeding in (("rnn", True), ("rnn without input feeding", False)):
        config = config_for("rnn", "small", **sizes, share_encoder_decoder_embeddings=False, input_feeding=feeding)
        ours = RNNForConditionalGeneration(config).train()
        out = ours.get_encoder()(source)
        read = {"encoder_hidden_states": out.last_hidden_state, "encoder_features": out.features}
        read = {key: value.detach().requires_grad_() for key, value in read.items()}
        found["step"][name] = lambda ours=ours: ours(input_ids=source, labels=labels, loss_only=True).loss
        found["decoder"][name] = lambda ours=ours, read=read: ours.get_decoder()(
            shifted(labels), use_cache=False, **read
        ).last_hidden_state.sum()
    return found


def measure(named: dict[str, Callable[[], Tensor]], rounds: int, bfloat16: bool) -> dict[str, list[float]]:
    """Seconds of forward and backward; a first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in named}
    for round_ in range(rounds + 1):
        for name, program in named.items():
            start = time.perf_counter()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
                loss = program()
            loss.backward()
            if round_:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def arithmetic(width: int, vocabulary: int) -> dict[str, float]:
    """Shares of a step's multiplications, by part, of as many source as target tokens, with input feeding."""
    encoder = LAYERS * 2 * 4 * (width // 2) * (width + width // 2)
    decoder = 4 * width * (3 * width + 2 * width * (LAYERS - 1))
    parts = {"encoder": encoder, "decoder": decoder, "attention": 3 * width**2, "vocabulary": width * vocabulary}
    return {name: round(number / sum(parts.values()), 3) for name, number in parts.items()}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 512], help="d_model: tiny, and the paper's")
    parser.add_argument("--vocabulary", type=int, default=10000)
    parser.add_argument("--sentences", type=int, default=48)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--bf16", action="store_true", help="under autocast to bfloat16, all models alike")
    parser.add_argument("--output", type=Path)
    quick = "--widths 8 --vocabulary 50 --sentences 2 --length 4 --rounds 1 --threads 1"
    arguments = parse(parser, quick)
    torch.set_num_threads(arguments.threads)
    found: dict[str, Any] = {
        "schema": "hf_mlnmt.benchmark/1",
        "what": "seconds of a training step, forward and backward; of its decoder alone, without the output projection",
        "settings": {key: value for key, value in vars(arguments).items() if key not in ("output", "quick")},
        "torch": torch.__version__,
        "widths": {},
    }
    for width in arguments.widths:
        torch.manual_seed(0)
        entry: dict[str, Any] = {"arithmetic": arithmetic(width, arguments.vocabulary)}
        for part, named in programs(arguments, width).items():
            seconds = measure(named, arguments.rounds, arguments.bf16)
            medians = {name: statistics.median(values) for name, values in seconds.items()}
            ratios = {name: round(medians["plain loop, nn.LSTM"] / value, 2) for name, value in medians.items()}
            entry[part] = {"seconds": seconds, "times the plain loop over nn.LSTM": ratios}
        found["widths"][width] = entry
        shown = {part: one.get("times the plain loop over nn.LSTM", one) for part, one in entry.items()}
        print(width, json.dumps(shown, indent=2), flush=True)
    if arguments.output:
        write_json(arguments.output, found)


if __name__ == "__main__":
    main()
