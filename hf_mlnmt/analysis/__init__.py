"""Looking into trained models: what their attention read, how much of the source is covered."""

from hf_mlnmt.analysis.coverage import Coverage, draw, measure

__all__ = ["Coverage", "draw", "measure"]
