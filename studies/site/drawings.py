"""Draws what each family of systems differs in from the Transformer, as SVG for the gallery (build.py).

    python studies/site/drawings.py FOLDER          # <family>.svg for each, to be looked at

Encoder left, decoder right, both read from bottom to top; what differs is in the colour of the accent. Lines and words
have the colour of the text around them, so that a drawing fits a light and a dark page; in a file of its own it follows
the reader's settings. A family is a few lines here: boxes in a column, arrows between boxes, and two lines of words.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

WIDTH = 440
LEFT, RIGHT, COLUMN = 12, 268, 160  # where the two columns begin, and their width
TOP, BOTTOM = 74, 286  # of the frame around a column
WORDS = 346  # where the words below begin
ACCENT = "var(--drawing-accent, #c2410c)"
DARK = "@media(prefers-color-scheme:dark){:root{color:#e6edf3;--drawing-accent:#ff9a62}}"
ALONE = f"<style>:root{{color:#1f2328}}{DARK}</style>"


class Box(NamedTuple):
    """A box of a drawing; its sides and corners are where arrows begin and end."""

    x: float
    y: float
    width: float
    height: float

    @property
    def top(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height

    @property
    def left(self) -> tuple[float, float]:
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> tuple[float, float]:
        return self.x + self.width, self.y + self.height / 2


class Drawing:
    """An SVG drawing that is made by its methods; `svg` returns it."""

    def __init__(self, title: str, words: str):
        self.title, self.words, self.parts = title, words, list[str]()
        self.text(LEFT, 22, title, size=16, weight=700)
        lines = textwrap.wrap(words, 55)
        for line, said in enumerate(lines):
            self.text(LEFT, WORDS + 18 * line, said, accent=True)
        self.height = WORDS + 18 * len(lines)

    def svg(self, alone: bool = False) -> str:
        """Returns the drawing for a page, without an empty line; alone: with colours, for a file of its own."""
        name = f'role="img" aria-label="{escape(f"{self.title}: {self.words}")}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {WIDTH} {self.height}" {name}>'
        head += f"<title>{escape(self.title)}</title>{ALONE if alone else ''}"
        group = '<g fill="none" stroke="currentColor" stroke-width="1.3" font-family="system-ui, sans-serif">'
        return "\n".join((head, group, *self.parts, "</g></svg>"))

    def text(self, x: float, y: float, said: str, accent=False, size=13, weight=400, anchor="start") -> None:
        """Writes a line, its baseline at y."""
        colour = ACCENT if accent else "currentColor"
        look = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{colour}" stroke="none"'
        self.parts.append(f'<text x="{x:g}" y="{y:g}" {look}>{escape(said)}</text>')

    def box(self, x: float, y: float, width: float, height: float, said="", accent=False, dashed=False) -> Box:
        """Draws a box with words in its middle, | between lines."""
        look = f' stroke="{ACCENT}" stroke-width="2"' if accent else ""
        look += ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"{look}/>')
        lines = said.split("|")
        for line, words in enumerate(lines):
            middle = y + height / 2 + 4.5 + 15 * (line - (len(lines) - 1) / 2)
            self.text(x + width / 2, middle, words, accent, anchor="middle")
        return Box(x, y, width, height)

    def arrow(self, *points: tuple[float, float], accent=False, dashed=False) -> None:
        """Draws a line through points with a head at its end."""
        look = f' stroke="{ACCENT}" stroke-width="1.8"' if accent else ""
        look += ' stroke-dasharray="5 4"' if dashed else ""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path d="M{path}"{look}/>')
        (x0, y0), (x, y) = points[-2:]
        far = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
        dx, dy = 7 * (x - x0) / far, 7 * (y - y0) / far
        back = f"{x - dx - dy / 2:g} {y - dy + dx / 2:g} L{x - dx + dy / 2:g} {y - dy - dx / 2:g}"
        fill = ACCENT if accent else "currentColor"
        self.parts.append(f'<path d="M{x:g} {y:g} L{back} Z" fill="{fill}" stroke="none"/>')

    def frame(self, x: float, said: str, reads: str, writes: str = "") -> None:
        """Draws a column's frame with its name, what it reads below and what comes out above."""
        self.box(x, TOP, COLUMN, BOTTOM - TOP)
        self.text(x + 9, TOP + 18, said, size=12, weight=700)
        middle = x + COLUMN / 2
        self.text(middle, BOTTOM + 32, reads, anchor="middle")
        self.arrow((middle, BOTTOM + 18), (middle, BOTTOM))
        if writes:
            self.arrow((middle, TOP), (middle, TOP - 17))
            self.text(middle, TOP - 22, writes, anchor="middle")

    def stack(self, x: float, *names: str, accent: tuple[int, ...] = ()) -> list[Box]:
        """Draws boxes from bottom to top in a column with arrows between them; returns them, the lowest first."""
        room = (BOTTOM - TOP - 30) / len(names)
        height = min(36, room - 16)
        first = BOTTOM - 10 - (room + height) / 2 + 4
        boxes = [
            self.box(x + 14, first - room * place, COLUMN - 28, height, name, place in accent)
            for place, name in enumerate(names)
        ]
        for below, above in pairwise(boxes):
            self.arrow(below.top, above.bottom)
        return boxes

    def sides(self, encoder: str = "each encoder layer", decoder: str = "each decoder layer") -> None:
        """Draws the frames of encoder and decoder."""
        self.frame(LEFT, encoder, "source sentence")
        self.frame(RIGHT, decoder, "translation so far", "next word")

    def layers(self) -> tuple[list[Box], list[Box]]:
        """Draws an encoder and a decoder of three layers each."""
        self.sides("encoder", "decoder")
        names = ("layer 1", "layer 2", "last layer")
        return self.stack(LEFT, *names), self.stack(RIGHT, *names)

    def reading(self, target: tuple[float, float]) -> None:
        """Draws how attention over the source reads the encoder's last layer: from its top, down the gap."""
        x = (LEFT + COLUMN + RIGHT) / 2
        y = TOP - 12
        self.arrow((LEFT + COLUMN / 2, TOP), (LEFT + COLUMN / 2, y), (x, y), (x, target[1]), target)
        self.text(LEFT + COLUMN / 2 + 8, y - 6, "last layer", size=12)


