"""Views of the page: translations, n-best lists with their differences, attention as a map.

The HTML is in views.html.jinja, what the pointer does with a map in page.js, how it looks in page.css.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup
from torch import Tensor

from hf_mlnmt.analysis.reading import between, encode_sources, encode_targets, forced_passes, subwords
from hf_mlnmt.analysis.source_attention import Place, source_attentions, word_indices
from hf_mlnmt.data.words import is_unspaced
from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.loading import Parts
from hf_mlnmt.generation.pipeline import Hypothesis
from hf_mlnmt.reports.tables import template
from hf_mlnmt.zoo.systems import architecture_of

MOST_CELLS = 6_400  # of a map; above it only the two sentences are shown


def message(text: str, kind: str = "note") -> str:
    """Returns a line for the reader; kind: note or error."""
    return str(_views().message(text, kind))


def differences(best: str, other: str) -> str:
    """Returns `other` with the words that `best` does not have marked, and words of `best` that it lacks struck out.

    Of text without spaces between words the characters are compared.
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
    """Returns a model's translation, and its n-best list where it has several.

    Args:
        name: of the model, where several are shown.
        ranked: its hypotheses, best first.
        language: code of the text.
        note: how it was made, if that is not plain.
        beside: the translation of another model, to which the differences are marked.
    """
    best = ranked[0].text
    shown = best if beside is None else Markup(differences(beside, best))
    listed = [(hypothesis, Markup(differences(best, hypothesis.text))) for hypothesis in ranked]
    return str(_views().translation(name, ranked[0], shown, listed if len(ranked) > 1 else [], language, note))


def _views() -> Any:
    """Returns the macros of the template, which escape every text."""
    return template("views.html.jinja", autoescape=True, folder=Path(__file__).parent).module


@dataclass(frozen=True)
class Attention:
    """The attention over the source of one translation: the subwords of both sides, the word of each, the weights.

    `weights`: by place, (target, source). A word is None at </s> and language codes.
    """

    source: list[str]
    target: list[str]
    source_words: list[int | None]
    target_words: list[int | None]
    weights: dict[Place, Tensor]

    def nearest(self, layer: int, encoder_layer: int, head: int) -> Place:
        """Returns the place of these numbers where the model has it, else the mean of the heads of its last layer."""
        asked = Place(layer, encoder_layer, head)
        return asked if asked in self.weights else max(place for place in self.weights if place.head == 0)


def attention_of(parts: Parts, text: str, translated: str, source: str | None, target: str | None) -> Attention:
    """Computes the attention of a pass of the model over a text and its translation.

    The pass has a copy of the model, which shares the weights: others may translate at the same time.
    Raises: UserError where the model is not of this package or has no attention over the source, or the text is too
    long to be read at once.
    """
    if not architecture_of(parts.model.config):
        raise UserError("Attention is shown of the models of hf_mlnmt; this one is of another library.")
    (parts,) = between({"": parts}, source, target).values()
    source_ids = encode_sources(parts, [text], source, target)
    target_ids = encode_targets(parts, [translated])
    longest = getattr(parts.model.config, "max_position_embeddings", None)
    if longest is not None and len(target_ids[0]) > longest:
        raise UserError(f"the translation has {len(target_ids[0])} subwords, the model takes {longest}.")
    model = sharing_copy(parts.model)
    model.set_attn_implementation("eager")
    (forced,) = forced_passes(parts._replace(model=model), source_ids, target_ids, output_attentions=True)
    attentions = source_attentions(model, getattr(forced.output, "cross_attentions", None))
    weights = {place: heads[0].float().cpu() for place, heads in attentions.items()}
    return Attention(
        subwords(parts.source, source_ids[0]),
        subwords(parts.target, target_ids[0]),
        _words(parts.source, parts.source_processing, text, source_ids[0]),
        _words(parts.target, parts.target_processing, translated, target_ids[0]),
        weights,
    )


def sharing_copy(model: Any) -> Any:
    """Copies a model: modules and config of its own, and the same tensors."""
    tensors: dict[int, Any] = {}
    for module in model.modules():
        packed = [part for value in vars(module).values() for part in (value if isinstance(value, tuple) else [value])]
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False), *packed]:
            if isinstance(tensor, Tensor):
                tensors[id(tensor)] = tensor
    return copy.deepcopy(model, tensors)


def _words(tokenizer: Any, processing: Any, text: str, ids: Sequence[int]) -> list[int | None]:
    """Returns the word of each token; a language code in front has none. Without offsets every token is a word."""
    if not getattr(tokenizer, "is_fast", False):
        return list(range(len(ids)))
    words = word_indices(tokenizer, processing.apply(text) if processing else text)
    codes = len(ids) - len(words)
    return [*[None] * codes, *words] if codes >= 0 else list(range(len(ids)))


def attention_map(attention: Attention, place: Place, name: str | None = None) -> str:
    """Returns both sentences, whose words light up under the pointer, and the weights of a place as a table."""
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
    """Returns each word with {position: subword}: neighbours of one word, without the marks of word beginnings."""
    groups: list[dict[int, str]] = []
    for position, subword in enumerate(subwords):
        if not groups or words[position] is None or words[position - 1] != words[position]:
            groups.append({})
        groups[-1][position] = subword.removeprefix("_") or subword
    return [("".join(group.values()), group) for group in groups]


def _weights(weights: Sequence[float]) -> str:
    return " ".join(f"{weight:.3f}".removeprefix("0") for weight in weights)
