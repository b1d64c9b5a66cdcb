"""Multi-level supervision: `ms-<layers>` has auxiliary decoders on these encoder layers, a digit each; `-aif` fuses."""

from __future__ import annotations

import re

from hf_mlnmt.zoo.entry import Architecture, System

MULTI_LEVEL_SUPERVISION = Architecture(
    "mlnmt-multi-level-supervision",
    "multi_level_supervision",
    "MultiLevelSupervision",
    beyond="auxiliary decoders that the main decoder reads (information_fusion)",
    encoder_heads=True,
    over_dual_context=Architecture(
        "mlnmt-dual-context-supervision",
        "combinations",
        "DualContextSupervision",
        beyond="the dual contextual module (a convolution and a second attention in each layer)",
        encoder_heads=True,
    ),
)


def system(name: str) -> System | None:
    """The entry of `ms-<layers>` or `ms-<layers>-aif`; None for any other name."""
    match = re.fullmatch(r"ms-([1-9]+)(-aif)?", name)
    if match is None:
        return None
    layers, fusion = [int(digit) for digit in match[1]], match[2] is not None
    where = " and ".join(filter(None, [", ".join(match[1][:-1]), match[1][-1]]))
    decoders = "an auxiliary decoder on encoder layer" if len(layers) == 1 else "auxiliary decoders on encoder layers"
    return System(
        name,
        MULTI_LEVEL_SUPERVISION,
        {"auxiliary_layers": layers, "information_fusion": fusion},
        f"MS-{match[1]}{' + AIF' if fusion else ''}",
        f"{decoders} {where}, {'read by the main decoder' if fusion else 'in training only'}",
    )


SYSTEMS = tuple(entry for name in ("ms-1", "ms-123", "ms-1-aif", "ms-123-aif") if (entry := system(name)))
"""Of the many there are, those that stand for all in tests and comparisons."""
