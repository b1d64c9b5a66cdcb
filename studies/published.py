"""What the papers print, as tables to stand beside our numbers and never among them; docs/published.md shows them all.

T1: thesis on joint attention; T2: thesis on monolingual data. The BLEU of single systems is in the zoo's entries, what
is printed of masking and probing in published_analyses.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from methods import METHODS
from papers import papers_numbers, reported, systems_scored
from setups import SETUPS

from hf_mlnmt.reports.tables import MISSING
from hf_mlnmt.table import Number, Table
from hf_mlnmt.zoo.entries import layers_read
from hf_mlnmt.zoo.systems import SYSTEMS

SCORES = {"BLEU": "bleu", "TER": "ter", "dev BLEU": "dev_bleu", "dev TER": "dev_ter"}
COLUMNS = {**SCORES, "parameters (million)": "parameters", "training steps a second": "steps_per_second"}
"""What the zoo's entries have of the papers' numbers, as tables call it: fields of `Reported`."""


class Printed(NamedTuple):
    """A table of a paper: rows are lines, cells are parted by two spaces or more, the first line names the columns."""

    title: str
    source: str
    text: str

    def table(self) -> Table:
        """All columns but the first hold numbers."""
        head, *rows = [_cells(line) for line in self.text.strip().splitlines()]
        return Table([head[0], *map(Number, head[1:])], rows)


def _cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def _layers_read() -> str:
    """The numbers that the zoo's variants have, beside one another."""
    head = [f"n = {layers}" for layers in layers_read.LAYERS]
    rows = [
        [SYSTEMS[name].title, *(f"{size:.1f} {steps:.2f} {bleu:.2f}" for size, steps, bleu in row)]
        for name, row in layers_read.PRINTED.items()
    ]
    return "\n".join("  ".join(row) for row in [["system", *head], *rows])


