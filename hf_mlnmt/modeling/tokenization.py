"""A tokenizer of two vocabularies, or with text processing, as Transformers' tools take tokenizers: in one object.

Source texts are cut with the source's vocabulary, `text_target` with the target's; what is decoded is the target's
unless `use_source_tokenizer` is given, as with Marian's. Saved, its folder has everything that hf_mlnmt reads. Text is
taken as it is: processing (Moses) is kept beside the vocabularies, and hf_mlnmt applies it.
"""

import json
import os
from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizerFast
from transformers.utils import cached_file

FOLDER = "target_tokenizer"
PROCESSING = "text_processing.json"


class TranslationTokenizer(PreTrainedTokenizerFast):
    """The source's tokenizer; `target_tokenizer` (None: this one) and `text_processing` (a side: its settings)."""

    target_tokenizer: Any = None
    text_processing: dict[str, Any] | None = None

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name: Any, *inputs: Any, **options: Any
    ) -> "TranslationTokenizer":
        """Loads the tokenizer from a folder or by a Hub name."""
        tokenizer = super().from_pretrained(name, *inputs, **options)
        of_the_hub = ("revision", "token", "cache_dir", "local_files_only", "subfolder")
        where = {key: options[key] for key in of_the_hub if options.get(key) is not None}
        missing = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
        if cached_file(name, f"{FOLDER}/tokenizer.json", **where, **missing) is not None:
            where_target = {**where, "subfolder": os.path.join(where.get("subfolder", ""), FOLDER)}
            tokenizer.target_tokenizer = PreTrainedTokenizerFast.from_pretrained(name, **where_target)
        if (file := cached_file(name, PROCESSING, **where, **missing)) is not None:
            with open(file, encoding="utf-8") as stream:
                tokenizer.text_processing = json.load(stream)
        return tokenizer

    def save_pretrained(self, save_directory: Any, *arguments: Any, **options: Any) -> tuple[str, ...]:
        """Writes everything into one folder, the target's tokenizer into a folder in it."""
        os.makedirs(save_directory, exist_ok=True)
        files: list[str] = []
        if self.target_tokenizer is not None:
            files += self.target_tokenizer.save_pretrained(os.path.join(save_directory, FOLDER))
        if self.text_processing is not None:
            files.append(os.path.join(save_directory, PROCESSING))
            with open(files[-1], "w", encoding="utf-8") as stream:
                json.dump(self.text_processing, stream, indent=2, ensure_ascii=False)
        return (*super().save_pretrained(save_directory, *arguments, **options), *files)

    def __call__(  # type: ignore[override]
        self,
        text: Any = None,
        text_pair: Any = None,
        text_target: Any = None,
        text_pair_target: Any = None,
        **options: Any,
    ) -> BatchEncoding:
        """Encodes texts as Transformers' tokenizers do; labels are the target's ids."""
        if text_target is None or self.target_tokenizer is None:
            return super().__call__(text, text_pair, text_target, text_pair_target, **options)
        targets = self.target_tokenizer(text_target, text_pair_target, **options)
        if text is None:
            return targets
        encoded = super().__call__(text, text_pair, **options)
        encoded["labels"] = targets["input_ids"]
        return encoded

    def decode(self, token_ids: Any, *arguments: Any, use_source_tokenizer: bool = False, **options: Any) -> Any:
        """Turns ids of the target, or of the source, into text."""
        if self.target_tokenizer is None or use_source_tokenizer:
            return super().decode(token_ids, *arguments, **options)
        return self.target_tokenizer.decode(token_ids, *arguments, **options)
