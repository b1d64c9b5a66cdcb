"""Self-attention of an encoder or a decoder: distance, entropy, the divergence of two units, dependency on auxiliaries.

Weights of a layer: (batch, heads, time, time); of a layer with the dual contextual module (batch, 2, heads, time,
time), its unit over the local context, then its unit over the sentence. Each unit is measured by itself.

Distance and entropy of a head over a corpus, over real positions j <= i or all of them: Ampomah et al. 2020, "Every
Layer Counts", PBML 115, equations 13 and 14 (after Vig and Belinkov 2019), 15 and 16 (after Ghader and Monz 2017);
thesis on joint attention, section 3.5.3.

(13) D_h = sum_x sum_i sum_{j<=i} w_ij (i - j) / sum_x sum_i sum_{j<=i} w_ij          (14) D = mean over heads of D_h

Departs: the sums of (13) leave out j > i, although the encoder attends to both sides. Range "all" sums over every real
j, with |i - j|. As printed, a position is weighted by the share of its attention that goes to the left.

(15) E_h(x_i) = - sum_{j<=i} w_ij log w_ij        (16) E(x_i) = mean over heads of E_h(x_i); then the mean over all x_i

Departs: range "all" sums over every real j, as for the distance. The weights of (15) need not sum to 1 over j <= i.

Divergence of the two units of the dual contextual module: Ampomah et al. 2021, "Dual contextual module for
neural machine translation", Machine Translation 35, section 6, equations 10 to 13; thesis, section 5.6.2.

(10) alpha_g = max over the heads of alpha_g^i, alpha_l likewise       (11) dv = JS(alpha_g, alpha_l), natural logarithm
(12) KL(P, Q) = sum_x P(x) log P(x) - sum_x P(x) log Q(x)              (13) E_d = mean of dv over the layers

Departs: a maximum of distributions is no distribution: it is divided by its sum over the keys, so that JS is at most
log 2 as the paper says. dv of a layer is the mean over all positions of all sentences; the paper does not say how
positions are combined.

Dependency of the main decoder of a model with AIF on its auxiliaries: thesis, section 4.5.5, equations 4.4 to 4.7,
figures 4.7 and 4.8.

(4.4) D_t = KL(P_m(y_t) || P_ind(y_t))               (4.5) D_Y = mean of D_t over the target positions
(4.6) D_h^l = KL(A_m^h || A_ind^h), A (target, source) the weights over the source       (4.7) D^l = mean over the heads

P_m, A_m are those of the model, P_ind, A_ind those of the same model with all W of AIF zero (`auxiliary_mask` of
zeros); both read the model's own greedy translation, </s> included.

Departs: (4.6) is a divergence of matrices; here the mean of the KL of each target position.
Weights of A_ind that are zero in floating point become the smallest positive number, so that the divergence is finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hf_mlnmt.analysis.reading import Sample, Systems, attending, encoder_passes, forced_passes, subwords
from hf_mlnmt.common.errors import UserError, naming
from hf_mlnmt.evaluation import figures
from hf_mlnmt.evaluation.figures import Panel, Study
from hf_mlnmt.generation.translating.loading import Parts

Range = Literal["printed", "all"]
"""printed: j <= i, the sums of equations 13 and 15 as they are printed; all: every real position."""
Side = Literal["encoder", "decoder"]
UNITS = ("local", "global")
RANGE_TITLES: dict[Range, str] = {"printed": "j ≤ i, as printed", "all": "all positions"}
Ids = Sequence[Sequence[int]]
HeadValues = list[dict[str, Tensor]]
"""For each layer {unit: (heads,)}, a value of every head; the unit is "" where a layer has one attention."""


def weights_in_range(weights: Tensor, real: Tensor, positions: Range = "printed") -> Tensor:
    """Returns attention weights in float64, with zeros at padding and, in range "printed", where j > i.

    weights (batch, ..., time, time): from position i (row) to position j. real (batch, time): False at padding.
    """
    time, middle = weights.shape[-1], [1] * (weights.dim() - 3)
    kept = (real[:, :, None] & real[:, None, :]).view(real.shape[0], *middle, time, time)
    if positions == "printed":
        kept = kept & torch.ones(time, time, dtype=torch.bool, device=weights.device).tril()
    return weights.double().masked_fill(~kept, 0.0)


def distance_sums(weights: Tensor, real: Tensor, positions: Range = "printed") -> tuple[Tensor, Tensor]:
    """Returns numerator and denominator of the distance (13) of a batch, to be summed over the corpus and then divided.

    weights (batch, ..., time, time), such as (batch, heads, time, time); real (batch, time), False at padding.
    Returns two tensors (...), float64.
    """
    chosen = weights_in_range(weights, real, positions)
    place = torch.arange(weights.shape[-1], device=weights.device)
    gaps = (place[:, None] - place[None, :]).abs()
    return (chosen * gaps).sum((0, -2, -1)), chosen.sum((0, -2, -1))


def entropy_sums(weights: Tensor, real: Tensor, positions: Range = "printed") -> tuple[Tensor, Tensor]:
    """Returns the sum of the entropies (15) of a batch's real positions, and their number, for sums over the corpus.

    weights (batch, ..., time, time), real (batch, time), False at padding. Returns two tensors (...), float64.
    """
    chosen = weights_in_range(weights, real, positions)
    entropies = -torch.xlogy(chosen, chosen).sum(-1)  # (batch, ..., time)
    counted = real.view(real.shape[0], *[1] * (weights.dim() - 3), -1).expand(entropies.shape)
    return entropies.sum((0, -1)), counted.double().sum((0, -1))


STATISTICS = {
    "distance": (distance_sums, "attention distance (positions)"),
    "entropy": (entropy_sums, "attention entropy (nats)"),
}
"""Name of a statistic -> its function, its label in figures."""


def head_rows(layers: HeadValues) -> list[dict[str, Any]]:
    """Returns rows with layer, unit, head, value: one for each head, then each layer's mean over its heads (14, 16)."""
    units = [(number, unit, heads) for number, layer in enumerate(layers, start=1) for unit, heads in layer.items()]
    numbered = [(number, unit, head, x) for number, unit, heads in units for head, x in enumerate(heads.tolist(), 1)]
    means = [(number, unit, "mean", heads.mean().item()) for number, unit, heads in units]
    return [dict(zip(("layer", "unit", "head", "value"), row)) for row in (*numbered, *means)]


