"""Who takes part in `base_shape.py`: one set of random weights in every engine, and a turn of each.

The model is this package's baseline; Transformers' Marian, CTranslate2 and Marian's own engine get its weights in their
formats, so that their outputs can be compared. `end_by_themselves` makes it stop at lengths that were drawn before.
"""

from __future__ import annotations

import json
import operator
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import marian_files
import torch
from common import Measure
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, GenerationConfig

import hf_mlnmt
from hf_mlnmt.export import ctranslate2 as conversion
from hf_mlnmt.export import marian as export_marian
from hf_mlnmt.modeling.stack import SinusoidalPositions
from hf_mlnmt.search.cpu.int8 import in_int8

ENGINES = ("stock", "ours", "int8", "ctranslate2", "ctranslate2-int8", "marian")
SHAPES = ("base", "opus", "small", "tiny")
SENTENCES, LENGTH, LONGEST = 32, 20, 40  # of the benchmark; source tokens of each; target tokens where none is forced
PEER = Path(__file__).with_name("marian_peer.py")


class Numbers:
    """A tokenizer of numbers: CTranslate2 and Marian read pieces."""

    def __init__(self, size: int, end: int):
        self.pieces = [f"n{index}" for index in range(size)]
        self.pieces[end], self.pieces[2] = "</s>", "<unk>"
        self.bos_token, self.unk_token = self.pieces[0], self.pieces[2]

    def __len__(self) -> int:
        return len(self.pieces)

    def get_vocab(self) -> dict[str, int]:
        return {piece: index for index, piece in enumerate(self.pieces)}


def random_model(shape: str, vocabulary: int) -> Any:
    """The baseline of a shape; `opus` is the base shape as OPUS-MT has it: swish, and biases everywhere."""
    sizes: dict[str, Any] = {"vocab_size": vocabulary, "decoder_vocab_size": vocabulary}
    sizes |= {"position_embedding": "halves", "tie_word_embeddings": False}  # the end's output row is fitted alone
    if shape == "opus":
        sizes |= {"activation_function": "swish", "attention_bias": True, "output_bias": True}
    config = hf_mlnmt.config_for("transformer", "base" if shape == "opus" else shape, **sizes)
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    with torch.no_grad():
        model.model.encoder.embed_tokens.weight[config.decoder_start_token_id] = 0  # as Marian begins
        model.model.decoder.embed_tokens.weight[config.decoder_start_token_id] = 0
    return with_marians_positions(model, "positions.table")


@torch.no_grad()
def with_marians_positions(model: Any, table: str) -> Any:
    """The same model with the positions of Marian's engine, whose sines are of other frequencies than Transformers'."""
    for stack in (model.get_encoder(), model.get_decoder()):
        found = operator.attrgetter(table)(stack)
        found.copy_(SinusoidalPositions.compute(*found.shape, "tensor2tensor"))
    return model


@torch.no_grad()
def end_by_themselves(model: Any, ids: Tensor, seed: int = 1) -> None:
    """Fit the end token's row of the output so that sentence i ends at about a length drawn from N(13, 6), 3 to 35.

    The states before the end do not depend on it: least squares (ridge) on those of the greedy search.
    """
    end, projection = model.config.eos_token_id, model.lm_head.weight
    settings = generation(model, 1, LONGEST, forced=True)
    outputs = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    inputs = {"input_ids": ids, "decoder_input_ids": outputs[:, :-1]}
    states = model.model(**inputs).last_hidden_state.double()  # (sentences, time, d_model)
    logits = model.lm_head(states.float()).double()
    margin = 2 * logits.std()
    logits[..., end] = -torch.inf
    drawn = torch.randn(len(ids), generator=torch.Generator().manual_seed(seed))
    lengths = (13 + 6 * drawn).clamp(3, 35).round()
    ending = torch.arange(1, LONGEST + 1) >= lengths[:, None]  # (sentences, time)
    wanted = logits.amax(-1) + torch.where(ending, margin, -margin)
    if model.lm_head.bias is not None:
        wanted = wanted - model.lm_head.bias[end]
    few = (torch.arange(1, LONGEST + 1) <= lengths[:, None]).flatten()  # the steps that a search takes
    known, wanted = states.flatten(0, 1)[few], wanted.flatten()[few]
    squares = known.t() @ known
    squares.diagonal().add_(0.01 * squares.diagonal().mean())
    projection[end] = torch.linalg.solve(squares, known.t() @ wanted).float()


