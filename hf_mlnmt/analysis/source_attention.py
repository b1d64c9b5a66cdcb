"""Attention over the source by decoder layer, encoder layer and head: word alignments, maps, coverage.

References: Koehn and Knowles 2017, "Six Challenges for Neural Machine Translation", section 3.5 (from subwords to
words); Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models" (alignment error rate);
thesis on monolingual data, equation 5.7 and section 5.2.2 (coverage, fertilities).

Links are pairs (source word, target word), counted from 0. AER = 1 - (|A & S| + |A & P|) / (|A| + |S|), A the links
found, S the sure and P the sure and possible links of the gold alignment, which was made by people.

`hf_mlnmt.generation.translating.alignments` computes links between words from the attention weights of subwords.

Two studies: alignments of a corpus by every layer and head, in Pharaoh's format, and the best of them by error rate;
of one sentence maps of the attention, or coverage, the attention to each source subword summed up to each target one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_mlnmt.analysis.reading import (
    Pass,
    Sample,
    Systems,
    attending,
    encode_targets,
    forced_passes,
    subwords,
    words_of,
)
from hf_mlnmt.common.errors import UserError, naming
from hf_mlnmt.common.files import file_name
from hf_mlnmt.evaluation import figures
from hf_mlnmt.evaluation.figures import Panel, Study
from hf_mlnmt.generation.translating.alignments import Link, to_pharaoh, word_links
from hf_mlnmt.generation.translating.loading import Parts

_LINK = re.compile(r"(\d+)([-?p])(\d+)")


@dataclass(frozen=True)
class GoldAlignment:
    """The gold links (source word, target word) of one sentence; `possible` contains the sure ones too."""

    sure: frozenset[Link]
    possible: frozenset[Link]


def alignment_error_rate(aligned: Iterable[set[Link]], gold: Iterable[GoldAlignment]) -> float:
    """Returns AER over all sentences, with counts summed before dividing. Raises: UserError if there are no links."""
    right = total = 0
    for made, sentence in zip(aligned, gold, strict=True):
        right += len(made & sentence.sure) + len(made & sentence.possible)
        total += len(made) + len(sentence.sure)
    if not total:
        raise UserError("no links, neither found nor sure: there is no alignment error rate.")
    return 1 - right / total


def read_gold(lines: Iterable[str], name: str | Path, one_based: bool = False) -> list[GoldAlignment]:
    """Reads gold alignments, a line of links for each sentence: `i-j` (sure), `i?j` or `ipj` (possible), source first.

    one_based: words are counted from 1. Raises: UserError with file and line for anything else.
    """
    alignments = []
    for number, line in enumerate(lines, start=1):
        sure, possible = set(), set()
        for field in line.split():
            match = _LINK.fullmatch(field)
            if not match or (one_based and "0" in (match[1], match[3])):
                counted = "1" if one_based else "0"
                raise UserError(
                    f"{name}, line {number}: {field!r} is no link; expected source-target such as 3-4 (sure), 3?4 or "
                    f"3p4 (possible), words counted from {counted}."
                )
            link = (int(match[1]) - one_based, int(match[3]) - one_based)
            possible.add(link)
            if match[2] == "-":
                sure.add(link)
        alignments.append(GoldAlignment(frozenset(sure), frozenset(possible)))
    return alignments


@dataclass(frozen=True, order=True)
class Place:
    """An attention over the source, by its decoder layer, encoder layer and head, all counted from 1.

    encoder_layer: the layer that it attends to if the model attends to several by separate weights (MLMHA); else 0.
    head: 0 for the mean of the layer's heads.
    """

    layer: int
    encoder_layer: int
    head: int

    def __str__(self) -> str:
        over = f", encoder layer {self.encoder_layer}" if self.encoder_layer else ""
        return f"layer {self.layer}{over}, " + (f"head {self.head}" if self.head else "mean of heads")


def source_attentions(model: Any, cross_attentions: Sequence[Tensor] | None) -> dict[Place, Tensor]:
    """Returns {`Place`: weights (batch, target, source)} of every head, and of the mean over a layer's heads.

    cross_attentions: of each decoder layer (batch, heads, target, source), or (batch, encoder layers, heads, target,
    source) of MLMHA with U0 = 1. Raises: UserError if there are none.
    """
    if not cross_attentions or any(layer is None for layer in cross_attentions):
        raise UserError(f"{type(model).__name__} returns no attention over the source.")
    attentions: dict[Place, Tensor] = {}
    for layer, weights in enumerate(cross_attentions, start=1):
        several = weights.dim() == 5
        first = model.config.encoder_layers - weights.shape[1] + 1 if several else 0  # lowest encoder layer attended to
        for index, heads in enumerate(weights.unbind(1) if several else [weights]):
            attentions[Place(layer, first + index, 0)] = heads.mean(1)
            for head, of_head in enumerate(heads.unbind(1), start=1):
                attentions[Place(layer, first + index, head)] = of_head
    return attentions


def choose_places(places: Iterable[Place], layer: int | None = None, head: int | None = None) -> list[Place]:
    """Selects the places of one layer (None: all), and of one head (None: the mean over heads). Raises: UserError for
    a layer or head that does not exist."""
    places = list(places)
    most = max(place.layer for place in places), max(place.head for place in places)
    for option, number, count in zip(("layer", "head"), (layer, head), most):
        if number is not None and not 1 <= number <= count:
            raise UserError(f"--{option} {number}: this model has 1 to {count}.")
    return [place for place in places if layer in (None, place.layer) and place.head == (head or 0)]


def align(parts: Parts, sample: Sample) -> list[dict[Place, set[Link]]]:
    """Links words of each sentence of a sample to words of its given translation, by every `Place` of attention.

    Words are separated by white space in the given texts, before the model's text processing.
    """
    assert sample.targets is not None
    parts = attending(parts)
    source_ids, target_ids = sample.source_ids(parts), encode_targets(parts, sample.targets)
    alignments: list[dict[Place, set[Link]]] = [{} for _ in source_ids]
    for read in forced_passes(parts, source_ids, target_ids, output_attentions=True):
        places = source_attentions(parts.model, read.output.cross_attentions)
        for row, index in enumerate(read.indices):
            source, target = source_ids[index], target_ids[index]
            source_words = words_of(parts.source, parts.source_processing, source, sample.sources[index])
            target_words = words_of(parts.target, parts.target_processing, target, sample.targets[index])
            for place, weights in places.items():
                real = weights[row, : len(target), : len(source)].cpu()
                alignments[index][place] = set(word_links(real, source_words, target_words))
    return alignments


def error_rates(
    alignments: Sequence[dict[Place, set[Link]]], gold: Sequence[GoldAlignment], places: Iterable[Place]
) -> dict[Place, float]:
    """Returns {place: alignment error rate}, the lowest first."""
    rates = {place: alignment_error_rate([of_pair[place] for of_pair in alignments], gold) for place in places}
    return dict(sorted(rates.items(), key=lambda item: (item[1], item[0])))


def check_gold(gold: Sequence[GoldAlignment], sources: Sequence[str], targets: Sequence[str], name: str) -> None:
    """Raises UserError for a gold alignment with links outside of its pair's words; `name` begins the message."""
    for number, (sentence, source, target) in enumerate(zip(gold, sources, targets, strict=True), start=1):
        size = (len(source.split()), len(target.split()))
        if outside := [link for link in sorted(sentence.possible) if link[0] >= size[0] or link[1] >= size[1]]:
            raise UserError(
                f"{name}, line {number}: link {outside[0][0]}-{outside[0][1]} is outside of {size[0]} source words and "
                f"{size[1]} target words (is it counted from 1?)."
            )