def by_unit(weights: Tensor) -> dict[str, Tensor]:
    """Splits a layer's weights by unit of the dual contextual module: {"local" and "global": (batch, heads, time,
    time)}; or returns {"": weights} for a layer without that module."""
    return {"": weights} if weights.dim() == 4 else dict(zip(UNITS, weights.unbind(1), strict=True))


def head_table(
    parts: Parts,
    sources: Ids,
    statistic: str,
    side: Side = "encoder",
    positions: Range = "printed",
    targets: Ids | None = None,
) -> HeadValues:
    """Computes `statistic` ("distance" or "entropy") of every head of one side over a corpus.

    sources, targets: token ids of each sentence (reading.py); without `targets` the decoder reads its own greedy
    translations. A decoder attends to j <= i only, so both ranges are the same for it. Raises: UserError if
    the model returns no attention weights.
    """
    sums_of, _ = STATISTICS[statistic]
    totals: list[dict[str, Tensor]] = []  # for each layer and unit numerator and denominator of every head
    for layers, real in _attentions(parts, sources, side, targets):
        totals = totals or [{} for _ in layers]
        for sums, layer in zip(totals, layers, strict=True):
            for unit, weights in by_unit(layer).items():
                of_batch = torch.stack(sums_of(weights, real, positions))
                sums[unit] = sums.get(unit, 0) + of_batch
    return [{unit: (above / below).cpu() for unit, (above, below) in sums.items()} for sums in totals]