def generation(model: Any, beams: int, length: int, forced: bool) -> GenerationConfig:
    """Settings of generate(): exactly `length` tokens, or that many at most."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    ids = {name: getattr(model.config, name) for name in names}
    lengths = {"max_new_tokens": length} | ({"min_new_tokens": length} if forced else {})
    return GenerationConfig(num_beams=beams, **lengths, **({"early_stopping": True} if beams > 1 else {}), **ids)


@dataclass
class Contest:
    """One shape in every engine, for one kind of lengths; `turn` makes a turn of an engine."""

    shape: str
    forced: bool
    engines: list[str]
    folder: Path
    vocabulary: int
    marian: str | None = None
    outputs: dict[str, list] = field(default_factory=dict)
    cache: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        model = random_model(self.shape, self.vocabulary)
        self.ids = torch.randint(4, self.vocabulary, (SENTENCES, LENGTH))
        self.ids[:, -1] = model.config.eos_token_id  # which Marian puts there by itself
        if not self.forced:
            end_by_themselves(model, self.ids)
        self.length = LENGTH if self.forced else LONGEST
        self.end, self.tokenizer = model.config.eos_token_id, Numbers(self.vocabulary, model.config.eos_token_id)
        export_marian.write(model, self.folder / "stock")
        stock = AutoModelForSeq2SeqLM.from_pretrained(self.folder / "stock").eval()
        self.models = {"stock": with_marians_positions(stock, "embed_positions.weight"), "ours": model}
        if "int8" in self.engines:
            self.models["int8"] = in_int8(model)
        for dtype in ("float32", "int8"):
            (folder := self.folder / dtype).mkdir()
            both = SimpleNamespace(source=self.tokenizer, target=self.tokenizer)
            conversion.write(model, both, folder, dtype)
        if self.marian:
            marian_files.write(model, self.tokenizer.pieces, self.folder, self.forced)

    def turn(self, engine: str, batch: int, beams: int, threads: int) -> Callable[[], Measure]:
        """A function that translates the first `batch` sentences once, and measures it.

        In sentences; in target tokens where lengths are free, for rounding moves the ends.
        """
        ids = self.ids[:batch]
        if engine in self.models:
            run = self._by_generate(self.models[engine], ids, beams)
        elif engine == "marian":
            run = self._by_marian(ids, beams, threads)
        else:
            run = self._by_ctranslate2("int8" if engine.endswith("int8") else "float32", ids, beams, threads)

        def measured() -> Measure:
            seconds, rows = run()
            ends = (row.index(self.end) if self.end in row else len(row) for row in rows)
            self.outputs[engine] = found = [row[:end] for row, end in zip(rows, ends, strict=True)]
            return Measure(len(ids) if self.forced else sum(len(row) + 1 for row in found), seconds)

        return measured

    def _by_generate(self, model: Any, ids: Tensor, beams: int) -> Callable[[], tuple[float, list]]:
        settings = generation(model, beams, self.length, self.forced)

        @torch.inference_mode()
        def run() -> tuple[float, list]:
            start = time.perf_counter()
            found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
            return time.perf_counter() - start, found[:, 1:].tolist()

        return run

    def _by_ctranslate2(self, dtype: str, ids: Tensor, beams: int, threads: int) -> Callable[[], tuple[float, list]]:
        translator = self.kept((dtype, threads), lambda: self._translator(dtype, threads))
        pieces = [[self.tokenizer.pieces[index] for index in row] for row in ids.tolist()]
        lengths = {"min_decoding_length": self.length if self.forced else 1, "max_decoding_length": self.length}
        known = self.tokenizer.get_vocab()

        def run() -> tuple[float, list]:
            start = time.perf_counter()
            results = translator.translate_batch(pieces, beam_size=beams, **lengths)
            seconds = time.perf_counter() - start
            return seconds, [[known[token] for token in result.hypotheses[0]] for result in results]

        return run

    def _translator(self, dtype: str, threads: int) -> Any:
        import ctranslate2

        return ctranslate2.Translator(str(self.folder / dtype), compute_type=dtype, intra_threads=threads)

    def _by_marian(self, ids: Tensor, beams: int, threads: int) -> Callable[[], tuple[float, list]]:
        # A batch is a worker's: two workers need two.
        workers = min(threads, len(ids))
        options = {"beam-size": beams, "normalize": 1, "cpu-threads": workers, "mini-batch": -(-len(ids) // workers)}
        options |= {"maxi-batch": 1, "max-length-factor": self.length / LENGTH}
        peer = self.kept(("marian", beams, workers, len(ids)), lambda: MarianPeer(self.marian, self.folder, options))
        known, lines = self.tokenizer.get_vocab(), [" ".join(f"n{index}" for index in row[:-1]) for row in ids.tolist()]

        def run() -> tuple[float, list]:
            answer = peer.translate(lines)
            return answer["seconds"], [[known[token] for token in line.split()] for line in answer["lines"]]

        return run

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """An engine made once; Marian's processes are few at a time, for each holds the weights."""
        if key not in self.cache:
            for old in [old for old in self.cache if old[0] == key[0] == "marian"]:
                self.cache.pop(old).close()
            self.cache[key] = make()
        return self.cache[key]

    def close(self) -> None:
        """End the processes that were started."""
        for one in self.cache.values():
            if isinstance(one, MarianPeer):
                one.close()


class MarianPeer:
    """Marian's engine in a process of another Python, which has pymarian: a line of JSON each way."""

    def __init__(self, python: str | None, folder: Path, options: dict[str, Any]):
        where = {"models": folder / "model.npz", "vocabs": f"{folder / 'v.yml'} {folder / 'v.yml'}"}
        words = [f"--{name} {value}" for name, value in {**where, **options}.items()]
        command = [str(python), str(PEER), " ".join([*words, "--quiet"])]
        pipe, log = subprocess.PIPE, (folder / "marian.log").open("w")
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)

    def translate(self, lines: list[str]) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(lines) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("Marian's process has ended: is pymarian installed in that Python?")
        return json.loads(answer)

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()
