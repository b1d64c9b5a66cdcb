"""Exports models for other engines (CTranslate2, ONNX, Marian, Firefox...), and to models with a single decoder."""

from hf_mlnmt.export.exporting import FORMATS, Exported, export, write_single_decoder

__all__ = ["FORMATS", "Exported", "export", "write_single_decoder"]
