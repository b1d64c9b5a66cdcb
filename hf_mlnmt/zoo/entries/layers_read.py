"""Joint-attention systems that read the top n = 2 to 5 encoder layers; those that read all are systems of their own."""

from dataclasses import replace

from hf_mlnmt.zoo.entries import aggregation, multi_layer_attention
from hf_mlnmt.zoo.entry import System

_ENTRIES = {entry.name: entry for entry in (*aggregation.SYSTEMS, *multi_layer_attention.SYSTEMS)}
READERS = ("s-agg", "iter-s-agg", "c-agg", "iter-c-agg", "m-00", "m-01", "m-10", "m-11")
LAYERS = (2, 3, 4, 5)
"""The n of the thesis on joint attention, table 3.4."""


def _variant(system: str, layers: int) -> System:
    entry = _ENTRIES[system]
    field = "collected_layers" if entry.architecture is aggregation.AGGREGATION else "attended_layers"
    return replace(
        entry,
        name=f"{system}-top-{layers}",
        fields={**entry.fields, field: layers},
        title=f"{entry.title} with n = {layers}",
        clause=f"{entry.title} that reads the top {layers} encoder layers alone",
    )


VARIANTS = tuple(_variant(system, layers) for system in READERS for layers in LAYERS)
