"""Scores: BLEU, chrF and TER under two protocols, significance, results files, and the same as an `evaluate` module."""

from hf_mlnmt.evaluation.compare import Comparison, compare
from hf_mlnmt.evaluation.metric import METRIC_PATH, load_metric
from hf_mlnmt.evaluation.report import comparison_tables, score_tables
from hf_mlnmt.evaluation.results import Results, open_results, read_results, versions
from hf_mlnmt.evaluation.scores import (
    METRICS,
    PROTOCOLS,
    MetricName,
    MetricScore,
    Protocol,
    ProtocolName,
    Scores,
    moses,
    score,
    score_protocols,
)
from hf_mlnmt.evaluation.significance import PairedResult, PairedTests, paired_tests

__all__ = [
    "METRICS",
    "METRIC_PATH",
    "PROTOCOLS",
    "Comparison",
    "MetricName",
    "MetricScore",
    "PairedResult",
    "PairedTests",
    "Protocol",
    "ProtocolName",
    "Results",
    "Scores",
    "compare",
    "comparison_tables",
    "load_metric",
    "moses",
    "open_results",
    "paired_tests",
    "read_results",
    "score",
    "score_protocols",
    "score_tables",
    "versions",
]
