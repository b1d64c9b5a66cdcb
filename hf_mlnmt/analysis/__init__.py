"""Looking into trained models: what attention reads, what parts are worth, what states know, what is wrong with
outputs.

One file a question, small functions of tensors in each; `studies.py` and its siblings ask one question of several
systems and draw it; the commands `attention`, `masking`, `probe`, `outputs` and `coverage` write what they find.
"""

from hf_mlnmt.analysis.coverage import Coverage, draw, measure

__all__ = ["Coverage", "draw", "measure"]
