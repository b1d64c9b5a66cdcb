"""Imports models of other formats as this package's baseline: Transformers, Marian, fairseq, JoeyNMT, OpenNMT-py."""

from hf_mlnmt.convert.importing import Imported, import_model

__all__ = ["Imported", "import_model"]