def transformer() -> Drawing:
    drawing = Drawing("The Transformer", "The baseline. In the other drawings, what differs from it has this colour.")
    drawing.sides()
    drawing.stack(LEFT, "self-attention", "feed-forward")
    decoder = drawing.stack(RIGHT, "self-attention", "attention to source", "feed-forward")
    drawing.reading(decoder[1].left)
    return drawing


def aggregation() -> Drawing:
    drawing = Drawing(
        "Layer aggregation",
        "The decoder reads one merger of all encoder layers, not the last one alone; with Transparent, each of its "
        "layers reads a merger of its own.",
    )
    encoder, decoder = drawing.layers()
    merged = drawing.box(193, 162, 54, 44, "merge", accent=True)
    for layer in encoder:
        drawing.arrow(layer.right, merged.left, accent=True)
    for layer in decoder:
        drawing.arrow(merged.right, layer.left)
    return drawing


def multi_layer_attention() -> Drawing:
    drawing = Drawing(
        "Multi-layer multi-head attention",
        "Each decoder layer attends to all encoder layers, not to the "
        "last one alone: with joint weights or own ones, contexts side by side or summed.",
    )
    encoder, decoder = drawing.layers()
    for above in decoder:
        for layer in encoder:
            drawing.arrow(layer.right, above.left, accent=True)
    return drawing


def multi_level_supervision() -> Drawing:
    drawing = Drawing(
        "Multi-level supervision",
        "Auxiliary decoders on lower encoder layers learn the same words. Without AIF they serve in training only; "
        "with it (dashed) every main decoder layer reads them.",
    )
    encoder, decoder = drawing.layers()
    drawing.reading((RIGHT, decoder[-1].left[1]))
    x = (LEFT + COLUMN + RIGHT) / 2
    for layer in encoder[:2]:
        y = layer.y - 3
        auxiliary = drawing.box(x - 31, y, 62, layer.height + 6, "auxiliary|decoder", accent=True)
        drawing.arrow(layer.right, auxiliary.left, accent=True)
        drawing.arrow(auxiliary.right, (RIGHT, auxiliary.right[1]), accent=True, dashed=True)
    return drawing


