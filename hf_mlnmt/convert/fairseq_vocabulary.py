"""dict.*.txt of fairseq, with the SentencePiece model that cut the text where there is one; as tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_mlnmt.convert.marian_vocabulary import Side
from hf_mlnmt.convert.marian_vocabulary import tokenizers_of as with_sentencepiece
from hf_mlnmt.convert.words import Special, words_tokenizer
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
START, PAD, EOS, UNK = range(4)
_NOTE = (
    "fairseq's dictionaries do not say how text was cut into subwords: give text that is cut already, subwords "
    "separated by spaces; translations come out like that"
)


def read_dictionaries(path: Path, settings: Mapping[str, Any]) -> list[Side]:
    """The source's and the target's: dict.<language>.txt, or the one dict.txt."""
    found = []
    for option in ("source_lang", "target_lang"):
        names = (f"dict.{settings.get(option)}.txt", "dict.txt")
        file = next((path.parent / name for name in names if (path.parent / name).is_file()), None)
        if file is None:
            raise UserError(f"{path}: the dictionary {' or '.join(names)} is not beside it.")
        spm = [*sorted(path.parent.glob("*.model")), *sorted(path.parent.glob("*.spm"))]
        if len(spm) > 1:
            raise UserError(f"{path}: several SentencePiece models lie beside it; leave the one that cut both sides.")
        found.append(Side(_read(file), spm[0] if spm else file))
    return found


def _read(file: Path) -> dict[str, int]:
    """Each line is a token and its count; four special tokens come first."""
    tokens = list(SPECIAL)
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        token, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not token or not count.lstrip("-").isdigit():
            raise UserError(f"{file}, line {number}: a token and its count are expected, not {line!r}.")
        tokens.append(token)
    if len(set(tokens)) < len(tokens):
        raise UserError(f"{file}: a token stands there twice.")
    return {token: index for index, token in enumerate(tokens)}


def tokenizers_of(path: Path, sides: list[Side]) -> tuple[Tokenizers, list[str]]:
    """Tokenizers, and what a user must know of them."""
    if sides[0].spm.suffix in (".model", ".spm"):
        return with_sentencepiece(sides, PAD), []
    names = Special(pad=SPECIAL[PAD], start=SPECIAL[START], end=SPECIAL[EOS], unknown=SPECIAL[UNK])
    source, target = (words_tokenizer(side.ids, names) for side in sides)
    return Tokenizers(source, source if sides[0].ids == sides[1].ids else target), [_NOTE]
