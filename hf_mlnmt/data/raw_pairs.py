"""Development and test sets as raw text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.text import TextSpec, read_text
from hf_mlnmt.errors import UserError
from hf_mlnmt.made_from import digest


@dataclass
class RawPairs:
    """A development or test set as raw text: sources to translate and references to compare with.

    language: of the references. target_language, source_language: told to a model of several languages; None: not told.
    """

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

    tell_target, tell_source: whether a model is told the languages of its pairs.

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
