"""What the papers report of these analyses, to stand beside our own numbers and never among them.

Sources: thesis on joint attention, tables 3.5 (WMT'14 English-German, 6 + 6 layers, d = 512), 4.8 (IWSLT
English-Vietnamese) and 5.5 (WMT'14 English-German). "1.85‡" of C-Agg has no sign in the table either.
"""

from __future__ import annotations

from typing import Any

MASKING: dict[str, list[str]] = {
    "S-Agg": ["-27.01‡", "-0.12", "+0.10", "-0.20", "-0.11", "-0.94‡"],
    "C-Agg": ["-21.56‡", "-0.14", "+0.06", "-0.26", "-0.37", "1.85‡"],
    "Iter-S-Agg": ["-0.03", "-0.01", "-0.12", "-0.05", "0.0", "-28.29‡"],
    "Iter-C-Agg": ["-4.53‡", "-0.54‡", "-0.59‡", "-2.21‡", "-4.0‡", "-27.16‡"],
    "M-00": ["-15.25‡", "-0.49†", "-0.27", "0.03", "-1.79‡", "-9.85‡"],
    "M-01": ["-24.99‡", "-0.19", "-0.09", "0.13", "-0.81‡", "-1.49‡"],
    "M-10": ["-0.83‡", "-1.32‡", "-1.05‡", "-1.0‡", "-1.50‡", "-1.09‡"],
    "M-11": ["-0.26", "-1.13‡", "-0.83‡", "-1.43‡", "-1.34‡", "-0.1"],
}
"""Table 3.5: the change of BLEU with each of the encoder layers 1 to 6 masked; ‡ p < 0.01, † p < 0.05."""

_TASKS = ("SentLen", "WC", "TreeDepth", "BShift", "TopConst", "Tense", "SubjNum", "ObjNum", "SOMO", "CoordInv")
PROBING: dict[str, dict[str, dict[str, float]]] = {
    "IWSLT En-Vi, table 4.8": {
        "Transformer": dict(zip(_TASKS, (87.63, 61.7, 34.63, 54.53, 63.25, 78.88, 74.86, 75.80, 51.67, 58.07))),
        "MS-1": dict(zip(_TASKS, (88.65, 61.17, 35.67, 56.58, 65.45, 79.22, 75.03, 74.79, 51.47, 58.31))),
        "MS-2": dict(zip(_TASKS, (88.35, 60.38, 34.78, 56.20, 65.44, 78.52, 74.98, 76.20, 51.38, 58.14))),
        "MS-3": dict(zip(_TASKS, (87.88, 62.50, 34.65, 55.60, 63.12, 78.48, 74.21, 75.19, 51.4, 57.34))),
    },
    "WMT'14 En-De, table 5.5": {
        "Transformer": dict(zip(_TASKS, (93.38, 71.50, 43.93, 69.49, 74.56, 88.40, 85.01, 85.9, 52.67, 62.30))),
        "Enc-DC": dict(zip(_TASKS, (93.45, 75.95, 44.29, 74.11, 75.44, 88.65, 85.33, 85.13, 52.49, 62.56))),
    },
}
"""Accuracies of the perceptron on the ten tasks of SentEval, final encoder layer."""


def published_masking(config: Any) -> list[str] | None:
    """Table 3.5's row of this system, None if it has none."""
    name = getattr(config, "aggregation", None) or getattr(config, "multi_layer_attention", None)
    return MASKING.get(name or "")