def dual_context() -> Drawing:
    drawing = Drawing(
        "Dual contextual module",
        "In place of self-attention: attention to all words, and to what a convolution makes of each word and its "
        "neighbours. In the encoder, in the decoder, or in both.",
    )
    drawing.sides("encoder: Enc-DC", "decoder: Dec-DC")
    for x, others in ((LEFT, ("feed-forward",)), (RIGHT, ("attention to source", "feed-forward"))):
        middle, y = x + COLUMN / 2, BOTTOM - 8
        words = drawing.box(x + 6, 194, 66, 38, "attention|to words", accent=True)
        nearby = drawing.box(x + 80, 194, 74, 38, "attention|to regions", accent=True)
        convolution = drawing.box(x + 76, 246, 80, 22, "convolution", accent=True)
        drawing.arrow((middle, BOTTOM), (middle, y), (words.bottom[0], y), words.bottom, accent=True)
        drawing.arrow((middle, y), (convolution.bottom[0], y), convolution.bottom, accent=True)
        drawing.arrow(convolution.top, nearby.bottom, accent=True)
        above = [drawing.box(x + 14, 156 - 38 * place, COLUMN - 28, 24, name) for place, name in enumerate(others)]
        for part in (words, nearby):
            drawing.arrow(part.top, (part.top[0], above[0].bottom[1]), accent=True)
        if len(above) > 1:
            drawing.arrow(above[0].top, above[1].bottom)
            drawing.reading(above[0].left)
    return drawing


def extended_cross_attention() -> Drawing:
    drawing = Drawing(
        "Extended cross-attention",
        "Attention to the source also sees (a) the source words' embeddings, (b) that of the last target word, both, "
        "or (c) its own last weights or context.",
    )
    drawing.sides("encoder", "each decoder layer")
    embeddings, _ = drawing.stack(LEFT, "embeddings", "all layers")
    attention = drawing.stack(RIGHT, "self-attention", "attention to source", "feed-forward", accent=(1,))[1]
    drawing.reading(attention.left)
    (x, y), (middle, low) = attention.left, (RIGHT + COLUMN / 2, BOTTOM + 12)
    drawing.arrow(embeddings.right, (200, embeddings.right[1]), (200, y + 8), (x, y + 8), accent=True)
    drawing.arrow((middle, low), (256, low), (256, y + 14), (x, y + 14), accent=True)
    _loop(drawing, attention)
    for x, y, letter in (
        (205, embeddings.right[1] - 8, "a"),
        (243, low - 6, "b"),
        (attention.right[0] + 2, attention.y - 2, "c"),
    ):
        drawing.text(x, y, letter, accent=True, weight=700)
    return drawing


def ssru() -> Drawing:
    drawing = Drawing(
        "SSRU",
        "A recurrent unit with one state, which a gate forgets, takes the "
        "place of the decoder's self-attention: the same cost at every word.",
    )
    drawing.sides()
    drawing.stack(LEFT, "self-attention", "feed-forward")
    decoder = drawing.stack(RIGHT, "recurrent unit", "attention to source", "feed-forward", accent=(0,))
    drawing.reading(decoder[1].left)
    _loop(drawing, decoder[0])
    return drawing


def _loop(drawing: Drawing, box: Box) -> None:
    """Draws what a box hands on to itself, at its right side."""
    x, y = box.x + box.width, box.y
    drawing.arrow((x, y + 7), (x + 9, y + 7), (x + 9, y + box.height - 7), (x, y + box.height - 7), accent=True)


def rnn() -> Drawing:
    drawing = Drawing(
        "The attentive LSTM",
        "LSTMs in place of the Transformer's layers, in the encoder in "
        "both directions; attention once, above the decoder's layers.",
    )
    drawing.sides("encoder", "decoder")
    encoder = drawing.stack(LEFT, "two-way LSTM", "two-way LSTM", accent=(0, 1))
    decoder = drawing.stack(RIGHT, "LSTM", "LSTM", "attention to source", accent=(0, 1, 2))
    drawing.reading(decoder[-1].left)
    for box in (*encoder, *decoder[:2]):
        _loop(drawing, box)
    return drawing


