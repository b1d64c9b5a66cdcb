"""Reports for readers: model cards, descriptions of models, comparisons of runs, and their tables."""

from hf_mlnmt.reports.card import build_card
from hf_mlnmt.reports.description import describe
from hf_mlnmt.reports.facts import Facts
from hf_mlnmt.reports.parameters import parameters_by_part

__all__ = ["Facts", "build_card", "describe", "parameters_by_part"]
