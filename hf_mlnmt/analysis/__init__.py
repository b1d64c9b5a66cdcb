"""Looking into trained models: what attention reads, what parts are worth, what states know, what outputs lack.

One file a question: its statistic, and the study that asks it of several systems and draws the answer. The commands
`hf-mlnmt analyse ...` write what they find.
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