def bridge() -> Drawing:
    drawing = Drawing(
        "Attention bridge",
        "An encoder or a decoder for each language; between them one matrix of fixed size, made by an attention that "
        "all languages share.",
    )
    languages = ("English", "German", "French")
    x = (LEFT + COLUMN + RIGHT) / 2
    shared = drawing.box(x - 37, TOP, 74, BOTTOM - TOP, "bridge:|one size|for every|sentence", accent=True)
    for side, begins in (("encoder", LEFT), ("decoder", RIGHT)):
        for place, language in enumerate(languages):
            y = TOP + 10 + 70 * place
            box = drawing.box(
                begins + (0 if side == "encoder" else 20), y, COLUMN - 20, 50, f"{language}|{side}", accent=True
            )
            ends = (shared.x, box.left[1]) if side == "encoder" else (shared.x + shared.width, box.left[1])
            drawing.arrow(*((box.right, ends) if side == "encoder" else (ends, box.left)), accent=True)
    drawing.text(LEFT + 70, BOTTOM + 24, "source in any of them", anchor="middle")
    drawing.text(RIGHT + 90, BOTTOM + 24, "next word in any", anchor="middle")
    return drawing


def language_model() -> Drawing:
    drawing = Drawing(
        "Language model",
        "The decoder alone, trained on text of one language: no encoder, no attention to a source.",
    )
    drawing.box(LEFT, TOP, COLUMN, BOTTOM - TOP, "no encoder", accent=True, dashed=True)
    drawing.frame(RIGHT, "each decoder layer", "text so far", "next word")
    low, gone, high = (
        drawing.box(RIGHT + 14, y, COLUMN - 28, 36, said, accent, accent)
        for y, said, accent in (
            (234, "self-attention", False),
            (172, "no attention|to a source", True),
            (110, "feed-forward", False),
        )
    )
    drawing.arrow(low.top, gone.bottom)
    drawing.arrow(gone.top, high.bottom)
    return drawing


def fusion() -> Drawing:
    drawing = Drawing(
        "Fusion",
        "Both models score every next word; their log probabilities are "
        "added, each with its weight. The language model stays as it is.",
    )
    drawing.frame(LEFT, "translation model", "source, translation so far")
    drawing.frame(RIGHT, "language model", "translation so far")
    drawing.stack(LEFT, "encoder", "decoder")
    drawing.stack(RIGHT, "decoder", accent=(0,))
    added = drawing.box(170, 34, 100, 26, "weighted sum", accent=True)
    for x, side in ((LEFT, added.left), (RIGHT, added.right)):
        drawing.arrow((x + COLUMN / 2, TOP), (x + COLUMN / 2, side[1]), side, accent=True)
    drawing.arrow((220, 34), (220, 18), accent=True)
    drawing.text(228, 24, "next word")
    return drawing


def combinations() -> Drawing:
    drawing = Drawing(
        "A family over a dual-context encoder",
        "Encoder layers with the dual contextual module, read as another "
        "family reads them: merged, one by one, or by auxiliary decoders.",
    )
    drawing.sides("encoder", "decoder")
    encoder = drawing.stack(LEFT, *["dual-context layer"] * 3, accent=(0, 1, 2))
    decoder = drawing.stack(RIGHT, "layer 1", "layer 2", "last layer")
    family = drawing.box(187, 156, 66, 56, "another|family", accent=True)
    for layer in encoder:
        drawing.arrow(layer.right, family.left, accent=True)
    for layer in decoder:
        drawing.arrow(family.right, layer.left, accent=True)
    return drawing


FAMILIES: dict[str, Callable[[], Drawing]] = {
    drawn.__name__: drawn
    for drawn in (
        transformer, aggregation, multi_layer_attention, multi_level_supervision, dual_context,
        extended_cross_attention, ssru, rnn, bridge, language_model, fusion, combinations,
    )
}  # fmt: skip
"""The drawing of each module of hf_mlnmt/modeling that holds a family."""


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for family, drawn in FAMILIES.items():
        (folder / f"{family}.svg").write_text(drawn().svg(alone=True), encoding="utf-8")
