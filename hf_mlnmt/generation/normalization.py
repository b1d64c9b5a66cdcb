"""Length normalisation of beam search: the thesis's three formulas as real search scores inside generate().

Reference: thesis, section 2.5. A finished translation of Z target subwords (end-of-sentence counted) scores
log P(y|x) / divisor(Z):

name        | divisor       | note
"generate"  | L^a           | Transformers' own; L counts everything generated, a forced language code included
"length"    | Z^a           | the same unless a language code is forced (NLLB, M2M100, mBART-50)
"length+1"  | (1+Z)^a       | also what OpenNMT-py's "avg" computes (a = 1)
"gnmt"      | ((5+Z)/6)^a   | Wu et al. 2016; JoeyNMT, Sockeye with beta = 5, OpenNMT-py's "wu" nearly

docs/decoding.md maps other toolkits' options to these.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from hf_mlnmt.errors import UserError, suggest

LengthNormalization = Literal["generate", "length", "length+1", "gnmt"]
LENGTH_NORMALIZATIONS: tuple[str, ...] = get_args(LengthNormalization)


def check_normalization(name: str) -> None:
    """UserError unless this is a formula's name."""
    if name not in LENGTH_NORMALIZATIONS:
        raise UserError(
            f"length_normalization: unknown value {name!r}{suggest(name, LENGTH_NORMALIZATIONS)}."
            f" Choose one of {', '.join(LENGTH_NORMALIZATIONS)}."
        )


class LengthPenalty(float):
    """A `length_penalty` for generate() that carries its formula: the float is the exponent a.

    Beam search uses `length_penalty` in two places, the score of a finished hypothesis and the bound that stops the
    search, both times as `length ** length_penalty`. Python gives this class the last word on that power, so both
    follow the chosen formula, with no copy of the search loop; a plain float keeps Transformers' meaning. A loop that
    works on tensors of lengths calls `length_divisor(length_penalty, lengths)`.

    It is written to JSON as the plain exponent: save the formula beside it, as `length_normalization`.
    """

    normalization: str
    uncounted: int

    def __new__(cls, exponent: float, normalization: str = "generate", uncounted: int = 0) -> LengthPenalty:
        """`uncounted`: how many generated positions Z leaves out (1 when the language code is forced)."""
        check_normalization(normalization)
        if not math.isfinite(exponent):
            raise UserError(f"length_penalty: {exponent!r} is not a number.")
        penalty = super().__new__(cls, exponent)
        penalty.normalization = normalization
        penalty.uncounted = 0 if normalization == "generate" else uncounted
        return penalty

    def divisor(self, length: Any) -> Any:
        """What the log probability is divided by; `length` counts all generated positions (number or tensor)."""
        exponent = float(self)
        if self.normalization == "generate":
            return length**exponent
        # The bound is also asked for when only the language code is there: Z is at least 1.
        z = length - self.uncounted
        z = max(z, 1) if isinstance(z, int | float) else z.clamp(min=1)
        if self.normalization == "length+1":
            return (1 + z) ** exponent
        return ((5 + z) / 6) ** exponent if self.normalization == "gnmt" else z**exponent

    def __rpow__(self, length: Any, modulus: None = None) -> Any:
        return self.divisor(length)

    def __repr__(self) -> str:
        return f"LengthPenalty({float(self)}, {self.normalization!r})"


def length_divisor(length_penalty: float, length: Any) -> Any:
    """The divisor of any `length_penalty`, plain or ours, for a number or a tensor of generated lengths."""
    if isinstance(length_penalty, LengthPenalty):
        return length_penalty.divisor(length)
    return length**length_penalty
