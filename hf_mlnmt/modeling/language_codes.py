"""Languages that a batch names itself, by the tokenizer's codes at the beginning of its sources.

| source begins with | source language | target language |
| --- | --- | --- |
| `<2fr>` | the only one, or named | French |
| `<2de><2fr>` | German | French |
| no code | the only one, or named | the only one, or named |

The codes are taken off: no encoder sees them. A language that is named as an argument counts in place of the code's.
All rows of a batch are of one pair; padding is on the right.
"""

from collections.abc import Mapping

from torch import Tensor


def take_codes(
    codes: Mapping[str, int] | None,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    source: str | None = None,
    target: str | None = None,
) -> tuple[Tensor | None, Tensor | None, str | None, str | None]:
    """input_ids and attention_mask (batch, source) without their codes, and the languages, as named or as they say.

    codes: language -> id of its token; None: there are none, and everything stays as it is.
    Raises: ValueError where the rows are not all of the same languages.
    """
    if not codes or input_ids is None:
        return input_ids, attention_mask, source, target
    names = {identifier: language for language, identifier in codes.items()}
    rows: set[tuple[str | None, ...]] = {tuple(map(names.get, row)) for row in input_ids[:, :2].tolist()}
    said = {row if None not in row else row[: row.index(None)] for row in rows}
    if len(said) > 1:
        found = "; ".join(sorted(" to ".join(map(str, row)) or "none" for row in said))
        raise ValueError(
            f"the rows of this batch begin with codes of different languages ({found}): a batch is of one pair; "
            "hf_mlnmt.generation.TranslationPipeline takes a list of languages, one for each text"
        )
    languages = next(iter(said), ())
    mask = None if attention_mask is None else attention_mask[:, len(languages) :]
    by_code = (None, None, *languages)[-2:]
    return input_ids[:, len(languages) :], mask, source or by_code[0], target or by_code[1]
