"""Translate: adds a column of translations to a batch of columns, for `datasets` and Ray Data.

dataset.map(Translate("runs/demo/average", num_beams=5), batched=True)                    # datasets
dataset.map_batches(Translate, fn_constructor_args=["runs/demo/average"], concurrency=4)   # Ray Data
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.made_from import digest, sha256_of_files
from hf_mlnmt.common.model_folder import MODEL_FILES, fetch_small_files
from hf_mlnmt.generation.translating.options import DecodingOptions
from hf_mlnmt.generation.translating.pipeline import TranslationPipeline

COLUMN = "text"


class Translate:
    """A function that adds a column of translations to batches of columns: {name: list or numpy array}.

    The model is loaded at the first batch, once a process. A pickled Translate holds no model, only its name, the
    options and a digest of the model's files, by which `datasets` knows whether it did this before.

    Args:
        model: a folder or a Hub name.
        column: of the texts; None: "text", or the only column of texts.
        into: the new column, which may be `column` itself. A text for each text, or with num_return_sequences the list
            of its translations, best first. Empty texts stay empty, None stays None.
        device, dtype, engine, revision, trust_remote_code: as in TranslationPipeline.from_pretrained.
        options: the fields of DecodingOptions, others go to generate().

    Raises: UserError for options that cannot be, and later for a model or a batch that cannot be read.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        column: str | None = None,
        into: str = "translation",
        device: str | None = None,
        dtype: str = "auto",
        engine: str = "torch",
        revision: str | None = None,
        trust_remote_code: bool = False,
        **options: Any,
    ) -> None:
        self.model, self.column, self.into = str(model), column, into
        self.options = DecodingOptions().with_keywords(options)
        self.loading: dict[str, Any] = {"device": device, "dtype": dtype, "engine": engine}
        self.loading |= {"revision": revision} if revision else {}
        self.loading |= {"trust_remote_code": True} if trust_remote_code else {}

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the batch and its translations."""
        column = self._column(batch)
        if self.into in batch and self.into != column:
            raise UserError(f"into: the batch has a column {self.into!r} already. Give the translations another name.")
        texts = list(batch[column])
        for number, text in enumerate(texts):
            if not (text is None or isinstance(text, str)):
                raise UserError(
                    f"column {column!r}, row {number} of a batch: {text!r} is no text. Give texts, or None."
                )
        numbers = [number for number, text in enumerate(texts) if text is not None]
        pipeline = _loaded(self.model, self.content, **self.loading)
        results = pipeline([str(texts[number]) for number in numbers], self.options)
        translations: list[Any] = [None] * len(texts)
        for number, result in zip(numbers, results, strict=True):
            translations[number] = result if isinstance(result, str) else [each.text for each in result]
        return {**batch, self.into: translations}

    def _column(self, batch: Mapping[str, Any]) -> str:
        if self.column is not None and self.column not in batch:
            near = suggest(self.column, batch)
            raise UserError(f"column: the batch has no {self.column!r}{near}; it has {', '.join(batch)}.")
        if self.column is not None or COLUMN in batch:
            return self.column or COLUMN
        of_texts = [name for name in batch if all(text is None or isinstance(text, str) for text in batch[name])]
        if len(of_texts) != 1:
            raise UserError(f"column: say which one holds the texts; the batch has {', '.join(batch) or 'none'}.")
        return of_texts[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "content": self.content}

    @functools.cached_property
    def content(self) -> str:
        """Returns a digest of the model's files in a folder, or the commit of what a name on the Hub means."""
        folder = fetch_small_files(self.model, revision=self.loading.get("revision"))
        return digest(sha256_of_files(folder, MODEL_FILES)) if Path(self.model).is_dir() else folder.name


@functools.lru_cache(maxsize=4)
def _loaded(model: str, content: str, **loading: Any) -> TranslationPipeline:
    return TranslationPipeline.from_pretrained(model, **loading)
