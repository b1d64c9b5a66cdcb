"""Scores by BLEU, chrF and TER under two protocols, comparisons with significance tests, results files, figures."""

from hf_mlnmt.evaluation.comparison import compare, comparison_tables, read_comparison
from hf_mlnmt.evaluation.metric import METRIC_PATH, load_metric
from hf_mlnmt.evaluation.results import Results, open_results, read_results, versions
from hf_mlnmt.evaluation.scores import METRICS, Protocol, ProtocolName, moses, score, score_protocols, score_tables

__all__ = [
    "METRICS",
    "METRIC_PATH",
    "Protocol",
    "ProtocolName",
    "Results",
    "compare",
    "comparison_tables",
    "load_metric",
    "moses",
    "open_results",
    "read_comparison",
    "read_results",
    "score",
    "score_protocols",
    "score_tables",
    "versions",
]
