"""Coverage of a source sentence: how much attention each of its subwords has had after every target subword.

Reference: thesis on monolingual data, equation 5.7 and the paragraphs on fertility (section 5.2.2); for a model without
recurrent attention the sums are of its ordinary attention over the source, which the thesis's argument starts from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.analysis.study import Study, file_name, named
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import atomic_path, check_file
from hf_mlnmt.generation.loading import Parts
from hf_mlnmt.generation.segments import check_characters

SUFFIXES = (".png", ".svg", ".pdf")


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
        layers, heads = self.sums.shape[:2]
        for name, value, count in (("layer", layer, layers), ("head", head, heads)):
            if value is not None and not 1 <= value <= count:
                raise UserError(f"--{name} {value}: this model has {count}; give 1 to {count}")
        chosen = self.sums if layer is None else self.sums[layer - 1 : layer]
        return chosen.mean(1) if head is None else chosen[:, head - 1]


@torch.no_grad()
def measure(parts: Parts, text: str, translation: str | None = None, num_beams: int = 5) -> Coverage:
    """Translate `text`, or take the `translation` that is given, and sum the attention over the source.

    Raises: UserError if the text is empty, or the model returns no attention over the source.
    """
    model = parts.model
    if not text.strip():
        raise UserError("the sentence is empty: give one to translate")
    check_characters(text, "the sentence")
    check_characters(translation or "", "the translation")
    batch = _encode(parts.source, parts.source_processing, text, "input").to(model.device)
    if translation is None:
        limit = min(2 * batch["input_ids"].shape[1] + 20, getattr(model.config, "max_position_embeddings", 512) - 1)
        rows = model.generate(**batch, num_beams=num_beams, max_new_tokens=limit)
        labels = rows[:, 1:]
    else:
        labels = _encode(parts.target, parts.target_processing, translation, "target")["input_ids"].to(model.device)
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the others keep their weights to themselves
    try:
        out = model(**batch, labels=labels, output_attentions=True)
    finally:
        model.set_attn_implementation(before)
    if not out.cross_attentions:
        raise UserError(f"{type(model).__name__} returns no attention over the source: there is nothing to sum")
    layers = [layer[0].float().reshape(-1, *layer.shape[-2:]) for layer in out.cross_attentions]
    if any(layer.shape[-1] != batch["input_ids"].shape[1] for layer in layers):
        raise UserError(f"{type(model).__name__} does not attend to source positions: there is no coverage to show")
    return Coverage(
        source=_subwords(parts.source, batch["input_ids"][0]),
        target=_subwords(parts.target, labels[0]),
        sums=torch.stack(layers).cumsum(2).cpu(),
        fertilities=_fertilities(model, batch),
    )


def check_picture(path: str | Path) -> Path:
    """The path; UserError if its suffix is not that of a picture, or no file can be written there."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: a picture's name ends in {', '.join(SUFFIXES)}")
    check_file(path)
    return path


def draw(
    coverage: Coverage, path: str | Path, layer: int | None = None, head: int | None = None, title: str = ""
) -> Path:
    """One heat map a layer (target subwords downwards, source subwords across), fertilities as bars; returns the path.

    Raises: UserError if matplotlib is missing, or the file's suffix is not .png, .svg or .pdf.
    """
    path = check_picture(path)
    picture = figure(coverage, layer, head, title)
    with atomic_path(path) as temporary:
        picture.savefig(temporary, format=path.suffix[1:], dpi=120)
    return path


def coverage_study(
    systems: Mapping[str, Parts],
    text: str,
    translation: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    num_beams: int = 5,
) -> Study:
    """The coverage of one sentence by each system's translation of it, or by the one that is given.

    Raises: UserError as `measure` and `Coverage.select`, naming the system.
    """
    study = Study("coverage")
    for name, parts in systems.items():
        try:
            measured = measure(parts, text, translation, num_beams)
            panels = measured.select(layer, head)
        except UserError as error:
            raise named(name, error) from error
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
    try:
        from matplotlib.figure import Figure  # no pyplot: no display is needed, no state is left
    except ImportError as error:
        raise UserError("pictures need matplotlib: pip install 'hf-mlnmt[analysis]'") from error
    panels = coverage.select(layer, head)
    wide, high = 1.6 + 0.32 * len(coverage.source), 1.6 + 0.26 * len(coverage.target)
    columns = min(len(panels), 2)
    rows = math.ceil(len(panels) / columns)
    extra = 2.2 if coverage.fertilities else 0.0
    picture = Figure(figsize=(columns * wide + 1, rows * high + extra), layout="constrained")
    if title:
        picture.suptitle(title)
    grid = picture.add_gridspec(rows + bool(extra), columns, height_ratios=[high] * rows + [extra] * bool(extra))
    top, axes = max(1.0, float(panels.max())), []
    for index, sums in enumerate(panels):
        axis = picture.add_subplot(grid[index // columns, index % columns])
        axis.imshow(sums.numpy(), vmin=0.0, vmax=top, cmap="viridis", aspect="auto")
        number = layer if layer is not None else index + 1
        axis.set_title(f"layer {number}, " + ("mean of heads" if head is None else f"head {head}"), fontsize=9)
        _name_ticks(axis, coverage)
        axes.append(axis)
    picture.colorbar(axes[0].images[0], ax=axes, label="attention so far", shrink=0.8)
    if coverage.fertilities:
        axis = picture.add_subplot(grid[rows, :])
        axis.bar(range(len(coverage.source)), coverage.fertilities)
        axis.set_xticks(range(len(coverage.source)), coverage.source, rotation=90, fontsize=7)
        axis.set_ylabel("fertility")
    return picture


def _name_ticks(axis: Any, coverage: Coverage) -> None:
    axis.set_xticks(range(len(coverage.source)), coverage.source, rotation=90, fontsize=7)
    axis.set_yticks(range(len(coverage.target)), coverage.target, fontsize=7)


def _encode(tokenizer: Any, processing: Any, text: str, side: str) -> Any:
    text = processing.apply(text) if processing is not None else text
    given = {"text": text} if side == "input" else {"text_target": text}
    encoded = tokenizer(**given, return_tensors="pt")
    encoded.pop("token_type_ids", None)
    return encoded


def _subwords(tokenizer: Any, ids: Tensor) -> list[str]:
    return [token.replace("\u2581", "_") for token in tokenizer.convert_ids_to_tokens(ids.tolist())]


def _fertilities(model: Any, batch: Any) -> list[float] | None:
    encoder = model.get_encoder()
    if getattr(encoder, "fertility", None) is None:
        return None
    states = encoder(**batch).last_hidden_state
    return (1 / encoder.fertility(states)[0, :, 0]).tolist()