def alignment_study(
    systems: Systems,
    sample: Sample,
    gold: Sequence[GoldAlignment] | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Study:
    """Aligns the given translations by the attention of a layer and head, or, without a layer, that of lowest AER.

    gold: one for each sentence of the sample. With MLMHA a layer has a place for each encoder layer that it attends to.
    Raises: UserError without translations; without `gold` and a layer; for a layer or head that does not exist.
    """
    if sample.targets is None:
        raise UserError("alignments are of given translations: name their file (--target).")
    if gold is None and layer is None:
        raise UserError("which attention aligns best? Give gold alignments (--gold), or choose a --layer.")
    if gold is not None:
        check_gold(gold, sample.sources, sample.targets, "the gold alignments")
    study, panels = Study("alignments"), list[Panel]()
    for name, parts in systems.items():
        with naming(name):
            alignments = align(parts, sample)
            places = list(alignments[0]) if layer is None else choose_places(alignments[0], layer, head)
        rates = error_rates(alignments, gold, places) if gold else {}
        for place in places:
            row = {"layer": place.layer, "encoder_layer": place.encoder_layer or None, "head": place.head or "mean"}
            study.rows.append({"system": name, **row, "AER": rates.get(place)})
        for place in [next(iter(rates))] if layer is None else places:
            over = f"encoder{place.encoder_layer}." if place.encoder_layer else ""
            at = f"layer{place.layer}.{over}" + (f"head{place.head}" if place.head else "mean")
            lines = "".join(f"{to_pharaoh(of_pair[place])}\n" for of_pair in alignments)
            study.texts[f"alignments.{file_name(f'{name}.{at}')}.txt"] = lines
            study.summary.append({"system": name, "attention": str(place), "AER": rates.get(place, "")})
        if layer is None:
            panels += _rate_panels(name, rates)
    if panels:
        label = "alignment error rate, lower is better"
        study.figures["alignments.error-rates"] = figures.heat_maps(panels, "decoder layer", "head", label)
    return study


def _rate_panels(name: str, rates: dict[Place, float]) -> list[Panel]:
    """Returns heat maps of error rates, decoder layers by heads, one for each encoder layer that is attended to."""
    layers, overs, heads = (sorted(set(values)) for values in zip(*((x.layer, x.encoder_layer, x.head) for x in rates)))
    names = [str(layer) for layer in layers], [str(head) if head else "mean" for head in heads]
    return [
        Panel(
            f"{name}, encoder layer {over}" if over else name,
            [[rates[Place(layer, over, head)] for head in heads] for layer in layers],
            *names,
        )
        for over in overs
    ]


def sentence_study(
    systems: Systems,
    sample: Sample,
    layer: int | None = None,
    head: int | None = None,
    summed: bool = False,
    num_beams: int = 1,
) -> Study:
    """Draws the attention over the source in the sample's first sentence: a heat map for each layer and encoder layer.

    head: None for the mean over heads. summed: draw coverage, the sum of the attention to each source subword up to
    every target subword, and the fertilities (phi) of a model that has them. Without given translations, the system's
    own by `num_beams` is read. Raises: UserError for a layer or head that does not exist, or weights that
    are not over source positions.
    """
    study, value = Study("coverage" if summed else "maps"), "coverage" if summed else "weight"
    for name, parts in systems.items():
        with naming(name):
            read, source, target = _read_first(parts, sample, num_beams)
            weights = source_attentions(parts.model, read.output.cross_attentions)
            if any(of_place.shape[-1] != len(source) for of_place in weights.values()):
                raise UserError(f"{type(parts.model).__name__} does not attend to source positions: nothing to draw.")
            places = choose_places(weights, layer, head)
        panels, stem = [], file_name(name)
        for place in places:
            values = (weights[place][0].cumsum(0) if summed else weights[place][0]).tolist()
            panels.append(Panel(str(place), values, target, source))
            over = {"encoder_layer": place.encoder_layer} if place.encoder_layer else {}
            at = {"system": name, "layer": place.layer, **over, "head": head or "mean"}
            for y, (word, line) in enumerate(zip(target, values)):
                cells = enumerate(zip(source, line))
                study.rows += [
                    {**at, "row": y, "target": word, "column": x, "source": s, value: n} for x, (s, n) in cells
                ]
        label = "attention so far" if summed else f"attention weight, {name}"
        drawn = figures.heat_maps(panels, "target", "source", label, numbers=False, low=0.0)
        study.figures[f"{study.stem}.{stem}"] = drawn
        study.summary.append({"system": name, "translation": " ".join(target), "panels": len(panels)})
        fertility = getattr(parts.model.get_encoder(), "fertility", None) if summed else None
        if fertility is not None:
            phi = (1 / fertility(read.output.encoder_last_hidden_state)[0, :, 0]).tolist()
            for x, (word, of_word) in enumerate(zip(source, phi, strict=True)):
                study.rows.append({"system": name, "column": x, "source": word, "fertility": of_word})
            drawn = figures.bars({name: [(word, of_word, "") for word, of_word in zip(source, phi)]}, "fertility")
            study.figures[f"fertilities.{stem}"] = drawn
    return study


def _read_first(parts: Parts, sample: Sample, num_beams: int) -> tuple[Pass, list[str], list[str]]:
    """Runs the model on the sample's first pair, or its own translation; returns the pass and both sides' subwords."""
    targets, parts = sample.target_ids(parts), attending(parts)
    options: dict[str, Any] = {"num_beams": num_beams, "output_attentions": True}
    (read,) = forced_passes(parts, sample.source_ids(parts)[:1], targets and targets[:1], **options)
    assert read.labels is not None
    return read, subwords(parts.source, read.source[0]), subwords(parts.target, read.labels[0])
