"""Looks up a call's texts in a translation memory (hf_mlnmt/memory): known ones are not searched, others are steered.

For a line that the memory has, its translation is used; else the line's pieces are looked up one by one, and each is
steered by its own matches or by the line's best, whichever has the higher percentage. The origin of a line that was cut
is that of the piece with the lowest percentage.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from hf_mlnmt.data.directions import code_tokens
from hf_mlnmt.data.tokenizer import encode
from hf_mlnmt.generation.translating.options import DecodingOptions
from hf_mlnmt.generation.translating.segments import CutText, EncodedPiece, TextPiece
from hf_mlnmt.memory.index import TranslationMemory
from hf_mlnmt.memory.matching import BEHIND, EXACT, Bands, Match, holes
from hf_mlnmt.memory.steering import Steering

WEIGHT = 4.0  # the weight of rewards where memory_weight is not set
MACHINE = "machine"


def _percent(matches: Sequence[Match]) -> int:
    return matches[0].percent if matches else 0


def is_known(matches: Sequence[Match]) -> bool:
    """Returns whether the first, best match has 100 percent or more: its translation can be used as it is."""
    return _percent(matches) >= EXACT


class Remembered:
    """Looks up a call's texts in a memory. parts: the pipeline's model and tokenizers; ends: ids of end tokens;
    longest: most ids that the model reads, None without a limit.

    A model that was trained with matches (data.memory of a recipe) reads the best match's translation after each text,
    and is steered only if memory_weight is set.
    """

    def __init__(
        self, memory: TranslationMemory, options: DecodingOptions, parts: Any, ends: Sequence[int], longest: int | None
    ) -> None:
        self.longest, self.reads = longest or sys.maxsize, getattr(parts.model.generation_config, BEHIND, False)
        self.memory, self.ends, self.bands = memory, list(ends), Bands()
        usual = 0.0 if self.reads else WEIGHT
        self.weight = usual if options.memory_weight is None else options.memory_weight
        self.target, self.processing = parts.target, parts.target_processing
        self.cuts, tokenizer = options.split == "sentences", parts.target
        self.special = {*tokenizer.all_special_ids, *tokenizer.convert_tokens_to_ids(code_tokens(tokenizer))}

    def with_matches(self, texts: Sequence[str], cut: Sequence[CutText], free: Sequence[bool]) -> list[CutText]:
        """Returns the cut texts with known translations, where `free` allows these, and rewards for the searches of all
        other pieces; counts the texts in `bands`."""
        lines, found = [text.strip() for text in texts], list[tuple[CutText, list[list[Match]]]]()
        around = ["", *lines, ""]
        for number, (text, may) in enumerate(zip(cut, free, strict=True)):
            line, pieces, inputs = lines[number], text.pieces, text.inputs
            matches = self.memory.matches(line, around[number], around[number + 2]) if inputs else []
            if is_known(matches) and may and len(inputs) > 1 and "\n" not in line:
                pieces, inputs = [TextPiece(line, "")], [inputs[0]._replace(text=line, number=0, pieces=1)]
            own = [matches] if len(pieces) == 1 else [self.memory.matches(each.source or each.text) for each in inputs]
            for place, (piece, each) in enumerate(zip(inputs, own)):
                if may and is_known(each) and "\n" not in piece.text:
                    inputs[place] = piece._replace(known=each[0].text, ids=piece.ids[-1:])
            some = [max(each, matches[:1], key=_percent) for each in own]
            worst = min(some, key=_percent, default=[])
            self.bands.add(line, _percent(worst))
            known = (worst[0].origin, worst[0]) if worst else (MACHINE, None)
            found.append((CutText(text.line, pieces, inputs, *known), some))
        steering = self._pieces({match.text for _, some in found for each in some for match in each})
        for text, some in found:
            for place, (piece, each) in enumerate(zip(text.inputs, some)):
                if piece.known is None:
                    rewarded = [(ids, match.reward) for match in each for ids in steering[match.text]]
                    ids = piece.ids + (self._encoded([each[0].target])[0] if self.reads and each else [])
                    ids = ids if len(ids) <= self.longest else piece.ids
                    text.inputs[place] = piece._replace(ids=ids, steering=rewarded)
        return [text for text, _ in found]

    def knows(self, text: str) -> bool:
        """Returns whether the memory has a translation of a text or, if the call cuts sentences, any match."""
        matches = self.memory.matches(text, most=1)
        return bool(matches) if self.cuts else is_known(matches)

    def _pieces(self, texts: set[str]) -> dict[str, list[list[int]]]:
        """Returns of each translation the tokens between its holes and unknown ones, and the end."""
        if not self.weight:
            return {text: [] for text in texts}
        between = [(text, part) for text in texts for part in holes(text)]
        encoded = self._encoded([part for _, part in between])
        found: dict[str, list[list[int]]] = {text: [] for text in texts}
        for (text, part), ids in zip(between, encoded, strict=True):
            pieces: list[list[int]] = [[]]
            for token in ids:
                if token == self.target.unk_token_id:
                    pieces.append([])
                elif token not in self.special:
                    pieces[-1].append(token)
            if text.endswith(part) and pieces[-1]:
                pieces[-1] += self.ends[:1]
            found[text] += filter(None, pieces)
        return found

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of translations."""
        return [ids.tolist() for ids in encode(self.target, [*map(self.processing.apply, texts)], target=True)]

    def rules(self, inputs: Sequence[EncodedPiece]) -> list[Steering]:
        """Returns [the logits processor that steers the search of these pieces], or [] if no piece has rewards."""
        if not any(piece.steering for piece in inputs):
            return []
        return [Steering([piece.steering for piece in inputs], self.weight, self.ends)]
