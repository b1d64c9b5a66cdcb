"""The two scoring protocols: how each prepares text, which sacreBLEU metrics read it, and how the scores are signed.

protocol  | reference and output are           | BLEU tokeniser | the same as
"cased"   | left as they are                   | 13a            | the `sacrebleu` command
"classic" | lower-cased, then Moses-normalised | none           | `multi-bleu.perl` on text prepared as
          | and Moses-tokenised                |                | Multi30k's own `lc.norm.tok` files

References are raw text in both: the protocol does the lower-casing and tokenising, of both sides, once.
A classic signature says `protocol:classic` and names the sacremoses version; a cased one is sacreBLEU's own, untouched.
References: Post 2018 (sacreBLEU); Elliott et al. 2016 (Multi30k; scripts/task1-tokenize.sh of its repository).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, get_args

from hf_mlnmt.errors import UserError, suggest

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric, Signature
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

ProtocolName = Literal["cased", "classic"]
MetricName = Literal["BLEU", "chrF", "TER"]
PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)
METRICS: tuple[MetricName, ...] = get_args(MetricName)


@dataclass(frozen=True)
class Protocol:
    """One way to score. `language`: the target language's two-letter code; classic needs it, cased does not."""

    name: ProtocolName
    language: str | None = None

    def __post_init__(self) -> None:
        if self.name not in PROTOCOLS:
            raise UserError(
                f"protocol {self.name!r}: expected one of {', '.join(PROTOCOLS)}{suggest(str(self.name), PROTOCOLS)}."
            )
        if self.name == "classic" and not _two_letters(self.language):
            raise UserError(
                f"language {self.language!r}: the classic protocol tokenises by the rules of the target language; "
                "give its two-letter code, for example 'de'."
            )

    def prepare(self, lines: Sequence[str | None]) -> list[Any]:
        """The text as the metrics read it. None (no such reference for this sentence) stays None."""
        if self.name == "cased":
            return list(lines)
        assert self.language is not None
        return [None if line is None else moses(line, self.language) for line in lines]

    def metric(self, name: MetricName, prepared_references: Sequence[Sequence[Any]]) -> Metric:
        """A sacreBLEU metric with sacreBLEU's defaults, holding these references (one list of lines each)."""
        from sacrebleu.metrics import BLEU, CHRF, TER

        name = metric_named(name)
        if name == "BLEU":
            classic = self.name == "classic"
            return BLEU(tokenize="none" if classic else "13a", force=classic, references=prepared_references)
        if name == "chrF":
            return CHRF(references=prepared_references)
        return TER(references=prepared_references)

    def sign(self, signature: Signature) -> str:
        """sacreBLEU's signature as text, with what classic changes written over it."""
        if self.name == "classic":
            tokeniser = signature.info.get("tok")
            # TER's own tokeniser runs on top of ours; with its defaults it only joins spaces.
            signature.update("tok", f"moses-{self.language}" + ("+tercom" if tokeniser == "tercom" else ""))
            signature.update("case", "lc")
            signature.update("protocol", "classic")
            signature.update("sacremoses", version("sacremoses"))
        return signature.format()


def choose_protocols(protocols: Sequence[str] | None, language: str | None) -> list[Protocol]:
    """Those named; unless told, both, or 'cased' alone when `language` is no two-letter code (or not known)."""
    names = protocols or (PROTOCOLS if _two_letters(language) else PROTOCOLS[:1])
    return [Protocol(name, language) for name in names]  # type: ignore[arg-type]  # Protocol checks it


def _two_letters(language: str | None) -> bool:
    return re.fullmatch("[a-z]{2}", language or "") is not None


def metric_named(name: str) -> MetricName:
    """BLEU, chrF or TER, written in any case."""
    for known in METRICS:
        if name.lower() == known.lower():
            return known
    raise UserError(f"metric {name!r}: expected one of {', '.join(METRICS)}{suggest(name, METRICS)}.")


def moses(line: str, language: str) -> str:
    """Lower-case, normalise punctuation, tokenise; tokens separated by one space, XML characters not escaped.

    Multi30k's order: lower-casing comes first, so abbreviations are looked up in lower case, as in its own files.
    Not data/processing.py's function: what a score means may not change with an option of training.
    """
    normaliser, tokeniser = _moses_tools(language)
    return tokeniser.tokenize(normaliser.normalize(line.lower()), return_str=True, escape=False)


@lru_cache(maxsize=8)
def _moses_tools(language: str) -> tuple[MosesPunctNormalizer, MosesTokenizer]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    return MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