PRINTED: dict[str, Printed] = {
    "layers-read": Printed(
        "Layers that are read: parameters (million), training steps a second, BLEU on newstest2014",
        "T1, table 3.4",
        _layers_read(),
    ),
    "auxiliary-decoders": Printed(
        "What auxiliary decoders can do by themselves: BLEU",
        "T1, table 4.7",
        """
decoder      En-Vi  De-En  Es-En
MS-1         30.63  34.05  39.71
MS-1 + AIF   30.60  33.93  39.61
MS-2         30.91  34.38  40.10
MS-2 + AIF   30.89  34.33  40.08
MS-3         30.88  34.77  40.26
MS-3 + AIF   31.24  34.62  39.73
""",
    ),
    "layer-ranges": Printed(
        "Encoder layers that have the dual contextual module: BLEU of Enc-DC on newstest2014",
        "T1, table 5.6",
        """
layers  1-6    1-1    1-2    1-3    1-4    1-5    5-6    4-6    3-6
BLEU    29.26  29.04  28.98  28.93  29.04  28.94  28.47  28.57  28.78
""",
    ),
    "language-models": Printed(
        "Perplexity of language models, dev/test",
        "T2, chapter 4",
        """
trained on          En-It      Ro-En        De-En      Zh-En
bilingual           53.4/49.3  115.9/113.6  84.0/91.7  81.3/88.1
and monolingual     34.4/33.9  29.2/29.1    39.7/51.6  44.4/36.1
""",
    ),
    "search-fusion": Printed(
        "Fusion in the search: dev BLEU/TER; base with two decoder layers",
        "T2, chapter 4",
        """
system                       En-It      Ro-En      De-En      Zh-En
six decoder layers           28.1/54.0  35.7/45.3  32.7/48.6  22.2/62.4
two decoder layers           26.9/55.0  33.0/48.1  32.0/48.7  21.6/62.3
by symbol, monolingual       26.7/55.2  33.2/48.4  32.8/48.7  21.9/62.9
by sequence, monolingual     27.2/55.2  33.6/48.3  33.1/49.0  22.2/63.3
by symbol, bilingual         26.8/55.2  32.8/48.7  32.3/49.3  -
by sequence, bilingual       26.8/55.5  32.7/49.1  32.4/49.9  -
""",
    ),
    "fusion-scale": Printed(
        "Scale of the sequence-level fusion: dev BLEU/TER",
        "T2, table 4.10",
        """
pair   1e-4       1e-3       1e-2       0.1        0.5        1          10
En-It  26.9/54.9  26.8/54.9  26.9/55.0  27.2/55.2  23.9/62.3  13.4/96.8  0.0/132.7
Ro-En  33.0/48.1  33.0/48.1  33.0/48.2  33.6/48.3  30.4/55.5  1.0/191.8  0.1/198.6
""",
    ),
    "fusion-training": Printed(
        "Fusion in training: dev BLEU/TER; the language models of training and of search",
        "T2, tables 4.17 and 4.18",
        """
criterion                        En-It      Ro-En      De-En
symbol: bilingual, bilingual     26.9/55.2  33.0/48.4  32.4/49.1
symbol: bilingual, monolingual   27.0/55.1  33.4/47.8  32.8/48.3
symbol: monolingual, bilingual   26.9/55.0  33.0/48.3  32.4/49.0
symbol: monolingual, monolingual  27.0/55.0  33.5/47.9  32.8/48.7
sequence: 12-best                27.2/55.2  33.6/48.3  33.1/49.0
sequence: trellis                27.2/55.2  33.6/48.2  33.1/49.0
""",
    ),
    "pre-training": Printed(
        "Pre-training on monolingual data: dev BLEU/TER",
        "T2, chapter 4",
        """
what                       En-It      Ro-En      De-En      Zh-En
encoder, language model    29.4/52.6  36.7/44.6  33.1/48.1  22.3/62.2
encoder, cloze             29.4/52.2  36.8/44.3  33.1/48.0  22.5/61.6
decoder                    28.9/53.2  35.9/45.3  33.0/48.5  22.4/62.4
encoder and decoder        28.9/53.0  37.1/44.5  32.7/48.6  21.9/63.0
""",
    ),
    "multi-task": Printed(
        "Multi-task learning: dev BLEU/TER",
        "T2, chapter 4",
        """
second task                   En-It      Ro-En      De-En      Zh-En
source language model         28.3/53.5  35.5/45.7  32.2/49.2  22.1/62.7
source cloze                  28.2/53.7  35.6/45.8  32.0/49.5  22.0/63.3
target language model         29.0/52.8  36.3/45.1  33.1/48.4  22.6/61.7
source cloze and target       28.1/53.9  36.0/45.2  32.2/49.3  22.3/63.0
""",
    ),
    "back-translation": Printed(
        "Back-translation, parts of synthetic data to one of real: dev BLEU/TER",
        "T2, chapter 4",
        """
pair   0.5        1          1.5        2          5          10
En-It  28.7/53.3  28.8/53.5  29.2/53.2  29.6/52.9  29.8/52.4  29.9/52.5
Ro-En  36.5/44.8  37.0/44.2  37.4/44.3  37.3/44.4  37.4/44.0  37.9/43.9
De-En  -          -          -          -          35.1/45.8  -
Zh-En  -          23.0/61.3  -          -          -          -
""",
    ),
    "monolingual-overview": Printed(
        "Ways of using monolingual data: test BLEU/TER (De-En, Zh-En: newstest2017)",
        "T2, chapter 4",
        """
method            En-It      Ro-En      De-En      Zh-En
none              29.6/52.0  34.1/47.4  33.6/48.0  23.0/61.9
back-translation  31.4/50.5  36.8/45.2  36.6/44.8  24.2/60.9
pre-training      31.3/50.3  35.4/46.5  34.1/47.5  23.3/61.1
multi-task        30.5/50.8  34.6/47.2  34.1/47.9  23.7/61.1
sequence fusion   30.2/52.1  33.8/48.5  34.1/48.8  23.2/63.1
symbol fusion     29.9/52.2  33.8/48.0  34.3/48.2  23.6/62.1
""",
    ),
    "fusion-lengths": Printed(
        "Length ratio with fusion in the search",
        "T2, chapter 4",
        """
fusion       En-It  Ro-En  De-En  Zh-En
none         1.02   .97    .97    .94
by symbol    1.03   1.00   .98    .96
by sequence  1.03   1.00   .99    .97
""",
    ),
    "fusion-domains": Printed(
        "Fusion in the search by domain: BLEU; perplexity of the language models",
        "T2, table 4.16",
        """
test set              without  fused  bilingual LM  monolingual LM
En-It, science        26.9     27.2   53.4          34.4
En-It, news           20.5     21.7   94.6          22.6
De-En, parliament     33.1     33.5   24.0          25.9
De-En, news           32.0     33.1   84.0          39.7
""",
    ),
    "pre-training-control": Printed(
        "Pre-training on the bilingual data alone: dev BLEU/TER",
        "T2, table 4.25",
        """
what                       En-It      Ro-En
encoder, language model    28.8/53.0  36.2/45.0
encoder, cloze             28.9/52.8  35.8/45.6
decoder                    28.2/53.7  36.1/45.4
encoder and decoder        28.4/53.7  36.2/44.8
""",
    ),
    "pre-training-test": Printed(
        "Pre-training on monolingual data: test BLEU/TER",
        "T2, chapter 4",
        """
side    En-It      Ro-En      De-En      Zh-En
source  31.0/50.6  35.2/46.5  34.2/47.4  23.5/61.0
target  31.1/50.8  35.4/46.5  33.8/48.0  22.7/62.3
both    31.3/50.3  35.3/46.3  34.1/47.5  23.3/61.1
""",
    ),
    "with-back-translation": Printed(
        "With back-translation: test BLEU/TER (En-It: tst2010)",
        "T2, chapter 4",
        """
and                      En-It      Ro-En      De-En      Zh-En
fusion                   31.0/51.5  37.8/44.4  37.9/44.8  24.0/62.6
pre-training             31.5/50.1  37.4/44.3  37.3/44.4  24.2/60.5
pre-training and fusion  31.6/50.8  37.7/44.5  37.9/44.9  24.0/62.4
""",
    ),
    "monolingual-domains": Printed(
        "Ways of using monolingual data, in the domain of the bilingual / of the monolingual data: BLEU",
        "T2, table 4.37",
        """
method            En-It      De-En
none              29.6/21.6  33.3/33.6
back-translation  31.4/26.5  33.5/36.6
fusion            30.2/22.7  33.3/34.1
pre-training      31.3/24.2  33.2/34.1
""",
    ),
    "extended-attention": Printed(
        "Extended cross-attention: dev BLEU/TER",
        "T2, chapter 5",
        """
system                       En-It      Ro-En
source embedding             27.0/55.2  35.7/45.5
source embedding, norm       26.7/55.0  35.6/45.5
target embedding             28.0/53.8  35.9/45.2
target embedding, norm       28.0/53.9  35.9/45.2
both embeddings              26.0/55.9  35.6/45.6
previous context, by head    28.3/53.8  36.3/45.2
previous context, full       28.4/53.9  35.8/45.4
previous weight              28.3/53.9  36.0/45.3
accumulated weight           28.1/53.9  36.0/45.1
fertility                    28.2/53.8  36.2/45.1
key-value context, by head   28.2/53.8  36.1/45.2
key-value context, full      28.2/53.6  36.0/45.3
""",
    ),
    "extended-attention-test": Printed(
        "Extended cross-attention: test BLEU/TER",
        "T2, tables 5.6 and 5.7",
        """
system            En-It      Ro-En      De-En      En-It, tst2017
base              29.6/52.0  34.1/47.4  33.6/48.0  31.9/48.1
target embedding  29.8/51.9  34.2/47.3  33.3/48.3  32.0/47.9
fertility         30.0/51.6  34.4/47.1  -          32.5/47.9
key-value         29.9/51.9  34.4/47.2  -          32.6/47.5
""",
    ),
}


