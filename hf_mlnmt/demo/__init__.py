"""The demo: a corpus of English and German sentences from a grammar of our own, and a tour with it (tour.py)."""

from hf_mlnmt.demo.grammar import sample_demo_corpus, write_demo_corpus

__all__ = ["sample_demo_corpus", "write_demo_corpus"]
