"""A training set whose words are segmented anew in every epoch by BPE-dropout, which leaves merges out at random.

Reference: Provilkov, Emelianenko and Voita 2020, "BPE-Dropout: Simple and Effective Subword Regularization", ACL,
algorithm 1. The tokenizers library has it too, but draws from a generator that cannot be seeded; training here must
come out the same when it is resumed.
"""

from __future__ import annotations

import json
import random
import unicodedata
from array import array
from collections.abc import Iterator, Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.encoded import Examples, Rows, interleaved, places
from hf_mlnmt.data.subwords import BYTES
from hf_mlnmt.data.training_set import GOLDEN, Corpora, TrainingSet, mixed

SPACE = "▁"  # the character that begins the first piece of each word
_AT_ONCE = 1000  # pairs that are read from the corpora at once


class BPEDropout:
    """Splits encoded sentences of a BPE tokenizer of ours into words, and cuts words into subwords at random.

    A word here is what the pre-tokenizer leaves: a run of letters and digits, or of other characters, with the mark of
    its beginning. Ids in, ids out, without the text. Special tokens, language codes and bytes stay as they are.

    rate: with what probability a merge is left out, each time it could be made: 1 gives single characters.

    Raises: UserError for another kind of tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, rate: float) -> None:
        self.rate = rate
        model = _bpe(tokenizer)
        vocabulary: dict[str, int] = model["vocab"]
        self._tokens = {index: token for token, index in tokenizer.get_vocab().items()}
        merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
        self._merges = {
            (vocabulary[left], vocabulary[right]): (rank, vocabulary[left + right])
            for rank, (left, right) in enumerate(merges)
        }
        self._fixed = {
            *tokenizer.get_added_vocab().values(),
            *(vocabulary[byte] for byte in BYTES if byte in vocabulary),
        }
        self._characters = {token: index for token, index in vocabulary.items() if len(token) == 1}
        self._kinds = {index: self._kind(token) for index, token in self._tokens.items()}

    @staticmethod
    def _kind(token: str) -> bool | None:
        """Returns True for letters, marks and digits, False for other characters, None for the mark of a word alone."""
        return unicodedata.category(token.lstrip(SPACE)[0])[0] in "LMN" if token.strip(SPACE) else None

    def words(self, ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yields the words of an encoded sentence, tuples of ids; a special token, code or byte is a word by itself."""
        word: list[int] = []
        kind: bool | None = None
        for index in ids:
            fixed, now = index in self._fixed, self._kinds[index]
            begins = self._tokens[index].startswith(SPACE) or (kind is not None and now is not kind)
            if word and (fixed or begins or word[-1] in self._fixed):
                yield tuple(word)
                word, kind = [], None
            word.append(index)
            kind = now
        if word:
            yield tuple(word)

    def cut(self, word: Sequence[int], rng: random.Random) -> list[int]:
        """Draws a segmentation of a word, one that `words` yields, by BPE-dropout; returns its ids."""
        if word[0] in self._fixed:
            return list(word)
        pieces = [self._characters[character] for index in word for character in self._tokens[index]]
        while True:
            best: tuple[int, int] | None = None
            for place in range(len(pieces) - 1):
                merge = self._merges.get((pieces[place], pieces[place + 1]))
                # Of the merges not left out, the one learnt first is made: draws only for merges learnt before `best`.
                if merge and (best is None or merge[0] < best[0]) and rng.random() >= self.rate:
                    best, joined = (merge[0], place), merge[1]
            if best is None:
                return pieces
            pieces[best[1] : best[1] + 2] = [joined]


def _bpe(tokenizer: PreTrainedTokenizerBase) -> dict:
    """Returns the model part of tokenizer.json. Raises UserError unless it is a BPE as `train_tokenizer` makes it."""
    if type(tokenizer) is PreTrainedTokenizerFast:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        cuts = (content.get("pre_tokenizer") or {}).get("pretokenizers") or [{}]
        if content["model"].get("type") == "BPE" and cuts[0].get("type") == "Metaspace":
            return content["model"]
    raise UserError("BPE-dropout needs a BPE tokenizer made by hf-mlnmt: train one, or leave data.bpe_dropout out.")


CUTS = 16  # segmentations drawn of every distinct word; each occurrence of the word gets one of them, by a hash
VARIANTS = 32  # segmentations of the whole corpus, which epochs use in turn


