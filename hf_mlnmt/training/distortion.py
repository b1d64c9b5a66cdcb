"""tau: some tokens of a sentence are hidden, replaced or only marked, to be predicted (cloze, pseudo-encoder).

Reference: thesis on monolingual data, section 4.2, after Devlin et al. 2019, "BERT", section 3.1.

Each token is distorted with probability 0.15, independently of the others. Of the distorted ones 0.8 become <mask>, 0.1
stay as they are and 0.1 become a token that is drawn uniformly. All of them are predicted. Special tokens are neither
distorted nor drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hf_mlnmt.errors import UserError


@dataclass
class DistortionSettings:
    """What a recipe can say of tau.

    distorted: the share of tokens that are predicted. masked, kept: of these, how many become <mask> and how many stay;
        the rest become other tokens.
    force: at least one in every sentence; otherwise a sentence in which none was drawn gives no loss, as in the thesis.
    """

    distorted: float = 0.15
    masked: float = 0.8
    kept: float = 0.1
    force: bool = False

    def __post_init__(self) -> None:
        for name in ("distorted", "masked", "kept"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must be from 0 to 1, not {getattr(self, name)}.")
        if self.masked + self.kept > 1 + 1e-9:
            raise UserError(f"masked and kept are {self.masked + self.kept:g} together: at most 1 is expected.")
        if not self.distorted:
            raise UserError("distorted must be above 0: nothing would be predicted.")


@dataclass
class Distortion:
    """tau for one vocabulary; a pure function of (seed, epoch, number of the sentence, the sentence).

    Args:
        settings: the probabilities.
        mask: the id of <mask>.
        special: ids that are neither distorted nor drawn.
        vocabulary: ids are below this.
        seed: of the draws.
    """

    settings: DistortionSettings
    mask: int
    special: np.ndarray
    vocabulary: int
    seed: int = 1
    words: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.words = np.setdiff1d(np.arange(self.vocabulary), self.special)

    @classmethod
    def of(cls, settings: DistortionSettings, tokenizer: Any, seed: int) -> Distortion:
        """For a tokenizer. Raises: UserError when it has no <mask>."""
        if getattr(tokenizer, "mask_token_id", None) is None:
            raise UserError(
                "the tokenizer has no <mask>, which stands for what is to be predicted. Set tokenizer.mask to true, "
                "which adds it to the tokenizer of tokenizer.path, or train a tokenizer, which then has it."
            )
        return cls(settings, tokenizer.mask_token_id, np.array(tokenizer.all_special_ids), len(tokenizer), seed)

    def __call__(self, ids: np.ndarray, epoch: int, sentence: int) -> tuple[np.ndarray, np.ndarray]:
        """tau(ids) (length,), and which positions are D (length,)."""
        draws, settings = np.random.default_rng([self.seed, epoch, sentence]), self.settings
        chances, kinds = draws.random(len(ids)), draws.random(len(ids))
        others = self.words[draws.integers(len(self.words), size=len(ids))]
        words = ~np.isin(ids, self.special)
        chosen = words & (chances < settings.distorted)
        if settings.force and words.any() and not chosen.any():
            chosen[np.argmin(np.where(words, chances, 2.0))] = True
        distorted = np.where(kinds < settings.masked, self.mask, np.where(kinds < 1 - settings.kept, others, ids))
        return np.where(chosen, distorted, ids), chosen
