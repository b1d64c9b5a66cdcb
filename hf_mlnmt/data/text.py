"""Text of one language as a stream of sentences: plain or packed text, one column of a table or a data set.

Also here: sets of raw text that are translated and scored, what a tokenizer puts around a text (</s> behind it, or <s>
before it), and which words two texts share: evidence for a warning that they are of one language, not a classifier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from tokenizers import processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import Section, key
from hf_mlnmt.common.languages import check_language, language_in
from hf_mlnmt.common.made_from import digest
from hf_mlnmt.common.model_folder import TARGET_TOKENIZER
from hf_mlnmt.data.corpus import FORMATS, WEIGHT, CorpusSpec, Quoting, check_keys, read_pairs
from hf_mlnmt.data.filters import FilterReport
from hf_mlnmt.data.formats import format_of
from hf_mlnmt.data.processing import load_processing
from hf_mlnmt.data.tables import side_by_side
from hf_mlnmt.data.tokenizer import Tokenizers, encode, save_tokenizers
from hf_mlnmt.data.words import terms

TextSide = Literal["source", "target"]


@dataclass
class TextSpec(Section):
    """The place of text of one language; one of `path` and `dataset`. Paths are relative to the data folder."""

    path: str | None = key(
        None,
        "One sentence a line; or .tsv, .csv, .jsonl, .json or .parquet with column; text may be packed as in a corpus.",
    )
    dataset: str | None = key(None, "A name on the Hub, or a folder, with column.")
    config: str | None = key(None, "The configuration of the data set.")
    split: str = key("train", "The split of the data set.")
    streaming: bool = key(False, "Read the data set without downloading it ahead.")
    column: str | int | None = key(
        None, "The field that holds the text; of tsv a name of its header line or a number from 1."
    )
    language: str | None = key(None, "The code of its language.")
    quoting: Quoting | None = key(None, "As of a corpus of pairs.")
    side: TextSide | None = key(
        None, "Whose vocabulary and text processing it gets; unless told, the side whose language it is."
    )
    limit: int | None = key(None, "Only the first so many sentences, at least 1.")
    weight: Annotated[float, WEIGHT] = key(1.0, "How often an epoch shows each sentence.")
    bad_lines: Literal["error", "drop"] = key(
        "error", "At invalid UTF-8, control characters and overlong lines: stop, or drop the sentence and count it."
    )

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.dataset):
            raise UserError("text: give one of path and dataset.")
        check_keys(self, f"text: {self}")
        if self.is_table != (self.column is not None):
            has = "has columns: say with column which one is the text." if self.is_table else "has no columns."
            raise UserError(f"text: {self} {has}")
        column = f"column.{self.column}"
        name = column if language_in(column) or not self.path else self.path
        check_language(name, self.language, "it is read as", "Mend language, or give text of that one.")

    @property
    def is_table(self) -> bool:
        """Returns whether the text is one column of several, and not a file of lines."""
        return self.dataset is not None or format_of(Path(self.path or "")) in FORMATS

    def __str__(self) -> str:
        return self.path or " ".join(filter(None, [self.dataset, self.config, self.split]))

    def reading(self) -> tuple[Any, ...]:
        """Returns all that decides how the text is read, but for the files themselves."""
        usual = (self.dataset, self.config, self.split, self.column, self.language, self.side, self.bad_lines)
        return usual + tuple(value for value in (self.limit, self.quoting) if value is not None)

    def local_files(self, root: str | Path = ".") -> list[Path]:
        """Returns the files that are read; none for a data set."""
        return [Path(root) / self.path] if self.path else []


def read_text(
    spec: TextSpec, root: str | Path = ".", report: FilterReport | None = None, skip: int = 0
) -> Iterator[str]:
    """Yield sentences in order, empty ones included; `report`, `skip` and errors as of `read_pairs`."""
    report = report if report is not None else FilterReport()
    if spec.limit is not None:
        yield from islice(read_text(replace(spec, limit=None), root, report), spec.limit)
        return
    if spec.is_table:
        names = ("path", "dataset", "config", "split", "streaming", "quoting", "bad_lines")
        asked: dict[str, Any] = {name: getattr(spec, name) for name in names}
        both = CorpusSpec(columns={"source": spec.column, "target": spec.column}, **asked)
        yield from (text for text, _ in read_pairs(both, root, report, skip))
        return
    yield from (text for (text,) in side_by_side(spec.local_files(root), spec.bad_lines == "drop", report))


@dataclass
class RawPairs:
    """A development or test set as raw text; `language` is the references', the others are told to a model, or None."""

    name: str
    sources: list[str]
    references: list[str]
    language: str
    target_language: str | None = None
    source_language: str | None = None

    @property
    def asked(self) -> dict[str, str | None]:
        """Returns the languages that a model is told, by the names of the pipeline's options."""
        names = {"target_language": self.target_language}
        return {**names, "source_language": self.source_language} if self.source_language else names


def read_raw(
    name: str, spec: CorpusSpec | TextSpec, root: Path, tell_target: bool = False, tell_source: bool = False
) -> RawPairs:
    """Reads a set as it is; of text of one language the sentences are the sources, and there are no references.

    Raises: UserError for an empty set.
    """
    if isinstance(spec, TextSpec):
        texts = list(read_text(spec, root))
        if not texts:
            raise UserError(f"{spec}: no sentences; data.{name} needs some.")
        return RawPairs(name, texts, [], str(spec.language))
    pairs = list(read_pairs(spec, root))
    if not pairs:
        raise UserError(f"{spec}: no sentence pairs; data.{name} needs some.")
    assert spec.languages is not None
    source, target = spec.languages["source"], spec.languages["target"]
    sources, references = map(list, zip(*pairs))
    return RawPairs(name, sources, references, target, target if tell_target else None, source if tell_source else None)


