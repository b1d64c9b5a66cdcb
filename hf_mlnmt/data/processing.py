"""Text before the tokenizer and after decoding: Moses tokens, normal punctuation, lower case; recorded as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import write_json
from hf_mlnmt.common.keys import Section, build, key
from hf_mlnmt.common.languages import lower
from hf_mlnmt.common.model_folder import TEXT_PROCESSING, read_part
from hf_mlnmt.data.words import without_invisible


@dataclass(frozen=True)
class TextProcessing(Section):
    """The processing of one language's text before the tokenizer, undone after decoding.

    `apply` normalises punctuation (Moses), tokenises (Moses, without XML escapes), lower-cases, in this order; `undo`
    detokenises. Normalisation and lower-casing lose information that `undo` cannot bring back.
    """

    language: str = key("en", "The code of the language; in a recipe unless told the side's.")
    moses: bool = key(False, "Split into tokens as Moses does; refused where its rules do not fit the language.")
    normalize: bool = key(False, "Normalise punctuation as Moses does.")
    lowercase: bool = key(False, "Write everything in small letters.")

    @property
    def identity(self) -> bool:
        """Returns whether text is left as it is."""
        return not (self.moses or self.normalize or self.lowercase)

    def apply(self, text: str) -> str:
        """Returns the text that the tokenizer reads."""
        text = text if self.identity else without_invisible(text)
        if self.normalize:
            text = self._normalizer.normalize(text)
        if self.moses:
            # Escapes (&apos; for ') serve phrase-table files; for subwords they are noise.
            text = self._tokenizer.tokenize(text, return_str=True, escape=False)
        return lower(text, self.language) if self.lowercase else text

    def undo(self, text: str) -> str:
        """Returns raw text of what the tokenizer decoded."""
        return self._detokenizer.detokenize(text.split(), unescape=False) if self.moses else text

    # sacremoses compiles many expressions: once a process, and not for text that is left alone.
    @cached_property
    def _normalizer(self) -> Any:
        return _sacremoses().MosesPunctNormalizer(lang=self.language)

    @cached_property
    def _tokenizer(self) -> Any:
        return _sacremoses().MosesTokenizer(lang=self.language)

    @cached_property
    def _detokenizer(self) -> Any:
        return _sacremoses().MosesDetokenizer(lang=self.language)


def save_processing(folder: str | Path, processing: Mapping[str, TextProcessing] | None) -> None:
    """Write text_processing.json into a model folder, or remove an old one when there is nothing to record."""
    path = Path(folder) / TEXT_PROCESSING
    if all(side.identity for side in (processing or {}).values()):
        path.unlink(missing_ok=True)
    else:
        write_json(path, {side: asdict(value) for side, value in (processing or {}).items()})


def load_processing(folder: str | Path) -> dict[str, TextProcessing]:
    """Read text_processing.json into {"source": ..., "target": ...}; a side that it does not name is left alone.

    Raises: UserError for a broken file, and for a key or a value that is none.
    """
    path = Path(folder) / TEXT_PROCESSING
    sides = read_part(Path(folder), TEXT_PROCESSING)
    for side in sides:
        if side not in ("source", "target"):
            raise UserError(f"{path}: unknown key '{side}'; expected 'source' and 'target'.")
    return {side: build(TextProcessing, sides.get(side, {}), str(path), (side,)) for side in ("source", "target")}


def moses_languages() -> set[str]:
    """Returns codes of the languages that Moses has rules of their own for (a list of abbreviations)."""
    from sacremoses.corpus import NonbreakingPrefixes

    return set(NonbreakingPrefixes().available_langs.values())


def _sacremoses() -> Any:
    import sacremoses

    return sacremoses
