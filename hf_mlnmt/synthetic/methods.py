"""How the synthetic side is made: beam, greedy, sampling, top-k, noised, copied; and what each method lets choose.

| method | the other side of a sentence | reference |
| --- | --- | --- |
| beam | the best translation of a beam search | Sennrich, Haddow and Birch 2016 |
| greedy | the best next token each time | |
| sampling | drawn from the model | Edunov et al. 2018; Graça et al. 2019 |
| top-k | drawn from the k likeliest tokens each time | the same |
| noised | beam, then words dropped, replaced and swapped | Edunov et al. 2018 |
| copied | the sentence itself | Currey, Miceli Barone and Heafield 2017 |

Draws follow from (seed, line): neither batches nor interruptions change them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hf_mlnmt.errors import UserError, suggest

METHODS = ("beam", "greedy", "sampling", "top-k", "noised", "copied")
BEAMS, TOP_K = 5, 10  # unless told
# Which options a method knows, beside `name`.
_KNOWN: dict[str, tuple[str, ...]] = {
    "beam": ("beams", "length_penalty"),
    "greedy": (),
    "sampling": ("temperature", "top_p", "seed"),
    "top-k": ("temperature", "top_k", "seed"),
    "noised": ("beams", "length_penalty", "drop", "replace", "swap", "filler", "seed"),
    "copied": (),
}
_DEFAULTS: dict[str, Any] = {"beams": BEAMS, "temperature": 1.0, "top_k": TOP_K, "seed": 1}
_DEFAULTS |= {"drop": 0.1, "replace": 0.1, "swap": 3, "filler": "_"}
_NOISE = 5  # beside the seed, so that the noise is drawn apart from what else is drawn by it


@dataclass(frozen=True)
class Method:
    """A method and its options; None is the method's default, or for an option that it does not know, nothing.

    beams, length_penalty: of the beam search (5; the model's own).
    temperature, top_p, top_k: of the drawing (1; the whole distribution; 10).
    drop, replace, swap: of the noise: probability that a word goes, that it becomes `filler`, and by how many places a
        word may move (0.1, 0.1, 3).
    seed: of all draws (1).

    Raises: UserError for an option that the method does not know, or a value that cannot be.
    """

    name: str = "beam"
    beams: int | None = None
    length_penalty: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    drop: float | None = None
    replace: float | None = None
    swap: int | None = None
    filler: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.name not in METHODS:
            raise UserError(f"method '{self.name}': choose one of {', '.join(METHODS)}{suggest(self.name, METHODS)}.")
        known = _KNOWN[self.name]
        for option, value in asdict(self).items():
            if option == "name" or (option not in known and value is None):
                continue
            if option not in known:
                those = [name for name in METHODS if option in _KNOWN[name]]
                raise UserError(f"{option} is no option of the method {self.name}, but of {', '.join(those)}.")
            if value is None:
                object.__setattr__(self, option, _DEFAULTS.get(option))
        self._check()

    def _check(self) -> None:
        for option in ("beams", "top_k"):
            if (value := getattr(self, option)) is not None and value < 1:
                raise UserError(f"{option} must be at least 1, not {value}.")
        for option in ("drop", "replace"):
            if (value := getattr(self, option)) is not None and not 0 <= value < 1:
                raise UserError(f"{option} is a probability of at least 0 and below 1, not {value}.")
        if self.swap is not None and self.swap < 0:
            raise UserError(f"swap is by how many places a word may move: at least 0, not {self.swap}.")
        if self.filler is not None and len(self.filler.split()) != 1:
            raise UserError(f"filler must be one word, not {self.filler!r}.")
        if self.seed is not None and self.seed < 0:
            raise UserError(f"seed must be at least 0, not {self.seed}.")

    def to_dict(self) -> dict[str, Any]:
        """The name and every option that it has."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def decoding(self) -> dict[str, Any]:
        """The pipeline's options."""
        if self.name in ("beam", "noised"):
            options = {"num_beams": self.beams}
            return options if self.length_penalty is None else options | {"length_penalty": self.length_penalty}
        if self.name == "greedy":
            return {"num_beams": 1}
        warped = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        return {"do_sample": True, "draws": "text", "seed": self.seed, **warped}

    def change(self, text: str, line: int) -> str:
        """An output with the method's noise, drawn for this line; at least one word stays."""
        if self.name != "noised" or not (words := text.split()):
            return text
        drop, replace, swap = self.drop or 0.0, self.replace or 0.0, self.swap or 0
        rng = np.random.default_rng([self.seed or 0, line, _NOISE])
        draws = rng.random((3, len(words)))
        stays = draws[0] >= drop
        stays[int(draws[0].argmax())] = True
        kept = [str(self.filler) if draws[1, i] < replace else words[i] for i in np.flatnonzero(stays)]
        # A word changes places only with those at most `swap` before or behind it (Lample et al. 2018).
        order = np.argsort(np.arange(len(kept)) + (swap + 1) * draws[2, : len(kept)], kind="stable")
        return " ".join(kept[i] for i in order)
