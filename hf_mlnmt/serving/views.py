"""What the page shows, as HTML: translations, n-best lists with their differences, attention as a map.

Every text, name and message is escaped here. What the pointer does with a map is in page.js, how it looks in page.css.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from typing import Any

from torch import Tensor

from hf_mlnmt.analysis.reading import between, encode_sources, encode_targets, forced_passes, subwords
from hf_mlnmt.analysis.source_attention import Place, source_attentions, word_indices
from hf_mlnmt.data.words import is_unspaced
from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.loading import Parts
from hf_mlnmt.generation.pipeline import Hypothesis
from hf_mlnmt.zoo.systems import architecture_of

MOST_CELLS = 6_400  # of a map; above it only the two sentences are shown


def message(text: str, kind: str = "note") -> str:
    """A line for the reader; kind: note or error."""
    role = ' role="alert"' if kind == "error" else ""
    return f'<p class="{kind}" dir="auto"{role}>{escape(text)}</p>'


def differences(best: str, other: str) -> str:
    """`other`, with the words that `best` does not have marked, and words of `best` that it lacks struck out.

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
    """One model's translation, and its n-best list where it has several.

    Args:
        name: of the model, where several are shown.
        ranked: its hypotheses, best first.
        language: code of the text.
        note: how it was made, if that is not plain.
        beside: the translation of another model, to which the differences are marked.
    """
    best, lang = ranked[0].text, f' lang="{escape(language)}"' if language else ""
    shown = escape(best) if beside is None else differences(beside, best)
    heading = f'<h2 dir="auto">{escape(name)}</h2>' if name else ""
    cut = "" if ranked[0].finished else message("The translation reached the length limit and is cut there.")
    text = f'<div class="best" dir="auto"{lang}>{shown}</div>'
    copied = f'<button type="button" class="copy" data-copy="{escape(best)}">Copy</button>'
    return f"<article>{heading}{text}{copied}{message(note) if note else ''}{cut}{_n_best(ranked, lang)}</article>"


def _n_best(ranked: Sequence[Hypothesis], lang: str) -> str:
    if len(ranked) < 2:
        return ""
    rows = "".join(
        f'<tr><td>{number}</td><td class="text" dir="auto"{lang}>{differences(ranked[0].text, one.text)}</td>'
        f'<td title="log probability {one.log_probability:.3f}, {one.length} subwords">{one.score:.3f}</td></tr>'
        for number, one in enumerate(ranked, start=1)
    )
    head = '<tr><th scope="col">#</th><th scope="col">translation</th><th scope="col">score</th></tr>'
    caption = "Best first; what differs from the first is marked."
    return f'<table class="ranked"><caption>{caption}</caption><thead>{head}</thead><tbody>{rows}</tbody></table>'


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
        """The place of these numbers where the model has it, else the mean of the heads of its last layer."""
        asked = Place(layer, encoder_layer, head)
        return asked if asked in self.weights else max(place for place in self.weights if place.head == 0)


