"""BPE-dropout: a word is cut in another way every time, as merges are left out by chance.

Reference: Provilkov, Emelianenko and Voita 2020, "BPE-Dropout: Simple and Effective Subword Regularization", ACL,
algorithm 1. The tokenizers library has it too, but draws from a generator that cannot be seeded; training here must
come out the same when it is resumed.
"""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator, Sequence

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hf_mlnmt.data.subwords import BYTES
from hf_mlnmt.errors import UserError

SPACE = "▁"  # begins a word


class BPEDropout:
    """Splits encoded sentences of a BPE tokenizer of ours into words, and cuts words at random.

    A word here is what the pre-tokenizer leaves: a run of letters and digits, or of other characters, with the mark of
    its beginning. Ids in, ids out, without the text. Special tokens, language codes and bytes stay as they are.

    Args:
        tokenizer: as `train_tokenizer` makes it, of kind bpe.
        rate: with what probability a merge is left out, each time it could be made; 0 gives the plain segmentation,
            1 single characters.

    Raises:
        UserError: another kind of tokenizer.
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
        """True for letters, marks and digits, False for other characters, None for the mark of a word alone."""
        return unicodedata.category(token.lstrip(SPACE)[0])[0] in "LMN" if token.strip(SPACE) else None

    def words(self, ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The words of an encoded sentence in order, each as the ids it has now; one fixed token is a word."""
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
        """One segmentation of a word of `words`, by chance."""
        if word[0] in self._fixed:
            return list(word)
        pieces = [self._characters[character] for index in word for character in self._tokens[index]]
        while True:
            best: tuple[int, int] | None = None
            for place in range(len(pieces) - 1):
                merge = self._merges.get((pieces[place], pieces[place + 1]))
                # Of the merges that are not left out the first learnt is made: draw only where it could win.
                if merge and (best is None or merge[0] < best[0]) and rng.random() >= self.rate:
                    best, joined = (merge[0], place), merge[1]
            if best is None:
                return pieces
            pieces[best[1] : best[1] + 2] = [joined]


def _bpe(tokenizer: PreTrainedTokenizerBase) -> dict:
    """The model part of tokenizer.json; a UserError unless it is a BPE as `train_tokenizer` makes it."""
    if type(tokenizer) is PreTrainedTokenizerFast:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        cuts = (content.get("pre_tokenizer") or {}).get("pretokenizers") or [{}]
        if content["model"].get("type") == "BPE" and cuts[0].get("type") == "Metaspace":
            return content["model"]
    raise UserError(
        "BPE-dropout needs a BPE tokenizer made by hf-mlnmt (merges to leave out, words that begin with ▁): train one "
        "(tokenizer.kind: bpe), or leave data.bpe_dropout out."
    )