def digest_of_texts(sets: Sequence[RawPairs]) -> str:
    """Returns a digest of the names and the text of all sets: equal where nothing changed."""
    return digest([[each.name, each.sources, each.references, each.target_language] for each in sets])


def begin_texts(folder: str | Path) -> None:
    """Let the tokenizer of a language model's folder put <s> before a text, and nothing behind it: so `generate` and
    a text-generation pipeline go on where a text ends. Of two vocabularies the target's is the model's.

    A tokenizer of another kind than ours stays as it is.
    """
    folder = Path(folder)
    own = folder / TARGET_TOKENIZER if (folder / TARGET_TOKENIZER).is_dir() else folder
    tokenizer = AutoTokenizer.from_pretrained(own)
    if _is_ours(tokenizer):
        _surround(tokenizer, f"{tokenizer.bos_token} $A", tokenizer.bos_token, tokenizer.bos_token_id)
        save_tokenizers(folder, tokenizer, None, load_processing(folder))


def read_masks(folder: str | Path) -> None:
    """Let the tokenizer of an encoder's folder read <mask> in a text as the token, as a fill-mask pipeline asks it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.split_special_tokens = False
    tokenizer.save_pretrained(folder)


def ending(tokenizers: Tokenizers) -> Tokenizers:
    """Puts </s> behind every text again where `begin_texts` took it away; returns the tokenizers."""
    for tokenizer in tokenizers.distinct():
        if _is_ours(tokenizer) and begins_texts(tokenizer):
            _surround(tokenizer, f"$A {tokenizer.eos_token}", tokenizer.eos_token, tokenizer.eos_token_id)
    return tokenizers


def with_end(tokenizers: Tokenizers, name: str, tell: Callable[[str], None], told: bool = False) -> Tokenizers:
    """Puts </s> behind every text where nothing is put around one, and tells so; returns the tokenizers.

    told: the training tells them the languages, as their own model is told.

    Raises: UserError for one that has no </s>, or puts other tokens around a text and no </s>.
    """
    for tokenizer in tokenizers.distinct():
        if told and hasattr(tokenizer, "src_lang"):
            continue  # it puts codes and </s> around a text by itself
        check_untold(tokenizer, name)
        around = [*encode(tokenizer, [""])[0], *encode(tokenizer, [""], target=True)[0]]
        if tokenizer.eos_token_id is None:
            raise UserError(f"{name}: the tokenizer has no eos_token: name one in its tokenizer_config.json.")
        if tokenizer.eos_token_id in around:
            continue
        if around or not _is_ours(tokenizer):
            raise UserError(
                f"{name}: the tokenizer puts no {tokenizer.eos_token} (eos_token) behind a text, so that a model would "
                "never learn to stop. Mend post_processor in tokenizer.json ($A, then that token)."
            )
        _surround(tokenizer, f"$A {tokenizer.eos_token}", tokenizer.eos_token, tokenizer.eos_token_id)
        tell(f"{name}: the tokenizer puts no {tokenizer.eos_token} behind a text: it is added")
    return tokenizers


def check_untold(tokenizer: Any, name: str) -> None:
    """Raises UserError for a tokenizer of a model that is told languages by codes, for another model than that."""
    if hasattr(tokenizer, "src_lang"):
        raise UserError(
            f"{name}: its tokenizer puts codes of languages around a text, as its own model alone reads them (M2M100, "
            "NLLB, mBART). Begin with that model, not imported (init_from, without model.system), or train a tokenizer."
        )


def begins_texts(tokenizer: Any) -> bool:
    """Returns whether it puts <s> before a text and nothing behind it."""
    return bool(tokenizer("")["input_ids"] == [tokenizer.bos_token_id])


def _is_ours(tokenizer: Any) -> bool:
    return type(tokenizer) is PreTrainedTokenizerFast and None not in (tokenizer.bos_token_id, tokenizer.eos_token_id)


def _surround(tokenizer: Any, template: str, token: str, number: int) -> None:
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=template, pair=f"{template} {template.replace('$A', '$B')}", special_tokens=[(token, number)]
    )


@dataclass(frozen=True)
class Overlap:
    """`share` of the running words of one text that the other one has too, and the most frequent of these words."""

    share: float
    words: tuple[str, ...]

    def __str__(self) -> str:
        examples = ", ".join(f"'{word}'" for word in self.words)
        return f"{self.share:.0%} of its words" + (f" ({examples})" if examples else "")


def word_overlap(texts: Iterable[str], others: Iterable[str], examples: int = 5) -> Overlap:
    """Returns the share of the words in texts that also occur in others (lower case), and the commonest of them. A word
    is a run of letters; where a script has no spaces, two letters."""
    words = Counter(word for text in texts for word in terms(text.lower(), digits=False))
    known = {word for text in others for word in terms(text.lower(), digits=False)}
    shared = {word: count for word, count in words.items() if word in known}
    most = sorted(shared, key=lambda word: (-shared[word], word))[:examples]
    return Overlap(sum(shared.values()) / max(1, words.total()), tuple(most))
