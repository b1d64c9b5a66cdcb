"""The demo corpus: English and German sentences from a grammar of the project's own."""

from hf_mlnmt.demo.grammar import write_demo_corpus

__all__ = ["write_demo_corpus"]
