"""Looking into trained models: what attention reads, what parts are worth, what states know, what is wrong with
outputs.

One file a question, small functions of tensors in each; `studies.py` and its siblings ask one question of several
systems and draw it; the commands `attention`, `masking`, `probe`, `outputs`, `coverage`, `curves` write what they find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_mlnmt.analysis.coverage import Coverage, draw, measure

__all__ = ["Coverage", "draw", "measure"]


def __getattr__(name: str) -> Any:
    """Imported when asked for: curves need neither torch nor models."""
    if name in __all__:
        from hf_mlnmt.analysis import coverage

        return getattr(coverage, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