def setup_tables(ours: Mapping[str, str]) -> dict[str, Table]:
    """{setup: published BLEU, parameters and speed of its systems, and ours beside them}, of setups that papers score.

    ours: {record: our score as text}; a column of its own, so that nobody takes the one for the other. What a paper
    prints of no system of a setup has no column; how many layers are read has a table of its own.
    """
    elsewhere = {entry.name for entry in layers_read.VARIANTS}
    tables = {}
    for setup in SETUPS:
        names = [name for name in systems_scored(setup) if name not in elsewhere]
        names += [name for name, method in METHODS.get(setup, {}).items() if method.reported]
        if names:
            tables[setup] = _setup_table(setup, names, ours)
    return tables


def _setup_table(setup: str, names: Sequence[str], ours: Mapping[str, str]) -> Table:
    printed = [row for name in names if (row := reported(f"{name}.{setup}"))]
    columns = {title: [getattr(row, field) for row in printed] for title, field in COLUMNS.items()}
    columns = {title: values for title, values in columns.items() if any(value is not None for value in values)}
    cells = [[f"`{name}`" for name in names], *map(numbers, columns.values())]
    cells.append([ours.get(f"{name}.{setup}", "not trained") for name in names])
    heads = [Number(f"published {title}" if title in SCORES else title) for title in columns]
    return Table(["system", *heads, "ours, cased BLEU"], list(map(list, zip(*cells, strict=True))))


def papers_table(record: str) -> Table | None:
    """What the papers report of a record's system and of their baseline; None where they report nothing."""
    if (found := papers_numbers(record)) is None:
        return None
    own, baseline = found
    pairs = {name: (getattr(own, key), getattr(baseline, key)) for name, key in COLUMNS.items()}
    rows = [[name, *numbers(pair, MISSING)] for name, pair in pairs.items() if pair[0] is not None]
    return Table(["in the paper", "this system", "its baseline"], rows)


def numbers(values: Sequence[float | None], missing: str = "") -> list[str]:
    """With as many digits behind the point as the longest of them needs, one at least."""
    digits = [len(f"{value:.10g}".partition(".")[2]) for value in values if value is not None]
    return [missing if value is None else f"{value:.{max([1, *digits])}f}" for value in values]
