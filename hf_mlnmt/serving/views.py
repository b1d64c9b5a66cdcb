"""Renders parts of the page as HTML: translations, n-best lists with marked differences, attention maps.

The HTML is in views.html.jinja, the scripts of attention maps in page.js and of words in words.js, styles in page.css.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup
from torch import Tensor

from hf_mlnmt.analysis.reading import (
    attending,
    between,
    encode_sources,
    encode_targets,
    forced_passes,
    subwords,
    words_of,
)
from hf_mlnmt.analysis.source_attention import Place, source_attentions
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.words import is_unspaced
from hf_mlnmt.generation import Alternative, Hypothesis
from hf_mlnmt.generation.translating.loading import Parts
from hf_mlnmt.reports.tables import template
from hf_mlnmt.zoo.systems import architecture_of

MOST_CELLS = 6_400  # an attention map has a table of its weights only if there are at most so many


def message(text: str, kind: str = "note") -> str:
    """Returns a message as HTML; kind: note or error."""
    return str(_views().message(text, kind))


def differences(best: str, other: str) -> str:
    """Returns `other` as HTML: words that `best` does not have are marked, words of `best` that it lacks struck out.

    In a text without spaces between words characters are compared.
    """
    before, after = (list(text) if is_unspaced(text) else re.findall(r"\s+|\S+", text) for text in (best, other))
    parts = []
    for change, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        kept, lacking = escape("".join(after[c:d])), escape("".join(before[a:b]))
        if change == "equal" or (kept and not kept.strip()):
            parts.append(kept)
        elif change == "delete":
            parts.append(f"<del>{lacking}</del>" if lacking.strip() else "")
        else:
            parts.append(f"<mark>{kept}</mark>")
    return "".join(parts)


def translation(
    name: str | None, ranked: Sequence[Hypothesis], language: str | None, note: str = "", beside: str | None = None
) -> str:
    """Returns a model's translation as HTML, and its n-best list where there are several hypotheses.

    name: the model's, where there are several. note: a remark on how it was translated. beside: the translation of
    another model, from which differences are marked; without it words can be clicked, to be replaced.
    """
    best = ranked[0].text
    shown = _views().choosable(_places_of_words(best)) if beside is None else Markup(differences(beside, best))
    listed = [(hypothesis, Markup(differences(best, hypothesis.text))) for hypothesis in ranked]
    return str(_views().translation(name, ranked[0], shown, listed if len(ranked) > 1 else [], language, note))


def next_words(instead: str, offered: Sequence[tuple[Alternative, int, str]]) -> str:
    """Returns the HTML list of words that can replace the word `instead`.

    offered: (alternative, number of its sentence, beginning of that sentence's translation with the new word).
    """
    return str(_views().next_words(instead, offered))


def _places_of_words(text: str) -> list[tuple[int, str, bool]]:
    """Returns (offset, text, whether it is a word) of each word and space; in scripts without spaces each character."""
    found = re.finditer(r"\s+|\S" if is_unspaced(text) else r"\s+|\S+", text)
    return [(part.start(), part[0], not part[0].isspace()) for part in found]


def _views() -> Any:
    """Returns the module of the template's macros, which escape every text."""
    return template("views.html.jinja", autoescape=True, folder=Path(__file__).parent).module


@dataclass(frozen=True)
class Attention:
    """Attention of a translation over its source: the subwords of both, the number of each subword's word, the weights.

    `weights`: {place (layer and head): (target, source)}. The word of </s> and of language codes is None.
    """

    source: list[str]
    target: list[str]
    source_words: list[int | None]
    target_words: list[int | None]
    weights: dict[Place, Tensor]

    def nearest(self, layer: int, encoder_layer: int, head: int) -> Place:
        """Returns the key of `weights` for a layer and head, else that for the mean of the last layer's heads."""
        asked = Place(layer, encoder_layer, head)
        return asked if asked in self.weights else max(place for place in self.weights if place.head == 0)


def attention_of(parts: Parts, text: str, translated: str, source: str | None, target: str | None) -> Attention:
    """Computes the attention over the source in one forward pass over a text and its translation.

    Raises: UserError where the model is not of this package or has no attention over the source, or text or translation
    is too long to be read at once.
    """
    if not architecture_of(parts.model.config):
        raise UserError("Attention is shown of the models of hf_mlnmt; this one is of another library.")
    (parts,) = between({"": parts}, source, target).values()
    source_ids = encode_sources(parts, [text], source, target)
    target_ids = encode_targets(parts, [translated])
    longest = getattr(parts.model.config, "max_position_embeddings", None)
    if longest is not None and len(target_ids[0]) > longest:
        raise UserError(f"the translation has {len(target_ids[0])} subwords, the model takes {longest}.")
    (forced,) = forced_passes(attending(parts), source_ids, target_ids, output_attentions=True)
    attentions = source_attentions(parts.model, getattr(forced.output, "cross_attentions", None))
    weights = {place: heads[0].float().cpu() for place, heads in attentions.items()}
    return Attention(
        subwords(parts.source, source_ids[0]),
        subwords(parts.target, target_ids[0]),
        words_of(parts.source, parts.source_processing, source_ids[0], text),
        words_of(parts.target, parts.target_processing, target_ids[0], translated),
        weights,
    )


def attention_map(attention: Attention, place: Place, name: str | None = None) -> str:
    """Returns the attention map of one layer and head (`place`) as HTML: both sentences, in which the source words are
    highlighted by their weights for the word of the translation under the pointer; a table of up to MOST_CELLS weights.
    """
    weights = attention.weights[place]
    sources = _by_word(attention.source, attention.source_words)
    targets = []
    for word, group in _by_word(attention.target, attention.target_words):
        mean = weights[list(group)].mean(0)
        shares = [(mean[list(positions)].sum().item(), source) for source, positions in sources]
        largest = sorted(shares, key=lambda share: -share[0])[:3]
        says = ", ".join(f"{source} {share:.0%}" for share, source in largest if share >= 0.005)
        targets.append((word, group, _weights(mean.tolist()), f"{word}: {says}"))
    rows = [_weights(row) for row in weights.tolist()] if weights.numel() <= MOST_CELLS else []
    return str(_views().attention_map(name, str(place), attention, sources, targets, rows))


def _by_word(subwords: Sequence[str], words: Sequence[int | None]) -> list[tuple[str, dict[int, str]]]:
    """Groups neighbouring subwords of the same word; returns (word, {position: subword without its "_"}) of each."""
    groups: list[dict[int, str]] = []
    for position, subword in enumerate(subwords):
        if not groups or words[position] is None or words[position - 1] != words[position]:
            groups.append({})
        groups[-1][position] = subword.removeprefix("_") or subword
    return [("".join(group.values()), group) for group in groups]


def _weights(weights: Sequence[float]) -> str:
    return " ".join(f"{weight:.3f}".removeprefix("0") for weight in weights)
