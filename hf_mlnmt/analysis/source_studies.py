"""Studies of attention over the source: alignments in Pharaoh's format with their error rates, maps of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hf_mlnmt.analysis import figures
from hf_mlnmt.analysis.alignment import GoldAlignment, to_pharaoh
from hf_mlnmt.analysis.corpus_alignment import align, check_gold, error_rates
from hf_mlnmt.analysis.figures import Panel
from hf_mlnmt.analysis.heads import by_unit, self_attentions
from hf_mlnmt.analysis.reading import eager_attention, forced_passes, subwords
from hf_mlnmt.analysis.sampling import Sample
from hf_mlnmt.analysis.source_attention import Place, choose_places, source_attentions
from hf_mlnmt.analysis.studies import Systems
from hf_mlnmt.analysis.study import Study, named
from hf_mlnmt.analysis.writing import file_name
from hf_mlnmt.errors import UserError

MapSide = Literal["encoder", "decoder", "source"]


def alignment_study(
    systems: Systems,
    sample: Sample,
    gold: Sequence[GoldAlignment] | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Study:
    """Alignments of the given translations at the places asked for, or at the best one by error rate.

    gold: one a sentence of the sample. With MLMHA a layer is one place for each encoder layer that it reads.
    Raises: UserError without translations; without `gold` and without a layer; for a layer or head that is not there.
    """
    if sample.targets is None:
        raise UserError("alignments are of given translations: name their file (--target).")
    if gold is None and layer is None:
        raise UserError("which attention aligns best? Give gold alignments (--gold), or choose a --layer.")
    if gold is not None:
        check_gold(gold, sample.sources, sample.targets, "the gold alignments")
    study = Study("alignments")
    panels: list[Panel] = []
    for name, parts in systems.items():
        try:
            found = align(parts, sample.sources, sample.targets)
            every = gold is not None and layer is None
            places = list(found[0]) if every else choose_places(found[0], layer, head)
        except UserError as error:
            raise named(name, error) from error
        rates = error_rates([{place: one[place] for place in places} for one in found], gold) if gold else {}
        for place in places:
            row = {"layer": place.layer, "encoder_layer": place.encoder_layer or None, "head": place.head or "mean"}
            study.rows.append({"system": name, **row, "AER": rates.get(place)})
        chosen = [next(iter(rates))] if rates and layer is None else places
        for place in chosen:
            lines = [to_pharaoh(one[place]) for one in found]
            study.texts[f"alignments.{file_name(f'{name}.{_short(place)}')}.txt"] = "".join(f"{x}\n" for x in lines)
            study.summary.append({"system": name, "attention": str(place), "AER": rates.get(place, "")})
        if rates and layer is None:
            panels += _rate_panels(name, rates)
    if panels:
        study.figures["alignments.error-rates"] = figures.heat_maps(panels, "decoder layer", "head", "AER")
    return study


def _short(place: Place) -> str:
    over = f".encoder{place.encoder_layer}" if place.encoder_layer else ""
    return f"layer{place.layer}{over}." + (f"head{place.head}" if place.head else "mean")


def _rate_panels(name: str, rates: dict[Place, float]) -> list[Panel]:
    layers = sorted({place.layer for place in rates})
    heads = sorted({place.head for place in rates})
    found = []
    for over in sorted({place.encoder_layer for place in rates}):
        values = [[rates[Place(layer, over, head)] for head in heads] for layer in layers]
        title = f"{name}, encoder layer {over}" if over else name
        found.append(Panel(title, values, [str(x) for x in layers], [str(h) if h else "mean" for h in heads]))
    return found


def map_study(
    systems: Systems, sample: Sample, side: MapSide = "source", layer: int | None = None, head: int | None = None
) -> Study:
    """Attention weights of the sample's first sentence as heat maps, a panel for each layer, unit or encoder layer.

    The mean over the heads unless a head is chosen; the system's own greedy translation unless one is given.
    """
    study = Study(f"maps.{side}")
    for name, parts in systems.items():
        targets = sample.target_ids(parts)
        with eager_attention(parts.model):
            (one,) = forced_passes(
                parts, sample.source_ids(parts)[:1], None if targets is None else targets[:1], output_attentions=True
            )
        assert one.labels is not None
        source, target = subwords(parts.source, one.source[0]), subwords(parts.target, one.labels[0])
        try:
            if side == "source":
                weights = source_attentions(parts.model, one.output.cross_attentions)
                maps = {str(place): weights[place][0] for place in choose_places(weights, layer, head)}
                rows, columns = target, source
            else:
                layers, _ = self_attentions(one, side, parts.model)
                units = {
                    f"layer {x}{', ' + unit if unit else ''}": heads[0]
                    for x, one_layer in enumerate(layers, start=1)
                    for unit, heads in by_unit(one_layer).items()
                    if layer in (None, x)
                }
                _check(layer, head, len(layers), layers[0].shape[-3])
                maps = {title: heads.mean(0) if head is None else heads[head - 1] for title, heads in units.items()}
                rows = source if side == "encoder" else ["<s>", *target[:-1]]
                columns = rows
        except UserError as error:
            raise named(name, error) from error
        panels = [Panel(title, values.tolist(), rows, columns) for title, values in maps.items()]
        study.rows += [
            {
                "system": name,
                "map": panel.title,
                "row": y,
                "from": rows[y],
                "column": x,
                "to": columns[x],
                "weight": value,
            }
            for panel in panels
            for y, line in enumerate(panel.values)
            for x, value in enumerate(line)
        ]
        stem = f"{study.stem}.{file_name(name)}"
        labels = ("target", "source") if side == "source" else ("from", "to")
        study.figures[stem] = figures.heat_maps(panels, *labels, "attention weight", numbers=False, low=0.0)
        study.summary.append({"system": name, "translation": " ".join(target), "panels": len(panels)})
    return study


def _check(layer: int | None, head: int | None, layers: int, heads: int) -> None:
    for option, value, count in (("layer", layer, layers), ("head", head, heads)):
        if value is not None and not 1 <= value <= count:
            raise UserError(f"--{option} {value}: this model has 1 to {count}.")
