"""Multi-level supervision: `ms-<layers>` has auxiliary decoders on these encoder layers, a digit each; `-aif` fuses.

BLEU: thesis on joint attention, tables 4.1 to 4.4 and 4.6b; parameters and speeds of the small shape, which depend on
the number of auxiliary decoders alone: table 4.6a; of the base shape: table 5.2.
"""

from __future__ import annotations

import re

from hf_mlnmt.zoo.entry import Architecture, Reported, System

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
LISTED = ("ms-1", "ms-123", "ms-1-aif", "ms-123-aif")
"""Of the many there are, those that stand for all in tests and comparisons."""

_REPORTED: dict[str, dict[str, Reported]] = {
    "ms-1": {
        "wmt14-ende": Reported(29.07),
        "iwslt-envi": Reported(31.32),
        "iwslt-esen": Reported(40.60),
        "iwslt-deen": Reported(34.87),
    },
    "ms-2": {
        "wmt14-ende": Reported(29.02),
        "iwslt-envi": Reported(31.13),
        "iwslt-esen": Reported(40.71),
        "iwslt-deen": Reported(34.96),
    },
    "ms-3": {
        "wmt14-ende": Reported(28.90),
        "iwslt-envi": Reported(31.03),
        "iwslt-esen": Reported(40.65),
        "iwslt-deen": Reported(34.83),
    },
    "ms-4": {"wmt14-ende": Reported(29.16, 86.5, 2.20)},
    "ms-5": {"wmt14-ende": Reported(28.74)},
    "ms-1-aif": {
        "wmt14-ende": Reported(29.32, 88.0, 2.14),
        "iwslt-envi": Reported(31.29),
        "iwslt-esen": Reported(40.92),
        "iwslt-deen": Reported(35.12),
    },
    "ms-2-aif": {
        "wmt14-ende": Reported(28.88),
        "iwslt-envi": Reported(31.52),
        "iwslt-esen": Reported(40.83),
        "iwslt-deen": Reported(35.20),
    },
    "ms-3-aif": {
        "wmt14-ende": Reported(28.97),
        "iwslt-envi": Reported(31.64),
        "iwslt-esen": Reported(41.22),
        "iwslt-deen": Reported(35.14),
    },
    "ms-4-aif": {"wmt14-ende": Reported(29.11)},
    "ms-5-aif": {"wmt14-ende": Reported(29.14)},
    "ms-12": {"iwslt-envi": Reported(31.49)},
    "ms-13": {"iwslt-envi": Reported(31.30)},
    "ms-23": {"iwslt-envi": Reported(31.32)},
    "ms-123": {"iwslt-envi": Reported(31.47)},
    "ms-12-aif": {"iwslt-envi": Reported(31.47)},
    "ms-13-aif": {"iwslt-envi": Reported(31.63)},
    "ms-23-aif": {"iwslt-envi": Reported(31.28)},
    "ms-123-aif": {"iwslt-envi": Reported(31.70)},
}
# Table 4.6a, by number of auxiliary decoders: without and with fusion.
_SMALL = {
    1: (Reported(None, 17.0, 5.50, 310.46), Reported(None, 17.3, 5.42, 184.67)),
    2: (Reported(None, 21.2, 3.90, 310.46), Reported(None, 21.7, 3.77, 141.10)),
    3: (Reported(None, 25.4, 3.08, 310.46), Reported(None, 26.2, 3.04, 106.0)),
}


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
        _reported(name, len(layers), fusion),
        listed=name in LISTED,
    )


def _reported(name: str, auxiliaries: int, fusion: bool) -> dict[str, Reported]:
    reported = dict(_REPORTED.get(name, {}))
    if auxiliaries in _SMALL:
        small = _SMALL[auxiliaries][fusion]
        reported["iwslt-envi"] = small._replace(bleu=reported.get("iwslt-envi", Reported()).bleu)
    return reported


SYSTEMS = tuple(entry for name in dict.fromkeys((*LISTED, *_REPORTED)) if (entry := system(name)))
