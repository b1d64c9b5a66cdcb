"""Studies of attention: one question, several systems, one sample; rows, figures and a summary for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from hf_mlnmt.analysis import figures
from hf_mlnmt.analysis.dependency import Dependency, dependency
from hf_mlnmt.analysis.divergence import divergence
from hf_mlnmt.analysis.figures import Panel
from hf_mlnmt.analysis.heads import HeadTable, Side, head_table
from hf_mlnmt.analysis.ranges import RANGES, Range
from hf_mlnmt.analysis.reading import subwords
from hf_mlnmt.analysis.sampling import Sample
from hf_mlnmt.analysis.study import Study, named
from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.loading import Parts

Systems = Mapping[str, Parts]
RANGE_TITLES: dict[Range, str] = {"printed": "j ≤ i, as printed", "all": "all positions"}
UNITS_OF = {"distance": "attention distance (positions)", "entropy": "attention entropy (nats)"}


def heads_study(
    systems: Systems, sample: Sample, statistic: str, side: Side = "encoder", renormalize: bool = False
) -> Study:
    """Distance or entropy of every head: heat maps (layers x heads) and curves of the layers' means, in both ranges.

    A decoder sees j <= i only: one range.
    """
    study = Study(f"{statistic}.{side}")
    ranges = RANGES if side == "encoder" else RANGES[:1]
    tables: dict[Range, dict[str, HeadTable]] = {positions: {} for positions in ranges}
    for name, parts in systems.items():
        sources, targets = sample.source_ids(parts), sample.target_ids(parts) if side == "decoder" else None
        for positions in ranges:
            try:
                table = head_table(parts, sources, statistic, side, positions, renormalize, targets)
            except UserError as error:
                raise named(name, error) from error
            tables[positions][name] = table
            study.rows += [{"system": name, "range": positions, **row} for row in table.rows()]
    lines: dict[str, dict[str, dict[int, float]]] = {}
    for positions, of_range in tables.items():
        title = RANGE_TITLES[positions] if len(ranges) > 1 else ""
        for name, table in of_range.items():
            for unit, means in _layers(table).items():
                lines.setdefault(title, {})[_title(name, unit)] = means
                common = {"system": name, "range": positions}
                study.rows += [
                    {**common, "layer": x, "unit": unit, "head": "mean", "value": y} for x, y in means.items()
                ]
                shown = {f"layer {x}": round(y, 3) for x, y in means.items()}
                study.summary.append({"system": _title(name, unit), "range": RANGE_TITLES[positions], **shown})
        panels = [panel for name, table in of_range.items() for panel in _panels(name, table)]
        stem = f"{study.stem}.heads.{positions}"
        study.figures[stem] = figures.heat_maps(panels, "layer", "head", UNITS_OF[statistic])
    study.figures[f"{study.stem}.layers"] = figures.curves(lines, f"{side} layer", UNITS_OF[statistic])
    return study


def _title(name: str, unit: str) -> str:
    return f"{name}, {unit}" if unit else name


def _layers(table: HeadTable) -> dict[str, dict[int, float]]:
    """{unit: {layer: mean over its heads}}"""
    found: dict[str, dict[int, float]] = {}
    for number, layer in enumerate(table.layer_means(), start=1):
        for unit, value in layer.items():
            found.setdefault(unit, {})[number] = value
    return found


def _panels(name: str, table: HeadTable) -> list[Panel]:
    units = list(dict.fromkeys(unit for layer in table.values for unit in layer))
    count = max(len(heads) for layer in table.values for heads in layer.values())
    found = []
    for unit in units:
        values = [layer[unit].tolist() if unit in layer else [None] * count for layer in table.values]
        rows = [str(number) for number in range(1, len(values) + 1)]
        found.append(Panel(_title(name, unit), values, rows, [str(h + 1) for h in range(count)]))
    return found


def divergence_study(systems: Systems, sample: Sample, side: Side = "encoder", over_heads: bool = False) -> Study:
    """JS divergence of the two units: a curve over the layers for each system, and bars of the means (13)."""
    study, lines, means = Study(f"divergence.{side}"), {}, []
    for name, parts in systems.items():
        targets = sample.target_ids(parts) if side == "decoder" else None
        try:
            found = divergence(parts, sample.source_ids(parts), side, over_heads, targets)
        except UserError as error:
            raise named(name, error) from error
        kernel = parts.model.config.kernel_size
        study.rows += [{"system": name, "kernel_size": kernel, **row} for row in found.rows()]
        layers = {f"layer {x}": round(y, 4) for x, y in found.layers.items()}
        study.summary.append({"system": name, "kernel_size": kernel, **layers, "mean": round(found.mean, 4)})
        lines[name] = found.layers
        means.append((f"{name}, f = {kernel}", found.mean, ""))
    study.figures[f"{study.stem}.layers"] = figures.curves({"": lines}, f"{side} layer", "JS divergence (nats)")
    study.figures[f"{study.stem}.means"] = figures.bars({"": means}, "mean JS divergence (nats)")
    return study


def dependency_study(systems: Systems, sample: Sample, summed: bool = False, line: int | None = None) -> Study:
    """AIF dependency: outputs by system, attention by layer, and every token of one sentence (`line` of the file)."""
    if line is not None and line not in sample.lines:
        raise UserError(f"--sentence {line}: not in the sample; take one of its lines, such as {sample.lines[0]}.")
    index = 0 if line is None else sample.lines.index(line)
    study, outputs, layers, tokens = Study("dependency"), [], {}, {}
    for name, parts in systems.items():
        try:
            found: Dependency = dependency(parts, sample.source_ids(parts), summed)
        except UserError as error:
            raise named(name, error) from error
        study.rows += [{"system": name, **row} for row in found.rows()]
        one = found.sentences[index]
        pieces = subwords(parts.target, one.target)
        study.rows += [
            {"system": name, "of": f"line {sample.lines[index]}", "token": piece, "value": value}
            for piece, value in zip(pieces, one.tokens, strict=True)
        ]
        of_layers = {f"layer {x}": round(y, 4) for x, y in enumerate(found.layers, start=1)}
        within = "{:.4g} to {:.4g}".format(*found.interval) if found.interval else ""
        said = {"outputs": round(found.outputs, 4), "95 %": within}
        study.summary.append({"system": name, **said, **of_layers})
        outputs.append((name, found.outputs, ""))
        layers[name] = dict(enumerate(found.layers, start=1))
        tokens[name] = list(zip(pieces, one.tokens, strict=True))
    study.figures["dependency.outputs"] = figures.bars({"": outputs}, "dependency of the outputs (nats)")
    study.figures["dependency.layers"] = figures.curves({"": layers}, "decoder layer", "dependency (nats)")
    study.figures["dependency.sentence"] = figures.token_bars(tokens, "dependency (nats)")
    return study