def attention_of(parts: Parts, text: str, translated: str, source: str | None, target: str | None) -> Attention:
    """One pass of the model over a text and its translation.

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
    (one,) = forced_passes(parts._replace(model=model), source_ids, target_ids, output_attentions=True)
    attentions = source_attentions(model, getattr(one.output, "cross_attentions", None))
    weights = {place: heads[0].float().cpu() for place, heads in attentions.items()}
    sides = (parts.source, parts.source_processing, text, source_ids[0])
    others = (parts.target, parts.target_processing, translated, target_ids[0])
    return Attention(
        subwords(parts.source, source_ids[0]),
        subwords(parts.target, target_ids[0]),
        _words(*sides),
        _words(*others),
        weights,
    )


def sharing_copy(model: Any) -> Any:
    """A copy of a model with modules and config of its own, and the same tensors."""
    tensors: dict[int, Any] = {}
    for module in model.modules():
        packed = [part for value in vars(module).values() for part in (value if isinstance(value, tuple) else [value])]
        for one in [*module.parameters(recurse=False), *module.buffers(recurse=False), *packed]:
            if isinstance(one, Tensor):
                tensors[id(one)] = one
    return copy.deepcopy(model, tensors)


def _words(tokenizer: Any, processing: Any, text: str, ids: Sequence[int]) -> list[int | None]:
    """The word of each token; a language code in front has none. Without offsets every token is a word."""
    if not getattr(tokenizer, "is_fast", False):
        return list(range(len(ids)))
    words = word_indices(tokenizer, processing.apply(text) if processing else text)
    codes = len(ids) - len(words)
    return [*[None] * codes, *words] if codes >= 0 else list(range(len(ids)))


def attention_map(attention: Attention, place: Place, name: str | None = None) -> str:
    """Both sentences, whose words light up under the pointer, and the weights of a place as a table by subword."""
    weights = attention.weights[place]
    rows = [_weights(line) for line in weights.tolist()]
    heading = f'<h2 dir="auto">{escape(name)}</h2>' if name else ""
    return (
        f'<figure class="attention">{heading}<figcaption>Attention over the source: {escape(str(place))}. Point at a '
        "word of the translation, or go to it with the Tab key, to see what the model looked at.</figcaption>"
        f'<p class="tokens source" dir="auto">{_source_line(attention)}</p>'
        f'<p class="tokens target" dir="auto">{_target_line(attention, weights)}</p>'
        f'<p class="says" aria-live="polite" dir="auto">&nbsp;</p>{_table(attention, rows)}</figure>'
    )


def _groups(words: Sequence[int | None]) -> list[list[int]]:
    """Positions of neighbouring subwords of one word."""
    groups: list[list[int]] = []
    for position, word in enumerate(words):
        if groups and word is not None and words[position - 1] == word:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def _plain(subword: str) -> str:
    return subword.removeprefix("_") or subword


def _source_line(attention: Attention) -> str:
    def piece(position: int) -> str:
        return f'<span data-at="{position}">{escape(_plain(attention.source[position]))}</span>'

    groups = _groups(attention.source_words)
    return " ".join(f'<span class="word">{"".join(map(piece, group))}</span>' for group in groups)


def _target_line(attention: Attention, weights: Tensor) -> str:
    words = []
    for group in _groups(attention.target_words):
        mean = weights[group].mean(0).tolist()
        word = "".join(_plain(attention.target[position]) for position in group)
        says = escape(f"{word}: {_largest(attention, mean)}")
        rows = f'data-rows="{group[0]} {group[-1]}" data-says="{says}"'
        words.append(f'<button type="button" class="word" data-w="{_weights(mean)}" {rows}>{escape(word)}</button>')
    return " ".join(words)


def _largest(attention: Attention, weights: Sequence[float], most: int = 3) -> str:
    """The source words with the most weight, in percent."""
    sums = [
        (
            sum(weights[position] for position in group),
            "".join(_plain(attention.source[position]) for position in group),
        )
        for group in _groups(attention.source_words)
    ]
    best = sorted(sums, key=lambda one: -one[0])[:most]
    return ", ".join(f"{word} {weight:.0%}" for weight, word in best if weight >= 0.005)


def _weights(weights: Sequence[float]) -> str:
    return " ".join(f"{weight:.3f}".removeprefix("0") for weight in weights)


def _table(attention: Attention, rows: Sequence[str]) -> str:
    if len(rows) * len(attention.source) > MOST_CELLS:
        return message("The map by subword is left out: the sentences are too long for it.")
    head = "".join(f'<th scope="col"><span dir="auto">{escape(word)}</span></th>' for word in attention.source)
    body = "".join(
        f'<tr data-w="{row}" data-rows="{number} {number}">'
        f'<th scope="row" dir="auto">{escape(attention.target[number])}</th>'
        + "".join(f'<td style="--w:{weight}" title="{float(weight):.3f}"></td>' for weight in row.split())
        + "</tr>"
        for number, row in enumerate(rows)
    )
    return (
        '<div class="map" role="region" tabindex="0" aria-label="Attention map: rows are subwords of the translation, '
        'columns of the source"><table><thead><tr><td></td>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
