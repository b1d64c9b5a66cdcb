"""How many encoder layers are read, from the top: n = 2 to 5 of the joint-attention systems; all six are the systems.

BLEU on newstest2014, parameters, steps/s: thesis on joint attention, table 3.4.
"""

from dataclasses import replace

from hf_mlnmt.zoo.entries import aggregation, multi_layer_attention
from hf_mlnmt.zoo.entry import Reported, System

_ENTRIES = {entry.name: entry for entry in (*aggregation.SYSTEMS, *multi_layer_attention.SYSTEMS)}
LAYERS = (2, 3, 4, 5, 6)
"""The printed n."""
# (parameters in millions, steps/s, BLEU), for each n.
PRINTED: dict[str, tuple[tuple[float, float, float], ...]] = {
    "s-agg": ((61.8, 3.64, 28.57), (62.1, 3.63, 28.13), (62.3, 3.63, 28.02), (62.6, 3.59, 28.37), (62.8, 3.57, 28.24)),
    "iter-s-agg": (
        (61.8, 3.63, 28.57),
        (62.3, 3.61, 28.50),
        (62.8, 3.61, 28.48),
        (63.4, 3.54, 28.33),
        (63.4, 3.52, 28.29),
    ),
    "c-agg": ((64.4, 3.56, 28.60), (65.5, 3.53, 28.80), (66.5, 3.49, 28.76), (67.6, 3.46, 28.49), (68.6, 3.41, 28.15)),
    "iter-c-agg": (
        (64.4, 3.56, 28.60),
        (67.6, 3.45, 28.36),
        (70.7, 3.33, 28.81),
        (73.9, 3.22, 28.57),
        (77.0, 3.11, 28.82),
    ),
    "m-00": ((67.5, 3.41, 28.43), (73.8, 3.18, 28.53), (80.2, 3.03, 28.72), (86.4, 2.77, 28.66), (92.7, 2.65, 28.80)),
    "m-01": ((66.0, 3.45, 28.82), (70.7, 3.20, 28.76), (75.4, 3.06, 28.66), (80.2, 2.93, 28.46), (84.9, 2.74, 28.54)),
    "m-10": ((67.5, 3.39, 28.42), (73.8, 3.15, 28.41), (80.2, 3.01, 28.59), (86.4, 2.76, 29.12), (92.7, 2.59, 29.08)),
    "m-11": ((66.0, 3.44, 28.72), (70.7, 3.16, 28.71), (75.4, 3.01, 28.60), (80.2, 2.83, 28.62), (84.9, 2.70, 28.51)),
}


def _variant(system: str, layers: int, printed: tuple[float, float, float]) -> System:
    entry = _ENTRIES[system]
    field = "collected_layers" if entry.architecture is aggregation.AGGREGATION else "attended_layers"
    parameters, steps, bleu = printed
    return replace(
        entry,
        name=f"{system}-top-{layers}",
        fields={**entry.fields, field: layers},
        title=f"{entry.title} with n = {layers}",
        clause=f"{entry.title} that reads the top {layers} encoder layers alone",
        reported={"wmt14-ende": Reported(bleu, parameters, steps)},
    )


VARIANTS = tuple(
    _variant(system, layers, printed)
    for system, row in PRINTED.items()
    for layers, printed in zip(LAYERS[:-1], row[:-1], strict=True)
)