class Resegmented(TrainingSet):
    """A training set of the pairs of `corpora` as they are, then of `variants` other segmentations of all pairs.

    Item i + k * len(corpora), with k from 1 to `variants`, is item i in its k-th segmentation. `choose` (epoch ->
    indices) takes the items that `corpora` would show: while epoch < `epochs` in segmentation 1 + epoch % variants,
    later as they are. A pair whose segmentation is too long is shown as it is.
    Everything follows from the arguments: nothing is drawn while training. Held in memory: a number for every word of
    the text, lengths of every variant, and the segmentations of the distinct words.

    Args:
        source, target: how to cut either side; the same object for a joint vocabulary.
        epochs: how many epochs use it; all when None.
        variants: how many segmentations of the whole corpus are made, at most `epochs`.
    """

    def __init__(
        self,
        corpora: Corpora,
        source: BPEDropout,
        target: BPEDropout,
        epochs: int | None = None,
        seed: int = 1,
        max_length: int | None = None,
        variants: int = VARIANTS,
    ) -> None:
        self.corpora, self.epochs, self.max_length = corpora, epochs, max_length
        self.parts, self.rate = corpora.parts, source.rate
        self.variants = variants if epochs is None else max(1, min(variants, epochs))
        tables: dict[int, _Words] = {}
        self._sides = {}
        for number, (side, cutter) in enumerate((("input_ids", source), ("labels", target))):
            words = tables.setdefault(id(cutter), _Words(cutter, random.Random(seed)))
            self._sides[side] = _Side(corpora, side, words, seed + 1_000_003 * number)
        self.source_lengths, self.target_lengths = (
            np.concatenate([plain, *(side.lengths(variant) for variant in range(1, self.variants + 1))])
            for plain, side in zip((corpora.source_lengths, corpora.target_lengths), self._sides.values())
        )

    def __len__(self) -> int:
        return len(self.corpora) * (1 + self.variants)

    @property
    def distinct(self) -> int:
        """Returns the number of pairs of the corpora; a pair in all its segmentations counts once."""
        return len(self.corpora)

    def gather(self, indices: np.ndarray) -> Examples:
        variants, within = np.divmod(indices, len(self.corpora))
        present, parts = np.unique(variants).tolist(), []
        for variant in present:
            some = within[variants == variant]
            cut = {side: words.rows(some, variant) for side, words in self._sides.items() if variant}
            parts.append(Examples(cut) if variant else self.corpora.gather(some))
        return interleaved(parts, np.searchsorted(present, variants))

    def choose(self, epoch: int) -> np.ndarray:
        """Returns the indices of an epoch's items, int64: the pairs that `corpora` chooses, in the epoch's
        segmentation; as they are if too long in it, or after the first `epochs` epochs."""
        drawn = self.corpora.choose(epoch)
        chosen = np.arange(len(self.corpora)) if drawn is None else drawn[:]
        if self.epochs is not None and epoch >= self.epochs:
            return chosen
        cut = chosen + len(self.corpora) * (1 + epoch % self.variants)
        if self.max_length is None:
            return cut
        longest = np.maximum(self.source_lengths[cut], self.target_lengths[cut])
        return np.where(longest > self.max_length, chosen, cut)

    def describe(self) -> str:
        """Returns a text for a log: what `corpora` describes, the rate of BPE-dropout, and the epochs that use it."""
        first = "" if self.epochs is None else f" in the first {self.epochs} epoch(s)"
        return f"{self.corpora.describe()}, BPE-dropout {self.rate:g}{first}"


class _Words:
    """The distinct words of a vocabulary's texts, and `CUTS` segmentations of each."""

    def __init__(self, cutter: BPEDropout, rng: random.Random) -> None:
        self.cutter, self.rng = cutter, rng
        self.numbers: dict[tuple[int, ...], int] = {}
        self._pieces, self._starts = array("i"), array("q", [0])
        self.pieces, self.starts = np.zeros(0, np.int32), np.zeros(1, np.int64)

    def number(self, word: tuple[int, ...]) -> int:
        """Returns the index of a word among the distinct words; adds a new word and draws its segmentations."""
        if word not in self.numbers:
            self.numbers[word] = len(self.numbers)
            for _ in range(CUTS):
                self._pieces.extend(self.cutter.cut(word, self.rng))
                self._starts.append(len(self._pieces))
        return self.numbers[word]

    def finish(self) -> None:
        """Makes arrays after the last word was added: segmentation c of word w is then
        pieces[starts[CUTS * w + c] : starts[CUTS * w + c + 1]]."""
        self.pieces, self.starts = np.array(self._pieces, np.int32), np.array(self._starts, np.int64)


class _Side:
    """One side of the pairs as numbers of words, from which its variants are computed."""

    def __init__(self, corpora: Corpora, side: str, words: _Words, seed: int) -> None:
        numbers, bounds = array("i"), array("q", [0])
        for first in range(0, len(corpora), _AT_ONCE):
            indices = np.arange(first, min(first + _AT_ONCE, len(corpora)))
            rows = corpora.gather(indices).columns[side]
            for number in range(len(rows)):
                numbers.extend(words.number(word) for word in words.cutter.words(rows[number].tolist()))
                bounds.append(len(numbers))
        words.finish()
        self.words, self.seed = words, seed
        self.numbers, self.bounds = np.array(numbers, np.int64), np.array(bounds, np.int64)

    def _cuts(self, places: np.ndarray, variant: int) -> np.ndarray:
        """Returns which segmentations the words at these places of the text get, as indices of `starts`."""
        drawn = _hash(places.astype(np.uint64), self.seed, variant) % np.uint64(CUTS)
        return CUTS * self.numbers[places] + drawn.astype(np.int64)

    def rows(self, indices: np.ndarray, variant: int) -> Rows:
        """Returns the ids of the sentences `indices` in segmentation number `variant`, int32."""
        counts = self.bounds[indices + 1] - self.bounds[indices]
        cuts = self._cuts(places(self.bounds[indices], counts), variant)
        starts = self.words.starts[cuts]
        lengths = self.words.starts[cuts + 1] - starts
        pieces = self.words.pieces[places(starts, lengths)]
        return Rows(pieces, np.add.reduceat(lengths, np.cumsum(counts) - counts))

    def lengths(self, variant: int) -> np.ndarray:
        """Returns the number of subwords of each sentence in segmentation number `variant`: int32 (pairs,)."""
        cuts = self._cuts(np.arange(len(self.numbers)), variant)
        ends = np.concatenate([[0], np.cumsum(self.words.starts[cuts + 1] - self.words.starts[cuts])])
        return np.diff(ends[self.bounds]).astype(np.int32)


def _hash(places: np.ndarray, seed: int, variant: int) -> np.ndarray:
    """Returns 64 bits for every place that look random and follow from place, seed and variant."""
    return mixed(places + np.uint64(((seed - 1) * GOLDEN + variant * 0xD1B54A32D192ED03) % 2**64))
