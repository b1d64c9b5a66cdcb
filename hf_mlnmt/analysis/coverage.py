"""Coverage of a source sentence: how much attention each of its subwords has had after every target subword.

Reference: thesis on monolingual data, equation 5.7 and the paragraphs on fertility (section 5.2.2); for a model without
recurrent attention the sums are of its ordinary attention over the source, which the thesis's argument starts from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.analysis.figures import new_figure, save_picture
from hf_mlnmt.analysis.reading import (
    Sample,
    Systems,
    check_place,
    eager_attention,
    encode_sources,
    encode_targets,
    own_translations,
    subwords,
)
from hf_mlnmt.analysis.study import Study, naming
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import file_name
from hf_mlnmt.generation.batches import pad
from hf_mlnmt.generation.loading import Parts
from hf_mlnmt.generation.segments import check_characters


@dataclass(frozen=True)
class Coverage:
    """A sentence and its translation, in subwords, and sums of attention.

    `sums` (layers, heads, target, source): sum of alpha(j|i') for i' <= i; a layer that has several attentions (MLMHA
    with weights of their own, U0 = 1) has the heads of all of them. `fertilities`: phi of each source subword, or None.
    """

    source: list[str]
    target: list[str]
    sums: Tensor
    fertilities: list[float] | None

    def select(self, layer: int | None = None, head: int | None = None) -> Tensor:
        """(panels, target, source): the layers, or one, counted from 1; the mean over heads, or one head, from 1.

        Raises: UserError for a layer or head that is not there.
        """
        check_place(layer, head, *self.sums.shape[:2])
        chosen = self.sums if layer is None else self.sums[layer - 1 : layer]
        return chosen.mean(1) if head is None else chosen[:, head - 1]


@torch.no_grad()
def measure(
    parts: Parts,
    text: str,
    translation: str | None = None,
    num_beams: int = 5,
    languages: tuple[str | None, str | None] = (None, None),
) -> Coverage:
    """Translate `text`, or take the `translation` that is given, and sum the attention over the source.

    languages: source and target, for a model that is told them.

    Raises: UserError if the text is empty or too long, or the model returns no attention over the source.
    """
    model = parts.model
    if not text.strip():
        raise UserError("the sentence is empty: give one to translate")
    check_characters(text, "the sentence")
    check_characters(translation or "", "the translation")
    ids, mask = pad(encode_sources(parts, [text], *languages), 0, model.device)
    if translation is None:
        labels = own_translations(model, ids, mask, num_beams)
    else:
        labels = torch.tensor(encode_targets(parts, [translation]), device=model.device)
    with eager_attention(model):
        out = model(input_ids=ids, attention_mask=mask, labels=labels, output_attentions=True)
    if not out.cross_attentions:
        raise UserError(f"{type(model).__name__} returns no attention over the source: there is nothing to sum")
    layers = [layer[0].float().reshape(-1, *layer.shape[-2:]) for layer in out.cross_attentions]
    if any(layer.shape[-1] != ids.shape[1] for layer in layers):
        raise UserError(f"{type(model).__name__} does not attend to source positions: there is no coverage to show")
    encoder, fertilities = model.get_encoder(), None
    if getattr(encoder, "fertility", None) is not None:
        states = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        fertilities = (1 / encoder.fertility(states)[0, :, 0]).tolist()
    return Coverage(
        source=subwords(parts.source, ids[0]),
        target=subwords(parts.target, labels[0]),
        sums=torch.stack(layers).cumsum(2).cpu(),
        fertilities=fertilities,
    )


def draw(
    coverage: Coverage, path: str | Path, layer: int | None = None, head: int | None = None, title: str = ""
) -> Path:
    """One heat map a layer (target subwords downwards, source subwords across), fertilities as bars; returns the path.

    Raises: UserError if matplotlib is missing, or the file's suffix is not .png, .svg or .pdf.
    """
    return save_picture(figure(coverage, layer, head, title), path)


def coverage_study(
    systems: Systems,
    sample: Sample,
    layer: int | None = None,
    head: int | None = None,
    num_beams: int = 5,
) -> Study:
    """The coverage of the sample's first sentence by each system's translation of it, or by the one that is given.

    Raises: UserError as `measure` and `Coverage.select`, naming the system.
    """
    study = Study("coverage")
    translation = sample.targets[0] if sample.targets else None
    for name, parts in systems.items():
        with naming(name):
            measured = measure(parts, sample.sources[0], translation, num_beams, sample.languages)
            panels = measured.select(layer, head)
        for number, sums in enumerate(panels.tolist(), start=layer or 1):
            study.rows += [
                {
                    **{"system": name, "layer": number, "head": head or "mean"},
                    **{"row": y, "target": measured.target[y], "column": x, "source": measured.source[x]},
                    "coverage": value,
                }
                for y, line in enumerate(sums)
                for x, value in enumerate(line)
            ]
        study.rows += [
            {"system": name, "column": x, "source": measured.source[x], "fertility": fertility}
            for x, fertility in enumerate(measured.fertilities or ())
        ]
        study.figures[f"coverage.{file_name(name)}"] = figure(measured, layer, head, name)
        study.summary.append({"system": name, "translation": " ".join(measured.target), "panels": len(panels)})
    return study


def figure(coverage: Coverage, layer: int | None = None, head: int | None = None, title: str = "") -> Any:
    """What `draw` writes, as a figure of matplotlib."""
    panels = coverage.select(layer, head)
    wide, high = 1.6 + 0.32 * len(coverage.source), 1.6 + 0.26 * len(coverage.target)
    columns = min(len(panels), 2)
    rows = math.ceil(len(panels) / columns)
    extra = 2.2 if coverage.fertilities else 0.0
    picture = new_figure(columns * wide + 1, rows * high + extra)
    if title:
        picture.suptitle(title)
    grid = picture.add_gridspec(rows + bool(extra), columns, height_ratios=[high] * rows + [extra] * bool(extra))
    top, axes = max(1.0, float(panels.max())), []
    for index, sums in enumerate(panels):
        axis = picture.add_subplot(grid[index // columns, index % columns])
        axis.imshow(sums.numpy(), vmin=0.0, vmax=top, cmap="viridis", aspect="auto")
        of_heads = "mean of heads" if head is None else f"head {head}"
        axis.set_title(f"layer {layer or index + 1}, {of_heads}", fontsize=9)
        axis.set_yticks(range(len(coverage.target)), coverage.target, fontsize=7)
        axes.append(axis)
    picture.colorbar(axes[0].images[0], ax=axes, label="attention so far", shrink=0.8)
    if coverage.fertilities:
        axis = picture.add_subplot(grid[rows, :])
        axis.bar(range(len(coverage.source)), coverage.fertilities)
        axis.set_ylabel("fertility")
        axes.append(axis)
    for axis in axes:
        axis.set_xticks(range(len(coverage.source)), coverage.source, rotation=90, fontsize=7)
    return picture
