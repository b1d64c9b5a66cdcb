"""Perplexity of a text under language models, or under translation models given the sources.

Reference: thesis on monolingual data, section 4.1.

exp(NLL / N), NLL = - sum log p(e_i | e_0^{i-1}) over all tokens of all sentences, with </s> of each. N is the number of
these tokens (per subword), or of the words of the raw text, separated by white space, plus one for each sentence's end
(per word). Bits per byte, NLL / (ln 2 bytes), with the bytes of the raw text in UTF-8 plus one for each sentence's end,
is comparable between models of different vocabularies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hf_mlnmt.common.errors import UserError, naming
from hf_mlnmt.common.languages import check_files
from hf_mlnmt.common.model_folder import auto_class_of, fetch_small_files
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.data.directions import has_modules, pair_of
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.data.words import is_visible
from hf_mlnmt.generation.translating.batches import batches_by_tokens, negative_logs
from hf_mlnmt.generation.translating.loading import load_scored
from hf_mlnmt.generation.translating.options import DecodingOptions
from hf_mlnmt.zoo.systems import positions_of


@dataclass(frozen=True)
class Perplexity:
    """Numbers to compute perplexity from. nll: in natural logarithms; subwords, words, bytes: with sentence ends."""

    nll: float
    sentences: int
    subwords: int
    words: int
    bytes: int

    @property
    def per_subword(self) -> float:
        return _exp(self.nll / self.subwords)

    @property
    def per_word(self) -> float:
        return _exp(self.nll / self.words)

    @property
    def bits_per_byte(self) -> float:
        return self.nll / math.log(2) / self.bytes

    def to_dict(self) -> dict[str, float]:
        """Returns perplexities per subword and per word and bits per byte, rounded, and the fields above, for JSON."""
        rates = ("per_subword", "per_word", "bits_per_byte")
        return {**{name: round(getattr(self, name), 6) for name in rates}, **asdict(self), "nll": round(self.nll, 4)}


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def is_language_model(name: str) -> bool:
    """Returns whether `name` is a causal language model; False also where there is no model of that name."""
    try:
        return auto_class_of(fetch_small_files(name)) == "AutoModelForCausalLM"
    except (UserError, OSError):
        return False


def file_perplexities(
    model: str,
    files: Sequence[str | Path],
    sources: Sequence[str | Path],
    decoding: DecodingOptions,
    device: str | None,
    progress: Callable[[str, int], Callable[[int], Any]],
) -> dict[str, Perplexity]:
    """Computes {file: Perplexity} under a model, given by folder or Hub name.

    Args:
        sources: for a translation model, the file of sources for each of `files`.
        decoding: only batch_tokens and the languages are used.
        progress: called with a file and its number of sentences; returns the argument `progress` of `perplexity`.

    Raises: UserError as `perplexity` does, naming the file; for fewer or more sources than files.
    """
    if sources and len(sources) != len(files):
        raise UserError(f"{len(sources)} --source for {len(files)} files: give one for each, in their order.")
    check_files(model, sources, files, decoding.told)
    texts = {str(file): list(read_lines(file)) for file in files}
    read: list[Any] = [list(read_lines(file)) for file in sources] or [None] * len(files)
    network, tokenizers = load_scored(model, device)
    how = (decoding.batch_tokens, decoding.target_language, decoding.source_language)
    by_file = {}
    for (name, lines), given in zip(texts.items(), read):
        with naming(name):
            by_file[name] = perplexity(network, tokenizers, lines, given, *how, progress=progress(name, len(lines)))
    return by_file


def table_of(by_file: Mapping[str, Perplexity]) -> Table:
    """Makes a table of perplexities and counts with a row for each file."""
    numbers = ["per subword", "per word", "bits per byte", "sentences", "subwords", "words", "bytes"]
    rows = [
        [name, f"{found.per_subword:.3f}", f"{found.per_word:.3f}", f"{found.bits_per_byte:.4f}"]
        + [f"{count:,}" for count in (found.sentences, found.subwords, found.words, found.bytes)]
        for name, found in by_file.items()
    ]
    return Table(["text", *map(Number, numbers)], rows, "perplexity", "Subwords, words and bytes with sentence ends.")


def perplexity(
    model: Any,
    tokenizers: Tokenizers,
    texts: Sequence[str],
    sources: Sequence[str] | None = None,
    batch_tokens: int = 4096,
    language: str | None = None,
    source_language: str | None = None,
    progress: Callable[[int], Any] | None = None,
) -> Perplexity:
    """Computes the perplexity of raw sentences under a model, on the model's device.

    Args:
        model: a causal language model, or with `sources` a translation model; in evaluation mode.
        tokenizers: of the model; they add </s> to a text if the model was trained so (`ending` in data/tokenizer.py).
        batch_tokens: tokens of a batch, padding included.
        language, source_language: codes of texts and sources, for a translation model that needs them.
        progress: called with the number of sentences scored since the last call.

    Raises: UserError where sources are missing, not read by the model, or of another number; for texts that are all
        blank or too long for the model; for a model whose scores are no probabilities.
    """
    config = model.config
    if getattr(model, "logits_are_scores", False):
        raise UserError(f"{type(model).__name__}: its scores are not normalised, so they have no perplexity.")
    if config.is_encoder_decoder and sources is None:
        raise UserError("this is a translation model: give the sources too (--source FILE).")
    if sources is not None and not config.is_encoder_decoder:
        raise UserError("this is a language model, which reads no sources: leave them out.")
    if not any(map(is_visible, texts)):
        raise UserError(f"all {len(texts)} lines are blank: there is nothing to score. Check the text.")
    if sources is not None and len(sources) != len(texts):
        raise UserError(f"{len(sources)} sources for {len(texts)} sentences: the files do not belong together.")
    if has_modules(model):  # the languages choose modules; no code is put before the source
        model, language = pair_of(model, source_language, language), None
        tokenizers = tokenizers.between(model.config.source_languages[0], model.config.target_languages[0])
    targets = tokenizers.encode_target(texts)
    read = None if sources is None else tokenizers.encode_source(sources, language)
    limit = positions_of(config)
    for number, ids in enumerate([*targets, *(read or ())]):
        if limit and len(ids) > limit:
            where = f"sentence {number % len(targets) + 1} has {len(ids)} subwords"
            raise UserError(f"{where}, and the model reads {limit} (max_position_embeddings): split it.")
    lengths = [max(len(ids), len(read[i]) if read else 0) for i, ids in enumerate(targets)]
    total = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        for indices in batches_by_tokens(lengths, batch_tokens):
            of_sources = None if read is None else [read[i].tolist() for i in indices]
            total += negative_logs(model, [targets[i].tolist() for i in indices], of_sources).sum().cpu()
            if progress:
                progress(len(indices))
    if total.isnan():
        raise UserError(
            "the model's probabilities are not numbers (NaN): its weights are damaged, or overflow in dtype."
        )
    ends = len(texts)
    words = sum(len(text.split()) for text in texts) + ends
    size = sum(len(text.encode()) for text in texts) + ends
    return Perplexity(float(total), ends, sum(map(len, targets)), words, size)