def _attentions(
    parts: Parts, sources: Ids, side: Side, targets: Ids | None
) -> Iterator[tuple[Sequence[Tensor], Tensor]]:
    """Yields the self-attention weights of every layer of one side, and which positions are real (batch, time), for
    each batch; runs only the encoder, or for the decoder's the whole model."""
    parts, of_encoder = attending(parts), side == "encoder"
    names = ("encoder_attentions", "attentions") if of_encoder else ("decoder_attentions",)
    if of_encoder:
        passes = encoder_passes(parts, sources, output_attentions=True)
    else:
        passes = forced_passes(parts, sources, targets, output_attentions=True)
    for read in passes:
        real = read.source_real if of_encoder else read.target_real
        layers = next(filter(None, (getattr(read.output, name, None) for name in names)), None)
        if not layers or any(layer is None for layer in layers):
            name = type(parts.model).__name__
            raise UserError(f"{name} returns no self-attention weights of its {side}: nothing to measure.")
        assert real is not None
        yield layers, real


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Computes JS (11) of two distributions over the last dimension, (..., n) -> (...), in nats, float64."""
    p, q = p.double(), q.double()
    middle = (p + q) / 2
    mixed = torch.xlogy(p, middle) + torch.xlogy(q, middle)
    return (torch.xlogy(p, p) + torch.xlogy(q, q) - mixed).sum(-1) / 2


def unit_divergence(first: Tensor, second: Tensor) -> Tensor:
    """Computes at each position JS (11) of two units, of the maxima over heads of their weights (10), renormalised.

    Weights: (batch, heads, time, keys). Returns (batch, time), without meaning at padding.
    """
    highest = [unit.double().amax(1) for unit in (first, second)]
    return jensen_shannon(*(unit / unit.sum(-1, keepdim=True) for unit in highest))


def collect_divergences(attentions: Iterable[tuple[Sequence[Tensor], Tensor]]) -> dict[int, float]:
    """Returns {layer, from 1: mean divergence (11) of its two units, in nats}, without layers of a single unit.

    attentions: for each batch the weights of all layers, and which positions are real.
    """
    sums: dict[int, float] = {}
    positions = 0
    for layers, real in attentions:
        positions += int(real.sum())
        for number, weights in enumerate(layers, start=1):
            if weights.dim() == 5:
                local, whole = weights.unbind(1)
                values = unit_divergence(whole, local).masked_fill(~real, 0.0)
                sums[number] = sums.get(number, 0.0) + values.sum().item()
    return {number: value / positions for number, value in sums.items()}


def divergence(parts: Parts, sources: Ids, side: Side = "encoder", targets: Ids | None = None) -> dict[int, float]:
    """Returns {layer: divergence of its two units (11)} of one side for token ids of a corpus; a decoder reads
    `targets`, or its own translations. Raises: UserError if the side has no dual contextual module."""
    one_sided = {"encoder": "Enc-DC", "decoder": "Dec-DC"}[side]
    if getattr(parts.model.config, "dual_context", None) not in (one_sided, "Full-DC"):
        raise UserError(
            f"{type(parts.model).__name__} has no dual contextual module in its {side}: divergence is between the two "
            "units of one (enc-dc, dec-dc, full-dc)."
        )
    return collect_divergences(_attentions(parts, sources, side, targets))


def kl_of_logits(logits: Tensor, other: Tensor) -> Tensor:
    """Computes KL(softmax(logits) || softmax(other)) over the last dimension, (..., n) -> (...), nats, float64."""
    log_p, log_q = logits.double().log_softmax(-1), other.double().log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def kl_of_weights(p: Tensor, q: Tensor) -> Tensor:
    """Computes KL(p || q) over the last dimension, of weights that may be zero: (..., n) -> (...), nats, float64."""
    p, q = p.double(), q.double().clamp_min(torch.finfo(torch.float64).tiny)
    return (torch.xlogy(p, p) - p * q.log()).sum(-1)


def attention_dependency(weights: Tensor, other: Tensor, target_real: Tensor) -> Tensor:
    """Computes (4.6) of each sentence and head, the mean over real target positions of KL(weights || other): (batch,
    heads, target, source) -> (batch, heads), float64."""
    values = kl_of_weights(weights, other).masked_fill(~target_real[:, None], 0.0).sum(-1)
    return values / target_real.sum(-1)[:, None]


class SentenceDependency(NamedTuple):
    """Dependency in one sentence: ids of the translation, D_t (4.4) of each token, and D_h^l (4.6) (layers, heads)."""

    target: list[int]
    tokens: list[float]
    heads: Tensor


def dependency_rows(sentences: Sequence[SentenceDependency]) -> list[dict[str, Any]]:
    """Returns rows of means over sentences: D_Y (4.5) with its 95 % interval, then D^l (4.7), D_h^l (4.6) by layer.

    The interval is over samples of sentences, by the normal distribution; for one sentence it is empty.
    """
    means = [fmean(sentence.tokens) for sentence in sentences]
    rows: list[dict[str, Any]] = [{"of": "outputs", "layer": "", "head": "", "value": fmean(means)}]
    half = 1.96 * stdev(means) / sqrt(len(means)) if len(means) > 1 else None
    rows[0] |= {"low": "" if half is None else fmean(means) - half, "high": "" if half is None else fmean(means) + half}
    heads = torch.stack([sentence.heads for sentence in sentences]).mean(0)
    for layer, values in enumerate(heads.tolist(), start=1):
        numbered = [("mean", fmean(values)), *enumerate(values, start=1)]
        rows += [{"of": "attention", "layer": layer, "head": head, "value": value} for head, value in numbered]
    return rows


def dependency(parts: Parts, sources: Ids) -> list[SentenceDependency]:
    """Computes for each source sentence (token ids) the dependency of a model with AIF on its auxiliaries. Raises:
    UserError for a model without AIF."""
    if not getattr(parts.model.config, "information_fusion", False):
        raise UserError(
            f"{type(parts.model).__name__} here has no auxiliary information fusion: its decoder reads no auxiliaries "
            "(ms-<layers>-aif)."
        )
    parts = attending(parts)
    none = [0.0] * len(parts.model.config.auxiliary_layers)
    sentences: dict[int, SentenceDependency] = {}
    for read in forced_passes(parts, sources, output_attentions=True):
        assert read.labels is not None
        assert read.target_real is not None
        with torch.no_grad():
            other = parts.model(
                input_ids=read.source,
                attention_mask=read.source_real.long(),
                decoder_input_ids=parts.model.prepare_decoder_input_ids_from_labels(read.labels),
                use_cache=False,
                output_attentions=True,
                auxiliary_mask=none,
            )
        tokens = kl_of_logits(read.output.logits, other.logits)
        pairs = zip(read.output.cross_attentions, other.cross_attentions, strict=True)
        heads = torch.stack([attention_dependency(a, b, read.target_real) for a, b in pairs], dim=1).cpu()
        for row, index in enumerate(read.indices):
            length = int(read.target_real[row].sum())
            target = read.labels[row, :length].tolist()
            sentences[index] = SentenceDependency(target, tokens[row, :length].tolist(), heads[row])
    return [sentences[index] for index in range(len(sources))]


def heads_study(systems: Systems, sample: Sample, statistic: str, side: Side = "encoder") -> Study:
    """Computes distance or entropy of every head; draws heat maps (layers x heads), and curves of the layers' means.

    For an encoder in both ranges; a decoder attends to j <= i only.
    """
    study, (_, label) = Study(f"{statistic}.{side}"), STATISTICS[statistic]
    ranges: tuple[Range, ...] = ("printed", "all") if side == "encoder" else ("printed",)
    lines: dict[str, dict[str, dict[int, float]]] = {}
    for positions in ranges:
        curves, panels = lines.setdefault(RANGE_TITLES[positions] if len(ranges) > 1 else "", {}), list[Panel]()
        for name, parts in systems.items():
            sources, targets = sample.source_ids(parts), sample.target_ids(parts)
            with naming(name):
                layers = head_table(parts, sources, statistic, side, positions, targets)
            rows = head_rows(layers)
            study.rows += [{"system": name, "range": positions, **row} for row in rows]
            for unit in dict.fromkeys(row["unit"] for row in rows):
                title = f"{name}, {unit}" if unit else name
                means = {row["layer"]: row["value"] for row in rows if (row["unit"], row["head"]) == (unit, "mean")}
                curves[title] = means
                shown = {f"layer {x}": round(y, 3) for x, y in means.items()}
                study.summary.append({"system": title, "range": RANGE_TITLES[positions], **shown})
                panels.append(_panel(title, unit, layers))
        study.figures[f"{study.stem}.heads.{positions}"] = figures.heat_maps(panels, "layer", "head", label)
    study.figures[f"{study.stem}.layers"] = figures.curves(lines, f"{side} layer", label)
    return study


def _panel(title: str, unit: str, layers: HeadValues) -> Panel:
    """Returns the heat map of a unit (layers x heads), with empty rows for layers without that unit."""
    count = max(len(heads) for layer in layers for heads in layer.values())
    values = [layer[unit].tolist() if unit in layer else [None] * count for layer in layers]
    return Panel(title, values, [str(x + 1) for x in range(len(values))], [str(x + 1) for x in range(count)])


def divergence_study(systems: Systems, sample: Sample, side: Side = "encoder") -> Study:
    """Computes the JS divergence of each system's two units; draws curves over layers, and bars of layers' means."""
    study, lines, means = Study(f"divergence.{side}"), {}, []
    for name, parts in systems.items():
        with naming(name):
            measured = divergence(parts, sample.source_ids(parts), side, sample.target_ids(parts))
        kernel, mean = parts.model.config.kernel_size, fmean(measured.values())
        about, said = {"system": name, "kernel_size": kernel}, f"{name}, kernel of {kernel}"
        study.rows += [{**about, "layer": x, "value": y} for x, y in [*measured.items(), ("mean", mean)]]
        layers = {f"layer {x}": round(y, 4) for x, y in measured.items()}
        study.summary.append({**about, **layers, "mean": round(mean, 4)})
        lines[said] = measured
        means.append((said, mean, ""))
    label = "JS divergence (nats, 0 to 0.69)"
    study.figures[f"{study.stem}.layers"] = figures.curves({"": lines}, f"{side} layer", label)
    study.figures[f"{study.stem}.means"] = figures.bars({"": means}, f"mean {label}")
    return study


def dependency_study(systems: Systems, sample: Sample, line: int | None = None) -> Study:
    """Computes dependency on AIF; draws bars of the outputs' by system, curves of the attention's by layer, and bars of
    the tokens of one sentence: the file's line `line`, or for None the sample's first. Raises: UserError for a line
    that is not in the sample."""
    if line is not None and line not in sample.lines:
        raise UserError(f"--sentence {line}: not in the sample; take one of its lines, such as {sample.lines[0]}.")
    index = 0 if line is None else sample.lines.index(line)
    of_line = f"line {sample.lines[index]}"
    study, outputs, layers, tokens = Study("dependency"), [], {}, {}
    for name, parts in systems.items():
        with naming(name):
            sentences = dependency(parts, sample.source_ids(parts))
        of_outputs, *of_heads = rows = dependency_rows(sentences)
        drawn = sentences[index]
        pairs = list(zip(subwords(parts.target, drawn.target), drawn.tokens, strict=True))
        tokens[f"{name}, {of_line}"] = [(piece, value, "") for piece, value in pairs]
        rows += [{"of": of_line, "token": piece, "value": value} for piece, value in pairs]
        study.rows += [{"system": name, **row} for row in rows]
        layers[name] = {row["layer"]: row["value"] for row in of_heads if row["head"] == "mean"}
        of_layers = {f"layer {x}": round(y, 4) for x, y in layers[name].items()}
        value, low, high = (of_outputs[key] for key in ("value", "low", "high"))
        within = "" if low == "" else f"{low:.4g} to {high:.4g}"
        study.summary.append({"system": name, "outputs": round(value, 4), "95 %": within, **of_layers})
        outputs.append((name, value, ""))
    study.figures["dependency.outputs"] = figures.bars({"": outputs}, "dependency of the outputs (nats)")
    study.figures["dependency.layers"] = figures.curves({"": layers}, "decoder layer", "dependency (nats)")
    study.figures["dependency.sentence"] = figures.bars(tokens, "dependency (nats)")
    return study
