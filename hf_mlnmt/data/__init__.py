"""Corpora, filters, tokenizers, text processing, mixtures, and encoded data.

spec = CorpusSpec(files={"source": "train.en.gz", "target": "train.de.gz"})
pairs = PairFilter(max_ratio=3, drop_duplicates=True)(read_pairs(spec, "data"), report := FilterReport())
tokenizer = train_tokenizer((text for pair in pairs for text in pair), "bpe", vocab_size=8000)
save_tokenizers("run/tokenizer", tokenizer)
tokenizers = load_tokenizers("run/tokenizer")                    # .source, .target, .processing
data = encode_corpus(spec, "data", tokenizers, "run/train", PairFilter(max_ratio=3), max_length=256)
data[0], data.source_lengths, data.target_lengths, data.report   # on disk, memory-mapped, made once
text = encode_corpus(TextSpec("news.de.gz", side="target"), "data", tokenizers, "run/news")   # of one language
Corpora([data])                                                  # what a task is trained on: a TrainingSet
counts = epoch_counts([29_000, 5_000], weights=[1, 2])           # mixtures; or temperature=5
draw(5_000, counts[1], seed=1, epoch=3)                          # which pairs of the second corpus the epoch shows
"""

# ruff: noqa: F401, F403

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_mlnmt.data.corpus import CorpusSpec, TextSpec, read_pairs, read_text
    from hf_mlnmt.data.encoded import *
    from hf_mlnmt.data.encoding import encode_corpus, filtered
    from hf_mlnmt.data.filters import *
    from hf_mlnmt.data.lines import *
    from hf_mlnmt.data.processing import *
    from hf_mlnmt.data.subwords import *
    from hf_mlnmt.data.tokenizer import *
    from hf_mlnmt.data.training_set import *

# Each name's module is imported when the name is first used: reading lines must not wait a second for Transformers.
_NAMES = {
    "corpus": "CorpusSpec TextSpec read_pairs read_text",
    "encoded": "Encoded",
    "encoding": "encode_corpus filtered",
    "filters": "FilterReport PairFilter",
    "lines": "read_lines",
    "processing": "TextProcessing",
    "subwords": "train_tokenizer",
    "tokenizer": "Tokenizers encode language_code languages_of load_tokenizers save_tokenizers statistics",
    "training_set": "Corpora TrainingSet draw epoch_counts",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
